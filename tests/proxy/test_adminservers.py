"""Admin service about topics and the proxy, and its rights, at an embedded broker."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from firearrow import __version__
from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer, settings_of_producer


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    with EmbeddedCluster(grpc=True) as found:
        found.create_topic("orders", queues=3)
        yield found


@pytest.fixture
def tool(cluster: BlockingCluster) -> Iterator[Rpcs]:
    with Rpcs(cluster.brokers[0].grpc) as found:
        del found.metadata["x-mq-client-id"]
        yield found


def name(text: str) -> m.Resource:
    return m.Resource(name=text)


def test_status_of_a_topic(cluster: BlockingCluster, tool: Rpcs) -> None:
    attributes: dict[str, Any] = {"message.type": "FIFO"}
    cluster.create_topic("in-order", **attributes)
    for topic, kind in (("orders", m.MessageType.NORMAL), ("in-order", m.MessageType.FIFO)):
        answer = tool.admin("DescribeTopicStatus", m.DescribeTopicStatusRequest(topic=name(topic)))
        assert (answer.status.code, answer.topic_message_type) == (m.Code.OK, kind)
    assert answer.tags["message.type"] == "FIFO"
    answer = tool.admin("DescribeTopicStatus", m.DescribeTopicStatusRequest(topic=name("nowhere")))
    assert answer.status.code == m.Code.TOPIC_NOT_FOUND
    answer = tool.admin("DescribeTopicStatus", m.DescribeTopicStatusRequest(topic=name("a b")))
    assert answer.status.code == m.Code.ILLEGAL_TOPIC


def test_routes_by_protocol(cluster: BlockingCluster, tool: Rpcs) -> None:
    broker = cluster.brokers[0]
    for protocol, address in (("remoting", broker.address), ("grpc", broker.grpc), ("", broker.grpc)):
        request = m.GetTopicRouteRequest(topic=name("orders"), protocol_type=protocol)
        answer = tool.admin("GetTopicRoute", request)
        assert answer.status.code == m.Code.OK
        route = json.loads(answer.topic_route_data)
        [queues] = route["queueDatas"]
        assert (queues["brokerName"], queues["readQueueNums"]) == (broker.name, 3)
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": address}


def test_stats_of_the_proxy(cluster: BlockingCluster, tool: Rpcs) -> None:
    with Rpcs(cluster.brokers[0].grpc) as producer, Rpcs(cluster.brokers[0].grpc) as consumer:
        producer.begin(settings_of_producer("orders"))
        consumer.begin(settings_of_consumer("g", "orders"))
        for _ in range(3):
            producer.SendMessage(send_request("orders", b"x"))
        assert consumer.received(receive_request("g", "orders"))
        time.sleep(1.1)
        answer = tool.admin("GetProxyRuntimeStats", m.GetProxyRuntimeStatsRequest())
        assert (answer.status.code, answer.version) == (m.Code.OK, __version__)
        assert (answer.producers, answer.consumers) == (1, 1)
        assert answer.connections >= 1
        assert answer.in_tps == pytest.approx(0.3)
        assert 0 < answer.out_tps <= 0.3


def test_the_level_of_the_log(tool: Rpcs) -> None:
    ours = logging.getLogger("firearrow")
    before = ours.level
    try:
        request = m.ChangeLogLevelRequest(level=m.ChangeLogLevelRequest.Level.WARN)
        assert tool.admin("ChangeLogLevel", request).remark == "the log level is WARNING"
        assert ours.level == logging.WARNING
        assert tool.admin("ChangeLogLevel", m.ChangeLogLevelRequest(level=9)).remark == "level 9 is not known"
        assert ours.level == logging.WARNING
    finally:
        ours.setLevel(before)
