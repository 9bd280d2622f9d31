"""Periodic registration of a broker with every name server.

Each name server has a separate task, so that a slow or dead one delays no other. A registration carries all topics; it
is repeated every 30 s, which also renews the lease of two minutes. When a topic changes, a registration with only that
topic and the new data version follows at once, unless the name server lacks the full one. A registration that fails is
soon retried, with all topics.

Source of the rules: RocketMQ's ``BrokerController#registerBrokerAll``, ``BrokerOuterAPI``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Final

import msgspec

from firearrow.broker.config import BrokerConfig
from firearrow.broker.state.settings import Settings
from firearrow.broker.topics.table import TopicTable
from firearrow.errors import FirearrowError
from firearrow.logs import Log
from firearrow.net.access import OPEN, Access
from firearrow.net.client import Client
from firearrow.net.tasks import Tasks
from firearrow.services import Service
from firearrow.wire.bodies import PERM_READ, PERM_WRITE, DataVersion, TopicConfig, TopicConfigTable
from firearrow.wire.codes import RequestCode
from firearrow.wire.frame import AnyCommand
from firearrow.wire.registerbody import RegisterBody, body_crc32

log: Final = Log(__name__)

PERIOD_MS_MIN: Final = 10_000
PERIOD_MS_MAX: Final = 60_000  # half of the lease that a name server gives
RETRY_MS: Final = 3_000
START_SECONDS_MAX: Final = 3.0  # limit of a start's wait for a silent name server
UNREGISTER_SECONDS_MAX: Final = 3.0  # limit of a stop's wait: the lost connection tells the same
_TOPICS_HERE_MAX: Final = 100  # formatted in the event loop, in a millisecond or two; more in a thread

_ALL: Final = PERM_READ | PERM_WRITE


class BrokerIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """Identity of the broker; ``broker_addr`` (for clients) and ``ha_server_addr`` (slaves): ``ip:port``."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str


def identity_of(config: BrokerConfig, address: str, ha_port: int) -> BrokerIdentity:
    """Return the identity of a broker that serves clients at an address and slaves at a port."""
    ip = config.broker_ip2 or address.rpartition(":")[0]
    return BrokerIdentity(
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_id=config.broker_id,
        broker_addr=address,
        ha_server_addr=f"{ip}:{ha_port}",
    )


def registration_of(
    settings: Settings,
    topics: TopicTable,
    name_servers: Iterable[str],
    identity: BrokerIdentity,
    access: Access,
    on_master: Callable[[str, str], bool] | None,
) -> Registration:
    """Make the registration of a broker from its configuration; see `Registration`."""
    config = settings.broker
    acts = config.enable_slave_acting_master
    return Registration(
        name_servers,
        identity,
        lambda: topics.table,
        lambda: topics.data_version,
        permission=lambda: settings.broker.broker_permission,
        period_ms=config.register_name_server_period,
        timeout_ms=config.register_broker_timeout_mills,
        lease_ms=config.broker_not_active_timeout_millis if acts else None,
        compressed=config.compressed_register,
        access=access,
        on_master=on_master,
    )


def addresses_of(namesrv_addr: str) -> list[str]:
    """Return the addresses in a setting ``host:port;host:port``, each once."""
    return list(dict.fromkeys(part.strip() for part in namesrv_addr.split(";") if part.strip()))


