"""The entries of a ConsumeQueue in files (``firearrow.store.consumequeue``) as columns.

Only the entries show the content of a queue: an entry with a place in the log is written with its record, and the
first entry without a size ends the queue.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.store.queues import ENTRY_BYTES
from firearrow.store.reading.entries import PRE_BLANK_SIZE, QUEUE_ENTRY, Entries, Span, bisect, entry_columns, without
from firearrow.store.reading.storage import Buffer, Files, StoreFile
from firearrow.store.scan import Ints

_PLACE: Final = struct.Struct(">qi")  # of an entry: physical offset and size
assert _PLACE.size + QUEUE_ENTRY["tag_code"].itemsize == ENTRY_BYTES, "only the tag code follows the place"


class FileQueue:
    """Implements ``StoredQueue`` by files; where a file is missing between others, its entries are, too."""

    entry_bytes: Final = ENTRY_BYTES

    def __init__(self, files: Files) -> None:
        self._files = files
        self.directory: Final = files.directory
        self._bases = [file.base // ENTRY_BYTES for file in files.directory.files]

    def entries_of(self, file: StoreFile) -> npt.NDArray[Any]:
        """The entries of a file up to where all is zero."""
        return self._files.array(file, QUEUE_ENTRY)

    def _map(self, number: int) -> npt.NDArray[Any]:
        return self._files.array(self.directory.files[number], QUEUE_ENTRY, whole=True)

    # --- for consumers ---

    def span_from(self, log_start: int) -> Span:
        """The queue offsets whose records are in a log that begins at ``log_start``."""
        first, end = self.span
        return self.first_at_or_after(log_start, first, end), end

    @property
    def span(self) -> Span:
        """The queue offsets from the first file on to the end of the entries."""
        end = self._end()
        return (self._bases[0] if end else 0), end

    def _end(self) -> int:
        for number in range(len(self._bases) - 1, -1, -1):
            end = _written(self._files.of(self.directory.files[number]))
            if end or number == 0:
                return int(self._bases[number]) + end
        return 0

    def first_at_or_after(self, physical_offset: int, start: int, end: int) -> int:
        """The first queue offset in ``[start, end]`` with a record at a physical offset or after it."""
        return bisect_left(range(end), physical_offset, start, key=self._physical)

    def place(self, queue_offset: int) -> int:
        """The physical offset of the record of a message; -1 without an entry."""
        if not self.directory.start <= queue_offset * ENTRY_BYTES < self.directory.end:
            return -1
        return self._physical(queue_offset)

    def _physical(self, queue_offset: int) -> int:
        number = bisect_right(self._bases, queue_offset) - 1
        at = (queue_offset - self._bases[number]) * ENTRY_BYTES
        buffer = self._files.of(self.directory.files[number])
        if not len(buffer):
            return -1
        if at >= len(buffer):  # a file is missing there
            return self._physical(self._bases[number + 1])
        physical, size = _PLACE.unpack_from(buffer, at)
        return -1 if size == PRE_BLANK_SIZE else int(physical)

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of queue offsets in ``[start, end)``, or every ``step``-th of them."""
        offsets: list[Ints] = []
        parts: list[npt.NDArray[Any]] = []
        for number, file in enumerate(self.directory.files):
            base = self._bases[number]
            low, high = max(start, base), min(end, base + file.size_bytes // ENTRY_BYTES)
            if low < high:
                low += (start - low) % step
                part = self._map(number)[low - base : high - base : step]
                assert not len(part) or low + step * (len(part) - 1) < high, "the last step is before the end"
                parts.append(part)
                offsets.append(np.arange(low, low + step * len(part), step))
        if not parts:
            return entry_columns(np.empty(0, np.int64), np.empty(0, QUEUE_ENTRY))
        if len(parts) == 1:
            return entry_columns(offsets[0], parts[0])
        return entry_columns(np.concatenate(offsets), np.concatenate(parts))

    # --- as stored ---

    @property
    def is_there(self) -> bool:
        """Tell whether it has files."""
        return bool(self._bases)

    @property
    def disk_bytes(self) -> int:
        """Bytes of the entries from the first file on."""
        first, end = self.span
        return (end - first) * ENTRY_BYTES

    @property
    def end(self) -> int:
        """The queue offset after the last existing entry."""
        for file in reversed(self.directory.files):
            written = np.flatnonzero(self.entries_of(file)["size"] > 0)
            if len(written):
                return file.base // ENTRY_BYTES + int(written[-1]) + 1
        return 0

    def read(self, queue_offset: int, count: int) -> bytes:
        """Some entries; fewer where files end or are missing."""
        return self._files.stored(queue_offset * ENTRY_BYTES, (queue_offset + count) * ENTRY_BYTES)

    def others(self, known: list[Span]) -> Iterator[Span]:
        """The stretches of each file outside of the known ones."""
        for file in self.directory.files:
            first = file.base // ENTRY_BYTES
            yield from without(first, first + len(self.entries_of(file)), known)

    def all(self) -> Iterator[tuple[Ints, npt.NDArray[Any]]]:
        """The content of each file, written or not."""
        for file in self.directory.files:
            entries = self.entries_of(file)
            yield np.arange(len(entries)) + file.base // ENTRY_BYTES, entries


def _written(entries: Buffer) -> int:
    """Count the entries of a file before the first that is not written."""
    return bisect(0, len(entries) // ENTRY_BYTES, lambda number: _is_written(entries, number))


def _is_written(entries: Buffer, number: int) -> bool:
    physical, size = _PLACE.unpack_from(entries, number * ENTRY_BYTES)
    return bool(physical >= 0 and size > 0)
