"""`firearrow pipeline restore` and `replay`: jobs that send messages again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark.sql.functions as fn
from pyspark.sql import DataFrame

from firearrow.cli.output.reports import Bars, Cell, Table
from firearrow.cli.pipeline.analyses import ReportRun
from firearrow.cli.pipeline.options import Replay, Restore
from firearrow.spark.jobs.archive.archiving import read_archive
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.reports.columns import at, is_copy, is_internal
from firearrow.spark.jobs.resend import plans
from firearrow.spark.jobs.resend.replay import Selection, chosen, replay
from firearrow.spark.jobs.resend.restore import restore
from firearrow.spark.jobs.resend.sources import ArchiveMessages, MessageSource, OriginMessages
from firearrow.spark.jobs.workers import SparkWorkers
from firearrow.spark.options import Choice, parse

LEFT_OUT = (
    "Topics of the broker itself, and copies in retry and dead-letter topics: --all-topics or "
    "--option subscribe=TOPIC replays them."
)
COLUMNS = ("topic", "broker", "queueId", "queueOffset", "msgId", "storeTimestamp", "tags", "keys")


def report_restore(run: ReportRun[Restore]) -> list[Table]:
    """Write an archive's messages to a cluster."""
    options = run.options
    names = dict(_renamed(text) for text in options.topic)
    archive = Archive(options.archive)
    if options.dry_run:
        return [_would_restore(archive, names)]
    done = restore(
        SparkWorkers(run.spark), archive, options.sink(), Path(options.job), topics=names,
        rate=options.rate,
    )  # fmt: skip
    return _sent("Restored", done, "Topics that brokers refuse.")


def report_replay(run: ReportRun[Replay]) -> list[Table]:
    """Send chosen messages to a topic."""
    options = run.options
    messages = _messages(run)
    if options.dry_run:
        counted = (
            _chosen(run)
            .groupBy("topic")
            .agg(
                fn.count("*").alias("messages"),
                fn.min("storeTimestamp").alias("first"),
                fn.max("storeTimestamp").alias("last"),
            )
        )
        note = "A dry run: nothing was sent."
        bars = Bars(["topic"], "messages")
        return [run.table("Would be replayed", counted.orderBy("topic"), note, bars)]
    others: dict[str, Any] = {
        "start_ms": options.since, "end_ms": options.until, "tags": options.tag,
        "keys": options.key, "where": options.where, "all_topics": _wants_all_topics(run),
    }  # fmt: skip
    job = Path(options.job)
    if options.where:
        selection = chosen(_chosen(run), job, messages.place, **others)
    else:
        selection = Selection(**others)
    assert options.to_topic is not None, "checked before"
    sink = {**options.sink(), "topic": options.to_topic}
    done = replay(SparkWorkers(run.spark), messages, selection, sink, job, rate=options.rate)
    return _sent("Replayed", done, LEFT_OUT)


def _renamed(text: str) -> tuple[str, str]:
    topic, _, name = text.partition("=")
    return topic, name or topic


def _messages(run: ReportRun[Replay]) -> MessageSource:
    if run.options.archive:
        return ArchiveMessages.of(Archive(run.options.archive))
    return OriginMessages.at(run.reader.options)


def _wants_all_topics(run: ReportRun[Replay]) -> bool:
    """Tell whether the options name topics, or ask for all."""
    choice = parse(run.reader.options).choice if run.reader.options else Choice()
    return bool(run.options.all_topics or choice.subscribe or choice.pattern or choice.assign)


def _chosen(run: ReportRun[Replay]) -> DataFrame:
    """Table of the messages that the options choose."""
    options = run.options
    if options.archive:
        frame = read_archive(run.spark, Archive(options.archive))
    else:
        frame = run.reader.table("messages", None if options.where else COLUMNS)
    if not _wants_all_topics(run):
        frame = frame.where(~is_internal(fn.col("topic")) & ~is_copy(fn.col("topic")))
    if options.since is not None:
        frame = frame.where(fn.col("storeTimestamp") >= at(options.since))
    if options.until is not None:
        frame = frame.where(fn.col("storeTimestamp") < at(options.until))
    if options.tag:
        frame = frame.where(fn.col("tags").isin(*options.tag))
    if options.key:
        words = fn.array(*(fn.lit(key) for key in options.key))
        keys = fn.split(fn.coalesce("keys", fn.lit("")), " ")
        frame = frame.where(fn.arrays_overlap(keys, words) | fn.array_contains(words, fn.col("msgId")))
    return frame.where(options.where) if options.where else frame


def _would_restore(archive: Archive, names: dict[str, str]) -> Table:
    rows: list[list[Cell]] = [
        [*queue, span.start, span.end, names.get(queue.topic, queue.topic)]
        for queue, span in sorted(ArchiveMessages.of(archive, tuple(names)).spans.items())
    ]
    columns = ["topic", "broker", "queueId", "fromOffset", "toOffset", "target"]
    return Table("Would be restored", columns, rows, "A dry run: nothing was sent.")


def _sent(title: str, done: plans.ResendReport, why_skipped: str) -> list[Table]:
    skipped: list[list[Cell]] = [[topic] for topic in done.skipped]
    tables = [Table(title, ["queues", "messages"], [[done.queues, done.messages]])]
    if skipped:
        tables.append(Table("Skipped", ["topic"], skipped, why_skipped))
    return tables
