"""Pacing of a load, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.loads.pacing import REASONS_MAX, LatencyHistogram, LoadPlan, LoadResult, run
from firearrow.errors import BrokerBusy, ConfigError
from firearrow.testing.loop import VirtualLoop


def measured(plan: LoadPlan, one: Callable[[int], Awaitable[int]], **more: Any) -> LoadResult:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run(plan, one, **more))


async def in_ten_ms(_: int) -> int:
    await asyncio.sleep(0.010)
    return 1


def test_it_ends_with_the_count() -> None:
    found = measured(LoadPlan(count=10, in_flight=4), in_ten_ms)
    assert (found.messages, found.took.count, found.failed) == (10, 10, 0)
    assert found.seconds == pytest.approx(0.030)
    assert found.took.at(1) == pytest.approx(10_000, rel=0.01)


def test_it_ends_with_the_time_and_what_is_under_way_does_not_count() -> None:
    found = measured(LoadPlan(seconds=0.105, in_flight=2), in_ten_ms)
    assert found.messages == 20
    assert found.seconds == pytest.approx(0.105)


def test_so_many_a_second() -> None:
    found = measured(LoadPlan(seconds=1.0, per_second=50, in_flight=8), in_ten_ms)
    assert found.messages == 50
    assert found.took.max == pytest.approx(10_000, rel=0.01)


def test_who_waits_behind_one_that_stands_still_is_measured_so() -> None:
    async def first_takes_a_second(number: int) -> int:
        await asyncio.sleep(0 if number else 1.0)
        return 1

    found = measured(LoadPlan(count=100, per_second=100, in_flight=1), first_takes_a_second)
    assert found.took.at(0.5) == pytest.approx(500_000, rel=0.05)


def test_failures_are_counted_with_their_reasons() -> None:
    async def fail(number: int) -> int:
        if number % 2:
            raise BrokerBusy(2, "busy")
        return 1

    found = measured(LoadPlan(count=10, in_flight=1), fail)
    assert (found.messages, found.failed) == (5, 5)
    assert found.reasons == {"BrokerBusy: code 2: busy": 5}


def test_of_reasons_only_some_are_kept() -> None:
    async def fail(number: int) -> int:
        raise OSError(f"no {number}")

    found = measured(LoadPlan(count=100), fail)
    assert (found.failed, len(found.reasons)) == (100, REASONS_MAX)


def test_what_is_a_fault_of_the_load_is_raised() -> None:
    async def wrong(_: int) -> int:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        measured(LoadPlan(count=1), wrong)
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


def test_it_ends_when_there_is_no_more_to_do() -> None:
    done: list[int] = []

    async def one(number: int) -> int:
        done.append(number)
        return 0

    found = measured(LoadPlan(in_flight=1), one, ended=lambda: len(done) == 3)
    assert (found.messages, found.took.count, len(done)) == (0, 0, 3)


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": 0}, {"seconds": 90_000}, {"count": 0}, {"in_flight": 0}, {"in_flight": 5000}, {"per_second": 0}],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"allowed|more than 0"):
        LoadPlan(**wrong)


# --- Tests of the histogram ---


VALUES = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200)
SHARES = st.floats(0.001, 1.0)


def counted(values: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(VALUES, SHARES)
def test_a_share_is_told_with_less_than_one_percent_of_error(values: list[int], share: float) -> None:
    exact = next(
        value for seen, value in enumerate(sorted(values), 1) if seen >= share * len(values) or seen == len(values)
    )
    assert exact <= counted(values).at(share) <= exact * 1.01


@given(VALUES)
def test_count_mean_and_maximum_are_exact(values: list[int]) -> None:
    histogram = counted(values)
    assert (histogram.count, histogram.max) == (len(values), max(values))
    assert histogram.mean == sum(values) / len(values)


def test_of_nothing_all_is_zero() -> None:
    histogram = LatencyHistogram()
    assert (histogram.at(0.99), histogram.mean, histogram.max) == (0, 0.0, 0)


def test_a_clock_that_went_back_makes_it_zero() -> None:
    assert counted([-5]).at(1) == 0


def test_the_memory_is_bounded() -> None:
    histogram = counted([value * 997 for value in range(100_000)])
    assert len(histogram._counts) < 4000
