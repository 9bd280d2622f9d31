"""Transactions: the fate of each half message.

A transactional message is first stored in ``RMQ_SYS_TRANS_HALF_TOPIC``. Its decision is an entry in
``RMQ_SYS_TRANS_OP_HALF_TOPIC``, whose body lists queue offsets of halves (``17,18,``; offsets with a plus sign are
copies of an earlier entry). A commit is also a message in the real topic that names the half's place in the log. A half
that is checked is stored once more, as a new half of the same id. A half that the broker gives up is copied to
``TRANS_CHECK_MAX_TIME_TOPIC``. Read the messages with ``visibility=log``.
"""

from __future__ import annotations

from typing import Final

import pyspark.sql.functions as fn
from pyspark.sql import Column, DataFrame

from firearrow.message import properties as names
from firearrow.message.names import (
    ROCKSDB_TRANS_HALF_TOPIC,
    ROCKSDB_TRANS_OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from firearrow.spark import properties
from firearrow.spark.jobs.reports.columns import at, is_copy, is_internal, seconds, shaped

MESSAGE_COLUMNS: Final = (
    "broker", "topic", "queueId", "queueOffset", "commitLogOffset", "msgId", "sysFlag",
    "bornTimestamp", "storeTimestamp", "preparedTransactionOffset", "keys", "properties", "body",
)  # fmt: skip


_HALVES: Final = (TRANS_HALF_TOPIC, ROCKSDB_TRANS_HALF_TOPIC)
_OPS: Final = (TRANS_OP_HALF_TOPIC, ROCKSDB_TRANS_OP_HALF_TOPIC)


def transactions(messages: DataFrame, now_ms: int) -> DataFrame:
    """Return each transaction whose half is in the log: undecided ones first, then the oldest.

    ``decided twice``: more than one commit, or a commit of one half and a rollback of another. ``discarded``: given up
    after too many checks, though it may be decided later by hand.

    Columns: broker, msgId, topic, producerGroup, keys, state, halves (copies by checks included), checks, commits,
    decisions (halves with an entry that decides them), bornTimestamp, lastTimestamp (of the last half), ageSeconds
    (since born; until the decision, if there is one), halfQueueOffset (of the last half), commitLogOffset (of it).
    """
    half = _halves(messages)
    decided = _decided(messages)
    committed = _committed(messages)
    per_half = half.join(decided, ["broker", "halfQueueId", "halfQueueOffset"], "left").join(
        committed, ["broker", "halfPosition"], "left"
    )
    whole = per_half.groupBy("broker", "msgId").agg(
        fn.max("realTopic").alias("topic"),
        fn.max("producerGroup").alias("producerGroup"),
        fn.max("keys").alias("keys"),
        fn.count("*").alias("halves"),
        fn.max("checks").alias("checks"),
        fn.coalesce(fn.sum("commits"), fn.lit(0)).alias("commits"),
        fn.count_if(fn.col("decidedAt").isNotNull() | (fn.col("commits") > 0)).alias("decisions"),
        fn.min("bornTimestamp").alias("bornTimestamp"),
        fn.max("storeTimestamp").alias("lastTimestamp"),
        fn.least(fn.min("decidedAt"), fn.min("committedAt")).alias("end"),
        fn.max("halfQueueOffset").alias("halfQueueOffset"),
        fn.max("halfPosition").alias("commitLogOffset"),
    )
    known = whole.join(_discarded(messages), ["broker", "msgId"], "left")
    age = seconds(fn.col("bornTimestamp"), fn.coalesce("end", at(now_ms)))
    stated = known.withColumn("state", _state()).withColumn("ageSeconds", age)
    return shaped(
        stated.orderBy(fn.col("state") != "undecided", "bornTimestamp", "broker", "msgId"),
        ["broker", "msgId", "topic", "producerGroup", "keys", "state", "halves", "checks",
         "commits", "decisions", "bornTimestamp", "lastTimestamp", "ageSeconds", "halfQueueOffset",
         "commitLogOffset"],
    )  # fmt: skip


def states(found: DataFrame) -> DataFrame:
    """Count the transactions of `transactions`.

    Columns: topic, producerGroup, state, transactions, checks, oldest, medianAgeSeconds,
    maxAgeSeconds.
    """
    counted = found.groupBy("topic", "producerGroup", "state").agg(
        fn.count("*").alias("transactions"),
        fn.sum("checks").alias("checks"),
        fn.min("bornTimestamp").alias("oldest"),
        fn.percentile_approx("ageSeconds", 0.5).alias("medianAgeSeconds"),
        fn.max("ageSeconds").alias("maxAgeSeconds"),
    )
    return shaped(
        counted.orderBy("topic", "producerGroup", "state"),
        ["topic", "producerGroup", "state", "transactions", "checks", "oldest",
         "medianAgeSeconds", "maxAgeSeconds"],
    )  # fmt: skip


def _state() -> Column:
    commits, decisions = fn.col("commits"), fn.col("decisions")
    return (
        fn.when((commits > 1) | ((commits > 0) & (decisions > commits)), "decided twice")
        .when(commits > 0, "committed")
        .when(decisions > 0, "rolled back")
        .when(fn.col("given").isNotNull(), "discarded")
        .otherwise("undecided")
    )


def _halves(messages: DataFrame) -> DataFrame:
    """Return every half, copies included."""
    half = messages.where(fn.col("topic").isin(*_HALVES))
    read = properties.of(half)
    return half.select(
        "broker",
        _id(half).alias("msgId"),
        read(names.REAL_TOPIC).alias("realTopic"),
        read(names.PRODUCER_GROUP).alias("producerGroup"),
        "keys",
        fn.coalesce(read(names.TRANSACTION_CHECK_TIMES).try_cast("int"), fn.lit(0)).alias("checks"),
        half["queueId"].alias("halfQueueId"),
        half["queueOffset"].alias("halfQueueOffset"),
        half["commitLogOffset"].alias("halfPosition"),
        "bornTimestamp",
        "storeTimestamp",
    )


def _id(half: DataFrame) -> Column:
    """Id that all copies of a half share."""
    read = properties.of(half)
    return fn.coalesce(read(names.UNIQUE_KEY), read(names.TRANSACTION_ID), half["msgId"])


def _decided(messages: DataFrame) -> DataFrame:
    """Return the halves that operations name, and the store time of the first operation."""
    ops = messages.where(fn.col("topic").isin(*_OPS))
    offsets = fn.explode(fn.split(ops["body"].cast("string"), ","))
    named = ops.select("broker", ops["queueId"].alias("halfQueueId"), "storeTimestamp", offsets.alias("n"))
    return (
        named.withColumn("halfQueueOffset", fn.trim("n").try_cast("bigint"))
        .where("halfQueueOffset is not null and not startswith(trim(n), '+')")
        .groupBy("broker", "halfQueueId", "halfQueueOffset")
        .agg(fn.min("storeTimestamp").alias("decidedAt"))
    )


def _committed(messages: DataFrame) -> DataFrame:
    """Return the places of halves that have a message in the real topic."""
    topic = fn.col("topic")
    delayed = is_internal(topic)  # of a delayed message, one copy waits and one is delivered
    commits = fn.greatest(fn.count_if(delayed), fn.count_if(~delayed))
    return (
        messages.where((fn.col("sysFlag").bitwiseAND(TRANSACTION_MASK) == TRANSACTION_COMMIT) & ~is_copy(topic))
        .groupBy("broker", fn.col("preparedTransactionOffset").alias("halfPosition"))
        .agg(commits.alias("commits"), fn.min("storeTimestamp").alias("committedAt"))
    )


def _discarded(messages: DataFrame) -> DataFrame:
    given = messages.where(fn.col("topic") == TRANS_CHECK_MAX_TIME_TOPIC)
    return given.groupBy("broker", _id(given).alias("msgId")).agg(fn.min("storeTimestamp").alias("given"))
