"""Local mode: the proxy is in the broker's process, and sends requests by a connection without a socket.

The broker sees each client of the proxy as a peer with the client's address, as if it spoke remoting: so its tables of
producers and consumers, its limits and its access control hold without a second implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Final

from firearrow.broker.access.control import AccessControl, Senders
from firearrow.broker.admission import Check
from firearrow.broker.core import Broker
from firearrow.clock import Clock
from firearrow.errors import BrokerError
from firearrow.net.address import host_and_port
from firearrow.net.grpc import Call, drain
from firearrow.net.loopback import Loopback
from firearrow.net.proxyheaders import networks_of
from firearrow.net.replies import Reply
from firearrow.net.server import Peer
from firearrow.net.tls import Door
from firearrow.proxy.access import Anyone, Exempt, Signed, Users, WhiteLists, claimed_user, white_lists
from firearrow.proxy.brokers import Asked, KnownQueues, Link, QueueAt, QueueGroup, TopicRoute
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import Code
from firearrow.proxy.meter import CallMeter
from firearrow.proxy.metrics import Sources, part_of
from firearrow.proxy.routes import topic_type
from firearrow.proxy.service import Service, limits_of
from firearrow.proxy.statuses import ProxyError
from firearrow.wire.bodies import PERM_READ, PERM_WRITE, BrokerData, QueueData, Route, TopicConfig
from firearrow.wire.client_bodies import Heartbeat, SubscriptionGroupConfig
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response, request, with_text
from firearrow.wire.frame import AnyCommand, encode_json
from firearrow.wire.requests import REQUESTS

HEARTBEAT: Final = RequestCode.HEART_BEAT
TOPICS_MAX: Final = 10_000  # whose queues are kept; more are looked up again
_UNKNOWN: Final = None, None


class LocalLink:
    """Link to the broker of this process."""

    __slots__ = ("_asked", "_broker_name", "_loopback", "_rights", "_user")

    def __init__(
        self, broker: Broker, rights: Rights, address: str, asked: Callable[[Asked], None], lost: Callable[[], None]
    ) -> None:
        self._broker_name = broker.config.broker_name
        self._rights = rights
        self._asked = asked
        self._loopback = Loopback(broker.server, host_and_port(address), self._take, lost)
        self._user: str | None = None

    def prove(self, user: str | None) -> None:
        """Send the following requests for a user."""
        self._user = user

    def for_call(self, user: str | None) -> LocalLink:
        """Return the link for one call of a user; any other user than the first call's gets a separate link.

        A call may wait before it makes its next request. Meanwhile calls of others begin, or calls without the need of
        a permission.
        """
        if isinstance(user, Exempt) or self._user not in {None, user}:
            link = copy(self)
            link.prove(user)
            return link
        self.prove(user)
        return self

    def call(self, broker: str, request: AnyCommand, timeout_ms: float) -> Reply[AnyCommand]:
        """Send a request. Its broker answers in time: it is this process."""
        try:
            if broker != self._broker_name:
                raise ProxyError(Code.BAD_REQUEST, f"broker {broker} is not the broker of this proxy")
            self._loopback.peer.user = self._user
            self._rights.check(self._loopback.peer, request)
        except ProxyError as error:
            reply: Reply[AnyCommand] = Reply()
            reply.set_exception(error)
            return reply
        return self._loopback.call(request)

    def tell(self, broker: str, request: AnyCommand) -> None:
        """Send a one-way request."""
        if broker == self._broker_name:
            self._loopback.peer.user = self._user
            self._loopback.tell(request)

    def end_wait(self, request: AnyCommand) -> None:
        """Let a request that waits for messages be answered now, without any."""
        self._loopback.end_wait(request)

    def pause(self) -> None:
        """Note that the client does not read."""
        self._loopback.pause()

    def resume(self) -> None:
        """Note that the client reads again."""
        self._loopback.resume()

    def close(self) -> None:
        """Close; the broker forgets the client."""
        self._loopback.close()

    def _take(self, command: AnyCommand) -> None:
        def answer(response: Response) -> None:
            self._loopback.answer(command, response)

        try:
            self._asked(Asked(command, self._broker_name, answer))
        except BrokerError as error:
            answer(Response(error.code, error.remark))


class Rights:
    """Access control of the broker, asked before it handles a request: a client learns that it lacks a right by another
    code than from other refusals.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._senders: Senders | None = None  # whose checks these are: a change of the role makes new ones
        self._checks: dict[tuple[int, bool], Check | None] = {}  # by code, and whether the call needs no permission

    def check(self, peer: Peer, request: AnyCommand) -> None:
        """Raise ProxyError unless the peer's user may send a request; the broker does not check it again."""
        senders = self._broker.access.senders
        if not isinstance(senders, AccessControl):
            return
        if senders is not self._senders:
            self._senders, self._checks = senders, {}
        code, is_exempt = request.code, isinstance(peer.user, Exempt)
        key = code, is_exempt
        if key not in self._checks:
            self._checks[key] = senders.condition(REQUESTS[RequestCode(code)], is_exempt=is_exempt)
        check = self._checks[key]
        if check is not None:
            try:
                check(peer, with_text(request))  # it reads fields, and makes them a typed header again
            except BrokerError as error:
                raise ProxyError(Code.UNAUTHORIZED, error.remark) from None

    def users(self) -> Users:
        """Return the check of the signatures of calls."""
        if not self._broker.config.authentication_enabled:
            return Anyone()
        config = self._broker.config
        lists = config.authentication_whitelist, config.authorization_whitelist
        lists_of_names = white_lists(*lists, asks_rights=config.authorization_enabled)
        return LocalSigned(self._control, config.broker_cluster_name, lists_of_names)

    def _control(self) -> AccessControl:
        senders = self._broker.access.senders
        assert isinstance(senders, AccessControl), "authentication is on"
        return senders


