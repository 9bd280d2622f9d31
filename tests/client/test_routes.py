"""What name servers know, whichever of them answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firearrow.client.queues import Queue
from firearrow.client.routequeues import address_of
from firearrow.client.routes import ROUTE_SECONDS_MAX, Cluster, Routes, Target, writable
from firearrow.errors import BrokerError, ConfigError, RemoteProtocolError, TopicNotFound
from firearrow.net.blocking import BlockingClient
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


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    client = BlockingClient()
    yield client
    client.close()


def test_routes_and_topics(client: BlockingClient) -> None:
    with in_thread(lambda: answering(NameServer().handlers())) as address:
        cluster = Cluster(client, [address])
        assert cluster.route("T") == ROUTE
        assert cluster.topics() == ["a", "b"]
        assert cluster.masters() == {"b": "127.0.0.1:1"}
        with pytest.raises(TopicNotFound, match=f"from {address}: topic 'U' has no route"):
            cluster.route("U")
        with pytest.raises(RemoteProtocolError, match="sent no route: "):
            cluster.route("rot")


def test_one_that_is_away_and_one_that_is_not_ready_are_passed_over(client: BlockingClient) -> None:
    new, good = NameServer(ready=False), NameServer()
    with in_thread(lambda: answering({})) as gone:
        pass
    with in_thread(lambda: answering(new.handlers())) as first, in_thread(lambda: answering(good.handlers())) as second:
        cluster = Cluster(client, [gone, first, second])
        assert cluster.route("T") == ROUTE
        assert cluster.route("T") == ROUTE
        assert (new.asked, good.asked) == (1, 2)


def test_none_answers(client: BlockingClient) -> None:
    with in_thread(lambda: answering({})) as gone:
        pass
    with in_thread(lambda: answering(NameServer(ready=False).handlers())) as new:
        cluster = Cluster(client, [gone, new])
        with pytest.raises(ConnectionError, match=f"^no name server answers: {gone} can't .*; "):
            cluster.route("T")


def test_routes_are_believed_for_a_while(client: BlockingClient) -> None:
    clock, server = HandClock(), NameServer()
    queue = Queue("T", "b", 0)
    with in_thread(lambda: answering(server.handlers())) as address:
        routes = Routes(Cluster(client, [address]), clock)
        routes.assume("b", "127.0.0.1:9")
        assert routes.address_of(queue) == "127.0.0.1:9"
        assert server.asked == 0
        assert routes.route("T") == ROUTE
        assert routes.address_of(queue) == routes.address("b") == "127.0.0.1:1"
        clock.seconds += ROUTE_SECONDS_MAX - 1
        routes.route("T")
        assert server.asked == 1
        clock.seconds += 1
        routes.route("T")
        assert server.asked == 2
        routes.forget()
        routes.route("T")
        assert server.asked == 3
        assert routes.address_of(queue, anew=True) == "127.0.0.1:1"
        assert server.asked == 4


def test_what_can_not_be_reached(client: BlockingClient) -> None:
    with in_thread(lambda: answering(NameServer().handlers())) as address:
        routes = Routes(Cluster(client, [address]), HandClock())
        gone = "no name server knows where broker 'c' "
        with pytest.raises(ConnectionError, match=f"^{gone}is$"):
            routes.address("c")
        with pytest.raises(ConnectionError, match=f"^{gone}of topic 'T' is$"):
            routes.address_of(Queue("T", "c", 0))
        with pytest.raises(ConfigError, match="topic 'static' is a static topic"):
            routes.route("static")


def test_the_master_speaks_for_a_broker_and_a_slave_without_one() -> None:
    assert address_of(ROUTE.broker_datas[0]) == "127.0.0.1:1"
    assert address_of(BrokerData("C", "b", {2: "b:2", 1: "b:1"})) == "b:1"


def test_the_queues_that_can_be_written_to() -> None:
    route = Route(
        queue_datas=[
            QueueData("b", 1, 3, 6),
            QueueData("a", 8, 2, 6),
            QueueData("read-only", 4, 4, 4),
            QueueData("slave-only", 4, 4, 6),
        ],
        broker_datas=[
            BrokerData("C", "a", {0: "a:1", 1: "a:2"}),
            BrokerData("C", "b", {0: "b:1"}),
            BrokerData("C", "read-only", {0: "r:1"}),
            BrokerData("C", "slave-only", {1: "s:1"}),
        ],
    )
    a = [Target("a", "a:1", 0), Target("a", "a:1", 1)]
    b = [Target("b", "b:1", n) for n in range(3)]
    assert writable(route) == [*a, *b]
    assert writable(route, 2) == [*a, *b[:2]]
