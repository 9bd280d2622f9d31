"""Times of requests as a server measures them, over real sockets."""

from __future__ import annotations

from collections.abc import Sequence

from firearrow.clock import Clock, SystemClock
from firearrow.errors import BrokerError
from firearrow.net.gathering import Answers
from firearrow.net.meter import OTHER, Histogram, RpcKey
from firearrow.net.server import REPLIES_BYTES_FLUSH, Answer, Handler, Peer, PeerRequest, Server, Steps
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand, bare_frame, encode_response
from tests.net.conftest import Run
from tests.net.talker import question, talking

SEND, PULL = int(RequestCode.SEND_MESSAGE), int(RequestCode.PULL_MESSAGE)
REFUSED, STEPS, GATHERED = 13, 14, int(RequestCode.ACK_MESSAGE)
LARGE, NOBODYS = int(RequestCode.GET_BROKER_CONFIG), 987_654


class SetClock(SystemClock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.ms = 1000

    def now_ms(self) -> int:
        return self.ms


class Handlers:
    """Handlers that take some time."""

    def __init__(self, clock: SetClock) -> None:
        self._clock = clock
        self.waiting: list[tuple[Peer, AnyCommand]] = []

    def send(self, _: Peer, request: AnyCommand) -> Answer:
        self._clock.ms += 6
        return bare_frame(request.opaque, request.binary)

    def pull(self, peer: Peer, request: AnyCommand) -> Answer:
        self.waiting.append((peer, request))
        return None

    def refuse(self, _: Peer, request: AnyCommand) -> Answer:
        raise BrokerError(17, "as it is meant to")

    def step(self, _: Peer, request: AnyCommand) -> Steps:
        self._clock.ms += 2
        yield
        return Response()

    def large(self, _: Peer, request: AnyCommand) -> Answer:
        body = bytes(REPLIES_BYTES_FLUSH)
        return encode_response(Response(body=body), request.opaque, request.binary)

    def gathered(self, requests: Sequence[PeerRequest]) -> Answers:
        self._clock.ms += 60
        return [bare_frame(request.opaque, request.binary) for _, request in requests]

    def table(self) -> dict[int, Handler]:
        return {
            SEND: self.send, PULL: self.pull, REFUSED: self.refuse, STEPS: self.step,
            GATHERED: self.send, LARGE: self.large,
        }  # fmt: skip


def measuring(clock: Clock, handlers: Handlers) -> Server:
    bulk = {GATHERED: handlers.gathered}
    return Server(handlers.table(), clock, bulk_handlers=bulk, measures=True)


def counted(server: Server) -> dict[RpcKey, list[int]]:
    assert server.meter is not None
    return {key: it.counts for key, it in server.meter.histograms.items()}


def bucket(number: int, count: int = 1) -> list[int]:
    return [count if at == number else 0 for at in range(10)]


def test_times_are_those_from_the_read_to_the_end_of_the_turn(run: Run) -> None:
    clock = SetClock()
    handlers = Handlers(clock)

    async def main() -> None:
        server = measuring(clock, handlers)
        port = await server.start("127.0.0.1", 0)
        async with talking(port) as talker:
            talker.ask(question(SEND, 1), question(SEND, 2))  # 12 ms for both
            for _ in range(2):
                await talker.answer()
            talker.ask(question(GATHERED, 3), question(GATHERED, 4))
            for _ in range(2):
                await talker.answer()
            talker.ask(question(STEPS, 5))
            await talker.answer()
        await server.stop()
        assert counted(server) == {
            RpcKey(SEND, 0, False, False): bucket(5, 2),
            RpcKey(GATHERED, 0, False, False): bucket(5, 2),
            RpcKey(STEPS, 0, False, False): bucket(1),
        }

    run(main())


def test_what_is_answered_by_itself_is_told_apart(run: Run) -> None:
    clock = SetClock()
    handlers = Handlers(clock)

    async def main() -> None:
        server = measuring(clock, handlers)
        port = await server.start("127.0.0.1", 0)
        async with talking(port) as talker:
            talker.ask(question(REFUSED, 1), question(NOBODYS, 2))
            assert [(await talker.answer()).code for _ in range(2)] == [17, 3]
            oneway = question(SEND, 3)
            oneway.flag = 2
            talker.ask(oneway, question(PULL, 4), question(STEPS, 5))
            await talker.answer()
            clock.ms += 500
            [(peer, request)] = handlers.waiting
            peer.reply(request, Response(19))
            assert (await talker.answer()).code == 19
        await server.stop()
        found = counted(server)
        assert found[RpcKey(REFUSED, 17, False, False)] == bucket(0)
        assert found[RpcKey(OTHER, 3, False, False)] == bucket(0)
        assert found[RpcKey(SEND, 0, False, True)] == bucket(3)
        assert found[RpcKey(PULL, 19, True, False)] == bucket(6)
        assert len(found) == 5

    run(main())


def test_of_what_one_read_brings_each_request_is_counted_once(run: Run) -> None:
    """Also with other codes between, and with answers that leave meanwhile."""
    clock = SetClock()
    asked = [SEND, SEND, REFUSED, SEND, LARGE, LARGE, REFUSED, LARGE, SEND, STEPS, SEND, LARGE]

    async def main() -> None:
        server = measuring(clock, Handlers(clock))
        port = await server.start("127.0.0.1", 0)
        async with talking(port) as talker:
            talker.ask(*(question(code, number) for number, code in enumerate(asked)))
            for number in range(len(asked)):
                assert (await talker.answer()).opaque == number
        await server.stop()
        found = {(key.code, key.response_code): sum(it) for key, it in counted(server).items()}
        assert found == {(SEND, 0): 5, (REFUSED, 17): 2, (LARGE, 0): 4, (STEPS, 0): 1}

    run(main())


def test_a_server_measures_nothing_unless_it_is_to() -> None:
    assert Server({}, SystemClock()).meter is None


def test_a_histogram_counts_a_value_at_its_bound() -> None:
    found = Histogram((1, 10))
    for value in (0, 1, 2, 10, 11):
        found.add(value)
    assert (found.counts, found.sum, found.count) == ([2, 2, 1], 24, 5)
