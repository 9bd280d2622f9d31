"""Copies are found by id and by key, and told from messages that only share a key."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from firearrow.spark.jobs.reports import duplicates
from tests.spark.jobs.frames import messages, rows


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> DataFrame:
    log = messages(
        spark,
        {"msgId": "1", "keys": "a b", "bodyCrc": 1, "storeTimestamp": 0},
        {"msgId": "1", "keys": "a  b", "bodyCrc": 1, "storeTimestamp": 1000, "queueId": 1},
        {"msgId": "2", "keys": "b b", "bodyCrc": 2, "storeTimestamp": 2000, "bornHost": "10.0.0.8:1"},
        {"msgId": "3", "keys": "c", "bodyCrc": 3, "storeTimestamp": 0},
        {"msgId": "4", "keys": "c", "bodyCrc": 3, "storeTimestamp": 90_000},
        {"msgId": "5", "storeTimestamp": 0},
        {"msgId": "5", "topic": "%RETRY%g", "storeTimestamp": 1000},
        {"msgId": "5", "topic": "SCHEDULE_TOPIC_XXXX", "storeTimestamp": 500},
    )
    return duplicates.occurrences(log).cache()


def test_what_is_there_more_than_once(found: DataFrame) -> None:
    columns = ("kind", "value", "copies", "bodies", "producers", "apartSeconds")
    assert rows(duplicates.repeats(found), *columns) == [
        ("key", "b", 3, 2, 2, 2.0),
        ("id", "1", 2, 1, 1, 1.0),
        ("key", "a", 2, 1, 1, 1.0),
        ("key", "c", 2, 1, 1, 90.0),
    ]


def test_what_a_consumer_that_remembers_for_a_minute_would_catch(found: DataFrame) -> None:
    copies = duplicates.repeated(found)
    columns = ("producer", "kind", "copies", "caught", "late", "changed")
    assert rows(duplicates.by_producer(copies, 60), *columns) == [
        ("10.0.0.7", "key", 3, 2, 1, 0),
        ("10.0.0.7", "id", 1, 1, 0, 0),
        ("10.0.0.8", "key", 1, 0, 0, 1),
    ]


def test_copies_in_stretches_of_time(found: DataFrame) -> None:
    columns = ("kind", "messages", "copies")
    assert rows(duplicates.windows(found, 60), *columns) == [("id", 5, 1), ("key", 6, 3), ("id", 1, 0), ("key", 1, 0)]
