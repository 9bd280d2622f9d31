"""Reports of the analyses: their tables, the order of the tables, and their charts.

Needs PySpark; `firearrow.cli.pipeline.jobs` imports this module when a command runs.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass
from datetime import datetime
from threading import Event
from typing import Any, Final, Generic, TypeVar

import pyspark.sql.functions as fn
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from firearrow.cli.output.reports import Bars, Cell, Lines, Table
from firearrow.cli.pipeline.options import (
    Accounting,
    Backlog,
    Deadletters,
    Duplicates,
    Latency,
    RunOptions,
    Transactions,
)
from firearrow.errors import ConfigError
from firearrow.spark.jobs.reports import accounting, backlog, deadletters, duplicates, latency, transactions
from firearrow.spark.jobs.reports.reading import Reader

PREVIEW_CHARACTERS: Final = 120
HISTORY: Final = (
    "msgId", "originTopic", "originQueueId", "originQueueOffset", "originTimestamp", "tries",
    "firstRetry", "lastRetry", "deadTimestamp", "consumerGroup", "broker", "queueId", "queueOffset",
)  # fmt: skip
UNDECIDED: Final = (
    "msgId", "topic", "producerGroup", "keys", "ageSeconds", "checks", "halves", "bornTimestamp",
    "lastTimestamp", "broker", "halfQueueOffset", "commitLogOffset",
)  # fmt: skip
AUDIT: Final = ("consumerGroup", "msgId", "target", "outcome", *deadletters.COORDINATES)
POINTS_MAX: Final = 3000
ROWS_MAX: Final = 1_000_000  # all rows are in memory


Asked = TypeVar("Asked")


@dataclass(frozen=True)
class ReportRun(Generic[Asked]):
    """One run of a job: its Spark session, its input and its options."""

    spark: SparkSession
    reader: Reader
    options: Asked
    how: RunOptions
    now_ms: int

    def table(self, title: str, frame: DataFrame, note: str = "", chart: Bars | Lines | None = None) -> Table:
        """Collect the first rows of a DataFrame, and the rows of its chart."""
        top = self.how.top or ROWS_MAX
        wanted = max(top, POINTS_MAX if isinstance(chart, Lines) else 0)
        found = [[_cell(value) for value in row] for row in frame.limit(wanted + 1).collect()]
        if len(found) > ROWS_MAX:
            raise ConfigError(f"{title}: more than {ROWS_MAX} rows; set a limit with --top")
        drawn = found[:wanted] if isinstance(chart, Lines) else ()
        return Table(title, frame.columns, found[:top], note, chart, len(found) > top, drawn)


def _cell(value: Any) -> Cell:
    """A value of Spark as a cell. Spark's timestamps are in the local time zone, without a zone."""
    return value.astimezone() if isinstance(value, datetime) else value


# --- backlog ---


def report_backlog(run: ReportRun[Backlog]) -> list[Table]:
    """Lag: its parts, the time to drain it, and the groups that lose messages first."""
    queues = run.reader.queues()
    messages = run.reader.table("messages", backlog.MESSAGE_COLUMNS)
    lagging = _lags(run, queues)
    consuming = _consuming(run, lagging, queues)
    waiting = run.reader.held(backlog.pending(messages, lagging))
    by_group = run.reader.held(backlog.groups(lagging, waiting, run.now_ms))
    arriving = backlog.arrivals(messages, run.now_ms, run.options.window)
    groups = run.table("Backlog by consumer group", by_group, chart=Bars(["consumerGroup", "topic"], "lag"))
    return [
        summary_of(groups), groups,
        run.table("Queues that lag", lagging.where("lag > 0 or lost > 0").orderBy(fn.desc("lag"))),
        *_parts(run, backlog.anatomy(waiting, run.now_ms, top=run.options.parts)),
        run.table(
            "Time to drain", backlog.drain(by_group, arriving, consuming),
            f"Arriving: in the last {run.options.window} s. Consuming: {_consuming_note(run)}",
        ),
        run.table(
            "Falls off retention first",
            backlog.falling_off(waiting, run.now_ms, run.options.retention_hours),
            f"Messages are kept {run.options.retention_hours:g} h after they were stored.",
        ),
    ]  # fmt: skip


def summary_of(groups: Table) -> Table:
    """Give the sums of the backlog of all groups."""
    lagging = {group for group, lag in zip(groups.values("consumerGroup"), groups.values("lag"), strict=True) if lag}

    def numbers(column: str) -> list[float]:
        return [value for value in groups.values(column) if isinstance(value, int | float)]

    row: list[Cell] = [
        len(lagging), sum(numbers("lag")), sum(numbers("bytes")), max(numbers("behindSeconds"), default=0.0),
        sum(numbers("lost")),
    ]  # fmt: skip
    note = "Of the rows below: --top 0 has all." if groups.more else ""
    return Table(
        "Summary", ("groupsThatLag", "lag", "bytes", "behindSeconds", "lost"), [row] if groups.rows else [], note
    )


