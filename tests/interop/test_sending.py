"""Every way in which the official producer sends, and what a consumer then finds."""

from __future__ import annotations

import random

import pytest

from tests.interop.driver import JavaError
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, BODY_BYTES_MAX, MIB, JavaClient, Outgoing
from tests.interop.waiting import wait_until

MESSAGE_ILLEGAL = 13
COMPRESSION_BITS = {"LZ4": 0x100, "ZSTD": 0x200, "ZLIB": 0x300}
COMPRESSION_MASK = 0x700


def numbered(count: int) -> list[Outgoing]:
    """Make messages that a reader can tell apart."""
    return [Outgoing(body=f"message {i}".encode()) for i in range(count)]


def test_sync_sends_say_where_each_message_is(java: JavaClient, topic: str) -> None:
    bodies = [f"message {i}".encode() for i in range(20)]
    messages = [Outgoing(body=body, queue=i % 4) for i, body in enumerate(bodies)]
    reports = java.producer().send(topic, messages)
    assert {report.status for report in reports} == {"SEND_OK"}
    places = [(report.queue_id, report.queue_offset) for report in reports]
    assert places == [(i % 4, i // 4) for i in range(20)]
    stored = java.pull_consumer().read(topic)
    assert [message.body for message in stored] == [bodies[q + 4 * n] for q in range(4) for n in range(5)]
    assert [(message.queue_id, message.queue_offset) for message in stored] == sorted(places)
    ids = {(report.msg_id, report.offset_msg_id) for report in reports}
    assert {(message.msg_id, message.offset_msg_id) for message in stored} == ids


def test_async_sends_all_complete(java: JavaClient, topic: str) -> None:
    messages = numbered(64)
    reports = java.producer().send_async(topic, messages)
    assert {report.status for report in reports} == {"SEND_OK"}
    by_id = {message.msg_id: message for message in java.pull_consumer().read(topic)}
    assert len(by_id) == 64
    for sent, report in zip(messages, reports, strict=True):
        found = by_id[report.msg_id]
        assert found.body == sent.body
        assert (found.queue_id, found.queue_offset) == (report.queue_id, report.queue_offset)


def test_oneway_sends_arrive_once(java: JavaClient, topic: str) -> None:
    messages = numbered(40)
    java.producer().send_oneway(topic, messages)

    def all_stored() -> bool:
        return sum(java.max_offset(topic, queue) for queue in range(4)) == 40

    wait_until(all_stored, ARRIVAL_TIMEOUT_S, "40 messages in the queues")
    stored = sorted(message.body for message in java.pull_consumer().read(topic))
    assert stored == sorted(message.body for message in messages)


def test_a_batch_is_one_run_of_one_queue(java: JavaClient, topic: str) -> None:
    messages = [Outgoing(body=f"批量 {i}".encode(), tags=f"Tag{i % 2}", keys=f"batch-{i}") for i in range(32)]
    report = java.producer().send_batch(topic, messages)
    assert report.status == "SEND_OK"
    stored = java.pull_consumer().read(topic)
    assert [message.body for message in stored] == [message.body for message in messages]
    assert [message.tags for message in stored] == [message.tags for message in messages]
    assert [message.keys for message in stored] == [message.keys for message in messages]
    assert [message.queue_offset for message in stored] == list(range(32))
    assert {message.queue_id for message in stored} == {report.queue_id}
    assert ",".join(message.msg_id for message in stored) == report.msg_id
    assert [message.offset_msg_id for message in stored] == report.offset_msg_id.split(",")


def test_tags_keys_properties_and_flag_arrive(java: JavaClient, topic: str) -> None:
    sent = Outgoing(
        body="内容".encode(),
        tags="标签",
        keys="order-1 order-2",
        properties={"地区": "杭州", "price": "12.5", "long": "x" * 3000},
        flag=7,
        queue=2,
    )
    java.producer().send(topic, [sent])
    (found,) = java.pull_consumer().read(topic)
    assert (found.body, found.tags, found.keys) == (sent.body, sent.tags, sent.keys)
    assert (found.flag, found.queue_id, found.reconsume_times) == (7, 2, 0)
    assert sent.properties.items() <= found.properties.items()


def test_the_largest_body_arrives(java: JavaClient, topic: str) -> None:
    body = random.Random(4).randbytes(BODY_BYTES_MAX)
    sent = Outgoing(body=body, keys="largest", properties={"note": "p" * 1000}, queue=0)
    java.producer().send(topic, [sent])
    (found,) = java.pull_consumer().read(topic)
    assert found.body == body
    assert (found.keys, found.properties["note"]) == ("largest", "p" * 1000)


def test_a_body_above_the_limit_is_refused(java: JavaClient, topic: str) -> None:
    producer = java.producer(message_bytes_max=5 * MIB)
    with pytest.raises(JavaError) as refused:
        producer.send(topic, [Outgoing(body=bytes(BODY_BYTES_MAX + 1))])
    assert (refused.value.type, refused.value.code) == ("MQBrokerException", MESSAGE_ILLEGAL)
    assert java.pull_consumer().read(topic) == []


@pytest.mark.parametrize("compression", COMPRESSION_BITS)
def test_compressed_bodies_arrive_as_sent(java: JavaClient, topic: str, compression: str) -> None:
    bodies = [f"{compression} {i}; ".encode() * 800 for i in range(8)]
    producer = java.producer(compression=compression, compress_over_bytes=1024)
    producer.send(topic, [Outgoing(body=body, queue=1) for body in bodies])
    stored = java.pull_consumer().read(topic)
    assert [message.body for message in stored] == bodies
    assert all(message.store_size < len(message.body) for message in stored)
    kinds = {message.sys_flag & COMPRESSION_MASK for message in stored}
    assert kinds == {COMPRESSION_BITS[compression]}


def test_the_first_send_creates_a_topic(java: JavaClient, name: str) -> None:
    reports = java.producer().send(name, numbered(8))
    # The client takes queues in turn, and begins again when it asks for routes again meanwhile.
    assert {report.queue_id for report in reports} == {0, 1, 2, 3}
    bodies = sorted(message.body for message in java.pull_consumer().read(name))
    assert bodies == [message.body for message in numbered(8)]
