"""Time, as an argument. This module alone reads the clocks of the machine.

All code that needs the time takes a `Clock`, so that the simulator and the tests decide the time. This module also
reads times and durations that people write, by one rule everywhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

FIRST_MS: Final = 100_000_000_000  # in 1973: a lower number is one of seconds
LAST_MS: Final = 1 << 42  # in 2109: a higher one is of microseconds, or of nanoseconds
HOUR_MS: Final = 3_600_000
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": HOUR_MS, "d": 86_400_000}


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


def processor_seconds() -> float:
    """Return the seconds that this thread has computed, whatever time the simulator or the machine lets pass."""
    return time.thread_time()


def seconds_of(clock: Clock) -> Callable[[], float]:
    """Return a function for the wall clock in seconds since 1970-01-01 UTC.

    For the machine's clock it is `time.time` itself: each send reads the time, and a call of a Python function would
    cost several times as much.
    """
    return time.time if type(clock) is SystemClock else lambda: clock.now_ms() / 1000


def moment_ms(text: str) -> int:
    """Read a time in ISO 8601, without a zone in UTC, or in ms since 1970; return ms since 1970.

    Raises ValueError, with a sentence, for any other text, and for numbers in seconds or another unit.
    """
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return checked_ms(int(text))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time like 2026-11-21T06:30:00Z or 1795242600000 (ms since 1970)") from None
    moment = found if found.tzinfo else found.replace(tzinfo=UTC)
    if moment.year < 1970:
        raise ValueError(f"{text!r} is before 1970")
    return int(moment.timestamp() * 1000)


def checked_ms(number: int) -> int:
    """Return a time in ms since 1970 unchanged; 0 is the beginning of time.

    Raises ValueError, with a sentence, for numbers that are more likely in another unit.
    """
    if number < 0:
        raise ValueError(f"{number} is before 1970")
    if number and not FIRST_MS <= number <= LAST_MS:
        unit = "seconds" if number < FIRST_MS else "microseconds or nanoseconds"
        raise ValueError(f"{number} looks like {unit}: a time is in ms since 1970, or in ISO 8601")
    return number


def duration_ms(text: str) -> int:
    """Read a number followed by ms, s, m, h or d, and return ms. Raises ValueError otherwise."""
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", text.strip().lower(), re.ASCII)
    if found is None:
        raise ValueError(f"{text!r} is not a duration like 15m: a number with ms, s, m, h or d")
    return int(found[1]) * _UNITS_MS[found[2]]
