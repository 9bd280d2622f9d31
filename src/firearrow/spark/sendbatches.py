"""Cuts rows into batches: of one topic, and of one queue where rows say which, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from firearrow.client.producer.batchsender import BatchBody
from firearrow.client.routing.queues import Target
from firearrow.errors import MessageError
from firearrow.message.names import is_retry
from firearrow.spark.outgoing import Ints, Rows

# Upstream's limit of a request's body is 4 MiB; a quarter keeps a broker's answer times even.
BATCH_BYTES_MAX: Final = 1024 * 1024
_PLACE_BITS: Final = 30  # a group of rows is numbered by its topic, its queue and whether alone


def pieces_of(rows: Rows, targets_of: Callable[[str], Sequence[Target]], count_max: int) -> Iterator[BatchBody]:
    """Cut rows into batches of at most ``count_max`` messages.

    ``targets_of`` gives the queues of a topic; it is asked only where rows have a queue or an order
    key. Raises MessageError for a queue that a topic has not.
    """
    if not len(rows):
        return
    pinned = rows.queue_id is not None or rows.order_hash is not None
    targets = [targets_of(topic) for topic in rows.topics] if pinned else []
    members, groups = rows.members, rows.topic_number << (_PLACE_BITS + 1)
    places = _places(rows, targets)
    if places is not None:
        groups = groups + ((places + 1) << 1)
    alone = _alone(rows)
    if alone is not None:
        groups = groups + alone
    if not (groups == groups[0]).all():
        order = groups.argsort(kind="stable")
        members, groups = members.take(order), groups[order]
    ends = np.append(np.nonzero(groups[1:] != groups[:-1])[0] + 1, len(groups))
    data = memoryview(members.buffers()[2])
    offsets: Ints = np.frombuffer(members.buffers()[1], np.int32).astype(np.int64)
    offsets = offsets[members.offset : members.offset + len(members) + 1]
    start = 0
    for end in ends.tolist():
        number, place, is_alone = _parts(int(groups[start]))
        target = targets[number][place] if place >= 0 else None
        for first, last in _cuts(offsets, start, end, 1 if is_alone else count_max):
            body = bytes(data[offsets[first] : offsets[last]])
            yield BatchBody(rows.topics[number], body, last - first, is_alone, target)
        start = end


def _parts(group: int) -> tuple[int, int, bool]:
    """The number of a group's topic, of its queue (or -1), and whether its rows go alone."""
    return group >> (_PLACE_BITS + 1), (group >> 1 & (1 << _PLACE_BITS) - 1) - 1, bool(group & 1)


def _cuts(offsets: Ints, start: int, end: int, count_max: int) -> Iterator[tuple[int, int]]:
    while start < end:
        fitting = int(offsets.searchsorted(int(offsets[start]) + BATCH_BYTES_MAX, side="right")) - 1
        stop = min(end, start + count_max, max(fitting, start + 1))
        yield start, stop
        start = stop


def _alone(rows: Rows) -> Ints | None:
    """1 for each row that can't be in a batch; None if all can."""
    alone = None if rows.alone is None else rows.alone.astype(np.int64)
    retry = [is_retry(topic) for topic in rows.topics]
    if any(retry):  # brokers take no batches for these
        of_topic = np.array(retry, np.int64)[rows.topic_number]
        alone = of_topic if alone is None else alone | of_topic
    return alone


def _places(rows: Rows, targets: Sequence[Sequence[Target]]) -> Ints | None:
    """The number of each row's target among those of its topic, -1 for any; None if for all."""
    if rows.queue_id is None and rows.order_hash is None:
        return None
    places = np.full(len(rows), -1, np.int64)
    if rows.order_hash is not None:
        counts = np.array([len(queues) for queues in targets], np.int64)[rows.topic_number]
        places = np.where(rows.order_hash >= 0, rows.order_hash % counts, -1)
    if rows.queue_id is not None:
        named = rows.queue_id >= 0
        for number, queues in enumerate(targets):
            chosen = named & (rows.topic_number == number)
            if chosen.any():
                places[chosen] = _named(rows.queue_id[chosen], rows.topics[number], queues)
    return places


def _named(queue_ids: Ints, topic: str, queues: Sequence[Target]) -> Ints:
    """The places of queues by their numbers.

    Where several brokers have a queue of that number, the number decides on the broker, too: rows
    of one number stay together.
    """
    by_id: dict[int, list[int]] = {}
    for place, target in enumerate(queues):
        by_id.setdefault(target.queue_id, []).append(place)
    table = np.full(max(by_id) + 2, -1, np.int64)
    for queue_id, found in by_id.items():
        table[queue_id] = found[queue_id % len(found)]
    places: Ints = table[np.minimum(queue_ids, len(table) - 1)]
    if (places < 0).any():
        wrong = int(queue_ids[int(np.argmin(places))])
        raise MessageError(f"topic {topic!r} has no queue {wrong} to write to, but 0 to {max(by_id)}", "column queueId")
    return places
