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
from tests.net.listener import HOST, listening, turns
from tests.net.passing import End, pass_on

T = TypeVar("T")
START_SECONDS_MAX = 20


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
    await turns()


@asynccontextmanager
async def answering(handlers: Mapping[int, Handler], port: int = 0) -> AsyncIterator[str]:
    """Start a server with these handlers; yield its address."""
    server = Server(handlers, SystemClock())
    port = await server.start(HOST, port)
    try:
        yield f"{HOST}:{port}"
    finally:
        await server.stop()


@asynccontextmanager
async def encrypting(handlers: Mapping[int, Handler], context: ssl.SSLContext) -> AsyncIterator[str]:
    """Start a server behind TLS, which ends at a separate listener; yield the listener's address."""
    async with answering(handlers) as plain:

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner = End(*await asyncio.open_connection(HOST, int(plain.rpartition(":")[2])))
            await pass_on(End(reader, writer), [inner], unchanged, unchanged)

        async with listening(forward, ssl=context) as port:
            yield f"{HOST}:{port}"


async def unchanged(data: bytes) -> bytes:
    return data
