"""Times and durations: whole milliseconds, and bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.proxy.messages import Code, Duration, Timestamp
from firearrow.proxy.statuses import ProxyError
from firearrow.proxy.times import (
    DURATION_SECONDS_MAX,
    TIME_SECONDS_MAX,
    TIME_SECONDS_MIN,
    check_duration,
    duration_ms,
    duration_of,
    is_time,
    set_time,
    time_ms,
)


def timestamp_of(ms: int) -> Timestamp:
    timestamp = Timestamp()
    set_time(timestamp, ms)
    return timestamp


@given(st.integers(TIME_SECONDS_MIN * 1000, TIME_SECONDS_MAX * 1000 + 999))
def test_a_time_comes_back(ms: int) -> None:
    assert is_time(timestamp_of(ms))
    assert time_ms(timestamp_of(ms)) == ms


@given(st.integers(-DURATION_SECONDS_MAX * 1000, DURATION_SECONDS_MAX * 1000))
def test_a_duration_comes_back(ms: int) -> None:
    check_duration(duration_of(ms))
    assert duration_ms(duration_of(ms)) == ms


def test_parts_of_a_millisecond_are_cut_off() -> None:
    assert time_ms(Timestamp(seconds=-2, nanos=500_999_999)) == -1500
    assert duration_ms(Duration(seconds=-1, nanos=-500_999_999)) == -1500
    assert duration_ms(Duration(nanos=-999_999)) == 0


@pytest.mark.parametrize("ms", [-(1 << 63), (1 << 63) - 1])
def test_a_time_out_of_bounds_becomes_the_nearest(ms: int) -> None:
    assert timestamp_of(ms).seconds in (TIME_SECONDS_MIN, TIME_SECONDS_MAX)
    assert is_time(timestamp_of(ms))


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(TIME_SECONDS_MIN - 1, 0), (TIME_SECONDS_MAX + 1, 0), (0, -1), (0, 1_000_000_000)]
)
def test_a_timestamp_out_of_bounds_is_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(ProxyError, match=f"a timestamp is out of range: seconds={seconds}, nanos={nanos}") as raised:
        time_ms(Timestamp(seconds=seconds, nanos=nanos), Code.ILLEGAL_DELIVERY_TIME)
    assert raised.value.code is Code.ILLEGAL_DELIVERY_TIME


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(DURATION_SECONDS_MAX + 1, 0), (0, 1_000_000_000), (1, -1), (-1, 1), (-(1 << 63), 0)]
)
def test_a_duration_out_of_bounds_is_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(ProxyError, match="a duration is out of range") as raised:
        duration_ms(Duration(seconds=seconds, nanos=nanos))
    assert raised.value.code is Code.BAD_REQUEST
