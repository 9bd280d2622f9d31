"""Routes in use by a client, and the addresses of the brokers in them.

The first use of a route asks a name server; later, every 30 s, a task refreshes all routes in use. Listeners hear of
changes. Concurrent callers that need the same route share one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from firearrow.client.routing.queues import broker_addresses
from firearrow.errors import FirearrowError, TopicNotFound
from firearrow.logs import Log
from firearrow.net.tasks import Tasks
from firearrow.wire.bodies import Route

log: Final = Log(__name__)

RouteListener = Callable[[str, Route], None]

REFRESHED_AT_ONCE_MAX: Final = 32  # requests for routes in flight


class RouteCache:
    """Routes by topic; ``ask`` gets one from a name server, in one of the tasks."""

    def __init__(self, ask: Callable[[str], Awaitable[Route]], tasks: Tasks) -> None:
        self._ask = ask
        self._tasks = tasks
        self._routes: dict[str, Route] = {}
        self._wanted: set[str] = set()
        self._asking: dict[str, asyncio.Future[Route]] = {}
        self._addresses: dict[str, dict[int, str]] = {}
        self._listeners: list[RouteListener] = []

    @property
    def topics(self) -> list[str]:
        """Topics in use."""
        return sorted({*self._routes, *self._wanted})

    @property
    def brokers(self) -> dict[str, dict[int, str]]:
        """Addresses of each broker name, by broker id."""
        return self._addresses

    def known(self, topic: str) -> Route | None:
        """Route of a topic in use; None without one."""
        return self._routes.get(topic)

    def listen(self, listener: RouteListener) -> Callable[[], None]:
        """Call a listener with each new or changed route; the returned function ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def route(self, topic: str) -> Route:
        """Route of a topic, which is in use from now on; raises as ``refresh``."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> Route:
        """Ask for a route now. Raises TopicNotFound if the topic has none, ConnectionError if no name server answers. A
        known route stays known."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = asyncio.get_running_loop().create_future()
            asking.add_done_callback(asyncio.Future.exception)  # all waiting callers may be cancelled
            self._tasks.start(self._ask_and_take(topic, asking), f"route of {topic}")
            self._asking[topic] = asking
        return await asyncio.shield(asking)

    async def _ask_and_take(self, topic: str, asking: asyncio.Future[Route]) -> None:
        """Ask for all waiting callers, even if some of them are cancelled."""
        try:
            route = await self._ask(topic)
            self._take(topic, route)
            asking.set_result(route)
        except (OSError, FirearrowError) as error:
            asking.set_exception(error)
        finally:
            del self._asking[topic]
            if not asking.done():
                asking.set_exception(ConnectionError("the session was closed"))

    def want(self, topic: str) -> None:
        """Count a topic as in use although it has no route yet."""
        self._wanted.add(topic)

    def forget(self, topic: str) -> None:
        """Count a topic as no longer in use."""
        self._wanted.discard(topic)
        self._routes.pop(topic, None)

    async def refresh_all(self) -> None:
        """Ask for all routes in use. After a failure, which is logged, the route stays as it was."""
        topics = self.topics
        for first in range(0, len(topics), REFRESHED_AT_ONCE_MAX):
            some = topics[first : first + REFRESHED_AT_ONCE_MAX]
            await asyncio.gather(*map(self._refresh_if_possible, some))
        self._drop_unnamed_brokers()

    async def _refresh_if_possible(self, topic: str) -> None:
        try:
            await self.refresh(topic)
        except TopicNotFound:
            log.info("topic has no route any more", extra={"topic": topic})
        except (OSError, FirearrowError) as error:
            log.warning("route can't be refreshed", extra={"topic": topic, "error": error})

    def _take(self, topic: str, route: Route) -> None:
        self._addresses |= broker_addresses(route)
        before = self._routes.get(topic)
        self._routes[topic] = route
        if before is None or (before != route and _in_order(before) != _in_order(route)):
            for listener in tuple(self._listeners):
                listener(topic, route)

    def _drop_unnamed_brokers(self) -> None:
        named: dict[str, dict[int, str]] = {}
        for route in self._routes.values():
            named |= broker_addresses(route)
        self._addresses = named


def _in_order(route: Route) -> Route:
    """Route with its parts in a fixed order."""
    return msgspec.structs.replace(
        route,
        queue_datas=sorted(route.queue_datas, key=lambda it: it.broker_name),
        broker_datas=sorted(route.broker_datas, key=lambda it: it.broker_name),
    )
