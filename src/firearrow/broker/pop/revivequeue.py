"""A revive queue: how far it is read, and which checkpoints of it are open.

A checkpoint may be done with when everything is read that acknowledged its messages in time. At the
end of the queue that is so if the timer has delivered what was for that time. Before the end, its
records tell: one that the timer has delivered comes behind all that were for an earlier time, and
one that was stored late enough behind all that did not wait.

There is room for `OPEN_MAX` open checkpoints. Of what is read beyond them only acknowledgements
count, and when most of those checkpoints are done, it is read again.

Source: upstream ``PopReviveService#consumeReviveMessage``.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final, NamedTuple

from firearrow.broker.metrics.tally import ACK, CK, Tally
from firearrow.broker.pop.records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    Acknowledgement,
    Checkpoint,
    acknowledgement_of,
    checkpoint_of,
)
from firearrow.errors import MessageError, StoreError
from firearrow.message import properties
from firearrow.message.names import tag_code
from firearrow.message.record import Content
from firearrow.store import MessageStore

log = logging.getLogger(__name__)

LATE_MS: Final = 2000  # so late an acknowledgement still counts; Java: ackTimeInterval + SECOND
READ_RECORDS: Final = 16  # in a step: some 0.3 ms
OPEN_MAX: Final = 25_000  # checkpoints in memory: some 20 MB
FAILURES_SAID_MAX: Final = 100  # records that are named in the log

_CHECKPOINT: Final = tag_code(CHECKPOINT_TAG)
_ACKS: Final = frozenset(map(tag_code, (ACK_TAG, BATCH_ACK_TAG)))
_timer_out: Final = properties.finder(properties.TIMER_OUT_MS)


class ReviveQueue:
    """One queue of the revive topic; ``next_offset`` is where reading begins, ``broker_name`` whose
    records are that name no broker. A ``tally`` counts what is read."""

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
        self.merging = Merging(broker_name)
        self.known_ms = 0
        """Up to which time what was acknowledged is read, while there is more to read."""
        self.saved = next_offset
        """Up to where it is noted that it is not needed any more."""
        self._store = store
        self._tally = tally
        self._next = next_offset
        self._put_off = -1  # the first checkpoint that there was no room for
        self._failures = 0

    @property
    def needed(self) -> int:
        """The first queue offset that a start needs."""
        needed = self.merging.needed_offset(self._next)
        return min(needed, self._put_off) if self._put_off >= 0 else needed

    @property
    def next_offset(self) -> int:
        """The first queue offset that is not read."""
        return self._next

    @property
    def is_put_off(self) -> bool:
        """Tell whether there is no room for some checkpoints that were read."""
        return self._put_off >= 0

    @property
    def is_read(self) -> bool:
        """Tell whether it is read to its end."""
        return self._next >= self._store.max_queue_offset(self.topic, self.queue_id)

    def read_some(self) -> list[Open]:
        """Read some records; give the checkpoints that are open since then.

        StoreError if there are some that can't be read now: they will be read before others.
        """
        store, topic, queue_id = self._store, self.topic, self.queue_id
        at = max(self._next, store.min_queue_offset(topic, queue_id))
        added: list[Open] = []
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

    def _take(self, kind: int, content: Content, revive_offset: int) -> Open | None:
        """Note what a record says; MessageError if that can't be read."""
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
                "record of popped messages is left out: it can't be read",
                extra={"topic": self.topic, "queue_id": self.queue_id, "queue_offset": revive_offset, "error": error},
            )

    def go_back(self) -> bool:
        """Read again from where there was no room, if there is some now."""
        goes = self._put_off >= 0 and len(self.merging) <= OPEN_MAX // 2
        if goes:
            self._next, self._put_off, self.known_ms = self._put_off, -1, 0
        return goes


# Open records of a revive queue: checkpoints that are not done, less their acknowledgements.
#
#  An acknowledgement comes behind its checkpoint, but for one that is so late that it did not wait for its time
# while its checkpoint still does. Such *early* ones are kept for the moment that takes. All others that find no
# checkpoint open are of messages that were consumed too late.
#
# Source: upstream ``PopReviveService#consumeReviveMessage``.


EARLY_MAX: Final = 10_000  # beyond it, the oldest is forgotten: its message comes again

Key = tuple[str, str, int, int, int, str]
"""What a checkpoint and its acknowledgements have in common."""


def key_of(record: Checkpoint | Acknowledgement, broker_name: str) -> Key:
    """Give the key of a record; ``broker_name`` is whose it is if it names no broker."""
    return (
        record.topic,
        record.group,
        record.queue_id,
        record.start_offset,
        record.pop_ms,
        record.broker_name or broker_name,
    )


