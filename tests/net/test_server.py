"""The server: order, refusals, back-pressure and ends of connections, over real sockets."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
import uvloop

from firearrow.clock import SystemClock
from firearrow.errors import BrokerError, CorruptStore
from firearrow.events import Events
from firearrow.net import server as server_module
from firearrow.net.server import Answer, ConnectionClosed, Handler, Peer, PeerRequest, Server
from firearrow.wire.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from firearrow.wire.command import Command, Response, request
from firearrow.wire.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX, LENGTHS, AnyCommand, encode_request, encode_response
from tests.loglines import told
from tests.net.conftest import Run
from tests.net.talker import Talker, question, talking
from tests.wire.strategies import json_frame

ECHO, RAW, REFUSE, FAIL, LATE, BIG, HUGE = 1, 2, 3, 4, 5, 6, 7


def echo(peer: Peer, request: AnyCommand) -> Answer:
    return Response(fields=request.ext, body=request.body)


def raw(peer: Peer, request: AnyCommand) -> Answer:
    return encode_response(Response(body=b"raw"), request.opaque)


def refuse(peer: Peer, request: AnyCommand) -> Answer:
    raise BrokerError(ResponseCode.NO_PERMISSION, "not you")


def fail(peer: Peer, request: AnyCommand) -> Answer:
    raise KeyError("a bug")


def huge(peer: Peer, request: AnyCommand) -> Response:
    return Response(fields={"x": "x" * HEADER_BYTES_MAX})


HANDLERS: dict[int, Handler] = {ECHO: echo, RAW: raw, REFUSE: refuse, FAIL: fail, HUGE: huge}


@asynccontextmanager
async def serving(handlers: Mapping[int, Handler] = HANDLERS, **options: Any) -> AsyncIterator[tuple[Server, int]]:
    server = Server(handlers, SystemClock(), **options)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop()


def closing(told: Callable[[Peer], object]) -> Events:
    """Make events with a listener of ended connections."""
    events = Events()
    events.listen(ConnectionClosed, lambda closed: told(closed.peer))
    return events


def test_requests_in_one_write_are_answered_in_order(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, port), talking(port) as talker:
            talker.ask(*(question(ECHO, opaque, n=str(opaque)) for opaque in range(100)))
            answers = [await talker.answer() for _ in range(100)]
            assert [answer.opaque for answer in answers] == list(range(100))
            assert [answer.ext["n"] for answer in answers] == list(map(str, range(100)))
            assert {answer.flag for answer in answers} == {FLAG_RESPONSE}

    run(main())


def test_an_answer_has_the_serialisation_of_its_request(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, port), talking(port) as talker:
            for binary in (False, True):
                talker.ask(Command(ECHO, {"n": "1"}, opaque=7, body=b"x", binary=binary))
                answer = await talker.answer()
                assert (answer.binary, answer.ext, answer.body) == (binary, {"n": "1"}, b"x")

    run(main())


def test_the_same_trouble_of_the_store_is_logged_once_a_minute(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(peer: Peer, request: AnyCommand) -> Answer:
        raise CorruptStore(f"queue {request.ext['n']} can't be read for now")

    async def ask(talker: Talker, queue: str) -> None:
        talker.ask(question(ECHO, 1, n=queue))
        answer = await talker.answer()
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert f"queue {queue} can't be read" in (answer.remark or "")

    async def main() -> None:
        async with serving({ECHO: pull}) as (_, port), talking(port) as talker:
            for queue in ("a", "a", "b", "a"):
                await ask(talker, queue)
            assert [str(line["error"])[:7] for line in told(caplog)] == ["queue a", "queue b"]
        monkeypatch.setattr("firearrow.net.refusals.QUIET_SECONDS", 0.0)
        async with serving({ECHO: pull}) as (_, port), talking(port) as talker:
            for _ in range(2):
                await ask(talker, "c")
            for number in range(300):
                await ask(talker, str(number))
        assert sum("queue c " in str(line["error"]) for line in told(caplog)) == 2

    run(main())


def together(asked: Sequence[PeerRequest]) -> list[bytes] | None:
    """Answer several requests, unless one wants its own handler or an error."""
    requests = [request for _, request in asked]
    if any("alone" in request.ext for request in requests):
        return None
    if any("bug" in request.ext for request in requests):
        raise KeyError("a bug")
    return [encode_response(Response(remark=f"one of {len(requests)}"), request.opaque) for request in requests]


def sized(opaque: int, size: int) -> Command[dict[str, str]]:
    return Command(ECHO, {}, opaque=opaque, body=bytes(size))


def test_requests_of_one_code_are_answered_together(run: Run) -> None:
    async def main() -> None:
        async with serving(bulk_handlers={ECHO: together}) as (_, port), talking(port) as talker:
            talker.ask(*(question(ECHO, opaque) for opaque in range(5)))
            answers = [await talker.answer() for _ in range(5)]
            assert [answer.opaque for answer in answers] == list(range(5))
            assert {answer.remark for answer in answers} == {"one of 5"}

    run(main())


def test_requests_of_several_peers_are_answered_together(run: Run) -> None:
    async def main() -> None:
        async with serving(bulk_handlers={ECHO: together}) as (_, port), talking(port) as one, talking(port) as other:
            one.ask(question(ECHO, 1), question(ECHO, 2))
            other.ask(question(ECHO, 3))
            answers = [await one.answer(), await one.answer(), await other.answer()]
            assert [answer.opaque for answer in answers] == [1, 2, 3]
            assert {answer.remark for answer in answers} == {"one of 3"}

    run(main())


def test_only_requests_of_one_size_are_answered_together(run: Run) -> None:
    async def main() -> None:
        async with serving(bulk_handlers={ECHO: together}) as (_, port), talking(port) as talker:
            sizes = [1, 1, 2, 1, 1, 1]
            talker.ask(*(sized(opaque, size) for opaque, size in enumerate(sizes)))
            answers = [await talker.answer() for _ in sizes]
            assert [answer.opaque for answer in answers] == list(range(6))
            assert [answer.remark for answer in answers] == [
                "one of 2", "one of 2", None, "one of 3", "one of 3", "one of 3",
            ]  # fmt: skip

    run(main())


def test_of_one_peer_the_first_is_answered_first(run: Run) -> None:
    """A read that is not gathered comes behind a gathered one, in one turn of the loop."""
    order: list[int] = []

    def noted(asked: Sequence[PeerRequest]) -> list[bytes] | None:
        order.extend(request.opaque for _, request in asked)
        return together(asked)

    def note(peer: Peer, request: AnyCommand) -> Answer:
        order.append(request.opaque)
        return Response()

    async def main() -> None:
        server = Server({ECHO: note, RAW: note}, SystemClock(), bulk_handlers={ECHO: noted})
        server.loop = asyncio.get_running_loop()
        one, other = Peer(server), Peer(server)
        one.data_received(b"".join(encode_request(question(ECHO, opaque)) for opaque in (1, 2)))
        other.data_received(encode_request(question(RAW, 3)))  # of another peer: it does not wait
        assert order == [3]
        one.data_received(encode_request(question(RAW, 4)))
        assert order == [3, 1, 2, 4]

    run(main())


@pytest.mark.parametrize("end", [b"", b"\x7f\xff\xff\xff\x00\x00\x00\x00"])
def test_what_was_gathered_is_answered_before_the_connection_closes(run: Run, end: bytes) -> None:
    async def main() -> None:
        async with serving(bulk_handlers={ECHO: together}) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            asked = b"".join(encode_request(question(ECHO, opaque)) for opaque in (1, 2))
            writer.write(asked + end)
            writer.write_eof()
            answers = await reader.read()
            writer.close()
            assert answers.count(b"one of 2") == 2

    run(main())


@pytest.mark.parametrize(
    "requests",
    [
        [question(ECHO, 1)],
        [question(ECHO, 1), question(RAW, 2), question(ECHO, 3)],
        [question(RAW, 1), question(ECHO, 2), question(ECHO, 3)],
        [question(ECHO, 1), question(ECHO, 2, alone="yes")],
        [Command(ECHO, {}, FLAG_ONEWAY, opaque=9), question(ECHO, 1), question(ECHO, 2)],
        [Command(ECHO, {}, FLAG_RESPONSE, opaque=9), question(ECHO, 1), question(ECHO, 2)],
    ],
)
def test_requests_that_are_answered_one_by_one(
    run: Run, requests: list[Command[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(bulk_handlers={ECHO: together}) as (_, port), talking(port) as talker:
            talker.ask(*requests)
            wanted = [request.opaque for request in requests if not request.flag]
            answers = [await talker.answer() for _ in wanted]
            assert [answer.opaque for answer in answers] == wanted
            assert {answer.remark for answer in answers} == {None}

    run(main())
    assert not caplog.records


def test_a_failing_handler_of_several_leaves_them_to_the_other(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(bulk_handlers={ECHO: together}) as (_, port), talking(port) as talker:
            talker.ask(question(ECHO, 1), question(ECHO, 2, bug="yes"))
            assert [(await talker.answer()).opaque for _ in range(2)] == [1, 2]

    run(main())
    [record] = caplog.records
    [line] = told(caplog)
    assert (line["event"], line["code"]) == ("requests failed", ECHO)
    assert str(line["addresses"]).startswith("['127.0.0.1:")
    assert record.exc_info is not None


def test_a_handler_may_give_the_frame(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, port), talking(port) as talker:
            talker.ask(question(RAW, 5))
            answer = await talker.answer()
            assert (answer.opaque, answer.body) == (5, b"raw")

    run(main())


def test_after_a_cut_nobody_gets_an_answer_and_nobody_can_connect(run: Run) -> None:
    async def main() -> None:
        asked = asyncio.Event()

        def wait(peer: Peer, request: AnyCommand) -> None:
            asked.set()

        async with serving({LATE: wait}) as (server, port), talking(port) as talker:
            talker.ask(question(LATE))
            await asked.wait()
            server.cut()
            assert await talker.end() == b""
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)

    run(main())


@pytest.mark.parametrize("binary", [False, True])
def test_unknown_codes_are_answered_with_3(run: Run, binary: bool) -> None:
    async def main() -> None:
        async with serving() as (_, port), talking(port) as talker:
            talker.ask(Command(999, {}, opaque=4, binary=binary))
            answer = await talker.answer()
            assert (answer.code, answer.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 4)
            assert answer.remark == " request type 999 not supported"

    run(main())


def test_a_refusal_carries_code_and_remark(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as (_, port), talking(port) as talker:
            talker.ask(question(REFUSE))
            answer = await talker.answer()
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not you")

    run(main())
    assert not caplog.records


def test_a_failing_handler_is_answered_with_1_and_logged(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as (_, port), talking(port) as talker:
            talker.ask(question(FAIL, 1), question(ECHO, 2))
            answer = await talker.answer()
            assert (answer.code, answer.remark) == (1, "KeyError: 'a bug'")
            assert (await talker.answer()).opaque == 2

    run(main())
    [record] = caplog.records
    [line] = told(caplog)
    assert (line["event"], line["code"]) == ("request failed", FAIL)
    assert str(line["address"]).startswith("127.0.0.1:")
    assert record.exc_info is not None


def test_an_answer_that_fits_no_frame_is_answered_with_1(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as (_, port), talking(port) as talker:
            talker.ask(question(HUGE, 1), question(ECHO, 2))
            assert "a header of" in ((await talker.answer()).remark or "")
            assert (await talker.answer()).opaque == 2

    run(main())
    assert len(caplog.records) == 1


@pytest.mark.parametrize("code", [ECHO, REFUSE, FAIL, 999])
def test_one_way_requests_are_never_answered(run: Run, code: int) -> None:
    async def main() -> None:
        async with serving() as (_, port), talking(port) as talker:
            talker.ask(Command(code, {}, FLAG_ONEWAY, opaque=1), question(ECHO, 2))
            assert (await talker.answer()).opaque == 2

    run(main())


def test_responses_that_nobody_waits_for_are_ignored(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, port), talking(port) as talker:
            talker.ask(Command(ECHO, {}, FLAG_RESPONSE, opaque=1), question(ECHO, 2))
            assert (await talker.answer()).opaque == 2

    run(main())


def test_a_late_answer_and_a_request_of_the_servers_own(run: Run) -> None:
    waiting: list[tuple[Peer, AnyCommand]] = []

    def late(peer: Peer, request: AnyCommand) -> Answer:
        waiting.append((peer, request))
        return None

    async def main() -> None:
        async with serving({LATE: late, ECHO: echo}) as (_, port), talking(port) as talker:
            unasked: AnyCommand = Command(LATE, {}, FLAG_ONEWAY, opaque=2)
            talker.ask(question(LATE, 1), unasked, question(ECHO, 3))
            assert (await talker.answer()).opaque == 3
            for peer, command in waiting:
                peer.reply(command, Response(body=b"at last"))
            waiting[0][0].push(request(40, {"consumerGroup": "g"}, oneway=True))
            answer = await talker.answer()
            assert (answer.opaque, answer.body) == (1, b"at last")
            pushed = await talker.answer()
            assert (pushed.code, pushed.flag) == (40, FLAG_ONEWAY)
            waiting[0][0].reply(waiting[0][1], huge(*waiting[0]))
            assert "a header of" in ((await talker.answer()).remark or "")
        assert not waiting[0][0].is_open
        waiting[0][0].reply(waiting[0][1], Response())

    run(main())


TOO_LONG = LENGTHS.pack(2**31 - 1, 100)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (TOO_LONG, "a frame of 2147483647 bytes is above the limit of 16777216"),
        (b"\x16\x03\x01\x00\xf4\x01\x00\x00", "the peer speaks TLS"),
        (json_frame(b'{"code":'), "the JSON header can't be read"),
        (json_frame({"code": "x"}), "header field code is not a number: 'x'"),
        (LENGTHS.pack(10, 100) + bytes(6), "a header of 100 bytes in a frame of 10"),
        (b"GET / HTTP/1.1\r\n\r\n", "above the limit"),
    ],
)
def test_violations_close_the_connection_with_a_logged_reason(
    run: Run, caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    async def main() -> None:
        async with serving() as (_, port), talking(port) as talker:
            talker.write(json_frame({"code": ECHO, "opaque": 1}) + data)
            assert (await talker.answer()).opaque == 1
            assert await talker.end() == b""
            address = talker.address
            async with talking(port) as other:
                other.ask(question(ECHO, 2))
                assert (await other.answer()).opaque == 2
        [line] = told(caplog)
        assert (line["event"], line["address"]) == ("connection is closed", address)
        assert reason in str(line["reason"])

    run(main())


def test_a_slow_reader_is_not_served_until_it_reads(run: Run) -> None:
    handled = 0
    body = bytes(1024 * 1024)

    def big(peer: Peer, request: AnyCommand) -> Answer:
        nonlocal handled
        handled += 1
        return Response(body=body)

    async def main() -> None:
        async with serving({BIG: big, ECHO: echo}) as (_, port), talking(port) as slow, talking(port) as quick:
            slow.ask(*(question(BIG, opaque) for opaque in range(200)))
            await round_trip(quick)
            await round_trip(quick)
            assert 0 < handled < 50
            answers = [await slow.answer() for _ in range(200)]
            assert [answer.opaque for answer in answers] == list(range(200))
            assert all(len(answer.body) == len(body) for answer in answers)

    run(main())


async def round_trip(talker: Talker) -> None:
    talker.ask(question(ECHO))
    await talker.answer()


def test_nothing_is_pushed_to_a_slow_reader(run: Run) -> None:
    asked: asyncio.Queue[Peer] = asyncio.Queue()

    def big(peer: Peer, request: AnyCommand) -> Answer:
        asked.put_nowait(peer)
        return Response(body=bytes(FRAME_BYTES_MAX))

    async def main() -> None:
        async with serving({BIG: big}) as (_, port), talking(port) as talker:
            talker.ask(question(BIG))
            peer = await asked.get()
            peer.push(request(40, oneway=True))
            assert len((await talker.answer()).body) == FRAME_BYTES_MAX
            talker.ask(question(999, 7))
            assert (await talker.answer()).opaque == 7

    run(main())


def test_idle_connections_are_closed(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(idle_seconds_max=0.05) as (_, port), talking(port) as talker:
            assert await talker.end() == b""

    run(main())
    assert "nothing heard for 0.05 s" in caplog.text


def test_an_idle_connection_that_does_not_read_either_is_cut(run: Run) -> None:
    async def main() -> None:
        closed = asyncio.Event()
        handlers: dict[int, Handler] = {BIG: lambda peer, request: Response(body=bytes(64 * 1024 * 1024))}
        options = {"idle_seconds_max": 0.05, "events": closing(lambda peer: closed.set())}
        async with serving(handlers, **options) as (_, port), talking(port) as talker:
            talker.ask(question(BIG))
            async with asyncio.timeout(20):
                await closed.wait()

    run(main())


def test_the_owner_is_told_of_each_connection_that_ends(run: Run) -> None:
    gone: asyncio.Queue[str] = asyncio.Queue()

    async def main() -> None:
        async with serving(events=closing(lambda peer: gone.put_nowait(peer.address))) as (server, port):
            async with talking(port) as talker:
                talker.ask(question(ECHO))
                await talker.answer()
                [peer] = server.peers
                assert peer.address == talker.address
                address, sent_port = talker.address.split(":")
                assert peer.host_bytes == socket.inet_aton(address) + int(sent_port).to_bytes(4)
            assert await gone.get() == peer.address
            async with talking(port) as left:
                left.ask(question(ECHO))
                await left.answer()
                await server.stop()
                assert await left.end() == b""
        assert gone.qsize() == 1

    run(main())


def test_peers_over_ipv6(run: Run) -> None:
    async def main() -> None:
        server = Server(HANDLERS, SystemClock())
        try:
            port = await server.start("::1", 0)
        except OSError:
            port = await server.start("::ffff:127.0.0.1", 0)
        async with talking(port, "::1") as talker:
            talker.ask(question(ECHO))
            await talker.answer()
            [peer] = server.peers
            assert len(peer.host_bytes) == 20
            assert peer.address.startswith("::1:")
        await server.stop()

    run(main())


def test_a_stop_waits_for_answers_but_not_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CLOSE_SECONDS_MAX", 0.05)
    body = bytes(64 * 1024 * 1024)

    async def main() -> None:
        handlers: dict[int, Handler] = {ECHO: echo, BIG: lambda peer, request: Response(body=body)}
        server = Server(handlers, SystemClock())
        port = await server.start("127.0.0.1", 0)
        async with talking(port) as slow, talking(port) as quick:
            slow.ask(question(BIG))
            await round_trip(quick)
            await server.stop()
            assert not server.peers
            assert len(await slow.end()) < len(body)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    run(main())


class FakeTransport(asyncio.Transport):
    """A connection from the listener, which records only whether it was cut."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711)})
        self.is_cut = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Accept limits as a real transport; nothing is written."""

    def abort(self) -> None:
        self.is_cut = True


def test_a_connection_that_is_made_while_the_server_stops_is_cut(run: Run) -> None:
    """The listener's queue may hold a connection that the loop takes after the stop has begun."""

    async def main() -> None:
        server = Server(HANDLERS, SystemClock())
        await server.start("127.0.0.1", 0)
        assert not server.has_stopped
        early, late = FakeTransport(), FakeTransport()
        peer = Peer(server)
        peer.connection_made(early)
        assert not early.is_cut
        peer.connection_lost(None)
        await server.stop()
        assert server.has_stopped
        peer = Peer(server)
        peer.connection_made(late)
        assert late.is_cut
        peer.connection_lost(None)
        assert not server.peers

    run(main())


