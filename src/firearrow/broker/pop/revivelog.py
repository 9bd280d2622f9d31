"""ReviveLog of popped messages: checkpoints and acknowledgements in the revive topic (``wire.poprecords``).

Each record waits in the timer's topic, like any message with a delivery time. Its properties, in the order of
RocketMQ's broker (of a Java HashMap)::

    REAL_TOPIC         rmq_sys_REVIVE_LOG_<cluster>
    TIMER_DELIVER_MS   of a checkpoint, a second before its messages are visible; of an acknowledgement, when they are
    UNIQ_KEY           <topic>@<queue>@<start offset>@<group>@<pop time>@<broker>@ck
                       <topic>@<queue>@<offset or -1>@<group>@<pop time>@<broker>@ack
    TAGS               ck, ack or bAck
    TIMER_OUT_MS       the slot of the timer, see ``broker.timing.timer``
    REAL_QID           the revive queue

Messages that are consumed at once do not wait: if the last message of a checkpoint is acknowledged before the
checkpoint is on the timer's wheel, neither the checkpoint nor its acknowledgements get there (`TimerStore.spare`). They
are in the log all the same. A start, also RocketMQ's, that finds no unit behind them in the timer log puts them on the
wheel: all, or the last of them, which are acknowledgements without a checkpoint, and these have no effect. If consumers
are as fast as the broker, this saves four fifths of the cost of nearly all records.

Source: RocketMQ ``PopMessageProcessor#buildCkMsg``, ``AckMessageProcessor#appendAck``,
``PopBufferMergeService#addCkJustOffset``.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.metrics.tally import ACK, CK
from firearrow.broker.offsets.table import UNKNOWN, ConsumerOffsets
from firearrow.broker.timing.timer import TimerRedirection
from firearrow.errors import BrokerError, MessageError
from firearrow.message import names
from firearrow.message.names import tag_code
from firearrow.store import Boundary, MessageStore, TimerStore
from firearrow.wire.codes import ResponseCode
from firearrow.wire.pop import Handle, origin_of, parse_handle, split_handle
from firearrow.wire.poprecords import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_LEAD_MS,
    CHECKPOINT_TAG,
    AckFormat,
    Acknowledgement,
    PopCheckpoint,
    checkpoint_of,
    encode,
)

BATCHES_MAX: Final = 20_000
"""Newer batches in memory until all messages are acknowledged, and as many older ones; a kilobyte each."""
_DISTANCE_MAX: Final = 4096  # from the first message of a batch to one whose acknowledgement is followed

_Key = tuple[str, str, str, int]


class PopBatch:
    """Messages of a queue that one pop took, as their acknowledgements see them.

    All of them share the ``handle``. ``open`` contains a bit for each message that is not acknowledged, by its distance
    from the first; it is 0 if acknowledgements are not followed. ``places`` are the queue offsets of the batch's
    records in the timer's queue.
    """

    __slots__ = (
        *("ack_format", "group", "handle", "key", "open", "places", "queue_id"),
        *("stored_before", "stored_behind", "topic", "visible_ms"),
    )

    group: str
    topic: str
    queue_id: int

    def __init__(self, key: _Key, handle: Handle) -> None:
        self.key = key
        _, self.group, self.topic, self.queue_id = key
        self.handle = handle
        self.visible_ms: int = handle.visible_ms
        self.open = 0
        self.places: list[int] = []
        self.ack_format: AckFormat | None = None
        self.stored_before = self.stored_behind = b""

    def acknowledgement(self, queue_offset: int, queue_offsets: list[int] | None = None) -> Acknowledgement:
        """Return the record that acknowledges one message, or several."""
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


class ReviveLog:
    """Write checkpoints and acknowledgements to the revive topic.

    Each write raises BrokerError, DiskFull or MessageError with nothing written.
    """

    def __init__(self, context: BrokerContext, timers: TimerStore) -> None:
        config = context.settings.broker
        self._topic = names.revive_topic(config.broker_cluster_name)
        self._topics = context.topics
        self._puts = context.puts
        self._store = context.store
        self._timers = timers
        self._timer = TimerRedirection(context.settings, timers, context.chance)
        self._timer_queue = context.store.queue(names.TIMER_TOPIC, 0)
        self._waits = WaitsElsewhere(names.TIMER_TOPIC, self._topic)
        self._settings = context.settings
        self._tally = context.stats.tally
        self._next_queue = 0
        self._batches: dict[_Key, PopBatch] = {}
        self._older: dict[_Key, PopBatch] = {}

    # --- revive queues ---

    @property
    def queue_count(self) -> int:
        """Number of revive queues."""
        config = self._topics.get(self._topic)
        return 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)

    def next_queue_id(self) -> int:
        """Return the revive queue of the next pop, in turn."""
        count = max(min(self._settings.broker.revive_queue_num, self.queue_count), 1)
        self._next_queue = (self._next_queue + 1) % count
        return self._next_queue

    def _checked(self, revive_queue_id: int) -> int:
        """Return an existing revive queue."""
        count = self.queue_count
        if not 0 <= revive_queue_id < count:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"reviveQid[{revive_queue_id}] is illegal, there are {count} revive queues"
            )
        return revive_queue_id

    # --- acknowledgements ---

    def batch(self, text: str, group: str, topic: str, queue_id: int) -> PopBatch:
        """Return the batch of a message by its handle; MessageError if the text is no handle."""
        key = split_handle(text), group, topic, queue_id
        batch = self._batches.get(key)
        if batch is None:
            batch = self._older.pop(key, None) or PopBatch(key, parse_handle(key[0]))
            self._remember(batch)
        return batch

    def batch_of(self, handle: Handle, group: str, topic: str, queue_id: int) -> PopBatch:
        """Return the batch of a parsed handle."""
        key = handle.head, group, topic, queue_id
        return self._batches.get(key) or self._older.get(key) or PopBatch(key, handle)

    def acknowledge(self, batch: PopBatch, queue_offset: int, now_ms: int) -> None:
        """Write the acknowledgement of one message."""
        form = batch.ack_format
        is_last = not batch.open & (batch.open - 1)  # to prepare for one costs more than it saves
        if batch.visible_ms <= now_ms or (is_last and form is None):
            place = self._put_ack(batch, batch.acknowledgement(queue_offset), now_ms)
            self._note(batch, [queue_offset], place)
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

    def acknowledge_all(self, batch: PopBatch, queue_offsets: list[int], now_ms: int) -> None:
        """Write the acknowledgement of several messages of a batch, as one record."""
        place = self._put_ack(batch, batch.acknowledgement(-1, queue_offsets), now_ms)
        self._note(batch, queue_offsets, place)

    def _prepare(self, batch: PopBatch, now_ms: int) -> AckFormat:
        """Format the bytes that all acknowledgements of a batch have in common."""
        queue_id = self._checked(batch.handle.revive_queue_id)
        slot_ms = self._timer.slot_ms(batch.visible_ms, now_ms)
        form = batch.acknowledgement(0).format()
        stored = self._stored("\0", ACK_TAG, batch.visible_ms, slot_ms, queue_id)
        before, _, behind = stored.partition(b"\0")
        batch.stored_before = before + form.key_before
        batch.stored_behind = form.key_behind + behind
        batch.ack_format = form
        return form

    def _note(self, batch: PopBatch, queue_offsets: list[int], place: int) -> None:
        if batch.open and place >= 0:
            batch.places.append(place)
            self._close(batch, queue_offsets)

    def _put_ack(self, batch: PopBatch, ack: Acknowledgement, now_ms: int) -> int:
        revive_queue_id, visible_ms = batch.handle.revive_queue_id, batch.visible_ms
        return self.put_acknowledgement(ack, revive_queue_id, visible_ms, now_ms)

    # --- records without a wait ---

    def _follow(self, batch: PopBatch, checkpoint: PopCheckpoint, place: int) -> None:
        """Follow the acknowledgements of a checkpoint whose record is at a place of the timer's queue."""
        deltas = checkpoint.deltas
        assert deltas, "the messages that were popped"
        if deltas[-1] < _DISTANCE_MAX and deltas[0] >= 0:
            batch.open = (1 << checkpoint.count) - 1
            if deltas[-1] != checkpoint.count - 1 or checkpoint.acknowledged_bits:
                start = checkpoint.start_offset
                batch.open = sum([1 << queue_offset - start for queue_offset in checkpoint.left])
            batch.places.append(place)
        self._remember(batch)

    def _remember(self, batch: PopBatch) -> None:
        if len(self._batches) >= BATCHES_MAX:
            self._older, self._batches = self._batches, {}
        self._batches[batch.key] = batch

    def _close(self, batch: PopBatch, queue_offsets: list[int]) -> None:
        """Count messages as acknowledged; spare the timer all records of the batch after the last message."""
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

    def put_checkpoint(self, checkpoint: PopCheckpoint, revive_queue_id: int, now_ms: int) -> None:
        """Write a checkpoint."""
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
            self._follow(PopBatch(known, handle), checkpoint, place)

    def put_acknowledgement(self, ack: Acknowledgement, revive_queue_id: int, visible_ms: int, now_ms: int) -> int:
        """Write an acknowledgement; return its queue offset in the timer's queue, -1 if its time is over."""
        tag = BATCH_ACK_TAG if ack.queue_offsets else ACK_TAG
        if self._tally is not None:
            self._tally.revive_in.add((ack.group, ack.topic, ACK))
        return self._put(encode(ack), revive_queue_id, tag, ack.unique_key(), visible_ms, now_ms)

    def _put(self, body: bytes, queue_id: int, tag: str, key: str, deliver_ms: int, now_ms: int) -> int:
        """Write a record; return its queue offset in the timer's queue, -1 if its time is over."""
        queue_id = self._checked(queue_id)
        slot_ms = self._timer.slot_ms(deliver_ms, now_ms)
        stored = self._stored(key, tag, deliver_ms, slot_ms, queue_id)
        if slot_ms is None:
            queue = self._store.queue(self._topic, queue_id)
            self._puts.put_waiting(queue, body, stored, None, now_ms)
            return -1
        return self._puts.put_waiting(self._timer_queue, body, stored, self._waits, now_ms)

    def _stored(self, key: str, tag: str, deliver_ms: int, slot_ms: int | None, queue_id: int) -> bytes:
        """Properties of a record."""
        stored = f"TIMER_DELIVER_MS\1{deliver_ms}\2UNIQ_KEY\1{key}\2TAGS\1{tag}\2"
        if slot_ms is not None:
            waits = f"TIMER_OUT_MS\1{slot_ms}\2REAL_QID\1{queue_id}\2"
            stored = f"REAL_TOPIC\1{self._topic}\2{stored}{waits}"
        return stored.encode()


