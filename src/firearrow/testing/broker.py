"""Broker of an embedded cluster, which can be stopped, killed and restarted on its store."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from firearrow.broker.control.controlled import broker_of
from firearrow.broker.core import Broker
from firearrow.clock import Clock
from firearrow.errors import FirearrowError
from firearrow.message.model import MessageView
from firearrow.store.config import StoreConfig
from firearrow.store.offline import Finding, Layout, Selection, StoreView, find
from firearrow.testing.fs import copy_whole
from firearrow.testing.settings import Configs
from firearrow.testing.storecheck import damage_in

if TYPE_CHECKING:
    from firearrow.proxy.local import LocalProxy

HOST = "127.0.0.1"


class EmbeddedBroker:
    """One broker. Its cluster starts and stops it; its address never changes."""

    def __init__(self, name: str, directory: Path, configs: Configs, clock: Clock, *, grpc: bool = False) -> None:
        self.name = name
        self._proxy_config = configs.proxy if grpc else None
        self._proxy: LocalProxy | None = None
        self._config = msgspec.structs.replace(
            configs.broker, broker_name=name, bind_address=HOST, broker_ip1=HOST, broker_ip2=HOST
        )
        self._store = msgspec.structs.replace(configs.store, store_path_root_dir=str(directory))
        self._clock = clock
        self._port = 0
        self.name_server: str = ""
        """Address of the cluster's name server for clients, from the first start on."""
        self._delay_levels = self._store.message_delay_level
        self._server: Broker | None = None
        self._changing = asyncio.Lock()  # only one start, stop or kill at a time

    @property
    def store(self) -> Path:
        """Directory of its store."""
        return self._store.root_path

    @property
    def store_config(self) -> StoreConfig:
        """Configuration of its store."""
        return self._store

    @property
    def port(self) -> int:
        """Port, from its first start on."""
        assert self._port, "the broker has not been started yet"
        return self._port

    @property
    def address(self) -> str:
        """Address for clients, ``127.0.0.1:port``."""
        return f"{HOST}:{self.port}"

    @property
    def grpc(self) -> str:
        """Address for clients of RocketMQ 5, ``127.0.0.1:port``, from its first start on."""
        assert self._proxy_config is not None, "the cluster serves no gRPC"
        return f"{HOST}:{self._proxy_config.grpc_server_port}"

    @property
    def proxy(self) -> LocalProxy:
        """The gRPC proxy object, for tests that inspect it."""
        assert self._proxy is not None, "the broker is not running, or the cluster serves no gRPC"
        return self._proxy

    @property
    def is_running(self) -> bool:
        """Tell whether the broker runs."""
        return self._server is not None

    @property
    def server(self) -> Broker:
        """The broker object, for tests that inspect it. Raises FirearrowError while it is stopped."""
        if self._server is None:
            raise FirearrowError(f"{self.name} is not running: start it by `restart_broker`")
        return self._server

    async def start(self, name_server: str, *, background: bool) -> None:
        """Start the broker on its store, at its former port; a running broker is stopped first."""
        async with self._changing:
            await self._stop()
            self.name_server = name_server
            config = msgspec.structs.replace(self._config, namesrv_addr=name_server)
            server = broker_of(config, self._store, self._clock, background=background)
            self._port = await server.start(HOST, self._port)
            self._server = server
            await self._serve_grpc(server)

    async def stop(self) -> None:
        """Stop the broker in order, as SIGTERM does; a stopped broker stays stopped."""
        async with self._changing:
            await self._stop()

    async def _serve_grpc(self, server: Broker) -> None:
        """Serve clients of RocketMQ 5, at the same port after each start."""
        if self._proxy_config is None:
            return
        from firearrow.proxy.local import LocalProxy  # needs protobuf, which most tests do without

        self._proxy = LocalProxy(server, self._proxy_config, self._clock)
        port = await self._proxy.start(HOST)
        self._proxy_config = msgspec.structs.replace(self._proxy_config, grpc_server_port=port)

    async def _stop(self) -> None:
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            await proxy.stop()
        server, self._server = self._server, None
        if server is not None:
            self._delay_levels = server.settings.store.message_delay_level
            await server.stop()

    async def kill(self) -> None:
        """Stop the broker as ``kill -9`` would: connections end without an answer, and its store keeps its present
        state. A stopped broker stays stopped."""
        async with self._changing:
            if self._server is None:
                return
            self._proxy = None  # it says good-bye to nobody
            self._server.cut()
            left = self.store.with_name(f"{self.store.name}.killed")
            copy_whole(self.store, left)
            await self._stop()  # frees memory and ports; its writes go to the old files, which are deleted
            shutil.rmtree(self.store)
            left.rename(self.store)

    def messages(self, topic: str) -> list[MessageView]:
        """Messages of a topic in its store, in the order of the log; the broker may run or not."""
        if not self.store.is_dir():
            return []
        with StoreView(Layout(self.store, made_as=self._store)) as view:
            return list(find(view, Selection(topic=topic)))

    def damage(self) -> list[Finding]:
        """Damage of its store; the broker must not run. Empty without a store."""
        assert self._server is None, "the broker must be stopped: its writes would look like damage"
        return damage_in(self._store, self._delay_levels) if self.store.is_dir() else []
