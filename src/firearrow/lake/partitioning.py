"""Partitioning of typed tables: ``day``, ``hour(paid_at)``, ``bucket(16, customer)`` or the name of a column.

``day`` and ``hour`` without a column refer to ``_stored_at``. Each transform gives a separate column, for example
``_stored_at_day`` or ``customer_bucket``; a plain column is its own partition. Buckets are Iceberg's (Murmur3 of 32
bits), so that its tables of the same files can have the same partitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firearrow.errors import ConfigError
from firearrow.lake.evolution import one_array

STORED_AT: Final = "_stored_at"
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_TRANSFORM: Final = re.compile(r"(day|hour)(?:\((.+)\))?|bucket\((\d+),\s*(.+)\)")
_HELD: Final = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)
_BUCKETED: Final = (pa.types.is_string, pa.types.is_integer, pa.types.is_binary)
_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Column that a table is partitioned by: ``transform`` of ``source``, or ``source`` itself."""

    source: str
    transform: str = ""
    buckets: int = 0

    @classmethod
    def of(cls, text: str) -> Partitioning:
        """Read a partitioning; raise ConfigError for a wrong text."""
        found = _TRANSFORM.fullmatch(text.strip())
        if found is None:
            if not text.strip() or "(" in text:
                raise ConfigError(f"partition {text!r}: must be day, hour, bucket(N, column) or a column")
            return cls(text.strip())
        if found[3] is None:
            return cls((found[2] or STORED_AT).strip(), found[1])
        if not 0 < int(found[3]) <= 10_000:
            raise ConfigError(f"partition {text!r}: 1 to 10,000 buckets are possible")
        return cls(found[4].strip(), "bucket", int(found[3]))

    @property
    def name(self) -> str:
        """Name of the partition's column."""
        return f"{self.source}_{self.transform}" if self.transform else self.source

    def field(self, columns: pa.Schema) -> pa.Field:
        """Return the partition's column; raise ConfigError if the table cannot have it."""
        if self.source not in columns.names:
            raise ConfigError(f"partition {self.name}: the table has no column {self.source!r}")
        kind = columns.field(self.source).type
        if self.transform in {"day", "hour"}:
            if not pa.types.is_timestamp(kind) and not (self.transform == "day" and pa.types.is_date(kind)):
                raise ConfigError(f"partition {self.name}: {self.source} is no timestamp")
            return pa.field(self.name, pa.date32() if self.transform == "day" else pa.int32())
        if self.transform:
            if not any(fits(kind) for fits in _BUCKETED):
                raise ConfigError(f"partition {self.name}: a {kind} has no bucket")
            return pa.field(self.name, pa.int32())
        if not any(fits(kind) for fits in _HELD):
            raise ConfigError(f"partition {self.name}: a {kind} can't be a partition")
        return columns.field(self.source)

    def values(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the partition of each row."""
        column = table.column(self.source)
        if self.transform == "day":
            return column.cast(pa.date32())
        if self.transform == "hour":
            whole = pc.floor_temporal(column, unit="hour")  # a division would round times before 1970 up
            return pc.divide(whole.cast(pa.int64()), 3_600_000_000).cast(pa.int32())
        if self.transform:
            return _buckets(column, self.buckets)
        return column


def parts(table: pa.Table, by: Sequence[Partitioning]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yield the values of each partition, as Delta writes them, and its rows in their order."""
    if not by:
        yield {}, table
        return
    keys = [one_array(each.values(table)) for each in by]
    codes = np.zeros(table.num_rows, np.int64)
    for key in keys:
        encoded = key.dictionary_encode(null_encoding="encode")
        codes = np.unique(codes * len(encoded.dictionary) + encoded.indices.to_numpy(), return_inverse=True)[1]
    for code in range(int(codes.max()) + 1):
        rows = np.flatnonzero(codes == code)
        values = {each.name: partition_text(key[int(rows[0])].as_py()) for each, key in zip(by, keys, strict=True)}
        yield values, table if len(rows) == table.num_rows else table.take(pa.array(rows))


def directory(values: dict[str, str | None]) -> str:
    """Return the directory of a partition, with a slash behind it; empty for a table without partitions."""
    return "".join(f"{name}={NO_VALUE if it is None else quote(it, safe='')}/" for name, it in values.items())


def partition_text(value: Any) -> str | None:
    """Return a value as Delta writes it; None for null."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _buckets(column: pa.ChunkedArray, count: int) -> pa.ChunkedArray:
    """Return Iceberg's bucket of each value, null for null."""
    encoded = one_array(column).dictionary_encode()
    found = [(murmur3(_hashed(value)) & 0x7FFFFFFF) % count for value in encoded.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(found, pa.int32()).take(encoded.indices)])


def _hashed(value: str | int | bytes) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(8, "little", signed=True)
    return value.encode() if isinstance(value, str) else value


def murmur3(data: bytes) -> int:
    """Return the Murmur3 hash of bytes, 32 bits with seed 0 (Iceberg's specification, appendix B)."""
    found = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        found ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        found = ((found << 13 & _WORD | found >> 19) * 5 + 0xE6546B64) & _WORD
    if whole < len(data):
        found ^= _mixed(int.from_bytes(data[whole:], "little"))
    found ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ found >> shift) * factor & _WORD
    return found ^ found >> 16


def _mixed(word: int) -> int:
    word = word * 0xCC9E2D51 & _WORD
    return (word << 15 & _WORD | word >> 17) * 0x1B873593 & _WORD
