"""Backlog: the messages that each consumer group has yet to consume, their kinds, and when retention deletes them.

Committed offsets, queue bounds and the messages between them are the only input. So the report is exact, and works on a
store's files while no broker runs.
"""

from __future__ import annotations

from typing import Final

import pyspark.sql.functions as fn
from pyspark.sql import DataFrame, Window

from firearrow.message.names import DLQ_PREFIX, RETRY_PREFIX, RETRY_TOPIC_LENGTH_MAX
from firearrow.spark.jobs.reports.columns import (
    QUEUE,
    address,
    at,
    is_internal,
    key_words,
    labelled,
    millis,
    ranked,
    seconds,
    shaped,
    stored_totals,
    summed_totals,
)

MESSAGE_COLUMNS: Final = (
    "broker", "topic", "queueId", "queueOffset", "storeSize", "storeTimestamp", "bornHost",
    "reconsumeTimes", "tags", "keys",
)  # fmt: skip
"""What these functions read of `messages`; a user's schema of these spares the rest."""

DIMENSIONS: Final = ("tag", "key", "age", "producer", "retries", "size")

AGES: Final = (
    (60_000, "under 1 min"),
    (600_000, "under 10 min"),
    (3_600_000, "under 1 h"),
    (86_400_000, "under 1 day"),
)
SIZES: Final = ((256, "under 256 B"), (1024, "under 1 KiB"), (16 * 1024, "under 16 KiB"), (256 * 1024, "under 256 KiB"))
NONE: Final = "(none)"
OTHERS: Final = "(others)"


def lags(consumer_offsets: DataFrame, queues: DataFrame | None = None) -> DataFrame:
    """Return the lag of each group in each queue.

    ``queues`` has the columns broker, topic, queueId, minOffset and maxOffset. With it, the result includes queues of a
    consumed topic where the group never committed an offset. Their ``offset`` is null, and all their messages are lag.
    The same holds for retry topics with messages, which a group reads from the first message.

    Columns: consumerGroup, broker, topic, queueId, offset, minOffset, maxOffset, lag (messages to consume), lost
    (messages that retention deleted before they were consumed).
    """
    known = consumer_offsets.select("consumerGroup", *QUEUE, "offset", "minOffset", "maxOffset")
    if queues is not None:
        consumed = known.select("consumerGroup", "topic").distinct().join(queues, "topic")
        columns = ["consumerGroup", *QUEUE, "minOffset", "maxOffset"]
        missing = (
            consumed.select(columns)
            .union(_retries(known, queues).select(columns))
            .distinct()
            .join(known.select("consumerGroup", *QUEUE), ["consumerGroup", *QUEUE], "left_anti")
        )
        known = known.unionByName(missing.withColumn("offset", fn.lit(None).cast("bigint")))
    start = fn.greatest(fn.coalesce("offset", "minOffset"), "minOffset")
    return shaped(
        known.withColumn("lag", fn.greatest(fn.col("maxOffset") - start, fn.lit(0)))
        .withColumn("lost", fn.greatest(fn.col("minOffset") - fn.col("offset"), fn.lit(0)))
        .fillna(0, ["lost"]),
        ["consumerGroup", *QUEUE, "offset", "minOffset", "maxOffset", "lag", "lost"],
    )


def _retries(known: DataFrame, queues: DataFrame) -> DataFrame:
    """Return the queues of retry topics that have messages, each with its group.

    The first form of POP's retry topics joins group and topic by a character that names may also have. Such a topic
    belongs to the known group with the longest name that fits.
    """
    retries = queues.where(
        fn.col("topic").startswith(RETRY_PREFIX) & (fn.col("maxOffset") > fn.col("minOffset"))
    ).withColumn("rest", fn.substring("topic", len(RETRY_PREFIX) + 1, RETRY_TOPIC_LENGTH_MAX))
    groups = known.select(fn.col("consumerGroup").alias("group")).distinct()
    rest, group = fn.col("rest"), fn.col("group")
    fits = (rest == group) | rest.startswith(fn.concat(group, fn.lit("_")))
    named = fn.coalesce(fn.max_by(group, fn.length(group)), fn.split_part(rest, fn.lit("+"), fn.lit(1)))
    key = [*QUEUE, "minOffset", "maxOffset", "rest"]
    is_second_form = rest.contains("+")
    owned = retries.join(fn.broadcast(groups), fits & ~is_second_form, "left")
    return owned.groupBy(*key).agg(named.alias("consumerGroup"))


