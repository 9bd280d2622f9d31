"""A listener of tests: at its end, no socket and no task of its connections is left, in whatever state each was.

A server of asyncio leaves open what it has accepted. Such a connection warns of itself when it is collected, in another
test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from firearrow.net.listening import close_listeners, port_of

HOST: Final = "127.0.0.1"
LOOP_TURNS: Final = 3

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]
"""Serves one connection, which is closed when that returns."""


class Listener:
    """Ports on which connections are served, each by a task."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def listen(self, serve: Serve, port: int = 0, host: str = HOST, **options: Any) -> int:
        """Listen on a port, by default a free one; return it."""

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(serve, reader, writer))
            self._open[task] = writer
            task.add_done_callback(self._end)

        server = await asyncio.start_server(begin, host, port, **options)
        self._servers.append(server)
        return port_of(server)

    async def _serve(self, serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        writer.close()
        with suppress(OSError):  # the connection was reset
            await writer.wait_closed()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task).transport.abort()

    def reset(self) -> None:
        """End all connections at once."""
        for task in self._open:
            task.cancel()

    async def close(self) -> None:
        """Listen no more, end all connections, and wait for their ends."""
        await close_listeners(self._servers)
        self.reset()
        if self._open:
            await asyncio.wait(self._open)
        await turns()


@asynccontextmanager
async def listening(serve: Serve, **options: Any) -> AsyncIterator[int]:
    """Serve connections on a port for a block; yield the port."""
    listener = Listener()
    try:
        yield await listener.listen(serve, **options)
    finally:
        await listener.close()


async def turns() -> None:
    """Let the loop turn until closed transports have released their sockets."""
    for _ in range(LOOP_TURNS):
        await asyncio.sleep(0)
