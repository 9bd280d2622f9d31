"""A proxy in cluster mode, and questions to the servers behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from firearrow.clock import SystemClock
from firearrow.net.access import OPEN, Access
from firearrow.net.client import Client
from firearrow.proxy.clusterproxy import ClusterProxy
from firearrow.proxy.config import load
from firearrow.wire import fastjson
from tests.net.background import in_thread

T = TypeVar("T")


def asked(question: Callable[[Client], Awaitable[T]], access: Access = OPEN) -> T:
    """Ask servers by remoting."""

    async def ask() -> T:
        client = Client(access=access)
        try:
            return await question(client)
        finally:
            await client.close()

    return asyncio.run(ask())


@contextmanager
def proxy_of(name_server: str, **keys: object) -> Iterator[str]:
    """Run a proxy on another thread's loop; yield its address."""
    with cluster_proxy(name_server, **keys) as proxy:
        yield f"127.0.0.1:{proxy.port}"


@contextmanager
def cluster_proxy(name_server: str, **keys: object) -> Iterator[ClusterProxy]:
    """Run a proxy on another thread's loop; yield it."""

    @asynccontextmanager
    async def running() -> AsyncIterator[ClusterProxy]:
        ports = {"grpcServerPort": 0, "remotingListenPort": 0, "bindAddress": "127.0.0.1"}
        pairs = {"namesrvAddr": name_server, **ports, **keys}
        proxy = ClusterProxy(load(fastjson.dumps(pairs))[0], "127.0.0.1", SystemClock())
        await proxy.start()
        await proxy.serve_remoting()
        try:
            yield proxy
        finally:
            await proxy.stop()

    with in_thread(running) as proxy:
        yield proxy
