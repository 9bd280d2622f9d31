"""Routes and broker addresses for readers of queues, requested on demand.

A route is valid for 30 s, as in RocketMQ's clients; no task refreshes it. A broker without a master is read from its
slave. The address of a broker may be known before any route.
"""

from __future__ import annotations

from typing import Final

from firearrow.client.queues import Queue
from firearrow.client.routing.nameservers import NameServers
from firearrow.clock import Clock
from firearrow.errors import ConfigError
from firearrow.wire.bodies import Route

ROUTE_SECONDS_MAX: Final = 30.0  # as in RocketMQ's clients


class Routes:
    """Latest routes, and the addresses of the brokers in them."""

    def __init__(self, name_servers: NameServers, clock: Clock) -> None:
        self._name_servers = name_servers
        self._clock = clock
        self._routes: dict[str, tuple[Route, float]] = {}  # with its expiry
        self._addresses: dict[str, str] = {}

    async def route(self, topic: str) -> Route:
        """Route of a topic; raises as ``NameServers.route``, and ConfigError if the topic is static."""
        known = self._routes.get(topic)
        if known is not None and known[1] > self._clock.monotonic():
            return known[0]
        route = await self._name_servers.route(topic)
        if route.topic_queue_mapping_by_broker:
            raise ConfigError(f"topic {topic!r} is a static topic, whose queues can't be read")
        for broker in route.broker_datas:
            self._addresses[broker.broker_name] = broker.address
        self._routes[topic] = route, self._clock.monotonic() + ROUTE_SECONDS_MAX
        return route

    def forget(self) -> None:
        """Ask for routes again, since they may be out of date."""
        self._routes.clear()

    def assume(self, broker: str, address: str) -> None:
        """Use an address for a broker unless a route has named one."""
        self._addresses.setdefault(broker, address)

    def address(self, broker: str) -> str:
        """Address of a broker from a route or from ``assume``."""
        try:
            return self._addresses[broker]
        except KeyError:
            raise ConnectionError(f"no name server knows where broker {broker!r} is") from None

    async def address_of(self, queue: Queue, *, refresh: bool = False) -> str:
        """Address of a queue's broker; ``refresh`` if the last one did not answer."""
        if refresh or queue.broker not in self._addresses:
            self._addresses.pop(queue.broker, None)
            self._routes.pop(queue.topic, None)
            await self.route(queue.topic)
        try:
            return self._addresses[queue.broker]
        except KeyError:
            raise ConnectionError(
                f"no name server knows where broker {queue.broker!r} of topic {queue.topic!r} is"
            ) from None
