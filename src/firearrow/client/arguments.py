"""Arguments of client functions: checks that name the argument, and durations.

Types say the same, but few programs are checked by types, and a wrong value would fail far from its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from firearrow.errors import ConfigError

Duration = timedelta | float
"""Length of time: a ``timedelta``, or a number of seconds."""


def duration_fault(value: object) -> str | None:
    """Return why a value can't be a duration, or None if it can."""
    if isinstance(value, timedelta):
        return None if value >= timedelta() else f"{value} is negative"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{value!r} is neither a timedelta nor a number of seconds"
    return None if value >= 0 else f"{value:g} s is negative"


def seconds_of(duration: Duration, name: str) -> float:
    """Seconds of a duration that is the argument ``name``. Raises ConfigError for another value."""
    fault = duration_fault(duration)
    if fault is not None:
        raise ConfigError(f"{name}: {fault}")
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def ms_of(duration: Duration, name: str) -> int:
    """Milliseconds of a duration, rounded down. Raises ConfigError for another value."""
    return int(seconds_of(duration, name) * 1000)


def one_or_several(value: object) -> Iterable[object]:
    """Elements of a collection; the value itself if it is a text or no collection."""
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else value


def texts_of(value: object, name: str) -> list[str]:
    """Texts of an argument that is one or several. Raises ConfigError for another value."""
    found: list[str] = []
    for one in one_or_several(value):
        if not isinstance(one, str):
            raise ConfigError(f"{name}: {one!r} is not text")
        found.append(one)
    return found
