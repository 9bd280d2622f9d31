"""Cut the messages to read from a store into tasks of about equal size.

A task reads the messages of a stretch of the log: it reads neighbours there together, whatever their queues. Any entry
of a queue is the begin of a record, so tasks are cut at entries. Some tens of thousands of entries, evenly chosen, are
read, and more for very many tasks: each size stands for its neighbours' sizes. So tasks are even also where only some
queues are read.

Stores of a million queues and 100,000 files are possible (docs/scale.md). A queue is opened when its turn comes,
not before: a process may map 65,530 files. It goes directly from one task with its messages to the next. So the cost
grows with the queues and the parts, not with their product. The places of short queues are kept from the first look, as
many as `KEPT_MAX`: with few messages in each queue, most of the time goes into opening them. A task of very many of
these gets the entries along (``firearrow.spark.planning.shortqueues``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from firearrow.client.queues import Span
from firearrow.spark.planning.shortqueues import Part, Places, ShortQueues, Task, entry_bytes_min
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.entries import Queue, QueueKey
from firearrow.store.scan import Ints

OpenQueue = Callable[[QueueKey], Queue]

SAMPLES_MAX: Final = 65_536
SHORT_MAX: Final = 1024  # messages of a queue that is read as a whole
KEPT_MAX: Final = 5_000_000  # 120 MB
_KEPT_OF_QUEUE: Final = 40  # entries that take as much memory as the objects of a queue
TASKS_MAX: Final = 100_000  # in larger stores tasks are larger: Spark's driver keeps each of them
_SAMPLES_OF_TASK: Final = 2  # where there are more tasks than samples
_NO_SPAN: Final = Span(0, 0)
_OVER: Final = 8  # a task may be an eighth larger: 257 MiB are two tasks of 128, not three of 86


class Looks:
    """Looks at queues; short queues are read once. A queue's entries do not change."""

    def __init__(self, open_queue: OpenQueue) -> None:
        self.open: Final = open_queue
        self._kept: dict[QueueKey, tuple[Span, Places]] = {}
        self._unlike: set[QueueKey] = set()
        self._room = KEPT_MAX

    def keep(self, key: QueueKey, span: Span, queue: Queue) -> None:
        """Keep the entries of an open queue if its span is short."""
        if span.end - span.start > min(SHORT_MAX, self._room):
            return
        places = Places(*queue.entries(*span)[:3])  # no tag code: its file is mapped
        self._kept[key] = span, places
        self._room -= len(places.size) + _KEPT_OF_QUEUE
        if isinstance(queue, BatchQueue):
            self._unlike.add(key)

    def kept(self, key: QueueKey, span: Span) -> Places | None:
        """The entries of a span if they are kept."""
        known, places = self._kept.get(key, (_NO_SPAN, None))
        if places is None or known == span:
            return places
        if not known.start <= span.start <= span.end <= known.end:
            return None
        first, end = places.queue_offset.searchsorted(span).tolist()
        self._compare(key, places.place[first:end], places.place[end : end + 1])
        return Places(*(column[first:end] for column in places))

    def short(self, key: QueueKey, span: Span) -> Places | None:
        """All entries of a short span; None for a long one, or if too many are kept already."""
        found = self.kept(key, span)
        if found is None and span.end - span.start <= min(SHORT_MAX, self._room):
            queue = self.open(key)
            self.keep(key, span, queue)
            found = self.kept(key, span)
            assert found is not None, "there was room for it"
            self._compare(key, found.place, queue.entries(span.end, span.end + 1).physical_offset)
        return found

    def _compare(self, key: QueueKey, places: Ints, following: Ints) -> None:
        """Note a queue whose span ends with a lost message: its entry repeats the following one."""
        if len(places) and len(following) and places[-1] == following[0]:
            self._unlike.add(key)

    @property
    def kept_queues(self) -> int:
        """Number of queues whose entries are kept."""
        return len(self._kept)

    def is_unlike(self, key: QueueKey) -> bool:
        """Tell whether the entries of a kept queue do not stand for one message each."""
        return key in self._unlike

    def every(self, step: int, key: QueueKey, span: Span, start: int) -> Places:
        """Every ``step``-th entry of a span from an offset on."""
        kept = self.short(key, span)
        if kept is None:
            return Places(*self.open(key).entries(start, span.end, step)[:3])
        if len(kept.place) == span.end - span.start:
            rows: slice | npt.NDArray[np.bool_] = slice(start - span.start, None, step)
        else:
            rows = (kept.queue_offset >= start) & ((kept.queue_offset - start) % step == 0)
        return Places(*(column[rows] for column in kept))


