"""Routes: one request for all callers, whichever of them is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from firearrow.client.routing.cache import RouteCache
from firearrow.errors import TopicNotFound
from firearrow.net.tasks import Tasks
from firearrow.testing import loop
from firearrow.wire.bodies import BrokerData, QueueData, Route


class NameServer:
    """Answers after a second."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.routes: dict[str, Route] = {}

    async def ask(self, topic: str) -> Route:
        self.asked.append(topic)
        await asyncio.sleep(1)
        if topic not in self.routes:
            raise TopicNotFound(17, f"topic {topic!r} has no route")
        return self.routes[topic]


def route(*brokers: str) -> Route:
    return Route(
        [QueueData(broker, 4, 4, 6) for broker in brokers],
        [BrokerData("C", broker, {0: f"{broker}:1"}) for broker in brokers],
    )


def run(main: Callable[[NameServer, RouteCache, Tasks], Coroutine[Any, Any, None]]) -> None:
    async def limited(_: object) -> None:
        server, tasks = NameServer(), Tasks()
        await main(server, RouteCache(server.ask, tasks), tasks)
        await tasks.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    loop.run(limited)


def test_those_who_ask_at_once_share_the_question() -> None:
    async def main(server: NameServer, routes: RouteCache, tasks: Tasks) -> None:
        server.routes["T"] = route("a")
        first = asyncio.create_task(routes.route("T"))
        others = [asyncio.create_task(routes.route("T")) for _ in range(5)]
        await asyncio.sleep(0.5)
        first.cancel()
        assert await asyncio.gather(*others) == [server.routes["T"]] * 5
        assert first.cancelled()
        assert server.asked == ["T"]
        assert routes.brokers == {"a": {0: "a:1"}}

    run(main)


def test_a_change_is_told_and_what_is_gone_stays_known() -> None:
    heard: list[tuple[str, int]] = []

    async def main(server: NameServer, routes: RouteCache, tasks: Tasks) -> None:
        end = routes.listen(lambda topic, told: heard.append((topic, len(told.queue_datas))))
        server.routes["T"] = route("a", "b")
        await routes.route("T")
        server.routes["T"] = route("b", "a")  # the same in another order
        await routes.refresh_all()
        server.routes["T"] = route("a")
        await routes.refresh_all()
        assert heard == [("T", 2), ("T", 1)]
        assert list(routes.brokers) == ["a"]
        del server.routes["T"]
        await routes.refresh_all()
        assert await routes.route("T") == route("a")
        end()
        server.routes["T"] = route("c")
        await routes.refresh_all()
        assert len(heard) == 2
        routes.forget("T")
        assert routes.topics == []

    run(main)


def test_a_topic_that_is_wanted_is_found_once_it_is_there() -> None:
    async def main(server: NameServer, routes: RouteCache, tasks: Tasks) -> None:
        with pytest.raises(TopicNotFound):
            await routes.route("T")
        routes.want("T")
        await routes.refresh_all()
        assert routes.known("T") is None
        server.routes["T"] = route("a")
        await routes.refresh_all()
        assert routes.known("T") == route("a")

    run(main)


def test_the_end_is_told_to_who_waits() -> None:
    async def main(server: NameServer, routes: RouteCache, tasks: Tasks) -> None:
        waiting = asyncio.create_task(routes.route("T"))
        await asyncio.sleep(0.5)
        await tasks.close()
        with pytest.raises(ConnectionError, match="the session was closed"):
            await waiting

    run(main)
