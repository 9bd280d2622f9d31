"""Messages that were popped in order and are not acknowledged yet (RocketMQ's ``QueueLevelConsumerManager``).

A group that pops a queue in order gets no further messages of it while a message of its last batch is neither
acknowledged nor visible again. So there is one `OrderedBatch` for each queue of a topic and group, in
``config/consumerOrderInfo.json``, written some seconds after a change::

    {
        "orderInfoCount":1,
        "orderedConsumptionLevel":"QUEUE",
        "table":{"T@g":{0:{"a":"x","cm":2,"i":60000,"l":1795320632309,"o":[7,1,2],"oc":{7:1},
            "ot":{8:1795320690000},"popTime":1795320632300}}}
    }

    a the pop's attempt id, if it had one cm bits of the acknowledged messages, in the order of ``o`` i invisible time,
    in ms l time when the batch was noted, in ms o queue offset of the first message, and the distance of each other one
    from it oc by queue offset, count of earlier pops of a message, if there were any ot by queue offset, time when a
    message becomes visible if not by pop time and ``i`` popTime pop time, in ms

Two fields are our own: ``firearrowEnd``, the offset behind the last message if that message has several offsets
(``queue.type=BatchCQ``), and ``firearrowSuspended``, see `ConsumerOrderInfo.suspend`.

Acknowledgements name a batch by its pop time; an acknowledgement for an earlier batch has no effect. A kill may lose
the last batches. Their messages are popped again, as no offset is committed before it is acknowledged in order. The
same rules hold for lite topics, whose batches are in no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import field, structs

from firearrow.broker.events import GroupDeleted
from firearrow.broker.state.persistence import StateFile, typed, unknown_fields
from firearrow.broker.state.rows import storage_of
from firearrow.clock import Clock
from firearrow.files import GENERATIONS
from firearrow.javanumbers import LONG_MAX
from firearrow.message.names import offset_key, topic_and_group
from firearrow.state import ORDERS
from firearrow.store import QueuesDeleted

FILE_NAME: Final = ORDERS.file_name
IGNORED: Final = -2  # an acknowledgement of a batch that is not the last one
UNKNOWN: Final = -1  # an acknowledgement of a message that the batch does not have
FORGOTTEN_MS: Final = 24 * 3600 * 1000
CLEAN_KEYS: Final = 500  # that one step of cleaning visits
BITS: Final = 63  # of ``cm``, a long, so the limit of messages in a batch; a pop gives 32

_TABLE: Final = "table"
_KNOWN: Final = ("orderInfoCount", "orderedConsumptionLevel", _TABLE)


class OrderedBatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages of a queue that a group popped last. It is immutable."""

    attempt_id: str | None = field(name="a", default=None)
    acknowledged_bits: int = field(name="cm", default=0)
    invisible_ms: int | None = field(name="i", default=None)
    noted_ms: int = field(name="l", default=0)
    places: tuple[int, ...] = field(name="o")
    counts: dict[int, int] | None = field(name="oc", default=None)
    visible_ms: dict[int, int] | None = field(name="ot", default=None)
    pop_ms: int = field(name="popTime", default=0)
    is_suspended: bool | None = field(name="firearrowSuspended", default=None)
    end: int | None = field(name="firearrowEnd", default=None)

    @property
    def queue_offsets(self) -> list[int]:
        """Queue offset of each message."""
        first, *behind = self.places
        return [first, *(first + distance for distance in behind)]

    def index(self, queue_offset: int) -> int | None:
        """Return the index of a message in the batch, None if it has none there."""
        distance = queue_offset - self.places[0]
        if not distance:
            return 0
        try:
            return self.places.index(distance, 1)
        except ValueError:
            return None

    @property
    def open_bits(self) -> int:
        """Bits of the messages that are not acknowledged."""
        return ~self.acknowledged_bits & ((1 << len(self.places)) - 1)

    @property
    def next_offset(self) -> int:
        """Queue offset of the first message that is not acknowledged, or behind the last."""
        bits = self.open_bits
        if not bits and self.end is not None:
            return self.end
        places = self.places
        at = (bits & -bits).bit_length() - 1 if bits else len(places) - 1
        return places[0] + (places[at] if at else 0) + (not bits)

    def free_ms(self, invisible_ms: int = 0) -> int | None:
        """Return the time when all open messages are visible again, None if none is open.

        ``invisible_ms`` is for a batch without an invisible time, as old releases wrote it.
        """
        bits = self.open_bits
        if not bits:
            return None
        own = self.invisible_ms
        usual = self.pop_ms + (own if own is not None and own > 0 else invisible_ms)
        changed = self.visible_ms
        if not changed:
            return usual
        offsets = self.queue_offsets
        return max(changed.get(offset, usual) for at, offset in enumerate(offsets) if bits >> at & 1)


