"""The entries of queues of batches (``firearrow.store.batchqueue``) as columns.

A record of such a queue may hold several messages. Among the ``entries`` of a range each record counts once, at the
queue offset of its first message. So ranges side by side have each record once. A reader of the messages of a range
takes the records that hold them (``holding``): the first record may begin before the range, the last may go on after
it.

Units that are not written but come before written units are damaged: their messages are missing.

For verification the units have numbers: byte position in the queue's files, divided by the unit size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from firearrow.store.batchqueue import UNIT, UNIT_BYTES, UNIT_DTYPE, BatchUnit, Units, are_written, is_written
from firearrow.store.queues import ENTRY_BYTES
from firearrow.store.reading.entries import QUEUE_ENTRY, Entries, Span, bisect, without
from firearrow.store.reading.storage import Files, StoreFile
from firearrow.store.scan import Ints

_QUEUE_OFFSET_MAX: Final = (1 << 63) - 1
assert set(QUEUE_ENTRY.names or ()) <= set(UNIT_DTYPE.names or ()), "a unit has all fields of an entry"
_NONE: Final[npt.NDArray[Any]] = np.empty(0, UNIT_DTYPE)


class BatchQueue(Units):
    """Implements ``StoredQueue`` by the written units of a queue, in files and after these."""

    entry_bytes: Final = ENTRY_BYTES

    def __init__(self, files: Files, ahead: npt.NDArray[Any] = _NONE) -> None:
        """Open a queue; ``ahead`` are units after the units in the files. Messages that the files have are skipped."""
        assert ahead.dtype.names == UNIT_DTYPE.names, "units ahead have the fields of stored ones"
        self._files = files
        self.directory: Final = files.directory
        self._ahead = ahead

    def followed_by(self, ahead: npt.NDArray[Any]) -> Self:
        """The same queue with some units after it."""
        assert not len(self._ahead), "units are laid over a stored queue once"
        return type(self)(self._files, ahead)

    def units_of(self, file: StoreFile) -> npt.NDArray[Any]:
        """The units of a file up to where all is zero."""
        return self._files.array(file, UNIT_DTYPE)

    @cached_property
    def _found(self) -> tuple[npt.NDArray[Any], bool]:
        """The written units, and whether other units come before them."""
        parts: list[npt.NDArray[Any]] = []
        lacks_first = False
        for number, file in enumerate(self.directory.files):
            units = self.units_of(file)
            written = are_written(units)
            if number == 0:  # retention may have deleted the file since it was listed
                lacks_first = not len(units) or not written[0]
            parts.append(units[written])
        last = next((part[-1] for part in reversed(parts) if len(part)), None)
        end = 0 if last is None else int(last["queue_offset"]) + int(last["messages"])
        parts.append(self._ahead[self._ahead["queue_offset"] >= end])
        return np.concatenate(parts), lacks_first

    @property
    def _units(self) -> npt.NDArray[Any]:
        return self._found[0]

    @cached_property
    def _first(self) -> Ints:
        first: Ints = self._units["queue_offset"].astype(np.int64)
        return first

    @cached_property
    def _end(self) -> Ints:
        end: Ints = self._first + self._units["messages"]
        return end

    @cached_property
    def _places(self) -> Ints:
        places: Ints = self._units["physical_offset"].astype(np.int64)
        return places

    @property
    def first(self) -> int:
        """The queue offset of the first message, 0 without one."""
        return int(self._first[0]) if len(self._units) else 0

    @property
    def end(self) -> int:
        """The queue offset after the last message, 0 without one."""
        return int(self._end[-1]) if len(self._units) else 0

    @property
    def record_end(self) -> int:
        """End of the last record in the log, -1 without one."""
        return int(self._places[-1] + self._units["size"][-1]) if len(self._units) else -1

    @property
    def span(self) -> Span:
        """The messages of the queue, wherever the log begins."""
        return self.span_from(0)

    def span_from(self, log_start: int) -> Span:
        """The messages of the queue whose records are in a log that begins at ``log_start``."""
        units, lacks_first = self._found
        if not len(units):
            return 0, 0
        end = int(self._end[-1])
        if lacks_first and log_start <= 0:
            return 0, end  # the missing messages have not been deleted with the log
        return self.first_at_or_after(log_start, 0, end), end

    def first_at_or_after(self, physical_offset: int, start: int, end: int) -> int:
        """The first message in ``[start, end]`` whose record is at a physical offset or after it."""
        row = bisect_left(self._places, physical_offset)
        found = int(self._first[row]) if row < len(self._first) else end
        return min(max(found, start), end)

    def place(self, queue_offset: int) -> int:
        """The physical offset of the record of a message; -1 without an entry."""
        row = int(self._end.searchsorted(queue_offset, side="right"))
        return int(self._places[row]) if row < len(self._first) and self._first[row] <= queue_offset else -1

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of the records that begin in ``[start, end)``, or every ``step``-th of them."""
        low, high = self._first.searchsorted((start, end))
        return unit_entries(self._units[low:high:step])

    def holding(self, start: int, end: int) -> Entries:
        """The entries of the records with messages in ``[start, end)``."""
        return unit_entries(self._units[self._with_messages(start, end)])

    def _with_messages(self, start: int, end: int) -> slice:
        """The rows of the units with messages in ``[start, end)``."""
        low = int(self._end.searchsorted(start, side="right"))
        return slice(low, int(self._first.searchsorted(end)))

    def messages_of(self, start: int, end: int) -> int:
        """Count all messages of the records that have some in ``[start, end)``."""
        return int(self._units["messages"][self._with_messages(start, end)].sum(dtype=np.int64))

    def held(self, start: int, end: int) -> int:
        """Count the existing messages from ``start`` to before ``end``."""
        rows = self._with_messages(start, end)
        inside = np.minimum(self._end[rows], end) - np.maximum(self._first[rows], start)
        return int(inside.sum())

    # --- units by number ---

    @cached_property
    def numbers(self) -> range:
        """Numbers from the first file to the first unit that is not written, as they were at the first call."""
        files = self.directory.files
        if not files:
            return range(0)
        first, end = files[0].base // UNIT_BYTES, files[-1].end // UNIT_BYTES
        return range(first, bisect(first, end, lambda number: is_written(self._fields(number))))

    def _fields(self, number: int) -> tuple[int, ...]:
        """The fields of a unit, zeros where there is none."""
        fields: tuple[int, ...] = UNIT.unpack(self.unit_bytes(number, 1).ljust(UNIT_BYTES, b"\0"))
        return fields

    def unit(self, number: int) -> BatchUnit:
        """A unit, zeros where there is none."""
        return BatchUnit._make(self._fields(number)[:6])

    def _begun_before(self, queue_offset: int) -> int:
        sought = min(queue_offset, _QUEUE_OFFSET_MAX)
        return int(self._queue_offsets.searchsorted(sought, side="right"))

    @cached_property
    def _queue_offsets(self) -> npt.NDArray[np.int64]:
        """The queue offset of each unit, zero where its file is missing."""
        found = np.zeros(len(self.numbers), np.int64)
        for file in self.directory.files:
            units = self._files.array(file, UNIT_DTYPE, whole=True)
            assert file.base // UNIT_BYTES >= self.numbers.start, "files are in order"
            rows = found[file.base // UNIT_BYTES - self.numbers.start :][: len(units)]
            rows[:] = units["queue_offset"][: len(rows)]
        return found

    def unit_bytes(self, number: int, count: int) -> bytes:
        """Some units as they are stored; fewer where files end or are missing."""
        return self._files.stored(number * UNIT_BYTES, (number + count) * UNIT_BYTES)

    # --- as a StoredQueue ---

    @property
    def is_there(self) -> bool:
        """Tell whether it has files."""
        return bool(self.directory.files)

    @property
    def disk_bytes(self) -> int:
        """Bytes of the units."""
        return len(self.numbers) * UNIT_BYTES

    def others(self, known: list[Span]) -> Iterator[Span]:
        """The stretches of messages outside of the known ones."""
        yield from without(*self.span, known)

    def all(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]]:
        """The entries of each file, one for a record: a unit may claim any number of messages."""
        for file in self.directory.files:
            units = self.units_of(file)
            units = units[are_written(units)]
            entries: npt.NDArray[Any] = np.empty(len(units), QUEUE_ENTRY)
            for name in QUEUE_ENTRY.names or ():
                entries[name] = units[name]
            yield units["queue_offset"].astype(np.int64), entries


def unit_entries(units: npt.NDArray[Any]) -> Entries:
    """The entries of units as columns, one for each."""
    names = ("queue_offset", "physical_offset", "size")
    queue_offset, place, size = (units[name].astype(np.int64) for name in names)
    return Entries(queue_offset, place, size, units["tag_code"])
