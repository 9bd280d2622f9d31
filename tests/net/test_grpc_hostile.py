"""Hostile clients of gRPC: a healthy one beside them gets all its answers, and nothing is held afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from firearrow.net.budget import LIMIT_BYTES_MIN
from firearrow.net.server import Server
from firearrow.wire.grpc import framed
from firearrow.wire.http2 import BLOCK_BYTES_MAX, CONTINUATION, NOISE_MAX, PREFACE, RESETS_MAX, STREAMS_MAX
from tests.broker.serving import until
from tests.loglines import told
from tests.net.conftest import Run
from tests.net.grpcservice import Service, grpc_client, grpc_serving
from tests.net.talker import Talker, talking
from tests.wire import http2frames as h2
from tests.wire.http2frames import CALL, CLIENT_WINDOW_BYTES, HELLO

MiB = 1024 * 1024
WIDE = PREFACE + h2.settings(initial_window_size=2**31 - 1) + h2.window(0, 2**31 - 1 - CLIENT_WINDOW_BYTES)
SILENT, SLOW, CANCELLED = 500, 100, 10_000
CALLS_MIN = 20  # of the healthy client, beside the others

Hostile = Callable[[Server, int, Service], Awaitable[object]]


def path(name: str) -> bytes:
    """Header fields of a call."""
    return h2.block_of([*CALL[:2], (b":path", f"/test.Service/{name}".encode()), *CALL[3:]])


def call(number: int, name: str, message: bytes = b"") -> bytes:
    """Encode a whole call."""
    return h2.headers(number, path(name)) + h2.data(number, framed(message), ends=True)


def healthy(port: int, ends: threading.Event) -> int:
    """Call until the others have done their worst; return the count of right answers."""
    count = 0
    with grpc_client(port) as opened:
        while not ends.is_set() or count < CALLS_MIN:
            for name in ("echo", "late"):
                message = b"%d" % count * 20
                assert opened.call(name, message) == message
                count += 1
    return count


def beside(run: Run, hostile: Hostile, **options: Any) -> Service:
    """Run hostile clients beside a healthy one."""
    service = Service()

    async def main() -> None:
        async with grpc_serving(service, **options) as (server, port):
            room_bytes = server.budget.limit_bytes // 2
            ends = threading.Event()
            working = asyncio.create_task(asyncio.to_thread(healthy, port, ends))
            try:
                await hostile(server, port, service)
            finally:
                ends.set()
            assert await working >= CALLS_MIN
            await until(lambda: not server._all)
            server.budget.look()
            server.budget.look()  # the first one ends a time of tight memory
            assert server.budget.room_bytes == room_bytes
            assert not server.budget._is_tight
        assert all(it.is_over for it in service.calls)

    run(main())
    return service


async def opened(stack: AsyncExitStack, port: int, count: int, hello: bytes) -> list[Talker]:
    """Open connections that say the same at first."""
    talkers = [await stack.enter_async_context(talking(port)) for _ in range(count)]
    for talker in talkers:
        talker.write(hello)
    return talkers


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the codes with which connections were closed; a hostile client may miss its GOAWAY."""
    return [str(line["reason"]).partition(":")[0] for line in told(caplog) if line["event"] == "connection is closed"]


