"""Entries of ConsumeQueues, in files or in a database.

Offline tools read entries side by side, each with ``entry_bytes`` bytes: the 20 bytes of
``firearrow.store.consumequeue`` in a file, the 28 bytes of ``rocksformat`` in a database, which begin with the same 20.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from firearrow.store.queues import ENTRY, ENTRY_BYTES
from firearrow.store.scan import Ints

PRE_BLANK_SIZE: Final = 0x7FFFFFFF
"""The size in an entry that stands before a queue's first message."""
QUEUE_ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])

assert QUEUE_ENTRY.itemsize == ENTRY_BYTES, "columns and single entries have one format"

QueueKey = tuple[str, int]
Span = tuple[int, int]
"""From a number to before another."""


class Entries(NamedTuple):
    """Entries of one queue in order of their queue offsets, which may have gaps."""

    queue_offset: Ints
    physical_offset: Ints
    size: Ints
    tag_code: npt.NDArray[Any]  # as stored: big-endian

    def take(self, chosen: npt.NDArray[np.bool_] | Ints) -> Entries:
        """The chosen entries."""
        return Entries(*(column[chosen] for column in self))

    def counting(self, end: int) -> npt.NDArray[np.bool_]:
        """Tell which entries before a queue offset count.

        The entry of a lost message repeats the next one, so the entry at that offset must be among these.
        """
        found = self.queue_offset < end
        found[:-1] &= self.physical_offset[:-1] != self.physical_offset[1:]
        return found


class Queue(Protocol):
    """One queue of one topic, as consumers see it."""

    @property
    def span(self) -> Span:
        """The queue offsets of the entries, as a broker would find them; some may be missing at the begin."""

    def span_from(self, log_start: int) -> Span:
        """The queue offsets whose records are in a log that begins at ``log_start``."""

    def first_at_or_after(self, physical_offset: int, start: int, end: int) -> int:
        """The first queue offset in ``[start, end]`` whose record is at a physical offset or after it."""

    def place(self, queue_offset: int) -> int:
        """The physical offset of the record of a message; -1 without an entry."""

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of queue offsets in ``[start, end)``, or every ``step``-th of them.

        A record of several messages counts at the first of them.
        """


class Queues(Protocol):
    """All queues of a store."""

    def keys_of(self, topics: Collection[str] | None) -> Iterator[QueueKey]:
        """Topic and queue id of each queue, or of the queues of some topics, in order."""

    def open(self, key: QueueKey) -> Queue:
        """A queue; an empty one if none has that name."""


class StoredQueue(Queue, Protocol):
    """One queue of one topic, as it is stored."""

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry in ``read``."""

    @property
    def is_there(self) -> bool:
        """Tell whether it has files or rows."""

    @property
    def disk_bytes(self) -> int:
        """Bytes of its entries."""

    @property
    def end(self) -> int:
        """The queue offset after the last existing entry."""

    def read(self, queue_offset: int, count: int) -> bytes:
        """Some entries; fewer where the next is missing, or zeros where none is written."""

    def others(self, known: list[Span]) -> Iterator[Span]:
        """Stretches of queue offsets, outside of some sorted ones, that have entries or room."""

    def all(self) -> Iterator[tuple[Ints, npt.NDArray[Any]]]:
        """Queue offsets and columns of all existing entries, and perhaps of empty room, step by step.

        A record of several messages has one entry, at its first message.
        """


def entry_columns(queue_offset: Ints, entries: npt.NDArray[Any]) -> Entries:
    """Entries as columns, without entries for no message."""
    assert len(queue_offset) == len(entries), "each entry has its queue offset"
    found = Entries(
        queue_offset, entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64), entries["tag_code"]
    )
    real = (found.size > 0) & (found.size != PRE_BLANK_SIZE)
    return found if real.all() else found.take(real)


def queue_range(queue: StoredQueue | None, log_start: int) -> Span:
    """The first queue offset that the log still holds, and the offset after the last entry."""
    return (0, 0) if queue is None else queue.span_from(log_start)


def entry_at(queue: StoredQueue, queue_offset: int) -> tuple[int, int, int]:
    """Physical offset, size and tag code of an entry; (-1, 0, 0) without one."""
    data = queue.read(queue_offset, 1)
    assert len(data) <= queue.entry_bytes, "a queue reads no more entries than requested"
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
    """The first number that breaks a claim, which holds for all lower numbers."""
    assert low <= high, "the numbers form a range"
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(middle) else (low, middle)
    return low


def without(start: int, end: int, known: Iterable[Span]) -> list[Span]:
    """The parts of [start, end) outside of the sorted ``known`` stretches."""
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
