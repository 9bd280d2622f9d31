"""Sends and recalls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from firearrow.message.model import MessageView
from firearrow.message.properties import RESERVED
from firearrow.proxy import messages as m
from firearrow.proxy.queuechoice import queue_for
from firearrow.proxy.sending import plain_header
from firearrow.testing import EmbeddedCluster
from firearrow.testing.cluster import BlockingCluster
from firearrow.testing.virtual import VirtualTime
from firearrow.wire.bodies import TopicConfig
from tests.loglines import told
from tests.proxy.conftest import Administrator, Connect
from tests.proxy.direct import Direct, World, run
from tests.proxy.rpcs import Rpcs, receive_request, send_request, settings_of_consumer

KEYS = {"enableMixedMessageType": True, "maxMessageSize": 5000}
OK = m.Status(code=m.Code.OK, message="OK")
MiB = 1024 * 1024


def ids_of(views: list[MessageView]) -> list[str]:
    return [view.properties["UNIQ_KEY"] for view in views]


# --- what is stored ---


def test_a_message_is_stored_as_rocketmq_stores_it(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("stored")
    request = send_request(
        "stored", b"body", tag="a", keys=("k1", "k2"), properties={"x": "y"}, trace_context="trace", queue_id=3
    )
    system = request.messages[0].system_properties
    answer = rpcs.SendMessage(request)
    assert answer.status == OK
    [entry] = answer.entries
    assert (entry.status, entry.message_id, entry.offset) == (OK, system.message_id, 0)
    [view] = cluster.messages("stored")
    assert (view.body, view.topic, view.sys_flag & 0b1111) == (b"body", "stored", 0)
    born_ms = system.born_timestamp.seconds * 1000 + system.born_timestamp.nanos // 1_000_000
    assert view.born_timestamp_ms == born_ms
    assert dict(view.properties) == {
        "x": "y",
        "TAGS": "a",
        "KEYS": "k1 k2",
        "UNIQ_KEY": system.message_id,
        "RECONSUME_TIME": "0",
        "PGROUP": "stored",
        "TRACE_CONTEXT": "trace",
        "__BORNHOST": "tests",
        "BORN_TIMESTAMP": str(born_ms),
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


def test_a_message_without_a_host_has_that_of_its_connection(cluster: BlockingCluster, connect: Connect) -> None:
    """Fields that only a proxy may set change nothing."""
    cluster.create_topic("born")
    forged = {"rpc-remote-address": "6.6.6.6:1", "x-mq-channel-id": "c", "proxy_protocol_addr": "6.6.6.6"}
    client = connect(metadata=forged)
    request = send_request("born", b"x")
    request.messages[0].system_properties.born_host = ""
    assert client.SendMessage(request).status == OK
    [view] = cluster.messages("born")
    assert view.properties["__BORNHOST"].startswith("127.0.0.1:")
    assert view.born_host.ip == "127.0.0.1"


def test_a_compressed_body_goes_through(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("gzip")
    request = send_request("gzip", b"not really gzip")
    request.messages[0].system_properties.body_encoding = m.Encoding.GZIP
    assert rpcs.SendMessage(request).status == OK
    [view] = cluster.messages("gzip")
    assert (view.body, view.sys_flag & 1) == (b"not really gzip", 1)


def test_a_priority_is_stored(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("priority", message_type="PRIORITY")
    assert rpcs.SendMessage(send_request("priority", b"x", priority=2)).status == OK
    assert cluster.messages("priority")[0].properties["_SYS_MSG_PRIORITY_"] == "2"


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_plain_sends_are_stored_and_answered_as_any_other(monkeypatch: pytest.MonkeyPatch, flush: str) -> None:
    kinds: list[dict[str, Any]] = [{}, {"tag": "a"}, {"keys": ("k_1", "k2")}]
    kinds += [{"properties": properties} for properties in ({"x": "y", "z": ""}, {"a_b": "c"})]
    found: list[tuple[list[Any], list[Any]]] = []

    async def main(world: World) -> None:
        client = world.client()
        answers = []
        for number, fields in enumerate(kinds * 2):
            request = send_request("T", b"%d" % number, **fields)
            system = request.messages[0].system_properties
            system.message_id, system.delivery_attempt = f"A{number}", number % 2
            system.born_timestamp.seconds, system.born_timestamp.nanos = 1_000_000 + number, 999_999_999
            answers.append(await client.SendMessage(request))
        await asyncio.sleep(1)
        views = world.cluster.messages("T")
        stored = [
            (view.body, view.queue_offset, view.sys_flag, view.born_timestamp_ms, view.properties) for view in views
        ]
        found.append((answers, stored))

    plain = [0]

    def counted(*about: Any) -> Any:
        header = plain_header(*about)
        plain[0] += header is not None
        return header

    monkeypatch.setattr("firearrow.proxy.producing.plain_header", counted)
    run(main, flushDiskType=flush)
    monkeypatch.setattr("firearrow.proxy.producing.plain_header", lambda *_: None)
    run(main, flushDiskType=flush)
    assert plain == [7], "but those with an underscore, and the first one"
    assert found[0] == found[1]
    assert [answer.status for answer in found[0][0]] == [OK] * 10


# --- queues ---


@pytest.mark.parametrize("trace", ["", "trace"], ids=["plain", "general"])
def test_sends_take_turns(cluster: BlockingCluster, rpcs: Rpcs, trace: str) -> None:
    """A producer of two topics reaches all queues of both."""
    topics = [f"turns-{name}{trace}" for name in "ab"]
    for topic in topics:
        cluster.create_topic(topic, queues=4)
    for _ in range(8):
        for topic in topics:
            assert rpcs.SendMessage(send_request(topic, b"x", trace_context=trace)).status == OK
    for topic in topics:
        assert sorted(view.queue_id for view in cluster.messages(topic)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_message_group_has_one_queue(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    """That of RocketMQ's consistent hash; the queue that the client chose does not count."""
    cluster.create_topic("fifo", queues=8, message_type="FIFO")
    groups = [f"order-{number}" for number in range(20)]
    for group in groups:
        for chosen in (0, 5):
            request = send_request("fifo", b"x", kind=m.MessageType.FIFO, message_group=group, queue_id=chosen)
            assert rpcs.SendMessage(request).status == OK
    found = {(view.properties["__SHARDINGKEY"], view.queue_id) for view in cluster.messages("fifo")}
    assert found == {(group, queue_for(group, range(8))) for group in groups}


