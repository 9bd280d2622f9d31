"""Queue entries that the log leads to and that no queue has yet, made on the fly.

A broker that keeps its queues in RocksDB has most of them in memory, and a broker that was killed
may have dispatched less than its log holds. The next start dispatches what lacks; who reads the
store before does the same here, with the store's own ``Dispatcher``, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Final

import numpy as np

from firearrow.errors import DataLost
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.scan import Columns
from firearrow.store.snapshot.batchunits import BatchQueue
from firearrow.store.snapshot.collected import Collected, Units
from firearrow.store.snapshot.entries import Queue, QueueKey

UNDISPATCHED_BYTES_MAX: Final = 4 << 30
"""So much of the log is dispatched on the fly: a few seconds, and 50 bytes of memory a message."""


class EntriesAhead:
    """The entries that a stretch of the log leads to, from ``start`` up to ``end``."""

    def __init__(self, start: int, record_at: int, batch_topics: Collection[str], delay_levels: str) -> None:
        """Begin at a place; the first record from there on is at ``record_at``."""
        # Imported here: with all that dispatch needs, and most stores have nothing undispatched.
        from firearrow.store.snapshot.dispatching import dispatch_to

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
