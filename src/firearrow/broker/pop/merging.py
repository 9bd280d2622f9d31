"""Open records of a revive queue: checkpoints that are not done, less their acknowledgements.

An acknowledgement comes behind its checkpoint, but for one that is so late that it did not wait for
its time while its checkpoint still does. Such *early* ones are kept for the moment that takes. All
others that find no checkpoint open are of messages that were consumed too late.

Source: upstream ``PopReviveService#consumeReviveMessage``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from firearrow.broker.pop.records import Acknowledgement, Checkpoint

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
