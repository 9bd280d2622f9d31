"""Every kind of official consumer: what it gets, how often, in which order; where it resumes."""

from __future__ import annotations

from collections import Counter

from tests.interop.javaclient import JavaClient, Outgoing

WAKE_UP_S = 12  # below the 15 s for which the broker may hold a pull


def numbered(count: int, start: int = 0, queues: int = 4) -> list[Outgoing]:
    """Make messages that a reader can tell apart, dealt to the queues in turn."""
    return [Outgoing(body=b"%d" % i, queue=i % queues) for i in range(start, start + count)]


def bodies(messages: list[Outgoing]) -> Counter[bytes]:
    """Count the bodies."""
    return Counter(message.body for message in messages)


def test_a_concurrent_push_consumer_gets_each_message_once(java: JavaClient, topic: str, group: str) -> None:
    consumer = java.push_consumer(group, topic)
    messages = numbered(200)
    reports = java.producer().send(topic, messages)
    received = consumer.wait_for(200)
    assert Counter(message.body for message in received) == bodies(messages)
    places = {report.msg_id: (report.queue_id, report.queue_offset) for report in reports}
    assert {m.msg_id: (m.queue_id, m.queue_offset) for m in received} == places
    assert len(consumer.stop()) == 200
    java.wait_until_consumed(group, topic, 200)


def test_a_tag_subscription_gets_exactly_its_tags(java: JavaClient, topic: str, group: str) -> None:
    tags = ("TagB", None, "TagA", "标签")  # each queue ends with one that is wanted
    sent = [Outgoing(body=f"{tag} {i}".encode(), tags=tag, queue=i % 4) for i in range(25) for tag in tags]
    java.producer().send(topic, sent)
    wanted = bodies([message for message in sent if message.tags in ("TagA", "标签")])
    consumer = java.push_consumer(group, topic, "TagA || 标签")
    consumer.wait_for(50)
    received = consumer.stop()
    java.wait_until_consumed(group, topic, 100)
    assert Counter(message.body for message in received) == wanted
    assert {message.tags for message in received} == {"TagA", "标签"}


def test_an_orderly_consumer_keeps_the_order_of_each_queue(java: JavaClient, topic: str, group: str) -> None:
    java.producer().send(topic, numbered(200))
    consumer = java.push_consumer(group, topic, orderly=True)
    received = consumer.wait_for(200)
    assert len(received) == 200
    for queue in range(4):
        numbers = [int(message.body) for message in received if message.queue_id == queue]
        assert numbers == list(range(queue, 200, 4))
    assert len(consumer.stop()) == 200
    java.wait_until_consumed(group, topic, 200)


def test_a_waiting_consumer_is_woken_by_a_message(java: JavaClient, topic: str, group: str) -> None:
    producer = java.producer()
    consumer = java.push_consumer(group, topic)
    producer.send(topic, numbered(4))
    assert len(consumer.wait_for(4)) == 4  # each queue has been pulled: now all of them wait
    producer.send(topic, numbered(4, start=4))
    received = consumer.wait_for(8, within_s=WAKE_UP_S)
    assert Counter(message.body for message in received) == bodies(numbered(8))


def test_the_classic_pull_consumer_is_told_where_it_stands(java: JavaClient, topic: str, group: str) -> None:
    java.producer().send(topic, numbered(50, queues=1))
    consumer = java.pull_consumer(group)
    assert consumer.queues(topic) == [0, 1, 2, 3]
    first = consumer.pull(topic, 0, 0, count=20)
    assert (first.status, first.next_offset) == ("FOUND", 20)
    assert (first.min_offset, first.max_offset) == (0, 50)
    assert [message.body for message in first.messages] == [b"%d" % i for i in range(20)]
    rest = consumer.pull(topic, 0, 20)
    assert [message.body for message in rest.messages] == [b"%d" % i for i in range(20, 50)]
    end = consumer.pull(topic, 0, 50)
    assert (end.status, end.next_offset, end.messages) == ("NO_NEW_MSG", 50, [])
    beyond = consumer.pull(topic, 0, 70)
    assert (beyond.status, beyond.next_offset) == ("OFFSET_ILLEGAL", 50)
    empty = consumer.pull(topic, 3, 0)
    assert (empty.status, empty.next_offset) == ("NO_NEW_MSG", 0)


def test_the_classic_pull_consumer_filters_by_tag(java: JavaClient, topic: str) -> None:
    sent = [Outgoing(body=b"%d" % i, tags=("even", "odd")[i % 2], queue=0) for i in range(20)]
    java.producer().send(topic, sent)
    consumer = java.pull_consumer()
    found = consumer.pull(topic, 0, 0, expression="odd")
    assert [message.body for message in found.messages] == [b"%d" % i for i in range(1, 20, 2)]
    assert found.next_offset == 20
    none = consumer.pull(topic, 0, 0, expression="other")
    assert (none.status, none.next_offset) == ("NO_MATCHED_MSG", 20)


def test_the_classic_pull_consumer_commits_offsets(java: JavaClient, topic: str, group: str) -> None:
    java.producer().send(topic, numbered(10, queues=1))
    consumer = java.pull_consumer(group)
    assert consumer.committed(topic, 0) == 0  # nothing committed, but all there from 0 on
    consumer.commit(topic, 0, 7)
    assert consumer.committed(topic, 0) == 7
    assert java.pull_consumer(group).committed(topic, 0) == 7


def test_the_lite_pull_consumer_resumes_after_its_commit(java: JavaClient, topic: str, group: str) -> None:
    producer = java.producer()
    producer.send(topic, numbered(60))
    consumer = java.lite_consumer(group, topic)
    received = consumer.poll_until(60)
    assert Counter(message.body for message in received) == bodies(numbered(60))
    consumer.commit()
    consumer.close()
    java.wait_until_consumed(group, topic, 60)
    producer.send(topic, numbered(20, start=60))
    resumed = java.lite_consumer(group, topic).poll_until(20)
    assert Counter(message.body for message in resumed) == bodies(numbered(20, start=60))


def test_a_restarted_push_consumer_resumes_where_its_group_was(java: JavaClient, topic: str, group: str) -> None:
    producer = java.producer()
    producer.send(topic, numbered(40))
    first = java.push_consumer(group, topic)
    first.wait_for(40)
    assert Counter(message.body for message in first.stop()) == bodies(numbered(40))
    producer.send(topic, numbered(30, start=40))
    second = java.push_consumer(group, topic)
    second.wait_for(30)
    received = second.stop()
    assert Counter(message.body for message in received) == bodies(numbered(30, start=40))
    java.wait_until_consumed(group, topic, 70)


def test_broadcast_gives_everything_to_everyone(java: JavaClient, topic: str, group: str) -> None:
    consumers = [java.push_consumer(group, topic, broadcast=True) for _ in range(2)]
    java.producer().send(topic, numbered(40))
    for consumer in consumers:
        received = consumer.wait_for(40)
        assert Counter(message.body for message in received) == bodies(numbered(40))
        assert consumer.queues(topic) == [0, 1, 2, 3]
