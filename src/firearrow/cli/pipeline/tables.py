"""Reports of `firearrow pipeline tables` and `serve`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from threading import Event

from firearrow.cli.output.reports import Bars, Cell, Table
from firearrow.cli.pipeline.lakes import lake_of
from firearrow.cli.pipeline.options import ServeJob, TablesJob, WorkersRun
from firearrow.errors import ConfigError, FirearrowError
from firearrow.lake.filling import LakeFilling, TableStatus
from firearrow.lake.instances import Instances
from firearrow.lake.monitoring import serving
from firearrow.spark.jobs.archive.fileplace import FilePlace


def report_tables(run: WorkersRun[TablesJob]) -> list[Table]:
    """Bring all tables up to the present, and report them; FirearrowError if a table cannot go on."""
    filling = LakeFilling(run.workers, lake_of(run.options))
    filling.round()
    if not filling.statuses:
        raise ConfigError("no topic becomes a table: --topic, the file or the attribute table.format name them")
    return filled_tables(filling)


def report_serving(run: WorkersRun[ServeJob]) -> list[Table]:
    """Keep all tables fresh until Ctrl-C."""
    options = run.options
    lake = lake_of(options)
    filling = LakeFilling(run.workers, lake, instances=Instances(FilePlace(lake.root), options.instance))
    statuses = filling.statuses.values()
    with serving(lambda: list(statuses), options.host, options.port, trouble=lambda: filling.trouble) as port:
        sys.stdout.write(f"firearrow: tables in {FilePlace(lake.root)}, health at http://{options.host}:{port}\n")
        sys.stdout.flush()
        filling.follow(Event())
    return _reported(statuses)


def filled_tables(filling: LakeFilling) -> list[Table]:
    """Report tables that were filled; raise FirearrowError if one of them cannot go on."""
    stopped = [status.trouble for status in filling.statuses.values() if status.trouble]
    if stopped:
        raise FirearrowError(f"{len(stopped)} of {len(filling.statuses)} tables can't go on: {'; '.join(stopped)}")
    return _reported(filling.statuses.values())


def _reported(statuses: Iterable[TableStatus]) -> list[Table]:
    rows: list[list[Cell]] = [
        [each.name, each.topic, each.rows, each.undecoded, each.files, each.size_bytes] for each in statuses
    ]
    columns = ["table", "topic", "rows", "undecoded", "files", "bytes"]
    note = "Rows that the tables did not have before."
    return [Table("Tables", columns, rows, note, Bars(["table"], "rows"))]
