"""Limits of gRPC connections: pending calls, idle time, ports, and the way in which a server sends clients away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from firearrow.net.grpc import UNREAD_BYTES_HIGH, GrpcLimits, drain
from firearrow.net.server import Server
from firearrow.wire.grpc import framed
from firearrow.wire.http2 import DATA, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, ErrorCode
from tests.broker.serving import until
from tests.net.conftest import Run
from tests.net.grpcservice import ECHO, Service, grpc_serving
from tests.net.http2talker import Http2Talker, path, speaking
from tests.net.talker import question, talking
from tests.wire import http2frames as h2
from tests.wire.http2frames import HELLO

MAX_CONCURRENT_STREAMS = 3
MiB = 1024 * 1024


def test_calls_beyond_the_limit_of_a_connection_are_refused(run: Run) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        settings = (await talker.frame(SETTINGS)).payload
        pairs = {int.from_bytes(settings[at : at + 2]): settings[at + 2 : at + 6] for at in range(0, len(settings), 6)}
        assert int.from_bytes(pairs[MAX_CONCURRENT_STREAMS]) == 2
        for number in (1, 3, 5):
            talker.write(h2.headers(number, path("hold")), h2.data(number, framed(b""), ends=True))
        refused = await talker.frame(RST_STREAM)
        assert (refused.stream_id, refused.error) == (5, ErrorCode.REFUSED_STREAM)
        service.held.pop().answer(b"")
        assert (await talker.frame(HEADERS)).stream_id == 3
        talker.write(h2.headers(7, path("echo")), h2.data(7, framed(b"x"), ends=True))
        assert await talker.answer(7) == [b"x"]

    speaking(run, main, limits=GrpcLimits(calls_max=2))


def test_a_connection_without_calls_is_told_to_leave_then_closed(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """PING is no call."""

    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        while (frame := await talker.frame(PING, GOAWAY)).kind == PING:
            talker.write(h2.ping())
            await asyncio.sleep(0.005)
        assert (frame.error, len(server.grpc_peers)) == (ErrorCode.NO_ERROR, 1)
        talker.write(h2.headers(1, path("echo")), h2.data(1, framed(b"x"), ends=True))
        assert (await talker.frame(RST_STREAM)).error == ErrorCode.REFUSED_STREAM
        await talker.end()

    speaking(run, main, HELLO + h2.ping(), limits=GrpcLimits(idle_seconds_max=0.05))
    assert not caplog.records


def test_calls_keep_a_connection(run: Run) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        for number in range(1, 41, 2):
            talker.write(h2.headers(number, path("echo")), h2.data(number, framed(b"x"), ends=True))
            assert await talker.answer(number) == [b"x"]
            await asyncio.sleep(0.01)
        talker.write(h2.headers(41, path("hold")), h2.data(41, framed(b""), ends=True))
        await asyncio.sleep(0.2)
        service.held[0].answer(b"late")
        assert await talker.answer(41) == [b"late"]

    speaking(run, main, limits=GrpcLimits(idle_seconds_max=0.05))


def test_other_ports_can_do_without_grpc(run: Run) -> None:
    async def main() -> None:
        async with grpc_serving() as (server, port):
            server.grpc_everywhere = False
            own = await server.serve_also("127.0.0.1", 0, is_for_grpc=True)
            call = HELLO + h2.headers(1, path("echo")) + h2.data(1, framed(b"x"), ends=True)
            async with talking(own) as talker:
                talker.write(call)
                assert await Http2Talker(talker).answer(1) == [b"x"]
            async with talking(port) as talker:
                talker.write(call)
                assert await talker.end() == b""
            async with talking(port) as talker:
                talker.ask(question(ECHO))
                assert (await talker.answer()).code == 0

    run(main())


def test_a_server_that_drains_waits_for_calls_and_not_for_streams(run: Run) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(h2.headers(1, path("hold")), h2.data(1, framed(b""), ends=True))
        talker.write(h2.headers(3, path("chat")), h2.data(3, framed(b"hi")))
        assert (await talker.frame(DATA)).stream_id == 3
        server.retire_grpc()
        draining = asyncio.create_task(drain(server.grpc_peers, 20))
        assert (await talker.frame(GOAWAY)).error == ErrorCode.NO_ERROR
        await asyncio.sleep(0.05)
        assert not draining.done()
        service.held[0].answer(b"late")
        assert await talker.answer(1) == [b"late"]
        await draining
        talker.write(h2.data(3, framed(b"still")))
        assert (await talker.frame(DATA)).payload == framed(b"re: still")
        assert service.cancelled == []

    speaking(run, main)


def test_a_drain_waits_for_no_request_that_is_not_whole(run: Run) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(h2.headers(1, path("echo")), h2.headers(3, path("echo")), h2.data(3, framed(b"x")[:-1]))
        talker.write(h2.headers(5, path("big")), h2.data(5, framed(b"%d" % MiB), ends=True))  # and for no slow reader
        assert (await talker.frame(DATA)).stream_id == 5
        server.retire_grpc()
        await asyncio.wait_for(drain(server.grpc_peers, 1000), 10)

    speaking(run, main)


def test_a_drain_ends_in_time_and_takes_no_connection(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(h2.headers(1, path("hold")), h2.data(1, framed(b""), ends=True))
        await until(lambda: bool(service.held))
        server.retire_grpc()
        await drain(server.grpc_peers, 0.05)
        assert len(server.grpc_peers) == 1
        assert server._server is not None
        async with talking(server._server.sockets[0].getsockname()[1]) as other:
            other.write(HELLO)
            assert await other.end() == b""

    speaking(run, main)
    assert not caplog.records


class Attached:
    """Object of handlers, and the calls that it got."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda: self.calls.append(name)


def test_the_handlers_learn_that_a_client_does_not_read(run: Run) -> None:
    attached = Attached()

    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        await until(lambda: bool(server.grpc_peers))
        [peer] = server.grpc_peers
        peer.attached = attached
        talker.write(h2.headers(1, path("big")), h2.data(1, framed(b"%d" % (UNREAD_BYTES_HIGH + MiB)), ends=True))
        await until(lambda: not peer.reads)
        assert attached.calls == ["pause"]
        talker.write(h2.window(0, 2 * MiB), h2.window(1, 2 * MiB))
        await until(lambda: peer.reads)
        assert attached.calls == ["pause", "resume"]

    speaking(run, main)
    assert attached.calls == ["pause", "resume", "close"]