def test_a_server_that_has_stopped_may_serve_again(run: Run) -> None:
    async def main() -> None:
        server = Server(HANDLERS, SystemClock())
        for _ in range(2):
            port = await server.bind("127.0.0.1", 0)
            assert not server.has_stopped
            await server.serve()
            async with talking(port) as talker:
                await round_trip(talker)
                await server.stop()
                assert await talker.end() == b""
            assert server.has_stopped

    run(main())


def test_connections_beyond_what_descriptors_allow_are_closed_and_it_is_said_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        gone: asyncio.Queue[Peer] = asyncio.Queue()
        async with serving(events=closing(gone.put_nowait)) as (server, port):
            server.connection_limit.connections_max = 2
            async with talking(port) as first:
                await round_trip(first)
                async with talking(port) as second:
                    await round_trip(second)
                    for _ in range(2):
                        async with talking(port) as third:
                            assert await third.end() == b""
                            await gone.get()
                    await round_trip(first)
                await gone.get()
                async with talking(port) as again:
                    await round_trip(again)

    run(main())
    [line] = told(caplog)
    assert str(line["event"]).startswith("too many connections are open: others are closed at once")
    assert line["connections_max"] == 2


def test_some_descriptors_are_left_to_files() -> None:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < Server(HANDLERS, SystemClock()).connection_limit.connections_max < descriptors


def test_a_server_that_had_no_descriptors_serves_again() -> None:
    """Connections that came meanwhile are closed, or wait; the listener lives on.

    This is for uvloop; asyncio does it, too, but logs a thousand tracebacks.
    """

    async def main() -> None:
        async with serving() as (_, port):
            connection = socket.socket()
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            with no_descriptors():
                await loop.sock_connect(connection, ("127.0.0.1", port))
                await asyncio.to_thread(int)  # the loop has turned, and accepted all that it could
            connection.close()
            async with talking(port) as talker:
                await round_trip(talker)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 30))


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let nothing be opened until the end of the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
