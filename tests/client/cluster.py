"""A cluster and its clients on one virtual loop: name servers, brokers, and what they may leave.

In the end no task and no connection of a client may be left: `clustered` checks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from firearrow.broker.config import BrokerConfig
from firearrow.broker.core import Broker
from firearrow.client.session.session import Session
from firearrow.clock import Clock, SystemClock
from firearrow.message.model import MessageView
from firearrow.testing import loop
from firearrow.testing.loop import VirtualClock
from tests.broker.serving import Serving, until
from tests.broker.serving import stored as stored_in
from tests.namesrv.serving import name_server
from tests.store.stores import small_config

CLUSTER = "C"


class Cluster:
    """A name server and brokers that register with it, all on the running loop."""

    def __init__(self, root: Path, clock: Clock, stack: AsyncExitStack) -> None:
        self.root = root
        self.clock = clock
        self.brokers: dict[str, Serving] = {}
        self.name_server = ""
        self.loop = asyncio.get_running_loop()
        self._stack = stack
        self._name_servers: dict[str, AsyncExitStack] = {}
        self._settings: dict[str, dict[str, Any]] = {}

    async def start(self, names: tuple[str, ...], **settings: Any) -> None:
        """Start the name server and the brokers."""
        self.root.mkdir(exist_ok=True)
        self.name_server = await self._start_name_server()
        for name in names:
            await self.start_broker(name, **settings)

    async def _start_name_server(self) -> str:
        directory = self.root / f"namesrv-{len(self._name_servers)}"
        directory.mkdir()
        stack = await self._stack.enter_async_context(AsyncExitStack())
        asker = await stack.enter_async_context(name_server(directory, clock=self.clock))
        self._name_servers[asker.address] = stack
        return asker.address

    async def add_name_server(self) -> str:
        """Start another name server, with which brokers register, too; gives its address."""
        address = await self._start_name_server()
        names = {name: served.port for name, served in self.brokers.items()}
        for name, port in names.items():
            await self.stop_broker(name)
            await self.start_broker(name, port, **self._settings[name])
        return address

    async def stop_name_server(self, address: str) -> None:
        """Stop a name server."""
        await self._name_servers.pop(address).aclose()

    async def start_broker(self, name: str, port: int = 0, **settings: Any) -> None:
        """Start a broker that is known when this returns."""
        store = settings.pop("store", {})
        config = BrokerConfig(
            broker_name=name,
            broker_cluster_name=CLUSTER,
            namesrv_addr=";".join(self._name_servers),
            broker_fast_failure_enable=False,
            **{"broker_ip1": "127.0.0.1", **settings},
        )
        broker = Broker(config, small_config(self.root / name, **store), self.clock, background=False)
        self.brokers[name] = Serving(broker, await broker.start("127.0.0.1", port))
        self._settings[name] = settings

    async def stop_broker(self, name: str) -> int:
        """Stop a broker in order; gives its port."""
        served = self.brokers.pop(name)
        await served.broker.stop()
        return served.port

    async def stop(self) -> None:
        """Stop the brokers that are left."""
        for name in tuple(self.brokers):
            await self.stop_broker(name)

    def session(self, **options: Any) -> Session:
        """A session in this cluster."""
        servers = options.pop("name_servers", self.name_server)
        return Session(servers, **{"clock": self.clock, "ip": "127.0.0.1", **options})

    def stored(self, topic: str, queue_id: int = 0, broker: str = "a") -> list[MessageView]:
        """What a queue holds."""
        return stored_in(self.brokers[broker], topic, queue_id)

    def all_stored(self, topic: str, queues: int = 8) -> list[MessageView]:
        """What all queues of a topic hold, on all brokers."""
        return [
            view for name in self.brokers for queue_id in range(queues) for view in self.stored(topic, queue_id, name)
        ]


@asynccontextmanager
async def serving_cluster(
    root: Path, names: tuple[str, ...], clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Cluster]:
    """A cluster with brokers of these names."""
    async with AsyncExitStack() as stack:
        cluster = Cluster(root, clock or SystemClock(), stack)
        stack.push_async_callback(cluster.stop)
        await cluster.start(names, **settings)
        yield cluster


def clustered(
    root: Path, main: Callable[[Cluster], Coroutine[Any, Any, None]], names: tuple[str, ...] = ("a",), **settings: Any
) -> None:
    """Run a test in a cluster with brokers of these names; its clients must leave nothing."""

    async def run(clock: VirtualClock) -> None:
        async with serving_cluster(root, names, clock, **settings) as cluster:
            await main(cluster)
            await until(lambda: not _connected_clients(cluster))
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks are left"

    loop.run(run)


def _connected_clients(cluster: Cluster) -> list[str]:
    """Who is connected to a broker."""
    return [peer.address for served in cluster.brokers.values() for peer in served.broker._server.peers]