def test_queues_that_can_not_be_written(cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs) -> None:
    config = TopicConfig("read-only", 4, 4, 4)
    administrator(lambda admin: admin.topics.create(cluster.brokers[0].address, config))
    answer = rpcs.SendMessage(send_request("read-only", b"x"))
    assert answer.status.code == m.Code.FORBIDDEN
    assert answer.status.message.endswith("no writable queue")
    assert not answer.entries


def test_queues_of_a_topic_that_changes(cluster: BlockingCluster, administrator: Administrator, rpcs: Rpcs) -> None:
    for queues in (1, 3):
        cluster.create_topic("growing", queues=queues)
        for _ in range(3):
            assert rpcs.SendMessage(send_request("growing", b"x")).status == OK
    assert sorted(view.queue_id for view in cluster.messages("growing")) == [0, 0, 0, 0, 1, 2]


# --- several messages ---


def test_each_of_several_messages_has_its_result(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("several", queues=1)
    request = send_request("several", b"a", b"b", b"c")
    answer = rpcs.SendMessage(request)
    assert answer.status == OK
    assert [entry.offset for entry in answer.entries] == [0, 1, 2]
    expected = [message.system_properties.message_id for message in request.messages]
    assert [entry.message_id for entry in answer.entries] == expected
    assert ids_of(cluster.messages("several")) == expected


def test_several_messages_of_groups_have_their_queues(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("several-fifo", queues=8, message_type="FIFO")
    request = m.SendMessageRequest()
    for group in ("a", "b", "a"):
        one = send_request("several-fifo", b"x", kind=m.MessageType.FIFO, message_group=group)
        request.messages.extend(one.messages)
    assert rpcs.SendMessage(request).status == OK
    found = [(view.properties["__SHARDINGKEY"], view.queue_id) for view in cluster.messages("several-fifo")]
    assert found == [(group, queue_for(group, range(8))) for group in ("a", "b", "a")]


def test_a_refused_message_does_not_hide_the_result_of_others(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    """The broker refuses properties of more than 32 KiB; the proxy does not count the trace context."""
    cluster.create_topic("partly", queues=1)
    request = send_request("partly", b"a", b"b", b"c")
    request.messages[1].system_properties.trace_context = "x" * 33_000
    answer = rpcs.SendMessage(request)
    assert answer.status.code == m.Code.MULTIPLE_RESULTS
    refused = m.Code.INTERNAL_SERVER_ERROR
    assert [entry.status.code for entry in answer.entries] == [m.Code.OK, refused, m.Code.OK]
    assert [view.body for view in cluster.messages("partly")] == [b"a", b"c"]
    del request.messages[0], request.messages[1]
    alone = rpcs.SendMessage(request)
    assert (alone.status, len(alone.entries)) == (answer.entries[1].status, 0)


# --- checks ---


def changed(**system: Any) -> m.SendMessageRequest:
    request = send_request("checked", b"x")
    request.messages[0].system_properties.MergeFrom(m.SystemProperties(**system))
    return request


def two_topics() -> m.SendMessageRequest:
    request = send_request("checked", b"a", b"b")
    request.messages[1].topic.name = "other"
    return request


def without_id() -> m.SendMessageRequest:
    request = send_request("checked", b"x")
    request.messages[0].system_properties.message_id = " "
    return request


def late() -> m.SendMessageRequest:
    request = send_request("checked", b"x")
    request.messages[0].system_properties.delivery_timestamp.seconds = 4_000_000_000
    return request


def with_recovery(seconds: int) -> m.SendMessageRequest:
    request = send_request("checked", b"x", kind=m.MessageType.TRANSACTION)
    request.messages[0].system_properties.orphaned_transaction_recovery_duration.seconds = seconds
    return request


CODE = m.Code
REFUSED = [
    (m.SendMessageRequest(), CODE.MESSAGE_CORRUPTED, "no message to send"),
    (send_request("a b", b""), CODE.ILLEGAL_TOPIC, "The specified topic[a b] contains illegal characters"),
    (send_request("TBW102", b"x"), CODE.ILLEGAL_TOPIC, "cannot access system topic"),
    (two_topics(), CODE.MESSAGE_CORRUPTED, "topic in message is not same"),
    (send_request("checked", b""), CODE.MESSAGE_BODY_EMPTY, "message body cannot be empty"),
    (send_request("checked", bytes(5001)), CODE.MESSAGE_BODY_TOO_LARGE, "message body cannot exceed the max 5000"),
    (
        send_request("checked", b"x", properties={str(number): "v" for number in range(129)}),
        CODE.MESSAGE_PROPERTIES_TOO_LARGE,
        "too many user properties, max is 128",
    ),
    (
        send_request("checked", b"x", properties={"TAGS": "v"}),
        CODE.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "property is used by system: TAGS",
    ),
    (
        send_request("checked", b"x", properties={"a\x01": "v"}),
        CODE.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "the key of property cannot contain control character",
    ),
    (
        send_request("checked", b"x", properties={"a": "\x02"}),
        CODE.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "the value of property cannot contain control character",
    ),
    (send_request("checked", b"x", tag=" "), CODE.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace"),
    (send_request("checked", b"x", tag="a|b"), CODE.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'"),
    (send_request("checked", b"x", tag="a\n"), CODE.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character"),
    (send_request("checked", b"x", keys=[" "]), CODE.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of"),
    (send_request("checked", b"x", keys=["a\n"]), CODE.ILLEGAL_MESSAGE_KEY, "key cannot contain control character"),
    (
        send_request("checked", b"x", properties={"a": "v" * 17_000}),
        CODE.MESSAGE_PROPERTIES_TOO_LARGE,
        "the total size of user property is too large, max is 16384",
    ),
    (without_id(), CODE.ILLEGAL_MESSAGE_ID, "message id cannot be empty"),
    (with_recovery(3601), CODE.BAD_REQUEST, "the max transaction recovery time of message is too large, max is 3600"),
    (late(), CODE.ILLEGAL_DELIVERY_TIME, "the max delay time of message is too large, max is 86400000"),
    (changed(message_group=" "), CODE.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of"),
    (changed(message_group="g" * 64), CODE.ILLEGAL_MESSAGE_GROUP, "message group exceed the max size 64"),
    (changed(message_group="a\n"), CODE.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character"),
    (changed(lite_topic=" "), CODE.ILLEGAL_LITE_TOPIC, "lite topic cannot be the char sequence of whitespace"),
    (changed(lite_topic="t" * 65), CODE.ILLEGAL_LITE_TOPIC, "lite topic exceed the max size 64"),
    (changed(lite_topic="a b"), CODE.ILLEGAL_LITE_TOPIC, "lite topic can only contain alphanumeric characters"),
    (changed(trace_context="a\x01b"), CODE.BAD_REQUEST, ""),
]


@pytest.mark.parametrize(("request_", "code", "text"), REFUSED)
def test_refused_messages(
    cluster: BlockingCluster,
    rpcs: Rpcs,
    caplog: pytest.LogCaptureFixture,
    request_: m.SendMessageRequest,
    code: m.Code,
    text: str,
) -> None:
    cluster.create_topic("checked")
    answer = rpcs.SendMessage(request_)
    assert answer.status.code == code, answer
    assert answer.status.message.startswith(text)
    assert not answer.entries
    assert not cluster.messages("checked")
    assert not [line for line in told(caplog) if line["event"] == "call failed"]


def test_one_refused_message_refuses_all(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("all-or-none")
    request = send_request("all-or-none", b"a", b"b")
    request.messages[1].system_properties.trace_context = "a\x01b"
    assert rpcs.SendMessage(request).status.code == CODE.BAD_REQUEST
    assert not cluster.messages("all-or-none")


def test_no_reserved_name_is_taken(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("reserved")
    for name in RESERVED:
        answer = rpcs.SendMessage(send_request("reserved", b"x", properties={name: "v"}))
        assert answer.status.code == CODE.ILLEGAL_MESSAGE_PROPERTY_KEY, name


# --- types ---

FIFO: dict[str, Any] = {"kind": m.MessageType.FIFO, "message_group": "g"}
DELAY: dict[str, Any] = {"kind": m.MessageType.DELAY, "delivery_timestamp": m.Timestamp(seconds=1)}
TRANSACTION: dict[str, Any] = {"kind": m.MessageType.TRANSACTION}


@pytest.mark.parametrize(
    ("topic_type", "sent", "actual"),
    [
        ("NORMAL", FIFO, "FIFO"),
        ("NORMAL", DELAY, "DELAY"),
        ("NORMAL", TRANSACTION, "TRANSACTION"),
        ("NORMAL", {"priority": 1}, "PRIORITY"),
        ("NORMAL", {"lite_topic": "l"}, "LITE"),
        ("FIFO", {}, "NORMAL"),
        ("DELAY", FIFO, "FIFO"),
        ("TRANSACTION", {}, "NORMAL"),
    ],
)
def test_a_message_must_be_of_its_topics_type(
    cluster: BlockingCluster, rpcs: Rpcs, topic_type: str, sent: dict[str, Any], actual: str
) -> None:
    topic = f"typed-{topic_type}"
    cluster.create_topic(topic, message_type=topic_type)
    answer = rpcs.SendMessage(send_request(topic, b"x", **sent))
    assert answer.status == m.Status(
        code=m.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        message="org.apache.rocketmq.proxy.common.ProxyException: TopicMessageType validate failed, "
        f"the expected type is {topic_type}, but actual type is {actual}",
    )
    assert not cluster.messages(topic)


def test_each_of_several_messages_must_be_of_the_type(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("typed-several")
    request = send_request("typed-several", b"a")
    request.messages.extend(send_request("typed-several", b"b", **FIFO).messages)
    assert rpcs.SendMessage(request).status.code == CODE.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert not cluster.messages("typed-several")


def test_a_mixed_topic_takes_all(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("mixed", message_type="MIXED")
    kinds: list[dict[str, Any]] = [{}, FIFO, DELAY, TRANSACTION]
    for sent in kinds:
        assert rpcs.SendMessage(send_request("mixed", b"x", **sent)).status == OK


def test_an_unknown_topic_has_no_type(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    answer = rpcs.SendMessage(send_request("unknown", b"x"))
    assert answer.status.code == CODE.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "the expected type is UNSPECIFIED, but actual type is NORMAL" in answer.status.message
    with (
        EmbeddedCluster(grpc=True, enableTopicMessageTypeCheck=False) as unchecked,
        Rpcs(unchecked.brokers[0].grpc) as client,
    ):
        assert client.SendMessage(send_request("unknown", b"x")).status.code == CODE.TOPIC_NOT_FOUND
        unchecked.create_topic("checked")
        assert client.SendMessage(send_request("checked", b"x", **FIFO)).status == OK
        assert client.RecallMessage(recall("checked", "?")).status.code == CODE.INTERNAL_SERVER_ERROR


# --- delays and recalls ---


def recall(topic: str, handle: str) -> m.RecallMessageRequest:
    return m.RecallMessageRequest(topic=m.Resource(name=topic), recall_handle=handle)


def delayed(topic: str, ms: int) -> m.SendMessageRequest:
    at = m.Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
    return send_request(topic, b"later", kind=m.MessageType.DELAY, delivery_timestamp=at)


def test_a_delayed_message_comes_at_its_time_unless_it_is_recalled() -> None:
    async def main() -> None:
        await time.cluster.create_topic("delayed", message_type="DELAY")
        client = Direct(time.cluster.brokers[0].proxy, time.clock.now_ms)
        await client.settled(settings_of_consumer("g", "delayed"))
        due_ms = time.now_ms + 3_600_000
        kept = (await client.SendMessage(delayed("delayed", due_ms))).entries[0]
        gone = (await client.SendMessage(delayed("delayed", due_ms))).entries[0]
        answer = await client.RecallMessage(recall("delayed", gone.recall_handle))
        assert (answer.status, answer.message_id) == (OK, gone.message_id)
        await asyncio.sleep(3590)
        assert not await client.received(receive_request("g", "delayed", wait_s=5))
        [message] = await client.received(receive_request("g", "delayed", wait_s=20))
        system = message.system_properties
        assert (system.message_id, system.message_type) == (kept.message_id, m.MessageType.DELAY)
        assert system.delivery_timestamp.seconds == due_ms // 1000
        assert due_ms <= time.now_ms <= due_ms + 2000
        assert not await client.received(receive_request("g", "delayed", wait_s=20))

    with VirtualTime(grpc=True, recallMessageEnable=True) as time:
        time.run(main())


def test_recalls_are_refused(cluster: BlockingCluster, rpcs: Rpcs) -> None:
    cluster.create_topic("recalled", message_type="DELAY")
    cluster.create_topic("recalled-not")
    assert rpcs.RecallMessage(recall("a b", "")).status.code == CODE.ILLEGAL_TOPIC
    normal = rpcs.RecallMessage(recall("recalled-not", "")).status
    assert normal.code == CODE.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert normal.message.endswith("the expected type is NORMAL, but actual type is DELAY")
    for handle in ("", "?", "djEgYQ=="):
        assert rpcs.RecallMessage(recall("recalled", handle)).status == m.Status(
            code=CODE.INTERNAL_SERVER_ERROR, message="recall handle is invalid"
        )
    other = "djEgcmVjYWxsZWQgYnJva2VyLXogMSBpZA=="  # v1 recalled broker-z 1 id
    assert rpcs.RecallMessage(recall("recalled", other)).status.code == CODE.BAD_REQUEST
