"""A broker of an embedded cluster: it can be stopped, killed and started again on its store."""

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
    """One broker. Its cluster starts and stops it; its address stays the same all the time."""

    def __init__(self, name: str, directory: Path, configs: Configs, clock: Clock) -> None:
        self.name = name
        self._config = msgspec.structs.replace(
            configs.broker, broker_name=name, bind_address=HOST, broker_ip1=HOST, broker_ip2=HOST
        )
        self._store = msgspec.structs.replace(configs.store, store_path_root_dir=str(directory))
        self._clock = clock
        self._port = 0
        self.name_server = ""
        """Where clients reach the name server of its cluster, from its first start on."""
        self._delay_levels = self._store.message_delay_level
        self._server: Broker | None = None
        self._changing = asyncio.Lock()  # one of start, stop and kill at a time

    @property
    def store(self) -> Path:
        """The directory of its store."""
        return self._store.root_path

    @property
    def store_config(self) -> StoreConfig:
        """How its store is made."""
        return self._store

    @property
    def port(self) -> int:
        """The port that it has, from its first start on."""
        assert self._port, "it has not been started yet"
        return self._port

    @property
    def address(self) -> str:
        """Where clients reach it, ``127.0.0.1:port``."""
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Tell whether it serves."""
        return self._server is not None

    @property
    def server(self) -> Broker:
        """The broker itself, for who wants to look inside; FirearrowError while it is stopped."""
        if self._server is None:
            raise FirearrowError(f"{self.name} is not running: start it by `restart_broker`")
        return self._server

    async def start(self, name_server: str, *, background: bool) -> None:
        """Start it on its store, at the port that it had before; in order again if it runs."""
        async with self._changing:
            await self._stop()
            self.name_server = name_server
            config = msgspec.structs.replace(self._config, namesrv_addr=name_server)
            server = broker_of(config, self._store, self._clock, background=background)
            self._port = await server.start(HOST, self._port)
            self._server = server

    async def stop(self) -> None:
        """Stop it in order, as SIGTERM does; nothing happens if it does not run."""
        async with self._changing:
            await self._stop()

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self._delay_levels = server.settings.store.message_delay_level
            await server.stop()

    async def kill(self) -> None:
        """Stop it as ``kill -9`` would: connections end without an answer, and its store is left
        as it is at this moment. Nothing happens if it does not run."""
        async with self._changing:
            if self._server is None:
                return
            self._server.cut()
            left = self.store.with_name(f"{self.store.name}.killed")
            copy_whole(self.store, left)
            await self._stop()  # frees what a process would; what it writes goes with the old files
            shutil.rmtree(self.store)
            left.rename(self.store)

    def messages(self, topic: str) -> list[MessageView]:
        """What its store has of a topic, in the order of the log; it may be running or not."""
        if not self.store.is_dir():
            return []
        with StoreView(Layout(self.store, made_as=self._store)) as view:
            return list(find(view, Selection(topic=topic)))

    def damage(self) -> list[Finding]:
        """What is wrong with its store, while it does not run; nothing if it never did."""
        assert self._server is None, "what it writes meanwhile would be taken for damage"
        return damage_in(self._store, self._delay_levels) if self.store.is_dir() else []
