"""Consumes messages in any order: so many at once, each by the next worker that is free.

There are no tasks for messages: a bounded set of workers takes them from one queue, in the order in
which they came.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final

from firearrow.client.delivery import Delivery, Source
from firearrow.client.handlers import Failure, Registration, failure_of
from firearrow.client.message import Message
from firearrow.net.tasks import Running, Tasks

log = logging.getLogger(__name__)

TURN_MESSAGES: Final = 64
"""Of handlers that never wait, before the loop has its turn. With 16, each message cost half as
much again, as pulls were answered one by one then."""


Job = tuple[Source, Sequence[Message], float]
"""What a worker is at work on, and since when by the loop's time; no class, as each message has
one."""


class Workers:
    """The workers of one registration."""

    def __init__(self, registration: Registration, tasks: Tasks) -> None:
        self._registration = registration
        self._tasks = tasks
        self._ready: deque[tuple[Source, Message]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._running: dict[int, Job] = {}
        self._workers: list[Running] = []
        self._next_end: asyncio.Future[None] | None = None
        self._is_waking = False
        self._is_closed = False

    def submit(self, source: Source, messages: Sequence[Message]) -> None:
        """Have messages consumed."""
        if self._is_closed:
            return
        self._ready.extend(zip(repeat(source), messages))
        if self._ready and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_first)

    def _wake_first(self) -> None:
        """Wake one, now that the next pulls have left: the broker works on them meanwhile."""
        self._wake(1)
        asyncio.get_running_loop().call_soon(self._wake_more)

    def _wake_more(self) -> None:
        """Wake as many as there is work for once a handler waits: as long as none does, one worker
        does it all, and the others would be woken for nothing."""
        self._is_waking = False
        if self._ready and not self._is_closed:
            if self._running:
                self._wake(len(self._ready))
            else:
                self._is_waking = True
                asyncio.get_running_loop().call_soon(self._wake_more)

    def _wake(self, count: int) -> None:
        """Have so many workers look for work, if there are so many that are free or new."""
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
        """Tasks in flight."""
        return list(self._running.values())

    async def drain(self, seconds: float) -> None:
        """Begin nothing more, and wait until what is under way has ended, or the time is over."""
        self._ready.clear()
        try:
            async with asyncio.timeout(seconds):
                await self.idle()
        except TimeoutError:
            fields = {"topic": self._registration.subscription.topic, "calls": len(self._running)}
            log.warning("handlers are cancelled", extra=fields)

    async def idle(self, source: Source | None = None) -> None:
        """Wait until nothing is under way, or nothing of a source."""
        while any(source is None or one[0] is source for one in self._running.values()):
            if self._next_end is None:
                self._next_end = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._next_end)

    async def close(self) -> None:
        """End the workers; what is under way is cancelled."""
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
        """A worker is at work on nothing, for now."""
        self._running.pop(number, None)
        if self._next_end is not None:
            self._next_end.set_result(None)
            self._next_end = None

    async def _turn_one_by_one(self, number: int) -> None:
        """Do what `_turn` does for handlers of single messages, in half the time: what a worker is
        at work on is only taken back where somebody may look."""
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
        """Consume until nothing is left, or the loop has to have its turn."""
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
        """The rest of a batch: what comes next from the same source."""
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
