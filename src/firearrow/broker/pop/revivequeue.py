"""Reader of a revive queue, and the open checkpoints of the queue.

A checkpoint may be redelivered when all acknowledgements that came in time are read. At the end of the queue this is so
once the timer has delivered all records for that time. Before the end, the records tell it: a record that the timer has
delivered comes behind all records for an earlier time, and one that was stored late enough comes behind all records
that did not wait.

There is room for `OPEN_MAX` open checkpoints. Behind them only acknowledgements count, and when most open checkpoints
are done, the queue is read again from the first checkpoint without room.

An acknowledgement comes behind its checkpoint, with one exception: one that is late does not wait for its time, and may
come while its checkpoint still waits. Such *early* acknowledgements are kept for that moment. All others without an
open checkpoint are too late.

Source: RocketMQ ``PopReviveService#consumeReviveMessage``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from firearrow.broker.metrics.tally import ACK, CK, Tally
from firearrow.errors import MessageError, StoreError
from firearrow.logs import Log
from firearrow.message import properties
from firearrow.message.names import tag_code
from firearrow.message.record import Content
from firearrow.store import MessageStore
from firearrow.wire.poprecords import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    Acknowledgement,
    PopCheckpoint,
    acknowledgement_of,
    checkpoint_of,
)

log: Final = Log(__name__)

LATE_MS: Final = 2000  # an acknowledgement may be late by this; Java: ackTimeInterval + SECOND
READ_RECORDS: Final = 16  # in a step: some 0.3 ms
OPEN_MAX: Final = 25_000  # in memory: some 20 MB
FAILURES_SAID_MAX: Final = 100  # records that the log names

_CHECKPOINT: Final = tag_code(CHECKPOINT_TAG)
_ACKS: Final = frozenset(map(tag_code, (ACK_TAG, BATCH_ACK_TAG)))
_timer_out: Final = properties.finder(properties.TIMER_OUT_MS)


class ReviveQueue:
    """Reader of one queue of the revive topic, from ``next_offset`` on.

    ``broker_name`` is the broker of records without one. A ``tally`` counts records.
    """

    def __init__(
        self,
        store: MessageStore,
        topic: str,
        queue_id: int,
        next_offset: int,
        broker_name: str,
        tally: Tally | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.merging: Final = OpenCheckpoints(broker_name)
        self.known_ms: int = 0
        """Time up to which all acknowledgements are read, while there are more records to read."""
        self.saved = next_offset
        """Offset up to which the records are noted as no longer needed."""
        self._store = store
        self._tally = tally
        self._next = next_offset
        self._put_off = -1  # offset of the first checkpoint without room
        self._failures = 0

    @property
    def needed(self) -> int:
        """First queue offset that a start needs."""
        needed = self.merging.needed_offset(self._next)
        return min(needed, self._put_off) if self._put_off >= 0 else needed

    @property
    def next_offset(self) -> int:
        """First queue offset that is not read."""
        return self._next

    @property
    def is_put_off(self) -> bool:
        """Return whether there is no room for some checkpoints that were read."""
        return self._put_off >= 0

    @property
    def is_read(self) -> bool:
        """Return whether the queue is read to its end."""
        return self._next >= self._store.max_queue_offset(self.topic, self.queue_id)

    def read_some(self) -> list[OpenCheckpoint]:
        """Read some records; return the new open checkpoints.

        Raise StoreError if records can't be read now: they will be read before others.
        """
        store, topic, queue_id = self._store, self.topic, self.queue_id
        at = max(self._next, store.min_queue_offset(topic, queue_id))
        added: list[OpenCheckpoint] = []
        content = None
        for revive_offset, physical_offset, _, kind in store.iterate_from(topic, queue_id, at, READ_RECORDS):
            try:
                content = store.content_at(physical_offset)
                new = self._take(kind, content, revive_offset)
            except MessageError as error:
                self._note_failure(revive_offset, error)
            else:
                if new is not None:
                    added.append(new)
            self._next = revive_offset + 1
        if self._next <= at:
            raise StoreError(f"queue {queue_id} of {topic} can't be read at {at}")
        if content is not None:
            slot = _timer_out(content.properties) or b""
            delivered_ms = int(slot) if slot.isdigit() and len(slot) < 19 else 0
            self.known_ms = min(delivered_ms, content.store_timestamp_ms - LATE_MS)
        return added

    def _take(self, kind: int, content: Content, revive_offset: int) -> OpenCheckpoint | None:
        """Merge a record; MessageError if it can't be decoded."""
        has_room = self._put_off < 0
        if kind == _CHECKPOINT:
            if has_room and len(self.merging) >= OPEN_MAX:
                self._put_off, has_room = revive_offset, False
            if has_room:
                checkpoint = checkpoint_of(content.body)
                if self._tally is not None:
                    key = checkpoint.group, checkpoint.topic, CK, self.queue_id
                    self._tally.revive_out.add(key)
                return self.merging.add(checkpoint, revive_offset)
        elif kind in _ACKS:
            ack, stored_ms = acknowledgement_of(content.body), content.store_timestamp_ms
            if self._tally is not None:
                self._tally.revive_out.add((ack.group, ack.topic, ACK, self.queue_id))
            self.merging.acknowledge(ack, revive_offset, stored_ms, may_be_early=has_room)
        return None

    def _note_failure(self, revive_offset: int, error: MessageError) -> None:
        self._failures += 1
        if self._failures <= FAILURES_SAID_MAX:
            log.error(
                "record of popped messages is skipped: it can't be read",
                extra={"topic": self.topic, "queue_id": self.queue_id, "queue_offset": revive_offset, "error": error},
            )

    def go_back(self) -> bool:
        """Read again from the first checkpoint without room, if there is room now; return whether there is."""
        goes = self._put_off >= 0 and len(self.merging) <= OPEN_MAX // 2
        if goes:
            self._next, self._put_off, self.known_ms = self._put_off, -1, 0
        return goes


