"""History of figures: the last hour of each series, as single-precision numbers in rings of one length."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from math import isnan, nan
from typing import Final

POINTS: Final = 720
"""Samples of one hour, one every five seconds."""
NOTHING: Final = array("f", [nan]) * POINTS


class History:
    """Series by name. A series without a value for an hour is forgotten.

    5,000 series take 14 MB.
    """

    def __init__(self) -> None:
        self._times = array("d", [nan]) * POINTS
        self._series: dict[str, array[float]] = {}
        self._at = 0

    def add(self, seconds: float, values: Mapping[str, float]) -> None:
        """Add a sample at a time in seconds since 1970; a series without a value has a gap."""
        self._at = at = (self._at + 1) % POINTS
        self._times[at] = seconds
        self._series |= {name: array("f", NOTHING) for name in values if name not in self._series}
        for name in [name for name, ring in self._series.items() if not self._put(ring, values.get(name, nan))]:
            del self._series[name]

    def _put(self, ring: array[float], value: float) -> bool:
        """Set the newest value, and tell whether the series still has one."""
        ring[self._at] = value
        return not isnan(value) or any(not isnan(other) for other in ring)

    def points(self, name: str) -> list[tuple[float, float]]:
        """Give times and values of a series, the oldest first, without gaps."""
        ring = self._series.get(name, NOTHING)
        order = (*range(self._at + 1, POINTS), *range(self._at + 1))
        return [(self._times[at], ring[at]) for at in order if not isnan(ring[at])]

    def columns(self, names: Iterable[str]) -> list[list[float | None]]:
        """Give the times, then the values of each series at these times, None for a gap."""
        order = [at for at in (*range(self._at + 1, POINTS), *range(self._at + 1)) if not isnan(self._times[at])]
        rings = [self._series.get(name, NOTHING) for name in names]
        values = [[None if isnan(ring[at]) else ring[at] for at in order] for ring in rings]
        return [[self._times[at] for at in order], *values]
