"""A single table that is brought up to the present."""

from __future__ import annotations

from firearrow.lake.typedtable import TypedTable
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, Source, Summary, archive
from firearrow.spark.jobs.workers import Workers


def fill(workers: Workers, source: Source, table: TypedTable, settings: ArchiveSettings) -> Summary:
    """Bring a table up to the present: its columns, its undecoded messages, and all messages that it lacks."""
    table.evolve(workers)
    table.retry(workers)
    return archive(workers, source, table, settings)