def cut(looks: Looks, spans: Sequence[tuple[QueueKey, Span]], split_bytes: int, splits_min: int) -> list[Task]:
    """The tasks that read some spans of queues; none is empty."""
    spans = [(key, span) for key, span in spans if span.end > span.start]
    bounds = _boundaries(looks, spans, split_bytes, splits_min)
    short = ShortQueues()
    others: dict[int, list[Part]] = {}
    for key, span in spans:
        kept = looks.short(key, span) if bounds else looks.kept(key, span)
        if kept is not None and len(kept.place):
            short.add(key, span, kept, is_unlike=looks.is_unlike(key))
            continue
        for number, start, end in [(0, *span)] if kept is not None else _cut_queue(looks, key, span, bounds):
            others.setdefault(number, []).append((*key, start, end))
    tasks = short.tasks(bounds)
    for number, parts in others.items():
        tasks.setdefault(number, Task([])).parts.extend(parts)
    return [tasks[number] for number in sorted(tasks)]


def _cut_queue(looks: Looks, key: QueueKey, span: Span, bounds: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The parts of a queue: number of the task, and begin and end as queue offsets."""
    if not bounds:
        yield 0, *span
        return
    queue = looks.open(key)
    start, number = span.start, 0
    while start < span.end:
        number = bisect_right(bounds, queue.place(start), number)
        end = span.end if number == len(bounds) else queue.first_at_or_after(bounds[number], start, span.end)
        if end > start:
            yield number, start, end
        start, number = end, number + 1


def _boundaries(looks: Looks, spans: Sequence[tuple[QueueKey, Span]], split_bytes: int, splits_min: int) -> list[int]:
    """Physical offsets that cut the wanted messages into pieces of about equal size."""
    step = max(1, sum(span.end - span.start for _, span in spans) // SAMPLES_MAX)
    weight_min = entry_bytes_min(looks.kept_queues, split_bytes)
    while True:
        samples = [(entries.place, entries.size) for entries in _samples(looks, spans, step)]
        if not samples:
            return []
        place, size = map(np.concatenate, zip(*samples, strict=True))
        weight = np.maximum(size, weight_min) * step
        count = max(min(-(-(int(weight.sum()) - split_bytes // _OVER) // split_bytes), TASKS_MAX), splits_min)
        if step == 1 or len(place) >= count:
            break
        step = max(1, step * len(place) // (_SAMPLES_OF_TASK * count))
    if not len(place):
        return []
    order = place.argsort()
    place, weight = place[order], weight[order].cumsum()
    wanted = np.arange(1, count) * (int(weight[-1]) / count)
    chosen = np.unique(place[np.minimum(weight.searchsorted(wanted), len(place) - 1)])
    return [int(offset) for offset in chosen if offset > place[0]]


def _samples(looks: Looks, spans: Sequence[tuple[QueueKey, Span]], step: int) -> Iterator[Places]:
    """Every ``step``-th entry of the spans, as if these were one: a queue that has none of them is not opened."""
    skip = 0
    for key, span in spans:
        start = span.start + skip
        if start < span.end:
            yield looks.every(step, key, span, start)
            start += -(-(span.end - start) // step) * step
        skip = start - span.end
