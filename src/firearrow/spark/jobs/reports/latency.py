"""Latency: from born to stored, from stored to consumed, and the lateness of delayed messages.

Clients that trace report their consumption as records in ``RMQ_SYS_TRACE_TOPIC``. Each record ends with 0x02, and 0x01
separates its fields. This module reads two kinds, by their first field::

    SubBefore  time, region, group, requestId, msgId, retryTimes, keys
    SubAfter   requestId, msgId, costMs, success, keys, contextCode, time, group

Source: TraceDataEncoder.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import pyspark.sql.functions as fn
from pyspark.sql import Column, DataFrame

from firearrow.client.tracing.records import FIELD_END, RECORD_END
from firearrow.message import properties as names
from firearrow.message.names import DLQ_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, TRACE_TOPIC
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from firearrow.spark import properties
from firearrow.spark.jobs.reports.columns import at, is_copy, is_internal, millis, shaped
from firearrow.store.delays import DelayLevels

MESSAGE_COLUMNS: Final = (
    "broker", "topic", "msgId", "sysFlag", "bornTimestamp", "storeTimestamp", "reconsumeTimes",
    "properties",
)  # fmt: skip
TRACE_COLUMNS: Final = ("topic", "body")

DELAYS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""The delay of each level, from 1 on, as brokers have them unless ``messageDelayLevel`` is set."""


QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
SPREAD: Final = (*QUANTILES, "max")


def delays_of(text: str) -> list[int]:
    """Return the delay of each level of a ``messageDelayLevel`` such as ``1s 5s 1m``, in ms.

    Raises ConfigError for any other text.
    """
    levels = DelayLevels(text)
    return [levels.due_ms(level, 0) for level in range(1, levels.highest + 1)]


def spread(values: Column) -> list[Column]:
    """Return the columns of `SPREAD` for a column of milliseconds."""
    quantiles = [fn.percentile_approx(values, q, 1000).alias(name) for name, q in QUANTILES.items()]
    return [*quantiles, fn.max(values).alias("max")]


def is_put_off(messages: DataFrame) -> Column:
    """Tell whether messages were meant to be stored later than they were born.

    A message that was delivered after a delay has lost the property that asked for the delay (levels, in some
    releases), but not the property of its real topic. A commit has the birth time of its half message.
    """
    read = properties.of(messages)
    asked = (names.DELAY_LEVEL, names.TIMER_OUT_MS, names.REAL_TOPIC)
    decided = fn.col("sysFlag").bitwiseAND(TRANSACTION_MASK) == TRANSACTION_COMMIT
    return functools.reduce(Column.__or__, (read(name).isNotNull() for name in asked), decided)


def stored(messages: DataFrame, *, by_minute: bool = True) -> DataFrame:
    """Return the time of messages from their producer into the log, in milliseconds.

    Messages that were meant to come later (delayed, transactional) and copies (retries) are left out.

    Columns: topic, minute (unless ``by_minute`` is false), messages, p50, p90, p99, p999, max, early (messages that
    were stored before they were born: clocks differ).
    """
    topic = fn.col("topic")
    took = millis(fn.col("bornTimestamp"), fn.col("storeTimestamp"))
    keys = ["topic", "minute"] if by_minute else ["topic"]
    counted = (
        messages.where(~is_internal(topic) & ~is_copy(topic) & ~is_put_off(messages))
        .withColumn("took", took)
        .withColumn("minute", fn.date_trunc("minute", "storeTimestamp"))
        .groupBy(*keys)
        .agg(fn.count("*").alias("messages"), *spread(fn.col("took")), fn.count_if(fn.col("took") < 0).alias("early"))
    )
    return shaped(counted.orderBy(*keys), [*keys, "messages", *SPREAD, "early"])


def consumptions(trace: DataFrame) -> DataFrame:
    """Return the consumption of messages that clients traced; ``trace`` is of the trace topic.

    Columns: consumerGroup, msgId, retries, startTimestamp, tookMs, success (both null: no end was traced).
    """
    lines = trace.where(fn.col("topic") == TRACE_TOPIC).select(
        fn.explode(fn.split(trace["body"].cast("string"), RECORD_END)).alias("line")
    )
    fields = lines.select(fn.split("line", FIELD_END).alias("f"))

    def field(number: int) -> Column:
        return fn.get("f", fn.lit(number))

    before = fields.where(field(0) == "SubBefore").select(
        field(4).alias("requestId"),
        field(5).alias("msgId"),
        field(3).alias("consumerGroup"),
        fn.coalesce(field(6).try_cast("int"), fn.lit(0)).alias("retries"),
        fn.timestamp_millis(field(1).try_cast("bigint")).alias("startTimestamp"),
    )
    after = fields.where(field(0) == "SubAfter").select(
        field(1).alias("requestId"),
        field(2).alias("msgId"),
        field(3).try_cast("bigint").alias("tookMs"),
        (field(4) == "true").alias("success"),
    )
    ended = after.dropDuplicates(["requestId", "msgId"])
    joined = before.join(ended, ["requestId", "msgId"], "left")
    return shaped(joined, ["consumerGroup", "msgId", "retries", "startTimestamp", "tookMs", "success"])


