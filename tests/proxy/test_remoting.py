"""Remoting clients behind a proxy in cluster mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from threading import Event
from typing import NamedTuple

import pytest

from firearrow.client.blocking import Producer, PushConsumer, SimpleConsumer
from firearrow.client.message import Message
from firearrow.message import properties
from firearrow.net.client import Client
from firearrow.proxy import messages as m
from firearrow.proxy.cluster import ClusterBrokers
from firearrow.proxy.clusterproxy import ClusterProxy
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire import fastjson
from firearrow.wire.bodies import Route
from firearrow.wire.client_bodies import ConsumerConnection, ConsumerRunningInfo, LockRequest, MessageQueue
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.frame import AnyCommand
from tests.net.background import answering, in_thread
from tests.proxy.clusterproxy import asked, cluster_proxy
from tests.proxy.proxyclient import ProxyClient
from tests.proxy.test_clusterfailures import BROKER, Broker
from tests.proxy.test_heartbeatsync import until

TOPIC, GROUP = "T", "G"
BROKERS = {"broker-a", "broker-b"}
SECONDS_MAX = 20
PULL = {
    "consumerGroup": GROUP,
    "topic": TOPIC,
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "1",
    "sysFlag": "6",
    "commitOffset": "0",
    "subscription": "*",
    "expressionType": "TAG",
}


class Stage(NamedTuple):
    cluster: BlockingCluster
    proxy: ClusterProxy

    @property
    def address(self) -> str:
        """Address of the proxy for remoting clients."""
        return f"127.0.0.1:{self.proxy.remoting_port}"

    def answer(self, code: int, fields: Mapping[str, str], body: bytes = b"", address: str = "") -> AnyCommand:
        """Return the answer of the proxy to one request."""
        return asked(lambda client: client.answer(address or self.address, code, fields, body))


@pytest.fixture
def stage() -> Iterator[Stage]:
    with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic(TOPIC, queues=2)
        with cluster_proxy(cluster.name_server) as proxy:
            yield Stage(cluster, proxy)


def send_fields(topic: str, broker: str, **more: str) -> dict[str, str]:
    names = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "n": broker}
    return {**names, "i": properties.format(more)}


def test_a_route_names_the_proxy_as_every_broker(stage: Stage) -> None:
    answer = stage.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    route = fastjson.decode(answer.body, Route)
    assert {broker.broker_name: broker.broker_addrs for broker in route.broker_datas} == {
        name: {0: stage.address} for name in BROKERS
    }
    unknown = stage.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Unknown"})
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_topic_that_a_send_creates_has_a_route_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firearrow.proxy.answercache.NONE_SECONDS", 60.0)
    code, fields = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "New"}
    assert stage.answer(code, fields).code == ResponseCode.TOPIC_NOT_EXIST
    assert stage.answer(RequestCode.SEND_MESSAGE_V2, send_fields("New", "broker-a"), b"body").code == 0
    until(lambda: not stage.answer(code, fields, address=stage.cluster.name_server).code)
    assert stage.answer(code, fields).code == 0


def test_a_request_goes_to_the_broker_that_it_names(stage: Stage) -> None:
    for name in sorted(BROKERS):
        sent = stage.answer(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC, name, KEYS=name), b"body")
        assert (sent.code, sent.ext["queueOffset"], sent.ext["TRACE_ON"]) == (0, "0", "false")
        pulled = stage.answer(RequestCode.PULL_MESSAGE, PULL | {"bname": name})
        assert pulled.code == 0
        assert name.encode() in pulled.body


@pytest.mark.parametrize(
    ("code", "fields", "refusal", "text"),
    [
        (RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}, ResponseCode.VERSION_NOT_SUPPORTED, "bname"),
        (RequestCode.GET_MAX_OFFSET, {"bname": "nobody"}, ResponseCode.SYSTEM_ERROR, "nobody is not known"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"bname": "broker-a"}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "17"),
        (RequestCode.LOCK_BATCH_MQ, {}, ResponseCode.SYSTEM_ERROR, "bad body"),
        (RequestCode.HEART_BEAT, {}, ResponseCode.SYSTEM_ERROR, "bad body"),
        (RequestCode.QUERY_ASSIGNMENT, {}, ResponseCode.SYSTEM_ERROR, "bad body"),
        (
            RequestCode.SEND_MESSAGE_V2,
            send_fields(TOPIC, "broker-a", TRAN_MSG="true"),
            ResponseCode.MESSAGE_ILLEGAL,
            "the expected type is NORMAL, but actual type is TRANSACTION",
        ),
    ],
)
def test_a_request_that_can_not_be_forwarded_gets_the_reason(
    stage: Stage, code: int, fields: dict[str, str], refusal: int, text: str
) -> None:
    answer = stage.answer(code, fields)
    assert answer.code == refusal
    assert text in (answer.remark or "")


def test_queues_of_several_brokers_are_not_locked_by_one_request(stage: Stage) -> None:
    queues = [MessageQueue(TOPIC, name, 0) for name in sorted(BROKERS)]
    for count, code in ((1, ResponseCode.SUCCESS), (2, ResponseCode.SYSTEM_ERROR)):
        body = fastjson.dumps(LockRequest(GROUP, "c", queues[:count]))
        assert stage.answer(RequestCode.LOCK_BATCH_MQ, {}, body).code == code


def test_both_protocols_are_served_at_either_port(stage: Stage) -> None:
    for port in (stage.proxy.port, stage.proxy.remoting_port):
        answer = stage.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}, address=f"127.0.0.1:{port}")
        assert answer.code == 0
        with ProxyClient(f"127.0.0.1:{port}", "c") as client:
            assert client.send(TOPIC, b"body").status.code == m.Code.OK


def test_the_port_for_remoting_can_be_without_grpc(stage: Stage) -> None:
    with cluster_proxy(stage.cluster.name_server, enableRemotingLocalProxyGrpc=False) as proxy:
        with ProxyClient(f"127.0.0.1:{proxy.port}", "c") as client:
            assert client.send(TOPIC, b"body").status.code == m.Code.OK
        with ProxyClient(f"127.0.0.1:{proxy.remoting_port}", "c") as client, pytest.raises(Exception, match="UNAVAIL"):
            client.send(TOPIC, b"body")


def test_messages_are_popped_and_acknowledged(stage: Stage) -> None:
    with (
        Producer(stage.address, group="p") as producer,
        SimpleConsumer(stage.address, group=GROUP, topics=[TOPIC]) as consumer,
    ):
        for number in range(8):
            producer.send(TOPIC, b"%d" % number)
        bodies: list[bytes] = []
        while len(bodies) < 8:
            for message in consumer.receive(8):
                bodies.append(message.body)
                consumer.ack(message)
        assert sorted(bodies) == [b"%d" % number for number in range(8)]


def ids_of(stage: Stage, broker: int) -> list[str]:
    """Client ids of the group's members, as a broker knows them."""
    address = stage.cluster.brokers[broker].address
    answer = stage.answer(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP}, address=address)
    if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return []
    return sorted(it.client_id for it in fastjson.decode(answer.body, ConsumerConnection).connection_set)


