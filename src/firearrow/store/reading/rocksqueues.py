"""ConsumeQueues that are rows of a RocksDB database, read-only and beside a running broker.

The view is the state on the disk at the first look. A queue ends where its row says, as for a broker; the next start
overwrites entries after that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from firearrow.database import Snapshot, Table
from firearrow.files import StoredPath
from firearrow.state import is_database
from firearrow.store import rocksformat as rows
from firearrow.store.reading.entries import Entries, QueueKey, Span, entry_columns, without
from firearrow.store.scan import Ints

ROW: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8"), ("store_ms", ">i8")])
assert ROW.itemsize == rows.VALUE_BYTES, "columns and single rows have one format"
DIRECTORIES: Final = ("consumequeue", "consumequeue_rocksdb")
"""Directories of a store that may hold the database."""
_ROWS_A_STEP: Final = 65_536
_STRAYS_MAX: Final = 100  # keys that are named


def database_directory(place: Callable[[str], StoredPath]) -> str | None:
    """The directory of the database with a store's queues; None where the queues are in files.

    A store has both after its broker has changed ``storeType``. Dispatch can go on from the end of any database; files
    do not say where they end. ``place`` gives the path of a directory of the store.
    """
    return next((name for name in DIRECTORIES if is_database(place(name))), None)


class Database(Protocol):
    """A database that is open for reading."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """The column families."""

    def close(self) -> None:
        """Close the database."""


class RocksQueue:
    """Implements ``Queue`` and ``StoredQueue`` by rows."""

    entry_bytes: Final = rows.VALUE_BYTES

    def __init__(self, tables: Mapping[str, Table], topic: str, queue_id: int) -> None:
        self._entries = tables[rows.ENTRIES]
        self._offsets = tables.get(rows.OFFSETS)
        self._key = topic, queue_id
        self._head = rows.entry_head(topic, queue_id)

    def row(self, kind: bytes) -> tuple[int, int] | None:
        """Physical offset and queue offset of a row ``MAX`` or ``MIN``; None without one."""
        value = None
        if self._offsets is not None:
            value = self._offsets.get(rows.offset_key(*self._key, kind))
        if value is None or len(value) != rows.PLACE.size:
            return None
        place: tuple[int, int] = rows.PLACE.unpack(value)
        return place

    @property
    def is_there(self) -> bool:
        """Tell whether the database has anything of the queue."""
        return self.end > 0 or next(self.all(), None) is not None

    @property
    def disk_bytes(self) -> int:
        """Bytes of the values of its entries."""
        return sum(values.nbytes for _, values in self.all())

    @cached_property
    def end(self) -> int:
        """The queue offset after the last message that its row names."""
        last = self.row(rows.MAX)
        return 0 if last is None else last[1] + 1

    @property
    def span(self) -> Span:
        """The queue offsets up to the end in its row."""
        return 0, self.end

    @property
    def max_offset(self) -> int:
        """The end, under the name that a broker's queue has for it."""
        return self.end

    def span_from(self, log_start: int) -> Span:
        """The queue offsets whose records are in a log that begins at ``log_start``."""
        return self.first_at_or_after(max(log_start, 0)), self.end

    def first_at_or_after(self, physical_offset: int, start: int = 0, end: int | None = None) -> int:
        """The first queue offset in ``[start, end]`` whose record is at a physical offset or after it."""
        numbers = range(self.end if end is None else end)
        return bisect_left(numbers, physical_offset, start, key=self.place)

    def place(self, queue_offset: int) -> int:
        """The physical offset of the record of a message; -1 without an entry."""
        value = self._entries.get(self._at(queue_offset))
        return -1 if value is None else int.from_bytes(value[:8], "big")

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of queue offsets in ``[start, end)``, or every ``step``-th of them."""
        start, end = max(start, 0), min(end, self.end)
        if step == 1:
            stop = self._at(max(start, end))
            found = self._entries.some(self._at(start), max(end - start, 0))
            found = [row for row in found if row[0] < stop]
        else:
            keys = map(self._at, range(start, end, step))
            values = ((key, self._entries.get(key)) for key in keys)
            found = [(key, value) for key, value in values if value is not None]
        return entry_columns(*self._columns(found))

    def _at(self, queue_offset: int) -> bytes:
        return self._head + queue_offset.to_bytes(8, "big", signed=True)

    def read(self, queue_offset: int, count: int) -> bytes:
        """Some entries up to the end; fewer where one is missing."""
        count = min(count, self.end - queue_offset)
        if count <= 0 or queue_offset < 0:
            return b""
        found = self._entries.some(self._at(queue_offset), count)
        # Rows come in order: if the last one has the expected key, none before it is missing.
        if len(found) < count or found[-1][0] != self._at(queue_offset + count - 1):
            number = _side_by_side([key for key, _ in found], self._head, queue_offset)
            found = found[:number]
        data = b"".join([value for _, value in found])
        if len(data) != len(found) * rows.VALUE_BYTES:
            sizes = [len(value) == rows.VALUE_BYTES for _, value in found]
            data = b"".join([value for _, value in found[: sizes.index(False)]])
        assert not len(data) % rows.VALUE_BYTES, "only whole entries are read"
        return data

    def others(self, known: list[Span]) -> Iterator[Span]:
        """The stretches of existing rows outside of the known ones."""
        for start, end in without(0, self.end, known):
            for numbers, _ in self.all(start, end):
                breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
                for part in np.split(numbers, breaks):
                    yield int(part[0]), int(part[-1]) + 1

    def all(self, start: int = 0, end: int | None = None) -> Iterator[tuple[Ints, npt.NDArray[Any]]]:
        """Queue offsets and entries (``ROW``) of all rows that are well-formed, step by step."""
        at = self._at(start)
        stop = rows.entry_range(self._head)[1] if end is None else self._at(end)
        while True:
            found = self._entries.some(at, _ROWS_A_STEP)
            mine = [row for row in found if row[0] < stop]
            numbers, values = self._columns(mine)
            if len(numbers):
                yield numbers, values
            if len(mine) < _ROWS_A_STEP:
                return
            at = mine[-1][0] + b"\0"

    def _columns(self, found: list[tuple[bytes, bytes]]) -> tuple[Ints, npt.NDArray[Any]]:
        """Queue offsets and entries (``ROW``) of the well-formed rows."""
        good = [row for row in found if _is_row(row, self._head)]
        numbers = np.frombuffer(b"".join([key[-8:] for key, _ in good]), ">i8")
        values = np.frombuffer(b"".join([value for _, value in good]), ROW)
        assert len(numbers) == len(values), "each row has one key and one value"
        return numbers.astype(np.int64), values

    def odd_rows(self) -> list[bytes]:
        """The keys of rows among its entries that are no entries."""
        start, end = rows.entry_range(self._head)
        odd: list[bytes] = []
        while len(odd) < _STRAYS_MAX:
            found = self._entries.some(start, _ROWS_A_STEP)
            mine = [row for row in found if row[0] < end]
            odd += [row[0] for row in mine if not _is_row(row, self._head)]
            if len(mine) < _ROWS_A_STEP:
                break
            start = mine[-1][0] + b"\0"
        return odd[:_STRAYS_MAX]


def _is_row(row: tuple[bytes, bytes], head: bytes) -> bool:
    key, value = row
    return len(value) == rows.VALUE_BYTES and len(key) == len(head) + 8 and key.startswith(head)


def _side_by_side(keys: list[bytes], head: bytes, queue_offset: int) -> int:
    """Count the consecutive keys from a queue offset on."""
    for number, key in enumerate(keys):
        if key != head + (queue_offset + number).to_bytes(8, "big"):
            return number
    return len(keys)


class RocksQueues(Mapping[QueueKey, RocksQueue]):
    """All queues of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def at(cls, directory: Path) -> Self:
        """The queues in a directory of this machine.

        Raises ConfigError without the package, CorruptStore or OSError where the database can't be opened.
        """
        return cls(Snapshot(directory, (rows.ENTRIES, rows.OFFSETS)))

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    @property
    def _tables(self) -> Mapping[str, Table]:
        return self._database.tables

    def open(self, key: QueueKey) -> RocksQueue:
        """A queue; an empty one if none has that name."""
        return RocksQueue(self._tables, *key)

    def keys_of(self, topics: Collection[str] | None) -> Iterator[QueueKey]:
        """Topic and queue id of each queue that has messages, or of the queues of some topics, in order."""
        heads = [b""] if topics is None else [rows.topic_head(topic) for topic in topics]
        table = self._tables.get(rows.OFFSETS)
        pairs = (pair for head in heads if table is not None for pair in table.rows(head))
        found = (rows.offset_row(*pair) for pair in pairs)
        yield from sorted((row.topic, row.queue_id) for row in found if row is not None and row.kind == rows.MAX)

    def __getitem__(self, key: QueueKey) -> RocksQueue:
        if not 0 <= key[1] < 1 << 32:  # from a damaged record; no key can hold it
            raise KeyError(key)
        queue = self.open(key)
        if not queue.is_there:
            raise KeyError(key)
        return queue

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(self._keys[0])

    def __len__(self) -> int:
        return len(self._keys[0])

    def rows_of(self, key: QueueKey) -> Iterator[tuple[str, bytes, bytes]]:
        """All rows of a queue, each with its family."""
        start, end = rows.entry_range(rows.entry_head(*key))
        while some := self._tables[rows.ENTRIES].some(start, _ROWS_A_STEP):
            mine = [(rows.ENTRIES, *row) for row in some if row[0] < end]
            yield from mine
            if len(mine) < _ROWS_A_STEP:
                break
            start = mine[-1][1] + b"\0"
        for kind in (rows.MAX, rows.MIN):
            offset_key = rows.offset_key(*key, kind)
            value = self._tables[rows.OFFSETS].get(offset_key)
            if value is not None:
                yield rows.OFFSETS, offset_key, value

    @property
    def strays(self) -> list[bytes]:
        """Keys that belong to no queue."""
        return self._keys[1]

    @property
    def dispatched_offset(self) -> int:
        """The log offset before which everything is dispatched, 0 if the database does not say."""
        table = self._tables.get(rows.OFFSETS)
        value = None if table is None else table.get(rows.DISPATCHED_KEY)
        if value is None or len(value) != rows.DISPATCHED.size:
            return 0
        offset: int = rows.DISPATCHED.unpack(value)[0]
        return offset

    @cached_property
    def _keys(self) -> tuple[list[QueueKey], list[bytes]]:
        """The queues with entries or a last message, in order, and the keys of no queue."""
        found: set[QueueKey] = set()
        strays: list[bytes] = []
        table = self._tables.get(rows.OFFSETS)
        for key, value in table.rows() if table is not None else ():
            row = rows.offset_row(key, value)
            if row is not None and row.kind == rows.MAX:
                found.add((row.topic, row.queue_id))
            elif row is None and key != rows.DISPATCHED_KEY:
                strays.append(key)
        entries = self._tables[rows.ENTRIES]
        at = b""
        while rest := entries.some(at, 1):
            key = rest[0][0]
            queue = rows.queue_of(key)
            if queue is None:
                strays.append(key)
                at = key + b"\0"
            else:
                found.add(queue)
                at = rows.entry_range(rows.entry_head(*queue))[1]
        return sorted(found), strays[:_STRAYS_MAX]
