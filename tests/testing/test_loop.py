"""Virtual loop: time leaps, connections behave as with sockets, and endless waits raise an error."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from firearrow.clock import SystemClock
from firearrow.testing import loop
from firearrow.testing.loop import START_MS, NothingWillHappen, VirtualClock

HOST = "127.0.0.1"
LARGE = bytes(10_000_000)


def virtually(main: Coroutine[Any, Any, None]) -> None:
    async def run(_: VirtualClock) -> None:
        await main

    loop.run(run)


def test_time_leaps_to_what_is_planned() -> None:
    real = SystemClock().monotonic()

    async def main(clock: VirtualClock) -> list[float]:
        await asyncio.sleep(1)
        day = clock.monotonic(), clock.now_ms()
        await asyncio.sleep(86_400)
        assert day == (1.0, START_MS + 1000)
        return [clock.monotonic(), clock.now_ms()]

    assert loop.run(main) == [86_401.0, START_MS + 86_401_000]
    assert SystemClock().monotonic() - real < 60


def test_to_wait_for_nothing_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingWillHappen):
        virtually(main())


def test_threads_are_not_needed() -> None:
    async def main() -> None:
        assert await asyncio.to_thread(lambda: 7) == 7
        with pytest.raises(OSError, match="no"):
            await asyncio.to_thread(refuse)

    def refuse() -> None:
        raise OSError("no")

    virtually(main())


def test_both_sides_of_a_connection_read_and_end() -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.writelines([b"to be ", b"echoed"])
        writer.write_eof()
        assert await reader.read() == b"to be echoed"
        writer.close()
        await writer.wait_closed()
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, port)

    virtually(main())


def test_a_port_is_taken_once() -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, HOST, 9876)
        with pytest.raises(OSError, match="in use"):
            await asyncio.start_server(lambda reader, writer: None, HOST, 9876)
        server.close()
        (await asyncio.start_server(lambda reader, writer: None, HOST, 9876)).close()

    virtually(main())


def test_who_writes_waits_for_who_reads() -> None:
    async def main() -> None:
        written = asyncio.Event()

        async def pour(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for at in range(0, len(LARGE), 100_000):
                writer.write(LARGE[at : at + 100_000])
                await writer.drain()
            written.set()
            writer.close()

        server = await asyncio.start_server(pour, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(HOST, port)
        await asyncio.sleep(60)
        assert not written.is_set()
        assert await reader.read() == LARGE
        assert written.is_set()
        writer.close()
        server.close()

    virtually(main())


def test_what_is_unread_at_an_abort_is_lost() -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            writer.write(b"lost")
            writer.transport.abort()
            ended.set()

        server = await asyncio.start_server(cut, HOST, 0)
        reader, writer = await asyncio.open_connection(HOST, server.sockets[0].getsockname()[1])
        writer.write(b"x")
        await ended.wait()
        assert await reader.read() == b""
        writer.close()
        server.close()

    virtually(main())
