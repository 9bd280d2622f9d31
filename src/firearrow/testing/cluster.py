"""A whole RocketMQ cluster inside a test: a name server and brokers with stores in a temporary directory, started in
some ten milliseconds.

In an event loop:

    async with EmbeddedCluster() as cluster:
        await cluster.create_topic("orders", queues=4)
        ...                                          # clients go to cluster.name_server

In a separate thread, for blocking tests and for clients in other processes, with the same methods (`BlockingCluster`):

    with EmbeddedCluster(brokers=2, enablePropertyFilter=True) as cluster:
        cluster.create_topic("orders")

On a virtual loop (`firearrow.testing.loop`) the first form uses the virtual clock, connections in memory and no
threads; `firearrow.testing.virtual` sets all of that up.

At the end each store is verified. A damaged store fails the test and is kept.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from string import ascii_lowercase
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from firearrow.client.admin import Admin
from firearrow.client.session.portal import LoopThread
from firearrow.clock import Clock, SystemClock
from firearrow.errors import ConfigError, FirearrowError, TopicNotFound
from firearrow.files import thrown_away
from firearrow.message.model import MessageView
from firearrow.namesrv.app import NameServer
from firearrow.net.client import Client
from firearrow.store.offline import Finding
from firearrow.testing.broker import HOST, EmbeddedBroker
from firearrow.testing.loop import VirtualClock, VirtualLoop
from firearrow.testing.settings import Value, configs_of
from firearrow.testing.storecheck import BrokenStore
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import SubscriptionGroupConfig

CALL_SECONDS_MAX: Final = 60.0  # for any call to the cluster; after that the test has failed
QUEUES: Final = 4  # default of a topic, as in RocketMQ's clients
ROUTE_SECONDS_MAX: Final = 10.0  # until the name server knows a topic
LOOK_SECONDS: Final = 0.001


class EmbeddedCluster:
    """Name server and ``brokers`` on free ports of 127.0.0.1, for one ``with`` block.

    ``config`` and further keywords are keys of RocketMQ's configuration by their own names. The stores are in
    ``directory``; by default in a temporary one, which is removed at the end unless a store is damaged.
    ``verify=False`` skips the verification. With ``grpc`` each broker serves clients of RocketMQ 5, too, at
    ``cluster.brokers[0].grpc``; that needs the extra grpc. Raises ConfigError for invalid keys and values.
    """

    def __init__(
        self,
        brokers: int = 1,
        config: Mapping[str, Value] | None = None,
        *,
        directory: Path | None = None,
        verify: bool = True,
        clock: Clock | None = None,
        grpc: bool = False,
        **keys: Value,
    ) -> None:
        if not 1 <= brokers <= len(ascii_lowercase):
            raise ConfigError(f"brokers={brokers}: allowed is 1 to {len(ascii_lowercase)}")
        self.configs: Final = configs_of({**(config or {}), **keys})
        self.verify = verify
        self._serves_grpc = grpc
        self.brokers: list[EmbeddedBroker] = []
        self._names = [f"broker-{letter}" for letter in ascii_lowercase[:brokers]]
        self._given_directory = directory
        self._given_clock = clock
        self._no_waits = ExitStack()
        self._name_server: NameServer | None = None
        self._name_server_port = 0
        self._blocking: BlockingCluster | None = None

    # --- life ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except BrokenStore as broken:
            if error is None:
                raise
            error.add_note(str(broken))  # the failure of the test comes first

    def __enter__(self) -> BlockingCluster:
        self._blocking = BlockingCluster(self)
        return self._blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._blocking is not None
        self._blocking.__exit__(kind, error, trace)

    async def start(self) -> None:
        """Start all servers; when this returns, each answers and knows the others.

        Raises the error of a server that can't start; then none runs.
        """
        loop = asyncio.get_running_loop()
        self._background = not isinstance(loop, VirtualLoop)
        self._clock = self._given_clock or (VirtualClock(loop) if isinstance(loop, VirtualLoop) else SystemClock())
        self._client = Client()
        if self._given_directory is None:
            self.directory: Path = Path(tempfile.mkdtemp(prefix="firearrow-"))
            self._no_waits.enter_context(thrown_away(self.directory))
        else:
            self.directory = self._given_directory
        self.brokers = [
            EmbeddedBroker(name, self.directory / name, self.configs, self._clock, grpc=self._serves_grpc)
            for name in self._names
        ]
        try:
            await self.restart_name_server()
            self._admin = Admin(self._client, [self.name_server])
            for broker in self.brokers:
                await broker.start(self.name_server, background=self._background)
        except BaseException:
            await self._stop_servers()
            self._remove()
            raise

    async def stop(self) -> None:
        """Stop all servers and verify the stores. Raises BrokenStore if one is damaged."""
        await self._stop_servers()
        found = await asyncio.to_thread(self._damage) if self.verify else {}
        if found:
            raise BrokenStore(found)
        self._remove()

    async def _stop_servers(self) -> None:
        await self._client.close()
        try:
            for broker in reversed(self.brokers):
                await broker.stop()
            await self.stop_name_server()
        finally:
            self._no_waits.close()

    def _damage(self) -> dict[Path, list[Finding]]:
        found = {broker.store: broker.damage() for broker in self.brokers}
        return {store: findings for store, findings in found.items() if findings}

    def _remove(self) -> None:
        if self._given_directory is None:
            shutil.rmtree(self.directory)

    # --- servers ---

    @property
    def name_server(self) -> str:
        """Address of the name server for clients, ``127.0.0.1:port``."""
        assert self._name_server_port, "the cluster has not been started yet"
        return f"{HOST}:{self._name_server_port}"

    @property
    def store(self) -> Path:
        """Directory of the first broker's store."""
        return self.brokers[0].store

    async def stop_name_server(self) -> None:
        """Stop the name server; a stopped one stays stopped."""
        server, self._name_server = self._name_server, None
        if server is not None:
            await server.stop()

    async def restart_name_server(self) -> None:
        """Stop the name server if it runs, and start it at the same address.

        It has no routes at first: brokers register again within their period (30 s).
        """
        await self.stop_name_server()
        files = self.directory / "namesrv"
        config = msgspec.structs.replace(
            self.configs.namesrv,
            kv_config_path=str(files / "kvConfig.json"),
            config_store_path=str(files / "namesrv.properties"),
        )
        server = NameServer(config, self._clock)
        self._name_server_port = await server.start(HOST, self._name_server_port)
        self._name_server = server

    async def stop_broker(self, number: int = 0) -> None:
        """Stop a broker in order, as SIGTERM does; a stopped broker stays stopped."""
        await self.brokers[number].stop()

    async def kill_broker(self, number: int = 0) -> None:
        """Stop a broker as ``kill -9`` would: unwritten state is lost, and requests get no answer."""
        await self.brokers[number].kill()

    async def restart_broker(self, number: int = 0) -> None:
        """Stop a broker if it runs, and start it on its store, at the same address."""
        await self.brokers[number].start(self.name_server, background=self._background)

    # --- topics and groups ---

    async def create_topic(self, name: str, *, queues: int = QUEUES, **attributes: str | int) -> None:
        """Create or change a topic with ``queues`` queues on each running broker.

        Attributes are given by their names with ``_`` for ``.``: ``message_type="FIFO"``. When this returns, the name
        server knows the topic. Raises BrokerError as the broker does.
        """
        changes = {f"+{key.replace('_', '.')}": str(it) for key, it in attributes.items()}
        config = TopicConfig(name, queues, queues, attributes=changes)
        for broker in self._running():
            await self._admin.topics.create(broker.address, config)
        await self._wait_for_route(name, {broker.name for broker in self._running()})

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages from each running broker and the name server."""
        for broker in self._running():
            await self._admin.topics.delete_from_broker(broker.address, name)
        await self._admin.topics.delete_from_name_server(self.name_server, name)

    async def create_group(self, name: str, **settings: Any) -> None:
        """Create or change a consumer group on each running broker.

        Settings are the fields of RocketMQ's SubscriptionGroupConfig in snake case: ``retry_max_times=3``. Raises
        BrokerError as the broker does.
        """
        config = SubscriptionGroupConfig(group_name=name, **settings)
        for broker in self._running():
            await self._admin.groups.create(broker.address, config)

    def messages(self, topic: str) -> list[MessageView]:
        """Messages of a topic in the stores: broker after broker, each in the order of storage. This includes messages
        that no queue has yet, and messages of stopped brokers."""
        return [message for broker in self.brokers for message in broker.messages(topic)]

    def _running(self) -> list[EmbeddedBroker]:
        return [broker for broker in self.brokers if broker.is_running]

    async def _wait_for_route(self, topic: str, brokers: set[str]) -> None:
        try:
            async with asyncio.timeout(ROUTE_SECONDS_MAX):
                while True:
                    if await self._brokers_of(topic) >= brokers:
                        return
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise FirearrowError(f"topic {topic}: the name server {self.name_server} does not know it") from None

    async def _brokers_of(self, topic: str) -> set[str]:
        try:
            route = await self._admin.topics.route(topic)
        except TopicNotFound:
            return set()
        return {queues.broker_name for queues in route.queue_datas}


class BlockingCluster:
    """Result of ``with EmbeddedCluster(...)``: the same methods, called from other threads than the loop's."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster

    def __enter__(self) -> Self:
        self._thread = LoopThread("firearrow-cluster", CALL_SECONDS_MAX)
        try:
            self._thread.run(self._cluster.start())
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.run(self._cluster.__aexit__(kind, error, trace))
        finally:
            self._thread.close()

    @property
    def name_server(self) -> str:
        """Address of the name server for clients, ``127.0.0.1:port``."""
        return self._cluster.name_server

    @property
    def brokers(self) -> Sequence[EmbeddedBroker]:
        """Brokers, for their names, addresses and stores."""
        return self._cluster.brokers

    @property
    def directory(self) -> Path:
        """Directory of the stores."""
        return self._cluster.directory

    @property
    def store(self) -> Path:
        """Directory of the first broker's store."""
        return self._cluster.store

    def create_topic(self, name: str, *, queues: int = QUEUES, **attributes: str | int) -> None:
        """Create a topic, see `EmbeddedCluster.create_topic`."""
        self._thread.run(self._cluster.create_topic(name, queues=queues, **attributes))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages."""
        self._thread.run(self._cluster.delete_topic(name))

    def create_group(self, name: str, **settings: Any) -> None:
        """Create a consumer group, see `EmbeddedCluster.create_group`."""
        self._thread.run(self._cluster.create_group(name, **settings))

    def messages(self, topic: str) -> list[MessageView]:
        """Messages of a topic in the stores, see `EmbeddedCluster.messages`."""
        return self._thread.run(self._messages(topic))

    async def _messages(self, topic: str) -> list[MessageView]:
        return self._cluster.messages(topic)

    def stop_name_server(self) -> None:
        """Stop the name server."""
        self._thread.run(self._cluster.stop_name_server())

    def restart_name_server(self) -> None:
        """Restart the name server at the same address, without its routes."""
        self._thread.run(self._cluster.restart_name_server())

    def stop_broker(self, number: int = 0) -> None:
        """Stop a broker in order."""
        self._thread.run(self._cluster.stop_broker(number))

    def kill_broker(self, number: int = 0) -> None:
        """Stop a broker as ``kill -9`` would."""
        self._thread.run(self._cluster.kill_broker(number))

    def restart_broker(self, number: int = 0) -> None:
        """Start a broker on its store, at the same address."""
        self._thread.run(self._cluster.restart_broker(number))
