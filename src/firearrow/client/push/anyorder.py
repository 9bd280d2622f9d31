"""Consume messages in any order, many at a time, each by the next free worker.

There are no tasks for messages: a bounded set of workers takes them from one queue, in the order of their arrival.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Final

from firearrow.client.consumer.handlers import Delivery, Failure, HandlerRegistration, Source, failure_of
from firearrow.client.consumer.member import AssignedQueue, Member
from firearrow.client.message import Message
from firearrow.errors import FirearrowError
from firearrow.logs import Log
from firearrow.net.tasks import RunningTask, Tasks

log: Final = Log(__name__)

TURN_MESSAGES: Final = 64
"""Messages of handlers that never wait, before the loop has its turn. With 16, each message cost half as much again,
since pulls were answered one by one then."""


Job = tuple[Source, Sequence[Message], float]
"""Work of a worker, and its start by the loop's time; no class, since each message has one."""


class Workers:
    """Workers of one registration."""

    def __init__(self, registration: HandlerRegistration, tasks: Tasks) -> None:
        self._registration = registration
        self._tasks = tasks
        self._ready: deque[tuple[Source, Message]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._running: dict[int, Job] = {}
        self._workers: list[RunningTask] = []
        self._next_end: asyncio.Future[None] | None = None
        self._is_waking = False
        self._is_closed = False

    def submit(self, source: Source, messages: Sequence[Message]) -> None:
        """Consume messages."""
        if self._is_closed:
            return
        self._ready.extend(zip(repeat(source), messages))
        if self._ready and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_first)

    def _wake_first(self) -> None:
        """Wake one worker, now that the next pulls are sent: the broker works on them meanwhile."""
        self._wake(1)
        asyncio.get_running_loop().call_soon(self._wake_more)

    def _wake_more(self) -> None:
        """Wake workers for all pending work once a handler waits. Until then one worker does all work, and others would
        wake for nothing."""
        self._is_waking = False
        if self._ready and not self._is_closed:
            if self._running:
                self._wake(len(self._ready))
            else:
                self._is_waking = True
                asyncio.get_running_loop().call_soon(self._wake_more)

    def _wake(self, count: int) -> None:
        """Wake up to ``count`` workers: free ones first, then new ones."""
        while count > 0 and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
        for _ in range(min(count, self._registration.concurrency - len(self._workers))):
            number = len(self._workers)
            name = f"worker {number} of {self._registration.subscription.topic}"
            self._workers.append(self._tasks.start(self._work(number), name))

    @property
    def running(self) -> list[Job]:
        """Jobs of all workers at work."""
        return list(self._running.values())

    async def drain(self, seconds: float) -> None:
        """Begin no more work; wait until running handlers have ended, for a time at most."""
        self._ready.clear()
        try:
            async with asyncio.timeout(seconds):
                await self.idle()
        except TimeoutError:
            fields = {"topic": self._registration.subscription.topic, "calls": len(self._running)}
            log.warning("handlers are cancelled", extra=fields)

    async def idle(self, source: Source | None = None) -> None:
        """Wait until no handler runs, or none with messages of a source."""
        while any(source is None or one[0] is source for one in self._running.values()):
            if self._next_end is None:
                self._next_end = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._next_end)

    async def close(self) -> None:
        """End the workers, and cancel running handlers."""
        self._is_closed = True
        self._ready.clear()
        workers, self._workers = self._workers, []
        for worker in workers:
            await worker.stop()
        self._registration.close()

    async def _work(self, number: int) -> None:
        loop, registration = asyncio.get_running_loop(), self._registration
        is_usual = not (registration.batch or registration.manual or registration.trace)
        turn = self._turn_one_by_one if is_usual else self._turn
        while True:
            while not self._ready:
                waiter = loop.create_future()
                self._idle.append(waiter)
                await waiter
            try:
                await turn(number)
            finally:
                self._ended(number)
            if self._ready:
                await asyncio.sleep(0)

    def _ended(self, number: int) -> None:
        """Note that a worker has no work for now."""
        self._running.pop(number, None)
        if self._next_end is not None:
            self._next_end.set_result(None)
            self._next_end = None

    async def _turn_one_by_one(self, number: int) -> None:
        """Do the same as `_turn` for handlers of single messages, in half the time. The worker's entry is only removed
        where another task may look at it."""
        ready, running, registration = self._ready, self._running, self._registration
        call, rates, time = registration.call, registration.rates, asyncio.get_running_loop().time
        failure: Failure | None
        now = time()
        for _ in range(TURN_MESSAGES):
            if not ready:
                return
            source, message = ready.popleft()
            if not source.may_begin(message):
                continue
            messages, began = (message,), now
            running[number] = source, messages, began
            try:
                await call(message)
            except (Exception, asyncio.CancelledError) as error:  # see `failure_of`
                failure = failure_of(messages, error)
            else:
                failure = None
            now = time()
            if rates is not None:
                rates.consumed(message.queue.topic, 1, began, now, failure is None)
            if failure is None:
                source.done(messages)
            else:
                await source.failed(messages, failure)
                now = time()
            if self._next_end is not None:
                self._ended(number)

    async def _turn(self, number: int) -> None:
        """Consume until no message is left, or the loop must have its turn."""
        handle, time = self._registration.handle, asyncio.get_running_loop().time
        left = TURN_MESSAGES
        while left > 0 and self._ready:
            source, messages = self._take()
            if not messages:
                continue
            self._running[number] = source, messages, time()
            if self._registration.manual:
                await self._consume_manually(source, messages)
            else:
                failure = await handle(messages)
                if failure is None:
                    source.done(messages)
                else:
                    await source.failed(messages, failure)
            self._ended(number)
            left -= len(messages)

    def _take(self) -> tuple[Source, list[Message]]:
        source, first = self._ready.popleft()
        taken = [first, *self._more_of(source)]
        return source, [message for message in taken if source.may_begin(message)]

    def _more_of(self, source: Source) -> Iterator[Message]:
        """Rest of a batch: the next messages of the same source."""
        ready = self._ready
        for _ in range(self._registration.batch - 1):
            if not ready or ready[0][0] is not source:
                return
            yield ready.popleft()[1]

    async def _consume_manually(self, source: Source, messages: list[Message]) -> None:
        deliveries = [Delivery.of(message, source) for message in messages]
        failure = await self._registration.handle(deliveries)
        if failure is not None:
            for delivery in deliveries:
                await delivery.fail(failure)