def test_brokers_know_a_consumer_and_ask_it(stage: Stage) -> None:
    consumer = PushConsumer(stage.address, group=GROUP)
    consumed = Event()

    @consumer.on(TOPIC)
    def consume(message: Message) -> None:
        consumed.set()

    with consumer:
        while not (ids := ids_of(stage, 0)):
            pass
        assert ids_of(stage, 1) == ids
        listed = stage.answer(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})
        assert fastjson.loads(listed.body) == {"consumerIdList": ids}
        with Producer(stage.address, group="p") as producer:
            producer.send(TOPIC, b"body")
        assert consumed.wait(SECONDS_MAX)
        info = asked(
            lambda client: client.call(
                stage.cluster.brokers[0].address,
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                {"consumerGroup": GROUP, "clientId": ids[0], "jstackEnable": "false"},
            )
        )
        assert TOPIC in {it.topic for it in fastjson.decode(info.body, ConsumerRunningInfo).subscription_set}
    for broker in range(2):
        while ids_of(stage, broker):
            pass


HEARTBEAT = fastjson.dumps(
    {
        "clientID": "c",
        "consumerDataSet": [
            {
                "groupName": GROUP,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": TOPIC, "subString": "*"}],
            }
        ],
    }
)


def test_a_client_without_heartbeats_is_forgotten_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firearrow.proxy.cluster.SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(ClusterBrokers, "register_seconds", 0.1)
    with EmbeddedCluster() as cluster, cluster_proxy(cluster.name_server, channelExpiredTimeout=200) as proxy:
        cluster.create_topic(TOPIC, queues=1)
        stage = Stage(cluster, proxy)

        async def run(client: Client) -> None:
            for _ in range(2):
                assert (await client.answer(stage.address, RequestCode.HEART_BEAT, {}, HEARTBEAT)).code == 0
                while await asyncio.to_thread(ids_of, stage, 0):
                    pass
                fields = send_fields(TOPIC, cluster.brokers[0].name)
                assert (await client.answer(stage.address, RequestCode.SEND_MESSAGE_V2, fields, b"body")).code == 0
                assert await asyncio.to_thread(ids_of, stage, 0) == []

        asked(run)


