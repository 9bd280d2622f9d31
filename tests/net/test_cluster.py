"""What name servers know, whichever of them answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firearrow.errors import BrokerError, RemoteProtocolError, TopicNotFound
from firearrow.net.blocking import BlockingClient
from firearrow.net.cluster import Cluster, address_of
from firearrow.net.server import Answer, Handler, Peer
from firearrow.wire import fastjson
from firearrow.wire.bodies import BrokerData, ClusterInfo, QueueData, Route, TopicList
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from tests.net.background import answering, in_thread

ROUTE = Route(
    queue_datas=[QueueData("b", 4, 4, 6)],
    broker_datas=[BrokerData("C", "b", {0: "127.0.0.1:1", 1: "127.0.0.1:2"})],
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


def test_one_that_is_away_and_one_that_is_not_ready_are_passed_over(
    client: BlockingClient,
) -> None:
    new, good = NameServer(ready=False), NameServer()
    with in_thread(lambda: answering({})) as gone:
        pass
    with (
        in_thread(lambda: answering(new.handlers())) as first,
        in_thread(lambda: answering(good.handlers())) as second,
    ):
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


def test_the_master_speaks_for_a_broker_and_a_slave_without_one() -> None:
    assert address_of(ROUTE.broker_datas[0]) == "127.0.0.1:1"
    assert address_of(BrokerData("C", "b", {2: "b:2", 1: "b:1"})) == "b:1"
