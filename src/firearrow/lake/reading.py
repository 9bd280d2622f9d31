"""One table from the first message to now, without Spark: the rows of a typed table, and the messages behind them.

::

    orders = firearrow.lake.table("orders", "/srv/lake", {"nameServer": "127.0.0.1:9876"})
    duckdb.sql("SELECT customer, sum(cents) FROM orders GROUP BY customer")

The table's log says where each queue goes on, so no message is there twice and none is missing. If messages are written
to the table and deleted by the broker meanwhile, the reading fails with DataLost: read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from firearrow.client.queues import Queue, Span
from firearrow.errors import ConfigError
from firearrow.javanumbers import LONG_MAX
from firearrow.lake.evolution import fitted
from firearrow.lake.filling import topic_source, typed_table
from firearrow.lake.spec import TableSpec, table_name
from firearrow.lake.typedtable import SPEC, TypedTable
from firearrow.lake.upserts import DELETED, VERSION, UpsertTable, last_rows
from firearrow.spark.jobs.archive.archiving import Archiver
from firearrow.spark.jobs.archive.delta import Archive, State
from firearrow.spark.jobs.workers import SameProcess
from firearrow.spark.source.origin import Origin

if TYPE_CHECKING:
    from deltalake import DeltaTable

Archived = Callable[[pa.Schema], Iterator[pa.Table]]


def table(
    name: str, root: str | Path, live: Mapping[str, str] | None = None, *, columns: Sequence[str] | None = None
) -> pa.RecordBatchReader:
    """Return the rows of a topic's table, in no order, as a reader of Arrow that DuckDB, Polars and others take.

    ``name`` is the topic or its table, ``root`` the directory or URI of the lake. With ``live``, the options of a read
    (``path`` or ``nameServer`` and others), messages that are not in the table yet follow. A table with upserts has a
    row for each key then, too. Raises ConfigError if there is no such table or column, DataLost if messages between the
    table and the live ones are gone.
    """
    typed, state, former = opened_table(name, root)
    assert state.table is not None
    chosen = typed.columns if columns is None else pa.schema([_column(typed.columns, each) for each in columns])
    messages = _messages(typed, state, live) if live else iter(())
    if isinstance(typed, UpsertTable):
        batches = _latest(typed, partial(_archived, state.table, former), messages, chosen)
    else:
        batches = _all(partial(_archived, state.table, former), messages, chosen)
    return pa.RecordBatchReader.from_batches(chosen, batches)


def opened_table(name: str, root: str | Path) -> tuple[TypedTable, State, Mapping[str, str]]:
    """Return a topic's table with the columns that it has or will have, its present state, and their names in it.

    Columns that the table will have are not among the names. Raises ConfigError if there is no such table.
    """
    lake = str(root)
    state = Archive(f"{lake.rstrip('/')}/{table_name(name)}").load()
    if state.table is None:
        raise ConfigError(f"{lake} has no table {table_name(name)!r}")
    text = (state.table.metadata().configuration or {}).get(SPEC)
    if text is None:
        raise ConfigError(f"{lake}/{table_name(name)} is no table of a topic")
    spec = msgspec.json.decode(text, type=TableSpec)
    typed = typed_table(lake, spec.topics, spec)
    return typed, state, typed.evolution(state.table).former


def _column(columns: pa.Schema, name: str) -> pa.Field:
    if name not in columns.names:
        raise ConfigError(f"there is no column {name!r}; the table has {', '.join(columns.names)}")
    return columns.field(name)


def unread(
    typed: TypedTable, state: State, live: Mapping[str, str], origin: Origin | None = None
) -> Mapping[Queue, Span]:
    """Return the offsets of the messages that are not in a table yet; raise DataLost if some of them are gone."""
    opener, settings = topic_source(live, typed.spec.topics)
    settings = replace(settings, step_rows_max=None, step_bytes_max=LONG_MAX)
    archiver = Archiver(SameProcess(), opener, typed, settings, origin, state)
    return archiver.unread(archiver.origin.bounds())


def _messages(typed: TypedTable, state: State, live: Mapping[str, str]) -> Iterator[pa.Table]:
    """Yield the rows of the messages that are not in a table yet."""
    origin, writer = topic_source(live, typed.spec.topics)[0](), typed.writer
    for partition in origin.partitions(unread(typed, state, live, origin)):
        for batch in origin.read(partition, writer.columns):
            yield writer.decoded(batch).typed


def _archived(table: DeltaTable, former: Mapping[str, str], columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a table; columns that it lacks are null."""
    names = [name for name in columns.names if name in former]
    for batch in table.to_pyarrow_dataset().to_batches(columns=[former[name] for name in names]):
        yield fitted(pa.table(batch).rename_columns(names), columns)


def _all(archived: Archived, messages: Iterator[pa.Table], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    for rows in archived(columns):
        yield from rows.to_batches()
    for rows in messages:
        yield from fitted(rows.select(columns.names), columns).to_batches()


def _latest(
    typed: UpsertTable, archived: Archived, messages: Iterator[pa.Table], columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the last row of each key, as a merge of the messages would leave them."""
    newer = [rows for rows in messages if rows.num_rows]
    latest = last_rows(newer, typed.key) if newer else None
    versions = {} if latest is None else dict(zip(_values(latest, typed.key), _versions(latest), strict=True))
    kept: set[object] = set()  # keys whose row in the table is later than any message
    needed = [typed.key, *VERSION]
    wider = pa.schema([*columns, *(typed.columns.field(name) for name in needed if name not in columns.names)])
    for rows in archived(wider):
        keys = _values(rows, typed.key)
        stays = [
            key not in versions or version > versions[key] for key, version in zip(keys, _versions(rows), strict=True)
        ]
        kept.update(key for key, is_kept in zip(keys, stays, strict=True) if is_kept and key in versions)
        yield from rows.filter(pa.array(stays)).select(columns.names).to_batches()
    if latest is not None:
        live = [key not in kept for key in _values(latest, typed.key)]
        rows = latest.filter(pa.array(live)).filter(~pc.field(DELETED))
        yield from fitted(rows.select(columns.names), columns).to_batches()


def _values(rows: pa.Table, name: str) -> list[object]:
    return list(rows.column(name).to_pylist())


def _versions(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in VERSION), strict=True)
