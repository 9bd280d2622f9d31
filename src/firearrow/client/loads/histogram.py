"""How long things took, in bounded memory: every value is kept with an error of less than 1 %.

A bucket is as wide as 1/128 of the smallest value in it, so that a microsecond and an hour need
a few thousand buckets at most. The idea is that of HdrHistogram (http://hdrhistogram.org).
"""

from __future__ import annotations

from typing import Final

_BITS: Final = 8  # values below 256 have buckets of their own
_MASK: Final = (1 << _BITS) - 1


class Histogram:
    """Counts values, whole numbers of 0 or more (here: microseconds)."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.max = 0

    def add(self, value: int) -> None:
        """Count a value; a clock that went back makes it 0."""
        value = max(value, 0)
        bucket = _bucket(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        self.max = max(self.max, value)

    @property
    def mean(self) -> float:
        """The mean; 0 of nothing."""
        return self.total / self.count if self.count else 0.0

    def at(self, share: float) -> int:
        """The value that a share of all (0 to 1) do not exceed; 0 of nothing."""
        wanted = share * self.count
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(_last_in(bucket), self.max)
        return self.max


def _bucket(value: int) -> int:
    shift = max(0, value.bit_length() - _BITS)
    return shift << _BITS | value >> shift


def _last_in(bucket: int) -> int:
    shift = bucket >> _BITS
    return ((bucket & _MASK) + 1 << shift) - 1
