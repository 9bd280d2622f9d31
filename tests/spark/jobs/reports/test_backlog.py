"""Lag is exact, its parts add up to it, and rates and retention are those of the log."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from firearrow.spark.jobs.reports import backlog
from tests.spark.jobs.frames import START_MS, messages, rows, table

NOW = START_MS + 3_600_000


def offset(topic: str, queue: int, committed: int, least: int, most: int) -> dict[str, object]:
    return {
        "broker": "a", "consumerGroup": "g", "topic": topic, "queueId": queue, "offset": committed,
        "minOffset": least, "maxOffset": most, "lag": most - committed,
    }  # fmt: skip


@pytest.fixture(scope="module")
def log(spark: SparkSession) -> DataFrame:
    """Queue 0 of T with 10 messages, one a second; every second one has a tag, and two keys."""
    return messages(
        spark,
        *(
            {
                "queueOffset": n,
                "storeTimestamp": 1000 * n,
                "tags": "A" if n % 2 else None,
                "keys": f"k{n} all" if n % 2 else None,
                "storeSize": 120 * n,
                "reconsumeTimes": n // 8,
                "bornHost": f"10.0.0.{n // 5}:{4000 + n}",
            }
            for n in range(10)
        ),
    )


def test_lag_counts_what_is_left_and_tells_what_is_lost(spark: SparkSession) -> None:
    offsets = table(
        spark,
        "consumer_offsets",
        offset("T", 0, 4, 2, 10),
        offset("T", 1, 1, 5, 9),  # retention was faster
        offset("T", 2, 12, 0, 8),  # a queue that was rebuilt
    )
    assert rows(backlog.lags(offsets).orderBy("queueId"), "lag", "lost") == [(6, 0), (4, 4), (0, 0)]


def test_a_queue_that_nobody_ever_consumed_is_not_forgotten(spark: SparkSession) -> None:
    offsets = table(spark, "consumer_offsets", offset("T", 0, 4, 2, 10))
    bounds = spark.createDataFrame(
        [("a", topic, 1, 3, 5) for topic in "TU"],
        "broker string, topic string, queueId int, minOffset long, maxOffset long",
    )
    found = backlog.lags(offsets, bounds).orderBy("queueId")
    assert rows(found, "topic", "queueId", "offset", "lag") == [("T", 0, 4, 6), ("T", 1, None, 2)]


def test_a_group_owes_its_retry_topics_from_their_first_message(spark: SparkSession) -> None:
    """A group that was killed before it committed an offset of its retry topic begins with 0."""
    offsets = table(
        spark,
        "consumer_offsets",
        offset("T", 0, 10, 2, 10),
        {**offset("%RETRY%done", 0, 4, 0, 6), "consumerGroup": "done"},
        {**offset("T", 0, 10, 2, 10), "consumerGroup": "g_x"},
    )
    bounds = spark.createDataFrame(
        [
            ("a", f"%RETRY%{name}", 0, least, most)
            for name, least, most in [
                ("g", 3, 8),
                ("g_T", 0, 2),
                ("g_x", 0, 3),
                ("g_x_T", 0, 4),
                ("g+T", 0, 5),
                ("done", 0, 6),
                ("gone", 0, 7),
                ("empty", 9, 9),
            ]
        ],
        "broker string, topic string, queueId int, minOffset long, maxOffset long",
    )
    found = backlog.lags(offsets, bounds).where("topic != 'T'").orderBy("topic")
    assert rows(found, "consumerGroup", "topic", "offset", "lag") == [
        ("done", "%RETRY%done", 4, 2),
        ("g", "%RETRY%g", None, 5),
        ("g", "%RETRY%g+T", None, 5),
        ("g", "%RETRY%g_T", None, 2),
        ("g_x", "%RETRY%g_x", None, 3),
        ("g_x", "%RETRY%g_x_T", None, 4),
        ("gone", "%RETRY%gone", None, 7),
    ]


def test_the_parts_of_a_backlog_add_up(spark: SparkSession, log: DataFrame) -> None:
    lagging = backlog.lags(table(spark, "consumer_offsets", offset("T", 0, 4, 2, 10)))
    waiting = backlog.pending(log, lagging)
    (group,) = rows(
        backlog.groups(lagging, waiting, NOW),
        "lag", "bytes", "uncommitted", "behindSeconds",
    )  # fmt: skip
    assert group == (6, 4680, 0, 3596.0)
    parts = backlog.anatomy(waiting, NOW, top=2)
    by_dimension = {
        name: rows(parts.where(f"dimension = '{name}'"), "value", "messages") for name in backlog.DIMENSIONS
    }
    assert by_dimension == {
        "tag": [("(none)", 3), ("A", 3)],
        "key": [("(none)", 3), ("(others)", 3), ("all", 3)],
        "age": [("under 1 h", 6)],
        "producer": [("10.0.0.1", 5), ("10.0.0.0", 1)],
        "retries": [("0", 4), ("1", 2)],
        "size": [("under 1 KiB", 5), ("under 16 KiB", 1)],
    }
    assert all(sum(n for _, n in by_dimension[d]) == 6 for d in backlog.DIMENSIONS if d != "key")


def test_a_group_that_is_up_to_date_has_nothing_waiting(spark: SparkSession, log: DataFrame) -> None:
    lagging = backlog.lags(table(spark, "consumer_offsets", offset("T", 0, 10, 0, 10)))
    waiting = backlog.pending(log, lagging)
    assert rows(waiting) == []
    assert rows(backlog.groups(lagging, waiting, NOW), "lag", "bytes", "behindSeconds") == [(0, 0, 0.0)]


def test_drain_needs_more_consumed_than_comes(spark: SparkSession, log: DataFrame) -> None:
    before = backlog.lags(table(spark, "consumer_offsets", offset("T", 0, 2, 0, 10)))
    after = backlog.lags(table(spark, "consumer_offsets", offset("T", 0, 4, 0, 10)))
    by_group = backlog.groups(after, backlog.pending(log, after), NOW)
    arriving = backlog.arrivals(log, START_MS + 9000, 5)
    slow = backlog.drain(by_group, arriving, backlog.progress(before, after, 4.0))
    assert rows(slow, "arriving", "consuming", "drainSeconds") == [(1.0, 0.5, None)]
    fast = backlog.drain(by_group, arriving, backlog.progress(before, after, 0.5))
    assert rows(fast, "arriving", "consuming", "drainSeconds") == [(1.0, 4.0, 2.0)]


def test_who_loses_messages_first_comes_first(spark: SparkSession, log: DataFrame) -> None:
    lagging = backlog.lags(table(spark, "consumer_offsets", offset("T", 0, 4, 0, 10)))
    waiting = backlog.pending(log, lagging)
    found = backlog.falling_off(waiting, NOW, 1 + 6 / 3600)
    columns = ("queueOffset", "messages", "leftSeconds", "withinHour", "withinDay")
    assert rows(found, *columns) == [(4, 6, 10.0, 6, 6)]
    assert rows(backlog.falling_off(waiting, NOW, 72), *columns)[0][3:] == (0, 0)


def test_the_brokers_own_groups_are_left_out(spark: SparkSession) -> None:
    topics = ["T", "%RETRY%g", "%DLQ%g", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"]
    offsets = table(spark, "consumer_offsets", *(offset(t, 0, 0, 0, 1) for t in topics))
    assert rows(backlog.of_users(offsets), "topic") == [("T",), ("%RETRY%g",)]
