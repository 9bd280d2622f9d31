"""The table of a topic, and the table of its undecoded messages. One commit of the first decides for both.

A step of archiving writes typed rows to the files of ``<name>``, and messages whose bodies do not decode to files of
``<name>__undecoded``. The commit to ``<name>`` has the offsets, and a number that names the step's files of undecoded
messages. Only then ``settle`` commits these files to their table. If a process dies in between, the next one finds the
number, and settles. To commit to the table of undecoded messages first was rejected: after a kill the step would be
repeated, perhaps with another schema, and a message could be in both tables.

When a schema changes or arrives, ``retry`` decodes the undecoded messages again. The same kind of commit adds the rows
that decode now. The files that take the place of the former undecoded ones name these in their footers, so ``settle``
can replace them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from firearrow.clock import Clock
from firearrow.errors import ConfigError, StoreLocked
from firearrow.lake.decoding import BodyDecoder
from firearrow.lake.evolution import Evolution, evolved, fitted, renames
from firearrow.lake.partitioning import Partitioning, directory, partition_text
from firearrow.lake.spec import UNDECODED, TableSpec
from firearrow.lake.tablefiles import TypedFile, statistics_of, write_file
from firearrow.lake.typedrows import METADATA, UNDECODED_ROWS, TypedRows, columns_of
from firearrow.spark.jobs.archive.archiving import RUN_DIGITS, file_stem
from firearrow.spark.jobs.archive.delta import (
    Archive,
    Conflict,
    State,
    TableChange,
    TableLayout,
    WrittenFiles,
    column_identity,
)
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.archive.parquet import there
from firearrow.spark.jobs.workers import Workers

if TYPE_CHECKING:
    from deltalake import DeltaTable

_STEP: Final = "firearrow:undecoded"  # of both tables: the last step with undecoded messages
SPEC: Final = "firearrow.table"  # property of the table
_NUMBERS: Final = "firearrow.numbers"  # property: numbers in Protobuf, by the identities of columns
FILES_MIN: Final = 8  # of a partition that is sorted again
_REPLACES: Final = b"firearrow.replaces"


class UndecodedTable(Archive):
    """The messages of a topic that are not in its table, with their bodies and the reasons."""

    def __init__(self, root: Path | str, clock: Clock | None = None) -> None:
        super().__init__(root, clock, layout=TableLayout(UNDECODED_ROWS, ()))

    def files_of(self, step: int) -> tuple[list[TypedFile], list[str]]:
        """Return the files of a step, and the paths of those that they replace."""
        ending = f"-{_run_of(step)}.parquet"
        added: list[TypedFile] = []
        replaced: list[str] = []
        for path in self.place.names():
            if not path.endswith(ending):
                continue
            with self.place.open(path) as opened:
                size_bytes = opened.size()
                file = pq.ParquetFile(opened)
                notes = file.schema_arrow.metadata or {}
                if _REPLACES in notes:
                    replaced += msgspec.json.decode(notes[_REPLACES], type=list[str])
                rows = file.read(["_broker", "_queue", "_offset", "_stored_at"])
            if rows.num_rows:
                stats = statistics_of(rows)
                added.append(TypedFile(path=path, rows=rows.num_rows, size_bytes=size_bytes, stats=stats))
        return added, replaced


class TypedTable(Archive):
    """The table of a topic, with the table of undecoded messages beside it. Both are in the directory of a lake."""

    def __init__(self, lake: str, name: str, spec: TableSpec, decoder: BodyDecoder, clock: Clock | None = None) -> None:
        self.name = name
        self.spec = spec
        self.columns: pa.Schema = columns_of(decoder.fields())
        self.names: dict[str, str] = {name: name for name in self.columns.names}
        """The name of each column by its identity."""
        self.partitioning: Final = spec.partitioning
        self.decoder = decoder
        _require_columns(spec, self.columns)
        super().__init__(f"{lake.rstrip('/')}/{name}", clock, layout=self._layout_of(self.partitioning))
        self.undecoded: Final = UndecodedTable(f"{lake.rstrip('/')}/{name}{UNDECODED}", clock)

    def _layout_of(self, by: Sequence[Partitioning]) -> TableLayout:
        fields = [each.field(self.columns) for each in by]
        own = [field for field in fields if field.name not in self.columns.names]
        self.own_partitions: set[str] = {field.name for field in own}
        settings = {SPEC: self.spec.as_text(), **self._numbers({}, self.columns)}
        if self.spec.change_data_feed:
            settings["delta.enableChangeDataFeed"] = "true"
        return TableLayout(pa.schema([*self.columns, *own]), tuple(field.name for field in fields), settings)

    @property
    def writer(self) -> TypedRows:
        """Writer of the table's rows."""
        rows = self.columns
        return TypedRows(self.decoder, rows, self.undecoded.place, self.partitioning, self.spec.cluster)

    def evolve(self, workers: Workers) -> None:
        """Give the table the columns that the present schema needs.

        Raises ConfigError if existing rows and new ones have no common type, Conflict if another process changes the
        table.
        """
        from deltalake import CommitProperties
        from deltalake import Schema as DeltaSchema
        from deltalake.exceptions import CommitFailedError

        state = self.load()
        table = state.table
        if table is None:
            return
        self._require_partitions(table)
        change = self.evolution(table)
        try:
            if self._set_properties(table, change.columns):
                state = self.load()
                assert state.table is not None
                table, change = state.table, self.evolution(state.table)
            if change.rewritten:
                self._rewrite(workers, state, change)
            elif change.added:
                fields = DeltaSchema.from_arrow(pa.schema(change.added)).fields
                properties = CommitProperties(custom_metadata={"firearrow": "schema"}, max_commit_retries=0)
                self.in_library(lambda: table.alter.add_columns(fields, commit_properties=properties))
        except CommitFailedError as error:
            raise Conflict(f"table {self.name}: another process has changed its columns: {error}") from None

    def evolution(self, table: DeltaTable) -> Evolution:
        """Return the columns that the present schema needs; new rows have these columns from now on.

        Raises ConfigError if existing rows and new ones have no common type, or if two columns would share a name.
        """
        held = pa.schema(table.schema())
        known = json.loads((table.metadata().configuration or {}).get(_NUMBERS, "{}"))
        numbers = {known[of]: column.name for column in held if (of := column_identity(column)) in known}
        own = {*METADATA.names, *self.own_partitions}
        fields = {name for name in held.names if name not in own}
        renamed = renames(fields, self.decoder.identities(), numbers)
        self._require_known(renamed)
        change = evolved(held, self._layout.schema, self.name, renamed)
        columns = [column for column in change.columns if column.name not in self.own_partitions]
        self.columns = pa.schema([column.remove_metadata() for column in columns])
        self.names = {column_identity(column): column.name for column in columns}
        return change

    def _require_partitions(self, table: DeltaTable) -> None:
        by = table.metadata().partition_columns
        if tuple(by) != self._layout.partition_by:
            raise ConfigError(
                f"table {self.name} is partitioned by {', '.join(by) or 'nothing'}, not by"
                f" {', '.join(self._layout.partition_by) or 'nothing'}: another partitioning needs another table"
            )

    def _require_known(self, renamed: Mapping[str, str]) -> None:
        """Raise ConfigError if the specification means columns by names that they lose."""
        sources = {each.source for each in self.partitioning}
        for old, new in renamed.items():
            if old in sources or old == self.spec.key:
                way_out = "keep its name, or use another table" if old in sources else f"name {new} as key"
                by = "it is partitioned by" if old in sources else "is its key"
                raise ConfigError(f"table {self.name}: column {old}, which {by}, is {new} in the new schema; {way_out}")

    def _set_properties(self, table: DeltaTable, columns: pa.Schema) -> bool:
        """Note the present specification in the table, unless it is there; tell whether that was a commit.

        This comes before a change of the columns. So after a kill in between, the columns change with the next start.
        Before this start, readers plan the same change.
        """
        held = table.metadata().configuration or {}
        settings = {**self._layout.settings, **self._numbers(json.loads(held.get(_NUMBERS, "{}")), columns)}
        if settings.items() <= held.items():
            return False
        self.in_library(lambda: table.alter.set_table_properties(settings, raise_if_not_exists=False))
        return True

    def _numbers(self, known: Mapping[str, int], columns: pa.Schema) -> dict[str, str]:
        """Return the property with the numbers of columns; none if fields have no numbers."""
        fields = self.decoder.identities()
        marks = [(column_identity(column), mark) for column in columns for mark in fields.get(column.name, ())]
        numbers = {identity: mark for identity, mark in marks if isinstance(mark, int)}
        return {_NUMBERS: json.dumps({**known, **numbers}, sort_keys=True)} if numbers else {}

    def _rewrite(self, workers: Workers, state: State, change: Evolution) -> None:
        """Write all files with other columns."""
        stem = file_stem(state.version + 1)
        files = list(self.files(state))
        pieces = [
            _Rewrite(self.place, self.columns, change.renamed, file, stem(number)) for number, file in enumerate(files)
        ]
        written = workers.run(_fit_file, pieces)
        added = tuple(file for one in written for file in one.files)
        with self.uncommitted(added):
            there(self.place, written)
            self.commit(state, TableChange(what="schema", added=added, removed=tuple(files), schema=change.columns))

    def _require_fit(self, planned: State, base: State, change: TableChange) -> None:
        """Raise as ``Archive`` does, and StoreLocked if another process has renamed a column of the new files."""
        super()._require_fit(planned, base, change)
        assert base.table is not None
        columns = pa.schema(base.table.schema())
        if change.schema is not None:
            assert planned.table is not None
            if not columns.equals(pa.schema(planned.table.schema()), check_metadata=True):
                raise Conflict(f"table {self.name}: another process has changed its columns")
            return
        present = {column_identity(column): column.name for column in columns}
        if any(present.get(identity, name) != name for identity, name in self.names.items()):
            raise StoreLocked(f"table {self.name}: another process has renamed its columns")

    def compact(self, files_min: int = FILES_MIN) -> int:
        """Join the small files of partitions; return the number of files that are gone.

        Rows are sorted by the columns of ``cluster``, in partitions of at least ``files_min`` files: others would be
        written again for little. Raises StoreLocked if another process has changed the table meanwhile.
        """
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError

        state = self.load()
        table = state.table
        if table is None:
            return 0
        properties = CommitProperties(custom_metadata={"firearrow": "compact"}, max_commit_retries=0)
        by = [*self.spec.cluster]
        counts = Counter(file.values for file in self.files(state))
        removed = 0
        try:
            if not by:
                found = self.in_library(lambda: table.optimize.compact(commit_properties=properties))
                return int(found["numFilesRemoved"])
            for values in (values for values, count in counts.items() if count >= files_min):
                chosen = [(name, "=", "" if it is None else it) for name, it in values] or None
                sort = partial(table.optimize.z_order, by, chosen, commit_properties=properties)
                found = self.in_library(sort)
                removed += int(found["numFilesRemoved"])
        except CommitFailedError as error:
            raise StoreLocked(f"table {self.name}: another process has changed it: {error}") from None
        return removed

    def files(self, state: State) -> Iterator[TypedFile]:
        """Yield the files of a state."""
        if state.table is None:
            return
        actions = pa.table(state.table.get_add_actions())
        for action in actions.to_pylist():
            values = tuple((name, partition_text(it)) for name, it in action.get("partition", {}).items())
            path, rows = unquote(action["path"]), action["num_records"]
            yield TypedFile(path=path, rows=rows, size_bytes=action["size_bytes"], values=values)

    def commit_step(self, state: State, change: TableChange, written: Sequence[WrittenFiles]) -> State:
        """Commit the files of a step; raises as ``commit``."""
        undecoded = [WrittenFiles(files=one.undecoded, host=one.host) for one in written if one.undecoded]
        if not undecoded:
            return self.commit(state, change)
        with self.undecoded.uncommitted(file for one in undecoded for file in one.files):
            there(self.undecoded.place, undecoded)
            self.undecoded.place.sync_names(file.path for one in undecoded for file in one.files)
            self.settle(state)  # the number of the step before is overwritten
            step = step_of(undecoded[0].files[0].path)
            state = self.commit(state, msgspec.structs.replace(change, numbers={**change.numbers, _STEP: step}))
        self.settle(state)
        return state

    def settle(self, state: State | None = None) -> None:
        """Commit the undecoded messages of the last step that had some, unless it is done."""
        step = (self.load() if state is None else state).numbers.get(_STEP)
        if step is None:
            return
        before = self.undecoded.load()
        while before.numbers.get(_STEP) != step:
            added, replaced = self.undecoded.files_of(step)
            removed = tuple(TypedFile(path=path, rows=0, size_bytes=0) for path in replaced)
            change = TableChange(what="undecoded", added=tuple(added), removed=removed, numbers={_STEP: step})
            try:
                self.undecoded.commit(before, change)
                return
            except Conflict:  # another process settles, too
                before = self.undecoded.load()

    def retry(self, workers: Workers) -> int:
        """Decode the undecoded messages again; return the number of those that are in the table now.

        Raises Conflict if another process changes the same table.
        """
        state = self.load()
        self.settle(state)
        held = sorted(self.undecoded.load().paths)
        if not held:
            return 0
        stem = file_stem(state.version + 1)
        pieces = [
            _Retry(self.writer, self.place, self.undecoded.place, path, stem(number))
            for number, path in enumerate(held)
        ]
        written = [one for one in workers.run(_decode_again, pieces) if one.files]
        if not written:
            return 0
        files = tuple(file for one in written for file in one.files)
        with self.uncommitted(files):
            there(self.place, written)
            self.commit_step(state, TableChange(what="retry", added=files), written)
        return sum(file.rows for file in files)


