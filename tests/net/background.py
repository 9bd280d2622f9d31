"""A server on an event loop in a separate thread, for clients that block."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypeVar

from firearrow.clock import SystemClock
from firearrow.net.server import Handler, Server

T = TypeVar("T")
START_SECONDS_MAX = 20
LOOP_TURNS = 3  # a closed transport releases its socket in a later turn


@contextmanager
def in_thread(main: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Run a context on another thread's event loop for a ``with`` block; yield its value."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = main()
    try:
        entered = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop)
        given = entered.result(START_SECONDS_MAX)
        try:
            yield given
        finally:
            left = asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop)
            left.result(START_SECONDS_MAX)
    finally:
        asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result(START_SECONDS_MAX)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end_tasks() -> None:
    """Cancel the running tasks, and let every closing connection close."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(LOOP_TURNS):
        await asyncio.sleep(0)


@asynccontextmanager
async def answering(handlers: Mapping[int, Handler], port: int = 0) -> AsyncIterator[str]:
    """Start a server with these handlers; yield its address."""
    server = Server(handlers, SystemClock())
    port = await server.start("127.0.0.1", port)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop()


@asynccontextmanager
async def encrypting(handlers: Mapping[int, Handler], context: ssl.SSLContext) -> AsyncIterator[str]:
    """Start a server behind TLS, which ends at a separate listener; yield the listener's address."""
    async with answering(handlers) as plain:

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner = await asyncio.open_connection("127.0.0.1", int(plain.rpartition(":")[2]))
            await asyncio.gather(_copy(reader, inner[1]), _copy(inner[0], writer))

        listener = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
        try:
            yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        finally:
            listener.close()
            await listener.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
