"""The routes that a client uses, and where the brokers in them are.

A route is asked for when it is first needed, and again every 30 s as long as it is in use; who
wants to know of a change listens. Several that ask for the same route at once share the question.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from firearrow.client.routing.queues import broker_addresses
from firearrow.errors import FirearrowError, TopicNotFound
from firearrow.net.tasks import Tasks
from firearrow.wire.bodies import Route

log = logging.getLogger(__name__)

RouteListener = Callable[[str, Route], None]

REFRESHED_AT_ONCE_MAX: Final = 32  # questions about routes under way


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
        """The topics in use."""
        return sorted({*self._routes, *self._wanted})

    @property
    def brokers(self) -> dict[str, dict[int, str]]:
        """The addresses of each broker name, by broker id."""
        return self._addresses

    def known(self, topic: str) -> Route | None:
        """The route of a topic in use."""
        return self._routes.get(topic)

    def listen(self, listener: RouteListener) -> Callable[[], None]:
        """Have a listener hear of each route that is new or has changed; call what is given to
        end that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def route(self, topic: str) -> Route:
        """The route of a topic, which is in use from now on; raises as ``refresh``."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> Route:
        """Ask for a route now. TopicNotFound if the topic has none, ConnectionError if no name
        server answers; a route that was known stays so."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = asyncio.get_running_loop().create_future()
            asking.add_done_callback(asyncio.Future.exception)  # all who wait may have given up
            self._tasks.start(self._ask_and_take(topic, asking), f"route of {topic}")
            self._asking[topic] = asking
        return await asyncio.shield(asking)

    async def _ask_and_take(self, topic: str, asking: asyncio.Future[Route]) -> None:
        """Ask for all who wait, whoever of them gives up."""
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
        """Take a topic to be in use although it has no route yet."""
        self._wanted.add(topic)

    def forget(self, topic: str) -> None:
        """Take a topic to be in use no more."""
        self._wanted.discard(topic)
        self._routes.pop(topic, None)

    async def refresh_all(self) -> None:
        """Ask for all routes in use; what can't be had now is logged and stays as it was."""
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
    """A route without what its order may be by chance."""
    return msgspec.structs.replace(
        route,
        queue_datas=sorted(route.queue_datas, key=lambda it: it.broker_name),
        broker_datas=sorted(route.broker_datas, key=lambda it: it.broker_name),
    )
