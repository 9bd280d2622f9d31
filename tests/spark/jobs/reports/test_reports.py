"""The reports of all jobs over a shop's store: their tables, and the pages that they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark.sql.functions as fn
import pytest
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from firearrow.cli.output.page import as_html
from firearrow.cli.output.reports import Report, Table
from firearrow.cli.pipeline import analyses
from firearrow.cli.pipeline.analyses import ReportRun
from firearrow.cli.pipeline.options import (
    Accounting,
    Backlog,
    Deadletters,
    Duplicates,
    Latency,
    Reading,
    RunOptions,
    Transactions,
)
from firearrow.errors import ConfigError
from firearrow.spark.jobs.reports.reading import Reader
from tests.spark.jobs import orders
from tests.spark.jobs.frames import golden, table


class OfFrame(Reader):
    """Reads a table of messages that is there, and what a file would say of offsets."""

    def __init__(self, spark: SparkSession, log: DataFrame) -> None:
        super().__init__(spark, {"path": "."})
        self._log = log

    def queues(self) -> DataFrame:
        ends = (fn.max("queueOffset") + 1).alias("maxOffset")
        start = fn.min("queueOffset").alias("minOffset")
        return self._log.groupBy("broker", "topic", "queueId").agg(start, ends)

    def held(self, frame: DataFrame) -> DataFrame:
        return frame.localCheckpoint()

    def table(self, name: str, columns: Any = None, **more: str) -> DataFrame:
        if name == "messages":
            return self._log.select(*columns)
        rows = [
            {"broker": "a", "consumerGroup": group, "topic": topic, "queueId": queue,
             "offset": offset, "minOffset": 0, "maxOffset": 360 if topic == "Orders" else 30}
            for pair, queues in orders.COMMITTED.items()
            for topic, group in [pair.split("@")]
            for queue, offset in queues.items()
        ]  # fmt: skip
        return table(self.spark, name, *rows)


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ReportRun[Any]]:
    store = orders.fill(tmp_path_factory.mktemp("shop"))
    reader = OfFrame(spark, golden(spark, store).cache())

    def of(kind: type[Reading], *, top: int = 5, **options: Any) -> ReportRun[Any]:
        how = RunOptions(top=top)
        return ReportRun(spark, reader, kind(path=(".",), **options), how, orders.END_MS)

    return of


def by_title(tables: list[Table]) -> dict[str, Table]:
    """The tables, each of which must make a page."""
    assert as_html(Report("R", {}, tables)).endswith("</html>\n")
    return {found.title: found for found in tables}


def cells(found: Table, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(found.values(column) for column in columns), strict=True))


def test_backlog(run: Callable[..., ReportRun[Any]]) -> None:
    found = by_title(analyses.report_backlog(run(Backlog, window=600, parts=3, consume_rate=0.5)))
    assert cells(found["Backlog by consumer group"], "consumerGroup", "lag", "uncommitted") == [
        ("billing", 470, 1),
        ("audit", 40, 0),
        ("shipping", 0, 0),
        ("shipping", 0, 0),
    ]
    assert cells(found["Pending messages, by tag"], "value", "messages") == [
        ("sent", 158), ("new", 156), ("paid", 156), ("(none)", 40)
    ]  # fmt: skip
    assert found["Time to drain"].values("consuming") == [0.5] * 4
    assert found["Falls off retention first"].values("queueId")[0] == 3


def test_accounting(run: Callable[..., ReportRun[Any]]) -> None:
    found = by_title(analyses.report_accounting(run(Accounting, free_bytes=10**9)))
    assert cells(found["By topic"], "topic", "messages")[0] == ("Orders", 1440)
    assert found["By topic"].more
    assert len(found["By hour"].drawn) == 6
    assert found["Disk forecast"].values("fullInHours") == [None]
    of_disk = run(Accounting)  # as the disk has it
    assert "Disk forecast" in by_title(analyses.report_accounting(of_disk))


def test_deadletters(run: Callable[..., ReportRun[Any]]) -> None:
    found = by_title(analyses.report_deadletters(run(Deadletters, where="keys like 'order-240 %'")))
    assert found["Dead letters by consumer group"].values("letters") == [1]
    assert cells(found["History"], "tries", "originQueueOffset") == [(3, 60)]
    (body,) = found["Letters"].values("body")
    assert body == orders.HOSTILE
    page = as_html(Report("R", {}, list(found.values())))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_dry_run_writes_nothing(run: Callable[..., ReportRun[Any]], tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    found = by_title(analyses.report_deadletters(run(Deadletters, resend=True, dry_run=True, audit=str(audit), top=0)))
    assert found["Would be sent"].values("target") == ["Orders"] * 12
    assert not audit.exists()


def test_nothing_is_sent_that_is_noted_where_nobody_sees_it(
    run: Callable[..., ReportRun[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that write to directories of their own leave an empty one for who starts the job."""

    def write_elsewhere(self: DataFrameWriter, path: str) -> None:
        Path(path).mkdir()

    monkeypatch.setattr(DataFrameWriter, "parquet", write_elsewhere)
    job = run(Deadletters, resend=True, audit=str(tmp_path / "audit"), to_name_server="127.0.0.1:1")
    with pytest.raises(ConfigError, match="of 12 rows that were written, 0 can be seen here: a dir"):
        analyses.report_deadletters(job)


def test_transactions(run: Callable[..., ReportRun[Any]]) -> None:
    found = by_title(analyses.report_transactions(run(Transactions)))
    assert cells(found["Transactions by state"], "state", "transactions") == [("rolled back", 4), ("undecided", 6)]
    assert found["Undecided"].values("keys")[0] == "pay-4"


def test_duplicates(run: Callable[..., ReportRun[Any]]) -> None:
    found = by_title(analyses.report_duplicates(run(Duplicates)))
    by_id = [row for row in cells(found["By producer"], "kind", "copies", "caught") if row[0] == "id"]
    assert by_id == [("id", 12, 12), ("id", 3, 3)]


def test_latency(run: Callable[..., ReportRun[Any]]) -> None:
    found = by_title(analyses.report_latency(run(Latency)))
    assert cells(found["Born to stored"], "topic", "messages", "max") == [("Orders", 1440, 299), ("Payments", 60, 3)]
    assert len(found["Born to stored, by minute"].drawn) == 420
    assert cells(found["Delayed messages"], "delivered", "waiting") == [(18, 2)]
    assert found["Stored to consumed"].rows == []
