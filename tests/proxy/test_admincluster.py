"""The Admin service of a proxy in front of two brokers: answers are added up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests.proxy.clusterproxy import proxy_of
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer

TOPIC, GROUP = m.Resource(name="orders"), m.Resource(name="g")


class Stage(NamedTuple):
    cluster: BlockingCluster
    proxy: str


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A proxy and brokers of one test: figures of a group do not have those of another test."""
    with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("orders", queues=1)
        with proxy_of(cluster.name_server) as proxy:
            yield Stage(cluster, proxy)


@pytest.fixture
def rpcs(stage: Stage) -> Iterator[Rpcs]:
    """A consumer of the topic."""
    with Rpcs(stage.proxy) as found:
        found.begin(settings_of_consumer("g", "orders", kind=m.ClientType.PUSH_CONSUMER))
        yield found


@pytest.fixture
def tool(stage: Stage) -> Iterator[Rpcs]:
    with Rpcs(stage.proxy) as found:
        del found.metadata["x-mq-client-id"]
        yield found


def until(value: Callable[[], int], expected: int) -> None:
    deadline = time.monotonic() + 20
    while (found := value()) != expected:
        assert time.monotonic() < deadline, found


def consume(rpcs: Rpcs, group: str, count: int) -> None:
    """Receive `count` messages and acknowledge them."""
    received: list[m.Message] = []
    deadline = time.monotonic() + 20
    while len(received) < count:
        received += rpcs.received(receive_request(group, "orders"))
        assert time.monotonic() < deadline
    answer = rpcs.AckMessage(rpcs.ack_request(group, "orders", *received))
    assert {entry.status.code for entry in answer.entries} == {m.Code.OK}, answer


def test_figures_of_all_brokers(stage: Stage, rpcs: Rpcs, tool: Rpcs) -> None:
    rpcs.SendMessage(send_request("orders", *[b"first"] * 4, keys=("k",)))
    consume(rpcs, "g", 4)
    rpcs.SendMessage(send_request("orders", *[b"second"] * 4))
    request = m.DescribeGroupAccumulationRequest(group=GROUP, topics=[TOPIC])
    until(lambda: tool.admin("DescribeGroupAccumulation", request).accumulation.accumulation, 4)
    spans = tool.admin("QueryTimeSpan", m.QueryTimeSpanRequest(group=GROUP)).queue_time_span_list
    assert {span.message_queue.broker.name for span in spans} == {"broker-a", "broker-b"}
    by_key = tool.admin("QueryMessage", m.ListMessageRequest(topic=TOPIC, message_key="k"))
    assert len(by_key.messages) == 4
    found = 0
    cursor = None
    while found < 8:
        page = tool.admin("QueryMessage", m.ListMessageRequest(topic=TOPIC, max_message_nums=3, scroll_id=cursor))
        assert page.status.code == m.Code.OK
        found += len(page.messages)
        cursor = page.scroll_id
    assert found == 8
    reset = m.ResetGroupOffsetRequest(group=GROUP, topic=TOPIC, reset_timestamp=m.Timestamp(seconds=1))
    assert tool.admin("ResetGroupOffset", reset).status.code == m.Code.OK
    until(lambda: tool.admin("DescribeGroupAccumulation", request).accumulation.accumulation, 8)


def test_members_count_once(rpcs: Rpcs, tool: Rpcs) -> None:
    answer = tool.admin("ListConsumerConnection", m.ListConsumerConnectionRequest(group=GROUP))
    assert rpcs.client_id in [info.client_id for info in answer.client_info]
    assert len({info.client_id for info in answer.client_info}) == len(answer.client_info)
    listed = tool.admin("ListSubscription", m.ListSubscriptionRequest(topic=TOPIC)).subscription_info
    assert [(info.group.name, info.online, info.subscription_consistency) for info in listed] == [("g", True, True)]
    request = m.GetConsumerRunningInfoRequest(group=GROUP, client_id=rpcs.client_id)
    info = tool.admin("GetConsumerRunningInfo", request).consumer_running_info
    assert info.subscriptions["orders"].expression == "*"


def test_the_route_has_the_brokers_own_addresses_for_remoting(stage: Stage, tool: Rpcs) -> None:
    answer = tool.admin("GetTopicRoute", m.GetTopicRouteRequest(topic=TOPIC, protocol_type="remoting"))
    brokers = json.loads(answer.topic_route_data)["brokerDatas"]
    assert {it["brokerName"]: it["brokerAddrs"]["0"] for it in brokers} == {
        broker.name: broker.address for broker in stage.cluster.brokers
    }
    answer = tool.admin("GetTopicRoute", m.GetTopicRouteRequest(topic=TOPIC, protocol_type="grpc"))
    port = stage.proxy.rpartition(":")[2]
    for it in json.loads(answer.topic_route_data)["brokerDatas"]:
        assert it["brokerAddrs"]["0"].endswith(f":{port}")


def test_a_consumer_verifies_a_message_of_any_broker(stage: Stage, rpcs: Rpcs, tool: Rpcs) -> None:
    rpcs.SendMessage(send_request("orders", b"left", b"right"))
    for body in (b"left", b"right"):
        views = [view for broker in stage.cluster.brokers for view in broker.messages("orders") if view.body == body]
        request = m.VerifyMessageRequest(
            client_id=rpcs.client_id, group=GROUP, topic=TOPIC, message_id=views[0].offset_message_id
        )
        stream, _ = rpcs.begin(settings_of_consumer("g", "orders", kind=m.ClientType.PUSH_CONSUMER))
        pending = tool.begun_admin("VerifyMessage", request)
        command = stream.next().verify_message_command
        assert command.message.body == body
        result = m.VerifyMessageResult(nonce=command.nonce)
        stream.send(m.TelemetryCommand(status=m.Status(code=m.Code.OK), verify_message_result=result))
        assert pending.result().status.code == m.Code.OK


def test_a_subscription_is_deleted_at_all_brokers(stage: Stage, tool: Rpcs) -> None:
    with Rpcs(stage.proxy) as rpcs:
        rpcs.begin(settings_of_consumer("g-left", "orders", kind=m.ClientType.PUSH_CONSUMER))
        rpcs.SendMessage(send_request("orders", *[b"x"] * 4))
        consume(rpcs, "g-left", 2)
        rpcs.NotifyClientTermination(m.NotifyClientTerminationRequest(group=m.Resource(name="g-left")))
    request = m.DeleteSubscriptionRequest(topic=TOPIC, group=m.Resource(name="g-left"))
    until(lambda: tool.admin("DeleteSubscription", request).status.code, m.Code.OK)
    listing = m.ListSubscriptionRequest(group=request.group)
    assert len(tool.admin("ListSubscription", listing).subscription_info) == 0
