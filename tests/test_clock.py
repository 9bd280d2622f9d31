"""The clocks of the machine, as far as a test can know them."""

from datetime import UTC, datetime

from firearrow.clock import Clock, SystemClock


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
