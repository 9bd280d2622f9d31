"""Bytes, counts, rates and forecasts from a log whose sums are known."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from firearrow.spark.jobs.reports import accounting
from tests.spark.jobs.frames import START_MS, messages, rows

HOUR_MS = 3_600_000
NOW = START_MS + 47 * HOUR_MS + HOUR_MS // 2


@pytest.fixture(scope="module")
def by_hour(spark: SparkSession) -> DataFrame:
    """Two days: T gets one message an hour and two in the last, the retry topic one in all."""
    hourly = [{"storeTimestamp": n * HOUR_MS, "storeSize": 1000} for n in range(48)]
    more = {"storeTimestamp": 47 * HOUR_MS + 1000, "storeSize": 1000, "bornHost": "10.0.0.8:1"}
    retry = {"topic": "%RETRY%g", "storeTimestamp": 0, "storeSize": 500}
    return accounting.hourly(messages(spark, *hourly, more, retry)).cache()


def test_totals_are_sums_of_the_hours(by_hour: DataFrame) -> None:
    by_topic = accounting.totals(by_hour, ["topic"])
    assert rows(by_topic, "topic", "messages", "bytes", "meanBytes") == [
        ("T", 49, 49_000, 1000.0),
        ("%RETRY%g", 1, 500, 500.0),
    ]
    ((share, rate),) = rows(by_topic.where("topic = 'T'"), "share", "messagesPerSecond")
    assert share == pytest.approx(49_000 / 49_500)
    assert rate == pytest.approx(49 / (47 * 3600 + 1))
    assert rows(by_topic, "bytesPerSecond")[1] == (None,)  # a single message has no rate
    assert rows(accounting.totals(by_hour, ["producer"]), "producer", "messages") == [("10.0.0.7", 49), ("10.0.0.8", 1)]
    assert rows(accounting.totals(by_hour, ["consumerGroup"]), "consumerGroup", "bytes", "share") == [("g", 500, 1.0)]


def test_the_hottest_hour_is_told_from_the_usual_one(by_hour: DataFrame) -> None:
    found = rows(accounting.hottest(by_hour), "topic", "messages", "ofUsual")
    assert found == [("T", 2, pytest.approx(2 / (49 / 48))), ("%RETRY%g", 1, 1.0)]
    assert len(rows(accounting.hours(by_hour))) == 48


def test_growth_compares_two_days(by_hour: DataFrame) -> None:
    assert rows(accounting.growth(by_hour, NOW)) == [
        ("T", 24_000, 25_000, 1000, pytest.approx(25 / 24)),
        ("%RETRY%g", 500, 0, -500, 0.0),
    ]


def test_a_disk_that_is_large_enough_for_the_retention_is_never_full(by_hour: DataFrame) -> None:
    columns = ("bytes", "bytesPerHour", "peakBytes", "fullInHours")
    rate = 25_000 / 24
    peak = int(rate * 72)
    ((*sums, full),) = rows(accounting.forecast(by_hour, 10_000, 72, NOW), *columns)
    assert sums == [49_500, pytest.approx(rate), peak]
    assert full == pytest.approx(10_000 / rate)
    ((*_, never),) = rows(accounting.forecast(by_hour, 100_000, 72, NOW), *columns)
    assert never is None
