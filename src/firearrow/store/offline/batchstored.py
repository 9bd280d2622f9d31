"""Queues of batches as they are in a store, read-only (``firearrow.store.batchqueue``).

To who asks for entries by ``read``, each message of a record has one of its own, with the place of
the record; ``all`` gives one a record. Who compares asks for units.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.store.batchqueue import UNIT, UNIT_BYTES, UNIT_DTYPE, Unit, Units, are_written, is_written
from firearrow.store.queues import ENTRY_BYTES
from firearrow.store.snapshot.batchunits import BatchQueue
from firearrow.store.snapshot.entries import QUEUE_ENTRY, Span, bisect, without
from firearrow.store.snapshot.files import Files
from firearrow.store.snapshot.mapped import Directory, Maps, data_end

_QUEUE_OFFSET_MAX: Final = (1 << 63) - 1


class StoredBatchQueue(BatchQueue, Units):
    """Implements ``StoredQueue`` by the files of a directory."""

    entry_bytes: Final = ENTRY_BYTES

    def __init__(self, maps: Maps, directory: Directory) -> None:
        super().__init__(Files(directory.files, maps.of, data_end))
        self.directory = directory
        self._maps = maps

    @cached_property
    def numbers(self) -> range:
        """From the first file on to the first unit that is not written, when it was first asked."""
        files = self.directory.files
        if not files:
            return range(0)
        first, end = files[0].base // UNIT_BYTES, files[-1].end // UNIT_BYTES
        return range(first, bisect(first, end, lambda number: is_written(self._fields(number))))

    def _fields(self, number: int) -> tuple[int, ...]:
        """The fields of a unit, zeros where there is none."""
        fields: tuple[int, ...] = UNIT.unpack(self.unit_bytes(number, 1).ljust(UNIT_BYTES, b"\0"))
        return fields

    def unit(self, number: int) -> Unit:
        """A unit, zeros where there is none."""
        return Unit._make(self._fields(number)[:6])

    def _begun_before(self, queue_offset: int) -> int:
        sought = min(queue_offset, _QUEUE_OFFSET_MAX)
        return int(self._queue_offsets.searchsorted(sought, side="right"))

    @cached_property
    def _queue_offsets(self) -> npt.NDArray[np.int64]:
        """Where each unit begins, zero where there is no file for it."""
        found = np.zeros(len(self.numbers), np.int64)
        for file in self.directory.files:
            buffer = self._maps.of(file)
            units = np.frombuffer(buffer, UNIT_DTYPE, len(buffer) // UNIT_BYTES)
            rows = found[file.base // UNIT_BYTES - self.numbers.start :][: len(units)]
            rows[:] = units["queue_offset"][: len(rows)]
        return found

    def unit_bytes(self, number: int, count: int) -> bytes:
        """Some units as they are stored; fewer where files end or are missing."""
        at, end = number * UNIT_BYTES, (number + count) * UNIT_BYTES
        parts: list[bytes] = []
        while at < end:
            file = self.directory.find(at)
            if file is None:
                break
            stop = min(end, file.end)
            parts.append(bytes(self._maps.of(file)[at - file.base : stop - file.base]))
            at = stop
        return b"".join(parts)

    # --- as a StoredQueue ---

    @property
    def is_there(self) -> bool:
        """Tell whether it has files."""
        return bool(self.directory.files)

    @property
    def disk_bytes(self) -> int:
        """What its units take."""
        return len(self.numbers) * UNIT_BYTES

    def others(self, known: list[Span]) -> Iterator[Span]:
        """The stretches of messages that are not known."""
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