# --- messages of an assigned queue, consumed in any order ---
#
# A failed message goes back to its broker, which redelivers it later (36). If that request fails, the client sends a
# copy to the retry topic. If that fails, too, this client retries the message. A broadcasting client gets no
# redelivery.
#
# Source: RocketMQ's ``ConsumeMessageConcurrentlyService``.


AGAIN_SECONDS: Final = 5.0
TIMED_OUT_LEVEL: Final = 3


class QueueSource:
    """Messages of one assigned queue."""

    keeps_order = False

    def __init__(
        self, member: Member, assigned: AssignedQueue, tasks: Tasks, resubmit: Callable[[Source, list[Message]], None]
    ) -> None:
        self._member = member
        self._assigned = assigned
        self._tasks = tasks
        self._resubmit = resubmit
        self._given_up: set[int] = set()  # offsets of messages that timed out in a handler that still runs

    @property
    def is_dropped(self) -> bool:
        """Tell whether the queue belongs to another client now."""
        return self._assigned.is_dropped

    def may_begin(self, _: Message) -> bool:
        """Tell whether a message must still be consumed."""
        return not self._assigned.is_dropped

    def done(self, messages: Sequence[Message]) -> None:
        """Note that messages are consumed, or will be redelivered."""
        assigned, given_up = self._assigned, self._given_up
        if assigned.is_dropped:
            return
        for message in messages:
            if given_up and message.queue_offset in given_up:
                given_up.remove(message.queue_offset)
            else:
                assigned.cache.finish(message)
        assigned.made_room()

    async def failed(self, messages: Sequence[Message], failure: Failure) -> None:
        """Redeliver messages."""
        if self.is_dropped:
            return
        if not self._member.is_clustering:
            log.warning(
                "message is given up: a broadcasting client gets no redelivery",
                extra={"message_id": messages[0].message_id, "topic": messages[0].topic},
            )
            self.done(messages)
            return
        left = [one for one in messages if not await self._gone_back(one, failure.level)]
        self.done([one for one in messages if one not in left] if left else messages)
        if left:
            self._tasks.start(self._again(left), "messages that can't be sent back")

    async def _gone_back(self, message: Message, level: int) -> bool:
        member = self._member
        if message.queue_offset in self._given_up:
            return True
        try:
            await member.calls.send_back(message, level, member.reconsume_times_max)
        except (OSError, FirearrowError) as error:
            fields = {**message.queue.fields, "message_id": message.message_id, "error": error}
            log.warning(
                "message can't be sent back",
                sentence=f"message {message.message_id} of {message.topic!r} can't be sent back: {error}",
                extra=fields,
            )
            return await self._is_copied(message)
        return True

    async def _is_copied(self, message: Message) -> bool:
        member = self._member
        try:
            await member.calls.send_retry_copy(message, member.reconsume_times_max)
        except (OSError, FirearrowError) as error:
            fields = {"message_id": message.message_id, "error": error}
            log.warning("message can't be sent to the retry topic", extra=fields)
            return False
        return True

    async def _again(self, messages: list[Message]) -> None:
        await asyncio.sleep(AGAIN_SECONDS)
        for message in messages:
            message.reconsume_times += 1
        if not self.is_dropped:
            self._resubmit(self, messages)

    async def time_out(self, message: Message) -> None:
        """Redeliver the first message of the queue if its handler does not end: it blocks the committed offset."""
        cache, at = self._assigned.cache, message.queue_offset
        if at in self._given_up or cache.first_offset != at:
            return
        if await self._gone_back(message, TIMED_OUT_LEVEL) and cache.first_offset == at:
            cache.finish(message)
            self._given_up.add(at)
            self._assigned.made_room()
