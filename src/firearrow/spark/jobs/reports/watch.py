"""Watch: a stream of messages, thresholds, and alerts to a topic, a webhook or a function.

Spark's state of the query is a few numbers for each topic and minute, never messages. Each changed row is checked
against the rules after a batch. The stream does not hold the lag of consumers, so it is looked up at intervals beside
the stream (`Lags`).

The id of an alert is made of its rule, subject and minute. A running query sends it once, and a restarted query may
send it again: receivers can drop alerts with a known id.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from threading import Event
from typing import Final

import pyspark.sql.functions as fn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from firearrow.errors import ConfigError, FirearrowError
from firearrow.message.names import DLQ_PREFIX, RETRY_PREFIX
from firearrow.spark.jobs.reports.columns import is_internal, millis, shaped
from firearrow.spark.jobs.reports.latency import is_put_off

MESSAGE_COLUMNS: Final = ("topic", "storeSize", "sysFlag", "bornTimestamp", "storeTimestamp", "properties")

STREAM_METRICS: Final = ("messages", "bytes", "deadLetters", "retries", "p99Ms")
LAG_METRICS: Final = ("lag", "lost")
METRICS: Final = (*STREAM_METRICS, *LAG_METRICS)

WINDOW: Final = "1 minute"
LATE: Final = "10 minutes"  # retention of a minute's numbers
TOLD_MAX: Final = 10_000  # remembered ids of alerts; more than retained minutes x subjects
WEBHOOK_SECONDS_MAX: Final = 10.0
WEBHOOK_TRIES: Final = 3

_RULE: Final = re.compile(r"\s*(\w+)\s*>\s*(\d+(?:\.\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class Rule:
    """A metric that must not be above a threshold."""

    metric: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.metric} > {self.threshold:g}"


@dataclass(frozen=True, slots=True)
class Alert:
    """A broken rule; ``window`` is the minute (UTC, ISO 8601), for lag the minute of the look."""

    id: str
    rule: str
    subject: str
    window: str
    value: float

    def as_json(self) -> str:
        """Return the alert as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


Tell = Callable[[Sequence[Alert]], None]
"""Sends alerts. They have arrived on return; it raises if they can't."""


def parse_rule(text: str) -> Rule:
    """Read a rule such as ``deadLetters > 0``; metrics are `METRICS`, in any case.

    Raises ConfigError for any other text.
    """
    match = _RULE.fullmatch(text)
    known = {name.lower(): name for name in METRICS}
    if match is None or match[1].lower() not in known:
        raise ConfigError(f"rule {text!r}: must be METRIC > NUMBER, with a metric of {', '.join(METRICS)}")
    return Rule(known[match[1].lower()], float(match[2]))


# --- rules and numbers ---


def measured(messages: DataFrame) -> DataFrame:
    """Return the numbers of each topic and minute, from a stream or a table of messages.

    Columns: windowStart, topic, messages, bytes, deadLetters, retries, p99Ms (born to stored, of messages that were not
    meant to be stored later; null if there are none).
    """
    dead = fn.startswith("topic", fn.lit(DLQ_PREFIX))
    retry = fn.startswith("topic", fn.lit(RETRY_PREFIX))
    at_once = ~(dead | retry | is_put_off(messages))
    took = fn.when(at_once, millis(fn.col("bornTimestamp"), fn.col("storeTimestamp")))
    counted = (
        messages.where(~is_internal(fn.col("topic")))
        .withWatermark("storeTimestamp", LATE)
        .groupBy(fn.window("storeTimestamp", WINDOW).alias("window"), "topic")
        .agg(
            fn.count("*").alias("messages"),
            fn.sum("storeSize").alias("bytes"),
            fn.count_if(dead).alias("deadLetters"),
            fn.count_if(retry).alias("retries"),
            fn.percentile_approx(took, 0.99).alias("p99Ms"),
        )
    )
    return shaped(counted.withColumn("windowStart", fn.col("window.start")), ["windowStart", "topic", *STREAM_METRICS])


def broken(numbers: DataFrame, rules: Iterable[Rule]) -> list[Alert]:
    """Return an alert for each row of `measured` and each rule that it breaks."""
    wanted = [rule for rule in rules if rule.metric in STREAM_METRICS]
    if not wanted:
        numbers.write.format("noop").mode("overwrite").save()  # Spark must compute the batch
        return []
    any_broken = fn.lit(False)
    for rule in wanted:
        any_broken |= fn.col(rule.metric) > rule.threshold
    return [
        _alert(rule, row.topic, row.windowStart.astimezone(UTC), row[rule.metric])
        for row in numbers.where(any_broken).orderBy("windowStart", "topic").collect()
        for rule in wanted
        if row[rule.metric] is not None and row[rule.metric] > rule.threshold
    ]


