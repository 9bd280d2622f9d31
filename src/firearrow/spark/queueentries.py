"""The entries of a store's ConsumeQueues as columns, whichever way the store keeps them.

What a queue holds is told by its entries alone: one with a place in the log is written when its
record is, and the first without a size ends the queue. Nothing is locked, and a broker may go on
writing. What the log has behind all of them is laid over by ``undispatched``.

Formats: ``firearrow.store.consumequeue``, ``firearrow.store.batchqueue``,
``firearrow.store.rocksformat``.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from firearrow.client.queues import Bound, Span
from firearrow.spark.batchentries import BatchUnits
from firearrow.spark.storage import NumberedFile, Storage, numbered_files
from firearrow.store.batchqueue import DIRECTORY
from firearrow.store.checkpoint import Checkpoint

Ints = npt.NDArray[np.int64]

ENTRY_BYTES: Final = 20
ENTRY: Final = np.dtype([("physical", ">i8"), ("size", ">i4"), ("tag", ">i8")])
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
LMQ_PREFIX: Final = "%LMQ%"

QueueKey = tuple[str, int]
_PLACE: Final = struct.Struct(">qi")  # of an entry: physical offset and size
_DIRECTORIES: Final = ("consumequeue", DIRECTORY)


class Entries(NamedTuple):
    """Entries of one queue, in order of their queue offsets, which need not be consecutive."""

    queue_offset: Ints
    physical_offset: Ints
    size: Ints
    tag_code: npt.NDArray[Any]  # as stored: big-endian

    def take(self, chosen: npt.NDArray[np.bool_] | Ints) -> Entries:
        """Some of them."""
        return Entries(*(column[chosen] for column in self))


class Queue(Protocol):
    """One queue."""

    def bound(self, log_start: int) -> Bound:
        """What it holds of a log that begins at ``log_start``."""

    def first_at_or_after(self, physical_offset: int, start: int, end: int) -> int:
        """The first queue offset in ``[start, end]`` whose record is there or later."""

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of queue offsets in ``[start, end)``, or of every so many of them."""


class Queues(Protocol):
    """All queues of a store."""

    def keys(self, topics: Collection[str] | None) -> Iterator[QueueKey]:
        """Topic and queue id of each, or of those of some topics, in order."""

    def open(self, key: QueueKey) -> Queue:
        """One of them; an empty one if there is none of that name."""


