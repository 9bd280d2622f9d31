"""Queue entries that the log leads to and that no queue has yet, made on the fly.

A broker that keeps its queues in RocksDB has most of them in memory until it flushes them. A killed broker may have
dispatched less than its log holds. The next start dispatches the rest. A reader does the same before that, with the
store's own ``Dispatcher``, and writes nothing: it lays the entries over the stored queues.

A broker may go on in the meantime. So the end of the log is looked for once, and a queue takes only entries that it has
not got when it is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.errors import DataLost
from firearrow.store.batchqueue import UNIT_DTYPE, units_of
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.queues import DispatchedEntries, Runs
from firearrow.store.reading.batchqueues import BatchQueue, unit_entries
from firearrow.store.reading.entries import Entries, Queue, QueueKey, Queues, Span
from firearrow.store.reading.filequeues import FileQueue
from firearrow.store.reading.storage import NO_FILES
from firearrow.store.scan import Columns, Ints

UNDISPATCHED_BYTES_MAX: Final = 4 << 30
"""Limit of the log that is dispatched on the fly: a few seconds, and 50 bytes of memory a message."""


class EntriesAhead:
    """The entries that a stretch of the log leads to, from ``start`` up to ``end``."""

    def __init__(self, start: int, record_at: int, batch_topics: Collection[str], delay_levels: str) -> None:
        """Begin at a place; the first record from there on is at ``record_at``."""
        # Imported here: dispatch needs many modules, and most stores have nothing undispatched.
        from firearrow.store.reading.dispatching import dispatch_to

        assert start <= record_at, "the first record is at the begin or after it"
        self.start: int = start
        self.end: int = record_at
        self._kept = Collected()
        self._batch_topics = batch_topics
        self._dispatch = dispatch_to(self._kept.put, batch_topics, delay_levels)

    def is_batch(self, topic: str) -> bool:
        """Tell whether the queues of a topic are of batches."""
        return topic in self._batch_topics

    def take(self, columns: Columns) -> None:
        """Dispatch the next records."""
        assert len(columns), "a run has records"
        self._dispatch(columns)
        self.end = int(columns.physical_offset[-1] + columns.size[-1])

    @property
    def last_offsets(self) -> dict[QueueKey, int]:
        """The queues that have such entries, with the highest queue offset of these."""
        units, numbers = self._kept.rows()
        if not len(units):
            return {}
        there, begins = np.unique(numbers, return_index=True)
        highest = dict(zip(there.tolist(), np.maximum.reduceat(units["queue_offset"], begins).tolist(), strict=True))
        return {key: highest[number] for key, number in self._kept.numbers.items() if number in highest}

    def of(self, key: QueueKey, queue_offset: int = 0) -> Units:
        """The entries of a queue from a queue offset on.

        As a queue takes them, no entry is of a message before the last one's. The first message of a topic that was
        made again removes the entries of the deleted topic.
        """
        if (number := self._kept.numbers.get(key)) is None:
            return _NO_UNITS
        units, numbers = self._kept.rows()
        units = units[slice(*numbers.searchsorted((number, number + 1)).tolist())]
        if len(begins := np.flatnonzero(units["queue_offset"] == 0)):
            units = units[begins[-1] :]
        offsets = units["queue_offset"].astype(np.int64)
        chosen = offsets >= queue_offset
        chosen[1:] &= offsets[1:] > np.maximum.accumulate(offsets)[:-1]
        found = units[chosen]
        assert len(found) < 2 or found["queue_offset"][0] < found["queue_offset"][-1], "queue offsets only rise"
        return found

    def begin_at(self, start: int) -> None:
        """Drop the entries of records before a place, if that is after the begin."""
        if start > self.start:
            units, _ = self._kept.rows()
            self._kept.keep(units["physical_offset"] >= start)
            self.start = start

    def require_little(self, root: object, log_end: int) -> None:
        """Raise DataLost where the undispatched part of a log up to ``log_end`` is too large to dispatch on the fly."""
        if self.end - self.start > UNDISPATCHED_BYTES_MAX:
            raise DataLost(
                f"{root}: the bytes {self.start} to {log_end - 1} of the log are not dispatched to "
                f"the queues, and more than {UNDISPATCHED_BYTES_MAX >> 30} GiB are not dispatched "
                "on the fly: the next start of the broker does that"
            )


def dispatched_offset(checkpoint: Checkpoint, queues: Iterator[Queue]) -> int:
    """The log offset before which everything is dispatched to queues in files, -1 without any queue.

    The record of some entry begins or ends there: the checkpoint names one. Looking at each queue takes a second for
    some thousands of queues.
    """
    first = next(queues, None)
    if first is None:
        return -1
    if checkpoint.queues_physical_offset > 0:
        return checkpoint.queues_physical_offset + 1
    return max(map(record_end, chain([first], queues)))


def record_end(queue: Queue) -> int:
    """End of the record of the last entry of a queue, -1 without one."""
    if isinstance(queue, BatchQueue):
        return queue.record_end
    latest = queue.span[1]
    last = queue.entries(max(latest - 1, 0), latest)
    return int((last.physical_offset + last.size).max(initial=-1))


# --- collecting ---


Units = npt.NDArray[Any]
"""Entries of any kind of queue as ``batchqueue.UNIT_DTYPE``."""


_NO_UNITS: Final = np.empty(0, UNIT_DTYPE)
_NO_RUNS: Final = Runs.side_by_side(())


class Collected:
    """Entries that dispatch makes, of all queues, in columns: with very many queues each entry may be of another
    queue.
    """

    def __init__(self) -> None:
        self.numbers: dict[QueueKey, int] = {}
        self._put: list[tuple[Units, Ints]] = []
        self._sorted = np.empty(0, UNIT_DTYPE), np.empty(0, np.int64)

    def put(self, entries: DispatchedEntries) -> None:
        """Take the entries of one round of dispatch."""
        topics, topic, queue_id, start, end = entries.runs
        groups, group = np.unique(topic << 32 | queue_id, return_inverse=True)
        keys = ((topics[found >> 32], found & 0xFFFFFFFF) for found in groups.tolist())
        numbers = [self.numbers.setdefault(key, len(self.numbers)) for key in keys]
        number = np.repeat(np.array(numbers, np.int64)[group], end - start)
        assert len(number) == len(entries.size), "each entry is in one run"
        self._put.append((units_of(entries, 0, len(number)), number))

    def rows(self) -> tuple[Units, Ints]:
        """All entries in the order of their queues, then of the log, and the numbers of their queues."""
        if self._put:
            units, number = zip(self._sorted, *self._put, strict=True)
            numbers = np.concatenate(number)
            order = numbers.argsort(kind="stable")
            self._sorted = np.concatenate(units)[order], numbers[order]
            self._put.clear()
        return self._sorted

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        """Drop all entries but the chosen ones."""
        assert not self._put, "all entries are sorted before some are chosen"
        units, number = self._sorted
        self._sorted = units[rows], number[rows]

    def entries(self) -> DispatchedEntries:
        """All entries as dispatch has them; consecutive entries of a queue are one run."""
        units, numbers = self.rows()
        messages = units["messages"].astype(np.int64)
        names: dict[str, int] = {}
        keys = [names.setdefault(name, len(names)) << 32 | number for name, number in self.numbers]
        group = np.array(keys, np.int64)[numbers]
        queue_offset = units["queue_offset"].astype(np.int64)
        several = None if (messages == 1).all() else messages
        return DispatchedEntries(
            units["physical_offset"].astype(np.int64),
            units["size"].astype(np.int64),
            units["tag_code"].astype(np.int64),
            units["store_ms"].astype(np.int64),
            group & 0xFFFFFFFF,
            queue_offset,
            Runs.of(group, queue_offset, list(names), several) if len(units) else _NO_RUNS,
            several,
        )


# --- the overlay ---


class Extent(NamedTuple):
    """Physical offsets from the beginning of a record to the end of one."""

    start: int
    end: int


NO_EXTENT: Final = Extent(0, 0)


class QueueAndAhead:
    """A queue with usual entries, and entries after it that are not stored yet."""

    def __init__(self, stored: Queue, units: Units, *, begins: bool) -> None:
        """Lay units over a stored queue; ``begins`` says that, without stored entries, nothing is missing before the
        first.
        """
        self._stored = stored
        self._end = stored.span[1]
        units = units[units["queue_offset"] >= self._end]
        self._ahead = unit_entries(units)
        self._first = int(units["queue_offset"][0]) if begins and len(units) else 0

    @property
    def span(self) -> Span:
        """The queue offsets of both, wherever the log begins."""
        return self.span_from(0)

    def span_from(self, log_start: int) -> Span:
        """The queue offsets whose records are in a log that begins at ``log_start``."""
        stored = self._stored.span_from(log_start)
        if not len(self._ahead.size):
            return stored
        first = stored[0] if self._end else self._first
        return first, int(self._ahead.queue_offset[-1]) + 1

    def first_at_or_after(self, physical_offset: int, start: int, end: int) -> int:
        """The first queue offset in ``[start, end]`` whose record is at a physical offset or after it."""
        border = min(end, self._end)
        if start < border:
            found = self._stored.first_at_or_after(physical_offset, start, border)
            if found < border:
                return found
        row = int(self._ahead.physical_offset.searchsorted(physical_offset))
        offsets = self._ahead.queue_offset
        return min(max(int(offsets[row]) if row < len(offsets) else end, start), end)

    def place(self, queue_offset: int) -> int:
        """The physical offset of the record of a message; -1 without an entry."""
        if queue_offset < self._end:
            return self._stored.place(queue_offset)
        found = self.entries(queue_offset, queue_offset + 1).physical_offset
        return int(found[0]) if len(found) else -1

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of queue offsets in ``[start, end)``, or every ``step``-th of them."""
        offsets = self._ahead.queue_offset
        rows = slice(*offsets.searchsorted((start, end)).tolist())
        ahead = Entries(*(column[rows] for column in self._ahead))
        if step > 1:
            ahead = ahead.take((ahead.queue_offset - start) % step == 0)
        if start >= self._end:
            return ahead
        stored = self._stored.entries(start, min(end, self._end), step)
        if not len(ahead.size):
            return stored
        assert not len(stored.size) or stored.queue_offset[-1] < ahead.queue_offset[0], "stored entries come first"
        return Entries(*map(np.concatenate, zip(stored, ahead, strict=True)))


