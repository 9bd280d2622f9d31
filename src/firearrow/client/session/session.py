"""One client of a cluster, shared by its producers and consumers.

A session has one client id. It keeps connections and routes up to date. Every 30 s it sends each broker its producers
and consumers (the heartbeat, 34), and at the end it unregisters them (35). It dispatches the brokers' requests. When
``close`` returns, all its tasks and connections have ended.

::

    async with Session("127.0.0.1:9876") as session:
        async with Producer(session, group="shop") as producer: ...
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random, SystemRandom
from typing import Any, Final, Protocol, Self, TypedDict, TypeVar, Unpack

from firearrow.client.arguments import Duration, seconds_of, texts_of
from firearrow.client.queues import Queue
from firearrow.client.routing.addressserver import DOMAIN_VARIABLE, AddressServer
from firearrow.client.routing.cache import RouteCache, RouteListener
from firearrow.client.routing.nameservers import NameServers
from firearrow.client.routing.queues import LOGICAL_BROKER, address_of_id, hosts_of_logical
from firearrow.client.session.identity import Fingerprints, UniqueIds, client_id, instance_name, local_ip
from firearrow.client.session.inbound import ANY_GROUP, InboundRequests, Replying
from firearrow.clock import Clock, SystemClock
from firearrow.errors import BrokerError, ClientError, ConfigError, FirearrowError, NotPermitted
from firearrow.logs import Log
from firearrow.message.names import validate_group, with_namespace, without_namespace
from firearrow.net.access import Access
from firearrow.net.address import addresses_of
from firearrow.net.client import Client
from firearrow.net.encryption import Tls
from firearrow.net.tasks import Tasks
from firearrow.wire import fastjson
from firearrow.wire.bodies import MASTER_ID, Route
from firearrow.wire.client_bodies import ConsumerData, Heartbeat, ProducerData
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import NO_FIELDS, FieldValue
from firearrow.wire.frame import AnyCommand
from firearrow.wire.signature import Credentials

log: Final = Log(__name__)

T = TypeVar("T")

CALL_SECONDS_MAX: Final = 3.0  # Java: mqClientApiTimeout
POLL_SECONDS: Final = 30.0  # Java: pollNameServerInterval
HEARTBEAT_SECONDS: Final = 30.0  # Java: heartbeatBrokerInterval
HEARTBEAT_FIRST_SECONDS: Final = 1.0
ADDRESSES_SECONDS: Final = 120.0  # between two looks for name servers
ADDRESSES_FIRST_SECONDS: Final = 10.0
RESERVED_GROUPS: Final = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})
NAME_SERVERS_VARIABLE: Final = "NAMESRV_ADDR"


class SessionOptions(TypedDict, total=False):
    """Arguments of `Session`, for code that creates a session itself."""

    credentials: Credentials | None
    tls: Tls | bool
    namespace: str
    namespace_v2: str
    instance: str | None
    unit: str
    ip: str | None
    call_seconds: Duration
    poll_seconds: Duration
    heartbeat_seconds: Duration
    heartbeat_v2: bool
    clock: Clock | None
    chance: Random | None


class ConsumerMember(Protocol):
    """Consumer in a session."""

    @property
    def group(self) -> str:
        """Group as brokers call it, with its namespace."""

    def consumer_data(self) -> ConsumerData:
        """Entry of the consumer in the heartbeat."""


class Session:
    """Client of the cluster whose name servers are at ``name_servers``: ``host:port``, several separated by ``;``. The
    default is the environment variable ``NAMESRV_ADDR``. Without it, the session asks the server of
    `firearrow.client.routing.addressserver`.

    ``credentials`` sign each request. ``tls`` encrypts; ``True`` accepts any certificate, as RocketMQ's clients do.
    ``namespace`` is a prefix of topics and groups, as in RocketMQ 4; servers get ``namespace_v2``, as in 5.
    ``instance`` distinguishes the clients of a machine; the default is unique. ``heartbeat_v2`` does not repeat
    subscriptions to a broker that has them. The attribute ``client`` calls servers by address.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: Tls | bool = False,
        namespace: str = "",
        namespace_v2: str = "",
        instance: str | None = None,
        unit: str = "",
        ip: str | None = None,
        call_seconds: Duration = CALL_SECONDS_MAX,
        poll_seconds: Duration = POLL_SECONDS,
        heartbeat_seconds: Duration = HEARTBEAT_SECONDS,
        heartbeat_v2: bool = False,
        clock: Clock | None = None,
        chance: Random | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.chance: Random = chance or SystemRandom()
        self.namespace = namespace
        self.ip: str = ip or local_ip()
        self._instance, self._unit = instance, unit
        self._identify()
        self.tasks: Tasks = Tasks()
        self._asked = InboundRequests(self.tasks)
        self.client: Client = Client(
            self._asked.handlers(),
            Access(credentials, Tls(verify=False) if tls is True else tls or None),
            call_seconds=seconds_of(call_seconds, "call_seconds"),
            extra={"nsd": "true", "ns": namespace_v2} if namespace_v2 else {},
            on_connected=self._connected,
        )
        addresses = _addresses(name_servers)
        self._address_server = None if addresses else _address_server(unit)
        self._servers = NameServers(self.client, addresses, self.chance)
        self.routes: RouteCache = RouteCache(self._servers.route, self.tasks)
        self._poll_seconds = seconds_of(poll_seconds, "poll_seconds")
        self._heartbeat_seconds = seconds_of(heartbeat_seconds, "heartbeat_seconds")
        self._producers: set[str] = set()
        self._consumers: dict[str, ConsumerMember] = {}
        self._beating: Counter[str] = Counter()
        self._prints = Fingerprints() if heartbeat_v2 else None
        self._on_connected: list[Callable[[str], None]] = []
        self._shared: dict[str, Any] = {}
        self._state = "new"

    def _identify(self) -> None:
        self._process = os.getpid()
        self.instance: str = self._instance or instance_name(self.chance)
        self.client_id: str = client_id(self.ip, self.instance, self._unit)
        self.ids: UniqueIds = UniqueIds(self.ip, self.clock, self.chance)

    @staticmethod
    def of(cluster: Session | str | Sequence[str] | None, **options: Unpack[SessionOptions]) -> tuple[Session, bool]:
        """Return the session of a producer or consumer, and whether the caller owns it and must start and close it.

        Raises ConfigError for options together with a session, which has options already.
        """
        if not isinstance(cluster, Session):
            return Session(cluster, **options), True
        if options:
            names = ", ".join(sorted(options))
            raise ConfigError(f"{names}: set these options on the session itself")
        return cluster, False

    # --- life ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to keep routes and heartbeats up to date. No server is asked yet, except an address server for the name
        servers. Raises ConnectionError if the address server gives none."""
        if self._state != "new":
            raise ClientError(f"the session can't be started: it is {self._state}")
        if self._process != os.getpid():
            self._identify()  # each process that forked since is a separate client
        if self._address_server is not None:
            self._servers.replace(await self._address_server.addresses())
        self._state = "running"
        if self._address_server is not None:
            self.tasks.every(
                ADDRESSES_SECONDS, self._find_name_servers, "name servers", first_seconds=ADDRESSES_FIRST_SECONDS
            )
        self.tasks.every(self._poll_seconds, self.routes.refresh_all, "routes")
        self.tasks.every(self._heartbeat_seconds, self._keep_up, "heartbeats", first_seconds=HEARTBEAT_FIRST_SECONDS)

    async def _find_name_servers(self) -> None:
        assert self._address_server is not None
        self._servers.replace(await self._address_server.addresses())

    async def close(self) -> None:
        """Unregister from all brokers and end everything; a second call does nothing."""
        if self._state != "running":
            return
        self._state = "closed"
        for group in tuple(self._producers):
            await self.remove_producer(group)
        for consumer in tuple(self._consumers.values()):
            await self.remove_consumer(consumer)
        await self.tasks.close()
        await self.client.close()

    @property
    def is_running(self) -> bool:
        """Tell whether the session is started and not closed."""
        return self._state == "running"

    # --- names ---

    def topic(self, name: str) -> str:
        """Topic as brokers call it."""
        return with_namespace(self.namespace, name)

    def group(self, name: str) -> str:
        """Group as brokers call it. Raises ConfigError for an invalid name."""
        fault = validate_group(*texts_of([name], "group"))
        if fault is not None:
            raise ConfigError(fault)
        if name in RESERVED_GROUPS:
            raise ConfigError(f"group {name!r} is reserved for clients without a group")
        return with_namespace(self.namespace, name)

    def bare(self, name: str) -> str:
        """Topic or group as the application calls it."""
        return without_namespace(self.namespace, name)

    # --- routes ---

    async def route(self, topic: str) -> Route:
        """Route of a topic, given by its name at the brokers; the session refreshes it from now on.

        Raises TopicNotFound if no broker has the topic, ConnectionError if no name server answers.
        """
        return await self.routes.route(topic)

    async def refresh(self, topic: str) -> Route:
        """Ask for a route now; raises as ``route``."""
        return await self.routes.refresh(topic)

    def on_route(self, listener: RouteListener) -> Callable[[], None]:
        """Call a listener with each new or changed route; the returned function ends that."""
        return self.routes.listen(listener)

    def broker_of(self, queue: Queue) -> str:
        """Broker of a queue: for a queue of a static topic, the broker that hosts it now."""
        if queue.broker != LOGICAL_BROKER:
            return queue.broker
        route = self.routes.known(queue.topic)
        host = hosts_of_logical(route).get(queue.queue_id) if route is not None else None
        if host is None:
            raise ConnectionError(f"no broker hosts queue {queue.queue_id} of {queue.topic!r}")
        return host

    def address_of(self, broker: str, broker_id: int = MASTER_ID, *, any_will_do: bool = False) -> str:
        """Address of a broker. Raises ConnectionError if no route in use names the broker."""
        found = address_of_id(self.routes.brokers.get(broker, {}), broker_id, any_will_do=any_will_do)
        if found is None:
            what = "no broker" if any_will_do else "no master" if not broker_id else "no slave"
            raise ConnectionError(f"{what} named {broker!r} is in any route in use")
        return found

    def any_address(self, route: Route) -> str:
        """Address of some broker of a route, a master if possible."""
        if not route.broker_datas:
            raise ConnectionError("the route names no broker")
        addresses = self.chance.choice(route.broker_datas).broker_addrs
        found = address_of_id(addresses, any_will_do=True)
        if found is None:
            raise ConnectionError("the route names a broker without address")
        return found

    @property
    def connected_addresses(self) -> tuple[str, ...]:
        """Addresses of the connected servers."""
        return self.client.addresses

    @property
    def name_servers(self) -> NameServers:
        """Name servers, for requests other than routes."""
        return self._servers

    # --- calls ---

    async def call(
        self,
        broker: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        broker_id: int = MASTER_ID,
        any_will_do: bool = False,
        timeout_seconds: float | None = None,
    ) -> AnyCommand:
        """Call a broker by its name; raises as ``Client.call`` and ``address_of``."""
        address = self.address_of(broker, broker_id, any_will_do=any_will_do)
        return await self.client.call(address, code, fields, body, timeout_seconds=timeout_seconds)

    async def tell(
        self,
        broker: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        broker_id: int = MASTER_ID,
        any_will_do: bool = False,
    ) -> None:
        """Send a broker a one-way request; raises as ``Client.send`` and ``address_of``."""
        address = self.address_of(broker, broker_id, any_will_do=any_will_do)
        await self.client.send(address, code, fields, body)

    # --- requests of brokers ---

    def on(self, code: int, handler: Replying, group: str = ANY_GROUP) -> None:
        """Register the handler for requests of a code that name a group, given by its name at the brokers. Without a
        group it takes the requests that no group's handler takes. The handler ends with its group."""
        self._asked.on(code, group, handler)

    def on_connected(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call a listener with the address of each new connection to a broker, after the heartbeat on it; the returned
        function ends that."""
        self._on_connected.append(listener)
        return lambda: self._on_connected.remove(listener)

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return an object that the members of a session share; the first caller makes it."""
        if name not in self._shared:
            self._shared[name] = make()
        found: T = self._shared[name]
        return found

    # --- members and heartbeats ---

    def add_producer(self, group: str) -> None:
        """Add a producer group to the heartbeat. Raises ConfigError if the session has it already."""
        if group in self._producers:
            raise ConfigError(f"this session has a producer of group {group!r} already")
        self._producers.add(group)

    async def remove_producer(self, group: str) -> None:
        """Unregister a producer group from all brokers."""
        if group in self._producers:
            self._producers.discard(group)
            self._asked.off(group, of_producer=True)
            await self._take_leave({"producerGroup": group})

    def add_consumer(self, consumer: ConsumerMember) -> None:
        """Add a consumer to the heartbeat. Raises ConfigError if the session has a consumer of its group already."""
        if consumer.group in self._consumers:
            raise ConfigError(f"this session has a consumer of group {consumer.group!r} already")
        self._consumers[consumer.group] = consumer

    async def remove_consumer(self, consumer: ConsumerMember) -> None:
        """Unregister a consumer from all brokers, if it is the one of its group."""
        group = consumer.group
        if self._consumers.get(group) is consumer:
            del self._consumers[group]
            self._asked.off(group, of_producer=False)
            await self._take_leave({"consumerGroup": group})

    async def heartbeat(self, *, must_be_permitted: bool = False) -> None:
        """Send a heartbeat to all known brokers; each unreachable broker is logged.

        With ``must_be_permitted``, raises NotPermitted if a broker refuses.
        """
        faults = await asyncio.gather(*map(self._beat, self._addresses_to_beat()))
        for fault in faults if must_be_permitted else ():
            if isinstance(fault, NotPermitted):
                raise fault

    async def _keep_up(self) -> None:
        """Drop the connections to servers that no route names any more, and send heartbeats."""
        wanted = {*self._servers.addresses, *self._broker_addresses()}
        for address in self.client.addresses:
            if address not in wanted and self.client.is_idle(address):
                await self.client.drop(address)
        await self.heartbeat()

    def _broker_addresses(self) -> Collection[str]:
        return {one for ids in self.routes.brokers.values() for one in ids.values()}

    def _addresses_to_beat(self) -> list[str]:
        """All brokers; slaves only if the session has consumers."""
        if not self._producers and not self._consumers:
            return []
        return sorted(
            address
            for addresses in self.routes.brokers.values()
            for broker_id, address in addresses.items()
            if self._consumers or broker_id == MASTER_ID
        )

    async def _beat(self, address: str) -> Exception | None:
        self._beating[address] += 1
        body = Heartbeat(
            self.client_id,
            [ProducerData(group) for group in sorted(self._producers)],
            [consumer.consumer_data() for consumer in self._consumers.values()],
        )
        if self._prints is not None:
            body = self._prints.mark(address, body)
        try:
            answer = await self.client.call(address, RequestCode.HEART_BEAT, body=fastjson.dumps(body))
            if self._prints is not None:
                self._prints.answered(address, body, answer.ext or {})
        except (OSError, FirearrowError) as error:
            log.warning(
                "heartbeat failed",
                sentence=f"heartbeat to {address} failed: {error}",
                extra={"address": address, "error": error},
            )
            return error
        finally:
            self._beating[address] -= 1
        return None

    def _connected(self, address: str) -> None:
        """Identify this client on a new connection to a broker."""
        if self._prints is not None:
            self._prints.forget(address)
        if self.is_running and address in self._broker_addresses():
            self.tasks.start(self._greet(address), f"heartbeat to {address}")

    async def _greet(self, address: str) -> None:
        if not self._beating[address] and address in self._addresses_to_beat():
            await self._beat(address)
        for listener in tuple(self._on_connected):
            listener(address)

    async def _take_leave(self, group: Mapping[str, FieldValue]) -> None:
        fields = {"clientID": self.client_id, **group}
        connected = [it for it in self._broker_addresses() if self.client.is_connected(it)]
        leaving = (self._leave(address, fields) for address in sorted(connected))
        await asyncio.gather(*leaving)

    async def _leave(self, address: str, fields: Mapping[str, FieldValue]) -> None:
        try:
            await self.client.call(address, RequestCode.UNREGISTER_CLIENT, fields)
        except (OSError, BrokerError) as error:
            log.warning("client is not unregistered", extra={"address": address, "error": error})


def _addresses(name_servers: str | Sequence[str] | None) -> list[str]:
    if name_servers is None:
        name_servers = os.environ.get(NAME_SERVERS_VARIABLE, "")
        if not name_servers:
            return []
    return addresses_of(";".join(texts_of(name_servers, "name servers")))


def _address_server(unit: str) -> AddressServer:
    found = AddressServer.of_environment(unit)
    if found is None:
        raise ConfigError(
            f"no name servers: neither an argument nor {NAME_SERVERS_VARIABLE} names any, and "
            f"{DOMAIN_VARIABLE} names no address server"
        )
    return found
