"""Who waits until what was put is safe, and when that is so.

What makes it safe is a list of conditions, each of which knows up to where in the log it holds: the
disk has it; a number of replicas have it. A message is safe once all hold; with none, at once.

Those who wait belong to the event loop alone. The first of them asks the conditions to hold; once
they do, all whom that covers are told in one call, and then the next are asked for if others have
come meanwhile. To ask for those before the answers are out was slower with a request at a time on
each connection: the senders fell into two groups that waited for each other's flushes. Where many
wait (``MANY_WAITERS``), the loop has enough to do, and the next flush follows the last at once.

Who has waited for ``syncFlushTimeout`` (5 s) is told so; the message stays stored.

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
    """Something that has to hold for what is put before who put it is told."""

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
    """Tells those who wait. ``answer`` is to be called, in the event loop, when a condition may
    hold for more than before."""

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
        """Look now and then for those who have waited too long."""
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
        """Tell those for whom all conditions hold, or who wait for what will not be."""
        waiters = self._waiters
        reached = min(condition.reached for condition in self._conditions)
        while waiters and waiters[0][0] <= reached:
            waiters.popleft()[2](True)
        if any(condition.is_broken for condition in self._conditions):
            self.refuse()
        elif waiters:
            self.ask()

    def expire(self) -> None:
        """Tell who has waited too long that no answer came."""
        waiters, now = self._waiters, self._monotonic()
        while waiters and waiters[0][1] <= now:
            waiters.popleft()[2](False)

    def refuse(self) -> None:
        """Tell all who wait that what they put is not confirmed."""
        while self._waiters:
            self._waiters.popleft()[2](False)
