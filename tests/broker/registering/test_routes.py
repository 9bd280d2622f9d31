"""Routes of topics from name servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from firearrow.broker.registering import routes as module
from firearrow.broker.registering.routes import Queues, TopicRoutes
from firearrow.clock import SystemClock
from firearrow.errors import BrokerError
from firearrow.net.server import Answer, Peer, Server
from firearrow.wire import fastjson
from firearrow.wire.bodies import QueueData, Route
from firearrow.wire.client_bodies import MessageQueue
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from tests.broker.fakes import HandClock
from tests.broker.serving import until

HERE = QueueData("b", 1, 1, 6)
THERE = QueueData("a", 2, 8, 4)
CLOSED = QueueData("c", 2, 2, 2)
NOBODY = "127.0.0.1:1"


class Stub:
    """A name server that knows topic T; its answers wait while it is ``silent``."""

    def __init__(self) -> None:
        self.queues = [HERE, THERE, CLOSED]
        self.asked = 0
        self.silent = False
        self._waiting: list[tuple[Peer, AnyCommand]] = []
        self.server = Server({RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route}, SystemClock())

    def _route(self, peer: Peer, request: AnyCommand) -> Answer:
        self.asked += 1
        if self.silent:
            self._waiting.append((peer, request))
            return None
        return self._answer(request)

    def _answer(self, request: AnyCommand) -> Response:
        if request.ext["topic"] != "T":
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return Response(body=fastjson.dumps(Route(self.queues)))

    def speak(self) -> None:
        """Answer all waiting requests."""
        for peer, request in self._waiting:
            peer.reply(request, self._answer(request))


class Told:
    """Records queues, sooner or later."""

    def __init__(self, routes: TopicRoutes, topic: str) -> None:
        self._told: asyncio.Future[Queues | None] = asyncio.get_running_loop().create_future()
        routes.find(topic, self._told.set_result)

    @property
    def at_once(self) -> bool:
        return self._told.done()

    @property
    def found(self) -> Queues | None:
        return self._told.result()

    async def queues(self) -> list[tuple[str, int]] | None:
        async with asyncio.timeout(30):
            found = await self._told
        return None if found is None else [(one.broker_name, one.queue_id) for one in found]


@asynccontextmanager
async def asking(stub: Stub, clock: HandClock, *before: str) -> AsyncIterator[TopicRoutes]:
    port = await stub.server.start("127.0.0.1", 0)
    routes = TopicRoutes([*before, f"127.0.0.1:{port}"], lambda _: None, lambda: 30.0, clock)
    try:
        await routes.start()
        yield routes
        await routes.stop()
    finally:
        await stub.server.stop()


def test_all_readable_queues_of_all_brokers() -> None:
    async def main() -> None:
        async with asking(Stub(), HandClock()) as routes:
            assert await Told(routes, "T").queues() == [("a", 0), ("a", 1), ("b", 0)]
            assert await Told(routes, "unknown").queues() is None

    asyncio.run(main())


def test_what_is_known_is_told_at_once_and_asked_again_when_it_is_old() -> None:
    async def main() -> None:
        stub, clock = Stub(), HandClock()
        async with asking(stub, clock) as routes:
            await Told(routes, "T").queues()
            clock.seconds += 29
            assert Told(routes, "T").at_once
            assert stub.asked == 1
            stub.queues = [HERE]
            stub.silent = True
            clock.seconds += 2
            old = Told(routes, "T")
            assert old.at_once
            assert await old.queues() == [("a", 0), ("a", 1), ("b", 0)]
            await until(lambda: stub.asked == 2)
            stub.speak()
            await until(lambda: Told(routes, "T").found == (MessageQueue("T", "b", 0),))
            assert stub.asked == 2

    asyncio.run(main())


def test_one_question_for_all_who_ask_at_once() -> None:
    async def main() -> None:
        stub = Stub()
        async with asking(stub, HandClock()) as routes:
            told = [Told(routes, "T") for _ in range(5)]
            assert [await one.queues() for one in told] == [[("a", 0), ("a", 1), ("b", 0)]] * 5
            assert stub.asked == 1

    asyncio.run(main())


def test_a_name_server_that_is_away_is_passed_over() -> None:
    async def main() -> None:
        async with asking(Stub(), HandClock(), NOBODY) as routes:
            assert await Told(routes, "T").queues() == [("a", 0), ("a", 1), ("b", 0)]

    asyncio.run(main())


def test_nobody_knows_if_no_name_server_answers() -> None:
    async def main() -> None:
        routes = TopicRoutes([NOBODY], lambda _: None, lambda: 30.0, HandClock())
        assert await Told(routes, "T").queues() is None
        await routes.stop()

    asyncio.run(main())


def test_without_name_servers_there_is_this_broker() -> None:
    async def main() -> None:
        own = (MessageQueue("T", "b", 0),)
        routes = TopicRoutes([], {"T": own}.get, lambda: 30.0, HandClock())
        assert await Told(routes, "T").queues() == [("b", 0)]
        assert await Told(routes, "U").queues() is None

    asyncio.run(main())


def test_what_waits_and_what_is_known_has_limits() -> None:
    async def main() -> None:
        stub = Stub()
        stub.silent = True
        async with asking(stub, HandClock()) as routes:
            waiting = [Told(routes, f"U{number}") for number in range(module.ASKED_MAX)]
            assert await Told(routes, "T").queues() is None
            assert not any(one.at_once for one in waiting)

    asyncio.run(main())
