"""Queue entries that the log leads to and that no queue has yet, made on the fly.

A broker that keeps its queues in RocksDB has most of them in memory, and a broker that was killed
may have dispatched less than its log holds. The next start dispatches what lacks; who reads the
store before does the same here, with the store's own ``Dispatcher``, and writes nothing.
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
from firearrow.store.queues import Entries as DispatchedEntries
from firearrow.store.queues import Runs
from firearrow.store.reading.batchqueues import BatchQueue, unit_entries
from firearrow.store.reading.entries import Entries, Queue, QueueKey, Queues, Span
from firearrow.store.reading.filequeues import FileQueue
from firearrow.store.reading.storage import NO_FILES
from firearrow.store.scan import Columns, Ints

UNDISPATCHED_BYTES_MAX: Final = 4 << 30
"""So much of the log is dispatched on the fly: a few seconds, and 50 bytes of memory a message."""


class EntriesAhead:
    """The entries that a stretch of the log leads to, from ``start`` up to ``end``."""

    def __init__(self, start: int, record_at: int, batch_topics: Collection[str], delay_levels: str) -> None:
        """Begin at a place; the first record from there on is at ``record_at``."""
        # Imported here: with all that dispatch needs, and most stores have nothing undispatched.
        from firearrow.store.reading.dispatching import dispatch_to

        self.start = start
        self.end = record_at
        self._kept = Collected()
        self._batch_topics = batch_topics
        self._dispatch = dispatch_to(self._kept.put, batch_topics, delay_levels)

    def is_batch(self, topic: str) -> bool:
        """Tell whether the queues of a topic are of batches."""
        return topic in self._batch_topics

    def take(self, columns: Columns) -> None:
        """Dispatch the next records."""
        self._dispatch(columns)
        self.end = int(columns.physical_offset[-1] + columns.size[-1])

    @property
    def keys(self) -> Collection[QueueKey]:
        """The queues that have some."""
        there = set(np.unique(self._kept.rows()[1]).tolist())
        return [key for key, number in self._kept.numbers.items() if number in there]

    def of(self, key: QueueKey, queue_offset: int = 0) -> Units:
        """The entries of a queue that has those before an offset; as a queue takes them, none is of
        a message before the last one's, and the first message of a topic that was made again takes
        those of the deleted one away."""
        units, numbers = self._kept.rows()
        number = self._kept.numbers.get(key, -1)
        units = units[slice(*numbers.searchsorted((number, number + 1)).tolist())]
        if len(begins := np.flatnonzero(units["queue_offset"] == 0)):
            units = units[begins[-1] :]
        offsets = units["queue_offset"].astype(np.int64)
        chosen = offsets >= queue_offset
        chosen[1:] &= offsets[1:] > np.maximum.accumulate(offsets)[:-1]
        return units[chosen]

    def begin_at(self, start: int) -> None:
        """Let go of the entries of records before a place, if that is behind the first."""
        if start > self.start:
            units, _ = self._kept.rows()
            self._kept.keep(units["physical_offset"] >= start)
            self.start = start

    def require_little(self, root: object, log_end: int) -> None:
        """Raise DataLost where this is more than can be made up for, of a log up to ``log_end``."""
        if self.end - self.start > UNDISPATCHED_BYTES_MAX:
            raise DataLost(
                f"{root}: the bytes {self.start} to {log_end - 1} of the log are not dispatched to "
                f"the queues, and more than {UNDISPATCHED_BYTES_MAX >> 30} GiB are not dispatched "
                "on the fly: the next start of the broker does that"
            )


def dispatched_offset(checkpoint: Checkpoint, queues: Iterator[Queue]) -> int:
    """The log offset before which all is dispatched to queues in files, -1 without any queue.

    That is where the record of some entry begins or ends: the checkpoint names one. To look at
    each queue instead takes a second for some thousands.
    """
    first = next(queues, None)
    if first is None:
        return -1
    if checkpoint.queues_physical_offset > 0:
        return checkpoint.queues_physical_offset + 1
    return max(map(record_end, chain([first], queues)))


def record_end(queue: Queue) -> int:
    """Where the record of the last entry of a queue ends, -1 without one."""
    if isinstance(queue, BatchQueue):
        return queue.record_end
    latest = queue.span[1]
    last = queue.entries(max(latest - 1, 0), latest)
    return int((last.physical_offset + last.size).max(initial=-1))


# --- Queue entries that dispatch makes of records, collected: those of each queue together ---


Units = npt.NDArray[Any]
"""Entries, of whichever kind of queue, as ``batchqueue.UNIT_DTYPE``."""


_NO_RUNS: Final = Runs.side_by_side(())


class Collected:
    """Entries of all queues, in columns: with very many queues each may be of another one."""

    def __init__(self) -> None:
        self.numbers: dict[QueueKey, int] = {}
        self._put: list[tuple[Units, Ints]] = []
        self._sorted = np.empty(0, UNIT_DTYPE), np.empty(0, np.int64)

    def put(self, entries: DispatchedEntries) -> None:
        """Take what a round of dispatch has for the queues."""
        topics, topic, queue_id, start, end = entries.runs
        groups, group = np.unique(topic << 32 | queue_id, return_inverse=True)
        keys = ((topics[found >> 32], found & 0xFFFFFFFF) for found in groups.tolist())
        numbers = [self.numbers.setdefault(key, len(self.numbers)) for key in keys]
        number = np.repeat(np.array(numbers, np.int64)[group], end - start)
        self._put.append((units_of(entries, 0, len(number)), number))

    def rows(self) -> tuple[Units, Ints]:
        """All entries by queues, those of each in the order of the log, and their queues'
        numbers."""
        if self._put:
            units, number = zip(self._sorted, *self._put, strict=True)
            numbers = np.concatenate(number)
            order = numbers.argsort(kind="stable")
            self._sorted = np.concatenate(units)[order], numbers[order]
            self._put.clear()
        return self._sorted

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        """Let go of the other entries."""
        units, number = self._sorted
        self._sorted = units[rows], number[rows]

    def entries(self) -> DispatchedEntries:
        """All of them as dispatch has them; those of a queue that follow each other are one run."""
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


# --- The queues of a store together with what the log has for them and they do not have yet ---
#
#  Queues in RocksDB are in a broker's memory until it flushes them, and a broker that was killed may have left
# records behind that no queue knows. The next start dispatches these; a reader does so on the fly
# (``firearrow.store.reading.undispatched``) and lays the entries over the stored ones.
#
# A broker may go on meanwhile. So the end of the log is looked for once, and of what is dispatched here a queue
# takes only what it has not got by the time it is opened.


class Extent(NamedTuple):
    """Physical offsets from the beginning of a record to the end of one."""

    start: int
    end: int


NO_EXTENT: Final = Extent(0, 0)


class QueueAndAhead:
    """A queue with entries of usual kind, and what comes behind it; none of it is stored yet."""

    def __init__(self, stored: Queue, units: Units, *, begins: bool) -> None:
        """``begins`` says that nothing is missing before the first of the units, if nothing is
        stored."""
        self._stored = stored
        self._end = stored.span[1]
        units = units[units["queue_offset"] >= self._end]
        self._ahead = unit_entries(units)
        self._first = int(units["queue_offset"][0]) if begins and len(units) else 0

    @property
    def span(self) -> Span:
        """What it holds, whatever the log does."""
        return self.span_from(0)

    def span_from(self, log_start: int) -> Span:
        """What it holds of a log that begins at ``log_start``."""
        stored = self._stored.span_from(log_start)
        if not len(self._ahead.size):
            return stored
        first = stored[0] if self._end else self._first
        return first, int(self._ahead.queue_offset[-1]) + 1

    def first_at_or_after(self, physical_offset: int, start: int, end: int) -> int:
        """The first queue offset in ``[start, end]`` whose record is there or later."""
        border = min(end, self._end)
        if start < border:
            found = self._stored.first_at_or_after(physical_offset, start, border)
            if found < border:
                return found
        row = int(self._ahead.physical_offset.searchsorted(physical_offset))
        offsets = self._ahead.queue_offset
        return min(max(int(offsets[row]) if row < len(offsets) else end, start), end)

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of queue offsets in ``[start, end)``, or of every so many of them."""
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
        return Entries(*map(np.concatenate, zip(stored, ahead, strict=True)))