class Registration(Service):
    """Keeps a broker registered; ``start`` and ``stop`` once each, in one event loop.

    Args:
        name_servers: their addresses, see ``addresses_of``.
        identity: identity of the broker.
        topics: returns all topics, for each registration.
        data_version: returns the version of these topics.
        permission: the broker's permission, which limits that of each registered topic.
        period_ms: between two registrations, held between 10 and 60 s.
        timeout_ms: limit for a name server's answer.
        on_master: gets the master's addresses for slaves and clients, whenever a name server tells
            them to a slave. It returns True for the right master. Until then, the slave asks every
            few seconds.
        lease_ms: lease of the broker at the name server without heartbeats, where slaves act for
            their master; otherwise the name server decides.
        compressed: whether the body is sent compressed (order and system flags get lost in it).
        access: the access to the name servers, with credentials and TLS.
    """

    def __init__(
        self,
        name_servers: Iterable[str],
        identity: BrokerIdentity,
        topics: Callable[[], dict[str, TopicConfig]],
        data_version: Callable[[], DataVersion],
        *,
        permission: Callable[[], int] = lambda: _ALL,
        period_ms: int = 30_000,
        timeout_ms: int = 24_000,
        lease_ms: int | None = None,
        compressed: bool = False,
        access: Access = OPEN,
        on_master: Callable[[str, str], bool] | None = None,
    ) -> None:
        super().__init__("registration")
        self._identity = identity
        self._topics = topics
        self._data_version = data_version
        self._permission = permission
        self._period_seconds = max(PERIOD_MS_MIN, min(PERIOD_MS_MAX, period_ms)) / 1000
        self._timeout_seconds = timeout_ms / 1000
        self._lease_ms = lease_ms
        self._compressed = compressed
        self._on_master = on_master
        self._lacks_master = on_master is not None
        self.retry_ms = RETRY_MS
        self.takes_leave = True  # False if the broker comes back with another number
        self._whole = b"", 0
        self._whole_of: tuple[DataVersion, int] | None = None
        self._client = Client(access=access, on_lost=self._lost)
        self._keepers = [_RegistrationKeeper(address, self) for address in name_servers]
        self._tasks = Tasks()

    async def start(self) -> None:
        """Register with each name server, or fail, and continue in the background.

        Returns after at most 3 s; ``missing`` names the servers without an answer.
        """
        for keeper in self._keepers:
            self._tasks.start(keeper.run(), f"registration with {keeper.address}")
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                await asyncio.gather(*(keeper.tried.wait() for keeper in self._keepers))
        except TimeoutError:
            log.warning("not registered yet: name servers are silent", extra={"addresses": self.missing})

    @property
    def missing(self) -> list[str]:
        """Name servers that don't know the broker, or only a part of its data."""
        return [keeper.address for keeper in self._keepers if not keeper.knows_all]

    @property
    def trouble(self) -> str | None:
        """Name servers that do not know the broker."""
        missing = ", ".join(self.missing)
        return f"not registered with {missing}" if missing else None

    def topics_changed(self, names: Collection[str]) -> None:
        """Register these topics at once; returns before the name servers know them."""
        for keeper in self._keepers:
            keeper.wake(names)

    async def stop(self) -> None:
        """Unregister from every name server; the wait for each ends after 3 s."""
        await self._tasks.close()
        if self.takes_leave:
            await asyncio.gather(*(keeper.unregister() for keeper in self._keepers))
        await self._client.close()

    async def send_register(self, address: str, only: Collection[str] | None) -> None:
        """Register all topics or some with one name server; raises the errors of ``Client.call``."""
        body, crc32 = await self._body(only)
        fields: dict[str, str | int | bool] = {
            **msgspec.to_builtins(self._identity),
            "bodyCrc32": crc32,
            "compressed": self._compressed,
            "enableActingMaster": self._lease_ms is not None,
        }
        if self._lease_ms is not None:
            fields["heartbeatTimeoutMillis"] = self._lease_ms
        answer = await self._call(address, RequestCode.REGISTER_BROKER, fields, body)
        found = answer.ext or {}
        if self._on_master is not None and found.get("masterAddr"):
            self._lacks_master = not self._on_master(found.get("haServerAddr", ""), found["masterAddr"])

    def seek_master(self) -> None:
        """Ask the name servers for another master, periodically."""
        self._lacks_master = True
        for keeper in self._keepers:
            keeper.knows_all = False
            keeper.wake(())

    def _lost(self, address: str) -> None:
        for keeper in self._keepers:
            if keeper.address == address:
                keeper.lost()

    def period_of(self, *, knows_all: bool) -> float:
        """Return the seconds until the next registration."""
        if knows_all and not self._lacks_master:
            return self._period_seconds
        return self.retry_ms / 1000

    async def send_unregister(self, address: str) -> None:
        """Unregister from one name server; raises the errors of ``Client.call``."""
        fields = msgspec.to_builtins(self._identity)
        del fields["haServerAddr"]
        async with asyncio.timeout(UNREGISTER_SECONDS_MAX):
            await self._call(address, RequestCode.UNREGISTER_BROKER, fields, b"")

    async def _call(self, address: str, code: int, fields: dict[str, str | int | bool], body: bytes) -> AnyCommand:
        return await self._client.call(address, code, fields, body, timeout_seconds=self._timeout_seconds)

    @property
    def period_seconds(self) -> float:
        """Return the seconds between two registrations."""
        return self._period_seconds

    async def _body(self, only: Collection[str] | None) -> tuple[bytes, int]:
        """Return a body and its checksum; a thread makes that of many topics, if they have changed."""
        allowed = self._permission()
        if only is not None:
            topics = self._topics()
            chosen = {name: topics[name] for name in only if name in topics}
            if len(chosen) <= _TOPICS_HERE_MAX:
                return self._encode(chosen, self._data_version(), allowed)
            return await asyncio.to_thread(self._encode, chosen, self._data_version(), allowed)
        state = self._data_version(), allowed
        if self._whole_of != state:
            whole = dict(self._topics())
            self._whole = await asyncio.to_thread(self._encode, whole, *state)
            self._whole_of = state
        return self._whole

    def _encode(self, topics: dict[str, TopicConfig], version: DataVersion, allowed: int) -> tuple[bytes, int]:
        if allowed & _ALL != _ALL:
            topics = {name: msgspec.structs.replace(topic, perm=topic.perm & allowed) for name, topic in topics.items()}
        body = RegisterBody(TopicConfigTable(version, topics, DataVersion(timestamp=version.timestamp), {}, {})).encode(
            self._compressed
        )
        return body, body_crc32(body)


