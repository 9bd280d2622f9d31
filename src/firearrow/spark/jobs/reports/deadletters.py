"""Dead letters: their kinds, their origins, groups of similar ones, and sending them again.

A consumer group that fails to consume a message as often as allowed puts it into ``%DLQ%group``. Its properties name
the original message; the copies between are in ``%RETRY%group``.
"""

from __future__ import annotations

from typing import Final

import pyspark.sql.functions as fn
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame

from firearrow.errors import ConfigError
from firearrow.message import properties as names
from firearrow.message.names import DLQ_PREFIX, RETRY_PREFIX
from firearrow.spark import properties
from firearrow.spark.jobs.reports.columns import address, ranked, shaped

MESSAGE_COLUMNS: Final = (
    "broker", "topic", "queueId", "queueOffset", "msgId", "offsetMsgId", "flag", "bornTimestamp",
    "bornHost", "storeTimestamp", "reconsumeTimes", "tags", "keys", "properties", "body",
)  # fmt: skip

COORDINATES: Final = ("broker", "topic", "queueId", "queueOffset")
"""What tells one dead letter from all others, for ever."""

AUDIT_COLUMNS: Final = (*COORDINATES, "consumerGroup", "msgId", "target", "run", "outcome", "at")
SHAPE_CHARACTERS: Final = 60


def letters(messages: DataFrame) -> DataFrame:
    """Return every dead letter with its origin.

    Columns: consumerGroup, broker, topic (``%DLQ%...``), queueId, queueOffset, msgId, originTopic, originMsgId (id by
    offset of the first copy), tags, keys, producer, retries, bornTimestamp, deadTimestamp, shape (see `shape_of`),
    flag, properties (a map), body.
    """
    dead = messages.where(fn.col("topic").startswith(DLQ_PREFIX))
    read = properties.of(dead)
    origin_id = read(names.ORIGIN_MESSAGE_ID)
    shown = dead.select(
        fn.substring(dead["topic"], len(DLQ_PREFIX) + 1, 1 << 15).alias("consumerGroup"),
        *COORDINATES,
        "msgId",
        _origin_topic(read).alias("originTopic"),
        fn.coalesce(origin_id, read(names.DLQ_ORIGIN_MESSAGE_ID)).alias("originMsgId"),
        "tags",
        "keys",
        address(dead["bornHost"]).alias("producer"),
        dead["reconsumeTimes"].alias("retries"),
        "bornTimestamp",
        dead["storeTimestamp"].alias("deadTimestamp"),
        shape_of(dead["body"]).alias("shape"),
        "flag",
        properties.as_map(dead).alias("properties"),
        "body",
    )
    return shaped(shown, shown.columns)


def _origin_topic(read: properties.Reader) -> Column:
    """Topic that the group had subscribed; null rather than a retry topic."""
    topic = fn.coalesce(read(names.RETRY_TOPIC), read(names.DLQ_ORIGIN_TOPIC))
    return fn.when(~topic.startswith(RETRY_PREFIX), topic)


def shape_of(body: Column) -> Column:
    """Shape that bodies of one kind share, as text of about 80 characters at most.

    For a JSON object it is its names in order. For other text it is the beginning, with numbers as ``0`` and long
    hexadecimal words as ``x``. For bytes that are not text it is their number in powers of two.
    """
    text = body.cast("string")
    known = fn.array_sort(fn.json_object_keys(text))
    json = fn.concat(fn.lit("json {"), fn.array_join(known, ", "), fn.lit("}"))
    plain = fn.regexp_replace(text, r"\b[0-9a-fA-F-]{12,}\b", "x")
    plain = fn.regexp_replace(plain, r"\d+", "0")
    plain = fn.regexp_replace(fn.trim(plain), r"\s+", " ")
    size = fn.pow(fn.lit(2), fn.ceil(fn.log2(fn.length(body)))).cast("bigint")
    binary = fn.concat(fn.lit("binary, up to "), size.cast("string"), fn.lit(" bytes"))
    return (
        fn.when(fn.coalesce(fn.length(body), fn.lit(0)) == 0, "empty")
        .when(~fn.is_valid_utf8(text), binary)
        .when(known.isNotNull(), fn.substring(json, 1, SHAPE_CHARACTERS))
        .otherwise(fn.concat(fn.lit("text "), fn.substring(plain, 1, SHAPE_CHARACTERS)))
    )


def histories(messages: DataFrame, dead: DataFrame) -> DataFrame:
    """Join dead letters with their original message and its retries, if the log still has them.

    Columns: `COORDINATES`, consumerGroup, msgId, originTopic, originQueueId, originQueueOffset, originTimestamp (all
    null: expired), tries (copies in the retry topic that the log still has), firstRetry, lastRetry, deadTimestamp.
    """
    wanted = dead.select("originMsgId").where("originMsgId is not null").distinct()
    origin = messages.join(fn.broadcast(wanted), messages["offsetMsgId"] == wanted["originMsgId"]).select(
        "originMsgId",
        messages["queueId"].alias("originQueueId"),
        messages["queueOffset"].alias("originQueueOffset"),
        messages["storeTimestamp"].alias("originTimestamp"),
    )
    copies = messages.where(fn.col("topic").startswith(RETRY_PREFIX))
    retries = (
        copies.withColumn("originMsgId", properties.of(copies)(names.ORIGIN_MESSAGE_ID))
        .groupBy(fn.regexp_extract("topic", f"^{RETRY_PREFIX}([^+]+)", 1).alias("consumerGroup"), "originMsgId")
        .agg(
            fn.count("*").alias("tries"),
            fn.min("storeTimestamp").alias("firstRetry"),
            fn.max("storeTimestamp").alias("lastRetry"),
        )
    )
    joined = (
        dead.join(origin.dropDuplicates(["originMsgId"]), "originMsgId", "left")
        .join(retries, ["consumerGroup", "originMsgId"], "left")
        .fillna(0, ["tries"])
    )
    return shaped(
        joined.orderBy("deadTimestamp", *COORDINATES),
        [*COORDINATES, "consumerGroup", "msgId", "originTopic", "originQueueId",
         "originQueueOffset", "originTimestamp", "tries", "firstRetry", "lastRetry",
         "deadTimestamp"],
    )  # fmt: skip