def _alert(rule: Rule, subject: str, window: datetime, value: float) -> Alert:
    text = f"{window:%Y-%m-%dT%H:%M:%SZ}"
    digest = sha256(f"{rule}\n{subject}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
    return Alert(digest[:32], str(rule), subject, text, value)


class Lags:
    """Check of the lag of consumer groups; a breach is reported once, until it is over."""

    def __init__(self, read: Callable[[], DataFrame], rules: Iterable[Rule]) -> None:
        """``read`` returns the present result of `firearrow.spark.jobs.reports.backlog.lags`."""
        self._read = read
        self._rules = [rule for rule in rules if rule.metric in LAG_METRICS]
        self._standing: set[tuple[Rule, str]] = set()

    def look(self, now: datetime) -> list[Alert]:
        """Return the rules that are broken now and were not at the previous look."""
        if not self._rules:
            return []
        summed = (
            self._read().groupBy("consumerGroup", "topic").agg(fn.sum("lag").alias("lag"), fn.sum("lost").alias("lost"))
        )
        values = {
            (rule, f"{row.consumerGroup} of {row.topic}"): row[rule.metric]
            for row in summed.collect()
            for rule in self._rules
            if row[rule.metric] > rule.threshold
        }
        new = values.keys() - self._standing
        self._standing = set(values)
        return [_alert(*key, now, values[key]) for key in sorted(new, key=str)]


# --- receivers of alerts ---


@dataclass
class Topic:
    """Sends alerts to a topic: a JSON body, the metric as tag, the id as key."""

    spark: SparkSession
    topic: str
    options: dict[str, str]
    """Options of the sink; ``nameServer`` at least."""

    def __call__(self, alerts: Sequence[Alert]) -> None:
        rows = [(self.topic, bytearray(a.as_json().encode()), a.rule.split()[0], a.id) for a in alerts]
        frame = self.spark.createDataFrame(rows, "topic string, body binary, tags string, keys string")
        sink = frame.coalesce(1).write.format("rocketmq").options(**self.options)
        sink.mode("append").save()


@dataclass
class Webhook:
    """Posts alerts as JSON, ``{"alerts": [...]}``, to a URL; a status of 2xx means received."""

    url: str
    pause_seconds: float = 1.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"webhook {self.url!r}: must begin with http:// or https://")

    def __call__(self, alerts: Sequence[Alert]) -> None:
        body = json.dumps({"alerts": [asdict(alert) for alert in alerts]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url, body, headers, method="POST")
        for left in reversed(range(WEBHOOK_TRIES)):
            try:
                with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS_MAX):
                    return
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()  # the error is the answer too
                if not left:
                    raise FirearrowError(
                        f"webhook {self.url}: {error} after {WEBHOOK_TRIES} tries, {len(alerts)} alerts not delivered"
                    ) from error
            Event().wait(self.pause_seconds)


# --- the query ---


@dataclass
class Watch:
    """Handler of each batch of a streaming query."""

    rules: Sequence[Rule]
    tell: Tell
    _told: dict[str, None] = field(default_factory=dict)

    def __call__(self, numbers: DataFrame, batch: int) -> None:
        """Send the alerts of a batch that were not sent yet; ``batch`` is Spark's number."""
        new = [alert for alert in broken(numbers, self.rules) if alert.id not in self._told]
        if new:
            self.tell(new)
        for alert in new:
            self._told[alert.id] = None
        while len(self._told) > TOLD_MAX:
            self._told.pop(next(iter(self._told)))


def late(query: StreamingQuery) -> int:
    """Return the count of numbers of a topic and minute that were dropped because they came after `LATE`."""
    operators = [found for step in query.recentProgress for found in step.stateOperators]
    return sum(found.numRowsDroppedByWatermark for found in operators)


def start(messages: DataFrame, watch: Watch, checkpoint: str, trigger: dict[str, str | bool]) -> StreamingQuery:
    """Start watching a stream of messages (`MESSAGE_COLUMNS`).

    ``trigger`` is of ``DataStreamWriter.trigger``: ``{"processingTime": "10 seconds"}`` or
    ``{"availableNow": True}``.
    """
    writer = measured(messages).writeStream.outputMode("update").foreachBatch(watch)
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()  # type: ignore[arg-type]
