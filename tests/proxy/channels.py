"""gRPC's own client, connected to a server in another thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from firearrow.clock import SystemClock
from firearrow.net.grpc import Method
from firearrow.net.server import Server
from tests.net.background import in_thread

SECONDS_MAX = 20


class Client:
    """A channel to the server; ``on_loop`` calls a function on the server's event loop and waits for it."""

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop, channel: Any) -> None:
        self.address = address
        self._loop = loop
        self._channel = channel

    def on_loop(self, call: Callable[[], object]) -> None:
        async def run() -> None:
            call()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(SECONDS_MAX)

    def unary(self, path: str, request: Any, response: Any) -> Any:
        return self._channel.unary_unary(path, None, response.FromString)(
            request.SerializeToString(), timeout=SECONDS_MAX
        )

    def streamed(self, path: str, request: Any, response: Any) -> Any:
        """Return the call, an iterator of responses."""
        return self._channel.unary_stream(path, None, response.FromString)(
            request.SerializeToString(), timeout=SECONDS_MAX
        )

    def dialogue(self, path: str, requests: list[Any], response: Any) -> list[Any]:
        messages = (request.SerializeToString() for request in requests)
        return list(self._channel.stream_stream(path, None, response.FromString)(messages, timeout=SECONDS_MAX))


@contextmanager
def serving(methods: Mapping[bytes, Method]) -> Iterator[Client]:
    """Serve gRPC methods; yield a client of them."""

    @asynccontextmanager
    async def server() -> AsyncIterator[tuple[str, asyncio.AbstractEventLoop]]:
        it = Server({}, SystemClock())
        it.grpc_methods = methods
        port = await it.start("127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{port}", asyncio.get_running_loop()
        finally:
            await it.stop()

    with in_thread(server) as (address, loop), grpc.insecure_channel(address) as channel:
        yield Client(address, loop, channel)
