"""The server, over real sockets: requests that have waited for too long, and too many waiting requests."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from firearrow.clock import SystemClock
from firearrow.net.lateness import TICK_SECONDS, Patience
from firearrow.net.server import Answer, Handler, Peer, Server, Steps
from firearrow.wire.codes import FLAG_RESPONSE
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from tests.net.conftest import Run
from tests.net.talker import Talker, question, talking

ECHO, STALL, STEPS = 1, 2, 5
BUSY = 2
LEAST_MS = 1000  # a busy machine may stall a loop for some hundred
WAITING_MAX = 3


class ShortPatience(Patience):
    """Refuses requests that have waited for a second, and a fourth that waits."""

    def __init__(self) -> None:
        self.waited: list[tuple[int, int]] = []
        self.stalls: list[int] = []
        self.waiting = 0
        self.both_wait = asyncio.Event()

    @property
    def least_ms(self) -> int:
        return LEAST_MS

    def held_up(self, stalled_ms: int) -> None:
        self.stalls.append(stalled_ms)

    def refusal(self, code: int, waited_ms: int, stalled_ms: int) -> Response | None:
        self.waited.append((waited_ms, stalled_ms))
        return Response(BUSY, "late") if waited_ms >= LEAST_MS else None

    def enter(self, code: int, *, must: bool = False) -> Response | None:
        if self.waiting >= WAITING_MAX and not must:
            return Response(BUSY, "too many")
        self.waiting += 1
        if self.waiting == 2:
            self.both_wait.set()
        return None

    def leave(self, code: int) -> None:
        self.waiting -= 1


class Stalling:
    """A handler that stalls the loop, and one that takes many turns."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.go_on = False
        self.ms = 0  # change of the wall clock
        self.meanwhile: Callable[[], object] = int

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ms

    def monotonic(self) -> float:
        return SystemClock().monotonic()

    def stall(self, peer: Peer, request: AnyCommand) -> Answer:
        self.meanwhile()
        left, right = socket.socketpair()
        with left, right:
            left.settimeout(self.seconds)
            try:
                left.recv(1)
            except TimeoutError:
                return Response()
        raise AssertionError("nobody wrote")

    def echo(self, peer: Peer, request: AnyCommand) -> Answer:
        return Response()

    def steps(self, peer: Peer, request: AnyCommand) -> Steps:
        while not self.go_on:
            yield
        return Response()

    @property
    def handlers(self) -> dict[int, Handler]:
        return {ECHO: self.echo, STALL: self.stall, STEPS: self.steps}


@asynccontextmanager
async def patient() -> AsyncIterator[tuple[Stalling, ShortPatience, Server, int]]:
    stalling, patience = Stalling(), ShortPatience()
    server = Server(stalling.handlers, stalling, patience=patience)
    port = await server.start("127.0.0.1", 0)
    try:
        yield stalling, patience, server, port
    finally:
        await server.stop()


async def served(*talkers: Talker) -> None:
    """Let connections be answered once: then the server knows them, and watches its lateness."""
    for talker in talkers:
        talker.ask(question(ECHO))
        await talker.answer()


def test_what_came_during_a_stall_is_late_and_what_comes_then_is_not(run: Run) -> None:
    async def main() -> None:
        async with patient() as (stalling, patience, _, port), talking(port) as one, talking(port) as two:
            await served(one, two)
            stalling.seconds = 2.0
            one.ask(question(STALL))
            two.ask(question(ECHO, 7))
            answer = await two.answer()
            assert (answer.code, answer.remark, answer.opaque) == (BUSY, "late", 7)
            [(waited_ms, stalled_ms)] = patience.waited
            least_ms = 2000 - 1000 * TICK_SECONDS - 50
            assert stalled_ms >= waited_ms >= least_ms
            assert (await one.answer()).code == 0
            two.ask(question(ECHO, 8))
            assert (await two.answer()).code == 0
            assert max(patience.stalls) >= least_ms

    run(main())


def test_what_is_sent_while_the_loop_is_held_up_is_late(run: Run) -> None:
    """It is read behind the tick on one loop, and before it on the other."""

    async def main() -> None:
        async with patient() as (stalling, _, _, port), talking(port) as one, talking(port) as two:
            await served(one, two)
            stalling.seconds = 1.5
            stalling.meanwhile = lambda: two.ask(question(ECHO, 7))  # a client writes at once
            one.ask(question(STALL))
            assert (await two.answer()).code == BUSY
            two.ask(question(ECHO, 8))
            assert (await two.answer()).code == 0

    run(main())


def test_answers_of_clients_are_never_refused(run: Run) -> None:
    async def main() -> None:
        async with patient() as (stalling, patience, _, port), talking(port) as one, talking(port) as two:
            await served(one, two)
            stalling.seconds = 1.5
            one.ask(question(STALL))
            told = question(ECHO, 7)
            told.flag = FLAG_RESPONSE
            two.ask(told, question(ECHO, 8))
            assert (await two.answer()).opaque == 8
            assert len(patience.waited) == 1

    run(main())


def test_one_too_many_that_waits_is_refused(run: Run) -> None:
    """The request in progress counts; it is not refused."""

    async def main() -> None:
        async with patient() as (stalling, patience, _, port), talking(port) as talker:
            talker.ask(question(STEPS, 0), *(question(ECHO, opaque) for opaque in range(1, 6)))
            refused = [await talker.answer() for _ in range(3)]
            assert [(answer.opaque, answer.remark) for answer in refused] == [
                (opaque, "too many") for opaque in (3, 4, 5)
            ]
            assert patience.waiting == WAITING_MAX
            stalling.go_on = True
            answers = [await talker.answer() for _ in range(3)]
            assert [(answer.opaque, answer.code) for answer in answers] == [(0, 0), (1, 0), (2, 0)]
            assert patience.waiting == 0

    run(main())


def test_what_waits_for_longer_behind_another_is_late(run: Run) -> None:
    async def main() -> None:
        async with patient() as (stalling, patience, _, port), talking(port) as talker:
            talker.ask(question(STEPS, 0), question(ECHO, 1))
            await patience.both_wait.wait()
            stalling.ms += LEAST_MS
            stalling.go_on = True
            answers = [await talker.answer() for _ in range(2)]
            assert [(answer.opaque, answer.code) for answer in answers] == [(0, 0), (1, BUSY)]

    run(main())


def test_what_waits_is_forgotten_with_its_connection(run: Run) -> None:
    async def main() -> None:
        async with patient() as (_, patience, server, port), talking(port) as talker:
            talker.ask(question(STEPS, 0), question(ECHO, 1))
            await patience.both_wait.wait()
            await server.stop()
            assert patience.waiting == 0

    run(main())


def test_a_clock_that_is_set_makes_nothing_late(run: Run) -> None:
    async def main() -> None:
        async with patient() as (stalling, patience, _, port), talking(port) as talker:
            for opaque in range(3):
                talker.ask(question(ECHO, opaque))
                assert (await talker.answer()).code == 0
                stalling.ms += 3_600_000
            assert all(waited_ms < LEAST_MS for waited_ms, _ in patience.waited)

    run(main())
