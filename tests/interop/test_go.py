"""The official Go client sends and consumes, alone and together with the Java client."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.interop.goclient import GoClient
from tests.interop.javaclient import JavaClient, Outgoing, Received
from tests.interop.servers import Server
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