class QueuesAndAhead:
    """Implements ``Queues``: the stored queues, and after them the entries that the log leads to."""

    def __init__(self, stored: Queues, ahead: EntriesAhead, log_start: int) -> None:
        self._stored = stored
        self._ahead = ahead
        self._is_whole = ahead.start <= log_start

    def keys_of(self, topics: Collection[str] | None) -> Iterator[QueueKey]:
        """Topic and queue id of each queue, or of the queues of some topics, in order."""
        new = (key for key in self._ahead.last_offsets if topics is None or key[0] in topics)
        yield from sorted({*self._stored.keys_of(topics), *new})

    def open(self, key: QueueKey) -> Queue:
        """A queue; an empty one if none has that name."""
        units = self._ahead.of(key)
        stored = self._open(key, units)
        if not len(units):
            return stored
        if isinstance(stored, BatchQueue):
            return stored.followed_by(units)
        if self._ahead.is_batch(key[0]):
            return BatchQueue(NO_FILES, units)
        return QueueAndAhead(stored, units, begins=self._is_whole)

    def _open(self, key: QueueKey, units: Units) -> Queue:
        """The stored entries of a queue; none counts if its first message comes again after it, as the topic was made
        again.
        """
        stored = self._stored.open(key)
        if not len(units) or int(units["queue_offset"][0]):
            return stored
        if int(units["physical_offset"][0]) < record_end(stored):
            return stored
        return BatchQueue(NO_FILES) if isinstance(stored, BatchQueue) else FileQueue(NO_FILES)

    def extent(self, parts: Iterable[tuple[str, int, int, int]]) -> Extent | None:
        """The stretch of the log with those entries of ranges of queues that are not stored."""
        found: list[Extent] = []
        for topic, queue_id, start, end in parts:
            units = self._ahead.of((topic, queue_id))
            behind = self._open((topic, queue_id), units).span[1] if len(units) else 0
            offsets = units["queue_offset"].astype(np.int64)
            units = units[(offsets >= behind) & (offsets + units["messages"] > start) & (offsets < end)]
            if len(units):
                first, last = units[0], units[-1]
                last_end = int(last["physical_offset"]) + int(last["size"])
                found.append(Extent(int(first["physical_offset"]), last_end))
        if not found:
            return None
        return Extent(min(one.start for one in found), max(one.end for one in found))
