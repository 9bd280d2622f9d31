"""Queue entries that the log leads to and that no queue has yet, made on the fly.

A broker that keeps its queues in RocksDB has most of them in memory, and a broker that was killed
may have dispatched less than its log holds. The next start dispatches what lacks; who reads the
store before does the same here, with the store's own ``Dispatcher``, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.errors import StoreError
from firearrow.store.batchqueue import UNIT_DTYPE, units_of
from firearrow.store.delays import DelayLevels
from firearrow.store.dispatch import Dispatcher
from firearrow.store.offline.compare import LOG_ELSEWHERE
from firearrow.store.offline.stored import QueueKey, entry_at
from firearrow.store.offline.storedrows import RocksQueues
from firearrow.store.offline.view import StoreView
from firearrow.store.offline.walk import Run, walk_file
from firearrow.store.queues import Entries, OnArrivals
from firearrow.store.scan import Columns

UNDISPATCHED_BYTES_MAX: Final = 4 << 30
"""So much of the log is dispatched on the fly: a few seconds, and 50 bytes of memory a message."""

Units = npt.NDArray[Any]
"""Entries of one queue, of whichever kind, as ``batchqueue.UNIT_DTYPE``."""


class _Queues:
    """Takes the place of all queues, and keeps what is put for each."""

    def __init__(self, batch_topics: Collection[str]) -> None:
        self.batch_topics = batch_topics
        self.parts: dict[QueueKey, list[Units]] = {}

    def is_batch(self, topic: str) -> bool:
        """Whether the queues of a topic are of batches."""
        return topic in self.batch_topics

    def put(self, entries: Entries, on_arrivals: OnArrivals, *, complete: bool = False) -> None:
        """Keep entries; nobody is told of arrivals."""
        for run in entries.each_run():
            parts = self.parts.setdefault((run.topic, run.queue_id), [])
            parts.append(units_of(entries, run.start, run.end))


class EntriesAhead:
    """The entries of records that ``take`` is called with, in the order of the log."""

    def __init__(self, batch_topics: Collection[str], delay_levels: str) -> None:
        self._queues = _Queues(batch_topics)
        self._parts = self._queues.parts
        self.is_batch = self._queues.is_batch
        self._dispatcher = Dispatcher(
            LOG_ELSEWHERE,
            self._queues,
            None,
            DelayLevels(delay_levels),
            lambda arrived: None,
            light=True,
        )

    def take(self, columns: Columns) -> None:
        """Dispatch some records."""
        self._dispatcher.dispatch(columns)

    @property
    def keys(self) -> Collection[QueueKey]:
        """The queues that have some."""
        return self._parts.keys()

    def of(self, key: QueueKey, queue_offset: int = 0) -> Units:
        """The entries of a queue that has those before an offset; as a queue takes them, none is of
        a message before the last one's."""
        parts = self._parts.get(key)
        if parts is None:
            return np.empty(0, UNIT_DTYPE)
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts)]
        units = parts[0][parts[0]["queue_offset"] >= queue_offset]
        offsets = units["queue_offset"].astype(np.int64)
        rising = np.append(True, offsets[1:] > np.maximum.accumulate(offsets)[:-1])[: len(units)]
        return units if rising.all() else units[rising]

    def forget_before(self, physical_offset: int) -> None:
        """Let go of the entries of records before a place: the queues have them now."""
        for key, parts in list(self._parts.items()):
            kept = [part[part["physical_offset"] >= physical_offset] for part in parts]
            self._parts[key] = [part for part in kept if len(part)]
            if not self._parts[key]:
                del self._parts[key]


def too_much(root: object, start: int, end: int) -> str:
    """What is wrong where more of the log is not dispatched than can be made up for."""
    return (
        f"{root}: the bytes {start} to {end - 1} of the log are not dispatched to the queues, and "
        f"more than {UNDISPATCHED_BYTES_MAX >> 30} GiB are not dispatched on the fly: the next "
        "start of the broker does that"
    )


def entries_ahead(view: StoreView) -> EntriesAhead:
    """What the queues of a store lack that was not closed, or whose queues are in RocksDB.

    Raises StoreError where that is too much.
    """
    found = EntriesAhead(view.batch_topics, view.layout.delay_levels)
    queues = view.queues
    if isinstance(queues, RocksQueues):
        start = max(queues.dispatched_offset, view.log_start)
    elif view.clean:
        return found
    else:
        start = max(_dispatched_end(view), view.log_start)
    for columns in _records(view, start):
        if int(columns.physical_offset[-1]) - start > UNDISPATCHED_BYTES_MAX:
            raise StoreError(too_much(view.root, start, view.log.files[-1].end))
        found.take(columns)
    return found


def _dispatched_end(view: StoreView) -> int:
    """Where the last record begins that a queue in files has; those before are dispatched."""
    queues = view.queues.values()
    return max((entry_at(queue, queue.span[1] - 1)[0] for queue in queues), default=0)


def _records(view: StoreView, start: int) -> Iterator[Columns]:
    for file in view.log.files:
        if file.end <= start:
            continue
        for part in walk_file(view, file, max(start - file.base, 0)):
            if isinstance(part, Run):
                yield part.columns
