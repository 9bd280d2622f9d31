"""Points in time and durations of messages, as whole milliseconds.

Protobuf has them as seconds and nanoseconds: 1.5 s before 1970 is ``seconds=-2, nanos=500000000`` as a time, but
``seconds=-1, nanos=-500000000`` as a duration. Parts of a millisecond are cut off, toward earlier times and shorter
durations.

Source: Protobuf's ``timestamp.proto`` and ``duration.proto``, ``Timestamps``, ``Durations``.
"""

from __future__ import annotations

from typing import Final

from firearrow.proxy.messages import Code, Duration, Timestamp
from firearrow.proxy.statuses import ProxyError

TIME_SECONDS_MIN: Final = -62_135_596_800  # year 1
TIME_SECONDS_MAX: Final = 253_402_300_799  # year 9999
DURATION_SECONDS_MAX: Final = 315_576_000_000  # 10,000 years
NANOS_MAX: Final = 999_999_999
NANOS_OF_MS: Final = 1_000_000


def is_time(timestamp: Timestamp) -> bool:
    """Tell whether a timestamp is within the bounds of the format."""
    return TIME_SECONDS_MIN <= timestamp.seconds <= TIME_SECONDS_MAX and 0 <= timestamp.nanos <= NANOS_MAX


def time_ms(timestamp: Timestamp, code: Code = Code.BAD_REQUEST) -> int:
    """Return a time in ms since 1970; raises ProxyError with this code if it is out of bounds."""
    if not is_time(timestamp):
        raise ProxyError(code, f"a timestamp is out of range: seconds={timestamp.seconds}, nanos={timestamp.nanos}")
    return timestamp.seconds * 1000 + timestamp.nanos // NANOS_OF_MS


def duration_ms(duration: Duration, code: Code = Code.BAD_REQUEST) -> int:
    """Return a duration in ms; raises ProxyError with this code if it is out of bounds or of two signs."""
    check_duration(duration, code)
    ms = abs(duration.nanos) // NANOS_OF_MS
    return duration.seconds * 1000 + (ms if duration.nanos >= 0 else -ms)


def check_duration(duration: Duration, code: Code = Code.BAD_REQUEST) -> None:
    """Raise ProxyError with this code for a duration that is out of bounds or of two signs."""
    seconds, nanos = duration.seconds, duration.nanos
    if abs(seconds) > DURATION_SECONDS_MAX or abs(nanos) > NANOS_MAX or seconds * nanos < 0:
        raise ProxyError(code, f"a duration is out of range: seconds={seconds}, nanos={nanos}")


def set_time(timestamp: Timestamp, ms: int) -> None:
    """Set a timestamp to a time in ms since 1970; a time out of bounds becomes the nearest one within.

    Java: Timestamps#fromMillis raises an exception for it.
    """
    seconds, rest = divmod(ms, 1000)
    if not TIME_SECONDS_MIN <= seconds <= TIME_SECONDS_MAX:
        seconds, rest = (TIME_SECONDS_MIN, 0) if ms < 0 else (TIME_SECONDS_MAX, 999)
    timestamp.seconds = seconds
    timestamp.nanos = rest * NANOS_OF_MS


def duration_of(ms: int) -> Duration:
    """Return the duration of some ms."""
    seconds, rest = divmod(abs(ms), 1000)
    sign = 1 if ms >= 0 else -1
    return Duration(seconds=sign * seconds, nanos=sign * rest * NANOS_OF_MS)
