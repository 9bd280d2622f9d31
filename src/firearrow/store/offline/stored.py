"""ConsumeQueues as they are in a store, read-only: in files, or as rows of a database.

Tools ask for entries side by side, as many bytes as ``entry_bytes`` each. Of a file these are the
20 bytes of ``firearrow.store.consumequeue``, of a database the 28 of ``rocksformat``, which begin
with the same 20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from firearrow.store.queues import ENTRY, ENTRY_BYTES
from firearrow.store.snapshot.mapped import Directory, Maps, StoreFile, data_end

PRE_BLANK_SIZE: Final = 0x7FFFFFFF
"""The size in an entry that stands before a queue's first message."""
QUEUE_ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])

QueueKey = tuple[str, int]
Span = tuple[int, int]


class StoredQueue(Protocol):
    """One queue of one topic."""

    @property
    def entry_bytes(self) -> int:
        """How many bytes ``read`` gives for an entry."""

    @property
    def is_there(self) -> bool:
        """Whether it has files or rows."""

    @property
    def disk_bytes(self) -> int:
        """What its entries take."""

    @property
    def end(self) -> int:
        """The queue offset behind the last entry that is there."""

    @property
    def span(self) -> Span:
        """Where its entries are, as a broker would find it; some may be missing at the begin."""

    def read(self, queue_offset: int, count: int) -> bytes:
        """Some entries; fewer where the next is missing, or zeros where none is written."""

    def others(self, known: list[Span]) -> Iterator[Span]:
        """Stretches of queue offsets, outside of some sorted ones, that have entries or room."""

    def all(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]]:
        """Queue offsets, and columns of all entries that there are, and perhaps of room for some,
        step by step; a record of several messages has one, at its first."""


class StoredFileQueue:
    """Implements ``StoredQueue`` by the files of a directory."""

    entry_bytes: Final = ENTRY_BYTES

    def __init__(self, maps: Maps, directory: Directory) -> None:
        self.directory = directory
        self._maps = maps

    @property
    def is_there(self) -> bool:
        """Whether it has files."""
        return bool(self.directory.files)

    @property
    def disk_bytes(self) -> int:
        """The entries from the first file's begin on."""
        first, end = self.span
        return (end - first) * ENTRY_BYTES

    @property
    def span(self) -> Span:
        """From the first file on to the first entry that is not written."""
        files = self.directory.files
        if not files:
            return 0, 0
        first, end = files[0].base // ENTRY_BYTES, files[-1].end // ENTRY_BYTES
        return first, bisect(first, end, lambda at: entry_at(self, at)[1] > 0)

    @property
    def end(self) -> int:
        """The queue offset behind the last entry that is there."""
        for file in reversed(self.directory.files):
            written = np.flatnonzero(self.entries(file)["size"] > 0)
            if len(written):
                return file.base // ENTRY_BYTES + int(written[-1]) + 1
        return 0

    def entries(self, file: StoreFile) -> npt.NDArray[Any]:
        """What is in a file up to where it is a hole to its end."""
        buffer = self._maps.of(file)
        room = len(buffer) // ENTRY_BYTES
        return np.frombuffer(buffer, QUEUE_ENTRY, min(room, -(-data_end(file) // ENTRY_BYTES)))

    def read(self, queue_offset: int, count: int) -> bytes:
        """Some entries; fewer where files end or are missing."""
        at, end = queue_offset * ENTRY_BYTES, (queue_offset + count) * ENTRY_BYTES
        parts: list[bytes] = []
        for file in self.directory.files:
            if file.base <= at < file.end:
                stop = min(end, file.end)
                parts.append(bytes(self._maps.of(file)[at - file.base : stop - file.base]))
                at = stop
            if at >= end:
                break
        return b"".join(parts)

    def others(self, known: list[Span]) -> Iterator[Span]:
        """The stretches of each file, as far as they are not known."""
        for file in self.directory.files:
            first = file.base // ENTRY_BYTES
            yield from without(first, first + len(self.entries(file)), known)

    def all(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]]:
        """What is in each file, written or not."""
        for file in self.directory.files:
            entries = self.entries(file)
            yield np.arange(len(entries)) + file.base // ENTRY_BYTES, entries


def queue_range(queue: StoredQueue | None, log_start: int) -> Span:
    """The first queue offset that the log still holds, and the one after the last entry."""
    if queue is None:
        return 0, 0
    first, high = queue.span

    def is_before(at: int) -> bool:
        physical, size, _ = entry_at(queue, at)
        return size == PRE_BLANK_SIZE or physical < log_start

    return bisect(first, high, is_before), high


def entry_at(queue: StoredQueue, queue_offset: int) -> tuple[int, int, int]:
    """Physical offset, size and tag code of an entry; (-1, 0, 0) where there is none."""
    data = queue.read(queue_offset, 1)
    if len(data) < ENTRY_BYTES:
        return -1, 0, 0
    entry: tuple[int, int, int] = ENTRY.unpack_from(data)
    return entry


def physical_offsets(entries: bytes, entry_bytes: int) -> list[int]:
    """The physical offsets of entries side by side."""
    count = len(entries) // entry_bytes
    offsets: list[int] = np.ndarray((count,), ">i8", entries, 0, (entry_bytes,)).tolist()
    return offsets


def bisect(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number for which a claim that holds for all lower ones does not."""
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(middle) else (low, middle)
    return low


def without(start: int, end: int, known: Iterable[Span]) -> list[Span]:
    """The stretches of [start, end) that none of the sorted ``known`` ones covers."""
    free: list[Span] = []
    for first, last in known:
        if first > start:
            free.append((start, min(first, end)))
        start = max(start, last)
        if start >= end:
            break
    if start < end:
        free.append((start, end))
    return [(first, last) for first, last in free if first < last]
