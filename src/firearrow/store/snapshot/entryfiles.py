"""The entries of a ConsumeQueue in files (``firearrow.store.consumequeue``) as columns.

What a queue holds is told by its entries alone: one with a place in the log is written when its
record is, and the first without a size ends the queue.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.store.queues import ENTRY_BYTES
from firearrow.store.scan import Ints
from firearrow.store.snapshot.entries import PRE_BLANK_SIZE, QUEUE_ENTRY, Entries, Span, bisect, entry_columns
from firearrow.store.snapshot.files import Buffer, Files

_PLACE: Final = struct.Struct(">qi")  # of an entry: physical offset and size


class FileQueue:
    """Implements ``Queue`` by files; where one is missing between others, its entries are."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._bases = [file.base // ENTRY_BYTES for file in files.files]

    def _buffer(self, number: int) -> Buffer:
        return self._files.of(self._files.files[number])

    def entries_of(self, file: Any) -> npt.NDArray[Any]:
        """What is in a file up to where all is zero."""
        buffer = self._files.of(file)
        room = min(len(buffer) // ENTRY_BYTES, -(-self._files.data_end(file) // ENTRY_BYTES))
        return np.frombuffer(buffer, QUEUE_ENTRY, room)

    def _map(self, number: int) -> npt.NDArray[Any]:
        buffer = self._buffer(number)
        return np.frombuffer(buffer, QUEUE_ENTRY, len(buffer) // ENTRY_BYTES)

    def span_from(self, log_start: int) -> Span:
        """What it holds of a log that begins at ``log_start``."""
        first, end = self.span
        return self.first_at_or_after(log_start, first, end), end

    @property
    def span(self) -> Span:
        """From the first file on to where the entries end."""
        end = self._end()
        return (self._bases[0] if end else 0), end

    def _end(self) -> int:
        for number in range(len(self._files.files) - 1, -1, -1):
            end = _written(self._map(number))
            if end or number == 0:
                return int(self._bases[number]) + end
        return 0

    def first_at_or_after(self, physical_offset: int, start: int, end: int) -> int:
        """The first queue offset in ``[start, end]`` whose record is there or later."""
        return bisect_left(range(end), physical_offset, start, key=self._physical)

    def _physical(self, queue_offset: int) -> int:
        number = bisect_right(self._bases, queue_offset) - 1
        at = (queue_offset - self._bases[number]) * ENTRY_BYTES
        buffer = self._buffer(number)
        if not len(buffer):
            return -1
        if at >= len(buffer):  # a file is missing there
            return self._physical(self._bases[number + 1])
        physical, size = _PLACE.unpack_from(buffer, at)
        return -1 if size == PRE_BLANK_SIZE else int(physical)

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of queue offsets in ``[start, end)``, or of every so many of them."""
        offsets: list[Ints] = []
        parts: list[npt.NDArray[Any]] = []
        for number, file in enumerate(self._files.files):
            base = self._bases[number]
            low, high = max(start, base), min(end, base + file.size_bytes // ENTRY_BYTES)
            if low < high:
                low += (start - low) % step
                part = self._map(number)[low - base : high - base : step]
                parts.append(part)
                offsets.append(np.arange(low, low + step * len(part), step))
        if not parts:
            return entry_columns(np.empty(0, np.int64), np.empty(0, QUEUE_ENTRY))
        if len(parts) == 1:
            return entry_columns(offsets[0], parts[0])
        return entry_columns(np.concatenate(offsets), np.concatenate(parts))


def _written(entries: npt.NDArray[Any]) -> int:
    """How many entries of a file are before the first that is not written."""
    size, physical = entries["size"], entries["physical_offset"]
    return bisect(0, len(entries), lambda at: bool(physical[at] >= 0 and size[at] > 0))
