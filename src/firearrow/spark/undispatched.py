"""The queues of a store together with what the log has for them and they do not have yet.

Queues in RocksDB are in a broker's memory until it flushes them, and a broker that was killed may
have left records behind that no queue knows. The next start dispatches these; a reader does so on
the fly (``firearrow.store.snapshot.undispatched``) and lays the entries over the stored ones.

A broker may go on meanwhile. So the end of the log is looked for once, and of what is dispatched
here a queue takes only what it has not got by the time it is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from firearrow.spark.queueentries import Queues
from firearrow.store.snapshot.batchunits import BatchQueue, unit_entries
from firearrow.store.snapshot.collected import Units
from firearrow.store.snapshot.entries import Entries, Queue, QueueKey, Span
from firearrow.store.snapshot.entryfiles import FileQueue
from firearrow.store.snapshot.files import NO_FILES
from firearrow.store.snapshot.undispatched import EntriesAhead, record_end


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
