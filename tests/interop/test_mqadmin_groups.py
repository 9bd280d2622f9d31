"""The official ``mqadmin`` and admin client on groups: how far they are, and where they go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.interop.javaclient import ARRIVAL_TIMEOUT_S, JavaClient, Outgoing
from tests.interop.test_mqadmin import rows
from tests.interop.waiting import wait_until

BROKER = "broker-a"


@pytest.fixture
def dealt(java: JavaClient, topic: str) -> str:
    """A topic of four queues with 5, 4, 0 and 0 messages."""
    messages = [Outgoing(body=b"%d" % i, queue=i % 2, tags="A", keys=f"k{i}") for i in range(9)]
    java.producer().send(topic, messages)
    return topic


@pytest.fixture
def begun(java: JavaClient, dealt: str, group: str) -> str:
    """A group that has consumed all of the first queue and one message of the second."""
    consumer = java.pull_consumer(group)
    for queue_id, offset in enumerate((5, 1, 0, 0)):
        consumer.pull(dealt, queue_id, 0)  # which creates the group
        consumer.commit(dealt, queue_id, offset)
    consumer.close()
    return group


@contextmanager
def changed(java: JavaClient, key: str, value: str, back: str) -> Iterator[None]:
    """Change a key of the broker's configuration for a ``with`` block."""
    words = ("updateBrokerConfig", "-b", java.server.broker, "-k", key, "-v")
    assert "success" in java.mqadmin(*words, value)
    try:
        yield
    finally:
        assert "success" in java.mqadmin(*words, back)


def committed(java: JavaClient, group: str) -> list[int]:
    """The offsets of a group by queue."""
    return [row.consumer_offset for row in java.progress(group)]


def test_broker_consume_stats(java: JavaClient, dealt: str, begun: str) -> None:
    printed = java.mqadmin("brokerConsumeStats", "-b", java.server.broker)
    shown = [row[1:7] for row in rows(printed, dealt)]
    assert shown == [[begun, BROKER, "0", "5", "5", "0"], [begun, BROKER, "1", "4", "1", "3"]]
    assert int(printed.partition("Diff Total: ")[2]) >= 3


def test_stats_of_all_topics(java: JavaClient, dealt: str, begun: str) -> None:
    [row] = rows(java.mqadmin("statsAll", "-t", dealt), dealt)
    assert row[:3] == [dealt, begun, "3"]


def test_query_message_by_key(java: JavaClient, dealt: str) -> None:
    def shown() -> list[list[str]]:
        printed = java.mqadmin("queryMsgByKey", "-t", dealt, "-k", "k3")
        return [line.split()[1:3] for line in printed.splitlines() if f"@{dealt}@" in line]

    wait_until(shown, ARRIVAL_TIMEOUT_S, "the index")
    assert shown() == [["1", "1"]]


def test_query_consume_queue(java: JavaClient, dealt: str) -> None:
    printed = java.mqadmin("queryCq", "-t", dealt, "-q", "1", "-i", "1", "-c", "2")
    first, second = list(java.pull_consumer().read_queue(dealt, 1))[1:3]
    assert "max: 4, min: 0" in printed
    for number, message in ((1, first), (2, second)):
        assert f"idx: {number}\n" in printed
        place = f"physicOffset={message.physical_offset}, physicSize={message.store_size}"
        assert f"{place}, tagsCode=65" in printed
    assert "idx: 3" not in printed


def test_producers(java: JavaClient, dealt: str, group: str) -> None:
    java.producer(f"{group}_sends").send(dealt, [Outgoing(body=b"x")])
    printed = java.mqadmin("producer", "-b", java.server.broker)
    [line] = [line for line in printed.splitlines() if f"({group}_sends)" in line]
    for shown in ("clientId=", "remoteIP=", "language=JAVA", "version="):
        assert shown in line


def test_clone_group_offset(java: JavaClient, dealt: str, begun: str) -> None:
    clone = f"{begun}_clone"
    assert "success" in java.mqadmin("updateSubGroup", "-b", java.server.broker, "-g", clone)
    java.create_topic(f"%RETRY%{clone}", 1)
    words = ("-s", begun, "-d", clone, "-t", dealt)
    assert "clone group offset success." in java.mqadmin("cloneGroupOffset", *words)
    assert committed(java, clone) == committed(java, begun) == [5, 1, 0, 0]


