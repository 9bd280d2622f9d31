"""The server, over real sockets: work that does not fit into one turn of the event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from firearrow.net.server import Answer, Handler, Peer, Server, Steps
from firearrow.net.turns import TURN_CHECK_REPLIES, TURN_MS
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand, encode_request, encode_response
from tests.loglines import told
from tests.net.conftest import Run
from tests.net.talker import question, talking

ECHO, RAW, LATE = 1, 2, 5


class Busy:
    """Handlers that take time: by its clock, and a number of turns of the loop."""

    def __init__(self) -> None:
        self.ms = 0
        self.turns = 0
        self.done: list[tuple[int, int]] = []  # the request and its turn
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def count_turns(self) -> None:
        self.turns += 1
        asyncio.get_running_loop().call_soon(self.count_turns)

    def slow(self, peer: Peer, request: AnyCommand) -> Answer:
        self.ms += TURN_MS // 2
        self.done.append((request.opaque, self.turns))
        return Response()

    def in_steps(self, peer: Peer, request: AnyCommand) -> Steps:
        try:
            self.begun.set()
            for _ in range(int(request.ext["n"])):
                self.slow(peer, request)
                yield
            if "bug" in request.ext:
                raise KeyError("a bug")
            return Response(remark="done")
        finally:
            self.ended.set()

    def raw(self, peer: Peer, request: AnyCommand) -> Answer:
        self.ms += TURN_MS
        self.done.append((request.opaque, self.turns))
        return encode_response(Response(body=b"raw"), request.opaque)

    @property
    def handlers(self) -> dict[int, Handler]:
        return {ECHO: self.slow, RAW: self.raw, LATE: self.in_steps}


@asynccontextmanager
async def busy_serving() -> AsyncIterator[tuple[Busy, Server, int]]:
    busy = Busy()
    server = Server(busy.handlers, busy)
    port = await server.start("127.0.0.1", 0)
    try:
        busy.count_turns()
        yield busy, server, port
    finally:
        await server.stop()


def test_what_takes_long_goes_on_in_later_turns_in_order(run: Run) -> None:
    async def main() -> None:
        async with busy_serving() as (busy, _, port), talking(port) as talker:
            talker.ask(*(question(ECHO, opaque) for opaque in range(10)))
            answers = [await talker.answer() for _ in range(10)]
            assert [answer.opaque for answer in answers] == list(range(10))
            turns = [turn for _, turn in busy.done]
            assert max(turns.count(turn) for turn in turns) == 2

    run(main())


def test_messages_are_answered_in_one_turn_unless_they_take_long(run: Run) -> None:
    async def main() -> None:
        async with busy_serving() as (busy, _, port), talking(port) as talker:
            talker.ask(*(question(RAW, opaque) for opaque in range(10)))
            assert [(await talker.answer()).opaque for _ in range(10)] == list(range(10))
            turns = [turn for _, turn in busy.done]
            assert [turns.count(turn) for turn in sorted(set(turns))] == [TURN_CHECK_REPLIES, 2]

    run(main())


def test_others_have_their_turn_between(run: Run) -> None:
    async def main() -> None:
        async with busy_serving() as (busy, _, port), talking(port) as one, talking(port) as two:
            one.ask(*(question(ECHO, opaque) for opaque in range(20)))
            two.ask(*(question(ECHO, opaque) for opaque in range(100, 120)))
            for _ in range(20):
                await one.answer()
                await two.answer()
            turns = [turn for _, turn in busy.done]
            assert max(turns.count(turn) for turn in turns) <= 3  # the first one, and a turn
            first_of_two = next(at for at, (who, _) in enumerate(busy.done) if who >= 100)
            last_of_one = max(at for at, (who, _) in enumerate(busy.done) if who < 100)
            assert first_of_two < last_of_one

    run(main())


def test_an_answer_in_steps_holds_up_only_its_own_peer(run: Run) -> None:
    async def main() -> None:
        async with busy_serving() as (busy, _, port), talking(port) as one, talking(port) as two:
            one.ask(question(LATE, 1, n="8"), question(ECHO, 2))
            two.ask(question(RAW, 3))
            assert (await two.answer()).body == b"raw"
            answers = [await one.answer(), await one.answer()]
            assert [(answer.opaque, answer.remark) for answer in answers] == [(1, "done"), (2, None)]
            turns = [turn for opaque, turn in busy.done if opaque == 1]
            assert max(turns.count(turn) for turn in turns) == 2
            one.ask(question(ECHO, 4))  # the server reads from it again
            assert (await one.answer()).opaque == 4

    run(main())


def test_a_failure_in_a_step_is_answered_as_any(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with busy_serving() as (_, _, port), talking(port) as talker:
            talker.ask(question(LATE, 1, n="3", bug="yes"), question(ECHO, 2))
            answers = [await talker.answer(), await talker.answer()]
            assert [answer.opaque for answer in answers] == [1, 2]
            assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR, 0]
            assert [(line["event"], line["code"]) for line in told(caplog)] == [("request failed", 5)]

    run(main())


@pytest.mark.parametrize("how", ["stop", "drop"])
def test_steps_end_with_their_connection(run: Run, how: str) -> None:
    async def main() -> None:
        async with busy_serving() as (busy, server, port), talking(port) as talker:
            talker.ask(question(LATE, 1, n="1000000"), question(ECHO, 2))
            await busy.begun.wait()
            if how == "drop":
                [peer] = server.peers
                peer.drop("too much")
            else:
                await server.stop()
            await busy.ended.wait()
            assert all(opaque == 1 for opaque, _ in busy.done)

    run(main())


@pytest.mark.parametrize("end", [b"\xff" * 8, None], ids=["violation", "end"])
def test_what_waits_is_answered_before_the_connection_closes(run: Run, end: bytes | None) -> None:
    async def main() -> None:
        async with busy_serving() as (_, _, port), talking(port) as talker:
            requests = [question(ECHO, opaque) for opaque in range(10)]
            talker.write(b"".join(map(encode_request, requests)) + (end or b""))
            if end is None:
                talker.write_end()
            for opaque in range(10):
                assert (await talker.answer()).opaque == opaque
            assert await talker.end() == b""

    run(main())
