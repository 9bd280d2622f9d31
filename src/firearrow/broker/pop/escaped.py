"""Books of a slave that acts for its master: they are at another master of the cluster.

A pop is answered at once. Its checkpoint is kept in memory, as with ``enablePopBufferMerge``, and
its group's offset stays where it is until all is acknowledged or another master has the checkpoint:
then that has the messages come again, which it reads here. So a slave that is lost before has them
popped once more, and loses none. What is acknowledged while a checkpoint is on its way is sent
behind it. When the master comes back, all that is in memory is sent before it is told how far
groups are.

Source: upstream ``PopBufferMergeService#putCkToStore``, ``EscapeBridge``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from heapq import heappop, heapreplace
from typing import Final

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.books import Batch
from firearrow.broker.pop.buffer import EARLY_MS, BufferedBooks, Due, Kept
from firearrow.broker.pop.records import Acknowledgement, Checkpoint
from firearrow.broker.pop.revivequeue import Key
from firearrow.broker.turns import RETRY_SECONDS, TurnService
from firearrow.errors import BrokerError, MessageError, PutLater, StoreError
from firearrow.services import Scheduler

STOP_SECONDS: Final = 2.0
"""So long a stop tries to send what is in memory: less than the master waits that comes back."""
PAUSE_SECONDS: Final = 0.1
_ALWAYS_MS: Final = 1 << 62


class EscapedBooks(BufferedBooks):
    """Books whose records are at another master."""

    def __init__(self, context: BrokerContext, scheduler: Scheduler) -> None:
        super().__init__(context, scheduler)
        self._sent: dict[Key, Checkpoint] = {}  # as they are on their way

    @property
    def _keeps(self) -> bool:
        return True

    def _kept_until(self, checkpoint: Checkpoint) -> int:
        return max(super()._kept_until(checkpoint), checkpoint.pop_ms + EARLY_MS)

    def popped_again(self, batch: Batch, checkpoint: Checkpoint, now_ms: int) -> None:
        """Note that a message of a batch is popped anew; raises like `popped`.

        That it is over before is on its way then: should it not arrive, the message comes twice.
        """
        self._keep_in_memory(checkpoint, batch.handle.revive_queue_id, now_ms)
        with suppress(PutLater):
            self.acknowledge(batch, checkpoint.start_offset, now_ms)

    def _write(self, due: Due) -> None:
        """Have a checkpoint sent, and behind it what was acknowledged of it meanwhile."""
        kept, now_ms = due.kept, self._clock.now_ms()
        sent = self._sent.get(kept.key)
        if sent is None:
            sent = replace(kept.checkpoint, acknowledged_bits=kept.acknowledged_bits)
            self._sent[kept.key] = sent
        try:
            self.put_checkpoint(sent, kept.revive_queue_id, now_ms)
            left = set(replace(sent, acknowledged_bits=kept.acknowledged_bits).left)
            later = [queue_offset for queue_offset in sent.left if queue_offset not in left]
            if later:
                ack = _acknowledgement(sent, later)
                self.put_acknowledgement(ack, kept.revive_queue_id, sent.due_ms, now_ms)
        except (PutLater, BrokerError, MessageError):
            heapreplace(self._due, due._replace(at_ms=now_ms + int(RETRY_SECONDS * 1000)))
            return
        heappop(self._due)
        self._done(kept)

    def _done(self, kept: Kept) -> None:
        self._sent.pop(kept.key, None)
        super()._done(kept)

    async def stop(self) -> None:
        """Send all checkpoints; of what can't be sent, the messages are popped once more."""
        await TurnService.stop(self)
        until = self._clock.monotonic() + STOP_SECONDS
        while self._kept and self._clock.monotonic() < until:
            try:
                self._write_due(_ALWAYS_MS)
            except (StoreError, OSError) as error:
                self._note_trouble(str(error))
            if not await self._puts.settled():
                await asyncio.sleep(PAUSE_SECONDS)
        self._kept.clear()
        self._lines.clear()
        self._due.clear()
        self._sent.clear()
        self._trouble = None


def _acknowledgement(checkpoint: Checkpoint, queue_offsets: list[int]) -> Acknowledgement:
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
