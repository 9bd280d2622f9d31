"""Find messages by key, by both kinds of id, and by time; ask for the ends of a queue."""

from __future__ import annotations

import pytest

from tests.interop.driver import JavaError
from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, JavaClient, Outgoing, SendReport
from tests.interop.waiting import wait_until

NO_MESSAGE = 208  # of the client, when no broker found any


def send_with_keys(java: JavaClient, topic: str, count: int = 30) -> list[SendReport]:
    """Send numbered messages with a key of their own, one of all and one of a third of them."""
    return java.producer().send(
        topic, [Outgoing(body=b"%d" % i, keys=f"one-{i} all third-{i % 3}", queue=i % 4) for i in range(count)]
    )


def wait_for_index(java: JavaClient, topic: str, key: str) -> None:
    """Wait until a key is in the index, which follows the log."""

    def indexed() -> bool:
        try:
            return bool(java.query_key(topic, key))
        except JavaError as error:
            if error.code != NO_MESSAGE:
                raise
            return False

    wait_until(indexed, ARRIVAL_TIMEOUT_S, f"key {key} in the index")


def test_a_key_finds_exactly_its_messages(java: JavaClient, topic: str) -> None:
    send_with_keys(java, topic)
    wait_for_index(java, topic, "one-29")
    assert [m.body for m in java.query_key(topic, "one-17")] == [b"17"]
    assert [m.body for m in java.query_key(topic, "all")] == [b"%d" % i for i in range(30)]
    assert [m.body for m in java.query_key(topic, "third-1")] == [b"%d" % i for i in range(1, 30, 3)]
    with pytest.raises(JavaError) as unknown:
        java.query_key(topic, "one-30")
    assert unknown.value.code == NO_MESSAGE


def test_a_key_query_is_limited_to_the_newest(java: JavaClient, topic: str) -> None:
    send_with_keys(java, topic)
    wait_for_index(java, topic, "one-29")
    newest = [m.body for m in java.query_key(topic, "all", count=5)]
    assert newest == [b"25", b"26", b"27", b"28", b"29"]


def test_keys_are_found_across_index_files(java: JavaClient, topic: str) -> None:
    producer = java.producer()
    for start in range(0, 1200, 50):  # an index file takes 800 entries: two for each of these
        keys = range(start, start + 50)
        producer.send_batch(topic, [Outgoing(body=b"%d" % key, keys=f"k{key}") for key in keys])
    wait_for_index(java, topic, "k1199")
    for key in (0, 399, 400, 799, 800, 1199):
        assert [m.body for m in java.query_key(topic, f"k{key}")] == [b"%d" % key]


def test_both_ids_find_their_message(java: JavaClient, topic: str) -> None:
    reports = send_with_keys(java, topic)
    wait_for_index(java, topic, "one-29")
    for i in (0, 13, 29):
        by_unique_id = java.query_id(topic, reports[i].msg_id)
        by_offset_id = java.query_id(topic, reports[i].offset_msg_id)
        assert by_unique_id == by_offset_id
        assert by_unique_id.body == b"%d" % i
        assert by_unique_id.queue_offset == reports[i].queue_offset


def test_an_unknown_id_finds_nothing(java: JavaClient, topic: str) -> None:
    (report, *_) = send_with_keys(java, topic, 1)
    with pytest.raises(JavaError) as unknown:
        java.query_id(topic, report.msg_id[:-4] + "FFFF")
    assert unknown.value.code == NO_MESSAGE


def test_the_ends_of_a_queue(java: JavaClient, topic: str) -> None:
    send_with_keys(java, topic, 10)
    ends = [(java.min_offset(topic, q), java.max_offset(topic, q)) for q in range(4)]
    assert ends == [(0, 3), (0, 3), (0, 2), (0, 2)]
    stored = java.pull_consumer().read(topic)
    for queue in range(4):
        first = next(message for message in stored if message.queue_id == queue)
        assert java.earliest_ms(topic, queue) == first.store_timestamp


def test_an_empty_queue(java: JavaClient, topic: str) -> None:
    assert (java.min_offset(topic, 0), java.max_offset(topic, 0)) == (0, 0)
    assert java.earliest_ms(topic, 0) == -1
    assert java.search_offset(topic, 0, 0) == 0
    assert java.search_offset(topic, 0, 10**13) == 0


def test_a_time_finds_the_first_message_from_then_on(java: JavaClient, topic: str) -> None:
    messages = [Outgoing(body=b"%d" % i, queue=0) for i in range(400)]  # into a second queue file
    java.producer().send(topic, messages)
    times = [message.store_timestamp for message in java.pull_consumer().read_queue(topic, 0)]
    assert times == sorted(times)
    assert times[-1] > times[0]
    moments = {times[0] - 1000, times[-1] + 1, times[-1] + 60_000}
    moments.update(time + step for time in times[::40] for step in (-1, 0, 1))
    for moment in sorted(moments):
        expected = next((i for i, time in enumerate(times) if time >= moment), len(times))
        assert java.search_offset(topic, 0, moment) == expected