def test_connections_that_say_nothing(run: Run) -> None:
    async def hostile(server: Server, port: int, service: Service) -> None:
        async with AsyncExitStack() as stack:
            for hello in (b"", b"PRI", PREFACE[:20], HELLO, HELLO + h2.headers(1, path("echo"))):
                await opened(stack, port, SILENT // 5, hello)
            await until(lambda: len(server._all) > SILENT)
            held = sum(it.kept_bytes + it.unfinished_bytes + it.unread_bytes for it in server._all)
            assert held < SILENT * 1000

    beside(run, hostile)


def test_connections_that_read_nothing(run: Run) -> None:
    """Half have shut their windows, half do not read from their sockets: each asks for 40 MiB."""

    async def hostile(server: Server, port: int, service: Service) -> None:
        calls = b"".join(call(number, "big", b"%d" % MiB) for number in range(1, 81, 2))
        async with AsyncExitStack() as stack:
            await opened(stack, port, SLOW // 2, HELLO + calls)
            for talker in await opened(stack, port, SLOW // 2, WIDE):
                talker._writer.transport.pause_reading()  # type: ignore[attr-defined]
                talker.write(calls)
            most = 0
            for _ in range(100):
                await asyncio.sleep(0.005)
                most = max(most, sum(it.unread_bytes for it in server._all))
            assert LIMIT_BYTES_MIN // 2 < most < LIMIT_BYTES_MIN + 8 * MiB
            assert all(it.unread_bytes < 16 * MiB for it in server.grpc_peers)

    beside(run, hostile, memory_bytes_max=1)


def test_many_cancelled_calls(run: Run) -> None:
    async def hostile(server: Server, port: int, service: Service) -> None:
        per_connection, expected = RESETS_MAX, 0

        def all_are_held() -> bool:
            return len(service.held) == expected

        async with AsyncExitStack() as stack:
            for talker in await opened(stack, port, CANCELLED // per_connection, HELLO):
                for first in range(1, 2 * per_connection, 200):
                    numbers = range(first, first + 200, 2)
                    expected += len(numbers)
                    talker.write(b"".join(call(number, "hold") for number in numbers))
                    await until(all_are_held)
                    talker.write(b"".join(h2.reset(number) for number in numbers))
            await until(lambda: len(service.cancelled) == CANCELLED)
            assert not any(it.http2.streams for it in server.grpc_peers if it.http2.last_id == 2 * per_connection - 1)

    service = beside(run, hostile)
    assert len(service.held) == CANCELLED


def test_a_connection_that_resets_at_once_for_ever(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def hostile(server: Server, port: int, service: Service) -> None:
        for last in (h2.reset, lambda number: h2.window(number, 0), lambda number: h2.data(number, b"behind the end")):
            async with talking(port) as talker:
                talker.write(HELLO)
                ending = asyncio.create_task(talker.end())
                number = 1
                while not ending.done() and not talker._writer.is_closing():
                    talker.write(b"".join(call(it, "hold") + last(it) for it in range(number, number + 100, 2)))
                    number += 100
                    await asyncio.sleep(0)
                await ending

    service = beside(run, hostile)
    assert len(service.held) < 2
    assert reasons(caplog) == ["ENHANCE_YOUR_CALM", "ENHANCE_YOUR_CALM", "STREAM_CLOSED"]


def test_floods_end_their_connection(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    floods = [
        h2.ping() * (NOISE_MAX + 1),
        h2.settings(initial_window_size=1) * (NOISE_MAX + 1),
        h2.headers(1, flags=0) + h2.frame(CONTINUATION, 1, bytes(1000)) * (BLOCK_BYTES_MAX // 1000 + 1),
        h2.headers(1, flags=0) + h2.frame(CONTINUATION, 1) * 100,
        h2.headers(1, path("total")) + h2.data(1, b"") * (NOISE_MAX + 1),
        b"".join(call(2 * number + 1, "hold") for number in range(STREAMS_MAX + NOISE_MAX + 1)),
    ]

    async def hostile(server: Server, port: int, service: Service) -> None:
        for flood in floods:
            async with talking(port) as talker:
                talker.write(HELLO + flood)
                await talker.end()

    beside(run, hostile)
    assert reasons(caplog) == ["ENHANCE_YOUR_CALM"] * len(floods)


def test_clients_that_never_end_their_requests(run: Run) -> None:
    """Each sends half of a message of 100 MiB, drop by drop or at once: the budget closes the greediest."""

    async def hostile(server: Server, port: int, service: Service) -> None:
        begin = h2.headers(1, path("echo")) + h2.data(1, b"\0" + (100 * MiB).to_bytes(4))
        async with AsyncExitStack() as stack:
            talkers = await opened(stack, port, 6, HELLO + begin)
            drops = await opened(stack, port, 1, HELLO + begin)
            drops[0].write(h2.data(1, b"x") * 20_000)
            piece = h2.data(1, bytes(16_000)) * 16
            most = 0
            for _ in range(100):
                for talker in talkers:
                    if not talker._writer.is_closing():
                        talker.write(piece)
                await asyncio.sleep(0)
                most = max(most, sum(it.unfinished_bytes for it in server._all))
            for _ in range(100):
                await asyncio.sleep(0.002)
                most = max(most, sum(it.unfinished_bytes for it in server._all))
            assert LIMIT_BYTES_MIN // 4 < most < LIMIT_BYTES_MIN + 4 * MiB

    beside(run, hostile, memory_bytes_max=1)
