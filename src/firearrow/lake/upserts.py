"""Tables with upserts: the last message of a key is the row, and an empty body deletes it.

The workers write the rows of a step to files that no commit names. The driver keeps the last row of each key, and
merges these into the table in one commit, which has the offsets, too. So a step counts as a whole or not at all, and a
step that is repeated after a kill changes nothing more: a row takes the place of another one only if it was stored
later, or at the same time with a higher broker, queue and offset.

Messages of a key should be in one queue, as producers put them there by a sharding key. Then deletions are exact, too.
Otherwise a message that was stored before a deletion, but read in a later step, brings its row back.

Merges run in the library, in the driver. To let the workers merge was rejected: a key can be in any file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firearrow.errors import ConfigError
from firearrow.lake.evolution import one_array
from firearrow.lake.tablefiles import TypedFile, write_file
from firearrow.lake.typedrows import TypedRows
from firearrow.lake.typedtable import TypedTable, step_of
from firearrow.spark.jobs.archive.delta import State, TableChange, WrittenFiles
from firearrow.spark.jobs.archive.fileplace import FilePlace

MESSAGE_KEYS: Final = "_keys"
_STAGED: Final = "staged"
DELETED: Final = "_deleted"
_MERGED: Final = "firearrow:merged"  # the last step that has changed rows
VERSION: Final = ("_stored_at", "_broker", "_queue", "_offset")  # higher for a later row
_KEYS: Final = (pa.types.is_string, pa.types.is_integer)


class MergeChange(TableChange, frozen=True, kw_only=True):
    """Rows to merge, in files that the table does not name."""

    staged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedRows(TypedRows):
    """Writer of rows to merge. An empty body is a row that deletes its key."""

    key: str = MESSAGE_KEYS

    def rows_of(self, messages: pa.Table) -> tuple[pa.Table, dict[int, str]]:
        """Return a row for each message, and the reasons of those that are undecoded."""
        rows, reasons = TypedRows.rows_of(self, messages)
        lengths = pc.fill_null(pc.binary_length(messages.column("body")), 0)
        is_deletion = pc.equal(lengths, 0).combine_chunks()
        keys = rows.column(self.key).to_pylist()
        for number in pc.indices_nonzero(is_deletion).to_pylist():
            reasons.pop(number, None)  # an empty body of Protobuf would decode
            keys[number] = messages.column("_keys")[number].as_py()
        kind = self.rows.field(self.key).type
        for number, key in enumerate(keys):
            if key is None or key == "":
                reasons.setdefault(number, f"the message has no {'key' if self.key == MESSAGE_KEYS else self.key}")
            elif pa.types.is_integer(kind) and isinstance(key, str):
                keys[number] = int(key) if key.removeprefix("-").isdecimal() else None
                if keys[number] is None:
                    reasons[number] = f"the message's key {key!r} is no whole number"
        at = rows.schema.get_field_index(self.key)
        rows = rows.set_column(at, self.rows.field(self.key), pa.array(keys, kind))
        return rows.append_column(DELETED, is_deletion), reasons

    def files_of(self, rows: pa.Table, place: FilePlace, stem: str) -> tuple[TypedFile, ...]:
        """Write the rows to one file, which no commit will name."""
        return (write_file(rows, place, f"{_STAGED}/{stem}.parquet", {}),) if rows.num_rows else ()


class UpsertTable(TypedTable):
    """The table of a topic with a row for each key."""

    @property
    def writer(self) -> StagedRows:
        """Writer of rows to merge; raises ConfigError if the key cannot be one."""
        if self.key not in self.columns.names:
            raise ConfigError(f"table {self.name}: key {self.key!r} is no column")
        kind = self.columns.field(self.key).type
        if not any(is_of(kind) for is_of in _KEYS):
            raise ConfigError(f"table {self.name}: key {self.key!r} is {kind}, not a text or a whole number")
        return StagedRows(self.decoder, self.columns, self.undecoded.place, key=self.key)

    @property
    def key(self) -> str:
        """Column that identifies a row."""
        return self.spec.key or MESSAGE_KEYS

    def commit_step(self, state: State, change: TableChange, written: Sequence[WrittenFiles]) -> State:
        """Merge the rows of a step; raises as ``commit``."""
        staged = tuple(file.path for file in change.added)
        numbers = change.numbers
        if staged:
            numbers = {**numbers, _MERGED: step_of(staged[0])}
        merge = MergeChange(what=change.what, numbers=numbers, staged=staged)
        state = super().commit_step(state, merge, written)
        for path in staged:
            self.place.delete(path)
        return state

    def counts(self, base: State, change: TableChange) -> bool:
        """Tell whether a commit counts, though its answer was lost."""
        if isinstance(change, MergeChange) and change.staged:
            return base.numbers.get(_MERGED) == change.numbers[_MERGED]
        return super().counts(base, change)

    def make_commit(self, base: State, change: TableChange) -> None:
        """Make the next commit; raises the library's error if another process has made it."""
        from deltalake import WriterProperties

        if not isinstance(change, MergeChange) or not change.staged:
            super().make_commit(base, change)
            return
        assert base.table is not None
        key = _quoted(self.key)
        merger = base.table.merge(
            self._merged(change.staged, pa.schema(base.table.schema())),
            f"t.{key} = s.{key}",
            source_alias="s",
            target_alias="t",
            writer_properties=WriterProperties(compression="ZSTD"),
            commit_properties=self.commit_properties(base, change),
        )
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in self.columns.names}
        columns |= {_quoted(each.name): f"s.{_quoted(each.name)}" for each in self.partitioning if each.transform}
        later = _later()
        merger.when_matched_delete(f"s.{DELETED} AND ({later})").when_matched_update(
            columns, f"NOT s.{DELETED} AND ({later})"
        ).when_not_matched_insert(columns, f"NOT s.{DELETED}").execute()

    def _merged(self, staged: Sequence[str], columns: pa.Schema) -> pa.Table:
        """Return the last row of each key, with the columns of the partitions."""
        tables = []
        for path in staged:
            with self.place.open(path) as file:
                tables.append(pq.ParquetFile(file).read())
        rows = last_rows(tables, self.key)
        for each in self.partitioning:
            if each.transform:
                rows = rows.append_column(columns.field(each.name), each.values(rows))
        return rows


def last_rows(tables: Sequence[pa.Table], key: str) -> pa.Table:
    """Return the last row of each key."""
    rows = pa.concat_tables(tables).sort_by([(name, "ascending") for name in VERSION])
    codes = one_array(rows.column(key)).dictionary_encode().indices.to_numpy()
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes] = np.arange(len(codes))
    return rows.take(pa.array(last))


def _later() -> str:
    """Return the condition that a row is later than the one in the table."""
    *before, last = VERSION
    found = f"s.{last} > t.{last}"
    for name in reversed(before):
        found = f"s.{name} > t.{name} OR (s.{name} = t.{name} AND ({found}))"
    return found


def _quoted(name: str) -> str:
    text = name.replace('"', '""')
    return f'"{text}"'
