"""Admin service about groups, at an embedded broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from firearrow.proxy import messages as m
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from tests.proxy.rpcs import Rpcs, Telemetry, receive_request, send_request, settings_of_consumer


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    # With metrics a broker counts messages in flight.
    keys: dict[str, Any] = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
    with EmbeddedCluster(grpc=True, enableLmq=True, enableMultiDispatch=True, **keys) as found:
        found.create_topic("orders", queues=2)
        found.create_topic("other", queues=1)
        yield found


@pytest.fixture
def rpcs(cluster: BlockingCluster) -> Iterator[Rpcs]:
    with Rpcs(cluster.brokers[0].grpc, "host-1@7@0@x") as found:
        yield found


@pytest.fixture
def tool(cluster: BlockingCluster) -> Iterator[Rpcs]:
    """A console, which has no client id."""
    with Rpcs(cluster.brokers[0].grpc) as found:
        del found.metadata["x-mq-client-id"]
        yield found


def name(text: str) -> m.Resource:
    return m.Resource(name=text)


def consumer(rpcs: Rpcs, group: str, *topics: str) -> Telemetry:
    return rpcs.begin(settings_of_consumer(group, *topics, kind=m.ClientType.PUSH_CONSUMER))[0]


def consumed(rpcs: Rpcs, group: str, topic: str, count: int) -> list[m.Message]:
    """Receive messages until there are as many as wanted."""
    found: list[m.Message] = []
    deadline = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < deadline
        found += rpcs.received(receive_request(group, topic, count=count - len(found)))
    return found


# --- subscriptions ---


def test_subscriptions_of_a_group(rpcs: Rpcs, tool: Rpcs) -> None:
    consumer(rpcs, "g-subs", "orders", "other")
    answer = tool.admin("ListSubscription", m.ListSubscriptionRequest(group=name("g-subs")))
    assert answer.status.code == m.Code.OK
    assert [info.topic.name for info in answer.subscription_info] == ["orders", "other"]
    info = answer.subscription_info[0]
    assert (info.group.name, info.expression.expression, info.online) == ("g-subs", "*", True)
    assert (info.message_model, info.subscription_consistency) == (m.MessageModel.CLUSTERING, True)
    assert info.HasField("last_update_timestamp")


def test_subscriptions_to_a_topic_include_those_of_groups_that_are_away(rpcs: Rpcs, tool: Rpcs) -> None:
    rpcs.SendMessage(send_request("other", b"x"))
    consumer(rpcs, "g-away", "other")
    rpcs.AckMessage(rpcs.ack_request("g-away", "other", *consumed(rpcs, "g-away", "other", 1)))
    rpcs.NotifyClientTermination(m.NotifyClientTerminationRequest(group=name("g-away")))
    answer = tool.admin("ListSubscription", m.ListSubscriptionRequest(topic=name("other")))
    found = {info.group.name: info.online for info in answer.subscription_info}
    assert found["g-away"] is False


def test_members_that_differ_are_told(cluster: BlockingCluster, rpcs: Rpcs, tool: Rpcs) -> None:
    with Rpcs(cluster.brokers[0].grpc) as second:
        consumer(rpcs, "g-differ", "orders")
        settings = settings_of_consumer("g-differ", "orders", kind=m.ClientType.PUSH_CONSUMER)
        settings.subscription.subscriptions[0].expression.expression = "a"
        second.begin(settings)
        listed = tool.admin("ListSubscription", m.ListSubscriptionRequest(group=name("g-differ")))
        assert [info.subscription_consistency for info in listed.subscription_info] == [False]
        request = m.DescribeSubscriptionRequest(topic=name("orders"), group=name("g-differ"))
        answer = tool.admin("DescribeSubscription", request)
        found = {
            it.client_info.client_id: it.subscription_info.expression.expression
            for it in answer.client_subscription_info
        }
        assert found == {rpcs.client_id: "*", second.client_id: "a"}
        [info] = [it.client_info for it in answer.client_subscription_info if "@" in it.client_info.client_id]
        assert (info.hostname, info.egress_ip, info.language) == ("host-1", "127.0.0.1", "PYTHON")
        assert info.version == "5.1.2"


def test_a_deleted_subscription_is_listed_no_more(cluster: BlockingCluster, rpcs: Rpcs, tool: Rpcs) -> None:
    cluster.create_topic("left", queues=1)
    rpcs.SendMessage(send_request("left", b"x"))
    consumer(rpcs, "g-left", "left")
    rpcs.AckMessage(rpcs.ack_request("g-left", "left", *consumed(rpcs, "g-left", "left", 1)))
    request = m.DeleteSubscriptionRequest(topic=name("left"), group=name("g-left"))
    assert tool.admin("DeleteSubscription", request).status.code == m.Code.PRECONDITION_FAILED
    rpcs.NotifyClientTermination(m.NotifyClientTerminationRequest(group=name("g-left")))
    listing = m.ListSubscriptionRequest(group=name("g-left"))
    assert [info.online for info in tool.admin("ListSubscription", listing).subscription_info] == [False]
    assert tool.admin("DeleteSubscription", request).status.code == m.Code.OK
    assert len(tool.admin("ListSubscription", listing).subscription_info) == 0


def test_subscriptions_need_a_topic_or_a_group(tool: Rpcs) -> None:
    answer = tool.admin("ListSubscription", m.ListSubscriptionRequest())
    assert answer.status.code == m.Code.BAD_REQUEST
    answer = tool.admin("DescribeSubscription", m.DescribeSubscriptionRequest(topic=name("nowhere")))
    assert answer.status.code == m.Code.TOPIC_NOT_FOUND


# --- members ---


def test_connections_of_a_group_by_topic(rpcs: Rpcs, tool: Rpcs) -> None:
    consumer(rpcs, "g-conns", "orders")
    for topic, ids in ((None, [rpcs.client_id]), ("orders", [rpcs.client_id]), ("other", [])):
        request = m.ListConsumerConnectionRequest(group=name("g-conns"), topic=name(topic) if topic else None)
        answer = tool.admin("ListConsumerConnection", request)
        assert answer.status.code == m.Code.OK
        assert [info.client_id for info in answer.client_info] == ids
    answer = tool.admin("ListConsumerConnection", m.ListConsumerConnectionRequest(group=name("g-nobody")))
    assert (answer.status.code, len(answer.client_info)) == (m.Code.OK, 0)


def test_state_of_a_consumer(rpcs: Rpcs, tool: Rpcs) -> None:
    consumer(rpcs, "g-state", "orders")
    request = m.GetConsumerRunningInfoRequest(group=name("g-state"), client_id=rpcs.client_id)
    answer = tool.admin("GetConsumerRunningInfo", request)
    assert answer.status.code == m.Code.OK
    info = answer.consumer_running_info
    assert info.properties["PROP_CLIENT_VERSION"] == "5.1.2"
    assert info.subscriptions["orders"].expression == "*"


def test_stacks_of_a_consumer(rpcs: Rpcs, tool: Rpcs) -> None:
    stream = consumer(rpcs, "g-stack", "orders")
    request = m.PrintThreadStackTraceRequest(group=name("g-stack"), client_id=rpcs.client_id)
    pending = tool.begun_admin("PrintThreadStackTrace", request)
    command = stream.next().print_thread_stack_trace_command
    trace = m.ThreadStackTrace(nonce=command.nonce, thread_stack_trace="main: asleep")
    stream.send(m.TelemetryCommand(status=m.Status(code=m.Code.OK), thread_stack_trace=trace))
    answer = pending.result()
    assert (answer.status.code, answer.thread_stack_trace) == (m.Code.OK, "main: asleep")


def test_a_client_that_is_not_online_is_not_found(tool: Rpcs) -> None:
    request = m.GetConsumerRunningInfoRequest(group=name("g-state"), client_id="nobody")
    assert tool.admin("GetConsumerRunningInfo", request).status.code == m.Code.NOT_FOUND


# --- figures ---


def test_accumulation_in_all_and_by_topic(cluster: BlockingCluster, rpcs: Rpcs, tool: Rpcs) -> None:
    for topic in ("lag-1", "lag-2"):
        cluster.create_topic(topic, queues=1)
    consumer(rpcs, "g-lag", "lag-1", "lag-2")
    rpcs.SendMessage(send_request("lag-1", b"1"))
    rpcs.SendMessage(send_request("lag-2", b"1"))
    for topic in ("lag-1", "lag-2"):  # the group begins
        rpcs.AckMessage(rpcs.ack_request("g-lag", topic, *consumed(rpcs, "g-lag", topic, 1)))
    for _ in range(3):
        rpcs.SendMessage(send_request("lag-1", b"2"))
    deadline = time.monotonic() + 20
    while True:
        request = m.DescribeGroupAccumulationRequest(group=name("g-lag"), topics=[name("lag-1"), name("lag-2")])
        answer = tool.admin("DescribeGroupAccumulation", request)
        assert answer.status.code == m.Code.OK
        if answer.accumulation.accumulation == 3:
            break
        assert time.monotonic() < deadline
    assert {topic: it.ready_messages for topic, it in answer.topic_accumulation.items()} == {"lag-1": 3, "lag-2": 0}
    assert answer.accumulation.inflight_messages == 0
    assert answer.topic_accumulation["lag-1"].last_consume_timestamp > 0
    time.sleep(0.01)
    whole = tool.admin("DescribeGroupAccumulation", m.DescribeGroupAccumulationRequest(group=name("g-lag")))
    assert (whole.accumulation.accumulation, len(whole.topic_accumulation)) == (3, 0)
    delay = whole.accumulation.deliver_delay_time
    assert delay.seconds or delay.nanos
    received = consumed(rpcs, "g-lag", "lag-1", 1)
    popped = tool.admin("DescribeGroupAccumulation", request).topic_accumulation["lag-1"]
    assert (popped.inflight_messages, popped.ready_messages, popped.accumulation) == (1, 2, 3)
    rpcs.AckMessage(rpcs.ack_request("g-lag", "lag-1", *received))
    acknowledged = tool.admin("DescribeGroupAccumulation", request).topic_accumulation["lag-1"]
    assert (acknowledged.inflight_messages, acknowledged.accumulation) == (0, 2)


def test_time_spans_of_queues(rpcs: Rpcs, tool: Rpcs) -> None:
    before = int(time.time() * 1000)
    rpcs.SendMessage(send_request("other", b"1"))
    consumer(rpcs, "g-span", "other")
    rpcs.AckMessage(rpcs.ack_request("g-span", "other", *consumed(rpcs, "g-span", "other", 1)))
    for topics in ([name("other")], []):
        answer = tool.admin("QueryTimeSpan", m.QueryTimeSpanRequest(group=name("g-span"), topics=topics))
        assert answer.status.code == m.Code.OK
        [span] = answer.queue_time_span_list
        assert (span.message_queue.topic.name, span.message_queue.id) == ("other", 0)
        assert span.min_timestamp <= span.consume_timestamp <= span.max_timestamp
        assert span.max_timestamp >= before


def test_a_reset_makes_a_group_receive_again(rpcs: Rpcs, tool: Rpcs, cluster: BlockingCluster) -> None:
    cluster.create_topic("again", queues=1)
    consumer(rpcs, "g-again", "again")
    rpcs.SendMessage(send_request("again", b"1"))
    rpcs.AckMessage(rpcs.ack_request("g-again", "again", *consumed(rpcs, "g-again", "again", 1)))
    request = m.ResetGroupOffsetRequest(group=name("g-again"), topic=name("again"))
    assert tool.admin("ResetGroupOffset", request).status.code == m.Code.BAD_REQUEST
    request.reset_timestamp.seconds = -1  # before all messages; for a broker -1 ms is the end
    assert tool.admin("ResetGroupOffset", request).status.code == m.Code.OK
    assert [message.body for message in consumed(rpcs, "g-again", "again", 1)] == [b"1"]
    request.group.name = "g-unknown"
    assert tool.admin("ResetGroupOffset", request).status.code == m.Code.CONSUMER_GROUP_NOT_FOUND


def test_accumulation_and_members_of_a_lite_topic(cluster: BlockingCluster, rpcs: Rpcs, tool: Rpcs) -> None:
    attributes: dict[str, Any] = {"message.type": "LITE"}
    cluster.create_topic("parent", **attributes)
    cluster.create_group("g-lite", attributes={"+lite.bind.topic": "parent"})
    settings = settings_of_consumer("g-lite", "parent", kind=m.ClientType.LITE_PUSH_CONSUMER)
    rpcs.begin(settings)
    request = m.SyncLiteSubscriptionRequest(
        action=m.LiteSubscriptionAction.PARTIAL_ADD,
        topic=name("parent"),
        group=name("g-lite"),
        lite_topic_set=["room-1"],
    )
    assert rpcs.SyncLiteSubscription(request).status.code == m.Code.OK
    for lite_topic, ids in (("room-1", [rpcs.client_id]), ("room-2", [])):
        listing = m.ListConsumerConnectionRequest(group=name("g-lite"), topic=name("parent"), liteTopic=lite_topic)
        answer = tool.admin("ListConsumerConnection", listing)
        assert [info.client_id for info in answer.client_info] == ids
    send = send_request("parent", b"x", kind=m.MessageType.LITE, lite_topic="room-1")
    assert rpcs.SendMessage(send).status.code == m.Code.OK
    [message] = consumed(rpcs, "g-lite", "parent", 1)
    ack = rpcs.ack_request("g-lite", "parent", message)
    ack.entries[0].lite_topic = "room-1"
    assert rpcs.AckMessage(ack).status.code == m.Code.OK
    assert rpcs.SendMessage(send).status.code == m.Code.OK
    deadline = time.monotonic() + 20
    for wanted in ("room-1", None):
        request_of_lag = m.DescribeGroupAccumulationRequest(group=name("g-lite"), lite_topic=wanted)
        while True:
            lag = tool.admin("DescribeGroupAccumulation", request_of_lag)
            assert lag.status.code == m.Code.OK, lag
            if lag.accumulation.accumulation == 1:
                break
            assert time.monotonic() < deadline, lag
        assert {key: it.accumulation for key, it in lag.lite_topic_accumulation.items()} == {"room-1": 1}
