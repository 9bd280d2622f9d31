"""`firearrow pipeline watch`: a streaming query that prints alerts until a stop."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame

from firearrow.cli.output.reports import Cell, Table, visible
from firearrow.cli.pipeline.analyses import ReportRun
from firearrow.cli.pipeline.options import WatchJob
from firearrow.clock import SystemClock
from firearrow.spark.jobs.reports import backlog, watch
from firearrow.spark.jobs.reports.watch import Alert, Lags, RemoteAlerts, Rule, Tell, Topic, Watch, Webhook, parse_rule
from firearrow.spark.session import is_remote

COLUMNS = ("window", "rule", "subject", "value", "id")


def report_watch(run: ReportRun[WatchJob]) -> list[Table]:
    """Watch until the query ends (``--once``: at once); return the alerts."""
    rules = [parse_rule(text) for text in run.options.alert]
    alerts = _Alerts(run, rules)
    late = _watch(run, alerts, _lags(run, rules))
    rows: list[list[Cell]] = [[alert.window, alert.rule, alert.subject, alert.value, alert.id] for alert in alerts.told]
    return [Table("Alerts", COLUMNS, rows, _late(late) if late else "")]


class _Alerts:
    """Alerts of a run.

    A classic session calls ``in_batch`` in this process. A Spark Connect server calls it in a separate process, where
    it only sends; the alerts also come here, to be printed and kept.
    """

    def __init__(self, run: ReportRun[WatchJob], rules: Sequence[Rule]) -> None:
        self.told: list[Alert] = []
        self._tell = _teller(run)
        self._seen = Watch(rules, self._tell_and_keep)
        self.in_batch: Watch | None = self._seen
        self.remote: RemoteAlerts | None = None
        if is_remote(run.spark):
            self.remote = RemoteAlerts(rules)
            sends = isinstance(self._tell, Webhook | Topic)
            self.in_batch = Watch(rules, self._tell) if sends else None
            self._seen = Watch(rules, self.told.extend) if sends else self._seen

    def look(self, lags: Lags) -> None:
        """Take the alerts of a server, and look at the lag."""
        if self.remote is not None:
            self._seen.take(self.remote.arrived())
        alerts = lags.look(datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC))
        if alerts:
            self._tell_and_keep(alerts)

    def _tell_and_keep(self, alerts: Sequence[Alert]) -> None:
        self._tell(alerts)
        self.told.extend(alerts)


def _late(count: int) -> str:
    return f"Not evaluated: {count} minutes of topics, whose messages came more than {watch.LATE} after others."


def _watch(run: ReportRun[WatchJob], alerts: _Alerts, lags: Lags) -> int:
    """Watch until the query ends; give the number of topic minutes that came too late."""
    options = run.options
    begin = {"startingOffsets": "earliest"} if options.once else {}
    messages = run.reader.stream(watch.MESSAGE_COLUMNS, **begin)
    every: dict[str, str | bool] = {"processingTime": f"{options.interval:g} seconds"}
    with tempfile.TemporaryDirectory(prefix="firearrow-watch-") as directory, _listening(run, alerts):
        here = str(Path(directory) / "checkpoint") if alerts.remote is None else None
        trigger: dict[str, str | bool] = {"availableNow": True} if options.once else every
        query = watch.start(messages, alerts.in_batch, options.checkpoint or here, trigger, alerts.remote)
        try:
            if options.once:
                query.awaitTermination()
                if alerts.remote is not None:
                    alerts.remote.wait()
                alerts.look(lags)
            else:
                late = 0
                while not query.awaitTermination(options.interval):  # type: ignore[arg-type] # takes fractions
                    alerts.look(lags)
                    if watch.late(query) > late:
                        late = watch.late(query)
                        print(f"firearrow: {_late(late)}", file=sys.stderr, flush=True)
            return watch.late(query)
        finally:
            if alerts.remote is None:  # a server ends the query with the session
                query.stop()


@contextmanager
def _listening(run: ReportRun[WatchJob], alerts: _Alerts) -> Iterator[None]:
    """Let the alerts of a server come to this process during a block, at whose end the query is over.

    After an error the session ends with its listener. PySpark would wait for an event of a query that goes on, while
    the event waits for PySpark.
    """
    if alerts.remote is not None:
        run.spark.streams.addListener(alerts.remote)
    yield
    if alerts.remote is not None:
        run.spark.streams.removeListener(alerts.remote)


def _lags(run: ReportRun[WatchJob], rules: Sequence[Rule]) -> Lags:
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
