"""The entries of a task's queues in the order of the log.

There are as many entries as messages, so only the places are sorted, each with the number of its entry in one word. The
other columns are fetched for some tens of thousands of entries at a time, while these are still in the processor's
cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.store.reading.entries import Entries, bisect
from firearrow.store.scan import Ints

PIECE_ROWS: Final = 1 << 15
_WORD_BITS: Final = 63


class Wanted(NamedTuple):
    """Entries in the order of the log, each with the number of its part of the task."""

    queue_offset: Ints
    physical_offset: Ints
    size: Ints
    part: Ints

    def take(self, chosen: npt.NDArray[np.bool_] | Ints | slice) -> Wanted:
        """The chosen entries."""
        return Wanted(*(column[chosen] for column in self))

    def and_then(self, *others: Wanted) -> Wanted:
        """These and other entries."""
        return Wanted(*map(np.concatenate, zip(self, *others, strict=True)))

    @classmethod
    def of(cls, parts: Sequence[Entries], first: int = 0) -> Wanted:
        """The entries of parts of a task, whose numbers count from ``first`` on."""
        numbered = (
            cls(part.queue_offset, part.physical_offset, part.size, np.full(len(part.size), number))
            for number, part in enumerate(parts, first)
        )
        return NOTHING_WANTED.and_then(*numbered)


NOTHING_WANTED: Final = Wanted(*(np.empty(0, np.int64) for _ in Wanted._fields))


class EntriesInOrder:
    """Entries in the order of their places."""

    def __init__(self, wanted: Wanted) -> None:
        self._all = wanted
        places = self._all.physical_offset
        low, high = (int(places.min()), int(places.max())) if len(places) else (0, 0)
        self._low = low
        self._shift = len(places).bit_length()
        self._start, self._end = 0, len(places)
        if (high - low).bit_length() + self._shift <= _WORD_BITS:
            self._keys = places - low
            self._keys <<= self._shift
            self._keys |= np.arange(len(places))
            self._keys.sort()
        else:
            self._shift = 0
            self._keys = places.argsort()

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def size_max(self) -> int:
        """The largest size of an entry."""
        return int(self._all.size.max(initial=0))

    def count_before(self, physical_offset: int) -> int:
        """Count the entries, of all parts, whose place is before one."""
        return int(np.count_nonzero(self._all.physical_offset < physical_offset))

    def between(self, start: int, end: int) -> EntriesInOrder:
        """The entries whose places are in ``[start, end)`` of the log."""
        found = EntriesInOrder.__new__(EntriesInOrder)
        found.__dict__.update(self.__dict__)
        found._start, found._end = self._number(start), self._number(end)
        return found

    def _number(self, physical_offset: int) -> int:
        """The number of the first entry at a place or after it."""
        return bisect(self._start, self._end, lambda number: self.place(number) < physical_offset)

    def place(self, number: int) -> int:
        """The place of one of all entries."""
        return int(self._all.physical_offset[self._rows(number, number + 1)[0]])

    def _rows(self, start: int, end: int) -> Ints:
        keys = self._keys[start:end]
        return keys & ((1 << self._shift) - 1) if self._shift else keys

    def _some(self, start: int, end: int) -> Wanted:
        rows = self._rows(start, end)
        if not self._shift:
            return self._all.take(rows)
        places = (self._keys[start:end] >> self._shift) + self._low
        known = self._all
        return Wanted(known.queue_offset[rows], places, known.size[rows], known.part[rows])

    @property
    def first(self) -> int:
        """The place of the first."""
        return self.place(self._start)

    @property
    def last(self) -> int:
        """The place of the last."""
        return self.place(self._end - 1)

    def pieces(self) -> Iterator[Wanted]:
        """All entries, some at a time; entries of one place come together."""
        start = self._start
        while start < self._end:
            end = min(start + PIECE_ROWS, self._end)
            while end < self._end and self.place(end) == self.place(end - 1):
                end += 1
            yield self._some(start, end)
            start = end
