"""Checkpoints that stay in memory for some seconds, so that most need no record (``enablePopBufferMerge``).

Most checkpoints are acknowledged within that time. The others are written when they are ten seconds old
(``popCkStayBufferTime``), when their messages will be visible in three (``popCkStayBufferTimeOut``), or at a stop. The
record has a bit for each acknowledgement meanwhile, so these acknowledgements need no record either.
Java: PopBufferMergeService#scan visits all checkpoints every 5 ms, and writes a record for each acknowledgement. Here
one alarm waits for the next checkpoint that must be written.

While a checkpoint is neither acknowledged nor written, its group's committed offset is that of its first message. After
a kill the group pops its messages once more. Other pops go on behind the last popped message.

Source: RocketMQ ``PopBufferMergeService``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush, heapreplace
from typing import Final, NamedTuple

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.books import Batch, Books
from firearrow.broker.pop.records import Checkpoint
from firearrow.broker.pop.revivequeue import Key, Open, key_of
from firearrow.broker.turns import RETRY_SECONDS, TurnService, steps_of_turn
from firearrow.errors import BrokerError, MessageError, StoreError
from firearrow.services import Scheduler
from firearrow.store import QueuesDeleted

log = logging.getLogger(__name__)

EARLY_MS: Final = 1500  # a checkpoint that would stay in memory for less is written at once
LOOK_SECONDS_MAX: Final = 1.0  # until a change of the wall clock is noticed
_ALWAYS_MS: Final = 1 << 62
BITS_MAX: Final = 32  # of a Java int


class Kept(Open):
    """Checkpoint in memory, and the revive queue that it is for."""

    __slots__ = ("revive_queue_id",)

    def __init__(self, checkpoint: Checkpoint, key: Key, revive_queue_id: int) -> None:
        super().__init__(checkpoint, key)
        self.revive_queue_id = revive_queue_id


class _Place(NamedTuple):
    """Offset at which a group goes on once a checkpoint, if there is one, is no longer in memory."""

    next_offset: int
    kept: Kept | None


class _Line:
    """Places of a group in a queue, of which the group has not reached the first one yet.

    ``committed`` is the offset that is committed for the group. If somebody else moves it, the places are void.
    """

    __slots__ = ("committed", "places")

    def __init__(self, committed: int) -> None:
        self.committed = committed
        self.places: deque[_Place] = deque()


class Due(NamedTuple):
    """Time at which a checkpoint must be written; ``number`` keeps the order of equal ones."""

    at_ms: int
    number: int
    kept: Kept


class BufferedBooks(Books, TurnService):
    """Books that keep checkpoints in memory for a while, if the configuration enables that."""

    def __init__(self, context: BrokerContext, scheduler: Scheduler) -> None:
        Books.__init__(self, context)
        TurnService.__init__(self, "checkpoints of pops", scheduler)
        self._clock = context.clock
        self._kept: dict[Key, Kept] = {}
        self._lines: dict[tuple[str, str, int], _Line] = {}
        self._due: list[Due] = []  # a heap; some of its checkpoints are acknowledged meanwhile
        self._number = 0

    @property
    def kept_checkpoints(self) -> int:
        """Number of checkpoints that are in memory only."""
        return len(self._kept)

    @property
    def kept_offsets(self) -> int:
        """Number of places of groups in queues that are in memory only."""
        return sum(len(line.places) for line in self._lines.values())

    # --- pops ---

    def offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset that a group pops from, -1 if it has none."""
        committed = super().offset(group, topic, queue_id)
        if self._lines:
            line = self._line(topic, group, queue_id, committed)
            if line is not None:
                return line.places[-1].next_offset
        return committed

    def offsets(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets that a group pops from, by queue; of queues that need a closer look, none."""
        return {} if self._lines else super().offsets(group, topic)

    def _line(self, topic: str, group: str, queue_id: int, committed: int) -> _Line | None:
        """Return the places of a group in a queue, unless somebody else has moved the group."""
        line = self._lines.get((topic, group, queue_id))
        if line is not None and line.committed != committed:
            del self._lines[topic, group, queue_id]
            return None
        return line

    def popped(self, checkpoint: Checkpoint, revive_queue_id: int, next_offset: int, now_ms: int) -> None:
        """Note that messages are popped, and that the group goes on at an offset.

        Raises BrokerError, DiskFull or MessageError with nothing noted: then the messages are not popped.
        """
        if not self._lines and not self._keeps:
            super().popped(checkpoint, revive_queue_id, next_offset, now_ms)
            return
        topic, group, queue_id = checkpoint.topic, checkpoint.group, checkpoint.queue_id
        committed = super().offset(group, topic, queue_id)
        line = self._line(topic, group, queue_id, committed)
        key = key_of(checkpoint, self._broker_name)
        at_ms = self._kept_until(checkpoint)
        if at_ms - now_ms < EARLY_MS or not self._has_room(checkpoint, key, line):
            self.put_checkpoint(checkpoint, revive_queue_id, now_ms)
            if line is None:
                self._offsets.commit(group, topic, queue_id, next_offset)
            else:
                line.places.append(_Place(next_offset, None))
            return
        kept = self._keep_in_memory(checkpoint, revive_queue_id, now_ms)
        if line is None:
            line = self._lines[key[:3]] = _Line(committed)
        line.places.append(_Place(next_offset, kept))

    def _keep_in_memory(self, checkpoint: Checkpoint, revive_queue_id: int, now_ms: int) -> Kept:
        key, at_ms = key_of(checkpoint, self._broker_name), self._kept_until(checkpoint)
        kept = self._kept[key] = Kept(checkpoint, key, revive_queue_id)
        self._plan(at_ms, kept)
        self._wake(max(at_ms - now_ms, 0) / 1000)
        return kept

    @property
    def _keeps(self) -> bool:
        """Return whether the configuration enables checkpoints in memory."""
        return self._settings.broker.enable_pop_buffer_merge

    def _kept_until(self, checkpoint: Checkpoint) -> int:
        """Latest time at which a checkpoint must be written."""
        config = self._settings.broker
        return min(
            checkpoint.pop_ms + config.pop_ck_stay_buffer_time, checkpoint.due_ms - config.pop_ck_stay_buffer_time_out
        )

    def _has_room(self, checkpoint: Checkpoint, key: Key, line: _Line | None) -> bool:
        """Return whether one more checkpoint may stay in memory."""
        config = self._settings.broker
        return (
            self._keeps
            and len(self._due) < config.pop_ck_max_buffer_size
            and (line is None or len(line.places) < config.pop_ck_offset_max_queue_size)
            and checkpoint.count <= BITS_MAX
            and key not in self._kept
        )

    def passed(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Note that a group goes on at an offset, and skips the messages before it."""
        line = self._line(topic, group, queue_id, super().offset(group, topic, queue_id))
        if line is None:
            super().passed(group, topic, queue_id, next_offset)
        else:
            line.places.append(_Place(next_offset, None))

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Move a group to an offset, and forget its pops in memory."""
        self._lines.pop((topic, group, queue_id), None)
        super().reset(group, topic, queue_id, queue_offset)

    def forget_queues(self, deleted: QueuesDeleted) -> None:
        """Forget the places of groups in deleted queues."""
        topic, queue_id = deleted
        for key in [key for key in self._lines if key[0] == topic]:
            if queue_id is None or key[2] == queue_id:
                del self._lines[key]

    # --- acknowledgements ---

    def acknowledge(self, batch: Batch, queue_offset: int, now_ms: int) -> None:
        """Note that a message was consumed; raises the same errors as `popped`."""
        kept = self._kept_of(batch)
        if kept is None:
            super().acknowledge(batch, queue_offset, now_ms)
        else:
            self._acknowledge(kept, [queue_offset])

    def acknowledge_all(self, batch: Batch, queue_offsets: list[int], now_ms: int) -> None:
        """Note that messages of a batch were consumed; raises the same errors as `popped`."""
        kept = self._kept_of(batch)
        if kept is None:
            super().acknowledge_all(batch, queue_offsets, now_ms)
        else:
            self._acknowledge(kept, queue_offsets)

    def _kept_of(self, batch: Batch) -> Kept | None:
        if not self._kept:
            return None
        return self._kept.get(key_of(batch.acknowledgement(-1), self._broker_name))

    def _acknowledge(self, kept: Kept, queue_offsets: list[int]) -> None:
        for queue_offset in queue_offsets:
            kept.acknowledge(queue_offset)
        if not kept.left:
            self._done(kept)

    def _done(self, kept: Kept) -> None:
        """Forget a checkpoint, and commit the offset that its group has reached now."""
        kept.left = 0
        del self._kept[kept.key]
        topic, group, queue_id = kept.key[:3]
        line = self._line(topic, group, queue_id, super().offset(group, topic, queue_id))
        if line is None:
            return
        places, reached = line.places, -1
        while places and (places[0].kept is None or not places[0].kept.left):
            reached = places.popleft().next_offset
        if not places:
            del self._lines[kept.key[:3]]
        if reached >= 0:
            line.committed = reached
            self._offsets.commit(group, topic, queue_id, reached)

    # --- turns ---

    async def stop(self) -> None:
        """Write all checkpoints; the messages of those that can't be written are popped once more."""
        await super().stop()
        left = -1
        while self._kept and len(self._kept) != left:
            left = len(self._kept)
            try:
                self._write_due(_ALWAYS_MS)
            except (StoreError, OSError) as error:
                self._note_trouble(str(error))
            await asyncio.sleep(0)

    def _plan(self, at_ms: int, kept: Kept) -> None:
        self._number += 1
        heappush(self._due, Due(at_ms, self._number, kept))

    def _work(self) -> float:
        """Write due checkpoints."""
        if self._write_due(self._clock.now_ms()):
            return 0.0
        if not self._due:
            return math.inf
        ahead = (self._due[0].at_ms - self._clock.now_ms()) / 1000
        return min(max(ahead, 0.0), LOOK_SECONDS_MAX)

    def _write_due(self, until_ms: int) -> bool:
        """Write checkpoints that are due at a time; return whether there are more."""
        heap = self._due
        for _ in steps_of_turn(self._clock.monotonic):
            while heap and not heap[0].kept.left:
                heappop(heap)
            if not heap or heap[0].at_ms > until_ms:
                return False
            self._write(heap[0])
        return True

    def _write(self, due: Due) -> None:
        """Write a checkpoint; if it alone can't be written now, retry it later."""
        kept, now_ms = due.kept, self._clock.now_ms()
        record = replace(kept.checkpoint, acknowledged_bits=kept.acknowledged_bits)
        try:
            self.put_checkpoint(record, kept.revive_queue_id, now_ms)
        except (BrokerError, MessageError) as error:
            log.warning("a checkpoint can't be written now", extra={"error": error})
            heapreplace(self._due, due._replace(at_ms=now_ms + int(RETRY_SECONDS * 1000)))
            return
        heappop(self._due)
        self._done(kept)