class LocalSigned(Signed):
    """Check of signatures, which writes refusals to the broker's audit log."""

    def __init__(self, control: Callable[[], AccessControl], cluster: str, lists: WhiteLists) -> None:
        super().__init__(control, cluster, lists)
        self._access = control

    def user_of(self, call: Call) -> str | None:
        """Return the user that has signed a call; ProxyError if none has."""
        try:
            return super().user_of(call)
        except ProxyError as error:
            ip = host_and_port(call.peer.address)[0]
            self._access().audit.refused(claimed_user(call), ip, call.method.name, 0, error.message)
            raise


class LocalBrokers:
    """The broker of this process, whose clients reach its proxy at ``host:port()``."""

    keeps_endpoints = False
    register_seconds: Final = 55.0  # a minute of heartbeats; the proxy itself ends silent clients

    def __init__(self, broker: Broker, rights: Rights, host: str, port: Callable[[], int]) -> None:
        self._broker = broker
        self._rights = rights
        self._host = host
        self._port = port
        self._written: dict[str, tuple[TopicConfig, KnownQueues]] = {}

    def link(self, address: str, asked: Callable[[Asked], None], lost: Callable[[], None]) -> LocalLink:
        """Open a link for the client at an address."""
        return LocalLink(self._broker, self._rights, address, asked, lost)

    async def beat(self, link: Link, heartbeat: Heartbeat, topics: Sequence[str], language: str) -> None:
        """Register a client; BrokerError if it is refused."""
        command = request(HEARTBEAT, body=encode_json(heartbeat))
        command.language = language
        answer = await link.call(self._broker.config.broker_name, command, 0)
        if answer.code:
            raise BrokerError.of(answer.code, answer.remark)

    async def route(self, topic: str) -> TopicRoute:
        """Return the queues of a topic at this broker; ProxyError if it does not have it."""
        config = self._config(topic)
        broker = self._broker.config
        addresses = {broker.broker_id: (self._host, self._port())}
        name = broker.broker_name
        queues = QueueGroup(name, config.read_queue_nums, config.write_queue_nums, config.perm, addresses)
        return TopicRoute([queues])

    async def names(self) -> Sequence[str]:
        """Return the name of this broker."""
        return [self._broker.config.broker_name]

    async def remoting_route(self, topic: str) -> Route:
        """Return the route of a topic by this broker's own port."""
        config = self._config(topic)
        broker = self._broker.config
        name = broker.broker_name
        queues = QueueData(name, config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag)
        address = {broker.broker_id: self._broker.address}
        return Route([queues], [BrokerData(broker.broker_cluster_name, name, address)])

    async def write_queues(self, topic: str) -> Sequence[QueueAt]:
        """Return the queues of a topic that can be written."""
        config = self._config(topic)
        known = self.known_queues(topic)
        if known is None:
            count = config.write_queue_nums if config.perm & PERM_WRITE else 0
            name = self._broker.config.broker_name
            if len(self._written) >= TOPICS_MAX:
                self._written.clear()
            known = KnownQueues(topic_type(config), [(name, number) for number in range(count)])
            self._written[topic] = config, known
        return known.queues

    def known_queues(self, topic: str) -> KnownQueues | None:
        """Return what `write_queues` has returned for a topic before; None if the topic has changed since."""
        config, known = self._written.get(topic, _UNKNOWN)
        return known if config is self._broker.topics.get(topic) else None

    async def readable(self, topic: str) -> Sequence[str]:
        """Return the broker, if the topic can be read."""
        config = self._config(topic)
        is_readable = config.perm & PERM_READ and config.read_queue_nums
        return [self._broker.config.broker_name] if is_readable else []

    def _config(self, topic: str) -> TopicConfig:
        config = self._broker.topics.get(topic)
        if config is None:
            raise ProxyError(Code.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {topic}")
        return config

    async def topic(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic."""
        return self._broker.topics.get(topic)

    async def group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the configuration of a group, which may be created by that."""
        return self._broker.groups.find(group)


class LocalProxy:
    """Proxy in the process of a broker, at a port of the broker's server; ``start`` once, after the broker's."""

    def __init__(self, broker: Broker, config: ProxyConfig, clock: Clock) -> None:
        self._broker = broker
        self._config = config
        rights = Rights(broker)
        host = host_and_port(broker.address)[0]
        brokers = LocalBrokers(broker, rights, host, lambda: self.port)
        server = broker.server
        meter = None if server.meter is None else CallMeter(clock, server.departures)
        self.service: Final = Service(brokers, rights.users(), config, clock, meter, lambda: len(server.grpc_peers))
        if meter is not None:
            broker.other_metrics.append(part_of(Sources(self.service, meter, server, "local")))
        self.port: int = 0

    async def start(self, host: str) -> int:
        """Listen on the port of the configuration (0: a free one) and return it; CannotListen if that fails."""
        server, config = self._broker.server, self._config
        server.grpc_limits = limits_of(config)
        server.grpc_door = self._door()
        server.proxy_headers.trusted = networks_of(config.proxy_protocol_trusted_networks)
        server.grpc_everywhere = config.enable_remoting_local_proxy_grpc
        self.port = await server.serve_also(host, config.grpc_server_port, is_for_grpc=True)
        server.grpc_methods = self.service.methods()
        return self.port

    def _door(self) -> Door | None:
        """Make a door of the gRPC port with the proxy's certificate, unless the broker's own door will do.

        Clients of RocketMQ 5 encrypt by default, so a broker without a certificate has one for this run there.
        """
        broker, config = self._broker.config, self._config
        has_certificate = bool(broker.tls_server_cert_path or broker.tls_test_mode_enable)
        is_wanted = config.tls_server_cert_path or (config.tls_test_mode_enable and not has_certificate)
        if broker.tls_server_mode == "disabled" or not is_wanted:
            return None
        return Door(config, lambda: self._broker.server.loop, makes_late=True)

    async def stop(self) -> None:
        """Send clients away, let their pending calls end, and give back their messages.

        The broker's stop closes the connections.
        """
        server = self._broker.server
        server.retire_grpc()
        self.service.end_waits()
        await drain(server.grpc_peers, self._config.grpc_shutdown_time_seconds)
        self.service.stop()
