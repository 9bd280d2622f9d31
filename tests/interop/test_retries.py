"""What the official consumers fail to consume, and what their producers want delivered later."""

from __future__ import annotations

from collections import defaultdict

from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, JavaClient, Outgoing, Received
from tests.interop.waiting import wait_until

ALWAYS = 1000
FIRST_DELAY_MS = 10_000
SECOND_MS = 1000
LATE_MS_MAX = 5000  # with the way to the client and back


def has_retry_topic(java: JavaClient, group: str, topic: str) -> None:
    """Have a group begin, so that its next consumer knows its retry topic from the start: else it
    asks for its route only after half a minute."""
    consumer = java.push_consumer(group, topic)
    retry = f"%RETRY%{group}"
    wait_until(lambda: retry in java.topics(), ARRIVAL_TIMEOUT_S, f"route of {retry}")
    consumer.stop()


def by_body(messages: list[Received]) -> dict[bytes, list[Received]]:
    """The messages of each body, in the order in which they came."""
    found = defaultdict(list)
    for message in messages:
        found[message.body].append(message)
    return dict(found)


def dead_letters(java: JavaClient, group: str, count: int) -> list[Received]:
    """Wait until a group has so many dead letters, and read them."""
    topic = f"%DLQ%{group}"
    wait_until(
        lambda: topic in java.topics() and java.max_offset(topic, 0) == count,
        ARRIVAL_TIMEOUT_S,
        f"{count} messages in {topic}",
    )
    return java.pull_consumer().read(topic)


def test_what_fails_comes_again_after_ten_seconds(java: JavaClient, topic: str, group: str) -> None:
    has_retry_topic(java, group, topic)
    consumer = java.push_consumer(group, topic, failures=1)
    [report] = java.producer().send(topic, [Outgoing(body=b"once", tags="T", keys="k")])
    first, second = consumer.wait_for(2)
    assert (first.reconsume_times, second.reconsume_times) == (0, 1)
    assert 0 <= second.store_timestamp - first.store_timestamp - FIRST_DELAY_MS < LATE_MS_MAX
    assert first.msg_id == second.msg_id == report.msg_id
    assert (second.tags, second.keys, second.topic) == ("T", "k", topic)
    assert second.properties["ORIGIN_MESSAGE_ID"] == report.offset_msg_id
    assert second.properties["DELAY"] == "3"
    assert second.born_timestamp == first.born_timestamp
    assert len(consumer.stop()) == 2


def test_what_always_fails_is_a_dead_letter_at_last(java: JavaClient, topic: str, group: str) -> None:
    has_retry_topic(java, group, topic)
    consumer = java.push_consumer(group, topic, failures=ALWAYS, level=1, times_max=2)
    sent = [b"%d" % number for number in range(5)]
    reports = java.producer().send(topic, [Outgoing(body=body) for body in sent])
    dead = dead_letters(java, group, 5)
    assert sorted(message.body for message in dead) == sent
    assert {message.reconsume_times for message in dead} == {3}
    assert {message.properties["RETRY_TOPIC"] for message in dead} == {topic}
    origins = {message.properties["ORIGIN_MESSAGE_ID"] for message in dead}
    assert origins == {report.offset_msg_id for report in reports}
    received = by_body(consumer.stop())
    for body in sent:
        assert [message.reconsume_times for message in received[body]] == [0, 1, 2]
        first, second, third = received[body]
        for before, after in ((first, second), (second, third)):
            assert 0 <= after.store_timestamp - before.store_timestamp - SECOND_MS < LATE_MS_MAX


def test_a_consumer_that_keeps_the_order_tries_again_in_place(java: JavaClient, topic: str, group: str) -> None:
    java.producer().send(topic, [Outgoing(body=b"%d" % number, queue=0) for number in range(4)])
    consumer = java.push_consumer(group, topic, orderly=True, failures=2)
    received = consumer.wait_for(12)
    assert [message.body for message in received] == [b"%d" % (n // 3) for n in range(12)]
    assert {message.topic for message in received} == {topic}
    assert len(consumer.stop()) == 12
    java.wait_until_consumed(group, topic, 4)


def test_what_can_not_be_consumed_in_order_is_a_dead_letter_at_once(java: JavaClient, topic: str, group: str) -> None:
    """Else it would come again behind others of its queue."""
    java.producer().send(topic, [Outgoing(body=b"%d" % number, queue=0) for number in range(3)])
    consumer = java.push_consumer(group, topic, orderly=True, failures=ALWAYS, times_max=1)
    dead = dead_letters(java, group, 3)
    assert [message.body for message in dead] == [b"0", b"1", b"2"]
    assert {message.properties["DELAY"] for message in dead} == {"-1"}
    java.wait_until_consumed(group, topic, 3)
    assert [message.body for message in consumer.stop()] == [b"0", b"0", b"1", b"1", b"2", b"2"]


def test_a_delayed_message_comes_when_it_is_due(java: JavaClient, topic: str, group: str) -> None:
    consumer = java.push_consumer(group, topic)
    messages = [Outgoing(body=b"%d" % level, level=level, queue=level) for level in (2, 1, 0)]
    java.producer().send(topic, messages)
    # Each queue has a pull of its own: which comes first says nothing of when it was delivered.
    received = sorted(consumer.wait_for(3), key=lambda message: message.store_timestamp)
    assert [message.body for message in received] == [b"0", b"1", b"2"]
    assert [message.queue_id for message in received] == [0, 1, 2]
    for message, delay_ms in zip(received, (0, 1000, 5000), strict=True):
        assert 0 <= message.store_timestamp - message.born_timestamp - delay_ms < LATE_MS_MAX
    assert received[2].properties["REAL_TOPIC"] == topic
    assert len(consumer.stop()) == 3