class _RegistrationKeeper:
    """Keeps the broker registered with one name server."""

    def __init__(self, address: str, registration: Registration) -> None:
        self.address = address
        self.tried = asyncio.Event()
        self.knows_all = False
        self._registration = registration
        self._changed: set[str] = set()
        self._woken = asyncio.Event()
        self._is_lost = False
        self._failing = False

    def wake(self, names: Iterable[str]) -> None:
        self._changed.update(names)
        self._woken.set()

    def lost(self) -> None:
        """Register everything soon: the name server has started again, or has removed the broker. Java: registers at
        the end of the period.
        """
        self.knows_all = False
        self._is_lost = True
        self._woken.set()

    async def run(self) -> None:
        while True:
            if self._is_lost:
                self._is_lost = False
                await asyncio.sleep(self._registration.period_of(knows_all=False))
            await self.register()
            self.tried.set()
            wait = self._registration.period_of(knows_all=self.knows_all)
            try:
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            except TimeoutError:
                self.knows_all = False  # the period is over: send everything, even if the name server knows it

    async def register(self) -> None:
        """Send the registration that is due."""
        self._woken.clear()
        only = tuple(self._changed) if self.knows_all else None
        self._changed.clear()
        self.knows_all = await self._attempt(self._registration.send_register(self.address, only))

    async def unregister(self) -> None:
        # Even after a failure: the name server may have taken a registration whose answer was lost.
        await self._attempt(self._registration.send_unregister(self.address))

    async def _attempt(self, sending: Coroutine[Any, Any, None]) -> bool:
        try:
            await sending
        except (OSError, FirearrowError) as error:
            if not self._failing:
                log.warning(
                    "registration with a name server failed: retrying", extra={"address": self.address, "error": error}
                )
            self._failing = True
            return False
        if self._failing:
            log.info("registration with a name server works again", extra={"address": self.address})
        self._failing = False
        return True
