"""Queue entries that the log leads to and that no queue has yet, made on the fly.

A broker that keeps its queues in RocksDB has most of them in memory, and a broker that was killed
may have dispatched less than its log holds. The next start dispatches what lacks; who reads the
store before does the same here, with the store's own ``Dispatcher``, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.store.batchqueue import UNIT_DTYPE, units_of
from firearrow.store.leftout import Key
from firearrow.store.queues import Entries
from firearrow.store.scan import Columns, Ints

UNDISPATCHED_BYTES_MAX: Final = 4 << 30
"""So much of the log is dispatched on the fly: a few seconds, and 50 bytes of memory a message."""

Units = npt.NDArray[Any]
"""Entries of one queue, of whichever kind, as ``batchqueue.UNIT_DTYPE``."""


class _Kept:
    """Entries of all queues, in columns: with very many queues each may be of another one."""

    def __init__(self) -> None:
        self.numbers: dict[Key, int] = {}
        self._put: list[tuple[Units, Ints]] = []
        self._sorted = np.empty(0, UNIT_DTYPE), np.empty(0, np.int64)

    def put(self, entries: Entries) -> None:
        """Keep entries."""
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


class EntriesAhead:
    """The entries of records that ``take`` is called with, in the order of the log."""

    def __init__(self, batch_topics: Collection[str], delay_levels: str) -> None:
        # Imported here: with all that dispatch needs, and most stores have nothing undispatched.
        from firearrow.store.snapshot.dispatching import dispatch_to

        self._kept = _Kept()
        self._batch_topics = batch_topics
        self._dispatch = dispatch_to(self._kept.put, batch_topics, delay_levels)

    def is_batch(self, topic: str) -> bool:
        """Whether the queues of a topic are of batches."""
        return topic in self._batch_topics

    def take(self, columns: Columns) -> None:
        """Dispatch some records."""
        self._dispatch(columns)

    @property
    def keys(self) -> Collection[Key]:
        """The queues that have some."""
        there = set(np.unique(self._kept.rows()[1]).tolist())
        return [key for key, number in self._kept.numbers.items() if number in there]

    def of(self, key: Key, queue_offset: int = 0) -> Units:
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
