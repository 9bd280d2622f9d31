"""Routes of topics for clients, and the share of a consumer: `QueryRoute`, `QueryAssignment`.

Every consumer gets each broker: brokers divide the messages by pops, and there is no balance between clients.

Source: RocketMQ's ``RouteActivity``, ``TopicRouteHelper``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from firearrow.auth.model import Action
from firearrow.proxy.access import Users
from firearrow.proxy.brokers import Brokers, QueueGroup
from firearrow.proxy.calls import Context
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messages import (
    Address,
    AddressScheme,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    Permission,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
)
from firearrow.proxy.messagetypes import accepted_types
from firearrow.proxy.settings import LITE_BIND_TOPIC
from firearrow.proxy.statuses import ProxyError, status
from firearrow.proxy.validation import check_group, check_topic
from firearrow.wire.bodies import PERM_READ, PERM_WRITE, TopicConfig

TYPE: Final = "message.type"
ANY_QUEUE: Final = -1


def topic_type(topic: TopicConfig | None) -> str:
    """Return the type of a topic's messages, by its name in RocketMQ; UNSPECIFIED for an unknown topic."""
    return "UNSPECIFIED" if topic is None else topic.attributes.get(TYPE, "NORMAL")


class Routes:
    """Handlers of `QueryRoute` and `QueryAssignment`."""

    def __init__(self, brokers: Brokers, users: Users, config: ProxyConfig) -> None:
        self._brokers = brokers
        self._users = users
        self._config = config

    async def route(self, context: Context, request: QueryRouteRequest) -> QueryRouteResponse:
        """Return the queues of a topic at all brokers."""
        check_topic(request.topic.name)
        name = request.topic.name
        self._users.check_topic(context.user, context.address, name, Action.PUB, Action.SUB)
        groups = (await self._brokers.route(name)).groups
        types = accepted_types(topic_type(await self._brokers.topic(name)))
        answer = QueryRouteResponse(status=status(Code.OK))
        for group in groups:
            for broker in self._brokers_of(group, request.endpoints):
                for number, permission in enumerate(_permissions(group)):
                    answer.message_queues.add(
                        topic=request.topic, id=number, permission=permission, broker=broker, accept_message_types=types
                    )
        return answer

    async def assignment(self, context: Context, request: QueryAssignmentRequest) -> QueryAssignmentResponse:
        """Return the queues that a consumer receives from: all."""
        check_topic(request.topic.name)
        check_group(request.group.name)
        self._users.check_group(context.user, context.address, request.group.name)
        self._users.check_topic(context.user, context.address, request.topic.name, Action.SUB)
        route = await self._brokers.route(request.topic.name)
        groups = [group for group in route.groups if group.perm & PERM_READ and group.read_queues]
        config = await self._brokers.group(request.group.name)
        in_order = config is not None and config.consume_message_orderly and LITE_BIND_TOPIC not in config.attributes
        answer = QueryAssignmentResponse()
        for group in groups:
            broker = self._brokers_of(group, request.endpoints)[0]
            numbers = range(group.read_queues) if in_order else (ANY_QUEUE,)
            permission = Permission.READ_WRITE if group.perm & PERM_WRITE else Permission.READ
            for number in numbers:
                queue = MessageQueue(topic=request.topic, id=number, permission=permission, broker=broker)
                answer.assignments.add(message_queue=queue)
        if not answer.assignments:
            raise ProxyError(Code.FORBIDDEN, "no readable queue")
        answer.status.CopyFrom(status(Code.OK))
        return answer

    def _brokers_of(self, group: QueueGroup, asked: Endpoints) -> list[Broker]:
        """Brokers of a name with the addresses of their proxies, the master first."""
        return [
            Broker(name=group.broker, id=number, endpoints=self._endpoints(at, asked))
            for number, at in sorted(group.addresses.items())
        ]

    def _endpoints(self, at: tuple[str, int], asked: Endpoints) -> Endpoints:
        """Address of a broker's proxy: the one that a client uses already, if it leads there.

        A client behind a mapped port, such as Docker's, reaches no other. Java: in cluster mode the port becomes
        ``grpcServerPort`` unless ``useEndpointPortFromRequest`` is on.
        """
        config = self._config
        if not asked.addresses or not (self._brokers.keeps_endpoints or config.use_endpoint_port_from_request):
            return Endpoints(scheme=scheme_of(at[0]), addresses=[Address(host=at[0], port=at[1])])
        if not config.route_port:
            return asked
        addresses = [Address(host=address.host, port=config.route_port) for address in asked.addresses]
        return Endpoints(scheme=asked.scheme, addresses=addresses)


def scheme_of(host: str) -> AddressScheme:
    """Return the kind of an address."""
    try:
        return AddressScheme.IPv6 if ipaddress.ip_address(host).version == 6 else AddressScheme.IPv4
    except ValueError:
        return AddressScheme.DOMAIN_NAME


def _permissions(group: QueueGroup) -> Iterator[Permission]:
    """Permission of each queue: queues that can only be read first, then those that can only be written."""
    reads = group.read_queues if group.perm & PERM_READ else 0
    writes = group.write_queues if group.perm & PERM_WRITE else 0
    both = min(reads, writes)
    if not group.perm & (PERM_READ | PERM_WRITE):
        yield from [Permission.NONE] * max(1, group.read_queues, group.write_queues)
    yield from [Permission.READ] * (reads - both)
    yield from [Permission.WRITE] * (writes - both)
    yield from [Permission.READ_WRITE] * both
