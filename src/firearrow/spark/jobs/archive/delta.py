"""An archive is a Delta table. Each change to it is a commit that counts as a whole or not at all.

::

    <archive>/
      topic=orders/dt=2026-11-21/000000000017-00003-<run>.parquet     messages
      _delta_log/00000000000000000017.json                            changes of commit 17

Delta needs only a directory or bucket where one process alone can create a name. Iceberg also needs a catalog;
``firearrow.spark.jobs.archive.iceberg`` gives it the same files.

Files are written to their places under names that no other run uses, and count once they are committed. Nothing refers
to the files of a killed run; ``clean`` removes them. The next offset of each queue is part of the same commit
(``firearrow.spark.jobs.archive.progress``). No manifest is needed beside the table, because its log stores everything.

Several processes may archive at once. A commit names the version that it follows. A second process with the same
queues, or with files that the first has removed, gets `Conflict` and plans again. The library's own check
(``max_commit_retries``) lets two commits remove the same file, and both then add its messages. So that check is off,
and this module makes the check.

On a disk of this machine, files are synced before the commit that names them. The library does not sync its log. So
this module syncs the entry that a commit follows before the commit, and the commit's own entry before it returns. If
the power fails in between, only the newest entry can be damaged, and no caller has its result. To remove that entry is
to undo the step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from firearrow.client.queues import Queue, Span
from firearrow.clock import Clock, SystemClock
from firearrow.errors import CorruptStore, FirearrowError, StoreLocked, require_packages
from firearrow.javanumbers import INT_MAX, LONG_MAX
from firearrow.spark.jobs.archive.fileplace import FilePlace, one_line
from firearrow.spark.jobs.archive.progress import FILES, LOG, ArchiveProgress, LogMark, Numbers, OfQueue, read_numbers
from firearrow.spark.source.marks import Recognition
from firearrow.spark.source.origin import Origin
from firearrow.spark.tables import MESSAGES

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

KEPT_HOURS: Final = 168  # a removed file stays for queries that read it
_SETTINGS: Final = {
    "delta.checkpointInterval": "10",  # largest number of entries of the log that a start reads
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours",
}
_TRIES_MAX: Final = 100  # consecutive commits of other processes
_LOOKS_MAX: Final = 20  # at a log that grows while it is read
_POWER: Final = " (if power was lost, remove the newest entry of _delta_log: nothing that counts is in it)"
_LAST_NAME: Final = "\U0010ffff"  # name of a broker, if the table does not know a file's
IDENTITY: Final = b"firearrow.column"  # in the metadata of a column whose identity is not its name


class Conflict(StoreLocked):
    """Another process has archived or removed the same queues or files in the meantime."""


class QueueRows(OfQueue, frozen=True, rename="camel"):
    """Messages of one queue from the first to the last queue offset, both included; ``rows`` is their number.

    ``last_place`` and ``last_ms`` are the place of the last message in the log and its store time, -1 if not known.
    """

    first: int
    last: int
    rows: int
    last_place: int = -1
    last_ms: int = -1


class TableFile(Protocol):
    """A Parquet file of a table; ``path`` is its place in the table's directory."""

    @property
    def path(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...

    def partition(self) -> dict[str, str | None]:
        """Return the values of the columns that the table is partitioned by."""

    def statistics(self) -> str:
        """Return the table's statistics in JSON; readers skip files by them."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Columns of a table when it is created, and those that it is partitioned by."""

    schema: pa.Schema
    partition_by: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """Table properties, beside those that all tables have."""


def column_identity(column: pa.Field) -> str:
    """Return what stays the same when a column is renamed: its first name, unless another column has had that name."""
    identity: bytes = (column.metadata or {}).get(IDENTITY, column.name.encode())
    return identity.decode()


MESSAGES_BY_DAY: Final = TableLayout(MESSAGES.append(pa.field("dt", pa.date32())), ("topic", "dt"))


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of one topic and day, sorted by broker, queue and queue offset.

    ``path`` is its place in the archive. Its values lie between those with ``min`` and ``max``, both included. The
    defaults describe a file that another program has written.
    """

    path: str
    topic: str
    day: str
    rows: int
    size_bytes: int
    broker_min: str = ""
    broker_max: str = _LAST_NAME
    queue_min: int = 0
    queue_max: int = INT_MAX
    offset_min: int = 0
    offset_max: int = LONG_MAX
    stored_min_ms: int = 0
    stored_max_ms: int = 1 << 62

    def may_hold(self, queue: Queue, span: Span | None = None) -> bool:
        """Tell whether the file may have messages of a queue, between offsets."""
        return (
            self.topic == queue.topic
            and self.broker_min <= queue.broker <= self.broker_max
            and self.queue_min <= queue.queue_id <= self.queue_max
            and (span is None or (self.offset_min < span.end and span.start <= self.offset_max))
        )

    def partition(self) -> dict[str, str | None]:
        """Return the topic and the day."""
        return {"topic": self.topic, "dt": self.day}

    def statistics(self) -> str:
        """Return the table's statistics in JSON; readers skip files by them."""
        least = {
            "broker": self.broker_min,
            "queueId": self.queue_min,
            "queueOffset": self.offset_min,
            "storeTimestamp": _iso(self.stored_min_ms),
        }
        most = {
            "broker": self.broker_max,
            "queueId": self.queue_max,
            "queueOffset": self.offset_max,
            "storeTimestamp": _iso(self.stored_max_ms),
        }
        return json.dumps(
            {"numRecords": self.rows, "minValues": least, "maxValues": most, "nullCount": dict.fromkeys(least, 0)}
        )


class WrittenFiles(msgspec.Struct, frozen=True):
    """Output of a task: its files, its rows of each queue, the message of each broker that is furthest on in its log,
    and the host. A typed table has files of undecoded messages, too."""

    files: tuple[TableFile, ...] = ()
    queues: tuple[QueueRows, ...] = ()
    marks: tuple[LogMark, ...] = ()
    host: str = ""
    undecoded: tuple[TableFile, ...] = ()


class MessageWriter(Protocol):
    """Writer of the files of a table, in the workers. Can be pickled."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of messages that it needs."""

    def write(self, batches: Iterator[pa.RecordBatch], place: FilePlace, stem: str) -> WrittenFiles:
        """Write messages to files whose names begin with ``stem``. Each file is whole and on the disk on return."""


_STATISTICS: Final = {
    "broker_min": "min.broker",
    "broker_max": "max.broker",
    "queue_min": "min.queueId",
    "queue_max": "max.queueId",
    "offset_min": "min.queueOffset",
    "offset_max": "max.queueOffset",
    "stored_min_ms": "min.storeTimestamp",
    "stored_max_ms": "max.storeTimestamp",
}


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    """Files and numbers that a commit changes. ``rewrites`` says that the messages stay the same.

    With ``schema``, the table gets other columns, and the files that are added are all of its files.
    """

    what: str
    added: tuple[TableFile, ...] = ()
    removed: tuple[TableFile, ...] = ()
    numbers: dict[str, int] = {}
    rewrites: bool = False
    schema: pa.Schema | None = None


@dataclass(frozen=True)
class State:
    """State of an archive after the commit ``version`` (0: no commit yet).

    ``archive`` is the table's id, ``numbers`` are all numbers in its log.
    """

    version: int = 0
    archive: str = ""
    numbers: Numbers = field(default_factory=dict)
    table: DeltaTable | None = field(default=None, compare=False)

    @cached_property
    def progress(self) -> ArchiveProgress:
        """The numbers by their meaning."""
        return ArchiveProgress.of(self.numbers)

    @property
    def offsets(self) -> Mapping[Queue, int]:
        """Next offset of each queue."""
        return self.progress.offsets

    @property
    def first(self) -> Mapping[Queue, int]:
        """Lowest offset of each queue that has messages here."""
        return self.progress.first

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of the files."""
        if self.table is None:
            return frozenset()
        return frozenset(unquote(path) for path in pa.table(self.table.get_add_actions())["path"].to_pylist())

    @cached_property
    def partitions(self) -> dict[str, dict[str, Any]]:
        """The values of the columns that the table is partitioned by, of each file by its path."""
        if self.table is None:
            return {}
        actions = pa.table(self.table.get_add_actions()).to_pylist()
        return {unquote(action["path"]): action.get("partition") or {} for action in actions}

    @cached_property
    def files(self) -> dict[str, DataFile]:
        """The files of an archive, by their paths."""
        if self.table is None:
            return {}
        actions = pa.table(self.table.get_add_actions(flatten=True))
        days = actions["partition.dt"].cast(pa.string()).to_pylist()
        columns = {
            "path": [unquote(path) for path in actions["path"].to_pylist()],
            "topic": actions["partition.topic"].to_pylist(),
            "day": days,
            "rows": actions["num_records"].to_pylist(),
            "size_bytes": actions["size_bytes"].to_pylist(),
        }
        for name, column in _STATISTICS.items():
            if column in actions.column_names:
                columns[name] = _values(actions[column])
        rows = zip(*columns.values(), strict=True)
        named = (dict(zip(columns, row, strict=True)) for row in rows)
        files = (DataFile(**{k: v for k, v in row.items() if v is not None}) for row in named)
        return {file.path: file for file in sorted(files, key=lambda file: file.path)}


class Archive:
    """The table of an archive, at a directory or a URI. Can be pickled."""

    def __init__(self, root: Path | str, clock: Clock | None = None, *, layout: TableLayout = MESSAGES_BY_DAY) -> None:
        self.place: Final = FilePlace(root)
        self.root: Final = str(self.place)
        self._layout = layout
        self._clock = clock or SystemClock()

    # --- reading ---

    def load(self) -> State:
        """Read the state of the archive, an empty state if there is none.

        Raises CorruptStore for a log that cannot be read, ConfigError if the package is missing.
        """
        require_packages("an archive needs", "spark", "deltalake")
        for _ in range(_LOOKS_MAX):
            table = self._table()
            if table is None:
                return State()
            version = table.version()
            try:
                numbers = read_numbers(self.place, version)
            except (FileNotFoundError, msgspec.DecodeError, pa.ArrowInvalid) as error:
                raise self._damaged(str(error)) from None
            if numbers is not None:
                return State(version, str(table.metadata().id), numbers, table)
        raise StoreLocked(f"archive {self.root}: its log grows faster than it can be read")

    def _table(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        def opened() -> DeltaTable | None:
            try:
                return DeltaTable(self.root, storage_options=self.place.delta_options or None)
            except TableNotFoundError:
                return None

        table: DeltaTable | None = self.in_library(opened)
        return table

    def in_library(self, work: Callable[[], Any]) -> Any:
        """Run some work of the library, and turn its errors into one sentence."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            return work()
        except CommitFailedError:
            raise
        except DeltaError as error:
            raise self._damaged(one_line(error)) from None
        except OSError as error:
            raise FirearrowError(f"archive {self.root}: {one_line(error)}") from None

    def _damaged(self, reason: str) -> CorruptStore:
        hint = "" if self.place.directory is None else _POWER
        return CorruptStore(f"archive {self.root}: its log can't be read: {reason}{hint}")

    def recognition(self, origin: Origin, *, fail_on_data_loss: bool) -> Recognition:
        """Return the check that an origin is the one that this archive holds messages of."""
        otherwise = "a store needs a separate archive"
        return Recognition(origin, f"archive {self.root}", otherwise, fail_on_data_loss)

    # --- changing ---

    @property
    def writer(self) -> MessageWriter | None:
        """Writer of the table's files, if its rows are not the messages themselves."""
        return None

    def commit_step(self, state: State, change: TableChange, written: Sequence[WrittenFiles]) -> State:
        """Commit the files of a step that the workers have written; raises as ``commit``."""
        return self.commit(state, change)

    def commit(self, state: State, change: TableChange) -> State:
        """Commit a change for good; return the state after it.

        ``state`` is the state that the change was planned with. Raises Conflict if another process has changed the same
        numbers since, or has removed a file that this change removes. In that case nothing counts, and the new files
        can be dropped.
        """
        self.place.sync_names(file.path for file in change.added)
        base = state
        for _ in range(_TRIES_MAX):
            base = self._made() if base.table is None else base
            self._require_fit(state, base, change)
            self._sync_log(base.version, base.version)
            if self._commits(base, change):
                now = self._after(base, change)
                break
            now = self.load()
            if self.counts(now, change):
                break  # the commit counts; the object store's answer was lost
            base = now
        else:
            raise Conflict(f"archive {self.root}: other processes change it without a pause")
        self._sync_log(base.version, now.version)
        return now

    def _after(self, base: State, change: TableChange) -> State:
        """Return the state after a commit of this process, without reading numbers that are known.

        A table of a million queues has three million numbers.
        """
        table = self._table()
        if table is None or table.version() != base.version + 1:
            return self.load()
        return State(table.version(), base.archive, {**base.numbers, **_numbers_of(base, change)}, table)

    @contextmanager
    def uncommitted(self, files: Iterable[TableFile]) -> Iterator[None]:
        """Remove written files if the block that commits them fails."""
        try:
            yield
        except FirearrowError:
            for file in files:
                self.place.delete(file.path)
            raise

    def _made(self) -> State:
        """Create the table, unless another process has created it, possibly at this very moment."""
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError

        self.place.make()
        try:
            self.in_library(
                lambda: DeltaTable.create(
                    self.root,
                    self._layout.schema,
                    mode="ignore",
                    partition_by=[*self._layout.partition_by],
                    configuration={**_SETTINGS, **self._layout.settings},
                    storage_options=self.place.delta_options or None,
                    raise_if_key_not_exists=False,
                )
            )
        except CommitFailedError:
            if self.load().table is None:
                raise
        return self.load()

    def _require_fit(self, planned: State, base: State, change: TableChange) -> None:
        """Raise Conflict unless the state still fits the plan of a change."""
        if base is planned:
            return
        for name in change.numbers:
            if base.numbers.get(name) != planned.numbers.get(name):
                raise Conflict(f"archive {self.root}: another process has archived the same queues")
        if any(file.path not in base.paths for file in change.removed) or (
            change.schema is not None and base.paths != {file.path for file in change.removed}
        ):
            raise Conflict(f"archive {self.root}: another process has removed the same files")

    def counts(self, base: State, change: TableChange) -> bool:
        """Tell whether a commit counts, though its answer was lost."""
        return bool(change.added) and all(file.path in base.paths for file in change.added)

    def _commits(self, base: State, change: TableChange) -> bool:
        """Try to make the next commit; tell whether no other process has made it."""
        from deltalake.exceptions import CommitFailedError

        try:
            self.in_library(lambda: self.make_commit(base, change))
        except CommitFailedError:
            return False
        return True

    def make_commit(self, base: State, change: TableChange) -> None:
        """Make the next commit; raises the library's CommitFailedError if another process has made it."""
        from deltalake import Schema

        assert base.table is not None
        actions, mode, schema = [*self._additions(change), *self._removals(change)], "append", base.table.schema()
        if change.schema is not None:
            actions, mode, schema = self._additions(change), "overwrite", Schema.from_arrow(change.schema)
        properties = self.commit_properties(base, change)
        base.table.create_write_transaction(
            actions, mode, schema, [*self._layout.partition_by], commit_properties=properties
        )

    def commit_properties(self, base: State, change: TableChange) -> CommitProperties:
        """Return the numbers of a change and its name, for the library."""
        from deltalake import CommitProperties
        from deltalake.transaction import Transaction

        numbers = _numbers_of(base, change)
        return CommitProperties(
            custom_metadata={"firearrow": change.what, **_metrics(change)},
            max_commit_retries=0,
            app_transactions=[Transaction(name, number) for name, number in numbers.items()],
        )

    def _additions(self, change: TableChange) -> list[Any]:
        from deltalake.transaction import AddAction

        return [
            AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values=file.partition(),
                modification_time=self._clock.now_ms(),
                data_change=not change.rewrites,
                stats=file.statistics(),
            )
            for file in change.added
        ]

    def _removals(self, change: TableChange) -> list[Any]:
        from deltalake.transaction import RemoveAction

        return [
            RemoveAction(file.path, not change.rewrites, self._clock.now_ms(), file.size_bytes, file.partition())
            for file in change.removed
        ]

    def _sync_log(self, before: int, now: int) -> None:
        """Sync the entries of the log to the disk, and their checkpoints."""
        names = [f"{LOG}/_last_checkpoint"]
        for version in range(before, now + 1):
            stem = f"{LOG}/{version:020}"
            names += [f"{stem}.json", f"{stem}.checkpoint.parquet"]
        there = [name for name in names if self.place.has(name)] if self.place.directory else []
        self.place.sync(there)
        self.place.sync_names(there)

    # --- files outside of the table ---

    def clean(self, kept_hours: int = KEPT_HOURS) -> int:
        """Remove files that no reader needs: replaced files, expired files, and files of killed runs.

        They stay for ``kept_hours``, so that running queries can end. Returns their number.
        """
        state = self.load()
        table = state.table
        if table is None:
            return 0
        removed: list[str] = self.in_library(
            lambda: table.vacuum(kept_hours, dry_run=False, enforce_retention_duration=False, full=True)
        )
        self._sync_log(state.version, self.load().version)
        return len(removed)


def _numbers_of(base: State, change: TableChange) -> dict[str, int]:
    """Return the numbers of the commit after ``base``."""
    return {**change.numbers, FILES: base.version + 1} if change.removed else change.numbers


def _metrics(change: TableChange) -> dict[str, Any]:
    """Return what Delta's history shows of a change; merges have the library's own metrics."""
    if not change.added and not change.removed:
        return {}
    metrics = {
        "numFiles": len(change.added),
        "numOutputRows": sum(file.rows for file in change.added),
        "numOutputBytes": sum(file.size_bytes for file in change.added),
        "numRemovedFiles": len(change.removed),
    }
    return {"operationMetrics": {name: str(number) for name, number in metrics.items()}}


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        microseconds = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        return [None if value is None else value // 1000 for value in microseconds]
    values: list[Any] = column.to_pylist()
    return values


def _iso(ms: int) -> str:
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"
