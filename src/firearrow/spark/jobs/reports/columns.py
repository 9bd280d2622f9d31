"""Column expressions and steps that several reports share."""

from __future__ import annotations

from collections.abc import Sequence

import pyspark.sql.functions as fn
from pyspark.sql import Column, DataFrame, Window

from firearrow.message.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

QUEUE = ("broker", "topic", "queueId")


def seconds(since: Column, until: Column) -> Column:
    """Seconds from one time to another, with their fraction."""
    return millis(since, until) / 1000


def millis(since: Column, until: Column) -> Column:
    """Milliseconds from one time to another."""
    return fn.unix_millis(until) - fn.unix_millis(since)


def at(timestamp_ms: int) -> Column:
    """A time in milliseconds since 1970 as a timestamp."""
    return fn.timestamp_millis(fn.lit(timestamp_ms))


def address(host: Column) -> Column:
    """Address of a host without its port."""
    return fn.regexp_replace(host, r":\d+$", "")


def group_of(topic: Column) -> Column:
    """Consumer group of a retry or dead-letter topic, null of all others."""
    bare = fn.regexp_extract(topic, f"^(?:{RETRY_PREFIX}|{DLQ_PREFIX})([^+]+)", 1)
    return fn.nullif(bare, fn.lit(""))


def is_internal(topic: Column) -> Column:
    """Tell whether a topic belongs to the broker, and none of its messages to a user."""
    return topic.isin(*sorted(SYSTEM_TOPICS)) | topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_copy(topic: Column) -> Column:
    """Tell whether a topic holds copies for one group: retries, or dead letters."""
    return topic.startswith(RETRY_PREFIX) | topic.startswith(DLQ_PREFIX)


def key_words() -> Column:
    """The words of the column ``keys``; an empty array for a message without keys."""
    return fn.filter(fn.split(fn.coalesce("keys", fn.lit("")), " "), lambda word: word != "")


def stored_totals(first: str = "first", last: str = "last") -> list[Column]:
    """The columns messages, bytes, and the store times of the first and last message of a group."""
    return [
        fn.count("*").alias("messages"),
        fn.sum("storeSize").alias("bytes"),
        fn.min("storeTimestamp").alias(first),
        fn.max("storeTimestamp").alias(last),
    ]


def summed_totals(first: str = "first", last: str = "last") -> list[Column]:
    """The columns of `stored_totals`, of rows that have them already."""
    return [
        fn.sum("messages").alias("messages"),
        fn.sum("bytes").alias("bytes"),
        fn.min(first).alias(first),
        fn.max(last).alias(last),
    ]


def ranked(frame: DataFrame, keys: Sequence[str], *order: Column | str) -> DataFrame:
    """Number the rows of each group from 1 on, in an order, as the column ``rank``."""
    return frame.withColumn("rank", fn.row_number().over(Window.partitionBy(*keys).orderBy(*order)))


def labelled(value: Column, bounds: Sequence[tuple[int, str]], above: str) -> Column:
    """The label of the first bound that a value is below; ``above`` if it is below none."""
    found = fn.when(value.isNull(), fn.lit(None).cast("string"))
    for bound, label in bounds:
        found = found.when(value < bound, label)
    return found.otherwise(above)


def shaped(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return a report with these columns in this order."""
    return frame.select(*columns)