_Table = dict[str, dict[int, OrderedBatch]]


class ConsumerOrderInfo:
    """The last batch of each queue, by topic and group.

    Without ``store_root``, for lite topics, it is in memory only.
    """

    def __init__(self, clock: Clock, store_root: Path | None = None, generations: int = GENERATIONS) -> None:
        self._clock = clock
        self._table: _Table = {}
        self._unknown: dict[str, Any] = {}
        self._unchecked: list[str] = []
        storage = storage_of(store_root, ORDERS, in_database=False, generations=generations)
        self.file: Final = StateFile(storage, self._content)

    def __len__(self) -> int:
        """Number of pairs of topic and group that have batches."""
        return len(self._table)

    def batch(self, topic: str, group: str, queue_id: int) -> OrderedBatch | None:
        """Return the last batch of a queue."""
        queues = self._table.get(f"{topic}@{group}")  # offset_key, in each pop
        return None if queues is None else queues.get(queue_id)

    def is_blocked(
        self, topic: str, group: str, queue_id: int, attempt_id: str | None = None, invisible_ms: int = 0
    ) -> bool:
        """Return whether a queue gives no messages now.

        A repeated attempt gets its messages again. ``invisible_ms``: see `OrderedBatch.free_ms`.
        """
        batch = self.batch(topic, group, queue_id)
        if batch is None or (attempt_id and batch.attempt_id == attempt_id):
            return False
        free_ms = batch.free_ms(invisible_ms)
        return free_ms is not None and self._clock.now_ms() < free_ms

    def free_ms(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the time until which a queue is blocked unless its messages are acknowledged, None if it is not
        blocked.

        Java: OrderInfo#getLockFreeTimestamp gives the time when the first message becomes visible; the queue is still
        blocked at that time if another one becomes visible later.
        """
        batch = self.batch(topic, group, queue_id)
        free_ms = None if batch is None else batch.free_ms()
        return free_ms if free_ms is not None and free_ms > self._clock.now_ms() else None

    def take(
        self,
        topic: str,
        group: str,
        queue_id: int,
        queue_offsets: Sequence[int],
        *,
        pop_ms: int,
        invisible_ms: int,
        attempt_id: str | None = None,
        end: int | None = None,
    ) -> Mapping[int, int]:
        """Replace the last batch; return the count of earlier pops, by queue offset, of messages that had any.

        A message that is popped again is open again, even if it was acknowledged: a consumer has it in flight, and the
        next one must wait for that. ``end`` follows the last message if that has several offsets.
        Java: OrderInfo#getNextOffset commits the second of these offsets, and the message is redelivered.
        """
        assert 0 < len(queue_offsets) <= BITS, "a bit for each message"
        queues = self._table.setdefault(offset_key(topic, group), {})
        previous = queues.get(queue_id)
        first = queue_offsets[0]
        counts = None if previous is None else _counts(previous, queue_offsets, attempt_id)
        queues[queue_id] = OrderedBatch(
            attempt_id=attempt_id or None,
            invisible_ms=invisible_ms,
            noted_ms=self._clock.now_ms(),
            places=(first, *[queue_offset - first for queue_offset in queue_offsets[1:]]),
            counts=counts or None,
            pop_ms=pop_ms,
            end=end,
        )
        self.file.behind = True
        if not counts:
            return {}
        # Java: QueueLevelConsumerManager#update returns all counts, also of messages that are not given.
        return {offset: counts[offset] for offset in queue_offsets if offset in counts}

    def acknowledge(
        self, topic: str, group: str, queue_id: int, queue_offset: int, *, pop_ms: int, committed: int, end: int
    ) -> int:
        """Note that a message was consumed; return the offset to commit, `IGNORED` or `UNKNOWN`.

        ``committed`` is the group's committed offset, ``end`` the end of the queue. Without a batch, for example after
        a kill, only the next message counts.
        Java: commitAndNext takes any message, even ``end``: then messages before it, or the next to be sent, are never
        consumed.
        """
        batch = self.batch(topic, group, queue_id)
        if batch is None:
            return queue_offset + 1 if committed == queue_offset < end else IGNORED
        if batch.pop_ms != pop_ms:
            return IGNORED
        index = batch.index(queue_offset)
        if index is None:
            return UNKNOWN
        bits = batch.acknowledged_bits | 1 << index
        batch = self._put(topic, group, queue_id, structs.replace(batch, acknowledged_bits=bits))
        return batch.next_offset

    def acknowledge_all(
        self, topic: str, group: str, queue_id: int, queue_offsets: Sequence[int], *, pop_ms: int
    ) -> int | None:
        """Note that several messages were consumed; return the offset to commit.

        Return None, with nothing noted, unless all of them are in the batch.
        """
        batch = self.batch(topic, group, queue_id)
        if batch is None or batch.pop_ms != pop_ms:
            return None
        bits = batch.acknowledged_bits
        for queue_offset in queue_offsets:
            index = batch.index(queue_offset)
            if index is None:
                return None
            bits |= 1 << index
        batch = self._put(topic, group, queue_id, structs.replace(batch, acknowledged_bits=bits))
        return batch.next_offset

    def change_visible(
        self, topic: str, group: str, queue_id: int, queue_offset: int, *, pop_ms: int, visible_ms: int
    ) -> None:
        """Change when a message of the batch becomes visible.

        Java: updateNextVisibleTime keeps any offset that a client names.
        """
        batch = self.batch(topic, group, queue_id)
        if batch is None or batch.pop_ms != pop_ms or batch.index(queue_offset) is None:
            return
        changed = {**(batch.visible_ms or {}), queue_offset: min(visible_ms, LONG_MAX)}  # clients may name any time
        self._put(topic, group, queue_id, structs.replace(batch, visible_ms=changed))

    def visible_ms(self, topic: str, group: str, queue_id: int, queue_offset: int, *, pop_ms: int) -> int:
        """Return the time when an open message of the batch becomes visible, 0 if the batch does not have it."""
        batch = self.batch(topic, group, queue_id)
        index = None if batch is None or batch.pop_ms != pop_ms else batch.index(queue_offset)
        if batch is None or index is None or not batch.open_bits >> index & 1:
            return 0
        return (batch.visible_ms or {}).get(queue_offset, batch.pop_ms + (batch.invisible_ms or 0))

    def suspend(self, topic: str, group: str, queue_id: int, *, pop_ms: int, visible_ms: int) -> None:
        """Change when all messages of the batch become visible; their next pop does not count as a failure.

        Java: MemoryConsumerOrderInfoManager#suspendQueue subtracts one from each count at each request.
        """
        batch = self.batch(topic, group, queue_id)
        if batch is None or batch.pop_ms != pop_ms:
            return
        suspended = structs.replace(batch, invisible_ms=visible_ms - pop_ms, visible_ms=None, is_suspended=True)
        self._put(topic, group, queue_id, suspended)

    def blocked(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield topic, group, queue and end of the time of each blocked queue."""
        for key, queues in self._table.items():
            topic, group = topic_and_group(key)
            for queue_id in queues:
                free_ms = self.free_ms(topic, group, queue_id)
                if free_ms is not None:
                    yield topic, group, queue_id, free_ms

    # --- removal ---

    def forget(self, topic: str, group: str, queue_id: int | None = None) -> None:
        """Forget the batch of a queue, as it is read elsewhere now, or the batches of all queues."""
        key = offset_key(topic, group)
        if queue_id is None:
            gone = self._table.pop(key, None) is not None
        else:
            gone = self._table.get(key, {}).pop(queue_id, None) is not None
        self.file.behind = self.file.behind or gone

    def topic_gone(self, gone: QueuesDeleted) -> None:
        """Forget the batches of deleted queues."""
        for key in [key for key in self._table if key.startswith(gone.topic)]:
            topic, group = topic_and_group(key)
            if topic == gone.topic:
                self.forget(topic, group, gone.queue_id)

    def group_gone(self, gone: GroupDeleted) -> None:
        """Forget the batches of a deleted group."""
        for key in [key for key in self._table if key.endswith(gone.group)]:
            topic, group = topic_and_group(key)
            if group == gone.group:
                self.forget(topic, group)

    def clean_step(self, is_group: Callable[[str], bool], queue_count: Callable[[str], int | None]) -> bool:
        """Forget useless batches of some hundred pairs of topic and group; return whether there are more pairs.

        A batch is useless if its group, topic or queue does not exist (``queue_count`` returns None without the topic),
        or if it was popped a day ago and is not blocked. The call after the last step begins again.
        """
        if not self._unchecked:
            self._unchecked = list(self._table)
        for key in self._unchecked[-CLEAN_KEYS:]:
            queues = self._table.get(key)
            if queues is None:
                continue
            topic, group = topic_and_group(key)
            count = queue_count(topic) if is_group(group) else None
            for queue_id in [] if count is None else [*queues]:
                if queue_id >= (count or 0) or self._is_old(queues[queue_id]):
                    del queues[queue_id]
                    self.file.behind = True
            if count is None or not queues:
                del self._table[key]
                self.file.behind = True
        del self._unchecked[-CLEAN_KEYS:]
        return bool(self._unchecked)

    def _is_old(self, batch: OrderedBatch) -> bool:
        return self._clock.now_ms() - max(batch.noted_ms, batch.free_ms() or 0) > FORGOTTEN_MS

    # --- the file ---

    def load(self, end_of: Callable[[str, int], int] | None = None) -> None:
        """Read the file; ConfigError if it can't be read.

        ``end_of`` returns the end of a queue whose log may have lost messages. A batch that had some of them is
        forgotten, as other messages get their offsets.
        """
        raw = self.file.read()
        table = typed(raw.get(_TABLE) or {}, dict[str, dict[int, OrderedBatch | None] | None], FILE_NAME)
        for key, queues in table.items():
            topic = topic_and_group(key)[0]
            found = {
                queue_id: batch
                for queue_id, batch in (queues or {}).items()
                if batch is not None
                and 0 < len(batch.places) <= BITS
                and (end_of is None or batch.queue_offsets[-1] < end_of(topic, queue_id))
            }
            if found:
                self._table[key] = found
        self._unknown = unknown_fields(raw, _KNOWN)

    def _put(self, topic: str, group: str, queue_id: int, batch: OrderedBatch) -> OrderedBatch:
        self._table[offset_key(topic, group)][queue_id] = batch
        self.file.behind = True
        return batch

    def _content(self) -> Mapping[str, Any]:
        own = {
            "orderInfoCount": len(self._table),
            "orderedConsumptionLevel": "QUEUE",
            _TABLE: {key: queues.copy() for key, queues in self._table.items()},
        }
        return dict(sorted((own | self._unknown).items()))


def _counts(previous: OrderedBatch, queue_offsets: Sequence[int], attempt_id: str | None) -> dict[int, int]:
    """Count the earlier pops of messages that are popped now, after the previous batch.

    A repeated attempt may get fewer messages than before; the counts of the others are kept.
    """
    before = previous.counts or {}
    if attempt_id and previous.attempt_id == attempt_id:
        return {offset: count for offset, count in before.items() if offset >= queue_offsets[0]}
    now, more = set(queue_offsets), 0 if previous.is_suspended else 1
    return {
        queue_offset: count
        for queue_offset in previous.queue_offsets
        if queue_offset in now and (count := before.get(queue_offset, 0) + more)
    }
