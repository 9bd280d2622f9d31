"""Gather concurrent sends into batches, one request for many messages.

Messages of one topic, queue and tag go together. A batch leaves at 32 KiB, or 10 ms after its first message. Each
caller gets its message's receipt.

Source: RocketMQ's ``ProduceAccumulator``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from firearrow.client.producer.drafts import BODY_BYTES_MAX, Draft, Receipt
from firearrow.client.producer.sender import QueueChoice
from firearrow.errors import FirearrowError
from firearrow.message import properties as keys_of
from firearrow.message.names import is_retry
from firearrow.net.tasks import Tasks

BATCH_BYTES: Final = 32 * 1024  # Java: batchMaxBytes
HOLD_SECONDS: Final = 0.01  # Java: batchMaxDelayMs
HELD_BYTES_MAX: Final = 32 << 20  # Java: totalBatchMaxBytes; beyond it messages leave at once

SendBatch = Callable[[list[Draft], QueueChoice], Coroutine[Any, Any, list[Receipt]]]


class _PendingDraft(NamedTuple):
    draft: Draft
    receipt: asyncio.Future[Receipt]


class _OpenBatch:
    """Messages of one future batch."""

    __slots__ = ("held", "place", "size_bytes", "timer")

    def __init__(self, place: QueueChoice, timer: asyncio.TimerHandle) -> None:
        self.place = place
        self.timer = timer
        self.held: list[_PendingDraft] = []
        self.size_bytes = 0


class Accumulator:
    """Accumulator of messages; ``send`` sends a batch."""

    def __init__(self, tasks: Tasks, send: SendBatch) -> None:
        self._tasks = tasks
        self._send = send
        self._batches: dict[tuple[str, QueueChoice, str], _OpenBatch] = {}
        self._held_bytes = 0
        self._under_way: set[asyncio.Future[Receipt]] = set()

    def takes(self, draft: Draft, place: QueueChoice) -> bool:
        """Tell whether a message may wait for others here."""
        return (
            not draft.waits
            and not is_retry(draft.topic)
            and keys_of.PRODUCER_GROUP not in draft.properties
            and place.selector is None
            and self._held_bytes + len(draft.body) <= HELD_BYTES_MAX
        )

    async def send(self, draft: Draft, place: QueueChoice) -> Receipt:
        """Send a message in a batch; raises as a batch does."""
        loop = asyncio.get_running_loop()
        key = draft.topic, place, draft.properties.get(keys_of.TAGS, "")
        batch = self._batches.get(key)
        if batch is not None and batch.size_bytes + len(draft.body) > BODY_BYTES_MAX // 2:
            self._leave(key)
            batch = None
        if batch is None:
            timer = loop.call_later(HOLD_SECONDS, self._leave, key)
            batch = self._batches[key] = _OpenBatch(place, timer)
        receipt: asyncio.Future[Receipt] = loop.create_future()
        batch.held.append(_PendingDraft(draft, receipt))
        batch.size_bytes += len(draft.body)
        self._held_bytes += len(draft.body)
        if batch.size_bytes >= BATCH_BYTES:
            self._leave(key)
        return await receipt

    async def close(self) -> None:
        """Send the pending messages, and wait for their receipts."""
        for key in tuple(self._batches):
            self._leave(key)
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _leave(self, key: tuple[str, QueueChoice, str]) -> None:
        batch = self._batches.pop(key)
        batch.timer.cancel()
        self._held_bytes -= batch.size_bytes
        wanted = [held for held in batch.held if not held.receipt.done()]  # others were cancelled
        if wanted:
            self._under_way |= {held.receipt for held in wanted}
            self._tasks.start(self._send_all(wanted, batch.place), "batch")

    async def _send_all(self, wanted: list[_PendingDraft], place: QueueChoice) -> None:
        receipts: list[Receipt] = []
        failure: Exception | None = None
        try:
            receipts = await self._send([held.draft for held in wanted], place)
        except (OSError, FirearrowError) as error:
            failure = error
        finally:
            for number, (_, waiting) in enumerate(wanted):
                self._under_way.discard(waiting)
                if waiting.done():
                    continue
                if receipts:
                    waiting.set_result(receipts[number])
                elif failure is not None:
                    waiting.set_exception(failure)
                else:  # this task is ending
                    waiting.cancel()