def _parts(run: ReportRun[Backlog], anatomy: DataFrame) -> list[Table]:
    """Tables of one query, one for each dimension."""
    at = anatomy.columns.index("dimension")
    columns = [name for name in anatomy.columns if name != "dimension"]
    rows: dict[str, list[list[Cell]]] = {name: [] for name in backlog.DIMENSIONS}
    for row in anatomy.collect():
        rows[row.dimension].append([_cell(value) for n, value in enumerate(row) if n != at])
    top = run.how.top or ROWS_MAX
    chart = Bars(["consumerGroup", "topic", "value"], "messages")
    return [
        Table(f"Pending messages, by {name}", columns, found[:top], "", chart, len(found) > top)
        for name, found in rows.items()
    ]


def _lags(run: ReportRun[Backlog], queues: DataFrame) -> DataFrame:
    """Snapshot of the committed offsets, since the files of a running broker change."""
    offsets = backlog.of_users(run.reader.table("consumer_offsets"))
    return run.reader.held(backlog.lags(offsets, queues))


def _consuming(run: ReportRun[Backlog], lagging: DataFrame, queues: DataFrame) -> DataFrame:
    pairs = lagging.select("consumerGroup", "topic").distinct()
    if run.options.consume_rate is not None:
        return pairs.withColumn("consuming", fn.lit(run.options.consume_rate))
    if run.options.sample:
        Event().wait(run.options.sample)
        return backlog.progress(lagging, _lags(run, queues), run.options.sample)
    return pairs.withColumn("consuming", fn.lit(None).cast("double"))


def _consuming_note(run: ReportRun[Backlog]) -> str:
    if run.options.consume_rate is not None:
        return "as --consume-rate says."
    if run.options.sample:
        return f"measured over {run.options.sample:g} s."
    return "unknown; --sample SECONDS measures it, --consume-rate N assumes it."


# --- accounting ---


def report_accounting(run: ReportRun[Accounting]) -> list[Table]:
    """Bytes, counts, rates, growth and a forecast."""
    by_hour = accounting.hourly(run.reader.log(accounting.MESSAGE_COLUMNS)).cache()
    tables = [
        run.table("By topic", accounting.totals(by_hour, ["topic"]),
                  chart=Bars(["topic"], "bytes")),
        run.table("By producer and topic", accounting.totals(by_hour, ["producer", "topic"]),
                  chart=Bars(["producer", "topic"], "bytes")),
        run.table("Retries and dead letters by consumer group",
                  accounting.totals(by_hour, ["consumerGroup"])),
        run.table("By hour", accounting.hours(by_hour), chart=Lines("hour", "bytes")),
        run.table("Hottest hour of each topic", accounting.hottest(by_hour)),
        run.table("Growth", accounting.growth(by_hour, run.now_ms),
                  "Last 24 hours, compared with the 24 hours before."),
    ]  # fmt: skip
    free = _free_bytes(run)
    if free is not None:
        hours = run.options.retention_hours
        tables.append(
            run.table(
                "Disk forecast", accounting.forecast(by_hour, free, hours, run.now_ms),
                f"At the rate of the last 24 hours; files are deleted after {hours:g} h.",
            )
        )  # fmt: skip
    return tables


def _free_bytes(run: ReportRun[Accounting]) -> int | None:
    """Free space on the disk of the store, from the options or measured."""
    if run.options.free_bytes is not None:
        return run.options.free_bytes
    paths = run.options.path
    if len(paths) != 1 or "://" in paths[0]:
        return None
    return shutil.disk_usage(paths[0]).free


# --- dead letters ---


def report_deadletters(run: ReportRun[Deadletters]) -> list[Table]:
    """Contents of the dead-letter topics; with --resend also their resending."""
    options = run.options
    messages = run.reader.table("messages", deadletters.MESSAGE_COLUMNS)
    dead = deadletters.letters(messages).cache()
    chosen = deadletters.select(dead, options.where) if options.where else dead
    groups = run.table(
        "Dead letters by consumer group",
        deadletters.groups(chosen),
        chart=Bars(["consumerGroup", "originTopic"], "letters"),
    )
    if options.resend:
        return [groups, *_resend(run, chosen)]
    histories = deadletters.histories(messages, chosen)
    return [
        groups,
        run.table("Alike", deadletters.clusters(chosen),
                  "Shape: the names of a JSON body, or a text's beginning with numbers as 0.",
                  Bars(["originTopic", "tags", "shape"], "letters")),
        run.table("Letters", _previews(chosen)),
        run.table("History", histories.select(*HISTORY),
                  "Tries: copies in the retry topic that the log still has."),
    ]  # fmt: skip


def _previews(chosen: DataFrame) -> DataFrame:
    text = fn.coalesce(fn.try_validate_utf8(chosen["body"].cast("string")), fn.hex(fn.substring("body", 1, 60)))
    return chosen.orderBy("deadTimestamp", *deadletters.COORDINATES).select(
        "consumerGroup", "originTopic", "keys", "tags", "retries",
        fn.substring(text, 1, PREVIEW_CHARACTERS).alias("body"), "deadTimestamp", "producer",
        "msgId",
    )  # fmt: skip