def test_a_connection_that_is_opened_again_begins_with_the_last_heartbeat(stage: Stage) -> None:
    async def run(client: Client) -> None:
        assert (await client.answer(stage.address, RequestCode.HEART_BEAT, {}, HEARTBEAT)).code == 0
        assert await asyncio.to_thread(ids_of, stage, 0) == ["c"]
        await asyncio.to_thread(stage.cluster.stop_broker)
        await asyncio.to_thread(stage.cluster.restart_broker)
        assert await asyncio.to_thread(ids_of, stage, 0) == []
        fields = {"topic": TOPIC, "queueId": "0", "bname": "broker-a"}
        while (await client.answer(stage.address, RequestCode.GET_MAX_OFFSET, fields)).code:
            pass
        assert await asyncio.to_thread(ids_of, stage, 0) == ["c"]
        group = {"clientID": "c", "consumerGroup": GROUP}
        assert (await client.answer(stage.address, RequestCode.UNREGISTER_CLIENT, group)).code == 0
        assert await asyncio.to_thread(ids_of, stage, 0) == await asyncio.to_thread(ids_of, stage, 1) == []

    asked(run)


def test_a_client_of_a_silent_broker_may_not_have_more_pending_than_its_share(stage: Stage) -> None:
    broker = Broker()
    broker.answers = [lambda _, __: None] * 20

    @asynccontextmanager
    async def running() -> AsyncIterator[str]:
        async with answering(broker.handlers()) as address:
            broker.address = address
            yield address

    with in_thread(running) as name_server, cluster_proxy(name_server) as proxy:
        address = f"127.0.0.1:{proxy.remoting_port}"
        fields, body = send_fields(TOPIC, BROKER), bytes(1 << 20)

        async def flood(client: Client) -> None:
            pending = [await client.begin(address, RequestCode.SEND_MESSAGE_V2, fields, body) for _ in range(20)]
            assert (await pending[-1]).code == ResponseCode.SYSTEM_BUSY
            assert not pending[0].done()

        asked(flood)
        broker.answers.clear()
        answer = asked(lambda client: client.answer(address, RequestCode.SEND_MESSAGE_V2, fields, body))
        assert answer.code == ResponseCode.SUCCESS


def test_a_lost_broker_is_an_answer_to_each_pending_request(stage: Stage) -> None:
    fields = PULL | {"bname": "broker-a", "sysFlag": "6", "suspendTimeoutMillis": "20000"}

    async def run(client: Client) -> None:
        offset = {"topic": TOPIC, "queueId": "0", "bname": "broker-a"}
        assert (await client.answer(stage.address, RequestCode.GET_MAX_OFFSET, offset)).code == 0
        pending = await client.begin(stage.address, RequestCode.PULL_MESSAGE, fields)
        assert (await client.answer(stage.address, RequestCode.GET_MAX_OFFSET, offset)).code == 0  # the pull waits
        await asyncio.to_thread(stage.cluster.kill_broker)
        answer = await pending
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "lost" in (answer.remark or "")

    asked(run)
