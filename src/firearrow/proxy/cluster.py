"""Cluster mode: the proxy is a client of the brokers and the name servers of a cluster, by remoting.

All calls go by one pool, with one connection to each broker. A call on an open connection costs no task and no future:
its waiter is the `Reply` that the caller awaits. A task opens connections, and asks for routes that are not known yet.

A broker knows a client by the connection of its heartbeat. It sends its own requests by that connection, and shows its
address to administrators. So each client that has sent its settings has its own connection to each broker of its
topics. 1000 clients of topics at four brokers are 4000 connections, each with 7 KiB in the proxy (measured with 500
clients and two brokers). The limit of file descriptors (``ulimit -n``) must suffice for them. In return each tool shows
a client of the proxy as any other, and a producer is asked for its own transactions. A connection that is lost is
opened again by the client's next heartbeat, usually within 10 s.

Source: RocketMQ's ``ClusterTopicRouteService``, ``ClusterMetadataService``, ``ClusterMessageService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import ClassVar, Final, TypeVar

import msgspec

from firearrow.client.routing.nameservers import NameServers
from firearrow.client.routing.queues import address_of_id, broker_addresses
from firearrow.client.session.answers import read_body
from firearrow.clock import Clock
from firearrow.errors import BrokerError, ClientError, ConfigError, FirearrowError, NotFound, TopicNotFound
from firearrow.events import Events
from firearrow.logs import Log
from firearrow.net.access import Access
from firearrow.net.address import addresses_of
from firearrow.net.client import Client, Handler, ServerRequest
from firearrow.net.replies import Reply, in_task, run
from firearrow.net.tasks import Tasks
from firearrow.proxy.answercache import AnswerCache, CacheLimits
from firearrow.proxy.brokers import Asked, KnownQueues, Link, QueueAt, QueueGroup, TopicRoute
from firearrow.proxy.clusteraccess import ClusterAccess, Sender
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import Code
from firearrow.proxy.statuses import ProxyError
from firearrow.wire import fastjson
from firearrow.wire.bodies import MASTER_ID, PERM_READ, PERM_WRITE, ClusterInfo, Route, TopicConfig
from firearrow.wire.client_bodies import Heartbeat, SubscriptionGroupConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response, with_text
from firearrow.wire.command import request as remoting_request
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

T = TypeVar("T")

ASK_SECONDS_MAX: Final = 3.0
BEAT_SECONDS_MAX: Final = 2.0  # clients wait for their settings for 3 s
SWEEP_SECONDS: Final = 10.0
BROKERS_ASKED_MAX: Final = 8  # for one configuration
ALL: Final = ""  # the key of the table of all brokers

_QUESTIONS: Final = (
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
)


class _BrokerCall(Reply[AnyCommand]):
    """Call to a broker by its name, the waiter for its answer. A call that the broker has refused because it stops is
    sent once more.
    """

    __slots__ = ("_brokers", "_client", "_command", "_is_repeated", "_leave", "_name", "_seconds")

    def __init__(self, brokers: ClusterBrokers, client: Client, name: str, command: AnyCommand, seconds: float) -> None:
        super().__init__()
        self._brokers = brokers
        self._client = client
        self._name = name
        self._command = command
        self._seconds = seconds
        self._is_repeated = False
        self._leave: Callable[[], None] | None = None

    def begin(self) -> None:
        """Send the request, at once if possible."""
        address = self._brokers.address_of(self._name)
        if address is not None:
            try:
                self._leave = self._client.begin_now(self, address, self._command, self._seconds)
            except (OSError, FirearrowError) as error:
                self.set_exception(error)
                return
            if self._leave is not None:
                return
        try:
            self._brokers.tasks.start(self._open(), f"call to {self._name}")
        except ClientError:
            super().set_exception(self._stopped())

    async def _open(self) -> None:
        failure: Exception = self._stopped()
        is_sent = False
        try:
            address = await self._brokers.find(self._name)
            self._leave = await self._client.begin_for(self, address, self._command, self._seconds)
            is_sent = True
        except (OSError, FirearrowError) as error:
            failure = error
            if isinstance(error, OSError):
                self._brokers.doubt()
        finally:
            if not is_sent and not self.done():
                super().set_exception(failure)

    def _stopped(self) -> ConnectionError:
        return ConnectionError(f"{self._name} is not called: the proxy stops")

    def set_result(self, value: AnyCommand) -> None:
        """Take the answer, unless the call must be sent again."""
        leave, self._leave = self._leave, None
        if value.code == ResponseCode.GO_AWAY and leave is not None:
            leave()
            if not self._is_repeated:
                self._is_repeated = True
                self.begin()
                return
        super().set_result(value)

    def set_exception(self, error: Exception) -> None:
        """Take the error; a lost connection is a reason to ask for the broker's address again."""
        if isinstance(error, ConnectionError):
            self._brokers.doubt()
        super().set_exception(error)


