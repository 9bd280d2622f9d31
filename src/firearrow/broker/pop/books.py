"""The books of what was popped: `Books` keeps them in the revive topic (``pop.records``).

A group's offset moves on when its messages are popped, and not when they are consumed. So the
checkpoint is in the log before: whoever is killed between the two has messages popped twice, and
none lost.

Each record waits in the timer's topic, as any message with a delivery time. Its properties, in the
order in which RocketMQ's broker has them (that of a Java HashMap)::

    REAL_TOPIC         rmq_sys_REVIVE_LOG_<cluster>
    TIMER_DELIVER_MS   a checkpoint: a second before its messages are visible; else when they are
    UNIQ_KEY           <topic>@<queue>@<start offset>@<group>@<pop time>@<broker>@ck
                       <topic>@<queue>@<offset or -1>@<group>@<pop time>@<broker>@ack
    TAGS               ck, ack or bAck
    TIMER_OUT_MS       the slot of the timer, see ``broker.timing.timer``
    REAL_QID           the revive queue

What is consumed at once need not wait: when the last message of a checkpoint is acknowledged before
that is on the timer's wheel, neither it nor its acknowledgements get there (`TimerStore.spare`).
They are in the log all the same. A start, also RocketMQ's, that finds no unit behind them in the
timer log puts them on the wheel: all, or the last of them, which are acknowledgements without a
checkpoint, and these have no effect. Where consumers are as fast as the broker that is nearly all
of them, and it is four fifths of what they would cost.

Source: upstream ``PopMessageProcessor#buildCkMsg``, ``AckMessageProcessor#appendAck``,
``PopBufferMergeService#addCkJustOffset``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

from msgspec import UNSET

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.metrics.tally import ACK, CK
from firearrow.broker.offsets.table import UNKNOWN
from firearrow.broker.pop.records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_LEAD_MS,
    CHECKPOINT_TAG,
    AckFormat,
    Acknowledgement,
    Checkpoint,
    encode,
)
from firearrow.broker.timing.timer import TimerRedirection
from firearrow.errors import BrokerError, MessageError
from firearrow.message import names
from firearrow.wire.codes import ResponseCode
from firearrow.wire.pop import Handle, origin_of, parse_handle, split_handle

BATCHES_MAX: Final = 20_000
"""So many batches, and as many older ones, are kept until all is acknowledged; a kilobyte each."""
_DISTANCE_MAX: Final = 4096  # of a message from the first of its batch, to be followed

_Key = tuple[str, str, str, int]
_NO_OFFSETS: Final[Mapping[int, int]] = {}


class Batch:
    """Messages of a queue that were popped together, as those know them who acknowledge them.

    ``handle`` is that of all of them. ``open`` has a bit for each that is not acknowledged, by its
    distance from the first; 0 if nobody counts. ``places`` are the queue offsets, in the timer's
    queue, of the records about them.
    """

    __slots__ = (
        *("ack_format", "group", "handle", "key", "open", "places", "queue_id"),
        *("stored_before", "stored_behind", "topic", "visible_ms"),
    )

    def __init__(self, key: _Key, handle: Handle) -> None:
        self.key = key
        _, self.group, self.topic, self.queue_id = key
        self.handle = handle
        self.visible_ms = handle.visible_ms
        self.open = 0
        self.places: list[int] = []
        self.ack_format: AckFormat | None = None
        self.stored_before = self.stored_behind = b""

    def acknowledgement(self, queue_offset: int, queue_offsets: list[int] | None = None) -> Acknowledgement:
        """Give the record which says that a message was consumed, or several were."""
        handle = self.handle
        return Acknowledgement(
            queue_offset=queue_offset,
            queue_offsets=queue_offsets or UNSET,
            broker_name=handle.broker_name,
            group=self.group,
            pop_ms=handle.pop_ms,
            queue_id=self.queue_id,
            start_offset=handle.start_offset,
            topic=self.topic,
        )


class Books:
    """Writes checkpoints and acknowledgements, and moves the offsets of groups."""

    def __init__(self, context: BrokerContext) -> None:
        config = context.settings.broker
        self._broker_name = config.broker_name
        self._topic = names.revive_topic(config.broker_cluster_name)
        self._topics = context.topics
        self._offsets = context.offsets
        self._puts = context.puts
        self._store = context.store
        self._timers = context.timers
        self._timer = TimerRedirection(context.settings, context.timers, context.chance)
        self._timer_queue = context.store.queue(names.TIMER_TOPIC, 0)
        self._waits = WaitsElsewhere(names.TIMER_TOPIC, self._topic)
        self._settings = context.settings
        self._tally = context.stats.tally
        self._next_queue = 0
        self._batches: dict[_Key, Batch] = {}
        self._older: dict[_Key, Batch] = {}

    @property
    def queue_count(self) -> int:
        """Number of revive queues."""
        config = self._topics.get(self._topic)
        return 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)

    def next_queue_id(self) -> int:
        """Give the revive queue of the next pop, one after another."""
        count = max(min(self._settings.broker.revive_queue_num, self.queue_count), 1)
        self._next_queue = (self._next_queue + 1) % count
        return self._next_queue

    # --- what was popped ---

    def offset(self, group: str, topic: str, queue_id: int) -> int:
        """Give the offset that a group pops from, -1 if it has none."""
        queues = self._offsets.committed.get(f"{topic}@{group}")
        return UNKNOWN if queues is None else queues.get(queue_id, UNKNOWN)

    def offsets(self, group: str, topic: str) -> Mapping[int, int]:
        """Give the offsets that a group pops from, by queue, as far as one look finds them: of
        others `offset` must be asked. What is popped later may not be in it."""
        return self._offsets.committed.get(f"{topic}@{group}", _NO_OFFSETS)

    def popped(self, checkpoint: Checkpoint, revive_queue_id: int, next_offset: int, now_ms: int) -> None:
        """Note that messages are popped, after which the group goes on at an offset.

        Raises BrokerError, DiskFull or MessageError, having noted nothing: then they are not.
        """
        self.put_checkpoint(checkpoint, revive_queue_id, now_ms)
        self._offsets.commit(checkpoint.group, checkpoint.topic, checkpoint.queue_id, next_offset)

    def passed(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Note that a group goes on at an offset, and wants nothing of what is before it."""
        self._offsets.commit(group, topic, queue_id, next_offset)

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Have a group go on at an offset, whatever was popped before."""
        self._offsets.commit(group, topic, queue_id, queue_offset)

    # --- what was consumed ---

    def batch(self, text: str, group: str, topic: str, queue_id: int) -> Batch:
        """Give the batch of a message by its handle; MessageError if that is none."""
        key = split_handle(text), group, topic, queue_id
        batch = self._batches.get(key)
        if batch is None:
            batch = self._older.pop(key, None) or Batch(key, parse_handle(key[0]))
            self._keep(batch)
        return batch

    def batch_of(self, handle: Handle, group: str, topic: str, queue_id: int) -> Batch:
        """Give the same of a handle that was read already."""
        key = handle.head, group, topic, queue_id
        return self._batches.get(key) or self._older.get(key) or Batch(key, handle)

    def acknowledge(self, batch: Batch, queue_offset: int, now_ms: int) -> None:
        """Note that a message was consumed; raises like `popped`."""
        form = batch.ack_format
        is_last = not batch.open & (batch.open - 1)  # to prepare for one costs more than it saves
        if batch.visible_ms <= now_ms or (is_last and form is None):
            place = self._put_ack(batch, batch.acknowledgement(queue_offset), now_ms)
            self._noted(batch, [queue_offset], place)
            return
        if form is None:
            form = self._prepare(batch, now_ms)
        if self._tally is not None:
            self._tally.revive_in.add((batch.group, batch.topic, ACK))
        digits = b"%d" % queue_offset
        place = self._puts.put_waiting(
            self._timer_queue,
            form.body(digits),
            batch.stored_before + digits + batch.stored_behind,
            self._waits,
            now_ms,
        )
        if batch.open:
            batch.places.append(place)
            self._close(batch, [queue_offset])

    def acknowledge_all(self, batch: Batch, queue_offsets: list[int], now_ms: int) -> None:
        """Note that messages of a batch were consumed; raises like `popped`."""
        place = self._put_ack(batch, batch.acknowledgement(-1, queue_offsets), now_ms)
        self._noted(batch, queue_offsets, place)

    def popped_again(self, batch: Batch, checkpoint: Checkpoint, now_ms: int) -> None:
        """Note that a message of a batch is popped anew, by a checkpoint of it alone, and that what
        was noted of it before is over; raises like `popped`."""
        try:
            self.put_checkpoint(checkpoint, batch.handle.revive_queue_id, now_ms)
        except (BrokerError, MessageError) as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self.acknowledge(batch, checkpoint.start_offset, now_ms)

    # --- what is noted elsewhere ---

    def moved(self, now_ms: int) -> Generator[None, None, int]:
        """Move here what is noted elsewhere, in steps; gives how many messages, which is none."""
        yield from ()
        return 0

    def _prepare(self, batch: Batch, now_ms: int) -> AckFormat:
        """Format what all acknowledgements of a batch have in common."""
        queue_id = self._checked(batch.handle.revive_queue_id)
        slot_ms = self._timer.slot_ms(batch.visible_ms, now_ms)
        form = batch.acknowledgement(0).format()
        stored = self._stored("\0", ACK_TAG, batch.visible_ms, slot_ms, queue_id)
        before, _, behind = stored.partition(b"\0")
        batch.stored_before = before + form.key_before
        batch.stored_behind = form.key_behind + behind
        batch.ack_format = form
        return form

    def _noted(self, batch: Batch, queue_offsets: list[int], place: int) -> None:
        if batch.open and place >= 0:
            batch.places.append(place)
            self._close(batch, queue_offsets)

    def _put_ack(self, batch: Batch, ack: Acknowledgement, now_ms: int) -> int:
        revive_queue_id, visible_ms = batch.handle.revive_queue_id, batch.visible_ms
        return self.put_acknowledgement(ack, revive_queue_id, visible_ms, now_ms)

    # --- what need not wait ---

    def _follow(self, batch: Batch, checkpoint: Checkpoint, place: int) -> None:
        """Look out for the acknowledgements of a checkpoint that was put into the timer's queue."""
        deltas = checkpoint.deltas
        assert deltas, "the messages that were popped"
        if deltas[-1] < _DISTANCE_MAX and deltas[0] >= 0:
            batch.open = (1 << checkpoint.count) - 1
            if deltas[-1] != checkpoint.count - 1 or checkpoint.acknowledged_bits:
                start = checkpoint.start_offset
                batch.open = sum([1 << queue_offset - start for queue_offset in checkpoint.left])
            batch.places.append(place)
        self._keep(batch)

    def _keep(self, batch: Batch) -> None:
        if len(self._batches) >= BATCHES_MAX:
            self._older, self._batches = self._batches, {}
        self._batches[batch.key] = batch

    def _close(self, batch: Batch, queue_offsets: list[int]) -> None:
        """Count messages as acknowledged; spare the timer all records once the last is."""
        start = batch.handle.start_offset
        for queue_offset in queue_offsets:
            distance = queue_offset - start
            if 0 <= distance < _DISTANCE_MAX:
                batch.open &= ~(1 << distance)
        if batch.open:
            return
        if batch.places[0] >= self._timers.progress.queue_offset:
            self._timers.spare(batch.places)
        batch.places = []
        self._batches.pop(batch.key, None)
        self._older.pop(batch.key, None)

    # --- records ---

    def put_checkpoint(self, checkpoint: Checkpoint, revive_queue_id: int, now_ms: int) -> None:
        """Write a checkpoint; raises like `popped`."""
        deliver_ms = checkpoint.pop_ms + checkpoint.invisible_ms - CHECKPOINT_LEAD_MS
        key, body = checkpoint.unique_key(), encode(checkpoint)
        if self._tally is not None:
            self._tally.revive_in.add((checkpoint.group, checkpoint.topic, CK))
        place = self._put(body, revive_queue_id, CHECKPOINT_TAG, key, deliver_ms, now_ms)
        if place >= 0 and checkpoint.deltas:
            handle = Handle(
                checkpoint.start_offset,
                checkpoint.pop_ms,
                checkpoint.invisible_ms,
                revive_queue_id,
                origin_of(checkpoint.topic),
                checkpoint.broker_name or "",
                checkpoint.queue_id,
                -1,
            )
            known = handle.head, checkpoint.group, checkpoint.topic, checkpoint.queue_id
            self._follow(Batch(known, handle), checkpoint, place)

    def put_acknowledgement(self, ack: Acknowledgement, revive_queue_id: int, visible_ms: int, now_ms: int) -> int:
        """Write an acknowledgement; raises like `popped`.

        Gives its queue offset in the timer's queue, -1 if it need not wait.
        """
        tag = BATCH_ACK_TAG if ack.queue_offsets else ACK_TAG
        if self._tally is not None:
            self._tally.revive_in.add((ack.group, ack.topic, ACK))
        return self._put(encode(ack), revive_queue_id, tag, ack.unique_key(), visible_ms, now_ms)

    def _put(self, body: bytes, queue_id: int, tag: str, key: str, deliver_ms: int, now_ms: int) -> int:
        """Write a record; gives its queue offset in the timer's queue, -1 if it need not wait."""
        queue_id = self._checked(queue_id)
        slot_ms = self._timer.slot_ms(deliver_ms, now_ms)
        stored = self._stored(key, tag, deliver_ms, slot_ms, queue_id)
        if slot_ms is None:
            queue = self._store.queue(self._topic, queue_id)
            self._puts.put_waiting(queue, body, stored, None, now_ms)
            return -1
        return self._puts.put_waiting(self._timer_queue, body, stored, self._waits, now_ms)

    def _stored(self, key: str, tag: str, deliver_ms: int, slot_ms: int | None, queue_id: int) -> bytes:
        """The properties of a record."""
        stored = f"TIMER_DELIVER_MS\1{deliver_ms}\2UNIQ_KEY\1{key}\2TAGS\1{tag}\2"
        if slot_ms is not None:
            waits = f"TIMER_OUT_MS\1{slot_ms}\2REAL_QID\1{queue_id}\2"
            stored = f"REAL_TOPIC\1{self._topic}\2{stored}{waits}"
        return stored.encode()

    def _checked(self, revive_queue_id: int) -> int:
        """Give a revive queue that there is."""
        count = self.queue_count
        if not 0 <= revive_queue_id < count:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"reviveQid[{revive_queue_id}] is illegal, there are {count} revive queues"
            )
        return revive_queue_id
