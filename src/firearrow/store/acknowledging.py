"""Senders that wait until their messages are safe.

A message is safe once all conditions hold for it: the disk has it, or a number of replicas have it.
Each condition knows up to which offset of the log it holds. Without conditions a message is safe at
once.

The waiters belong to the event loop alone. The first waiter asks the conditions to hold. Once they
do, one call answers all waiters up to that offset, and then asks again if others have come
meanwhile. To ask before the answers are out was slower with one request at a time on each
connection: the senders fell into two groups that waited for each other's flushes. Where many wait
(``MANY_WAITERS``), the loop has enough to do, and the next flush follows the last at once.

A sender that has waited for ``syncFlushTimeout`` (5 s) gets an error; its message stays stored.

Source: upstream ``GroupCommitService``, ``FlushDiskWatcher``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from firearrow.services import Every, Scheduler, Service

log = logging.getLogger(__name__)

MANY_WAITERS: Final = 32
SWEEP_SECONDS: Final = 0.1

# Called with True once a physical offset is safe, with False when that is not to be had.
OnSafe = Callable[[bool], None]


class Condition(Protocol):
    """What has to hold for a message before its sender gets an answer."""

    @property
    def reached(self) -> int:
        """Up to which physical offset it holds."""
        ...

    @property
    def is_broken(self) -> bool:
        """Whether it will not hold for anything more."""
        ...

    def ask(self) -> None:
        """Have it hold soon for all that is there now."""
        ...


class Acknowledging(Service):
    """Answers the waiters. Call ``answer``, in the event loop, when a condition may hold for more
    than before."""

    def __init__(
        self,
        conditions: Sequence[Condition],
        wait_seconds_max: float,
        monotonic: Callable[[], float],
        scheduler: Scheduler | None = None,
    ) -> None:
        super().__init__("acknowledging")
        self._conditions = conditions
        self._wait_seconds_max = wait_seconds_max
        self._monotonic = monotonic
        self._waiters: deque[tuple[int, float, OnSafe]] = deque()
        self._sweep = (
            None if scheduler is None else Every(self.name, SWEEP_SECONDS, self.expire, scheduler)
        )

    async def start(self) -> None:
        """Look every ``SWEEP_SECONDS`` for those who have waited too long."""
        if self._sweep is not None:
            await self._sweep.start()

    async def stop(self) -> None:
        """Return once nobody waits any more."""
        if self._waiters:
            told = asyncio.Event()
            self.wait_for(self._waiters[-1][0], lambda _: told.set())
            try:
                async with asyncio.timeout(self._wait_seconds_max):
                    await told.wait()
            except TimeoutError:
                log.error(
                    "the disk does not confirm the last messages: their senders get no answer"
                )
        await asyncio.sleep(0)  # who was told just now has something to send
        if self._sweep is not None:
            await self._sweep.stop()

    @property
    def has_waiters(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    def wait_for(self, physical_offset: int, on_safe: OnSafe) -> None:
        """Have ``on_safe`` called once the log is safe up to an offset."""
        waiting = len(self._waiters)
        self._waiters.append((physical_offset, self._monotonic() + self._wait_seconds_max, on_safe))
        if not waiting or waiting >= MANY_WAITERS:
            self.ask()

    def ask(self) -> None:
        """Have all conditions hold soon."""
        for condition in self._conditions:
            condition.ask()

    def answer(self) -> None:
        """Answer the waiters for whom all conditions hold, and all if one never will."""
        waiters = self._waiters
        reached = min(condition.reached for condition in self._conditions)
        while waiters and waiters[0][0] <= reached:
            waiters.popleft()[2](True)
        if any(condition.is_broken for condition in self._conditions):
            self.refuse()
        elif waiters:
            self.ask()

    def expire(self) -> None:
        """Answer those who have waited too long: their message is not confirmed."""
        waiters, now = self._waiters, self._monotonic()
        while waiters and waiters[0][1] <= now:
            waiters.popleft()[2](False)

    def refuse(self) -> None:
        """Answer all waiters that their messages are not confirmed."""
        while self._waiters:
            self._waiters.popleft()[2](False)
