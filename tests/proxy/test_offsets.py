"""Pulls and offsets: the four calls that RocketMQ's proxy does not serve."""

from __future__ import annotations

from typing import Any

import pytest

from firearrow.proxy import messages as m
from firearrow.testing.cluster import BlockingCluster
from tests.loglines import told
from tests.proxy.rpcs import Rpcs, send_request, settings_of_consumer

KEYS = {"enablePropertyFilter": True}
CODE = m.Code
OK = m.Status(code=m.Code.OK, message="OK")


def queue(topic: str, number: int = 0, broker: str = "broker-a") -> m.MessageQueue:
    return m.MessageQueue(topic=m.Resource(name=topic), id=number, broker=m.Broker(name=broker))


def pull(topic: str, offset: int, *, group: str = "g", wait_s: int = 0, **options: Any) -> m.PullMessageRequest:
    return m.PullMessageRequest(
        group=m.Resource(name=group),
        message_queue=options.pop("message_queue", queue(topic)),
        offset=offset,
        filter_expression=options.pop("filter_expression", m.FilterExpression(type=m.FilterType.TAG, expression="*")),
        long_polling_timeout=m.Duration(seconds=wait_s),
        **options,
    )


def pulled(rpcs: Rpcs, request: m.PullMessageRequest) -> tuple[m.Status, list[bytes], int]:
    """Return the status, the bodies and the next offset of a pull."""
    answers = list(rpcs.streamed("PullMessage", request))
    kinds = [answer.WhichOneof("content") for answer in answers]
    assert kinds == ["status", *["message"] * (len(kinds) - 2), "next_offset"]
    return answers[0].status, [answer.message.body for answer in answers[1:-1]], answers[-1].next_offset


def refusal(rpcs: Rpcs, request: m.PullMessageRequest) -> m.Status:
    [answer] = list(rpcs.streamed("PullMessage", request))
    status: m.Status = answer.status
    return status


@pytest.fixture(scope="module")
def topic(cluster: BlockingCluster) -> str:
    """Make a topic whose only queue has the messages 0 to 4."""
    cluster.create_topic("pulled", queues=1)
    with Rpcs(cluster.brokers[0].grpc) as rpcs:
        for number in range(5):
            request = send_request("pulled", b"%d" % number, tag="ab"[number % 2], properties={"n": str(number)})
            assert rpcs.SendMessage(request).status == OK
        while pulled(rpcs, pull("pulled", 4, wait_s=5))[1] != [b"4"]:
            pass
    return "pulled"


# --- PullMessage ---


def test_messages_from_an_offset_on(rpcs: Rpcs, topic: str) -> None:
    rpcs.begin(settings_of_consumer("g", topic, kind=m.ClientType.PULL_CONSUMER))
    assert pulled(rpcs, pull(topic, 0)) == (OK, [b"0", b"1", b"2", b"3", b"4"], 5)
    assert pulled(rpcs, pull(topic, 1, batch_size=2)) == (OK, [b"1", b"2"], 3)
    nothing = m.Status(code=CODE.MESSAGE_NOT_FOUND, message="no new message")
    assert pulled(rpcs, pull(topic, 5)) == (nothing, [], 5)
    assert (
        rpcs.Heartbeat(m.HeartbeatRequest(group=m.Resource(name="g"), client_type=m.ClientType.PULL_CONSUMER)).status
        == OK
    )


def test_a_pulled_message_is_complete(rpcs: Rpcs, topic: str) -> None:
    answers = list(rpcs.streamed("PullMessage", pull(topic, 3)))
    message = answers[1].message
    system = message.system_properties
    assert (message.topic.name, message.body, system.tag, system.queue_offset) == (topic, b"3", "b", 3)
    assert dict(message.user_properties) == {"n": "3"}
    assert not system.receipt_handle


def test_a_pull_filters(rpcs: Rpcs, topic: str) -> None:
    tag = m.FilterExpression(type=m.FilterType.TAG, expression="b")
    assert pulled(rpcs, pull(topic, 0, filter_expression=tag)) == (OK, [b"1", b"3"], 5)
    sql = m.FilterExpression(type=m.FilterType.SQL, expression="n > 2")
    assert pulled(rpcs, pull(topic, 0, filter_expression=sql)) == (OK, [b"3", b"4"], 5)


def test_an_offset_that_the_queue_does_not_have(rpcs: Rpcs, topic: str) -> None:
    for offset, expected in ((77, 5), (-1, 0)):
        status, bodies, next_offset = pulled(rpcs, pull(topic, offset))
        assert (status.code, bodies, next_offset) == (CODE.ILLEGAL_OFFSET, [], expected)