def test_clone_group_offset_by_the_broker(java: JavaClient, dealt: str, begun: str) -> None:
    java.create_topic(f"%RETRY%{begun}", 1)  # whose route tells the client which brokers to ask
    clone = f"{begun}_clone"
    assert java.call("admin.clone", bool, group=begun, to=clone, topic=dealt, offline=True)
    java.create_topic(f"%RETRY%{clone}", 1)
    assert committed(java, clone) == [5, 1, 0, 0]
    assert java.call("admin.topicsOf", list[str], group=clone) == [dealt]


def test_topic_cluster_list(java: JavaClient, topic: str) -> None:
    assert java.mqadmin("topicClusterList", "-t", topic).split() == ["DefaultCluster"]


def test_times_of_a_group(java: JavaClient, dealt: str, begun: str) -> None:
    java.create_topic(f"%RETRY%{begun}", 1)
    stored = [
        [message.store_timestamp for message in java.pull_consumer().read_queue(dealt, queue_id)] for queue_id in (0, 1)
    ]
    asked_ms = time.time() * 1000
    first, second, *empty = java.call("admin.timeSpans", list[list[int]], topic=dealt, group=begun)
    assert first == [stored[0][0], stored[0][-1], stored[0][4], 0]
    assert second[:3] == [stored[1][0], stored[1][-1], stored[1][0]]
    assert 0 <= second[3] - (asked_ms - stored[1][1]) < 10_000
    assert empty == [[-1, -1, -1, 0]] * 2


def test_a_group_is_forbidden_a_topic(java: JavaClient, dealt: str, begun: str) -> None:
    java.create_topic(f"%RETRY%{begun}", 1)
    place = {"broker": java.server.broker, "group": begun, "topic": dealt}
    assert java.call("admin.forbid", bool, **place, readable=None) is True
    assert java.call("admin.forbid", bool, **place, readable=False) is False
    assert java.call("admin.forbid", bool, **place, readable=None) is False
    assert java.call("admin.forbid", bool, **place, readable=True) is True


def test_what_a_group_subscribes_to(java: JavaClient, dealt: str, group: str) -> None:
    java.push_consumer(group, dealt, "A || B").wait_for(9)
    assert java.call("admin.subscription", str, group=group, topic=dealt) == "A || B"


def test_where_consumers_are(java: JavaClient, dealt: str, group: str) -> None:
    java.push_consumer(group, dealt).wait_for(9)

    def offsets() -> dict[str, int]:
        return java.call("admin.status", dict[str, int], group=group, topic=dealt)

    wait_until(lambda: offsets().get("1") == 4, ARRIVAL_TIMEOUT_S, "the consumer's offsets")
    assert offsets()["0"] == 5


def test_reset_offset_in_the_old_way(java: JavaClient, topic: str, group: str) -> None:
    """The consumer gets all messages again, and commits by itself."""
    java.producer().send(topic, [Outgoing(body=b"%d" % i, queue=i % 4) for i in range(8)])
    consumer = java.push_consumer(group, topic)
    consumer.wait_for(8)
    java.wait_until_consumed(group, topic, 8)
    with changed(java, "useServerSideResetOffset", "false", "true"):
        printed = java.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "1000")
        assert {row[1]: row[2] for row in rows(printed, BROKER)} == dict.fromkeys("0123", "0")
        assert len(consumer.wait_for(16, within_s=40)) == 16
        java.wait_until_consumed(group, topic, 8)


def test_reset_offset_in_the_old_way_of_a_group_that_is_away(java: JavaClient, dealt: str, begun: str) -> None:
    """Then ``mqadmin`` commits the offsets itself."""
    with changed(java, "useServerSideResetOffset", "false", "true"):
        printed = java.mqadmin("resetOffsetByTime", "-g", begun, "-t", dealt, "-s", "1000")
    shown = [row[1:] for row in rows(printed, BROKER)]
    assert sorted(shown) == [
        ["0", "5", "5", "0", "0"],
        ["1", "4", "1", "0", "0"],
        ["2", "0", "0", "0", "0"],
        ["3", "0", "0", "0", "0"],
    ]
    assert committed(java, begun) == [0, 0, 0, 0]


def test_check_of_queues_that_are_kept_twice(java: JavaClient, topic: str) -> None:
    printed = java.mqadmin("checkRocksdbCqWriteProgress", "-c", "DefaultCluster", "-t", topic)
    assert f"{BROKER} check doing" in printed
