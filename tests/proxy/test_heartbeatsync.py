"""Members of consumer groups that this proxy tells RocketMQ's proxies of, and learns from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from firearrow.client.blocking import Producer, PushConsumer
from firearrow.client.message import Message
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import ConsumerIdList, SubscriptionData
from firearrow.wire.codes import RequestCode
from tests.proxy.clusterproxy import asked, cluster_proxy

SYNC, TOPIC, GROUP = "DefaultHeartBeatSyncerTopic", "T", "G"
SECONDS_MAX = 20
THEIRS = {
    "heartbeatType": "REGISTER",
    "clientId": "10.0.0.9@7",
    "language": "JAVA",
    "version": 513,
    "group": GROUP,
    "consumeType": "CONSUME_PASSIVELY",
    "messageModel": "CLUSTERING",
    "localProxyId": "10.0.0.8%8080%8081",
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    "subscriptionDataSet": [],
    "channelData": "{}",
}


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not found():
        assert time.monotonic() < deadline


@pytest.fixture
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster() as found:
        found.create_topic(TOPIC, queues=2)
        found.create_topic(SYNC, queues=1)
        yield found


def heartbeats(cluster: BlockingCluster) -> list[dict[str, Any]]:
    """Heartbeats that have been sent to other proxies."""
    return [it for it in (fastjson.loads(message.body) for message in cluster.messages(SYNC)) if "sender" in it]


def begin(consumer: PushConsumer) -> None:
    @consumer.on(TOPIC)
    def consume(message: Message) -> None: ...


def test_other_proxies_are_told_of_consumers_in_rocketmqs_form(cluster: BlockingCluster) -> None:
    with cluster_proxy(cluster.name_server) as proxy:
        address = f"127.0.0.1:{proxy.remoting_port}"
        consumer = PushConsumer(address, group=GROUP, heartbeat_seconds=0.1)
        begin(consumer)
        with consumer:
            client_id = consumer.inner.session.client_id
            until(lambda: bool(heartbeats(cluster)))
        until(lambda: heartbeats(cluster)[-1]["heartbeatType"] == "UNREGISTER")
    first, last = heartbeats(cluster)[0], heartbeats(cluster)[-1]
    assert {name: first[name] for name in ("heartbeatType", "consumeType", "messageModel", "language")} == {
        "heartbeatType": "REGISTER",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "language": "PYTHON",
    }
    assert first["group"] == last["group"] == GROUP
    assert first["clientId"] == last["clientId"] == client_id
    assert first["localProxyId"] == "127.0.0.1%0%0"  # the ports of the configuration
    assert TOPIC in {it["topic"] for it in first["subscriptionDataSet"]}
    channel = fastjson.loads(first["channelData"])
    assert (channel["type"], channel["remoteProxyIp"], channel["localAddress"]) == ("REMOTING", "127.0.0.1", address)
    topics = {it.topic for it in fastjson.decode(channel["extendAttribute"], list[SubscriptionData])}
    assert TOPIC in topics


def test_members_behind_other_proxies_count_until_they_leave_or_are_silent(cluster: BlockingCluster) -> None:
    with cluster_proxy(cluster.name_server, channelExpiredTimeout=2000) as proxy:
        address = f"127.0.0.1:{proxy.remoting_port}"

        def others() -> list[str]:
            fields = {"consumerGroup": GROUP}
            answer = asked(lambda client: client.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields))
            ids = fastjson.decode(answer.body, ConsumerIdList).consumer_id_list
            return [it for it in ids if it != consumer.inner.session.client_id]

        def queues() -> int:
            return len(consumer.inner.queues.get(TOPIC, ()))

        consumer = PushConsumer(address, group=GROUP, heartbeat_seconds=0.1)
        begin(consumer)
        with consumer, Producer(cluster.name_server, group="p") as producer:
            until(lambda: bool(heartbeats(cluster)))
            until(lambda: queues() == 2)
            for bad in (b"", b"[]", b"{}", b'{"group":1}', b"\xff", b"{" * 1000):
                producer.send(SYNC, bad or b" ")
            producer.send(SYNC, fastjson.dumps(THEIRS))
            until(lambda: others() == ["10.0.0.9@7"])
            until(lambda: queues() == 1)
            producer.send(SYNC, fastjson.dumps(THEIRS | {"heartbeatType": "UNREGISTER"}))
            until(lambda: others() == [])
            until(lambda: queues() == 2)
            producer.send(SYNC, fastjson.dumps(THEIRS))
            until(lambda: others() == ["10.0.0.9@7"])
            until(lambda: others() == [])


def test_nothing_is_sent_without_other_proxies() -> None:
    with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, queues=1)
        with cluster_proxy(cluster.name_server) as proxy:
            consumer = PushConsumer(f"127.0.0.1:{proxy.remoting_port}", group=GROUP, heartbeat_seconds=0.1)
            begin(consumer)
            with consumer, Producer(cluster.name_server, group="p") as producer:
                producer.send(TOPIC, b"body")
                until(lambda: bool(consumer.inner.queues))
        assert cluster.messages(SYNC) == []