def test_a_pull_waits_for_a_message(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("awaited", queues=1)
    answers = rpcs.streamed("PullMessage", pull("awaited", 0, wait_s=20))
    rpcs.SendMessage(send_request("awaited", b"x"))
    assert next(answers).status == OK
    assert next(answers).message.body == b"x"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"message_queue": queue("a b")}, CODE.ILLEGAL_TOPIC),
        ({"group": "a b", "message_queue": queue("a b")}, CODE.ILLEGAL_TOPIC),
        ({"group": "a b"}, CODE.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": queue("pulled", broker="")}, CODE.BAD_REQUEST),
        ({"message_queue": queue("pulled", broker="broker-z")}, CODE.BAD_REQUEST),
        ({"message_queue": queue("nothing")}, CODE.TOPIC_NOT_FOUND),
        ({"message_queue": queue("pulled", 9)}, CODE.INTERNAL_SERVER_ERROR),
        ({"message_queue": queue("pulled", -1)}, CODE.INTERNAL_SERVER_ERROR),
        ({"batch_size": -1}, CODE.BAD_REQUEST),
        (
            {"filter_expression": m.FilterExpression(type=m.FilterType.TAG, expression="||")},
            CODE.ILLEGAL_FILTER_EXPRESSION,
        ),
        (
            {"filter_expression": m.FilterExpression(type=m.FilterType.SQL, expression="n >")},
            CODE.INTERNAL_SERVER_ERROR,
        ),
    ],
)
def test_pulls_that_are_refused(
    rpcs: Rpcs, topic: str, caplog: pytest.LogCaptureFixture, change: dict[str, Any], code: m.Code
) -> None:
    status = refusal(rpcs, pull(topic, **{"offset": 0, **change}))
    assert status.code == code, status
    assert not [line for line in told(caplog) if line["event"] == "call failed"]


# --- offsets ---


def update(topic: str, offset: int, group: str = "g-offsets", **options: Any) -> m.UpdateOffsetRequest:
    return m.UpdateOffsetRequest(group=m.Resource(name=group), message_queue=queue(topic, **options), offset=offset)


def get(topic: str, group: str = "g-offsets", **options: Any) -> m.GetOffsetRequest:
    return m.GetOffsetRequest(group=m.Resource(name=group), message_queue=queue(topic, **options))


def query(topic: str, policy: m.QueryOffsetPolicy, seconds: int = 0, **options: Any) -> m.QueryOffsetRequest:
    request = m.QueryOffsetRequest(message_queue=queue(topic, **options), query_offset_policy=policy)
    if seconds:
        request.timestamp.seconds = seconds
    return request


def test_the_offset_of_a_group(rpcs: Rpcs, topic: str) -> None:
    assert rpcs.UpdateOffset(update(topic, 3)).status.code == CODE.CONSUMER_GROUP_NOT_FOUND
    rpcs.begin(settings_of_consumer("g-offsets", topic, kind=m.ClientType.PULL_CONSUMER))
    assert rpcs.GetOffset(get(topic)).status.code == CODE.OFFSET_NOT_FOUND
    for offset in (3, 0, 5):
        assert rpcs.UpdateOffset(update(topic, offset)).status == OK
        found = rpcs.GetOffset(get(topic))
        assert (found.status, found.offset) == (OK, offset)


def test_offsets_of_a_queue(cluster: BlockingCluster, rpcs: Rpcs, topic: str) -> None:
    policy = m.QueryOffsetPolicy
    stored_s = cluster.messages(topic)[0].store_timestamp_ms // 1000
    cases = [
        (query(topic, policy.BEGINNING), 0),
        (query(topic, policy.END), 5),
        (query(topic, policy.TIMESTAMP, stored_s - 100), 0),
        (query(topic, policy.TIMESTAMP, stored_s + 100), 5),
    ]
    for request, expected in cases:
        found = rpcs.QueryOffset(request)
        assert (found.status, found.offset) == (OK, expected), request


def test_calls_about_offsets_that_are_refused(rpcs: Rpcs, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    rpcs.begin(settings_of_consumer("g-refused", topic))
    unknown = query(topic, m.QueryOffsetPolicy.END)
    unknown.query_offset_policy = 77
    cases = [
        (rpcs.UpdateOffset(update(topic, -1)), CODE.ILLEGAL_OFFSET),
        (rpcs.UpdateOffset(update("a b", 1)), CODE.ILLEGAL_TOPIC),
        (rpcs.UpdateOffset(update(topic, 1, "a b")), CODE.ILLEGAL_CONSUMER_GROUP),
        (rpcs.UpdateOffset(update("nothing", 1, "g-refused")), CODE.TOPIC_NOT_FOUND),
        (rpcs.UpdateOffset(update(topic, 1, broker="")), CODE.BAD_REQUEST),
        (rpcs.GetOffset(get("a b")), CODE.ILLEGAL_TOPIC),
        (rpcs.GetOffset(get(topic, "a b")), CODE.ILLEGAL_CONSUMER_GROUP),
        (rpcs.GetOffset(get(topic, broker="broker-z")), CODE.BAD_REQUEST),
        (rpcs.QueryOffset(query("a b", m.QueryOffsetPolicy.END)), CODE.ILLEGAL_TOPIC),
        (rpcs.QueryOffset(unknown), CODE.BAD_REQUEST),
        (rpcs.QueryOffset(query("nothing", m.QueryOffsetPolicy.END)), CODE.TOPIC_NOT_FOUND),
        (rpcs.QueryOffset(query(topic, m.QueryOffsetPolicy.TIMESTAMP, 1 << 50)), CODE.BAD_REQUEST),
        (rpcs.QueryOffset(query(topic, m.QueryOffsetPolicy.TIMESTAMP, -1)), CODE.OK),
    ]
    for number, (answer, code) in enumerate(cases):
        assert answer.status.code == code, (number, answer)
    assert not [line for line in told(caplog) if line["event"] == "call failed"]