# --- open checkpoints ---

EARLY_MAX: Final = 10_000  # beyond it, the oldest is forgotten: its message is redelivered

Key = tuple[str, str, int, int, int, str]
"""Fields that a checkpoint and its acknowledgements have in common."""


def key_of(record: PopCheckpoint | Acknowledgement, broker_name: str) -> Key:
    """Return the key of a record; ``broker_name`` is the broker of a record without one."""
    return (
        record.topic,
        record.group,
        record.queue_id,
        record.start_offset,
        record.pop_ms,
        record.broker_name or broker_name,
    )


class OpenCheckpoint:
    """Checkpoint with unacknowledged messages: bit i of ``left`` is for message i.

    ``revive_offset`` is its queue offset in the revive queue, -1 if it is not there yet.
    """

    __slots__ = ("checkpoint", "key", "left", "revive_offset")

    def __init__(self, checkpoint: PopCheckpoint, key: Key, revive_offset: int = -1) -> None:
        self.checkpoint: PopCheckpoint = checkpoint
        self.key: Key = key
        self.left: int = ((1 << checkpoint.count) - 1) & ~checkpoint.acknowledged_bits
        self.revive_offset: Final = revive_offset

    @property
    def acknowledged_bits(self) -> int:
        """A bit for each acknowledged message, in a Java int as in a checkpoint."""
        bits = ((1 << self.checkpoint.count) - 1) & ~self.left
        return bits - (bits >> 31 << 32)

    def acknowledge(self, queue_offset: int) -> None:
        """Note that a message is acknowledged; a message that the checkpoint does not have changes nothing."""
        checkpoint = self.checkpoint
        at = queue_offset - checkpoint.start_offset
        deltas = checkpoint.deltas
        if deltas and at >= 0 and (at >= len(deltas) or deltas[at] != at):
            at = deltas.index(at) if at in deltas else -1
        if 0 <= at < checkpoint.count:
            self.left &= ~(1 << at)


class _EarlyAcks(NamedTuple):
    """Acknowledgements of a checkpoint that has not come yet."""

    revive_offset: int
    stored_ms: int
    queue_offsets: list[int]


