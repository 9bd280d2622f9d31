"""Tests of the histogram."""

from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.loads.histogram import Histogram

VALUES = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200)
SHARES = st.floats(0.001, 1.0)


def counted(values: list[int]) -> Histogram:
    histogram = Histogram()
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
    histogram = Histogram()
    assert (histogram.at(0.99), histogram.mean, histogram.max) == (0, 0.0, 0)


def test_a_clock_that_went_back_makes_it_zero() -> None:
    assert counted([-5]).at(1) == 0


def test_the_memory_is_bounded() -> None:
    histogram = counted([value * 997 for value in range(100_000)])
    assert len(histogram._counts) < 4000
