"""Cut the messages to read from a store into tasks of about equal size.

A task reads the messages of a stretch of the log: it reads neighbours there together, whatever their queues. Any entry
of a queue is the begin of a record, so tasks are cut at entries. Some tens of thousands of entries, evenly chosen, are
read, and more for very many tasks: each size stands for its neighbours' sizes. So tasks are even also where only some
queues are read.

Stores of a million queues and 100,000 files are possible (docs/scale.md). A queue is opened when its turn comes,
not before: a process may map 65,530 files. It goes directly from one task with its messages to the next. So the cost
grows with the queues and the parts, not with their product.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from firearrow.client.queues import Span
from firearrow.store.reading.entries import Entries, Queue, QueueKey

Part = tuple[str, int, int, int]
"""Topic, queue id, first queue offset, and the queue offset after the last."""

OpenQueue = Callable[[QueueKey], Queue]

SAMPLES_MAX: Final = 65_536
TASKS_MAX: Final = 100_000  # in larger stores tasks are larger: Spark's driver keeps each of them
_SAMPLES_OF_TASK: Final = 2  # where there are more tasks than samples
_OVER: Final = 8  # a task may be an eighth larger: 257 MiB are two tasks of 128, not three of 86


def cut(
    open_queue: OpenQueue, spans: Sequence[tuple[QueueKey, Span]], split_bytes: int, splits_min: int
) -> list[list[Part]]:
    """The parts of queues that each task reads; no part and no task is empty."""
    spans = [(key, span) for key, span in spans if span.end > span.start]
    bounds = _boundaries(open_queue, spans, split_bytes, splits_min)
    tasks: dict[int, list[Part]] = {}
    for key, span in spans:
        for number, start, end in _cut_queue(open_queue, key, span, bounds):
            tasks.setdefault(number, []).append((*key, start, end))
    return [tasks[number] for number in sorted(tasks)]


def _cut_queue(
    open_queue: OpenQueue, key: QueueKey, span: Span, bounds: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """The parts of a queue: number of the task, and begin and end as queue offsets."""
    if not bounds:
        yield 0, *span
        return
    queue = open_queue(key)
    start, number = span.start, 0
    while start < span.end:
        number = bisect_right(bounds, queue.place(start), number)
        end = span.end if number == len(bounds) else queue.first_at_or_after(bounds[number], start, span.end)
        if end > start:
            yield number, start, end
        start, number = end, number + 1


def _boundaries(
    open_queue: OpenQueue, spans: Sequence[tuple[QueueKey, Span]], split_bytes: int, splits_min: int
) -> list[int]:
    """Physical offsets that cut the wanted messages into pieces of about equal size."""
    step = max(1, sum(span.end - span.start for _, span in spans) // SAMPLES_MAX)
    while True:
        samples = [(entries.physical_offset, entries.size) for entries in _samples(open_queue, spans, step)]
        if not samples:
            return []
        place, size = map(np.concatenate, zip(*samples, strict=True))
        weight = size * step
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


def _samples(open_queue: OpenQueue, spans: Sequence[tuple[QueueKey, Span]], step: int) -> Iterator[Entries]:
    """Every ``step``-th entry of the spans, as if these were one: a queue that has none of them is not opened."""
    skip = 0
    for key, span in spans:
        start = span.start + skip
        if start < span.end:
            yield open_queue(key).entries(start, span.end, step)
            start += -(-(span.end - start) // step) * step
        skip = start - span.end