def pending(messages: DataFrame, lagging: DataFrame) -> DataFrame:
    """Return the messages that groups have yet to consume, once for each group.

    Columns: consumerGroup and `MESSAGE_COLUMNS`.
    """
    behind = lagging.where("lag > 0").select(
        "consumerGroup", *QUEUE, (fn.col("maxOffset") - fn.col("lag")).alias("from"), fn.col("maxOffset").alias("to")
    )
    inside = (fn.col("queueOffset") >= fn.col("from")) & (fn.col("queueOffset") < fn.col("to"))
    joined = messages.join(fn.broadcast(behind), list(QUEUE)).where(inside)
    return shaped(joined, ["consumerGroup", *MESSAGE_COLUMNS])


def groups(lagging: DataFrame, waiting: DataFrame, now_ms: int) -> DataFrame:
    """Return each group's backlog of each topic, the largest first.

    Columns: consumerGroup, topic, lag, behindSeconds (age of the first pending message), lost, uncommitted (queues
    without a committed offset), queues, bytes, oldest (its store time).
    """
    key = ["consumerGroup", "topic"]
    counted = lagging.groupBy(*key).agg(
        fn.count("*").alias("queues"),
        fn.count_if(fn.col("offset").isNull()).alias("uncommitted"),
        fn.sum("lag").alias("lag"),
        fn.sum("lost").alias("lost"),
    )
    weighed = waiting.groupBy(*key).agg(fn.sum("storeSize").alias("bytes"), fn.min("storeTimestamp").alias("oldest"))
    joined = counted.join(weighed, key, "left").fillna(0, ["bytes"])
    behind = fn.greatest(seconds(fn.col("oldest"), at(now_ms)), fn.lit(0.0))
    return shaped(
        joined.withColumn("behindSeconds", behind).orderBy(fn.desc("lag"), *key),
        [*key, "lag", "behindSeconds", "lost", "uncommitted", "queues", "bytes", "oldest"],
    )


def anatomy(waiting: DataFrame, now_ms: int, *, top: int = 10) -> DataFrame:
    """Split each group's backlog by each of `DIMENSIONS`.

    A message with several keys counts once for each. Values beyond the ``top`` of a dimension are summed up as
    ``(others)``. Messages without a tag or key are ``(none)``.

    Columns: consumerGroup, topic, dimension, value, messages, bytes, oldest, newest, share.
    """
    key = ["consumerGroup", "topic", "dimension"]
    counted = _split(waiting, now_ms).groupBy(*key, "value").agg(*stored_totals("oldest", "newest"))
    value = fn.when(fn.col("rank") > top, OTHERS).otherwise(fn.col("value"))
    folded = (
        ranked(counted, key, fn.desc("messages"), "value")
        .withColumn("value", value)
        .groupBy(*key, "value")
        .agg(*summed_totals("oldest", "newest"))
    )
    share = fn.col("messages") / fn.sum("messages").over(Window.partitionBy(*key))
    return shaped(
        folded.withColumn("share", share).orderBy("dimension", fn.desc("messages"), "consumerGroup", "topic", "value"),
        [*key, "value", "messages", "bytes", "oldest", "newest", "share"],
    )


def _split(waiting: DataFrame, now_ms: int) -> DataFrame:
    """Return a row for each message and dimension, and for each key."""
    values = {
        "tag": fn.coalesce("tags", fn.lit(NONE)),
        "age": labelled(millis(fn.col("storeTimestamp"), at(now_ms)), AGES, "a day and more"),
        "producer": address(fn.col("bornHost")),
        "retries": fn.col("reconsumeTimes").cast("string"),
        "size": labelled(fn.col("storeSize"), SIZES, "256 KiB and more"),
    }
    words = key_words()
    keys = fn.when(fn.size(words) > 0, words).otherwise(fn.array(fn.lit(NONE)))
    pair = [fn.struct(fn.lit(name).alias("dimension"), v.alias("value")) for name, v in values.items()]
    by_key = fn.transform(keys, lambda word: fn.struct(fn.lit("key").alias("dimension"), word.alias("value")))
    return waiting.select(
        "consumerGroup", "topic", "storeSize", "storeTimestamp",
        fn.inline(fn.concat(fn.array(*pair), by_key)),
    )  # fmt: skip


