"""The official Go client: what it sends, consumes, fails, delays, chooses, decides and asks, alone
and together with the Java client."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.interop.goclient import GoClient
from tests.interop.javaclient import JavaClient, Outgoing, Received
from tests.interop.servers import Server
from tests.interop.test_retries import (
    ALWAYS,
    FIRST_DELAY_MS,
    LATE_MS_MAX,
    SECOND_MS,
    by_body,
    dead_letters,
    has_retry_topic,
)
from tests.interop.toolchain import go_program


@pytest.fixture
def go(server: Server) -> GoClient:
    """The Go client on the server under test."""
    return GoClient(go_program(), server.namesrv)


def described(count: int) -> list[Outgoing]:
    """Make messages with everything that a message can have; no two are equal."""
    return [
        Outgoing(
            body=f"内容 {i} ".encode() * (1 + i),
            tags="TagA" if i % 3 else "TagB",
            keys=f"order-{i} batch",
            properties={"地区": f"杭州{i}"},
            flag=i,
        )
        for i in range(count)
    ]


def content(message: Outgoing | Received) -> tuple[bytes, str | None, str | None, str, int]:
    """Pick what the sender has put into a message."""
    keys = (message.keys or "").strip()  # the Go client ends its keys with a blank
    return message.body, message.tags, keys, message.properties["地区"], message.flag


def contents(messages: list[Outgoing] | list[Received]) -> Counter[object]:
    """Count the messages by their content."""
    return Counter(content(message) for message in messages)


def test_go_sends_and_consumes(go: GoClient, java: JavaClient, topic: str, group: str) -> None:
    messages = described(60)
    reports = go.send(topic, messages)
    assert [report.status for report in reports] == ["SEND_OK"] * 60
    received = go.consume(topic, group, 60)
    assert contents(received) == contents(messages)
    places = {report.msg_id: (report.queue_id, report.queue_offset) for report in reports}
    assert {m.msg_id: (m.queue_id, m.queue_offset) for m in received} == places
    java.wait_until_consumed(group, topic, 60)


def test_go_resumes_where_its_group_was(go: GoClient, topic: str, group: str) -> None:
    messages = described(50)
    go.send(topic, messages[:30])
    assert contents(go.consume(topic, group, 30)) == contents(messages[:30])
    go.send(topic, messages[30:])
    assert contents(go.consume(topic, group, 20)) == contents(messages[30:])


def test_go_gets_exactly_its_tags(go: GoClient, java: JavaClient, topic: str, group: str) -> None:
    """Only with ASCII tags: the Go client hashes the bytes of a tag, all others its characters."""
    messages = described(60)
    by_tag = sorted(messages, key=lambda message: message.tags or "")
    java.producer().send(topic, by_tag)  # so each queue ends with one that is wanted
    wanted = [message for message in messages if message.tags == "TagB"]
    assert contents(go.consume(topic, group, len(wanted), "TagB")) == contents(wanted)
    java.wait_until_consumed(group, topic, 60)


def test_java_sends_to_go(go: GoClient, java: JavaClient, topic: str, group: str) -> None:
    messages = described(60)
    java.producer(compress_over_bytes=200).send(topic, messages)
    assert contents(go.consume(topic, group, 60)) == contents(messages)
    java.wait_until_consumed(group, topic, 60)


def test_go_sends_to_java(go: GoClient, java: JavaClient, topic: str, group: str) -> None:
    messages = described(60)
    consumer = java.push_consumer(group, topic)
    go.send(topic, messages)
    consumer.wait_for(60)
    assert contents(consumer.stop()) == contents(messages)
    java.wait_until_consumed(group, topic, 60)


def test_what_fails_in_go_comes_again(go: GoClient, java: JavaClient, topic: str, group: str) -> None:
    has_retry_topic(java, group, topic)
    [report] = java.producer().send(topic, [Outgoing(body=b"once", tags="T", keys="k")])
    first, second = go.consume(topic, group, 2, failures=1)
    assert (first.reconsume_times, second.reconsume_times) == (0, 1)
    assert 0 <= second.store_timestamp - first.store_timestamp - FIRST_DELAY_MS < LATE_MS_MAX
    assert (second.body, second.tags, second.topic) == (b"once", "T", topic)
    assert second.properties["ORIGIN_MESSAGE_ID"] == report.offset_msg_id
    java.wait_until_consumed(group, topic, 1)


def test_what_always_fails_in_go_is_a_dead_letter(go: GoClient, java: JavaClient, topic: str, group: str) -> None:
    has_retry_topic(java, group, topic)
    sent = [b"%d" % number for number in range(5)]
    reports = go.send(topic, [Outgoing(body=body) for body in sent])
    received = by_body(go.consume(topic, group, 15, failures=ALWAYS, level=1, times_max=2))
    for body in sent:
        assert [message.reconsume_times for message in received[body]] == [0, 1, 2]
        times = [message.store_timestamp for message in received[body]]
        for before, after in pairwise(times):
            assert 0 <= after - before - SECOND_MS < LATE_MS_MAX
    dead = dead_letters(java, group, 5)
    assert sorted(message.body for message in dead) == sent
    assert {message.reconsume_times for message in dead} == {3}
    origins = {message.properties["ORIGIN_MESSAGE_ID"] for message in dead}
    assert origins == {report.offset_msg_id for report in reports}


def test_go_tries_again_in_place_where_it_keeps_the_order(
    go: GoClient, java: JavaClient, topic: str, group: str
) -> None:
    java.producer().send(topic, [Outgoing(body=b"%d" % number, queue=0) for number in range(4)])
    received = go.consume(topic, group, 12, failures=2, orderly=True)
    assert [message.body for message in received] == [b"%d" % (n // 3) for n in range(12)]
    assert {message.topic for message in received} == {topic}
    java.wait_until_consumed(group, topic, 4)


def test_go_gets_what_it_has_delayed(go: GoClient, topic: str, group: str) -> None:
    go.send(topic, [Outgoing(body=b"%d" % level, level=level) for level in (2, 1, 0)])
    received = sorted(go.consume(topic, group, 3), key=lambda message: message.store_timestamp)
    assert [message.body for message in received] == [b"0", b"1", b"2"]
    for message, delay_ms in zip(received, (0, 1000, 5000), strict=True):
        assert 0 <= message.store_timestamp - message.born_timestamp - delay_ms < LATE_MS_MAX


def test_go_gets_what_its_expression_chooses(go: GoClient, java: JavaClient, topic: str, group: str) -> None:
    messages = [Outgoing(body=b"%d" % n, properties={"a": str(n)}) for n in range(30)]
    java.producer().send(topic, messages)
    received = go.consume(topic, group, 8, "a BETWEEN 3 AND 10", sql=True)
    assert sorted(int(message.body) for message in received) == [*range(3, 11)]


def test_go_asks_and_java_answers(go: GoClient, java: JavaClient, topic: str, group: str) -> None:
    java.replier(group, topic)
    body = f"{topic} 1".encode()
    assert go.request(topic, f"{group}_asking", body) == b"re: " + body


def test_java_asks_and_go_answers(go: GoClient, java: JavaClient, topic: str, group: str) -> None:
    producer = java.producer(f"{group}_asking")
    bodies = [f"{topic} {number}".encode() for number in range(3)]
    with go.replying(topic, group) as asked:
        for body in bodies:
            assert producer.request(topic, Outgoing(body=body)) == b"re: " + body
    assert sorted(message.body for message in asked) == bodies
