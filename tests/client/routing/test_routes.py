"""Routes on demand, from any name server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from firearrow.client.queues import Queue
from firearrow.client.routing.nameservers import NameServers
from firearrow.client.routing.routes import ROUTE_SECONDS_MAX, Routes
from firearrow.errors import BrokerError, ConfigError, RemoteProtocolError, TopicNotFound
from firearrow.net.client import Client
from firearrow.net.server import Answer, Handler, Peer
from firearrow.wire import fastjson
from firearrow.wire.bodies import BrokerData, ClusterInfo, QueueData, Route, TopicList
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from tests.broker.fakes import HandClock
from tests.net.background import answering, in_thread

ROUTE = Route(
    queue_datas=[QueueData("b", 4, 4, 6)], broker_datas=[BrokerData("C", "b", {0: "127.0.0.1:1", 1: "127.0.0.1:2"})]
)
STATIC = (
    b'{"brokerDatas":[],"queueDatas":[],"topicQueueMappingByBroker":{"b":{"topic":"static",'
    b'"scope":"__global__","totalQueues":1,"bname":"b","epoch":1,"currIdMap":{"0":0}}}}'
)


class NameServer:
    """Knows topic T, unless it has just been started."""

    def __init__(self, *, ready: bool = True) -> None:
        self.ready = ready
        self.asked = 0

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.brokers,
        }

    def route(self, peer: Peer, request: AnyCommand) -> Answer:
        self.asked += 1
        if not self.ready:
            raise BrokerError(1, "not ready")
        if request.ext["topic"] == "rot":
            return Response(body=b"{")
        if request.ext["topic"] == "static":
            return Response(body=STATIC)
        if request.ext["topic"] != "T":
            raise BrokerError(17, "No topic route info in name server for the topic")
        return Response(body=fastjson.dumps(ROUTE))

    def topics(self, peer: Peer, request: AnyCommand) -> Answer:
        return Response(body=fastjson.dumps(TopicList(["b", "a"])))

    def brokers(self, peer: Peer, request: AnyCommand) -> Answer:
        slave = BrokerData("C", "s", {1: "127.0.0.1:3"})
        table = {"s": slave, "b": ROUTE.broker_datas[0]}
        return Response(body=fastjson.dumps(ClusterInfo(table, {"C": ["b", "s"]})))


Use = Callable[[NameServers], Awaitable[None]]


def using(addresses: list[str], use: Use) -> None:
    """Use name servers in the order given."""

    async def main() -> None:
        client = Client()
        try:
            await use(NameServers(client, addresses))
        finally:
            await client.close()

    asyncio.run(main())


def test_routes_and_topics() -> None:
    async def use(servers: NameServers) -> None:
        assert await servers.route("T") == ROUTE
        assert await servers.topics() == ["a", "b"]
        assert await servers.masters() == {"b": "127.0.0.1:1"}
        [address] = servers.addresses
        with pytest.raises(TopicNotFound, match=f"from {address}: topic 'U' has no route"):
            await servers.route("U")
        with pytest.raises(RemoteProtocolError, match="sent no route: "):
            await servers.route("rot")

    with in_thread(lambda: answering(NameServer().handlers())) as address:
        using([address], use)


def test_one_that_is_away_and_one_that_is_not_ready_are_passed_over() -> None:
    async def use(servers: NameServers) -> None:
        assert await servers.route("T") == ROUTE
        assert await servers.route("T") == ROUTE

    new, good = NameServer(ready=False), NameServer()
    with in_thread(lambda: answering({})) as gone:
        pass
    with in_thread(lambda: answering(new.handlers())) as first, in_thread(lambda: answering(good.handlers())) as second:
        using([gone, first, second], use)
        assert (new.asked, good.asked) == (1, 2)


def test_none_answers() -> None:
    async def use(servers: NameServers) -> None:
        with pytest.raises(ConnectionError, match=f"^no name server answers: {gone} can't .*; "):
            await servers.route("T")

    with in_thread(lambda: answering({})) as gone:
        pass
    with in_thread(lambda: answering(NameServer(ready=False).handlers())) as new:
        using([gone, new], use)


def test_routes_are_believed_for_a_while() -> None:
    clock, server = HandClock(), NameServer()
    queue = Queue("T", "b", 0)

    async def use(servers: NameServers) -> None:
        routes = Routes(servers, clock)
        routes.assume("b", "127.0.0.1:9")
        assert await routes.address_of(queue) == "127.0.0.1:9"
        assert server.asked == 0
        assert await routes.route("T") == ROUTE
        assert await routes.address_of(queue) == routes.address("b") == "127.0.0.1:1"
        clock.seconds += ROUTE_SECONDS_MAX - 1
        await routes.route("T")
        assert server.asked == 1
        clock.seconds += 1
        await routes.route("T")
        assert server.asked == 2
        routes.forget()
        await routes.route("T")
        assert server.asked == 3
        assert await routes.address_of(queue, refresh=True) == "127.0.0.1:1"
        assert server.asked == 4

    with in_thread(lambda: answering(server.handlers())) as address:
        using([address], use)


def test_what_can_not_be_reached() -> None:
    async def use(servers: NameServers) -> None:
        routes = Routes(servers, HandClock())
        gone = "no name server knows where broker 'c' "
        with pytest.raises(ConnectionError, match=f"^{gone}is$"):
            routes.address("c")
        with pytest.raises(ConnectionError, match=f"^{gone}of topic 'T' is$"):
            await routes.address_of(Queue("T", "c", 0))
        with pytest.raises(ConfigError, match="topic 'static' is a static topic"):
            await routes.route("static")

    with in_thread(lambda: answering(NameServer().handlers())) as address:
        using([address], use)