@dataclass(frozen=True, slots=True)
class _Retry:
    """File of undecoded messages to decode again."""

    writer: TypedRows
    place: FilePlace
    undecoded: FilePlace
    path: str
    stem: str


def _decode_again(piece: _Retry) -> WrittenFiles:
    """Write the rows that decode now, and the rest; nothing if no row decodes."""
    with piece.undecoded.open(piece.path) as file:
        rows = pq.ParquetFile(file).read().cast(UNDECODED_ROWS)
    found = piece.writer.decoded_again(rows)
    if not found.typed.num_rows:
        return WrittenFiles()
    notes = {_REPLACES.decode(): msgspec.json.encode([piece.path]).decode()}
    files, undecoded = piece.writer.write_rows([found], piece.place, piece.stem, notes)
    return WrittenFiles(files=files, undecoded=undecoded)


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """File to write again with other columns."""

    place: FilePlace
    columns: pa.Schema
    renamed: Mapping[str, str]
    file: TypedFile
    stem: str


def _fit_file(piece: _Rewrite) -> WrittenFiles:
    with piece.place.open(piece.file.path) as file:
        rows = pq.ParquetFile(file).read()
    named = rows.rename_columns([piece.renamed.get(name, name) for name in rows.column_names])
    rows = fitted(named, piece.columns)
    values = piece.file.partition()
    written = write_file(rows, piece.place, f"{directory(values)}{piece.stem}.parquet", values)
    return WrittenFiles((written,), host=gethostname())


def step_of(path: str) -> int:
    """Return the run of a file as a number of 64 bits, with a sign."""
    run = path.removesuffix(".parquet")[-RUN_DIGITS:]
    return int.from_bytes(bytes.fromhex(run), signed=True)


def _run_of(step: int) -> str:
    return step.to_bytes(RUN_DIGITS // 2, signed=True).hex()


def _require_columns(spec: TableSpec, columns: pa.Schema) -> None:
    for name in spec.cluster:
        if name not in columns.names:
            raise ConfigError(f"table of {spec.topics!r}: cluster {name!r} is no column")
