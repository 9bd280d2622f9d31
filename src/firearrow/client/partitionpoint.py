"""Finds where a condition begins to hold, starting from a place that is likely to be near."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def partition_point(holds: Callable[[int], bool], start: int, end: int, guess: int) -> int:
    """The first number of ``start`` to ``end`` for which ``holds`` is true; ``end`` if none.

    It must be true for all after the first. Costs two calls if ``guess`` is right, else some twice
    the logarithm of how far off it is.
    """
    guess = min(max(guess, start), end)
    step = 1
    low, high = start, end
    if guess == end or holds(guess):
        high = guess
        while high > low:
            probe = max(low, high - step)
            if not holds(probe):
                low = probe + 1
                break
            high = probe
            step *= 2
    else:
        low = guess + 1
        while low < high:
            probe = min(high - 1, low + step - 1)
            if holds(probe):
                high = probe
                break
            low = probe + 1
            step *= 2
    return low + bisect_left(range(low, high), True, key=holds)
