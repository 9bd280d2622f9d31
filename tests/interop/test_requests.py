"""Requests of the official producer, answered by an official consumer; and message traces."""

from __future__ import annotations

import pytest

from tests.interop.driver import JavaError
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, REQUEST_S, JavaClient, Outgoing, Received
from tests.interop.waiting import wait_until

REPLIES = "DefaultCluster_REPLY_TOPIC"
TRACES = "RMQ_SYS_TRACE_TOPIC"
FIELD, RECORD = "\x01", "\x02"


def replies_to(java: JavaClient, topic: str, body: bytes) -> list[Received]:
    """The copies of replies that end with a body."""
    return [it for it in java.pull_consumer().read(REPLIES) if it.body.endswith(body)]


def test_a_request_is_answered(java: JavaClient, topic: str, group: str) -> None:
    java.replier(group, topic)
    producer = java.producer(f"{group}_asking")
    for number in range(3):
        body = f"{topic} {number}".encode()
        assert producer.request(topic, Outgoing(body=body)) == b"re: " + body
        [copy] = replies_to(java, topic, body)
        assert copy.body == b"re: " + body
        assert copy.properties["MSG_TYPE"] == "reply"
    asked = java.pull_consumer().read(topic)
    assert [message.properties["TTL"] for message in asked] == [str(REQUEST_S * 1000)] * 3


def test_a_long_reply_comes_compressed(java: JavaClient, topic: str, group: str) -> None:
    java.replier(group, topic, compress_over_bytes=100)
    body = topic.encode() + bytes(100_000)
    assert java.producer().request(topic, Outgoing(body=body)) == b"re: " + body


def test_a_request_that_nobody_answers(java: JavaClient, topic: str) -> None:
    with pytest.raises(JavaError) as failed:
        java.producer().request(topic, Outgoing(body=b"?"), within_s=1)
    assert failed.value.type == "RequestTimeoutException"
    [asked] = java.pull_consumer().read(topic)
    assert asked.body == b"?"


def test_messages_are_traced(java: JavaClient, topic: str, group: str) -> None:
    consumer = java.push_consumer(group, topic, trace=True)
    producer = java.producer(f"{group}_traced", trace=True)
    [report] = producer.send(topic, [Outgoing(body=b"traced", tags="A", keys="k1")])
    consumer.wait_for(1)

    def traced() -> dict[str, list[str]] | None:
        found = [
            record.split(FIELD)
            for message in java.pull_consumer().read(TRACES)
            if report.msg_id in (message.keys or "").split()
            for record in message.body.decode().split(RECORD)
            if record and report.msg_id in record
        ]
        kinds = {record[0]: record for record in found}
        return kinds if kinds.keys() >= {"Pub", "SubBefore", "SubAfter"} else None

    wait_until(lambda: TRACES in java.topics(), ARRIVAL_TIMEOUT_S, "the topic of traces")
    kinds = wait_until(traced, ARRIVAL_TIMEOUT_S, "traces")
    sent = kinds["Pub"]
    assert sent[2:8] == ["DefaultRegion", f"{group}_traced", topic, report.msg_id, "A", "k1"]
    assert (sent[12], sent[13]) == (report.offset_msg_id, "true")
    printed = java.mqadmin("queryMsgTraceById", "-i", report.msg_id, "-t", TRACES)
    shown = [line.split() for line in printed.splitlines()]
    assert any(line[:2] == ["Pub", f"{group}_traced"] and "success" in line for line in shown)
    assert any(line[:2] == ["Sub", group] and "success" in line for line in shown)
