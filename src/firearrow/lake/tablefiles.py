"""Parquet files of typed tables: one for each partition of a task, with Delta's statistics.

Only the first columns with plain values have statistics, as in the files of Delta's own writers. A text of more than 32
characters has none: a shortened one would need a bound above it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firearrow.lake.partitioning import Partitioning, directory, parts
from firearrow.spark.jobs.archive.fileplace import FilePlace

ROW_GROUP_ROWS: Final = 100_000
MEASURED_MAX: Final = 32  # columns with statistics, as of Delta's own writers
_TEXT_MAX: Final = 32
_SAMPLE_ROWS: Final = 4096
_RISING: Final = ("_offset", "_stored_at")
_PAIRS: Final = ".key_value."  # within the paths of Parquet
_ITEMS: Final = ".list.element"
_MEASURED: Final = (
    pa.types.is_string,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_timestamp,
    pa.types.is_date,
)


class TypedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of a typed table. ``values`` describe its partition, ``stats`` are its statistics in JSON."""

    path: str
    rows: int
    size_bytes: int
    values: tuple[tuple[str, str | None], ...] = ()
    stats: str = ""

    def partition(self) -> dict[str, str | None]:
        """Return the values of the columns that the table is partitioned by."""
        return dict(self.values)

    def statistics(self) -> str:
        """Return the statistics in JSON."""
        return self.stats


def write_files(
    table: pa.Table, place: FilePlace, stem: str, by: Sequence[Partitioning] = (), cluster: Sequence[str] = ()
) -> Iterator[TypedFile]:
    """Write rows to files, one for each partition, and yield each file when it is on the disk.

    The rows of a file are sorted by the columns ``cluster``; without any their order stays.
    """
    for values, rows in parts(table, by) if table.num_rows else ():
        ordered = rows.sort_by([(name, "ascending") for name in cluster]) if cluster else rows
        yield write_file(ordered, place, f"{directory(values)}{stem}.parquet", values)


def write_file(table: pa.Table, place: FilePlace, path: str, values: dict[str, str | None]) -> TypedFile:
    """Write one file, and return it when it is on the disk."""
    with place.create(path) as file:
        with pq.ParquetWriter(file, table.schema, **_settings(table)) as writer:
            writer.write_table(table, ROW_GROUP_ROWS)
        size_bytes: int = file.tell()
    place.sync([path])
    return TypedFile(
        path=path, rows=table.num_rows, size_bytes=size_bytes, values=tuple(values.items()), stats=statistics_of(table)
    )


def _settings(table: pa.Table) -> dict[str, Any]:
    """Return the form of a file: zstd, dictionaries where values recur, and statistics of single values.

    To look for recurring values in all columns takes a fifth of the time of writing, and makes files larger. No reader
    skips rows by the values within lists and maps.
    """
    leaves = dict(_leaves(table.slice(0, _SAMPLE_ROWS)))
    repeated = [name for name, values in leaves.items() if _recurs(values)]
    rising = [name for name in _RISING if name in table.column_names]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": repeated,
        "write_statistics": rising + [name for name in leaves if _PAIRS not in name and _ITEMS not in name],
        "column_encoding": dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
    }


def _leaves(table: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    """Yield the plain columns of a table, by their paths in a file of Parquet."""
    waiting = [(name, column.combine_chunks()) for name, column in zip(table.column_names, table.columns, strict=True)]
    while waiting:
        path, values = waiting.pop()
        if pa.types.is_struct(values.type):
            members = zip(values.type.names, values.flatten(), strict=True)
            waiting += [(f"{path}.{name}", member) for name, member in members]
        elif pa.types.is_map(values.type):
            waiting += [(f"{path}{_PAIRS}key", values.keys), (f"{path}{_PAIRS}value", values.items)]
        elif pa.types.is_list(values.type):
            waiting.append((f"{path}{_ITEMS}", values.flatten()))
        elif path not in _RISING:
            yield path, values


def _recurs(values: pa.Array) -> bool:
    """Tell whether a dictionary of the values would be short."""
    return bool(2 * pc.count_distinct(values).as_py() <= len(values))


def statistics_of(table: pa.Table) -> str:
    """Return the statistics of rows in Delta's JSON."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if len(nulls) == MEASURED_MAX or not any(is_of(field.type) for is_of in _MEASURED):
            continue
        nulls[field.name] = column.null_count
        bounds = pc.min_max(column).as_py()
        low, high = _value(bounds["min"], up=False), _value(bounds["max"], up=True)
        if low is not None and high is not None:
            least[field.name], most[field.name] = low, high
    return json.dumps({"numRecords": table.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _value(value: Any, *, up: bool) -> Any:
    """Return a bound as Delta writes it; None for one that it does not take."""
    if isinstance(value, datetime):  # milliseconds: a bound must not be within the values
        micros = int((value - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() // 1) * 1_000_000 + value.microsecond
        millis = -(-micros // 1000) if up else micros // 1000
        moment = datetime.fromtimestamp(millis // 1000, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{millis % 1000:03}Z"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        return None
    return value if isinstance(value, int | float | str | None) else str(value)