def _failed(error: Exception) -> Reply[AnyCommand]:
    reply: Reply[AnyCommand] = Reply()
    reply.set_exception(error)
    return reply


class ClusterCalls:
    """Calls of a user, at an address, to the brokers of a cluster; the `Link` of one gRPC call."""

    def __init__(self, brokers: ClusterBrokers, address: str, user: str | None = None) -> None:
        self._brokers = brokers
        self._address = address
        self._sender = Sender(user, address)

    def prove(self, user: str | None) -> None:
        """Send the following requests for a user."""
        self._sender = Sender(user, self._address)

    def for_call(self, user: str | None) -> Link:
        """Return the link for a call of a user."""
        return self if user is None else ClusterCalls(self._brokers, self._address, user)

    def call(self, broker: str, request: AnyCommand, timeout_ms: float) -> Reply[AnyCommand]:
        """Send a request, if the user may do so. With access control, a request that refers to a message by its place
        waits until the broker has told the topic of that message.
        """
        request = with_text(request)
        rights = self._brokers.rights
        if rights is not None and self._sender.user is not None:
            place = rights.place_of(request)
            if place is not None:
                return self._call_by_place(rights, place, broker, request, timeout_ms / 1000)
            try:
                rights.check(self._sender, request)
            except ProxyError as error:
                return _failed(error)
        return self._called(self._client_of(request), broker, request, timeout_ms / 1000)

    def _call_by_place(
        self, rights: ClusterAccess, place: str, broker: str, request: AnyCommand, seconds: float
    ) -> Reply[AnyCommand]:
        async def checked() -> AnyCommand:
            stored = await self._brokers.message_at(place, broker, seconds)
            rights.check(self._sender, request, stored)
            return await self._called(self._brokers.client, broker, request, seconds)

        reply: Reply[AnyCommand] = Reply()
        run(checked(), reply.set_result, reply.set_exception)
        return reply

    def _client_of(self, request: AnyCommand) -> Client:
        return self._brokers.client

    def _called(self, client: Client, broker: str, request: AnyCommand, seconds: float) -> Reply[AnyCommand]:
        call = _BrokerCall(self._brokers, client, broker, request, seconds)
        call.begin()
        return call

    def tell(self, broker: str, request: AnyCommand) -> None:
        """Send a one-way request."""
        self._brokers.tell(broker, with_text(request))

    def end_wait(self, request: AnyCommand) -> None:
        """Do nothing: a broker has no request for that, and its late messages are given back."""

    def pause(self) -> None:
        """Do nothing: brokers do not know which client reads."""

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: all clients share the connections."""


class ClusterLink(ClusterCalls):
    """Link to the brokers of a cluster: calls by the pool, and its own connections once it is registered.

    ``access`` is the access of these connections, None for the proxy's own.
    """

    _questions: ClassVar[Sequence[RequestCode]] = _QUESTIONS

    def __init__(
        self,
        brokers: ClusterBrokers,
        address: str,
        asked: Callable[[Asked], None],
        lost: Callable[[], object],
        now: float,
        access: Access | None = None,
    ) -> None:
        super().__init__(brokers, address)
        self._access = access or brokers.access
        self._asked = asked
        self._lost = lost
        self._own: Client | None = None
        self._is_closed = False
        self._names: dict[str, str] = {}  # of the brokers that it is registered at, by their addresses
        self.alive_at = now
        """Time of the last heartbeat."""

    def _client_of(self, request: AnyCommand) -> Client:
        """Client for a request: the own one for subscriptions to lite topics, which a broker binds to a connection."""
        if self._own is not None and request.code == RequestCode.LITE_SUBSCRIPTION_CTL:
            return self._own
        return self._brokers.client

    def check(self, request: AnyCommand) -> None:
        """Raise ProxyError if the user may not make a request."""
        if self._brokers.rights is not None and self._sender.user is not None:
            self._brokers.rights.check(self._sender, request)

    def call_own(self, broker: str, request: AnyCommand, seconds: float) -> Reply[AnyCommand]:
        """Send a request to a broker by the own connection, which is opened if needed; ConnectionError if the link is
        closed.
        """
        if self._is_closed:  # nobody would close the connection
            return _failed(ConnectionError(f"{self._address} is not connected any more"))
        if self._own is None:
            handlers: Mapping[int, Handler] = dict.fromkeys(map(int, self._questions), self._take)
            self._own = Client(handlers, self._access, on_connected=self._greet, spares_working=True)
        address = self._brokers.address_of(broker)
        if address is not None:
            self._names[address] = broker
        return self._called(self._own, broker, request, seconds)

    def _greet(self, address: str) -> None:
        """Do nothing on a new connection: a heartbeat opens it, or the next one registers the client."""

    def leave_others(self, brokers: Sequence[str]) -> None:
        """Close the own connections to brokers that are not among these."""
        for address, name in list(self._names.items()):
            if name not in brokers:
                del self._names[address]
                if self._own is not None:
                    self._brokers.tasks.begin(self._own.drop(address), f"end of a connection to {name}")

    def close(self) -> None:
        """Close; the brokers forget the client."""
        self._is_closed = True
        self._brokers.forget(self)
        own, self._own = self._own, None
        if own is not None:
            self._brokers.end(own)

    def expire(self) -> None:
        """Close, because nothing was heard from the client for too long."""
        self.close()
        self._lost()

    def _take(self, asked: ServerRequest) -> Response | None:
        """Hand a question of a broker on."""

        def answer(response: Response) -> None:
            with suppress(ConnectionError):  # the broker is gone
                asked.answer(response)

        broker = str(asked.command.ext.get("bname") or self._names.get(asked.address, ""))
        self._asked(Asked(asked.command, broker, answer))
        return None


class _Routes:
    """Route of a topic in the forms that the proxy needs."""

    __slots__ = ("brokers", "origin", "readable", "whole", "written")

    def __init__(self, route: Route, at: tuple[str, int]) -> None:
        addresses = broker_addresses(route)
        groups: list[QueueGroup] = []
        self.written: list[QueueAt] = []
        for queues in sorted(route.queue_datas, key=lambda it: it.broker_name):
            name = queues.broker_name
            ids = addresses.get(name)
            if not ids:
                continue
            counts = queues.read_queue_nums, queues.write_queue_nums
            groups.append(QueueGroup(name, *counts, queues.perm, dict.fromkeys(sorted(ids), at)))
            if queues.perm & PERM_WRITE and MASTER_ID in ids:
                self.written += [(name, number) for number in range(queues.write_queue_nums)]
        self.origin = route
        self.whole = TopicRoute(groups)
        self.brokers = [group.broker for group in groups]
        self.readable = [group.broker for group in groups if group.perm & PERM_READ and group.read_queues]


class ClusterBrokers:
    """The brokers of a cluster; the clients of the proxy reach it at ``at()``."""

    keeps_endpoints = True
    register_seconds: Final = 25.0  # as often as clients of remoting send heartbeats: 30 s

    def __init__(
        self, config: ProxyConfig, access: Access, clock: Clock, events: Events, at: Callable[[], tuple[str, int]]
    ) -> None:
        if not config.namesrv_addr.strip("; "):
            raise ConfigError("no name servers: neither -n nor namesrvAddr nor NAMESRV_ADDR names any")
        self._config = config
        self._monotonic = clock.monotonic
        self._at = at
        self._chance = Random()
        self.access = access
        self.tasks: Final = Tasks()
        self.client: Final = Client(access=access, spares_working=True)
        self._servers = NameServers(self.client, addresses_of(config.namesrv_addr), self._chance)
        self._addresses: dict[str, Mapping[int, str]] = {}  # of each broker name, by broker id
        self._links: dict[ClusterLink, None] = {}  # with a registered client
        self._ending: set[Client] = set()
        routes = CacheLimits(
            config.topic_route_service_cache_refresh_seconds,
            config.topic_route_service_cache_expired_seconds,
            config.topic_route_service_cache_max_num,
        )
        topics = CacheLimits(
            config.topic_config_cache_refresh_seconds,
            config.topic_config_cache_expired_seconds,
            config.topic_config_cache_max_num,
        )
        groups = CacheLimits(
            config.subscription_group_config_cache_refresh_seconds,
            config.subscription_group_config_cache_expired_seconds,
            config.subscription_group_config_cache_max_num,
        )
        self._all = AnswerCache("brokers", self._ask_brokers, self.tasks, self._monotonic, routes)
        self._routes = AnswerCache("route of", self._ask_route, self.tasks, self._monotonic, routes)
        self._topics = AnswerCache("topic", self._ask_topic, self.tasks, self._monotonic, topics)
        self._groups = AnswerCache("group", self._ask_group, self.tasks, self._monotonic, groups)
        self.rights: Final = (
            ClusterAccess(config, self._ask_any, self.tasks, clock, events) if config.authentication_enabled else None
        )

    def start(self) -> None:
        """Begin to look for clients that say nothing more."""
        self.tasks.every(SWEEP_SECONDS, self._sweep, "clients without heartbeat")

    async def stop(self) -> None:
        """Close all connections; answers that are pending are lost."""
        for link in list(self._links):
            link.close()
        await self.tasks.close()
        await asyncio.gather(self.client.close(), *(own.close() for own in self._ending))

    async def _sweep(self) -> None:
        before = self._monotonic() - self._config.channel_expired_timeout / 1000 - self.register_seconds
        for link in [it for it in self._links if it.alive_at < before]:
            link.expire()

    # --- links ---

    def link(self, address: str, asked: Callable[[Asked], None], lost: Callable[[], None]) -> ClusterLink:
        """Open a link. It costs nothing until a client is registered by it."""
        return ClusterLink(self, address, asked, lost, self._monotonic())

    def forget(self, link: ClusterLink) -> None:
        """Forget a link that is closed."""
        self._links.pop(link, None)

    def end(self, own: Client) -> None:
        """Close the connections of a client."""

        async def close() -> None:
            await own.close()
            self._ending.discard(own)

        self._ending.add(own)
        self.tasks.begin(close(), "end of a client's connections")

    async def beat(self, link: Link, heartbeat: Heartbeat, topics: Sequence[str], language: str) -> None:
        """Register a client at all brokers of its topics. A broker that can't be reached is logged: the next one of
        these heartbeats will reach it. BrokerError if a broker refuses the client.
        """
        assert isinstance(link, ClusterLink), "a link of this cluster"
        command = remoting_request(RequestCode.HEART_BEAT, body=fastjson.dumps(heartbeat))
        link.check(command)
        command.language = language
        await self.register(link, command, await self.brokers_of(topics))

    async def brokers_of(self, topics: Iterable[str]) -> list[str]:
        """Return the names of all brokers with queues of any of the topics."""
        names: dict[str, None] = {}
        for topic in topics:
            found = await self._routes.get(topic)
            if found is not None:
                names |= dict.fromkeys(found.brokers)
        return list(names)

    async def register(self, link: ClusterLink, heartbeat: AnyCommand, names: Sequence[str]) -> None:
        """Send a heartbeat to brokers by the link's own connections, and close those to others; raises as `beat`."""
        link.alive_at = self._monotonic()
        self._links[link] = None
        link.leave_others(names)
        sent = [(name, link.call_own(name, msgspec.structs.replace(heartbeat), BEAT_SECONDS_MAX)) for name in names]
        refusal: BrokerError | None = None
        for name, reply in sent:
            try:
                answer = await reply
            except (OSError, ProxyError) as error:
                log.warning("client is not registered", extra={"broker_name": name, "error": error})
                continue
            if answer.code:
                refusal = BrokerError.of(answer.code, answer.remark, name)
        if refusal is not None:
            raise refusal

    def tell(self, broker: str, request: AnyCommand) -> None:
        """Send a one-way request; without effect if the broker can't be reached."""
        self.tasks.begin(self._tell(broker, request), f"notice to {broker}")

    async def _tell(self, broker: str, request: AnyCommand) -> None:
        with suppress(OSError, FirearrowError):
            await self.client.send(await self.find(broker), request.code, request.ext, request.body)

    def message_at(self, place: str, broker: str, seconds: float) -> Reply[AnyCommand]:
        """Ask a broker for the message at a place of its log."""
        question = remoting_request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place, "bname": broker})
        call = _BrokerCall(self, self.client, broker, question, seconds)
        call.begin()
        return call

    # --- addresses ---

    def address_of(self, broker: str) -> str | None:
        """Return the known address of a broker's master, or of a slave if there is no master."""
        ids = self._addresses.get(broker)
        return None if ids is None else address_of_id(ids, any_will_do=True)

    async def find(self, broker: str) -> str:
        """Return the address of a broker; ProxyError if no name server knows the broker."""
        address = self.address_of(broker)
        if address is None:
            await in_task(self._all.fresh(ALL))
            address = self.address_of(broker)
        if address is None:
            raise ProxyError(Code.BAD_REQUEST, f"broker {broker} is not known to any name server")
        return address

    def doubt(self) -> None:
        """Ask for addresses now, and for routes at their next use: a broker can't be reached."""
        self._all.refresh(ALL)
        self._routes.doubt()

    # --- routes, topics and groups ---

    def created(self, topic: str) -> None:
        """Note that a topic exists now."""
        self._routes.created(topic)
        self._topics.created(topic)

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic; ProxyError if there is none."""
        return (await self._known_routes(topic)).whole

    async def names(self) -> Sequence[str]:
        """Return the names of the brokers of the configured cluster, or of all if no broker is of that cluster."""
        return self._names_in(await self._all.get(ALL))

    async def remoting_route(self, topic: str) -> Route:
        """Return the route of a topic as the name server has it; ProxyError if there is none."""
        return (await self._known_routes(topic)).origin

    async def write_queues(self, topic: str) -> Sequence[QueueAt]:
        """Return the queues of a topic that can be written, at the brokers that have a master."""
        return (await self._known_routes(topic)).written

    def known_queues(self, topic: str) -> KnownQueues | None:
        """Return None: the answer of a broker must be waited for anyway."""
        return None

    async def readable(self, topic: str) -> Sequence[str]:
        """Return the names of the brokers with queues of a topic that can be read."""
        return (await self._known_routes(topic)).readable

    async def _known_routes(self, topic: str) -> _Routes:
        found = await self._routes.get(topic)
        if found is None:
            raise ProxyError(Code.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {topic}")
        return found

    async def topic(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic at any of its brokers."""
        return await self._topics.get(topic)

    async def group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the configuration of a group at any broker of the cluster, which may create the group."""
        return await self._groups.get(group)

    async def _ask_brokers(self, _: str) -> ClusterInfo:
        answer = await self._servers.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        found = read_body(answer, ClusterInfo, "list of brokers")
        self._addresses = {name: broker.broker_addrs for name, broker in found.broker_addr_table.items()}
        return found

    async def _ask_route(self, topic: str) -> _Routes | None:
        try:
            route = await self._servers.route(topic)
        except TopicNotFound:
            return None
        self._addresses |= broker_addresses(route)
        return _Routes(route, self._at())

    async def _ask_topic(self, topic: str) -> TopicConfig | None:
        routes = await in_task(self._routes.get(topic))
        if routes is None:
            return None
        return await self._first(routes.brokers, RequestCode.GET_TOPIC_CONFIG, {"topic": topic}, TopicConfig)

    async def _ask_group(self, group: str) -> SubscriptionGroupConfig | None:
        code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
        return await self._first(await self._in_cluster(), code, {"group": group}, SubscriptionGroupConfig)

    async def _in_cluster(self) -> list[str]:
        return self._names_in(await in_task(self._all.get(ALL)))

    def _names_in(self, info: ClusterInfo | None) -> list[str]:
        assert info is not None, "there is always a table, it may be empty"
        return info.cluster_addr_table.get(self._config.rocketmq_cluster_name) or list(info.broker_addr_table)

    async def _first(
        self, brokers: Sequence[str], code: RequestCode, fields: Mapping[str, str], kind: type[T]
    ) -> T | None:
        """Ask brokers in any order until one has a configuration; None if all that can be reached have none.

        ConnectionError if none can be reached.
        """
        try:
            return read_body(await self._asked(brokers, code, fields), kind, "configuration")
        except NotFound:
            return None

    async def _ask_any(self, code: RequestCode, fields: Mapping[str, str]) -> AnyCommand:
        """Ask a broker of the cluster."""
        return await self._asked(await self._in_cluster(), code, fields)

    async def _asked(self, brokers: Sequence[str], code: RequestCode, fields: Mapping[str, str]) -> AnyCommand:
        """Ask brokers in any order until one answers with success. Otherwise raise the last failure: NotFound only if
        no broker has failed.
        """
        failure: Exception | None = None
        missing: Exception = ConnectionError("the cluster has no broker")
        for name in self._chance.sample(list(brokers), min(len(brokers), BROKERS_ASKED_MAX)):
            try:
                address = await self.find(name)
                return await self.client.call(address, code, fields, timeout_seconds=ASK_SECONDS_MAX)
            except NotFound as error:
                missing = error
            except (OSError, ProxyError) as error:
                failure = error
        raise failure or missing
