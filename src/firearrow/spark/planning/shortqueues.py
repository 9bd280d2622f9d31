"""Cut many short queues into tasks together.

Their entries are known, so each step is one of numpy over all of them. A queue costs microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.client.queues import Span
from firearrow.spark.planning.commitlogorder import Wanted
from firearrow.spark.planning.logentries import LogEntries, Part, checksums
from firearrow.store.reading.entries import QueueKey
from firearrow.store.scan import Ints

QUEUE_BYTES: Final = 1 << 16
"""Bytes of the log that a task looks through in the time of opening a queue."""

Mask = npt.NDArray[np.bool_]


class Places(NamedTuple):
    """Queue offsets of entries, and the places and sizes of their records.

    There are no tag codes: they would keep the queue's file mapped.
    """

    queue_offset: Ints
    place: Ints
    size: Ints


class Task(NamedTuple):
    """The parts of queues that a task reads, none of them empty.

    The log may show the entries of the first parts, each of another queue.
    """

    parts: list[Part]
    log: LogEntries | None = None


class _CutParts(NamedTuple):
    """Parts of queues as columns: the numbers of task and queue, the queue offsets, and whether the log can show all
    entries."""

    task: Ints
    queue: Ints
    start: Ints
    end: Ints
    is_shown: Mask

    @property
    def order(self) -> Ints:
        """The parts by tasks; those that the log can show come first."""
        return np.lexsort((~self.is_shown, self.task))

    def numbers(self, order: Ints) -> Ints:
        """The number of each part in its task, by that order."""
        task = self.task[order]
        found = np.empty(len(order), np.int64)
        found[order] = np.arange(len(order)) - task.searchsorted(task)
        return found


class ShortQueues:
    """Queues whose entries are known; each has some."""

    def __init__(self) -> None:
        self._keys: list[QueueKey] = []
        self._spans: list[Span] = []
        self._places: list[Places] = []
        self._are_unlike: list[bool] = []

    def add(self, key: QueueKey, span: Span, places: Places, *, is_unlike: bool) -> None:
        """Add a span of a queue; ``is_unlike`` says that its records are not as its entries: batches, or an LMQ."""
        self._keys.append(key)
        self._spans.append(span)
        self._places.append(places)
        self._are_unlike.append(is_unlike)

    def tasks(self, bounds: Sequence[int]) -> dict[int, Task]:
        """The tasks between some places of the log, by number. Lost messages stay with those before them."""
        if not self._keys:
            return {}
        entries = Places(*map(np.concatenate, zip(*self._places, strict=True)))
        queue = np.repeat(np.arange(len(self._keys)), [len(places.place) for places in self._places])
        task = np.searchsorted(bounds, entries.place, side="right")
        begins = np.append(True, (task[1:] != task[:-1]) | (queue[1:] != queue[:-1])).nonzero()[0]
        parts = self._parts(entries, task, queue, begins)
        found: dict[int, list[Part]] = {}
        rows = parts.order
        for number, row, start, end in zip(*(column[rows].tolist() for column in parts[:4]), strict=True):
            found.setdefault(number, []).append((*self._keys[row], start, end))
        shown = _shown(entries, begins, parts, parts.numbers(rows))
        return {number: Task(of_task, shown.get(number)) for number, of_task in found.items()}

    def _parts(self, entries: Places, task: Ints, queue: Ints, begins: Ints) -> _CutParts:
        """The parts that begin at some rows of all entries."""
        of_queue = queue[begins]
        is_first = np.append(True, of_queue[1:] != of_queue[:-1])
        first, last = np.array(self._spans, np.int64)[of_queue].T
        start = np.where(is_first, first, entries.queue_offset[begins])
        end = np.where(np.append(is_first[1:], True), last, np.append(start[1:], 0))
        falls = (queue[1:] == queue[:-1]) & (entries.place[1:] <= entries.place[:-1])
        are_unlike = np.array(self._are_unlike)
        are_unlike[queue[1:][falls]] = True  # a damaged queue may have several parts in a task
        are_unlike |= len(set(self._keys)) < len(self._keys)  # as may one with several spans
        is_whole = np.diff(begins, append=len(task)) == end - start
        return _CutParts(task[begins], of_queue, start, end, is_whole & ~are_unlike[of_queue])


def _shown(entries: Places, begins: Ints, parts: _CutParts, numbers: Ints) -> dict[int, LogEntries]:
    """The tasks that do better to look through their stretch of the log; parts begin at some rows of the entries."""
    number = np.repeat(numbers, np.diff(begins, append=len(entries.place)))
    checksum = np.add.reduceat(checksums(Wanted(entries.queue_offset, entries.place, entries.size, number)), begins)
    first = np.minimum.reduceat(entries.place, begins)
    last = np.maximum.reduceat(entries.place + entries.size, begins)
    tasks = int(parts.task.max()) + 1
    low, high = np.full(tasks, np.iinfo(np.int64).max), np.zeros(tasks, np.int64)
    total = np.zeros(tasks, np.uint64)
    task = parts.task[parts.is_shown]
    np.minimum.at(low, task, first[parts.is_shown])
    np.maximum.at(high, task, last[parts.is_shown])
    np.add.at(total, task, checksum[parts.is_shown])
    count = np.bincount(task, minlength=tasks)
    return {
        number: LogEntries(int(low[number]), int(high[number]), int(count[number]), int(total[number]))
        for number in count.nonzero()[0].tolist()
        if int(count[number]) * QUEUE_BYTES > int(high[number]) - int(low[number])
    }
