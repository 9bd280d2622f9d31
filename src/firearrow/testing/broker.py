"""Broker of an embedded cluster, which can be stopped, killed and restarted on its store."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

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

HOST = "127.0.0.1"


class EmbeddedBroker:
    """One broker. Its cluster starts and stops it; its address never changes."""

    def __init__(self, name: str, directory: Path, configs: Configs, clock: Clock) -> None:
        self.name = name
        self._config = msgspec.structs.replace(
            configs.broker, broker_name=name, bind_address=HOST, broker_ip1=HOST, broker_ip2=HOST
        )
        self._store = msgspec.structs.replace(configs.store, store_path_root_dir=str(directory))
        self._clock = clock
        self._port = 0
        self.name_server = ""
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

    async def stop(self) -> None:
        """Stop the broker in order, as SIGTERM does; a stopped broker stays stopped."""
        async with self._changing:
            await self._stop()

    async def _stop(self) -> None:
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
