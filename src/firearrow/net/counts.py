"""Counts and histograms by what they are labelled with, as many as there may be of one metric.

Names in requests are anybody's choice, so their number has a limit; beyond it nothing is counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

from firearrow.net.meter import Histogram

KEYS_MAX: Final = 50_000  # of one family, as upstream (metricsOtelCardinalityLimit)

K = TypeVar("K", bound=Hashable)


class Counts(Generic[K]):
    """Counts by keys, of which there is a limit: others are not counted."""

    def __init__(self) -> None:
        self.of: dict[K, int] = {}

    def add(self, key: K, count: int = 1) -> None:
        """Count."""
        known = self.of.get(key)
        if known is not None:
            self.of[key] = known + count
        elif len(self.of) < KEYS_MAX:
            self.of[key] = count


class Histograms(Generic[K]):
    """Histograms by keys, with a limit as `Counts` have it."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.of: dict[K, Histogram] = {}

    def add(self, key: K, value: float) -> None:
        """Count a value."""
        found = self.of.get(key)
        if found is None:
            if len(self.of) >= KEYS_MAX:
                return
            found = self.of[key] = Histogram(self._bounds)
        found.add(value)