# --- offsets of groups after a kill ---
#
# Offsets are written every few seconds, checkpoints at once. So a start reads the checkpoints of the last seconds, and
# a checkpoint that begins at its group's offset moves the group behind its messages. These messages then stay invisible
# until their time, and are not redelivered at once.
#
# A group never passes a message without a checkpoint. If pops were noted elsewhere, or their filter matched nothing,
# the group stays at its offset, and messages popped behind it are redelivered once. RocketMQ repeats all pops since it
# wrote the offsets.

RECORDS_MAX: Final = 500_000  # the last records of the timer's topic; a second or two
_CHECKPOINT: Final = tag_code(CHECKPOINT_TAG)


def go_on_behind_pops(store: MessageStore, offsets: ConsumerOffsets, seconds: float) -> int:
    """Move groups behind their pops of the last ``seconds`` of a store; return the count of these pops."""
    end = store.max_queue_offset(names.TIMER_TOPIC, 0)
    last_ms = store.store_time_of(names.TIMER_TOPIC, 0, end - 1)
    if last_ms < 0:
        return 0
    first_ms = last_ms - int(seconds * 1000)
    first = store.search_offset(names.TIMER_TOPIC, 0, first_ms, Boundary.LOWER)
    first = max(first, end - RECORDS_MAX)
    moved = 0
    for _, physical_offset, _, kind in store.iterate_from(names.TIMER_TOPIC, 0, first):
        if kind == _CHECKPOINT:
            try:
                body = store.content_at(physical_offset).body
                moved += _go_on_behind(body, store, offsets)
            except MessageError:  # the redelivery logs it
                continue
    return moved


def _go_on_behind(body: bytes, store: MessageStore, offsets: ConsumerOffsets) -> bool:
    popped = checkpoint_of(body)
    topic, queue_id = popped.topic, popped.queue_id
    known = offsets.query(popped.group, topic, queue_id)
    if not popped.count or known not in {UNKNOWN, popped.start_offset}:
        return False
    behind = popped.queue_offset(popped.count - 1) + 1
    if behind > store.max_queue_offset(topic, queue_id):
        return False
    offsets.commit(popped.group, topic, queue_id, behind)
    return True
