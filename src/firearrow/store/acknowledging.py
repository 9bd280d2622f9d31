"""Senders that wait until their messages are safe.

A message is safe once all conditions hold for it: the disk has it, or a number of replicas have it. Each condition
knows the end of the log that it holds for. Without conditions a message is safe at once.

The waiters belong to the event loop alone. The first waiter asks the conditions to hold. Once they do, one call answers
all waiters up to that offset. It then asks again if other waiters have come meanwhile. Asking before the answers are
out was slower with one request at a time on each connection: the senders fell into two groups that waited for each
other's flushes. With many waiters (``MANY_WAITERS``) the loop is busy enough, and the next flush follows the last at
once.

A sender that has waited for ``syncFlushTimeout`` (5 s) or ``slaveTimeout`` (3 s) gets an error; its message stays
stored.

Source: RocketMQ's ``GroupCommitService``, ``FlushDiskWatcher``, ``GroupTransferService``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from firearrow.javanumbers import LONG_MAX
from firearrow.logs import Log
from firearrow.services import Alarm, Scheduler, Service

log: Final = Log(__name__)

MANY_WAITERS: Final = 32
SWEEP_SECONDS: Final = 0.1
OFFSET_MAX: Final = LONG_MAX


class PutStatus(Enum):
    """Outcome of the wait for a message: safe, or the condition that it lacks."""

    SAFE = auto()
    NOT_FLUSHED = auto()
    NOT_COPIED = auto()


# Called once a physical offset is safe, or once it is known that it will not become safe.
OnSafe = Callable[[PutStatus], object]


class Condition(Protocol):
    """A condition that a message must meet before its sender gets an answer."""

    @property
    def reached(self) -> int:
        """End of the log that the condition holds for, a physical offset."""
        ...

    @property
    def is_broken(self) -> bool:
        """Tell whether the condition will not hold for any further message."""
        ...

    def ask(self) -> None:
        """Ask that the condition soon holds for everything in the log now."""
        ...


class Needed(NamedTuple):
    """A condition, the time limit of a wait for it, and the outcome of a message that still lacks it then."""

    condition: Condition
    seconds_max: float
    lacking: PutStatus


class Acknowledging(Service):
    """Answers the waiters. Call ``answer``, in the event loop, when a condition may hold for more messages."""

    def __init__(
        self, needed: Sequence[Needed], monotonic: Callable[[], float], scheduler: Scheduler | None = None
    ) -> None:
        super().__init__("acknowledging")
        self._needed = needed
        self._monotonic = monotonic
        self._waiters: deque[tuple[int, float, OnSafe]] = deque()  # the offset, and the start of the wait
        # Without waiters there is no sweep: in an idle broker it would cause most wake-ups.
        self._sweep = None if scheduler is None else Alarm(scheduler, self._look)

    async def stop(self) -> None:
        """Return once there are no more waiters."""
        if self._waiters:
            assert self._needed, "without a condition nothing waits"
            told = asyncio.Event()
            self.wait_for(self._waiters[-1][0], lambda _: told.set())
            try:
                async with asyncio.timeout(max(it.seconds_max for it in self._needed)):
                    await told.wait()
            except TimeoutError:
                log.error("the last messages are not confirmed: their senders get no answer")
        await asyncio.sleep(0)  # the senders that were just answered still write to their connections
        if self._sweep is not None:
            self._sweep.cancel()

    @property
    def has_waiters(self) -> bool:
        """Tell whether there are waiters."""
        return bool(self._waiters)

    @property
    def first_offset(self) -> int:
        """Physical offset that the first waiter waits for; without a waiter, greater than any log offset."""
        return self._waiters[0][0] if self._waiters else OFFSET_MAX

    def wait_for(self, physical_offset: int, on_safe: OnSafe) -> None:
        """Call ``on_safe`` once the log is safe up to an offset."""
        waiting = len(self._waiters)
        self._waiters.append((physical_offset, self._monotonic(), on_safe))
        if not waiting or waiting >= MANY_WAITERS:
            self.ask()
            if self._sweep is not None:
                self._sweep.set_earlier(SWEEP_SECONDS)

    def ask(self) -> None:
        """Ask that all conditions hold soon."""
        for condition, _, _ in self._needed:
            condition.ask()

    def answer(self) -> None:
        """Answer each waiter whose conditions all hold, and all waiters if a condition never will."""
        waiters = self._waiters
        reached = min(condition.reached for condition, _, _ in self._needed)
        while waiters and waiters[0][0] <= reached:
            waiters.popleft()[2](PutStatus.SAFE)
        broken = [lacking for condition, _, lacking in self._needed if condition.is_broken]
        if broken:
            self.refuse(broken[0])
        elif waiters:
            last = waiters[-1][0]
            for condition, _, _ in self._needed:
                if condition.reached < last:  # a condition that holds for everything would be asked again and again
                    condition.ask()

    def _look(self) -> None:
        if self._waiters and self._sweep is not None:
            self._sweep.set(SWEEP_SECONDS)
        self.expire()

    def expire(self) -> None:
        """Answer the waiters whose time is over: their messages are not confirmed."""
        waiters, now = self._waiters, self._monotonic()
        before = len(waiters)
        while waiters:
            physical_offset, since, on_safe = waiters[0]
            lacking = self._lacking(physical_offset, now - since)
            if lacking is None:
                break
            waiters.popleft()
            on_safe(lacking)
        if 0 < len(waiters) < before:  # a slave that was empty at these waiters' messages may count now
            self.answer()

    def _lacking(self, physical_offset: int, seconds: float) -> PutStatus | None:
        """Return the condition that a message has lacked for too long: replicas before the disk, as RocketMQ does."""
        for condition, seconds_max, lacking in reversed(self._needed):
            if seconds >= seconds_max and condition.reached < physical_offset:
                return lacking
        return None

    def refuse(self, lacking: PutStatus = PutStatus.NOT_FLUSHED) -> None:
        """Tell all waiters that their messages are not confirmed."""
        while self._waiters:
            self._waiters.popleft()[2](lacking)
