"""The timer log for its writer: appends units, reads them, cuts units that are not sound.

Its files are in the format of ``firearrow.store.timerfiles``. A unit never lies across two files.

Source: RocketMQ's ``TimerLog``.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.store.fs import FileSystem, ensure_directory
from firearrow.store.segments import Segment, Segments
from firearrow.store.timerfiles import BLANK_MAGIC, UNIT, UNIT_STRUCT

UNIT_BYTES: Final = UNIT.itemsize
_BLANK: Final = struct.Struct(">iqi")
_PREVIOUS: Final = struct.Struct(">q")
_RESERVE_BYTES: Final = 1 << 20  # blocks are taken in steps of this size


class TimerUnit(NamedTuple):
    """A unit; see ``firearrow.store.timerfiles`` for the meaning of its numbers."""

    previous: int
    magic: int
    written_ms: int
    delay_ms: int
    physical_offset: int
    record_size: int
    topic_hash: int


class TimerUnits:
    """The files of the timer log, from the oldest remaining one on.

    ``end`` is the position after the last unit. Existing files keep their size, whatever the ``file_size_bytes`` of new
    logs.
    """

    def __init__(self, directory: Path, file_size_bytes: int, fs: FileSystem) -> None:
        self._directory = directory
        self._fs = fs
        size = _size_of_files(directory) or max(file_size_bytes, UNIT_BYTES + _BLANK.size)
        self._segments = Segments(directory, size, min(size, _RESERVE_BYTES), fs)
        self.end: int = 0

    def load(self) -> None:
        """Map the files; CorruptStore if one is missing in the middle."""
        if self._directory.is_dir():
            self._segments.load()
        self.end = self.start

    def close(self) -> None:
        """Release the files."""
        self._segments.close()

    @property
    def start(self) -> int:
        """Position of the first remaining unit."""
        return self._segments.first_offset

    # --- writing ---

    def append(self, unit: TimerUnit) -> int:
        """Add a unit and return its position; OSError without room, and then nothing has changed."""
        segment = self._segment_with_room()
        position = self.end
        at = position - segment.base
        self._segments.reserve(segment, at + UNIT_BYTES + _BLANK.size)
        segment.map[at : at + UNIT_BYTES] = UNIT_STRUCT.pack(UNIT_BYTES, *unit, 0)
        self.end = position + UNIT_BYTES
        return position

    def link(self, position: int, previous: int) -> None:
        """Set the position of the unit before this one in its slot."""
        segment = self._segments.find(position)
        assert segment is not None
        _PREVIOUS.pack_into(segment.map, position - segment.base + 4, previous)

    def cut(self, position: int) -> None:
        """Forget everything from a position on, durably; the next unit is written there."""
        assert self.start <= position
        self._segments.cut_durably(position)
        self.end = position

    def flush(self, start: int, end: int) -> None:
        """Return once everything between two positions is on the disk; any thread may call it."""
        self._segments.flush(start, end)

    def drop_before(self, position: int) -> None:
        """Remove the files that end before a position, never the last one."""
        files = self._segments.files
        while len(files) > 1 and files[0].end <= position:
            path = self._segments.shift().path
            self._fs.remove(path)
            self._fs.sync_directory(self._directory)

    def _segment_with_room(self) -> Segment:
        segments = self._segments
        if not segments.files:
            ensure_directory(self._fs, self._directory)
            assert self.end % segments.file_size_bytes == 0, "a cut that leaves no file is at the start of one"
            segments.attach(self._created(self.end))
        last = segments.files[-1]
        at = self.end - last.base
        if at + UNIT_BYTES + _BLANK.size <= last.size_bytes:
            return last
        fresh = self._created(last.end)
        if at < last.size_bytes:
            segments.reserve(last, at + _BLANK.size)
            left = last.size_bytes - at
            last.map[at : at + _BLANK.size] = _BLANK.pack(left, 0, BLANK_MAGIC)
        segments.attach(fresh)
        assert self.end <= fresh.base, "positions only grow"
        self.end = fresh.base
        return fresh

    def _created(self, base: int) -> Segment:
        """A new file, durably: no loss of power leaves a later one without it."""
        fresh = self._segments.create(base)
        self._fs.sync_file(fresh.path)
        self._fs.sync_directory(self._directory)
        return fresh

    # --- reading ---

    def unit(self, position: int) -> TimerUnit | None:
        """The unit at a position, None where the log has none."""
        segment = self._segments.find(position)
        if segment is None or position > min(self.end, segment.end) - UNIT_BYTES:
            return None
        size, *fields, _ = UNIT_STRUCT.unpack_from(segment.map, position - segment.base)
        return TimerUnit(*fields) if size == UNIT_BYTES else None

    def chain(self, last: int, first: int, step: int) -> Iterator[array[int]]:
        """The positions of the units of a slot, newest first, ``step`` at a time."""
        positions = array("q")
        position, after = last, last + 1
        while first <= position < after and (unit := self.unit(position)) is not None:
            positions.append(position)
            position, after = unit.previous, position
            if len(positions) == step:
                yield positions
                positions = array("q")
        yield positions

    def pieces(self, start: int, count: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The units from a position on, at most ``count`` of one file at a time, each part with the position of its
        first. They end at `end`, or, in a log that was just loaded, at the file's last bytes.
        """
        for segment in self._segments.files:
            at = max(start - segment.base, 0)
            while at < segment.size_bytes - UNIT_BYTES + 1:
                number = min(count, (segment.size_bytes - at) // UNIT_BYTES)
                yield segment.base + at, np.frombuffer(segment.map, UNIT, number, at)
                at += number * UNIT_BYTES

    def ends_at(self, position: int) -> bool:
        """Tell whether a file ends there by a blank, or for lack of room: the next file continues."""
        segment = self._segments.find(position)
        if segment is None:
            return False
        at = position - segment.base
        if at + _BLANK.size > segment.size_bytes:
            return True
        left, _, magic = _BLANK.unpack_from(segment.map, at)
        return bool(magic == BLANK_MAGIC and left == segment.size_bytes - at)


def _size_of_files(directory: Path) -> int:
    """Size of the existing files."""
    paths = sorted(path for path in directory.glob("*") if path.name.isdecimal())
    return next((path.stat().st_size for path in paths if path.stat().st_size), 0)