class FileQueue:
    """A queue in files of its own; where one is missing between others, its entries are."""

    def __init__(self, storage: Storage, files: list[NumberedFile]) -> None:
        self._storage = storage
        self._files = files
        self._bases = [file.base // ENTRY_BYTES for file in self._files]
        self._buffers: dict[int, memoryview] = {}

    def _buffer(self, number: int) -> memoryview:
        """The bytes of a file; none if retention has deleted it since it was listed."""
        found = self._buffers.get(number)
        if found is None:
            try:
                found = self._storage.read(self._files[number].path)
            except FileNotFoundError:
                found = memoryview(b"")
            self._buffers[number] = found
        return found

    def _map(self, number: int) -> npt.NDArray[Any]:
        buffer = self._buffer(number)
        return np.frombuffer(buffer, ENTRY, len(buffer) // ENTRY_BYTES)

    def bound(self, log_start: int) -> Bound:
        """What it holds of a log that begins at ``log_start``."""
        end = self._end()
        if end == 0:
            return Bound(0, 0)
        return Bound(self.first_at_or_after(log_start, self._bases[0], end), end)

    def _end(self) -> int:
        for number in range(len(self._files) - 1, -1, -1):
            entries = self._map(number)
            size, physical = entries["size"], entries["physical"]
            low, high = 0, len(entries)
            while low < high:
                middle = (low + high) // 2
                if physical[middle] >= 0 and size[middle] > 0:
                    low = middle + 1
                else:
                    high = middle
            if low or number == 0:
                return self._bases[number] + low
        return 0

    def first_at_or_after(self, physical_offset: int, start: int, end: int) -> int:
        """The first queue offset in ``[start, end]`` whose record is there or later."""
        return bisect_left(range(end), physical_offset, start, key=self._physical)

    def _physical(self, queue_offset: int) -> int:
        number = bisect_right(self._bases, queue_offset) - 1
        at = (queue_offset - self._bases[number]) * ENTRY_BYTES
        buffer = self._buffer(number)
        if not len(buffer):
            return -1
        if at >= len(buffer):  # a file is missing there
            return self._physical(self._bases[number + 1])
        physical, size = _PLACE.unpack_from(buffer, at)
        return -1 if size == PRE_BLANK_SIZE else int(physical)

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of queue offsets in ``[start, end)``, or of every so many of them."""
        offsets: list[Ints] = []
        parts: list[npt.NDArray[Any]] = []
        for number, file in enumerate(self._files):
            base = self._bases[number]
            low, high = max(start, base), min(end, base + file.size_bytes // ENTRY_BYTES)
            if low < high:
                low += (start - low) % step
                part = self._map(number)[low - base : high - base : step]
                parts.append(part)
                offsets.append(np.arange(low, low + step * len(part), step))
        if not parts:
            return entry_columns(np.empty(0, np.int64), np.empty(0, ENTRY))
        if len(parts) == 1:
            return entry_columns(offsets[0], parts[0])
        return entry_columns(np.concatenate(offsets), np.concatenate(parts))


def entry_columns(queue_offset: Ints, entries: npt.NDArray[Any]) -> Entries:
    """Entries as columns, without those that stand for no message."""
    found = Entries(
        queue_offset,
        entries["physical"].astype(np.int64),
        entries["size"].astype(np.int64),
        entries["tag"],
    )
    real = (found.size > 0) & (found.size != PRE_BLANK_SIZE)
    return found if real.all() else found.take(real)


def _gaps(files: list[NumberedFile]) -> list[tuple[NumberedFile, NumberedFile]]:
    """The files before and behind each gap."""
    return [(before, after) for before, after in pairwise(files) if before.end < after.base]


class BatchQueue(BatchUnits):
    """A queue of batches."""

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of the records that begin in ``[start, end)``, or of every so many."""
        return _columns_of(self.rows(start, end, step))

    def holding(self, start: int, end: int) -> Entries:
        """The entries of the records with messages in ``[start, end)``."""
        return _columns_of(self.rows_holding(start, end))


def _columns_of(units: npt.NDArray[Any]) -> Entries:
    names = ("queue_offset", "physical_offset", "size")
    queue_offset, place, size = (units[name].astype(np.int64) for name in names)
    return Entries(queue_offset, place, size, units["tag_code"])


class FileQueues:
    """Queues in files: ``consumequeue/TOPIC/QUEUE/``, of batches ``batchconsumequeue/...``."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._listed: dict[QueueKey, tuple[list[NumberedFile], bool]] = {}

    @property
    def dispatched_offset(self) -> int:
        """The log offset before which all is dispatched, -1 without any queue.

        That is where the record of some entry begins or ends: the checkpoint names one. To look at
        each queue instead takes a second for some thousands.
        """
        if next(self.keys(None), None) is None:
            return -1
        try:
            checkpoint = Checkpoint.of(self._storage.read("checkpoint"))
        except FileNotFoundError:
            checkpoint = Checkpoint()
        if checkpoint.queues_physical_offset > 0:
            return checkpoint.queues_physical_offset + 1
        return max((self.record_end(self.open(key)) for key in self.keys(None)), default=-1)

    def record_end(self, queue: Queue) -> int:
        """Where the record of the last entry of a queue ends, -1 without one."""
        if isinstance(queue, BatchQueue):
            return queue.record_end
        latest = queue.bound(0).latest
        last = queue.entries(max(latest - 1, 0), latest)
        return int((last.physical_offset + last.size).max(initial=-1))

    def keys(self, topics: Collection[str] | None) -> Iterator[QueueKey]:
        """Topic and queue id of each, or of those of some topics, in order."""
        if topics is None:
            found = [entry for name in _DIRECTORIES for entry in self._storage.entries(name)]
            topics = {entry.name for entry in found if not entry.is_file}
        for topic in sorted(topics):
            names = {
                entry.name
                for name in _DIRECTORIES
                for entry in self._storage.entries(f"{name}/{topic}")
            }
            numbers = [int(name) for name in names if name.isascii() and name.isdecimal()]
            yield from ((topic, number) for number in sorted(numbers))

    def cut(self, keys: Iterable[QueueKey]) -> list[QueueKey]:
        """Which queues have lost the end of their last file: all files have the same size, which is
        a multiple of an entry's, and a last one is full only if it is as large as others."""
        lasts = {
            key: files[-1]
            for key in keys
            for files, of_batches in [self._files(key)]
            if files and not of_batches
        }
        usual = max((file.size_bytes for file in lasts.values()), default=0)
        return [
            key
            for key, file in lasts.items()
            if file.size_bytes % ENTRY_BYTES
            or (
                file.size_bytes < usual and self.open(key).bound(0).latest * ENTRY_BYTES == file.end
            )
        ]

    def holes(self, key: QueueKey) -> list[Span]:
        """The queue offsets of which a file is missing or cut between two others."""
        files, of_batches = self._files(key)
        if not of_batches:
            return [Span(one.end // ENTRY_BYTES, other.base // ENTRY_BYTES)
                    for one, other in _gaps(files)]  # fmt: skip
        return [
            Span(BatchQueue(self._storage, [one]).end, BatchQueue(self._storage, [other]).first)
            for one, other in _gaps(files)
        ]

    def begin(self, key: QueueKey) -> int | None:
        """The queue offset with which the first file of a queue begins; None if it has none, or is
        of batches."""
        files, of_batches = self._files(key)
        return files[0].base // ENTRY_BYTES if files and not of_batches else None

    def _files(self, key: QueueKey) -> tuple[list[NumberedFile], bool]:
        """The files of a queue, and whether they are of batches."""
        if key not in self._listed:
            found = self._list(key)
            if _gaps(found[0]):  # retention may have deleted the first ones meanwhile
                found = self._list(key)
            self._listed[key] = found
        return self._listed[key]

    def _list(self, key: QueueKey) -> tuple[list[NumberedFile], bool]:
        files = numbered_files(self._storage, f"consumequeue/{key[0]}/{key[1]}")
        if files:
            return files, False
        files = numbered_files(self._storage, f"{DIRECTORY}/{key[0]}/{key[1]}")
        return files, bool(files)

    def open(self, key: QueueKey) -> Queue:
        """One of them; an empty one if there is none of that name."""
        files, of_batches = self._files(key)
        return BatchQueue(self._storage, files) if of_batches else FileQueue(self._storage, files)
