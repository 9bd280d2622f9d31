"""Name server and brokers in threads, with the answers of a test."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from firearrow.errors import BrokerError
from firearrow.net.server import Answer, Handler, Peer
from firearrow.wire import fastjson
from firearrow.wire.bodies import BrokerData, ClusterInfo, QueueData, Route, TopicList
from firearrow.wire.client_bodies import MessageQueue, TopicOffset, TopicStats
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import SendMessageV2
from tests.net.background import answering, in_thread

HANG_UP = -1


class FakeBroker:
    """Takes sends, or answers the next ones with the codes that ``answers`` holds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.answers: deque[int] = deque()
        self.taken: list[tuple[SendMessageV2, bytes]] = []
        self.asked = 0
        self.body_bytes_max = 4 << 20

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
            RequestCode.GET_TOPIC_STATS_INFO: self.ends,
        }

    def ends(self, peer: Peer, request: AnyCommand) -> Answer:
        """202: of two queues, offsets 3 to 7."""
        topic = request.ext["topic"]
        table = {MessageQueue(topic, self.name, n): TopicOffset(3, 7, 0) for n in range(2)}
        return Response(body=fastjson.dumps(TopicStats(table)))

    def send(self, peer: Peer, request: AnyCommand) -> Answer:
        self.asked += 1
        code = self.answers.popleft() if self.answers else 0
        if code == HANG_UP:
            peer.abort()
            return None
        if len(request.body) > self.body_bytes_max:
            raise BrokerError(13, "too large")
        header = fields_of(request, SendMessageV2)
        assert header.batch == (request.code == RequestCode.SEND_BATCH_MESSAGE)
        if code in (0, 10, 11, 12):
            self.taken.append((header, request.body))
        if code:
            raise BrokerError(code, "as told")
        return Response()


class FakeCluster:
    """Brokers with the same topics, each with the same number of queues."""

    def __init__(self, *names: str, queues: int = 2) -> None:
        self.brokers = {name: FakeBroker(name) for name in names}
        self.topics = {"T"}
        self.queues = queues
        self.name_server = ""
        self.perm = 6
        self.old_routes = 0  # how many of the next routes name an address where nobody is

    def route(self, peer: Peer, request: AnyCommand) -> Answer:
        topic = request.ext["topic"]
        if topic not in self.topics:
            raise BrokerError(17, "No topic route info")
        queues = [QueueData(name, self.queues, self.queues, self.perm) for name in sorted(self.brokers)]
        self.old_routes -= 1
        brokers = [
            BrokerData("C", name, {0: "127.0.0.1:1" if self.old_routes >= 0 else broker.address})
            for name, broker in self.brokers.items()
        ]
        return Response(body=fastjson.dumps(Route(queues, brokers)))

    def all_brokers(self, peer: Peer, request: AnyCommand) -> Answer:
        brokers = {name: BrokerData("C", name, {0: broker.address}) for name, broker in self.brokers.items()}
        return Response(body=fastjson.dumps(ClusterInfo(brokers, {"C": sorted(brokers)})))

    def all_topics(self, peer: Peer, request: AnyCommand) -> Answer:
        return Response(body=fastjson.dumps(TopicList(sorted(self.topics))))


@contextmanager
def fake_cluster(*names: str, queues: int = 2) -> Iterator[FakeCluster]:
    """A cluster of brokers of these names for a ``with`` block."""
    cluster = FakeCluster(*names, queues=queues)
    with ExitStack() as stack:
        for broker in cluster.brokers.values():
            serving = partial(answering, broker.handlers())
            broker.address = stack.enter_context(in_thread(serving))
        routes: dict[int, Handler] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: cluster.route,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: cluster.all_topics,
            RequestCode.GET_BROKER_CLUSTER_INFO: cluster.all_brokers,
        }
        cluster.name_server = stack.enter_context(in_thread(lambda: answering(routes)))
        yield cluster
