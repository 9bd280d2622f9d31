"""A name server as a whole: its tables, its socket, and its two periodic tasks.

It checks every few seconds for brokers that went silent. If configured, it notifies brokers when their smallest broker
id has changed. Everything else happens when a request arrives.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec import structs

from firearrow.clock import Clock
from firearrow.events import Events
from firearrow.namesrv.config import NamesrvConfig
from firearrow.namesrv.kv import KvConfig
from firearrow.namesrv.processor import Processor
from firearrow.namesrv.routes import KEPT_BYTES_MAX, MinBrokerIdChange, RouteTables
from firearrow.net.client import Client, Notices
from firearrow.net.server import ConnectionClosed, Peer, Server
from firearrow.net.tls import access_of
from firearrow.services import Every, Service
from firearrow.wire.codes import RequestCode


class NameServer:
    """A name server for brokers and clients; call ``start`` and ``stop`` once each, in one event loop."""

    def __init__(self, config: NamesrvConfig, clock: Clock) -> None:
        self._kv = KvConfig(Path(config.kv_config_path))
        self._routes = RouteTables(clock, lambda: self._processor.config, self._notify, _keep)
        self._processor = Processor(config, clock, self._routes, self._kv)
        events = Events()
        events.listen(ConnectionClosed, lambda closed: self._routes.close_channel(closed.peer))
        self._server = Server(
            self._processor.handlers(),
            clock,
            events=events,
            idle_seconds_max=config.server_channel_max_idle_time_seconds,
            memory_bytes_max=config.request_memory_bytes_max,
            kept_bytes_max=KEPT_BYTES_MAX,
            tls=config,
        )
        self._client = Client(access=access_of(config))
        self._notices = Notices(self._client, "the new smallest id")
        self.services: list[Service] = []

    @property
    def config(self) -> NamesrvConfig:
        """The configuration in force; clients may change it."""
        return self._processor.config

    async def start(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (0: a free port) and return the port.

        Raises ConfigError when the key-value file can't be read, CannotListen without the port.
        """
        self._kv.load()
        bound = await self._server.start(host, port)
        # A request for the configuration gets the port in use, not 0.
        self._processor.config = structs.replace(self.config, listen_port=bound)
        seconds = self.config.scan_not_active_broker_interval / 1000
        self.services = [Every("silent brokers", seconds, self._forget_silent, asyncio.get_running_loop())]
        for service in self.services:
            await service.start()
        return bound

    async def stop(self) -> None:
        """Close all connections and forget all brokers."""
        for service in self.services:
            await service.stop()
        await self._notices.stop()
        await self._client.close()
        await self._server.stop()

    def _forget_silent(self) -> float:
        """Forget brokers that have not registered in time; return the seconds until the next check."""
        for channel in self._routes.expire():
            if isinstance(channel, Peer):
                channel.close("the broker on it has not registered in time")
        return self.config.scan_not_active_broker_interval / 1000

    def _notify(self, change: MinBrokerIdChange) -> None:
        fields: dict[str, str | int | None] = {
            "minBrokerId": change.min_broker_id,
            "brokerName": change.broker_name,
            "minBrokerAddr": change.min_broker_addr,
            "offlineBrokerAddr": change.offline_broker_addr,
            "haBrokerAddr": change.ha_broker_addr,
        }
        present = {name: value for name, value in fields.items() if value is not None}
        for address in change.tell:
            self._notices.send(address, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, present)


def _keep(channel: object, size: int) -> None:
    assert isinstance(channel, Peer), "brokers register by connections"
    channel.keep(size)