def arrivals(messages: DataFrame, now_ms: int, window_seconds: int) -> DataFrame:
    """Return the rate of messages to each topic in the last seconds before ``now_ms``.

    Columns: topic, arriving (messages a second).
    """
    recent = messages.where(
        (fn.col("storeTimestamp") > at(now_ms - 1000 * window_seconds)) & (fn.col("storeTimestamp") <= at(now_ms))
    )
    counted = recent.groupBy("topic").agg((fn.count("*") / window_seconds).alias("arriving"))
    return shaped(counted, ["topic", "arriving"])


def progress(before: DataFrame, after: DataFrame, between_seconds: float) -> DataFrame:
    """Return groups' rate of consumption, from `lags` at two times.

    Columns: consumerGroup, topic, consuming (messages a second).
    """
    key = ["consumerGroup", *QUEUE]
    old = before.select(*key, fn.col("offset").alias("was"))
    moved = fn.sum(fn.greatest(fn.col("offset") - fn.col("was"), fn.lit(0))) / between_seconds
    joined = after.join(old, key).groupBy("consumerGroup", "topic").agg(moved.alias("consuming"))
    return shaped(joined, ["consumerGroup", "topic", "consuming"])


def drain(by_group: DataFrame, arriving: DataFrame, consuming: DataFrame) -> DataFrame:
    """Estimate when each group of `groups` has consumed its backlog, at constant rates.

    ``arriving`` is the result of `arrivals`, ``consuming`` that of `progress` (or assumed). A null ``drainSeconds``
    means never: messages arrive faster than the group consumes, or no rate is known.

    Columns: consumerGroup, topic, lag, arriving, consuming, drainSeconds.
    """
    joined = (
        by_group.select("consumerGroup", "topic", "lag")
        .join(arriving, "topic", "left")
        .join(consuming, ["consumerGroup", "topic"], "left")
        .fillna(0.0, ["arriving"])
    )
    gain = fn.col("consuming") - fn.col("arriving")
    left = fn.when(fn.col("lag") == 0, 0.0).when(gain > 0, fn.col("lag") / gain)
    return shaped(
        joined.withColumn("drainSeconds", left).orderBy(
            fn.desc_nulls_first("drainSeconds"), fn.desc("lag"), "consumerGroup", "topic"
        ),
        ["consumerGroup", "topic", "lag", "arriving", "consuming", "drainSeconds"],
    )


def falling_off(waiting: DataFrame, now_ms: int, retention_hours: float) -> DataFrame:
    """Return the queues where retention deletes pending messages, the next to delete first.

    Retention deletes a file ``retention_hours`` after its last write, so a message is safe at least that long after it
    was stored.

    Columns: consumerGroup, topic, broker, queueId, queueOffset (of the first message to go), messages, safeUntil,
    leftSeconds (negative: it can be deleted at any time), withinHour, withinDay (messages that can be deleted in that
    time).
    """
    keep_ms = int(retention_hours * 3_600_000)
    until = fn.timestamp_millis(fn.unix_millis("storeTimestamp") + keep_ms)
    left = seconds(at(now_ms), fn.col("safeUntil"))
    safe = waiting.withColumn("safeUntil", until).withColumn("left", left)
    first = safe.groupBy("consumerGroup", *QUEUE).agg(
        fn.min("queueOffset").alias("queueOffset"),
        fn.count("*").alias("messages"),
        fn.min("safeUntil").alias("safeUntil"),
        fn.min("left").alias("leftSeconds"),
        fn.count_if(fn.col("left") < 3600).alias("withinHour"),
        fn.count_if(fn.col("left") < 86_400).alias("withinDay"),
    )
    return shaped(
        first.orderBy("safeUntil", "consumerGroup", *QUEUE),
        ["consumerGroup", "topic", "broker", "queueId", "queueOffset", "messages", "safeUntil",
         "leftSeconds", "withinHour", "withinDay"],
    )  # fmt: skip


def of_users(consumer_offsets: DataFrame) -> DataFrame:
    """Leave out the broker's own groups and topics, and dead letters, which no group consumes."""
    topic = fn.col("topic")
    own = is_internal(topic) | topic.startswith(DLQ_PREFIX)
    return consumer_offsets.where(~own)