class QueuesAndAhead:
    """Implements ``Queues``: what is stored, and behind it what the log leads to."""

    def __init__(self, stored: Queues, ahead: EntriesAhead, log_start: int) -> None:
        self._stored = stored
        self._ahead = ahead
        self._is_whole = ahead.start <= log_start

    def keys_of(self, topics: Collection[str] | None) -> Iterator[QueueKey]:
        """Topic and queue id of each, or of those of some topics, in order."""
        new = (key for key in self._ahead.keys if topics is None or key[0] in topics)
        yield from sorted({*self._stored.keys_of(topics), *new})

    def open(self, key: QueueKey) -> Queue:
        """One of them; an empty one if there is none of that name."""
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
        """The stored entries of a queue; none counts if its first message comes once more behind
        it, as the topic was made again."""
        stored = self._stored.open(key)
        if not len(units) or int(units["queue_offset"][0]):
            return stored
        if int(units["physical_offset"][0]) < record_end(stored):
            return stored
        return BatchQueue(NO_FILES) if isinstance(stored, BatchQueue) else FileQueue(NO_FILES)

    def extent(self, parts: Iterable[tuple[str, int, int, int]]) -> Extent | None:
        """The stretch of the log with the entries of ranges of queues, as far as these are not
        stored."""
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
