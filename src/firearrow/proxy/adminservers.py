"""Admin service about topics and about the proxy itself: status, routes, rates, the level of the log.

Source: ``admin.proto`` of rocketmq-apis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from firearrow import __version__, logs
from firearrow.auth.model import Action
from firearrow.client.session.answers import read_body
from firearrow.clock import Clock
from firearrow.proxy import messages as m
from firearrow.proxy.adminasking import Asking
from firearrow.proxy.brokers import TopicRoute
from firearrow.proxy.clients import Clients
from firearrow.proxy.config import ProxyConfig
from firearrow.proxy.messagetypes import accepted_types
from firearrow.proxy.meter import Rate
from firearrow.proxy.routes import topic_type
from firearrow.proxy.statuses import status
from firearrow.wire.bodies import BrokerData, QueueData, Route, TopicConfig
from firearrow.wire.codes import RequestCode
from firearrow.wire.headers import TopicHeader

REMOTING: Final = "remoting"
_LEVELS: Final = {
    m.ChangeLogLevelRequest.Level.TRACE: "DEBUG",
    m.ChangeLogLevelRequest.Level.DEBUG: "DEBUG",
    m.ChangeLogLevelRequest.Level.INFO: "INFO",
    m.ChangeLogLevelRequest.Level.WARN: "WARNING",
    m.ChangeLogLevelRequest.Level.ERROR: "ERROR",
}


class Activity(NamedTuple):
    """Activity of a proxy."""

    clients: Clients
    sent: Rate
    received: Rate
    connections: Callable[[], int]


class ServerAdmin:
    """Handlers of the calls about topics and the proxy."""

    def __init__(self, activity: Activity, config: ProxyConfig, clock: Clock) -> None:
        self._activity = activity
        self._config = config
        self._clock = clock

    async def topic_status(
        self, asking: Asking, request: m.DescribeTopicStatusRequest
    ) -> m.DescribeTopicStatusResponse:
        """Return the type and the attributes of a topic. Brokers keep no description, and no time of its creation."""
        name = request.topic.name
        brokers = await asking.brokers_of(name)
        answer = await asking.answer(brokers[0], RequestCode.GET_TOPIC_CONFIG, TopicHeader(name))
        assert answer is not None, "no code is an absence"
        config = read_body(answer, TopicConfig, "topic")
        types = accepted_types(topic_type(config))
        kind = types[0] if len(types) == 1 else m.MessageType.MESSAGE_TYPE_UNSPECIFIED
        return m.DescribeTopicStatusResponse(status=status(m.Code.OK), topic_message_type=kind, tags=config.attributes)

    async def route(self, asking: Asking, request: m.GetTopicRouteRequest) -> m.GetTopicRouteResponse:
        """Return the route of a topic as JSON, with the addresses of the brokers, or of their proxies."""
        name = request.topic.name
        await asking.brokers_of(name)  # the checks
        if request.protocol_type.lower() == REMOTING:
            route = await asking.brokers.remoting_route(name)
        else:
            route = _json_of(await asking.brokers.route(name), self._config.rocketmq_cluster_name)
        return m.GetTopicRouteResponse(status=status(m.Code.OK), topic_route_data=msgspec.json.encode(route).decode())

    async def stats(self, asking: Asking, _: m.GetProxyRuntimeStatsRequest) -> m.GetProxyRuntimeStatsResponse:
        """Return the rates of messages, and the counts of connections and clients."""
        context, activity = asking.context, self._activity
        asking.users.check_cluster(context.user, context.address, Action.GET)
        now_ms = self._clock.now_ms()
        consumers = [client.is_consumer for client in activity.clients.all()]
        return m.GetProxyRuntimeStatsResponse(
            status=status(m.Code.OK),
            proxy_name=self._config.proxy_name,
            version=__version__,
            in_tps=activity.sent.per_second(now_ms),
            out_tps=activity.received.per_second(now_ms),
            connections=activity.connections(),
            producers=consumers.count(False),
            consumers=consumers.count(True),
        )

    async def log_level(self, asking: Asking, request: m.ChangeLogLevelRequest) -> m.ChangeLogLevelResponse:
        """Set the lowest level of the log, until the process ends."""
        context = asking.context
        asking.users.check_cluster(context.user, context.address, Action.UPDATE)
        level = _LEVELS.get(request.level)  # type: ignore[call-overload]
        if level is None:
            return m.ChangeLogLevelResponse(remark=f"level {request.level} is not known")
        logs.set_level(level)
        return m.ChangeLogLevelResponse(remark=f"the log level is {level}")


def _json_of(route: TopicRoute, cluster: str) -> Route:
    """Return a route in RocketMQ's form."""
    queues = [QueueData(it.broker, it.read_queues, it.write_queues, it.perm) for it in route.groups]
    brokers = [
        BrokerData(cluster, it.broker, {number: _address(*at) for number, at in it.addresses.items()})
        for it in route.groups
    ]
    return Route(queues, brokers)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