class OpenCheckpoints:
    """Open checkpoints of one revive queue; ``broker_name`` is the broker of records without one."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name
        self._open: OrderedDict[Key, OpenCheckpoint] = OrderedDict()  # in the order of arrival
        self._early: OrderedDict[Key, _EarlyAcks] = OrderedDict()
        self._alike: dict[Key, int] = {}  # by checkpoint that shares a name, the first offset that a start must read
        self._closed = -1  # revive offset of the last closed checkpoint

    def __len__(self) -> int:
        """Number of open checkpoints."""
        return len(self._open)

    def add(self, checkpoint: PopCheckpoint, revive_offset: int) -> OpenCheckpoint | None:
        """Open a checkpoint; return None if no message of it is left, or it is open already."""
        key = key_of(checkpoint, self._broker_name)
        known = self._open.get(key)
        if known is not None:
            if known.checkpoint == checkpoint:
                return None  # after a kill the timer delivers some again
            # Java: ChangeInvisibleTimeProcessor may repeat the name of a pop for a message.
            # Then acknowledgements are for the older checkpoint, as long as a start reads both, too.
            key = (*key[:5], f"{key[5]} {revive_offset}")
            self._alike[key] = known.revive_offset
        added = OpenCheckpoint(checkpoint, key, revive_offset)
        early = self._early.pop(key, None) if self._early else None
        if early is not None:
            for queue_offset in early.queue_offsets:
                added.acknowledge(queue_offset)
        if not added.left:
            return None
        self._open[key] = added
        return added

    def acknowledge(
        self, ack: Acknowledgement, revive_offset: int, stored_ms: int, *, may_be_early: bool = True
    ) -> None:
        """Merge an acknowledgement into its checkpoint, which may still come if it ``may_be_early``."""
        key = key_of(ack, self._broker_name)
        found = self._open.get(key)
        if found is None:
            if may_be_early:
                self._keep_early(key, _EarlyAcks(revive_offset, stored_ms, ack.acknowledged))
            return
        for queue_offset in ack.acknowledged:
            found.acknowledge(queue_offset)
        if not found.left:
            del self._open[key]

    def _keep_early(self, key: Key, early: _EarlyAcks) -> None:
        known = self._early.get(key)
        if known is not None:
            known.queue_offsets.extend(early.queue_offsets[: EARLY_MAX - len(known.queue_offsets)])
            return
        if len(self._early) >= EARLY_MAX:
            self._early.popitem(last=False)
        self._early[key] = early

    def forget_early(self, before_ms: int) -> None:
        """Forget acknowledgements that were stored before a time: no checkpoint comes for them."""
        while self._early:
            if next(iter(self._early.values())).stored_ms >= before_ms:
                break
            self._early.popitem(last=False)

    @property
    def has_early(self) -> bool:
        """Return whether acknowledgements wait for their checkpoint."""
        return bool(self._early)

    def close(self, done: OpenCheckpoint) -> None:
        """Note that no message of a checkpoint is left."""
        done.left = 0
        self._closed = max(self._closed, done.revive_offset)
        del self._open[done.key]
        self._alike.pop(done.key, None)

    def before_closed(self) -> list[OpenCheckpoint]:
        """Return the open checkpoints before the last closed one that keep the name of their record.

        A start that reads them opens them again. Return none if checkpoints share a name.
        """
        return [] if self._alike else [popped for popped in self._open.values() if popped.revive_offset < self._closed]

    def forget(self, moved: list[OpenCheckpoint]) -> None:
        """Forget checkpoints that were written again behind all others."""
        for popped in moved:
            del self._open[popped.key]
        while self._early and next(iter(self._early.values())).revive_offset < self._closed:
            self._early.popitem(last=False)

    def needed_offset(self, next_offset: int) -> int:
        """Return the first offset of the revive queue that a start needs, if it was read up to before
        ``next_offset``."""
        if self._open:
            next_offset = next(iter(self._open.values())).revive_offset
        if self._early:
            early = next(iter(self._early.values()))
            next_offset = min(next_offset, early.revive_offset)
        return min(next_offset, *self._alike.values()) if self._alike else next_offset
