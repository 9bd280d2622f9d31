"""The clocks of the machine, within the limits of a test."""

from datetime import UTC, datetime

import pytest

from firearrow.clock import Clock, SystemClock, duration_ms, moment_ms


def test_the_wall_clock_counts_milliseconds() -> None:
    clock: Clock = SystemClock()
    before = datetime.now(UTC).timestamp()
    now_ms = clock.now_ms()
    after = datetime.now(UTC).timestamp()
    assert int(before * 1000) - 1 <= now_ms <= int(after * 1000) + 1


def test_the_monotonic_clock_never_decreases() -> None:
    clock: Clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-21T06:30:00Z", 1_795_242_600_000),
        (" 2026-11-21 06:30 ", 1_795_242_600_000),
        ("2026-11-21T07:30:00.5+01:00", 1_795_242_600_500),
        ("1795242600000", 1_795_242_600_000),
        ("1970-01-02", 86_400_000),
        ("0", 0),
    ],
)
def test_a_time_is_iso_8601_or_milliseconds(text: str, ms: int) -> None:
    assert moment_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("noon", "^'noon' is not a time like 2026-"),
        ("", "^'' is not a time"),
        ("-1", "is not a time"),
        ("1795242600", "^1795242600 looks like seconds: a time is in ms since 1970, or in ISO 8601"),
        ("1795242600000000", "looks like microseconds or nanoseconds"),
        ("1969-12-31", "^'1969-12-31' is before 1970"),
    ],
)
def test_what_is_no_time_is_told(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        moment_ms(text)


def test_a_duration_has_a_unit() -> None:
    texts = ("250ms", "2 s", "15m", "1h", "1D")
    assert [duration_ms(text) for text in texts] == [250, 2000, 900_000, 3_600_000, 86_400_000]
    for text in ("", "15", "m", "1.5h", "1 w", "-1s"):
        with pytest.raises(ValueError, match="is not a duration like 15m"):
            duration_ms(text)
