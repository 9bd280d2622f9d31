"""Brokers that stop, hang up, and say nothing, behind a proxy in cluster mode."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from firearrow.net.server import Answer, Handler, Peer
from firearrow.net.tasks import RunningTask, Tasks
from firearrow.proxy import messages as m
from firearrow.wire import fastjson
from firearrow.wire.bodies import BrokerData, ClusterInfo, QueueData, Route, TopicConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from tests.net.background import answering, in_thread
from tests.proxy.clusterproxy import proxy_of
from tests.proxy.proxyclient import SECONDS_MAX, ProxyClient

TOPIC, BROKER = "T", "b"
STORED = {"msgId": "0A000001000004D20000000000000007", "queueId": "0", "queueOffset": "3"}


class Broker:
    """A broker and its name server in one; sends are answered by ``answers`` in turn, then with success."""

    def __init__(self) -> None:
        self.address = ""
        self.answers: list[Handler] = []
        self.peers: list[Peer] = []
        self.has_route = True
        self.hung_up = 0
        self.hangs_up = False

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.info,
            RequestCode.GET_TOPIC_CONFIG: lambda _, __: Response(body=fastjson.dumps(TopicConfig(TOPIC, 1, 1))),
            RequestCode.SEND_MESSAGE_V2: self.send,
        }

    def route(self, peer: Peer, _: AnyCommand) -> Answer:
        if self.hangs_up:
            self.hung_up += 1
            peer.abort()
            return None
        if not self.has_route:
            return Response(ResponseCode.TOPIC_NOT_EXIST, "no route")
        broker = BrokerData("DefaultCluster", BROKER, {0: self.address})
        return Response(body=fastjson.dumps(Route([QueueData(BROKER, 1, 1, 6)], [broker])))

    def info(self, _: Peer, __: AnyCommand) -> Answer:
        broker = BrokerData("DefaultCluster", BROKER, {0: self.address})
        return Response(body=fastjson.dumps(ClusterInfo({BROKER: broker}, {"DefaultCluster": [BROKER]})))

    def send(self, peer: Peer, request: AnyCommand) -> Answer:
        self.peers.append(peer)
        if self.answers:
            return self.answers.pop(0)(peer, request)
        return Response(fields=STORED)


@contextmanager
def served(broker: Broker, **keys: object) -> Iterator[ProxyClient]:
    """Run the broker and a proxy; yield a client that has sent a message."""

    @asynccontextmanager
    async def running() -> AsyncIterator[str]:
        async with answering(broker.handlers()) as address:
            broker.address = address
            yield address

    with in_thread(running) as address, proxy_of(address, **keys) as proxy, ProxyClient(proxy, "c") as client:
        assert client.send(TOPIC, b"body").status.code == m.Code.OK
        yield client


def test_a_send_that_a_stopping_broker_refuses_is_sent_again_on_another_connection() -> None:
    broker = Broker()
    broker.answers = [lambda _, __: Response(fields=STORED), lambda _, __: Response(ResponseCode.GO_AWAY, "bye")]
    with served(broker) as client:
        assert client.send(TOPIC, b"body").status.code == m.Code.OK
        assert len(set(broker.peers)) == 2


def test_a_broker_that_goes_away_twice_has_refused_the_send() -> None:
    broker = Broker()
    leaving: Handler = lambda _, __: Response(ResponseCode.GO_AWAY, "bye")  # noqa: E731
    broker.answers = [lambda _, __: Response(fields=STORED), leaving, leaving]
    with served(broker) as client:
        status = client.send(TOPIC, b"body").status
        assert (status.code, status.message) == (m.Code.INTERNAL_SERVER_ERROR, "bye")
        assert client.send(TOPIC, b"body").status.code == m.Code.OK


def test_a_lost_connection_fails_its_calls_and_is_opened_again() -> None:
    broker = Broker()
    with served(broker) as client:
        broker.answers = [lambda peer, _: peer.abort()]
        status = client.send(TOPIC, b"body").status
        assert status.code == m.Code.INTERNAL_SERVER_ERROR
        assert "is lost" in status.message
        assert client.send(TOPIC, b"body").status.code == m.Code.OK


def test_a_broker_that_does_not_answer_in_time_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firearrow.proxy.producing.SEND_MS_MAX", 50)
    broker = Broker()
    with served(broker) as client:
        broker.answers = [lambda _, __: None]
        status = client.send(TOPIC, b"body").status
        assert status.code == m.Code.PROXY_TIMEOUT
        assert status.message == f"{broker.address} did not answer in 0.05 s"
        assert client.send(TOPIC, b"body").status.code == m.Code.OK
        assert len(set(broker.peers)) == 1


def test_a_route_that_is_gone_is_not_used_any_more() -> None:
    broker = Broker()
    with served(broker, topicRouteServiceCacheRefreshSeconds=1) as client:
        broker.has_route = False
        while (code := client.send(TOPIC, b"body").status.code) == m.Code.OK:
            pass
        assert code == m.Code.TOPIC_NOT_FOUND
        broker.has_route = True
        while client.send(TOPIC, b"body").status.code != m.Code.OK:
            pass


def test_known_routes_stay_while_no_name_server_answers() -> None:
    broker = Broker()
    with served(broker, topicRouteServiceCacheRefreshSeconds=1) as client:
        broker.hangs_up = True
        while broker.hung_up < 2:
            assert route_code(client) == m.Code.OK
        assert route_code(client) == m.Code.OK


def test_a_call_on_an_open_connection_needs_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = Tasks.start

    def noted(tasks: Tasks, work: Coroutine[Any, Any, Any], name: str) -> RunningTask:
        started.append(name)
        return start(tasks, work, name)

    monkeypatch.setattr(Tasks, "start", noted)
    broker = Broker()
    with served(broker) as client:
        assert "route of T" in started
        started.clear()
        for _ in range(5):
            assert client.send(TOPIC, b"body").status.code == m.Code.OK
        assert started == []


def test_a_proxy_stops_while_a_broker_owes_it_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lost connection is a reason to ask for addresses again, and then there is no task for that any more."""
    monkeypatch.setattr("firearrow.proxy.answercache.NONE_SECONDS", 0.0)
    broker = Broker()
    with served(broker) as client, ThreadPoolExecutor(1) as pool:
        client.QueryAssignment(m.QueryAssignmentRequest(topic=m.Resource(name=TOPIC), group=m.Resource(name="g")))
        left = threading.Event()

        def keep(_: Peer, __: AnyCommand) -> Answer:
            left.set()
            return None

        broker.answers = [keep]
        pool.submit(client.send, TOPIC, b"body")
        assert left.wait(SECONDS_MAX)
        client.__exit__(None, None, None)


def route_code(client: ProxyClient) -> int:
    answer: m.QueryRouteResponse = client.QueryRoute(m.QueryRouteRequest(topic=m.Resource(name=TOPIC)))
    return answer.status.code
