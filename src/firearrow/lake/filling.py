"""Filling of typed tables from a store or brokers: each message once, in one commit per table and interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from firearrow.errors import ConfigError
from firearrow.lake.decoding import decoder_of
from firearrow.lake.spec import TableSpec, table_name
from firearrow.lake.typedtable import TypedTable
from firearrow.lake.upserts import UpsertTable
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, ArchiveStep, Source, Summary, archive, source
from firearrow.spark.jobs.workers import Workers


def typed_table(lake: str, topic: str, spec: TableSpec) -> TypedTable:
    """Return the table of a topic in the directory or URI of a lake, with the newest schema of its registry.

    Raises ConfigError for a schema that cannot be columns.
    """
    kind = UpsertTable if spec.mode == "upsert" else TypedTable
    return kind(lake, table_name(topic), spec, decoder_of(spec))


def topic_source(options: Mapping[str, str], topic: str) -> tuple[Source, ArchiveSettings]:
    """Return the source of a topic, from the options of a read; raise ConfigError for options of other topics."""
    given = {name.lower() for name in options}
    for name in ("subscribe", "subscribePattern", "assign"):
        if name.lower() in given:
            raise ConfigError(f"option {name}: a table has the messages of its topic")
    return source({**options, "subscribe": topic})


def fill(
    workers: Workers,
    source: Source,
    table: TypedTable,
    settings: ArchiveSettings | None = None,
    *,
    on_step: Callable[[ArchiveStep], object] | None = None,
) -> Summary:
    """Bring a table up to the present: its columns, its undecoded messages, and all messages that it lacks.

    Raises ConfigError if its schema has changed and no column can hold both, and the errors of ``archive``.
    """
    table.evolve(workers)
    table.retry(workers)
    return archive(workers, source, table, settings, on_step=on_step)