def _resend(run: ReportRun[Deadletters], chosen: DataFrame) -> list[Table]:
    options = run.options
    audit = _audit(run)
    target = options.to_topic
    left = deadletters.unsent(
        chosen if target is None else chosen.withColumn("originTopic", fn.lit(target)), audit
    ).localCheckpoint()
    number = f"{uuid.uuid4()}"
    if options.dry_run:
        planned = deadletters.audited(left, number, "planned").select(*AUDIT)
        return [run.table("Would be sent", planned, "A dry run: nothing was sent or written.")]
    assert options.audit is not None, "checked before"
    planned = deadletters.audited(left, number, "planned")
    planned.write.mode("append").parquet(options.audit)
    _require_noted(run.spark.read.schema(planned.schema).parquet(options.audit), left, number)
    (deadletters.resend(left).write.format("rocketmq").options(**options.sink()).mode("append").save())
    deadletters.audited(left, number, "sent").write.mode("append").parquet(options.audit)
    done = run.spark.read.parquet(options.audit).where(fn.col("run") == number)
    sent = deadletters.outcomes(done).select(*AUDIT, "run", "at")
    return [run.table("Sent", sent, f"Audit table: {options.audit}")]


def _require_noted(audit: DataFrame, left: DataFrame, number: str) -> None:
    """Raise ConfigError if the audit table lacks a row that the next run will look for."""
    noted, expected = audit.where(fn.col("run") == number).count(), left.count()
    if noted != expected:
        raise ConfigError(
            f"--audit: of {expected} rows that were written, {noted} can be seen here: a directory"
            " must be the same for all workers and for the driver; nothing was sent"
        )


def _audit(run: ReportRun[Deadletters]) -> DataFrame | None:
    """Audit table, None if there is none. Spark tells, because this host may lack the directory."""
    if not run.options.audit:
        return None
    try:
        audit = run.spark.read.parquet(run.options.audit)
        audit.schema  # noqa: B018 - a Spark Connect session looks for the files only now
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return audit


# --- transactions, duplicates, latency ---


def report_transactions(run: ReportRun[Transactions]) -> list[Table]:
    """Fate of half messages."""
    log = run.reader.log(transactions.MESSAGE_COLUMNS)
    found = transactions.transactions(log, run.now_ms).cache()
    return [
        run.table("Transactions by state", transactions.states(found),
                  chart=Bars(["topic", "producerGroup", "state"], "transactions")),
        run.table("Undecided",
                  found.where("state = 'undecided'").select(*UNDECIDED)),
        run.table("Decided twice", found.where("state = 'decided twice'").drop("state"),
                  "Their consumers may have seen a message twice, or one that was rolled back."),
        run.table("Discarded", found.where("state = 'discarded'").drop("state"),
                  "Given up by the broker after too many checks."),
    ]  # fmt: skip


def report_duplicates(run: ReportRun[Duplicates]) -> list[Table]:
    """Messages that exist more than once."""
    messages = run.reader.table("messages", duplicates.MESSAGE_COLUMNS)
    found = duplicates.occurrences(messages).cache()
    seconds = run.options.window
    by_window = duplicates.windows(found, seconds)
    return [
        run.table("By producer", duplicates.by_producer(duplicates.repeated(found), seconds),
                  f"Caught: by a consumer that remembers ids and keys for {seconds} s. Changed: "
                  "the same key with another body.",
                  Bars(["topic", "producer", "kind"], "copies")),
        run.table("Most repeated", duplicates.repeats(found)),
        run.table(f"In stretches of {seconds} s", by_window.where("copies > 0"),
                  chart=Lines("windowStart", "copies", "topic")),
    ]  # fmt: skip


def report_latency(run: ReportRun[Latency]) -> list[Table]:
    """Latency of messages, and lateness of delayed messages."""
    messages = run.reader.table("messages", latency.MESSAGE_COLUMNS).cache()
    traced = latency.consumptions(run.reader.table("messages", latency.TRACE_COLUMNS))
    levels = run.options.delay_levels
    delays = latency.delays_of(levels) if levels else latency.DELAYS_MS
    late = latency.delayed(messages, delays)
    return [
        run.table("Born to stored", latency.stored(messages, by_minute=False),
                  "Early: stored before it was born, so clocks differ.", Bars(["topic"], "p99")),
        run.table("Born to stored, by minute", latency.stored(messages),
                  chart=Lines("minute", "p99", "topic")),
        run.table("Stored to consumed", latency.consumed(messages, traced),
                  "Known of clients that trace.", Lines("minute", "waitP99", "consumerGroup")),
        run.table("Delayed messages", latency.lateness(late, run.now_ms),
                  "How long after they were due they came.", Bars(["topic", "kind"], "p99")),
    ]  # fmt: skip
