"""`firearrow pipeline watch`: a streaming query that prints alerts until a stop."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame

from firearrow.cli.output.reports import Cell, Table, visible
from firearrow.cli.pipeline.analyses import ReportRun
from firearrow.cli.pipeline.options import WatchJob
from firearrow.clock import SystemClock
from firearrow.spark.jobs.reports import backlog, watch
from firearrow.spark.jobs.reports.watch import Alert, Lags, Tell, Topic, Watch, Webhook, parse_rule

COLUMNS = ("window", "rule", "subject", "value", "id")


def report_watch(run: ReportRun[WatchJob]) -> list[Table]:
    """Watch until the query ends (``--once``: at once); return the alerts."""
    told: list[Alert] = []
    rules = [parse_rule(text) for text in run.options.alert]
    tell = _teller(run)

    def tell_and_keep(alerts: Sequence[Alert]) -> None:
        tell(alerts)
        told.extend(alerts)

    late = _watch(run, Watch(rules, tell_and_keep), _lags(run, rules))
    rows: list[list[Cell]] = [[alert.window, alert.rule, alert.subject, alert.value, alert.id] for alert in told]
    return [Table("Alerts", COLUMNS, rows, _late(late) if late else "")]


def _late(count: int) -> str:
    return f"Not evaluated: {count} minutes of topics, whose messages came more than {watch.LATE} after others."


def _watch(run: ReportRun[WatchJob], seen: Watch, lags: Lags) -> int:
    """Watch until the query ends; give the number of topic minutes that came too late."""
    options = run.options
    begin = {"startingOffsets": "earliest"} if options.once else {}
    messages = run.reader.stream(watch.MESSAGE_COLUMNS, **begin)
    every: dict[str, str | bool] = {"processingTime": f"{options.interval:g} seconds"}
    with tempfile.TemporaryDirectory(prefix="firearrow-watch-") as directory:
        checkpoint = options.checkpoint or str(Path(directory) / "checkpoint")
        trigger: dict[str, str | bool] = {"availableNow": True} if options.once else every
        query = watch.start(messages, seen, checkpoint, trigger)
        try:
            if options.once:
                query.awaitTermination()
                _look(lags, seen)
            else:
                late = 0
                while not query.awaitTermination(options.interval):  # type: ignore[arg-type] # takes fractions
                    _look(lags, seen)
                    if watch.late(query) > late:
                        late = watch.late(query)
                        print(f"firearrow: {_late(late)}", file=sys.stderr, flush=True)
            return watch.late(query)
        finally:
            query.stop()


def _look(lags: Lags, seen: Watch) -> None:
    alerts = lags.look(datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC))
    if alerts:
        seen.tell(alerts)


def _lags(run: ReportRun[WatchJob], rules: Sequence[watch.Rule]) -> Lags:
    def lags() -> DataFrame:
        offsets = backlog.of_users(run.reader.table("consumer_offsets"))
        return backlog.lags(offsets, run.reader.queues())

    return Lags(lags, rules)


def _teller(run: ReportRun[WatchJob]) -> Tell:
    options = run.options
    if options.webhook:
        return Webhook(options.webhook)
    if options.to_topic:
        return Topic(run.spark, options.to_topic, options.sink())
    if options.once and run.how.json:
        return lambda _: None  # standard output is one JSON object, which has them
    return _print


def _print(alerts: Sequence[Alert]) -> None:
    for alert in alerts:
        print(visible(alert.as_json()), flush=True)