def consumed(messages: DataFrame, traced: DataFrame) -> DataFrame:
    """Return the time that messages waited for consumers, and the time that consumers took.

    ``traced`` is the result of `consumptions`. Columns: topic, consumerGroup, minute, messages, failed, waitP50,
    waitP90, waitP99, waitP999, waitMax, tookP50, tookP90, tookP99, tookP999, tookMax (milliseconds).
    """
    topic = fn.col("topic")
    there = messages.where(~is_internal(topic) & ~topic.startswith(DLQ_PREFIX)).select(
        "topic", "msgId", fn.col("reconsumeTimes").alias("retries"), "storeTimestamp"
    )
    waited = millis(fn.col("storeTimestamp"), fn.col("startTimestamp"))
    minute = fn.date_trunc("minute", "startTimestamp").alias("minute")
    waits = _named("wait", spread(fn.col("waited")))
    takes = _named("took", spread(fn.col("tookMs")))
    counted = (
        there.join(traced, ["msgId", "retries"])
        .withColumn("waited", waited)
        .groupBy("topic", "consumerGroup", minute)
        .agg(fn.count("*").alias("messages"), fn.count_if(~fn.col("success")).alias("failed"), *waits, *takes)
    )
    wide = [f"{part}{name.capitalize()}" for part in ("wait", "took") for name in SPREAD]
    return shaped(
        counted.orderBy("topic", "consumerGroup", "minute"),
        ["topic", "consumerGroup", "minute", "messages", "failed", *wide],
    )


def _named(part: str, columns: list[Column]) -> list[Column]:
    return [column.alias(f"{part}{name.capitalize()}") for name, column in zip(SPREAD, columns, strict=True)]


def delayed(messages: DataFrame, delays_ms: Sequence[int] = DELAYS_MS) -> DataFrame:
    """Return every delayed message with the times when it was due and when it came.

    Retries are delayed messages too; their topic is the retry topic.

    Columns: broker, msgId, topic, kind (``level 3``, or ``timer``), retries, dueTimestamp, deliveredTimestamp (null: it
    waits), lateMs (null: it waits).
    """
    waiting = messages.where(fn.col("topic").isin(SCHEDULE_TOPIC, TIMER_TOPIC))
    read = properties.of(waiting)
    level = read(names.DELAY_LEVEL).try_cast("int")
    table = fn.array(*(fn.lit(delay) for delay in delays_ms))
    delay = fn.get(table, fn.greatest(fn.least(level, fn.lit(len(delays_ms))), fn.lit(1)) - 1)
    by_level = waiting["topic"] == SCHEDULE_TOPIC
    due_ms = fn.when(by_level, fn.unix_millis("storeTimestamp") + delay).otherwise(
        read(names.TIMER_OUT_MS).try_cast("bigint")
    )
    key = ["broker", "msgId", "topic", "retries"]
    due = (
        waiting.select(
            "broker",
            "msgId",
            read(names.REAL_TOPIC).alias("topic"),
            waiting["reconsumeTimes"].alias("retries"),
            fn.when(by_level, fn.concat(fn.lit("level "), level)).otherwise("timer").alias("kind"),
            fn.timestamp_millis(due_ms).alias("dueTimestamp"),
        )
        .groupBy(*key, "kind")
        .agg(fn.max("dueTimestamp").alias("dueTimestamp"))  # a far timer is stored several times
    )
    came = messages.select("broker", "msgId", "topic", fn.col("reconsumeTimes").alias("retries"), "storeTimestamp")
    delivered = came.groupBy(*key).agg(fn.min("storeTimestamp").alias("deliveredTimestamp"))
    joined = due.join(delivered, key, "left")
    late = millis(fn.col("dueTimestamp"), fn.col("deliveredTimestamp"))
    return shaped(
        joined.withColumn("lateMs", late),
        ["broker", "msgId", "topic", "kind", "retries", "dueTimestamp", "deliveredTimestamp",
         "lateMs"],
    )  # fmt: skip


def lateness(found: DataFrame, now_ms: int) -> DataFrame:
    """Return the lateness of the messages of `delayed`, in milliseconds.

    Columns: topic, kind, delivered, p50, p90, p99, p999, max, waiting, overdue (waiting though they were due), nextDue.
    """
    waits = fn.col("deliveredTimestamp").isNull()
    counted = found.groupBy("topic", "kind").agg(
        fn.count("deliveredTimestamp").alias("delivered"),
        *spread(fn.col("lateMs")),
        fn.count_if(waits).alias("waiting"),
        fn.count_if(waits & (fn.col("dueTimestamp") < at(now_ms))).alias("overdue"),
        fn.min(fn.when(waits, fn.col("dueTimestamp"))).alias("nextDue"),
    )
    return shaped(
        counted.orderBy("topic", "kind"), ["topic", "kind", "delivered", *SPREAD, "waiting", "overdue", "nextDue"]
    )
