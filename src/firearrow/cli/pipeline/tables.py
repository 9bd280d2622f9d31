"""Reports of `firearrow pipeline tables` and `serve`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from threading import Event
from typing import Final

from firearrow.cli.output.reports import Bars, Cell, Table
from firearrow.cli.pipeline.checks import require
from firearrow.cli.pipeline.options import ServeJob, TablesJob, WorkersRun
from firearrow.errors import ConfigError, FirearrowError
from firearrow.lake.filling import LAG_SECONDS, Lake, LakeFilling, TableStatus
from firearrow.lake.instances import Instances
from firearrow.lake.monitoring import serving
from firearrow.lake.spec import LakeFile, TableSpec, checked, read_lake_file
from firearrow.spark.jobs.archive.fileplace import FilePlace

_OF_TABLES: Final = ("format", "bodies", "schema", "registry", "subject", "message", "cluster", "mode", "key")
_EXTRAS: Final = {"avro": ("fastavro", "bodies"), "protobuf": ("google.protobuf", "bodies")}


def lake_of(options: TablesJob) -> Lake:
    """Return the tables of a command line; raise ConfigError if it names none."""
    file = read_lake_file(options.file) if options.file is not None else LakeFile()
    root = options.to or file.root
    if not root:
        raise ConfigError("the directory of the tables is missing: give --to DIR, or root in the file")
    given = {name: it for name in _OF_TABLES if (it := getattr(options, name))}
    specs = file.tables
    if options.topic is not None:
        specs = (checked(TableSpec(topics=options.topic, partition=options.partition or None, **given)),)
    for spec in specs:
        if spec.bodies in _EXTRAS:
            require(*_EXTRAS[spec.bodies])
        if spec.format == "iceberg":
            require("pyiceberg", "iceberg")
    lag = getattr(options, "lag", None) or (file.lag if options.file is not None else LAG_SECONDS)
    return Lake(options.source(), root, specs, lag, by_attributes=options.topic is None)


def report_tables(run: WorkersRun[TablesJob]) -> list[Table]:
    """Bring all tables up to the present, and report them; FirearrowError if a table cannot go on."""
    filling = LakeFilling(run.workers, lake_of(run.options))
    filling.round()
    if not filling.statuses:
        raise ConfigError("no topic becomes a table: --topic, the file or the attribute table.format name them")
    stopped = [status for status in filling.statuses.values() if status.trouble]
    if stopped and len(stopped) == len(filling.statuses):
        raise FirearrowError(stopped[0].trouble)
    return _reported(filling.statuses.values())


def report_serving(run: WorkersRun[ServeJob]) -> list[Table]:
    """Keep all tables fresh until Ctrl-C."""
    options = run.options
    lake = lake_of(options)
    filling = LakeFilling(run.workers, lake, instances=Instances(FilePlace(lake.root)))
    statuses = filling.statuses.values()
    with serving(lambda: list(statuses), options.host, options.port, trouble=lambda: filling.trouble) as port:
        sys.stdout.write(f"firearrow: tables in {FilePlace(lake.root)}, health at http://{options.host}:{port}\n")
        sys.stdout.flush()
        filling.follow(Event())
    return _reported(filling.statuses.values())


def _reported(statuses: Iterable[TableStatus]) -> list[Table]:
    rows: list[list[Cell]] = [
        [each.name, each.topic, each.rows, each.undecoded, each.files, each.size_bytes] for each in statuses
    ]
    stopped: list[list[Cell]] = [[each.name, each.trouble] for each in statuses if each.trouble]
    columns = ["table", "topic", "rows", "undecoded", "files", "bytes"]
    note = "Rows that the tables did not have before."
    return [
        Table("Tables", columns, rows, note, Bars(["table"], "rows")),
        *([Table("Stopped", ["table", "reason"], stopped)] if stopped else []),
    ]
