"""The place where a condition begins to hold."""

from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.partitionpoint import partition_point


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(-10, 1010), st.integers(-5, 1010))
def test_it_is_found_from_wherever_one_starts(a: int, b: int, guess: int, first: int) -> None:
    start, end = sorted((a, b))
    asked: list[int] = []

    def holds(number: int) -> bool:
        assert start <= number < end
        asked.append(number)
        return number >= first

    assert partition_point(holds, start, end, guess) == min(max(first, start), end)
    distance = abs(min(max(first, start), end) - min(max(guess, start), end))
    assert len(asked) <= 2 * (distance + 1).bit_length() + 4
