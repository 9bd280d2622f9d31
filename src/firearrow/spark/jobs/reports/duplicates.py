"""Duplicates: repeated messages, and the part of them that idempotent consumers would catch.

There are two kinds. A repeated *id* means that the client sent the message again because no answer came. A repeated
*business key* means that the application sent it again; copies with the same body are duplicates, others may be
intended.
"""

from __future__ import annotations

from typing import Final

import pyspark.sql.functions as fn
from pyspark.sql import DataFrame, Window

from firearrow.spark.jobs.reports.columns import QUEUE, address, is_copy, is_internal, key_words, seconds, shaped

MESSAGE_COLUMNS: Final = (
    *QUEUE, "queueOffset", "msgId", "bornHost", "storeTimestamp", "bodyCrc", "keys",
)  # fmt: skip


def occurrences(messages: DataFrame) -> DataFrame:
    """Return each message of users once for its id and once for each of its keys.

    Columns: topic, kind, value, broker, queueId, queueOffset, producer, storeTimestamp, bodyCrc.
    """
    topic = fn.col("topic")
    keys = fn.transform(
        fn.array_distinct(key_words()), lambda word: fn.struct(fn.lit("key").alias("kind"), word.alias("value"))
    )
    unique = fn.struct(fn.lit("id").alias("kind"), fn.col("msgId").alias("value"))
    rows = messages.where(~is_internal(topic) & ~is_copy(topic)).select(
        "topic", "broker", "queueId", "queueOffset", address(fn.col("bornHost")).alias("producer"),
        "storeTimestamp", "bodyCrc", fn.inline(fn.concat(fn.array(unique), keys)),
    )  # fmt: skip
    return shaped(
        rows,
        ["topic", "kind", "value", "broker", "queueId", "queueOffset", "producer",
         "storeTimestamp", "bodyCrc"],
    )  # fmt: skip


def repeats(found: DataFrame) -> DataFrame:
    """Return the ids and keys of `occurrences` with more than one copy, the most copied first.

    Columns: topic, kind, value, copies, bodies (number of different ones), producers, first, last, apartSeconds (from
    first to last).
    """
    counted = (
        found.groupBy("topic", "kind", "value")
        .agg(
            fn.count("*").alias("copies"),
            fn.count_distinct("bodyCrc").alias("bodies"),
            fn.count_distinct("producer").alias("producers"),
            fn.min("storeTimestamp").alias("first"),
            fn.max("storeTimestamp").alias("last"),
        )
        .where("copies > 1")
    )
    return shaped(
        counted.withColumn("apartSeconds", seconds(fn.col("first"), fn.col("last"))).orderBy(
            fn.desc("copies"), "topic", "kind", "value"
        ),
        ["topic", "kind", "value", "copies", "bodies", "producers", "first", "last",
         "apartSeconds"],
    )  # fmt: skip


def repeated(found: DataFrame) -> DataFrame:
    """Return every copy but the first of an id or key, with the time since the copy before it.

    Columns: as in `occurrences`, then sameBody (as the one before), sinceSeconds.
    """
    order = Window.partitionBy("topic", "kind", "value").orderBy("storeTimestamp", "broker", "queueId", "queueOffset")
    before = fn.lag("storeTimestamp").over(order)
    copies = (
        found.withColumn("sameBody", fn.lag("bodyCrc").over(order) == fn.col("bodyCrc"))
        .withColumn("sinceSeconds", seconds(before, fn.col("storeTimestamp")))
        .where("sinceSeconds is not null")
    )
    return shaped(copies, [*found.columns, "sameBody", "sinceSeconds"])


def by_producer(copies: DataFrame, window_seconds: int) -> DataFrame:
    """Count the copies of each producer, and those that a consumer with a memory of ``window_seconds`` would catch.

    ``caught`` are copies of an id, or of a key with the same body, within the window. ``late`` are those after it.
    ``changed`` are copies of a key with another body.

    Columns: topic, producer, kind, copies, caught, late, changed.
    """
    same = (fn.col("kind") == "id") | fn.col("sameBody")
    inside = fn.col("sinceSeconds") <= window_seconds
    counted = copies.groupBy("topic", "producer", "kind").agg(
        fn.count("*").alias("copies"),
        fn.count_if(same & inside).alias("caught"),
        fn.count_if(same & ~inside).alias("late"),
        fn.count_if(~same).alias("changed"),
    )
    return shaped(
        counted.orderBy(fn.desc("copies"), "topic", "producer", "kind"),
        ["topic", "producer", "kind", "copies", "caught", "late", "changed"],
    )


def windows(found: DataFrame, window_seconds: int) -> DataFrame:
    """Count the copies in each stretch of time.

    Columns: topic, kind, windowStart, messages, copies (beyond the first of each id or key within the stretch), share.
    """
    start = fn.window("storeTimestamp", f"{window_seconds} seconds").start
    counted = found.groupBy("topic", "kind", start.alias("windowStart")).agg(
        fn.count("*").alias("messages"), (fn.count("*") - fn.count_distinct("value")).alias("copies")
    )
    return shaped(
        counted.withColumn("share", fn.col("copies") / fn.col("messages")).orderBy("windowStart", "topic", "kind"),
        ["topic", "kind", "windowStart", "messages", "copies", "share"],
    )
