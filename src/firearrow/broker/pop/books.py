"""Books of POP: the next offset of each group, and checkpoints that stay in memory for some seconds.

A group's offset moves on when its messages are popped, not when they are consumed. So the revive log has the checkpoint
first: after a kill between the two, messages are popped twice, and none is lost.

*Buffer* (``enablePopBufferMerge``). Most checkpoints are acknowledged within seconds, and are never written if they
stay in memory for that time. The others are written when they are ten seconds old (``popCkStayBufferTime``), when their
messages will be visible in three (``popCkStayBufferTimeOut``), or at a stop. The record has a bit for each
acknowledgement meanwhile, so these acknowledgements are not written either. Java: PopBufferMergeService#scan visits all
checkpoints every 5 ms, and writes a record for each acknowledgement. Here one alarm waits for the next checkpoint that
must be written.

While a checkpoint is neither acknowledged nor written, its group's committed offset is that of its first message. After
a kill the group pops its messages once more. Other pops go on behind the last popped message.

Source: RocketMQ ``PopBufferMergeService``.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from heapq import heappop, heappush, heapreplace
from typing import Final, NamedTuple

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.offsets.table import UNKNOWN
from firearrow.broker.pop.revivelog import PopBatch, ReviveLog
from firearrow.broker.pop.revivequeue import Key, OpenCheckpoint, key_of
from firearrow.broker.turns import RETRY_SECONDS, TurnService, steps_of_turn
from firearrow.errors import BrokerError, MessageError, PutLater, StoreError
from firearrow.logs import Log
from firearrow.services import Scheduler
from firearrow.store import QueuesDeleted, TimerStore
from firearrow.wire.codes import ResponseCode
from firearrow.wire.poprecords import Acknowledgement, PopCheckpoint

log: Final = Log(__name__)

EARLY_MS: Final = 1500  # a checkpoint that would stay in memory for less is written at once
LOOK_SECONDS_MAX: Final = 1.0  # until a change of the wall clock is noticed
STOP_SECONDS: Final = 2.0  # a stop sends checkpoints to another master: less than the returning master waits
PAUSE_SECONDS: Final = 0.1  # between two attempts of that
BITS_MAX: Final = 32  # of a Java int
_ALWAYS_MS: Final = 1 << 62
_NO_OFFSETS: Final[Mapping[int, int]] = {}


class BufferedCheckpoint(OpenCheckpoint):
    """Checkpoint in memory, and its revive queue."""

    __slots__ = ("revive_queue_id",)

    def __init__(self, checkpoint: PopCheckpoint, key: Key, revive_queue_id: int) -> None:
        super().__init__(checkpoint, key)
        self.revive_queue_id: Final = revive_queue_id


class _PendingOffset(NamedTuple):
    """Next offset of a group once a checkpoint, if there is one, is no longer in memory."""

    next_offset: int
    checkpoint: BufferedCheckpoint | None


class _OffsetLine:
    """Pending offsets of a group in a queue, if the group has not reached the first one yet.

    ``committed`` is the offset that is committed for the group. If another caller moves it, the pending ones are void.
    """

    __slots__ = ("committed", "pending")

    def __init__(self, committed: int) -> None:
        self.committed = committed
        self.pending: deque[_PendingOffset] = deque()


class _Deadline(NamedTuple):
    """Time when a checkpoint must be written; ``number`` keeps the order of equal ones."""

    at_ms: int
    number: int
    checkpoint: BufferedCheckpoint


class Books(TurnService):
    """Offsets of groups that pop, and the buffer before the revive log.

    What notes something raises BrokerError, DiskFull or MessageError with nothing noted. A service: its turns write
    checkpoints whose time in memory is over.
    """

    def __init__(self, context: BrokerContext, timers: TimerStore, scheduler: Scheduler) -> None:
        super().__init__("checkpoints of pops", scheduler)
        self.revive_log: Final = ReviveLog(context, timers)
        self.next_queue_id: Callable[[], int] = self.revive_log.next_queue_id
        """Function that returns the revive queue of the next pop."""
        self._broker_name = context.settings.broker.broker_name
        self._settings = context.settings
        self._offsets = context.offsets
        self._puts = context.puts
        self._clock = context.clock
        self._buffer: dict[Key, BufferedCheckpoint] = {}
        self._lines: dict[tuple[str, str, int], _OffsetLine] = {}
        self._deadlines: list[_Deadline] = []  # a heap; some of its checkpoints are acknowledged meanwhile
        self._number = 0

    @property
    def buffered_checkpoints(self) -> int:
        """Number of checkpoints that are in memory only."""
        return len(self._buffer)

    @property
    def buffered_offsets(self) -> int:
        """Number of offsets of groups in queues that are in memory only."""
        return sum(len(line.pending) for line in self._lines.values())

    # --- offsets ---

    def _committed(self, group: str, topic: str, queue_id: int) -> int:
        queues = self._offsets.committed.get(f"{topic}@{group}")
        return UNKNOWN if queues is None else queues.get(queue_id, UNKNOWN)

    def offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset that a group pops from, -1 if it has none."""
        committed = self._committed(group, topic, queue_id)
        if self._lines:
            line = self._line(topic, group, queue_id, committed)
            if line is not None:
                return line.pending[-1].next_offset
        return committed

    def offsets(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets that a group pops from, by queue, without the queues that need a closer look by `offset`.

        Later pops may not be in it.
        """
        return _NO_OFFSETS if self._lines else self._offsets.committed.get(f"{topic}@{group}", _NO_OFFSETS)

    def _line(self, topic: str, group: str, queue_id: int, committed: int) -> _OffsetLine | None:
        """Return the pending offsets of a group in a queue, unless another caller has moved the group."""
        line = self._lines.get((topic, group, queue_id))
        if line is not None and line.committed != committed:
            del self._lines[topic, group, queue_id]
            return None
        return line

    def skip(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Note that a group goes on at an offset, and skips the messages before it."""
        line = self._line(topic, group, queue_id, self._committed(group, topic, queue_id)) if self._lines else None
        if line is None:
            self._offsets.commit(group, topic, queue_id, next_offset)
        else:
            line.pending.append(_PendingOffset(next_offset, None))

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Move a group to an offset, and forget its pops in memory."""
        self._lines.pop((topic, group, queue_id), None)
        self._offsets.commit(group, topic, queue_id, queue_offset)

    def forget_queues(self, deleted: QueuesDeleted) -> None:
        """Forget the pending offsets of groups in deleted queues."""
        topic, queue_id = deleted
        for key in [key for key in self._lines if key[0] == topic]:
            if queue_id is None or key[2] == queue_id:
                del self._lines[key]

    # --- pops ---

    def note_pop(self, checkpoint: PopCheckpoint, revive_queue_id: int, next_offset: int, now_ms: int) -> None:
        """Note that messages are popped, and that the group goes on at an offset."""
        topic, group, queue_id = checkpoint.topic, checkpoint.group, checkpoint.queue_id
        if not self._lines and not self._is_buffering:
            self.revive_log.put_checkpoint(checkpoint, revive_queue_id, now_ms)
            self._offsets.commit(group, topic, queue_id, next_offset)
            return
        committed = self._committed(group, topic, queue_id)
        line = self._line(topic, group, queue_id, committed)
        key = key_of(checkpoint, self._broker_name)
        if self._deadline(checkpoint) - now_ms < EARLY_MS or not self._has_room(checkpoint, key, line):
            self.revive_log.put_checkpoint(checkpoint, revive_queue_id, now_ms)
            if line is None:
                self._offsets.commit(group, topic, queue_id, next_offset)
            else:
                line.pending.append(_PendingOffset(next_offset, None))
            return
        buffered = self._add(checkpoint, revive_queue_id, now_ms)
        if line is None:
            line = self._lines[key[:3]] = _OffsetLine(committed)
        line.pending.append(_PendingOffset(next_offset, buffered))

    def note_pop_again(self, batch: PopBatch, checkpoint: PopCheckpoint, now_ms: int) -> None:
        """Note that a message of a batch is popped again, by its own checkpoint, and that its earlier pop is over."""
        try:
            self.revive_log.put_checkpoint(checkpoint, batch.handle.revive_queue_id, now_ms)
        except (BrokerError, MessageError) as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self.acknowledge(batch, checkpoint.start_offset, now_ms)

    def move(self, now_ms: int) -> Generator[None, None, int]:
        """Move records that are not in the revive log there, in steps; return their count, here 0."""
        yield from ()
        return 0

    def _add(self, checkpoint: PopCheckpoint, revive_queue_id: int, now_ms: int) -> BufferedCheckpoint:
        key, at_ms = key_of(checkpoint, self._broker_name), self._deadline(checkpoint)
        buffered = self._buffer[key] = BufferedCheckpoint(checkpoint, key, revive_queue_id)
        self._number += 1
        heappush(self._deadlines, _Deadline(at_ms, self._number, buffered))
        self._wake(max(at_ms - now_ms, 0) / 1000)
        return buffered

    @property
    def _is_buffering(self) -> bool:
        """Return whether the configuration enables checkpoints in memory."""
        return self._settings.broker.enable_pop_buffer_merge

    def _deadline(self, checkpoint: PopCheckpoint) -> int:
        """Latest time when a checkpoint must be written."""
        config = self._settings.broker
        return min(
            checkpoint.pop_ms + config.pop_ck_stay_buffer_time, checkpoint.due_ms - config.pop_ck_stay_buffer_time_out
        )

    def _has_room(self, checkpoint: PopCheckpoint, key: Key, line: _OffsetLine | None) -> bool:
        """Return whether one more checkpoint may stay in memory."""
        config = self._settings.broker
        return (
            self._is_buffering
            and len(self._deadlines) < config.pop_ck_max_buffer_size
            and (line is None or len(line.pending) < config.pop_ck_offset_max_queue_size)
            and checkpoint.count <= BITS_MAX
            and key not in self._buffer
        )

    # --- acknowledgements ---

    def acknowledge(self, batch: PopBatch, queue_offset: int, now_ms: int) -> None:
        """Note that a message was consumed."""
        buffered = self._buffered(batch) if self._buffer else None
        if buffered is None:
            self.revive_log.acknowledge(batch, queue_offset, now_ms)
        else:
            self._acknowledge(buffered, [queue_offset])

    def acknowledge_all(self, batch: PopBatch, queue_offsets: list[int], now_ms: int) -> None:
        """Note that messages of a batch were consumed."""
        buffered = self._buffered(batch) if self._buffer else None
        if buffered is None:
            self.revive_log.acknowledge_all(batch, queue_offsets, now_ms)
        else:
            self._acknowledge(buffered, queue_offsets)

    def _buffered(self, batch: PopBatch) -> BufferedCheckpoint | None:
        return self._buffer.get(key_of(batch.acknowledgement(-1), self._broker_name))

    def _acknowledge(self, buffered: BufferedCheckpoint, queue_offsets: list[int]) -> None:
        for queue_offset in queue_offsets:
            buffered.acknowledge(queue_offset)
        if not buffered.left:
            self._remove(buffered)

    def _remove(self, buffered: BufferedCheckpoint) -> None:
        """Forget a checkpoint, and commit the offset that its group has reached now."""
        buffered.left = 0
        del self._buffer[buffered.key]
        topic, group, queue_id = buffered.key[:3]
        line = self._line(topic, group, queue_id, self._committed(group, topic, queue_id))
        if line is None:
            return
        pending, reached = line.pending, -1
        while pending and (pending[0].checkpoint is None or not pending[0].checkpoint.left):
            reached = pending.popleft().next_offset
        if not pending:
            del self._lines[buffered.key[:3]]
        if reached >= 0:
            line.committed = reached
            self._offsets.commit(group, topic, queue_id, reached)

    # --- turns ---

    async def stop(self) -> None:
        """Write all checkpoints; the messages of those that can't be written are popped once more."""
        await super().stop()
        left = -1
        while self._buffer and len(self._buffer) != left:
            left = len(self._buffer)
            self._write_all()
            await asyncio.sleep(0)

    def _write_all(self) -> None:
        """Write all checkpoints that can be written in one turn."""
        try:
            self._write_due(_ALWAYS_MS)
        except (StoreError, OSError) as error:
            self._note_trouble(str(error))

    def _work(self) -> float:
        """Write due checkpoints."""
        if self._write_due(self._clock.now_ms()):
            return 0.0
        if not self._deadlines:
            return math.inf
        ahead = (self._deadlines[0].at_ms - self._clock.now_ms()) / 1000
        return min(max(ahead, 0.0), LOOK_SECONDS_MAX)

    def _write_due(self, until_ms: int) -> bool:
        """Write checkpoints that are due at a time; return whether there are more."""
        heap = self._deadlines
        for _ in steps_of_turn(self._clock.monotonic):
            while heap and not heap[0].checkpoint.left:
                heappop(heap)
            if not heap or heap[0].at_ms > until_ms:
                return False
            self._write_first()
        return True

    def _write_first(self) -> None:
        """Write the first due checkpoint; if it alone can't be written now, retry it later."""
        due, now_ms = self._deadlines[0], self._clock.now_ms()
        if self._write(due.checkpoint, now_ms):
            heappop(self._deadlines)
            self._remove(due.checkpoint)
        else:
            heapreplace(self._deadlines, due._replace(at_ms=now_ms + int(RETRY_SECONDS * 1000)))

    def _write(self, buffered: BufferedCheckpoint, now_ms: int) -> bool:
        """Write a checkpoint; return False if it can't be written now."""
        record = replace(buffered.checkpoint, acknowledged_bits=buffered.acknowledged_bits)
        try:
            self.revive_log.put_checkpoint(record, buffered.revive_queue_id, now_ms)
        except (BrokerError, MessageError) as error:
            log.warning("a checkpoint can't be written now", extra={"error": error})
            return False
        return True


class EscapedBooks(Books):
    """Books of a slave that acts for its master: their records go to another master of the cluster.

    A pop is answered at once. Its checkpoint stays in memory, as with the buffer, and its group's committed offset
    stays where it is until all is acknowledged or the other master has the checkpoint: then that master redelivers the
    messages, and they are read here. So if the slave is lost before, the messages are popped once more, and none is
    lost. Messages that are acknowledged while their checkpoint is in flight are sent behind it. When the master comes
    back, it gets all checkpoints in memory before it gets the offsets of groups.

    Source: RocketMQ ``PopBufferMergeService#putCkToStore``, ``EscapeBridge``.
    """

    def __init__(self, context: BrokerContext, timers: TimerStore, scheduler: Scheduler) -> None:
        super().__init__(context, timers, scheduler)
        self._in_flight: dict[Key, PopCheckpoint] = {}  # as they were when they were sent

    @property
    def _is_buffering(self) -> bool:
        return True

    def _deadline(self, checkpoint: PopCheckpoint) -> int:
        return max(super()._deadline(checkpoint), checkpoint.pop_ms + EARLY_MS)

    def note_pop_again(self, batch: PopBatch, checkpoint: PopCheckpoint, now_ms: int) -> None:
        """Note that a message of a batch is popped again.

        The end of its earlier pop is in flight then: if that does not arrive, the message comes twice.
        """
        self._add(checkpoint, batch.handle.revive_queue_id, now_ms)
        with suppress(PutLater):
            self.acknowledge(batch, checkpoint.start_offset, now_ms)

    def _write(self, buffered: BufferedCheckpoint, now_ms: int) -> bool:
        """Send a checkpoint, and behind it the acknowledgements that came meanwhile."""
        sent = self._in_flight.get(buffered.key)
        if sent is None:
            sent = replace(buffered.checkpoint, acknowledged_bits=buffered.acknowledged_bits)
            self._in_flight[buffered.key] = sent
        try:
            self.revive_log.put_checkpoint(sent, buffered.revive_queue_id, now_ms)
            left = set(replace(sent, acknowledged_bits=buffered.acknowledged_bits).left)
            later = [queue_offset for queue_offset in sent.left if queue_offset not in left]
            if later:
                ack = _acknowledgement(sent, later)
                self.revive_log.put_acknowledgement(ack, buffered.revive_queue_id, sent.due_ms, now_ms)
        except (PutLater, BrokerError, MessageError):
            return False
        return True

    def _remove(self, buffered: BufferedCheckpoint) -> None:
        self._in_flight.pop(buffered.key, None)
        super()._remove(buffered)

    async def stop(self) -> None:
        """Send all checkpoints; the messages of those that can't be sent are popped once more."""
        await TurnService.stop(self)
        until = self._clock.monotonic() + STOP_SECONDS
        while self._buffer and self._clock.monotonic() < until:
            self._write_all()
            if not await self._puts.settled():
                await asyncio.sleep(PAUSE_SECONDS)
        self._buffer.clear()
        self._lines.clear()
        self._deadlines.clear()
        self._in_flight.clear()
        self._trouble = None


def _acknowledgement(checkpoint: PopCheckpoint, queue_offsets: list[int]) -> Acknowledgement:
    return Acknowledgement(
        queue_offset=-1,
        queue_offsets=queue_offsets,
        broker_name=checkpoint.broker_name or "",
        group=checkpoint.group,
        pop_ms=checkpoint.pop_ms,
        queue_id=checkpoint.queue_id,
        start_offset=checkpoint.start_offset,
        topic=checkpoint.topic,
    )
