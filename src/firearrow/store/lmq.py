"""LMQs: one message in several queues.

A message names LMQs in a property, and each of them gets an entry for its record. The record is in the log once, and
belongs to the queue that it was sent to. An LMQ exists without a topic: its name begins with ``%LMQ%``, and it is queue
0 of the topic of that name.

======================== ===========================================================
property                 value
======================== ===========================================================
INNER_MULTI_DISPATCH     names of LMQs, joined by ``,``: by the sender
INNER_MULTI_QUEUE_OFFSET its queue offsets in them, in the same order: by the broker
======================== ===========================================================

Worked example, the second message of ``%LMQ%a`` and first of ``%LMQ%b``: ``INNER_MULTI_DISPATCH 01 %LMQ%a,%LMQ%b 02
INNER_MULTI_QUEUE_OFFSET 01 1,0 02``.

Offsets are assigned when the message is appended. So dispatch, even if it is repeated, finds them in the record.
Messages of a batch are put into no LMQs, nor are retried ones.

Source: RocketMQ's ``LmqDispatch``, ``MultiDispatchUtils``, ``ConsumeQueue#multiDispatchLmqQueue``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from firearrow.errors import MessageError
from firearrow.message.names import takes_lmqs, validate_lmq
from firearrow.message.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, parse
from firearrow.store.events import QueuesDeleted
from firearrow.store.queues import ConsumeQueue, ConsumeQueues, PutCounters
from firearrow.store.scan import Columns, Ints, Properties

QUEUE_ID: Final = 0
_SEPARATOR: Final = ","
_MARK: Final = f"{INNER_MULTI_QUEUE_OFFSET}\x01".encode()


def lmq_names(value: str) -> list[str]:
    """The LMQs that a message names; MessageError if a name is invalid or occurs twice."""
    names = value.split(_SEPARATOR)
    for name in names:
        fault = validate_lmq(name)
        if fault is not None:
            raise MessageError(fault, INNER_MULTI_DISPATCH)
    if len(set(names)) < len(names):
        raise MessageError(f"an LMQ is named twice: {value}", INNER_MULTI_DISPATCH)
    return names


class MultiDispatch:
    """A queue and LMQs as one, to append a message to all of them.

    ``lmq_offsets`` is the value of the message's property, until something else is appended to them. It has only the
    attributes that ``CommitLog.append`` needs of a queue.
    """

    __slots__ = ("_lmq", "_queue", "counters", "lmq_offsets", "magic", "queue_id", "topic_field")

    def __init__(self, queue: ConsumeQueue, lmq: Sequence[ConsumeQueue]) -> None:
        self._queue = queue
        self._lmq = lmq
        self.queue_id: int = queue.queue_id
        self.counters: PutCounters = queue.counters
        self.magic: int = queue.magic
        self.topic_field: bytes = queue.topic_field
        self.lmq_offsets: Final = _SEPARATOR.join(str(one.next_offset) for one in lmq)

    @property
    def next_offset(self) -> int:
        """Offset of the next message in the queue itself."""
        return self._queue.next_offset

    @next_offset.setter
    def next_offset(self, queue_offset: int) -> None:
        assert queue_offset == self._queue.next_offset + 1, "LMQs take messages one by one"
        for one in self._lmq:
            one.next_offset += 1
        self._queue.next_offset = queue_offset


class Lmqs:
    """The LMQs of a store, from the view of senders.

    With ``limit`` no message may make more of them than that.
    """

    def __init__(self, queues: ConsumeQueues, limit: int | None) -> None:
        self._queues = queues
        self._limit = limit
        self._count: int | None = None

    def recount(self, _: QueuesDeleted) -> None:
        """Count the LMQs again at the next use: queues were deleted."""
        self._count = None

    def join(self, queue: ConsumeQueue, names: Sequence[str]) -> MultiDispatch | None:
        """The queue together with LMQs; None if there would be too many of these.

        The result is for the next append.
        """
        if self._limit is not None and not self._have_room(names, self._limit):
            return None
        return MultiDispatch(queue, [self._queues.open(name, QUEUE_ID) for name in names])

    def _have_room(self, names: Sequence[str], limit: int) -> bool:
        new = sum(self._queues.find(name, QUEUE_ID) is None for name in names)
        if not new:
            return True
        if self._count is None:
            self._count = self._queues.lmq_count()
        if self._count + new > limit:
            return False
        self._count += new
        return True


class LmqEntries(NamedTuple):
    """Entries of records in LMQs: columns of the record's number, of the number of its queue's name in ``names``, and
    of its queue offset there.
    """

    names: list[bytes]
    record: Ints
    name: Ints
    queue_offset: Ints


def lmq_entries(columns: Columns, properties: Properties) -> LmqEntries | None:
    """Entries of records in LMQs; None if no record has any."""
    marked = properties.holding(_MARK)
    if not len(marked):
        return None
    topics = columns.slices(columns.topic_start[marked], columns.topic_size[marked])
    texts = columns.slices(columns.properties_start[marked], columns.properties_size[marked])
    numbers: dict[str, int] = {}
    rows = [
        (record, numbers.setdefault(name, len(numbers)), queue_offset)
        for record, topic, text in zip(marked.tolist(), topics, texts, strict=True)
        if takes_lmqs(topic.decode("utf-8", "replace"))
        for name, queue_offset in _places(text)
    ]
    if not rows:
        return None
    table = np.array(rows, np.int64)
    names = [name.encode() for name in numbers]
    return LmqEntries(names, table[:, 0], table[:, 1], table[:, 2])


def _places(properties: bytes) -> list[tuple[str, int]]:
    """Name and queue offset of each LMQ that a record is in."""
    found = parse(properties)
    names = found.get(INNER_MULTI_DISPATCH, "").rstrip(_SEPARATOR).split(_SEPARATOR)
    offsets = found.get(INNER_MULTI_QUEUE_OFFSET, "").rstrip(_SEPARATOR).split(_SEPARATOR)
    if len(names) != len(offsets):
        return []
    return [
        (name, int(offset))
        for name, offset in zip(names, offsets, strict=True)
        if validate_lmq(name) is None and _is_offset(offset)
    ]


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19
