"""gRPC, by frames: calls wait while answers are unread, memory is counted, and long work leaves turns to others."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from firearrow.net.grpc import UNREAD_BYTES_HIGH, Method
from firearrow.net.server import Server
from firearrow.net.turns import TURN_CHECK_REPLIES
from firearrow.wire.grpc import framed
from firearrow.wire.http2 import (
    DATA,
    GOAWAY,
    PING,
    PREFACE,
    STREAM_BYTES,
    STREAM_WINDOW_BYTES,
    WINDOW_UPDATE,
    ErrorCode,
)
from tests.broker.serving import until
from tests.loglines import told
from tests.net.conftest import Run
from tests.net.grpcservice import Service, grpc_serving
from tests.net.http2talker import Http2Talker, path, speaking
from tests.net.talker import talking
from tests.wire import http2frames as h2
from tests.wire.http2frames import CLIENT_WINDOW_BYTES, HELLO

MiB = 1024 * 1024


def test_calls_wait_until_an_unread_one_is_ended(run: Run) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(h2.headers(1, path("hold")), h2.data(1, framed(b""), ends=True))
        await until(lambda: bool(service.held))
        [call] = service.held
        for _ in range(6):
            call.send(bytes(MiB))
        assert call.unread_bytes > UNREAD_BYTES_HIGH
        talker.write(h2.headers(3, path("hold")), h2.data(3, framed(b""), ends=True))
        talker.write(h2.headers(5, path("hold")), h2.data(5, framed(b""), ends=True), h2.reset(3), h2.ping())
        await talker.frame(PING)
        assert len(service.held) == 1
        call.reset()
        await until(lambda: len(service.held) == 2)
        assert service.held[1]._stream.id == 5

    speaking(run, main)


def test_calls_wait_while_answers_are_unread(run: Run) -> None:
    """The windows stop the answers, so the memory is that of a few of them; then all are answered."""
    count = 40

    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        block, message = path("big"), framed(b"%d" % MiB)
        ids = range(1, 2 * count, 2)
        for number in ids:
            talker.write(h2.headers(number, block), h2.data(number, message, ends=True))
        talker.write(h2.ping())
        read = dict.fromkeys(ids, 0)
        while (frame := await talker.frame(DATA, PING)).kind == DATA:
            read[frame.stream_id] += len(frame.payload)
        assert sum(read.values()) == CLIENT_WINDOW_BYTES
        unconfirmed = {number: size for number, size in read.items() if size}
        [peer] = server.grpc_peers
        assert service.count <= UNREAD_BYTES_HIGH // MiB + 1
        assert UNREAD_BYTES_HIGH < peer.unread_bytes < UNREAD_BYTES_HIGH + 2 * MiB
        while any(size < MiB for size in read.values()):
            if sum(unconfirmed.values()) > CLIENT_WINDOW_BYTES // 2:
                talker.write(h2.window(0, sum(unconfirmed.values())))
                talker.write(*(h2.window(number, size) for number, size in unconfirmed.items()))
                unconfirmed.clear()
            frame = await talker.frame(DATA)
            read[frame.stream_id] += len(frame.payload)
            unconfirmed[frame.stream_id] = unconfirmed.get(frame.stream_id, 0) + len(frame.payload)
            assert peer.unread_bytes < UNREAD_BYTES_HIGH + 2 * MiB
        assert service.count == count
        assert (peer.kept_bytes, peer.unread_bytes) == (0, 0)

    speaking(run, main)


def test_a_client_that_leaves_answers_unread_sends_no_more_than_the_windows(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        block = path("big")
        for number in range(1, 13, 2):
            talker.write(h2.headers(number, block), h2.data(number, framed(b"%d" % MiB), ends=True))
        talker.write(h2.headers(13, path("total")))
        piece = framed(bytes(16_000))
        for _ in range(STREAM_WINDOW_BYTES // len(piece)):
            talker.write(h2.data(13, piece))
        talker.write(h2.ping())
        await talker.frame(PING)
        [peer] = server.grpc_peers
        assert service.count <= 6
        assert STREAM_WINDOW_BYTES // 2 < peer._backlog_bytes < 2 * STREAM_WINDOW_BYTES
        talker.write(h2.window(0, 100 * MiB), *(h2.window(number, 2 * MiB) for number in range(1, 13, 2)))
        opened = await talker.frame(WINDOW_UPDATE)
        assert (opened.stream_id, peer._backlog_bytes) == (13, 0)
        assert service.count == STREAM_WINDOW_BYTES // len(piece) * 16_000

    speaking(run, main)


def test_a_client_that_sends_tiny_pieces_meanwhile_is_closed(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firearrow.net.grpc.BACKLOG_BYTES_MAX", 100_000)

    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        for number in range(1, 13, 2):
            talker.write(h2.headers(number, path("big")), h2.data(number, framed(b"%d" % MiB), ends=True))
        talker.write(h2.headers(13, path("total")), *[h2.data(13, b"\0")] * 1000)
        frames = await talker.end()
        assert (frames[-1].kind, frames[-1].error) == (GOAWAY, ErrorCode.ENHANCE_YOUR_CALM)

    speaking(run, main)
    assert "bytes wait until it reads its answers" in str(told(caplog)[0]["reason"])


def test_a_client_that_reads_nothing_from_its_socket_is_not_served(run: Run) -> None:
    count = 100

    async def main() -> None:
        service = Service()
        async with grpc_serving(service) as (server, port), talking(port) as talker:
            transport: Any = talker._writer.transport
            transport.pause_reading()
            wide = PREFACE + h2.settings(initial_window_size=2**31 - 1) + h2.window(0, 2**31 - 1 - 65_535)
            calls = [
                h2.headers(n, path("big")) + h2.data(n, framed(b"%d" % MiB), ends=True) for n in range(1, 2 * count, 2)
            ]
            talker.write(wide + b"".join(calls))
            await until(lambda: any(it._paused for it in server.grpc_peers))
            [peer] = server.grpc_peers
            assert service.count < count // 2
            assert peer.unread_bytes < 3 * UNREAD_BYTES_HIGH
            transport.resume_reading()
            heard = Http2Talker(talker)
            read = 0
            while read < count * (MiB + 5):
                read += len((await heard.frame(DATA)).payload)
            assert service.count == count

    run(main())


def test_open_calls_are_counted_as_kept(run: Run) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        before = server.budget.room_bytes
        for number in range(1, 21, 2):
            talker.write(h2.headers(number, path("hold")), h2.data(number, framed(b""), ends=True))
        talker.write(h2.headers(21, path("total")), h2.data(21, framed(bytes(1000))[:-1]))
        await until(lambda: len(service.held) == 10)
        [peer] = server.grpc_peers
        assert peer.kept_bytes == 10 * (STREAM_BYTES + len(path("hold"))) + STREAM_BYTES + len(path("total"))
        assert peer.unfinished_bytes == 1004
        peer.keep(50)
        assert server.budget.room_bytes < before
        for call in service.held:
            call.answer(b"")
        talker.write(h2.reset(21))
        await until(lambda: not peer.http2.streams)
        assert (peer.kept_bytes, peer.unfinished_bytes) == (50, 0)
        peer.keep(-50)

    speaking(run, main)


def test_a_connection_that_is_dropped_holds_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main(talker: Http2Talker, server: Server, service: Service) -> None:
        talker.write(h2.headers(1, path("hold")), h2.data(1, framed(b""), ends=True))
        await until(lambda: bool(service.held))
        [peer] = server.grpc_peers
        peer.keep(10)
        peer.drop("it holds too much")
        assert (peer.kept_bytes, peer.unfinished_bytes, peer.unread_bytes) == (0, 0, 0)
        peer.drop("it holds too much")
        assert service.cancelled == service.held
        frames = await talker.end()
        assert (frames[-1].kind, frames[-1].error) == (GOAWAY, ErrorCode.ENHANCE_YOUR_CALM)
        assert frames[-1].payload[8:] == b"it holds too much"

    speaking(run, main)
    assert len(told(caplog)) == 1


# --- turns ---


def test_calls_that_take_long_leave_turns_to_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    turn = itertools.count()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        now = [0]
        async with grpc_serving() as (server, port), talking(port) as talker:
            server.turns._now_ms = server.now_ms = lambda: now[0]

            def slow(call: Any, message: bytes) -> bytes:
                now[0] += 1
                turns.append(current[0])
                return b""

            current = [0]

            def count() -> None:
                current[0] = next(turn)
                loop.call_soon(count)

            server.grpc_methods = {b"/test.Service/slow": Method("slow", slow)}
            loop.call_soon(count)
            calls = [h2.headers(n, path("slow")) + h2.data(n, framed(b""), ends=True) for n in range(1, 81, 2)]
            talker.write(HELLO + b"".join(calls))
            heard = Http2Talker(talker)
            for number in range(1, 81, 2):
                assert await heard.answer(number) == [b""]

    run(main())
    assert len(turns) == 40
    assert max(turns.count(it) for it in set(turns)) <= 2 * TURN_CHECK_REPLIES  # a read, and a turn behind it
