"""Accounting: the messages that fill the log, their rate, and the time when the disk is full.

Every figure derives from one small table, `hourly`, so the log is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyspark.sql.functions as fn
from pyspark.sql import DataFrame, Window

from firearrow.spark.jobs.reports.columns import (
    address,
    at,
    group_of,
    ranked,
    seconds,
    shaped,
    stored_totals,
    summed_totals,
)

MESSAGE_COLUMNS: Final = ("broker", "topic", "storeSize", "storeTimestamp", "bornHost")
DIMENSIONS: Final = ("topic", "consumerGroup", "producer", "broker")
HOUR_SECONDS: Final = 3600
DAY_SECONDS: Final = 86_400


def hourly(messages: DataFrame) -> DataFrame:
    """Count the messages of each producer in each topic, hour by hour.

    With ``visibility=log`` these are the messages in the log, with retries and with delayed and transactional copies.
    Only retries and dead letters have a ``consumerGroup``.

    Columns: broker, topic, consumerGroup, producer, hour, messages, bytes, first, last.
    """
    keys = ["broker", "topic", "consumerGroup", "producer", "hour"]
    counted = (
        messages.withColumn("consumerGroup", group_of(fn.col("topic")))
        .withColumn("producer", address(fn.col("bornHost")))
        .withColumn("hour", fn.date_trunc("hour", "storeTimestamp"))
        .groupBy(*keys)
        .agg(*stored_totals())
    )
    return shaped(counted, [*keys, "messages", "bytes", "first", "last"])


def totals(by_hour: DataFrame, dimensions: Sequence[str]) -> DataFrame:
    """Sum up each value of some of `DIMENSIONS`, the largest first.

    Columns: the dimensions, messages, bytes, share (of all bytes), meanBytes, messagesPerSecond, bytesPerSecond (both
    from its first to its last message, null below a second), first, last.
    """
    keys = list(dimensions)
    of_group = by_hour.where("consumerGroup is not null") if "consumerGroup" in keys else by_hour
    summed = of_group.groupBy(*keys).agg(*summed_totals())
    took = seconds(fn.col("first"), fn.col("last"))
    lasted = fn.when(took >= 1, took)
    everything = fn.sum("bytes").over(Window.partitionBy(fn.lit(0)))
    return shaped(
        summed.withColumn("share", fn.col("bytes") / everything)
        .withColumn("meanBytes", fn.col("bytes") / fn.col("messages"))
        .withColumn("messagesPerSecond", fn.col("messages") / lasted)
        .withColumn("bytesPerSecond", fn.col("bytes") / lasted)
        .orderBy(fn.desc("bytes"), *keys),
        [*keys, "messages", "bytes", "share", "meanBytes", "messagesPerSecond", "bytesPerSecond", "first", "last"],
    )


def hours(by_hour: DataFrame) -> DataFrame:
    """Sum up the messages of each hour. Columns: hour, messages, bytes."""
    summed = by_hour.groupBy("hour").agg(fn.sum("messages").alias("messages"), fn.sum("bytes").alias("bytes"))
    return shaped(summed.orderBy("hour"), ["hour", "messages", "bytes"])


def hottest(by_hour: DataFrame) -> DataFrame:
    """Find each topic's hour with the most messages, the hottest first.

    Columns: topic, hour, messages, bytes, ofUsual (the multiple of its mean hour).
    """
    per_hour = by_hour.groupBy("topic", "hour").agg(
        fn.sum("messages").alias("messages"), fn.sum("bytes").alias("bytes")
    )
    usual = fn.avg("messages").over(Window.partitionBy("topic"))
    hot = ranked(per_hour, ["topic"], fn.desc("messages"), "hour").withColumn("ofUsual", fn.col("messages") / usual)
    return shaped(
        hot.where("rank = 1").orderBy(fn.desc("messages"), "topic"), ["topic", "hour", "messages", "bytes", "ofUsual"]
    )


def growth(by_hour: DataFrame, now_ms: int) -> DataFrame:
    """Compare each topic's last 24 hours with the 24 before, the largest growth first.

    Columns: topic, bytesBefore, bytesLast, grown (bytes), ratio (null of new topics).
    """
    age = seconds(fn.col("hour"), at(now_ms))
    last = fn.when(age < DAY_SECONDS, fn.col("bytes")).otherwise(0)
    before = fn.when((age >= DAY_SECONDS) & (age < 2 * DAY_SECONDS), fn.col("bytes")).otherwise(0)
    summed = by_hour.groupBy("topic").agg(fn.sum(before).alias("bytesBefore"), fn.sum(last).alias("bytesLast"))
    ratio = fn.when(fn.col("bytesBefore") > 0, fn.col("bytesLast") / fn.col("bytesBefore"))
    return shaped(
        summed.withColumn("grown", fn.col("bytesLast") - fn.col("bytesBefore"))
        .withColumn("ratio", ratio)
        .orderBy(fn.desc("grown"), "topic"),
        ["topic", "bytesBefore", "bytesLast", "grown", "ratio"],
    )


def forecast(by_hour: DataFrame, free_bytes: int, retention_hours: float, now_ms: int) -> DataFrame:
    """Estimate when each broker's disk is full, at the rate of its log's last 24 hours.

    ``peakBytes`` is the final size of the log, when retention deletes as much as arrives. If that is no more than the
    present size plus the free space, the disk never gets full.

    Columns: broker, bytes, bytesPerHour, freeBytes, peakBytes, fullInHours (null: never), fullAt.
    """
    age = seconds(fn.col("last"), at(now_ms))
    recent = fn.when(age < DAY_SECONDS, fn.col("bytes")).otherwise(0)
    summed = by_hour.groupBy("broker").agg(
        fn.sum("bytes").alias("bytes"), fn.sum(recent).alias("recent"), fn.min("first").alias("first")
    )
    span = fn.least(fn.greatest(seconds(fn.col("first"), at(now_ms)) / HOUR_SECONDS, fn.lit(1.0)), fn.lit(24.0))
    rate = fn.col("bytesPerHour")
    full = fn.when(
        (rate > 0) & (fn.col("peakBytes") > fn.col("bytes") + fn.col("freeBytes")), fn.col("freeBytes") / rate
    )
    full_at = fn.timestamp_millis(fn.lit(now_ms) + (fn.col("fullInHours") * HOUR_SECONDS * 1000).cast("bigint"))
    return shaped(
        summed.withColumn("bytesPerHour", fn.col("recent") / span)
        .withColumn("freeBytes", fn.lit(free_bytes))
        .withColumn("peakBytes", (rate * retention_hours).cast("bigint"))
        .withColumn("fullInHours", full)
        .withColumn("fullAt", full_at)
        .orderBy(fn.asc_nulls_last("fullInHours"), "broker"),
        ["broker", "bytes", "bytesPerHour", "freeBytes", "peakBytes", "fullInHours", "fullAt"],
    )
