"""The wheel: for each time, the positions of its units in the timer log.

A file of slots, see ``firearrow.store.timerfiles``. The slot of a time is its number modulo the number of slots, and a
slot with another time is empty for it. A write is in the page cache at once. At a start ``firearrow.store.timers``
makes the wheel agree with the timer log: it makes the wheel again from the units.

Source: RocketMQ's ``TimerWheel``.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.logs import Log
from firearrow.store.fs import FileSystem, unmap
from firearrow.store.timerfiles import SLOT, WHEEL_SLOTS

log: Final = Log(__name__)

_SLOT: Final = struct.Struct(">qqqii")
assert _SLOT.size == SLOT.itemsize, "columns and single slots have one format"
_SCAN_SLOTS: Final = 8192  # some 30 µs: the longest step of a search for the next time


class WheelSlot(NamedTuple):
    """The units of a time: positions of the first and the last, and the number of waiting ones."""

    first: int
    last: int
    number: int


class TimerWheel:
    """The file, which is made when the first slot is filled. Times are ms, whole slots."""

    def __init__(self, path: Path, precision_ms: int, fs: FileSystem, slots: int = WHEEL_SLOTS) -> None:
        self.path = path
        self.precision_ms = precision_ms
        self.span_ms: Final = slots * precision_ms
        self._slots = slots
        self._fs = fs
        self._map: mmap.mmap | None = None

    @property
    def is_there(self) -> bool:
        """Tell whether there is a file."""
        return self._map is not None

    def open(self) -> None:
        """Map the file, if it has the right size; otherwise it is useless and removed."""
        if not self.path.exists():
            return
        size = self.path.stat().st_size
        if size != self._slots * _SLOT.size:
            log.warning(
                "timer wheel is made again from the timer log: it has another size",
                extra={"path": self.path, "size_bytes": size},
            )
            self._fs.remove(self.path)
            return
        # Its holes get their blocks: writing into one on a full disk would end the process.
        self._fs.reserve(self.path, 0, size)
        self._map = self._fs.map_file(self.path)

    def make(self) -> None:
        """Make the file if it is missing; OSError if there is no room for it."""
        if self._map is None:
            size = self._slots * _SLOT.size
            self._fs.create_file(self.path, size, size)
            self._map = self._fs.map_file(self.path)

    def close(self) -> None:
        """Release the file."""
        if self._map is not None:
            unmap(self._map)
            self._map = None

    def get(self, time_ms: int) -> WheelSlot | None:
        """The units of a time, None if there are none."""
        if self._map is None:
            return None
        number = time_ms // self.precision_ms
        at = number % self._slots * _SLOT.size
        found, first, last, count, _ = _SLOT.unpack_from(self._map, at)
        return WheelSlot(first, last, count) if found == number and last >= 0 else None

    def put(self, time_ms: int, slot: WheelSlot) -> None:
        """Set the positions of the units of a time; after `make`."""
        assert self._map is not None
        number = time_ms // self.precision_ms
        _SLOT.pack_into(self._map, number % self._slots * _SLOT.size, number, *slot, 0)

    def next_used(self, start_ms: int, end_ms: int) -> tuple[int, bool]:
        """First time from one on and before another that has units, and True.

        The search is limited: with False it is the time where the next search continues.
        """
        start, end = start_ms // self.precision_ms, end_ms // self.precision_ms
        if self._map is None:
            return end_ms, False
        at = start % self._slots
        count = max(0, min(end - start, self._slots - at, _SCAN_SLOTS))
        slots = self._view(at, count)
        wanted = np.arange(start, start + count, dtype=np.int64)
        used = np.flatnonzero((slots["time"] == wanted) & (slots["last"] >= 0))
        if len(used):
            return (start + int(used[0])) * self.precision_ms, True
        return (start + count) * self.precision_ms, False

    def replace(self, start_ms: int, times: npt.NDArray[Any], slots: npt.NDArray[Any]) -> None:
        """Make these the only times from one on that have units; ``times`` are numbers of slots."""
        if self._map is None:
            return
        assert len(times) == len(slots)
        everything = self._view(0, self._slots)
        everything[everything["time"] >= start_ms // self.precision_ms] = np.zeros((), SLOT)
        everything[times % self._slots] = slots

    def numbers(self, start_ms: int) -> int:
        """Count the waiting units from a time on."""
        if self._map is None:
            return 0
        slots = self._view(0, self._slots)
        return int(slots["number"][slots["time"] >= start_ms // self.precision_ms].sum(dtype=np.int64))

    def numbers_ahead(self, start_ms: int, ahead_s: Sequence[int]) -> list[int]:
        """Count the waiting units for distances from a time on: each number is from the distance before it to its own.
        Distances grow, and are shorter than the wheel.
        """
        if self._map is None:
            return [0] * len(ahead_s)
        start = start_ms // self.precision_ms
        count = ahead_s[-1] * 1000 // self.precision_ms
        wanted = np.arange(start, start + count, dtype=np.int64)
        slots = self._view(0, self._slots)[wanted % self._slots]
        waiting = np.where(slots["time"] == wanted, slots["number"], 0)
        ends = [seconds * 1000 // self.precision_ms for seconds in ahead_s]
        assert ends == sorted(ends), "distances grow"
        assert count <= self._slots, "distances are shorter than the wheel"
        sums = np.concatenate(([0], np.cumsum(waiting, dtype=np.int64)))[[0, *ends]]
        return [int(number) for number in np.diff(sums)]

    def _view(self, at: int, count: int) -> npt.NDArray[Any]:
        assert self._map is not None
        return np.frombuffer(self._map, SLOT, count, at * _SLOT.size)
