"""Queue entries that dispatch makes of records, collected: those of each queue together."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.store.batchqueue import UNIT_DTYPE, units_of
from firearrow.store.queues import Entries, Runs
from firearrow.store.scan import Ints
from firearrow.store.snapshot.entries import QueueKey

Units = npt.NDArray[Any]
"""Entries, of whichever kind of queue, as ``batchqueue.UNIT_DTYPE``."""


_NO_RUNS: Final = Runs.side_by_side(())


class Collected:
    """Entries of all queues, in columns: with very many queues each may be of another one."""

    def __init__(self) -> None:
        self.numbers: dict[QueueKey, int] = {}
        self._put: list[tuple[Units, Ints]] = []
        self._sorted = np.empty(0, UNIT_DTYPE), np.empty(0, np.int64)

    def put(self, entries: Entries) -> None:
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

    def entries(self) -> Entries:
        """All of them as dispatch has them; those of a queue that follow each other are one run."""
        units, numbers = self.rows()
        messages = units["messages"].astype(np.int64)
        names: dict[str, int] = {}
        keys = [names.setdefault(name, len(names)) << 32 | number for name, number in self.numbers]
        group = np.array(keys, np.int64)[numbers]
        queue_offset = units["queue_offset"].astype(np.int64)
        several = None if (messages == 1).all() else messages
        return Entries(
            units["physical_offset"].astype(np.int64),
            units["size"].astype(np.int64),
            units["tag_code"].astype(np.int64),
            units["store_ms"].astype(np.int64),
            group & 0xFFFFFFFF,
            queue_offset,
            Runs.of(group, queue_offset, list(names), several) if len(units) else _NO_RUNS,
            several,
        )