class Open:
    """A checkpoint of which messages are left: bit i of ``left`` is for the message i of it.

    ``revive_offset`` is its own queue offset in the revive queue, -1 if it is not there yet.
    """

    __slots__ = ("checkpoint", "key", "left", "revive_offset")

    def __init__(self, checkpoint: Checkpoint, key: Key, revive_offset: int = -1) -> None:
        self.checkpoint = checkpoint
        self.key = key
        self.left = ((1 << checkpoint.count) - 1) & ~checkpoint.acknowledged_bits
        self.revive_offset = revive_offset

    @property
    def acknowledged_bits(self) -> int:
        """A bit for each message that is not left, as a checkpoint has them: in a Java int."""
        bits = ((1 << self.checkpoint.count) - 1) & ~self.left
        return bits - (bits >> 31 << 32)

    def acknowledge(self, queue_offset: int) -> None:
        """Take a message out; one that the checkpoint does not have changes nothing."""
        checkpoint = self.checkpoint
        at = queue_offset - checkpoint.start_offset
        deltas = checkpoint.deltas
        if deltas and at >= 0 and (at >= len(deltas) or deltas[at] != at):
            at = deltas.index(at) if at in deltas else -1
        if 0 <= at < checkpoint.count:
            self.left &= ~(1 << at)


class _Early(NamedTuple):
    """Acknowledgements of a checkpoint that has not come yet."""

    revive_offset: int
    stored_ms: int
    queue_offsets: list[int]


class Merging:
    """The open checkpoints of one revive queue; ``broker_name`` is whose all are that name none."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name
        self._open: OrderedDict[Key, Open] = OrderedDict()  # as they came
        self._early: OrderedDict[Key, _Early] = OrderedDict()
        self._alike: dict[Key, int] = {}  # of some that are open, from where on a start must read
        self._closed = -1  # the last checkpoint that was closed

    def __len__(self) -> int:
        """Number of open checkpoints."""
        return len(self._open)

    def add(self, checkpoint: Checkpoint, revive_offset: int) -> Open | None:
        """Keep a checkpoint; None if nothing is left of it, or it is kept already."""
        key = key_of(checkpoint, self._broker_name)
        known = self._open.get(key)
        if known is not None:
            if known.checkpoint == checkpoint:
                return None  # a timer that was killed delivers some again
            # Java: ChangeInvisibleTimeProcessor may note a message anew by the name of its pop.
            # Then what is acknowledged is the older one, as long as a start reads both, too.
            key = (*key[:5], f"{key[5]} {revive_offset}")
            self._alike[key] = known.revive_offset
        added = Open(checkpoint, key, revive_offset)
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
        """Take what was acknowledged out of its checkpoint, which otherwise may still come."""
        key = key_of(ack, self._broker_name)
        found = self._open.get(key)
        if found is None:
            if may_be_early:
                self._keep_early(key, _Early(revive_offset, stored_ms, ack.acknowledged))
            return
        for queue_offset in ack.acknowledged:
            found.acknowledge(queue_offset)
        if not found.left:
            del self._open[key]

    def _keep_early(self, key: Key, early: _Early) -> None:
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
        """Tell whether acknowledgements wait for their checkpoint."""
        return bool(self._early)

    def close(self, done: Open) -> None:
        """Note that nothing is left of a checkpoint."""
        done.left = 0
        self._closed = max(self._closed, done.revive_offset)
        del self._open[done.key]
        self._alike.pop(done.key, None)

    def before_closed(self) -> list[Open]:
        """Give what is open, has the name that its record has, and is before what was closed: a
        start that reads it finds that open, too."""
        return [] if self._alike else [popped for popped in self._open.values() if popped.revive_offset < self._closed]

    def forget(self, moved: list[Open]) -> None:
        """Forget what is noted behind all that is here."""
        for popped in moved:
            del self._open[popped.key]
        while self._early and next(iter(self._early.values())).revive_offset < self._closed:
            self._early.popitem(last=False)

    def needed_offset(self, next_offset: int) -> int:
        """Give the first offset of the revive queue that a start needs, if it was read up to
        before one."""
        if self._open:
            next_offset = next(iter(self._open.values())).revive_offset
        if self._early:
            early = next(iter(self._early.values()))
            next_offset = min(next_offset, early.revive_offset)
        return min(next_offset, *self._alike.values()) if self._alike else next_offset
