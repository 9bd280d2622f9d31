"""Queue entries that the log leads to and that no queue has yet, made on the fly.

A broker that keeps its queues in RocksDB has most of them in memory, and a broker that was killed
may have dispatched less than its log holds. The next start dispatches what lacks; who reads the
store before does the same here, with the store's own ``Dispatcher``, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from firearrow.store.scan import Columns
from firearrow.store.snapshot.collected import Collected, Units
from firearrow.store.snapshot.entries import QueueKey

UNDISPATCHED_BYTES_MAX: Final = 4 << 30
"""So much of the log is dispatched on the fly: a few seconds, and 50 bytes of memory a message."""


class EntriesAhead:
    """The entries of records that ``take`` is called with, in the order of the log."""

    def __init__(self, batch_topics: Collection[str], delay_levels: str) -> None:
        # Imported here: with all that dispatch needs, and most stores have nothing undispatched.
        from firearrow.store.snapshot.dispatching import dispatch_to

        self._kept = Collected()
        self._batch_topics = batch_topics
        self._dispatch = dispatch_to(self._kept.put, batch_topics, delay_levels)

    def is_batch(self, topic: str) -> bool:
        """Whether the queues of a topic are of batches."""
        return topic in self._batch_topics

    def take(self, columns: Columns) -> None:
        """Dispatch some records."""
        self._dispatch(columns)

    @property
    def keys(self) -> Collection[QueueKey]:
        """The queues that have some."""
        there = set(np.unique(self._kept.rows()[1]).tolist())
        return [key for key, number in self._kept.numbers.items() if number in there]

    def of(self, key: QueueKey, queue_offset: int = 0) -> Units:
        """The entries of a queue that has those before an offset; as a queue takes them, none is of
        a message before the last one's."""
        units, numbers = self._kept.rows()
        number = self._kept.numbers.get(key, -1)
        units = units[slice(*numbers.searchsorted((number, number + 1)).tolist())]
        offsets = units["queue_offset"].astype(np.int64)
        chosen = offsets >= queue_offset
        chosen[1:] &= offsets[1:] > np.maximum.accumulate(offsets)[:-1]
        return units[chosen]

    def forget_before(self, physical_offset: int) -> None:
        """Let go of the entries of records before a place: the queues have them now."""
        units, _ = self._kept.rows()
        self._kept.keep(units["physical_offset"] >= physical_offset)


def too_much(root: object, start: int, end: int) -> str:
    """What is wrong where more of the log is not dispatched than can be made up for."""
    return (
        f"{root}: the bytes {start} to {end - 1} of the log are not dispatched to the queues, and "
        f"more than {UNDISPATCHED_BYTES_MAX >> 30} GiB are not dispatched on the fly: the next "
        "start of the broker does that"
    )
