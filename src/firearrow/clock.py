"""Time, as an argument. The only module that reads the clocks of the machine.

Everything that needs the time takes a `Clock`, so that the simulator and the tests decide what
time it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock and monotonic time."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970-01-01 UTC; it may step backwards."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never decreases. For waits and durations."""
        ...


class SystemClock:
    """The clocks of the machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return the monotonic clock in seconds."""
        return time.monotonic()


def seconds_of(clock: Clock) -> Callable[[], float]:
    """Give a function for the wall clock in seconds since 1970-01-01 UTC.

    Of the machine's clock it is `time.time` itself: where time is asked for at each send, a call of
    a Python function would cost several times as much.
    """
    return time.time if type(clock) is SystemClock else lambda: clock.now_ms() / 1000
