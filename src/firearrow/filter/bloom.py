"""Positions of a consumer group's bits in the Bloom filter of RocketMQ's ConsumeQueueExt.

Firearrow writes no such bit maps. It keeps the positions in ``config/consumerFilter.json``, where RocketMQ checks that
they fit its filter. ``BloomFilter(20, 32)`` has 112 bits and 3 hashes::

    BloomFilter(20, 32).positions("group#topic")    ->  three numbers from 0 to 111

Source: RocketMQ's ``BloomFilter``; the hash is the first half of MurmurHash3 x64 128 with seed 0.
"""

from __future__ import annotations

from math import ceil, e, log
from typing import Final, NamedTuple

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_BLOCK_BYTES: Final = 16


class BloomFilter(NamedTuple):
    """A filter for ``names`` names; ``error_percent`` is the percentage of other names that seem to be in it."""

    error_percent: int
    names: int

    @property
    def hashes(self) -> int:
        """Count of bits that a name has."""
        return ceil(_log(0.5, self.error_percent / 100.0))

    @property
    def bits(self) -> int:
        """Count of bits that the filter has."""
        rate = self.error_percent / 100.0
        needed = ceil(self.names * _log(2, 1 / rate) * _log(2, e))
        return 8 * ceil(needed / 8.0)

    def positions(self, name: str) -> list[int]:
        """Return the bits of a name."""
        both = murmur3(name.encode())
        low, high = both & 0xFFFF_FFFF, both >> 32
        found = []
        for number in range(1, self.hashes + 1):
            combined = (low + number * high) & 0xFFFF_FFFF
            if combined >> 31:  # an int of Java would be negative
                combined ^= 0xFFFF_FFFF
            found.append(combined % self.bits)
        return found


def _log(base: float, number: float) -> float:
    return log(number) / log(base)


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128, seed 0, as a number that is not negative."""
    first = second = 0
    end = len(data) - len(data) % _BLOCK_BYTES
    for at in range(0, end, _BLOCK_BYTES):
        first ^= _mixed_first(int.from_bytes(data[at : at + 8], "little"))
        first = ((_rotated(first, 27) + second) * 5 + 0x52DCE729) & _MASK
        second ^= _mixed_second(int.from_bytes(data[at + 8 : at + 16], "little"))
        second = ((_rotated(second, 31) + first) * 5 + 0x38495AB5) & _MASK
    second ^= _mixed_second(int.from_bytes(data[end + 8 :], "little"))
    first ^= _mixed_first(int.from_bytes(data[end : end + 8], "little"))
    first ^= len(data)
    second ^= len(data)
    first = (first + second) & _MASK
    second = (second + first) & _MASK
    first, second = _finished(first), _finished(second)
    return (first + second) & _MASK


def _mixed_first(block: int) -> int:
    return _rotated(block * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_second(block: int) -> int:
    return _rotated(block * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & _MASK


def _finished(number: int) -> int:
    number ^= number >> 33
    number = number * 0xFF51AFD7ED558CCD & _MASK
    number ^= number >> 33
    number = number * 0xC4CEB9FE1A85EC53 & _MASK
    return number ^ number >> 33