def clusters(dead: DataFrame) -> DataFrame:
    """Group dead letters that are alike, the most frequent first.

    Columns: consumerGroup, originTopic, tags, shape, letters, producers (their number), first, last, exampleKeys,
    exampleMsgId (of the newest).
    """
    newest = fn.max_by(fn.struct("keys", "msgId"), "deadTimestamp")
    alike = dead.groupBy("consumerGroup", "originTopic", "tags", "shape").agg(
        fn.count("*").alias("letters"),
        fn.count_distinct("producer").alias("producers"),
        fn.min("deadTimestamp").alias("first"),
        fn.max("deadTimestamp").alias("last"),
        newest.alias("example"),
    )
    return shaped(
        alike.withColumn("exampleKeys", fn.col("example.keys"))
        .withColumn("exampleMsgId", fn.col("example.msgId"))
        .orderBy(fn.desc("letters"), "consumerGroup", "originTopic", "tags", "shape"),
        ["consumerGroup", "originTopic", "tags", "shape", "letters", "producers", "first", "last",
         "exampleKeys", "exampleMsgId"],
    )  # fmt: skip


def groups(dead: DataFrame) -> DataFrame:
    """Count the dead letters of each group and topic, the most first.

    Columns: consumerGroup, originTopic, letters, bytes (of bodies), first, last.
    """
    counted = dead.groupBy("consumerGroup", "originTopic").agg(
        fn.count("*").alias("letters"),
        fn.sum(fn.length("body")).alias("bytes"),
        fn.min("deadTimestamp").alias("first"),
        fn.max("deadTimestamp").alias("last"),
    )
    return shaped(
        counted.orderBy(fn.desc("letters"), "consumerGroup", "originTopic"),
        ["consumerGroup", "originTopic", "letters", "bytes", "first", "last"],
    )


def select(dead: DataFrame, condition: str) -> DataFrame:
    """Return the dead letters of `letters` that fulfil a condition in Spark's SQL.

    The condition can use the body as ``text``, and ``get_json_object(text, '$.name')``. Raises ConfigError for a wrong
    condition, with the names of the columns.
    """
    named = dead.withColumn("text", fn.try_validate_utf8(dead["body"].cast("string")))
    try:
        chosen = named.where(condition)
        chosen.schema  # noqa: B018 - a Spark Connect session looks at the condition only now
    except (ParseException, AnalysisException) as error:
        reason = str(error).strip().splitlines()[0].partition(" SQLSTATE")[0]
        raise ConfigError(f"condition {condition!r}: {reason}; columns are {', '.join(named.columns)}") from error
    return chosen.drop("text")


def unsent(chosen: DataFrame, audit: DataFrame | None) -> DataFrame:
    """Leave out dead letters that an audit table records as sent, and those without a topic to go to.

    Columns: as in `letters`.
    """
    rest = chosen.where("originTopic is not null")
    if audit is None:
        return rest
    done = audit.where("outcome = 'sent'").select(*COORDINATES).distinct()
    return shaped(rest.join(done, list(COORDINATES), "left_anti"), chosen.columns)


def resend(chosen: DataFrame, target: str | None = None) -> DataFrame:
    """Return the messages for the sink, to their origin's topic or to ``target``.

    Properties of the sender stay, properties of the broker do not. ``FIREARROW_RESENT`` names the dead letter of each
    message (``broker/topic/queueId/queueOffset``), so that a consumer can recognize it.

    Columns: topic, body, tags, keys, flag, properties.
    """
    dropped = fn.array(*(fn.lit(name) for name in names.OF_BROKER))
    kept = fn.map_filter("properties", lambda name, _: ~fn.array_contains(dropped, name))
    mark = fn.create_map(fn.lit(names.RESENT_ID), fn.concat_ws("/", *COORDINATES))
    without_mark = fn.map_filter(kept, lambda name, _: name != names.RESENT_ID)
    topic = fn.lit(target) if target else fn.col("originTopic")
    return chosen.select(
        topic.alias("topic"), "body", "tags", "keys", "flag", fn.map_concat(without_mark, mark).alias("properties")
    )


def audited(chosen: DataFrame, run: str, outcome: str, target: str | None = None) -> DataFrame:
    """Return the rows of the audit table for the messages of a run.

    ``outcome`` is ``planned`` before the messages are sent, ``sent`` after all of them are acknowledged.

    Columns: `AUDIT_COLUMNS`.
    """
    topic = fn.lit(target) if target else fn.col("originTopic")
    return shaped(
        chosen.withColumn("target", topic)
        .withColumn("run", fn.lit(run))
        .withColumn("outcome", fn.lit(outcome))
        .withColumn("at", fn.current_timestamp()),
        AUDIT_COLUMNS,
    )


def outcomes(audit: DataFrame) -> DataFrame:
    """Return each dead letter's last outcome. ``planned`` alone means that its run broke off and may have sent it.

    Columns: `AUDIT_COLUMNS`.
    """
    latest = ranked(audit, COORDINATES, fn.desc("outcome"), fn.desc("at")).where("rank = 1")
    return shaped(latest.orderBy(*COORDINATES), AUDIT_COLUMNS)
