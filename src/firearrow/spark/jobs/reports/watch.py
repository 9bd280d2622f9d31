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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from operator import itemgetter
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import pyspark.sql.functions as fn
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from firearrow.errors import ConfigError, FirearrowError
from firearrow.message.names import DLQ_PREFIX, RETRY_PREFIX
from firearrow.spark.jobs.reports.columns import is_internal, millis, shaped
from firearrow.spark.jobs.reports.latency import is_put_off

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent

MESSAGE_COLUMNS: Final = ("topic", "storeSize", "sysFlag", "bornTimestamp", "storeTimestamp", "properties")

STREAM_METRICS: Final = ("messages", "bytes", "deadLetters", "retries", "p99Ms")
LAG_METRICS: Final = ("lag", "lost")
METRICS: Final = (*STREAM_METRICS, *LAG_METRICS)

WINDOW: Final = "1 minute"
LATE: Final = "10 minutes"  # retention of a minute's numbers
TOLD_MAX: Final = 10_000  # remembered ids of alerts; more than retained minutes x subjects
WEBHOOK_SECONDS_MAX: Final = 10.0
WEBHOOK_TRIES: Final = 3
PROGRESS_SECONDS_MAX: Final = 240.0  # of a busy server
_OBSERVED: Final = "firearrow broken rules"

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
    wanted = _of_stream(rules)
    if not wanted:
        numbers.write.format("noop").mode("overwrite").save()  # Spark must compute the batch
        return []
    rows = numbers.where(_any_broken(wanted)).orderBy("windowStart", "topic").collect()
    starts = [row.windowStart.astimezone(UTC) for row in rows]
    return [
        alert
        for start, row in zip(starts, rows, strict=True)
        for alert in _alerts(start, row.topic, row.asDict(), wanted)
    ]


def _of_stream(rules: Iterable[Rule]) -> list[Rule]:
    return [rule for rule in rules if rule.metric in STREAM_METRICS]


def _any_broken(rules: Iterable[Rule]) -> Column:
    found = fn.lit(False)
    for rule in rules:
        found |= fn.col(rule.metric) > rule.threshold
    return found


def _alerts(start: datetime, topic: str, values: Mapping[str, Any], rules: Iterable[Rule]) -> Iterator[Alert]:
    for rule in rules:
        value = values.get(rule.metric)
        if value is not None and value > rule.threshold:
            yield _alert(rule, topic, start, value)


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
        self.take(broken(numbers, self.rules))

    def take(self, alerts: Sequence[Alert]) -> None:
        """Send the alerts that were not sent yet."""
        new = [alert for alert in alerts if alert.id not in self._told]
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


def start(
    messages: DataFrame,
    watch: Watch | None,
    checkpoint: str | None,
    trigger: dict[str, str | bool],
    remote: RemoteAlerts | None = None,
) -> StreamingQuery:
    """Start watching a stream of messages (`MESSAGE_COLUMNS`).

    ``trigger`` is of ``DataStreamWriter.trigger``: ``{"processingTime": "10 seconds"}`` or ``{"availableNow": True}``.
    Without a ``checkpoint`` Spark uses a temporary one. Spark Connect runs ``watch`` in a process of its server, and
    ``remote`` gives the alerts to this process, if it is a listener of the session's streams.
    """
    numbers = measured(messages)
    if remote is not None:
        numbers = remote.observed(numbers)
    writer = numbers.writeStream.outputMode("update").trigger(**trigger)  # type: ignore[arg-type]
    writer = writer.format("noop") if watch is None else writer.foreachBatch(watch)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    return writer.start()


# --- a query in a Spark Connect server ---


class RemoteAlerts(StreamingQueryListener):
    """Receiver of the alerts of a query that a Spark Connect server runs.

    A function for batches runs in the server, so it cannot reach this process. The progress of a query can: it carries
    the rows of `measured` that break a rule, as a metric of the batch. It comes after the batch is committed.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = _of_stream(rules)
        self._arrived: SimpleQueue[Alert] = SimpleQueue()
        self._end = Event()

    def observed(self, numbers: DataFrame) -> DataFrame:
        """Return the numbers of a query, which reports the rows that break a rule."""
        row = fn.struct(fn.unix_millis("windowStart").alias("startMs"), "topic", *STREAM_METRICS)
        rows = fn.collect_list(fn.when(_any_broken(self._rules), row))
        return numbers.observe(_OBSERVED, fn.to_json(rows).alias("rows"))

    def arrived(self) -> list[Alert]:
        """Return the alerts that came since the previous call."""
        return [self._arrived.get() for _ in range(self._arrived.qsize())]

    def wait(self) -> None:
        """Wait for the last progress of a query that has ended. Raises FirearrowError if it does not come."""
        if not self._end.wait(PROGRESS_SECONDS_MAX):
            raise FirearrowError(
                f"the Spark Connect server did not report the end of the query within {PROGRESS_SECONDS_MAX:g} s,"
                " so alerts may be missing"
            )

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: a query has no alerts before its first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take the rows of a batch."""
        found = event.progress.observedMetrics.get(_OBSERVED)
        rows = json.loads(found.rows) if found is not None else []
        for row in sorted(rows, key=itemgetter("startMs", "topic")):
            start = datetime.fromtimestamp(row["startMs"] / 1000, UTC)
            for alert in _alerts(start, row["topic"], row, self._rules):
                self._arrived.put(alert)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: a query without new messages has no alerts."""

    def onQueryTerminated(self, event: Any) -> None:
        """Let `wait` return."""
        self._end.set()
