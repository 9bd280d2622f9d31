"""The log from one end to the other, also across damage: runs of records, and gaps between them.

Records come from the one scanner (``firearrow.store.scan``). Where it stops at something that is
neither a blank nor the unwritten rest, the walk looks for the next place at which a record stands
that says of itself that it belongs there: its magic, its size, the sum of its parts and its
physical offset are right. All bytes up to it are a gap.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from firearrow.message.record import BLANK_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from firearrow.store.commitlog import SCAN_BYTES_MAX
from firearrow.store.offline.view import StoreView
from firearrow.store.scan import RECORDS_MAX, Buffer, Columns, Stop, scan
from firearrow.store.snapshot.mapped import StoreFile, is_zero

_LOOK_BYTES: Final = 1 << 20
_WINDOW_BYTES: Final = 1 << 16  # a magic that does not occur is not looked for to the file's end
_MAGICS: Final = tuple(
    (magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
)


class Run(NamedTuple):
    """Some records of a file that follow each other; positions in ``columns`` are in the file."""

    file: StoreFile
    columns: Columns


class Gap(NamedTuple):
    """Bytes of a file that are no record, though something was written there; positions in it.

    ``invariant`` is the one that is broken at ``start``, see ``firearrow.store.offline.findings``.
    """

    file: StoreFile
    start: int
    end: int
    invariant: str
    why: str

    @property
    def physical_offset(self) -> int:
        """Where it begins in the log."""
        return self.file.base + self.start

    @property
    def physical_end(self) -> int:
        """Where it ends in the log."""
        return self.file.base + self.end


class FileEnd(NamedTuple):
    """The records of a file are over at a position: behind is a blank, or nothing."""

    file: StoreFile
    position: int
    blank: bool


Piece = Run | Gap | FileEnd


def walk(view: StoreView, start: int = 0, end: int | None = None) -> Iterator[Piece]:
    """All pieces of the log that begin between two physical offsets, in order.

    ``start`` within a file that is not the start of a record reads as a gap up to the next one.
    """
    for file in view.log.files:
        if file.end > start and (end is None or file.base < end):
            last = file.size_bytes if end is None else min(file.size_bytes, end - file.base)
            yield from walk_file(view, file, max(start - file.base, 0), last)


def walk_file(
    view: StoreView, file: StoreFile, start: int = 0, end: int | None = None
) -> Iterator[Piece]:
    """The pieces of one file that begin before ``end``, from the start of a record on.

    The last one may reach beyond. Only a walk that gets to where the records are over ends with a
    ``FileEnd``.
    """
    buffer = view.maps.of(file)
    size = len(buffer)
    end = size if end is None else min(end, size)
    at = start
    while at < end:
        columns = _scan(buffer, at, end)
        sound = _in_place(columns, file.base)
        if len(sound):
            yield Run(file, sound)
            at = sound.end
        if len(sound) == len(columns) and columns.stop is Stop.FULL:
            continue
        if at >= end:
            break
        fault = _fault(buffer, at, columns, sound)
        if fault is None:
            yield FileEnd(file, at, blank=columns.stop is Stop.BLANK)
            return
        look_from: int | None = at + 1
        if columns.stop is Stop.ZERO:
            look_from = next_written(file, buffer, at, size)
            if look_from is None:
                yield FileEnd(file, at, blank=False)
                return
        gap_end = find_record(buffer, look_from or at + 1, size, file.base)
        yield Gap(file, at, size if gap_end is None else gap_end, *fault)
        at = size if gap_end is None else gap_end
    if at >= size:
        yield FileEnd(file, at, blank=False)


def first_record(view: StoreView, file: StoreFile, start: int, end: int) -> int | None:
    """Where in a file the first sound record, or the blank that ends it, begins between two
    positions that may be anywhere; None if none does."""
    buffer = view.maps.of(file)
    written = next_written(file, buffer, start, min(end, len(buffer)))
    if written is None:
        return None
    # The first bytes of a record may be zero: they are the upper ones of its size.
    return find_record(buffer, max(start, written - 3), len(buffer), file.base, end)


def _scan(buffer: Buffer, at: int, end: int) -> Columns:
    """A scan of bounded memory of records that begin before ``end``; it stops as FULL where more
    may follow."""
    bounded = min(end, at + SCAN_BYTES_MAX)
    columns = scan(buffer, at, bounded, RECORDS_MAX)
    if bounded < len(buffer) and columns.stop is Stop.END:
        if len(columns):
            columns.stop = Stop.FULL
        else:
            columns = scan(buffer, at, len(buffer), 1)
    return columns


def _in_place(columns: Columns, base: int) -> Columns:
    """The records from the first on that stand where they say."""
    placed = columns.physical_offset == columns.position + base
    if placed.all():
        return columns
    count = int(np.argmin(placed))
    sound = Columns(columns.buffer, columns.position[:count], columns.end)
    sound.end = int(columns.position[count])
    return sound


def _fault(buffer: Buffer, at: int, columns: Columns, sound: Columns) -> tuple[str, str] | None:
    """What is broken where the records stop, and how; None where a file may end so."""
    if len(sound) < len(columns):
        stated = int(columns.physical_offset[len(sound)])
        return "record-position", f"the record there says that it belongs to {stated}"
    size = int.from_bytes(buffer[at : at + 4], "big", signed=True)
    left = len(buffer) - at
    if columns.stop is Stop.BLANK:
        text = f"the blank there says that {size} bytes remain, there are {left}"
        return None if size == left else ("log-file-end", text)
    if columns.stop is Stop.ZERO:
        return "record-frame", "bytes there are zero, and others behind them are not"
    if left < BLANK_BYTES:
        return "log-file-end", "the file ends without a blank"
    magic = bytes(buffer[at + 4 : at + 8])
    if magic not in _MAGICS:
        return "record-frame", f"the magic there is 0x{magic.hex()}"
    if size < RECORD_BYTES_MIN or size > left:
        return "record-frame", f"the record there has a size of {size}, {left} bytes are left"
    return "record-frame", f"the record there has {size} bytes, its parts do not add up to that"


def find_record(
    buffer: Buffer, start: int, end: int, base: int | None, before: int | None = None
) -> int | None:
    """The first position from ``start`` on at which a sound record, or the blank that ends the
    file, begins, if that is ``before`` a position; None if there is none.

    ``base`` is the offset of the buffer's first byte: a record must then say that it belongs to its
    place. Without it any record counts whose parts add up and whose body has its CRC.
    """
    magics_end = end if before is None else min(end, before + 7)
    for at in _magic_positions(buffer, start + 4, magics_end):
        if _stands(buffer, at - 4, end, base):
            return at - 4
    return None


def _magic_positions(buffer: Buffer, start: int, end: int) -> Iterator[int]:
    """Where one of the three magics is whole, in order."""
    view = buffer if not isinstance(buffer, memoryview) else bytes(buffer)
    for low in range(start, end, _WINDOW_BYTES):
        high = min(low + _WINDOW_BYTES + 3, end)  # a magic belongs to where it begins
        found: list[int] = []
        for magic in _MAGICS:
            at = view.find(magic, low, high)
            while at >= 0:
                found.append(at)
                at = view.find(magic, at + 1, high)
        yield from sorted(found)


def _stands(buffer: Buffer, at: int, end: int, base: int | None) -> bool:
    magic = buffer[at + 4 : at + 8]
    if magic == _MAGICS[2]:
        remaining = end - at
        return base is not None and int.from_bytes(buffer[at : at + 4], "big") == remaining
    columns = scan(buffer, at, end, 1)
    if not len(columns):
        return False
    if base is None:
        return bool(columns.body_crc_holds()[0])
    return int(columns.physical_offset[0]) == base + at


def next_written(file: StoreFile, buffer: Buffer, start: int, end: int) -> int | None:
    """A position at or after ``start``, not behind the first byte from there that is not zero.

    None if all bytes up to ``end`` are zero; holes of the file are not looked at.
    """
    try:
        fd = os.open(file.path, os.O_RDONLY)
    except OSError:
        return None
    try:
        at = start
        while at < end:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:  # no data up to the file's end
                return None
            hole = min(os.lseek(fd, at, os.SEEK_HOLE), end)
            for piece in range(at, hole, _LOOK_BYTES):
                if not is_zero(bytes(buffer[piece : min(piece + _LOOK_BYTES, hole)])):
                    return piece
            at = hole
        return None
    finally:
        os.close(fd)
