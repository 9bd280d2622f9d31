"""Cut many short queues into tasks together.

Their entries are known, so each step is one of numpy over all of them. A queue costs microseconds. A task of very many
of them gets their entries along, because to open a queue takes as long as to carry a hundred entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.client.queues import Span
from firearrow.spark.planning.commitlogorder import Wanted
from firearrow.store.reading.entries import QueueKey
from firearrow.store.scan import Ints

OPENING: Final = 100
"""Entries that a task can carry in the time of opening a queue."""
CARRIED_MAX: Final = 120_000
"""Entries that a task may carry: Spark warns of tasks above 1,000 KiB, of which 10,000 parts take a quarter."""

Part = tuple[str, int, int, int]
"""Topic, queue id, first queue offset, and the queue offset after the last."""

Mask = npt.NDArray[np.bool_]


class Places(NamedTuple):
    """Queue offsets of entries, and the places and sizes of their records.

    There are no tag codes: they would keep the queue's file mapped.
    """

    queue_offset: Ints
    place: Ints
    size: Ints


class CarriedEntries(NamedTuple):
    """The entries of the first ``parts`` of a task, one for each queue offset.

    Places count from ``first`` on. Places and sizes are the narrowest integers that hold them.
    """

    parts: int
    first: int
    place: npt.NDArray[Any]
    size: npt.NDArray[Any]

    def unpacked(self, parts: Sequence[Part]) -> Wanted:
        """The entries, by the parts of the task."""
        start, end = np.array([part[2:] for part in parts[: self.parts]], np.int64).T
        number = np.repeat(np.arange(self.parts), end - start)
        queue_offset = np.arange(len(number)) + (end - (end - start).cumsum())[number]
        return Wanted(queue_offset, self.place.astype(np.int64) + self.first, self.size.astype(np.int64), number)


class Task(NamedTuple):
    """The parts of queues that a task reads, none of them empty, and maybe the entries of the first of them."""

    parts: list[Part]
    carried: CarriedEntries | None = None


class _CutParts(NamedTuple):
    """Parts of queues as columns: the numbers of task and queue, the queue offsets, the row of the first entry, the
    number of entries, and whether each queue offset has its own."""

    task: Ints
    queue: Ints
    start: Ints
    end: Ints
    row: Ints
    entries: Ints
    is_whole: Mask

    def take(self, rows: Ints | Mask) -> _CutParts:
        """The chosen parts."""
        task, queue, start, end, row, entries, is_whole = self
        return _CutParts(task[rows], queue[rows], start[rows], end[rows], row[rows], entries[rows], is_whole[rows])


class ShortQueues:
    """Queues whose entries are known; each has some."""

    def __init__(self) -> None:
        self._keys: list[QueueKey] = []
        self._spans: list[Span] = []
        self._places: list[Places] = []
        self._are_unlike: list[bool] = []

    def add(self, key: QueueKey, span: Span, places: Places, *, is_unlike: bool) -> None:
        """Add a span of a queue; ``is_unlike`` says that its entries do not stand for one message each."""
        self._keys.append(key)
        self._spans.append(span)
        self._places.append(places)
        self._are_unlike.append(is_unlike)

    def tasks(self, bounds: Sequence[int]) -> dict[int, Task]:
        """The tasks between some places of the log, by number. Lost messages stay with those before them."""
        if not self._keys:
            return {}
        entries = Places(*map(np.concatenate, zip(*self._places, strict=True)))
        parts = self._parts(entries, np.searchsorted(bounds, entries.place, side="right"))
        found: dict[int, list[Part]] = {}
        for number, queue, start, end in zip(*(column.tolist() for column in parts[:4]), strict=True):
            found.setdefault(number, []).append((*self._keys[queue], start, end))
        carried = dict(_carried(entries, parts.take(parts.is_whole)))
        return {number: Task(of_task, carried.get(number)) for number, of_task in found.items()}

    def _parts(self, entries: Places, task: Ints) -> _CutParts:
        """The parts by tasks, those with an entry for each offset first; ``task`` is the number for each entry."""
        queue = np.repeat(np.arange(len(self._keys)), [len(places.place) for places in self._places])
        row = np.append(True, (task[1:] != task[:-1]) | (queue[1:] != queue[:-1])).nonzero()[0]
        of_queue = queue[row]
        is_first = np.append(True, of_queue[1:] != of_queue[:-1])
        first, last = np.array(self._spans, np.int64)[of_queue].T
        start = np.where(is_first, first, entries.queue_offset[row])
        end = np.where(np.append(is_first[1:], True), last, np.append(start[1:], 0))
        count = np.diff(row, append=len(task))
        are_unlike = np.array(self._are_unlike)
        are_unlike[queue[1:][(queue[1:] == queue[:-1]) & (entries.place[1:] == entries.place[:-1])]] = True
        is_whole = (count == end - start) & ~are_unlike[of_queue]
        parts = _CutParts(task[row], of_queue, start, end, row, count, is_whole)
        return parts.take(np.lexsort((~is_whole, parts.task)))


def entry_bytes_min(queues: int, split_bytes: int) -> int:
    """The least weight of an entry in bytes, so that a task of very many short queues can carry its entries.

    The mean is four fifths of the most that a task may carry, since some tasks have more.
    """
    return split_bytes * 5 // (CARRIED_MAX * 4) if queues * OPENING > CARRIED_MAX else 0


def _carried(entries: Places, parts: _CutParts) -> Iterator[tuple[int, CarriedEntries]]:
    """The tasks that do better to carry the entries of these parts, which are in the order of tasks."""
    ends = parts.entries.cumsum()
    rows = np.arange(parts.entries.sum()) + np.repeat(parts.row - (ends - parts.entries), parts.entries)
    place, size = entries.place[rows], entries.size[rows]
    numbers, firsts, counts = np.unique(parts.task, return_index=True, return_counts=True)
    for number, first, count in zip(numbers.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        end = int(ends[first + count - 1])
        start = end - int(parts.entries[first : first + count].sum())
        if end - start <= min(count * OPENING, CARRIED_MAX):
            low = int(place[start:end].min())
            yield number, CarriedEntries(count, low, _narrow(place[start:end] - low), _narrow(size[start:end]))


def _narrow(column: Ints) -> npt.NDArray[Any]:
    """A column as the narrowest integers that hold it."""
    bounds = (np.min_scalar_type(int(bound)) for bound in (column.min(), column.max()))
    return column.astype(np.promote_types(*bounds))
