"""Cut the messages to read from a store into tasks of about equal size.

A task reads the messages of a stretch of the log: it reads neighbours there together, whatever their queues. Any entry
of a queue is the begin of a record, so tasks are cut at entries. Some tens of thousands of entries, evenly chosen, are
read: each size stands for its neighbours' sizes. So tasks are even also where only some queues are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from firearrow.client.queues import Span
from firearrow.store.reading.entries import Queue, QueueKey

Ints = npt.NDArray[np.int64]
Part = tuple[str, int, int, int]
"""Topic, queue id, first queue offset, and the queue offset after the last."""

SAMPLES_MAX: Final = 65_536
_OVER: Final = 8  # a task may be an eighth larger: 257 MiB are two tasks of 128, not three of 86


def cut(
    queues: Mapping[QueueKey, Queue], spans: Sequence[tuple[QueueKey, Span]], split_bytes: int, splits_min: int
) -> list[list[Part]]:
    """The parts of queues that each task reads; no part and no task is empty."""
    spans = [(key, span) for key, span in spans if span.end > span.start]
    bounds = _boundaries(queues, spans, split_bytes, splits_min)
    tasks: list[list[Part]] = [[] for _ in range(len(bounds) + 1)]
    for key, span in spans:
        queue, start = queues[key], span.start
        for number, boundary in enumerate(bounds):
            if start >= span.end:
                break
            end = queue.first_at_or_after(boundary, start, span.end)
            if end > start:
                tasks[number].append((*key, start, end))
            start = end
        if start < span.end:
            tasks[-1].append((*key, start, span.end))
    return [task for task in tasks if task]


def _boundaries(
    queues: Mapping[QueueKey, Queue], spans: Sequence[tuple[QueueKey, Span]], split_bytes: int, splits_min: int
) -> list[int]:
    """Physical offsets that cut the wanted messages into pieces of about equal size."""
    total = sum(span.end - span.start for _, span in spans)
    step = max(1, total // SAMPLES_MAX)
    places: list[Ints] = []
    weights: list[Ints] = []
    for key, span in spans:
        entries = queues[key].entries(span.start, span.end, step)
        places.append(entries.physical_offset)
        weights.append(entries.size * np.minimum(step, span.end - entries.queue_offset))
    if not places:
        return []
    place, weight = np.concatenate(places), np.concatenate(weights)
    order = place.argsort()
    place, weight = place[order], weight[order].cumsum()
    if not len(place):
        return []
    whole = int(weight[-1])
    count = max(-(-(whole - split_bytes // _OVER) // split_bytes), splits_min)
    wanted = np.arange(1, count) * (whole / count)
    chosen = np.unique(place[np.minimum(weight.searchsorted(wanted), len(place) - 1)])
    return [int(offset) for offset in chosen if offset > place[0]]
