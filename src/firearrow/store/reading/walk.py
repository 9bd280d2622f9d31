"""Walk the CommitLog without queues: find where records begin, and read the records that follow each other.

A record holds its physical offset. So a place where magic, offset and the sum of the parts agree is the begin of a
record, and copied bytes inside a body are not. Records come from the one scanner (``firearrow.store.scan``).

``runs`` is the only loop over the log. Its caller says what happens where the records stop: offline tools report a gap
(``firearrow.store.offline.walk``), Spark's readers raise an error or skip it (``firearrow.spark.planning.stretches``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

import numpy as np

from firearrow.message.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MAX
from firearrow.store.commitlog import SCAN_BYTES_MAX
from firearrow.store.reading.storage import Storage, StoreFile, is_zero
from firearrow.store.scan import RECORDS_MAX, Buffer, Columns, Stop, scan

RECORD_MAGICS: Final = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
BLANK_MAGIC: Final = (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
WINDOW_BYTES: Final = 2 * SCAN_BYTES_MAX
"""Bytes for one scan, and for the record that it ends in."""

_SEARCH_BYTES: Final = 1 << 16  # limit of one search for a magic, which may not occur in the rest of the file
_LOOK_BYTES: Final = 64 * 1024
_LOOK_FAR_BYTES: Final = 4 << 20
P = TypeVar("P")
assert WINDOW_BYTES >= SCAN_BYTES_MAX + RECORD_BYTES_MAX, "the record in which a scan ends is in its window"


class RecordRun(NamedTuple):
    """Records of a file: their columns, whose positions are relative to ``base`` in the log."""

    columns: Columns
    base: int


Look = Callable[[int], tuple[Buffer, int]]
"""Gives the bytes of a file from an offset of the log on, see ``pieces``."""
OnStop = Callable[[int, Stop], Generator[P, None, int | None]]
"""Called with the offset where the records stop, and the reason: yields items that describe that place, and
returns the offset where the walk goes on, None for its end."""


def unchanged(columns: Columns) -> Columns:
    """All records of a run: each of them counts."""
    return columns


def runs(
    look: Look, start: int, end: int, on_stop: OnStop[P], counting: Callable[[Columns], Columns] = unchanged
) -> Generator[RecordRun | P, None, tuple[int | None, Stop]]:
    """The records that begin in ``[start, end)`` of the log, the first of them at ``start``, also after gaps.

    ``counting`` gives the records of a run that count. Return the offset that the walk has reached, None where
    ``on_stop`` ended it, and the last reason for a stop.
    """
    at: int | None = start
    stop = Stop.FULL
    while at is not None and at < end:
        for columns, base in pieces(look, at, end):
            found = counting(columns)
            if len(found):
                yield RecordRun(found, base)
            at, stop = base + found.end, found.stop
        if at < end:
            stopped = at
            at = yield from on_stop(stopped, stop)
            assert at is None or at >= stopped, "the walk never goes back"
    return at, stop


def pieces(look: Look, start: int, end: int) -> Iterator[RecordRun]:
    """The records that begin in ``[start, end)`` of the log, the first of them at ``start``.

    ``look`` gives the bytes of a file from an offset of the log on, ``WINDOW_BYTES`` or up to its end, maybe with some
    before them, and the offset of the first byte. The last run may be empty: its ``columns.stop`` says why nothing
    follows, FULL where a record may begin at ``end``.
    """
    at = start
    while at < end:
        buffer, base = look(at)
        assert base <= at, "the bytes hold the begin of the next record"
        columns = _in_place(_scan(buffer, at - base, min(end - base, len(buffer))), base)
        yield RecordRun(columns, base)
        if columns.stop is not Stop.FULL:
            return
        assert base + columns.end > at, "a scan that may go on has found a record"
        at = base + columns.end


def _scan(buffer: Buffer, at: int, end: int) -> Columns:
    """A scan of bounded memory of records that begin before ``end``."""
    bounded = min(end, at + SCAN_BYTES_MAX)
    columns = scan(buffer, at, bounded, RECORDS_MAX)
    if columns.stop is not Stop.END or bounded == len(buffer):
        return columns
    if not len(columns):
        return scan(buffer, at, len(buffer), 1)
    behind = scan(buffer, columns.end, len(buffer), 0).stop
    columns.stop = Stop.FULL if behind is Stop.END else behind
    return columns


def _in_place(columns: Columns, base: int) -> Columns:
    """The records before the first one with another physical offset than its place."""
    placed = columns.physical_offset == columns.position + base
    if placed.all():
        return columns
    return first_of(columns, int(np.argmin(placed)))


def first_of(columns: Columns, count: int) -> Columns:
    """The first records of some, before a record that does not count."""
    assert 0 <= count < len(columns), "the record that does not count follows the others"
    first = Columns(columns.buffer, columns.position[:count], columns.end)
    first.end, first.stop = int(columns.position[count]), Stop.INVALID
    return first


def find_record(
    buffer: Buffer, start: int, end: int, base: int | None, before: int | None = None, *, or_blank: bool = False
) -> int | None:
    """The first position from ``start`` on where a sound record begins, if that is ``before`` a position; otherwise
    None. With ``or_blank`` the blank that ends the file, at ``end``, counts, too.

    ``base`` is the offset of the buffer's first byte: a record must then have its own place as its physical offset.
    Without ``base`` any record counts if its parts add up and its body has its CRC.
    """
    magics_end = end if before is None else min(end, before + 7)
    magics = (*RECORD_MAGICS, BLANK_MAGIC) if or_blank else RECORD_MAGICS
    for at in _positions(buffer, magics, start + 4, magics_end):
        if _stands(buffer, at - 4, end, base):
            assert before is None or at - 4 < before, "a record is only looked for before the limit"
            return at - 4
    return None


def _positions(buffer: Buffer, magics: tuple[bytes, ...], start: int, end: int) -> Iterator[int]:
    """The positions of all whole magics, in order.

    The bytes are copied in parts, also because `mmap.find` of CPython before 3.11.5 reads a byte after the map. That
    ends the process if the page does not exist.
    """
    for low in range(start, end, _SEARCH_BYTES):
        # A magic belongs to the part where it begins.
        text = bytes(buffer[low : min(low + _SEARCH_BYTES + 3, end)])
        if is_zero(text):
            continue  # ten times as fast as a search
        found: list[int] = []
        for magic in magics:
            at = text.find(magic)
            while at >= 0:
                found.append(low + at)
                at = text.find(magic, at + 1)
        found.sort()
        assert not found or found[-1] < low + _SEARCH_BYTES, "no magic belongs to two parts"
        yield from found


def _stands(buffer: Buffer, at: int, end: int, base: int | None) -> bool:
    if bytes(buffer[at + 4 : at + 8]) == BLANK_MAGIC:
        return base is not None and int.from_bytes(buffer[at : at + 4], "big") == end - at
    columns = scan(buffer, at, end, 1)
    if not len(columns):
        return False
    if base is None:
        return bool(columns.body_crc_holds()[0])
    return int(columns.physical_offset[0]) == base + at


def next_record(storage: Storage, file: StoreFile, at: int, end: int) -> int | None:
    """The physical offset of the first record that begins in ``[at, end)``; None for none."""
    assert at >= file.base, "the search begins in the file"
    place = at - file.base
    limit = end - file.base
    look = _LOOK_BYTES
    while place < limit:
        window = storage.window(file.path, place, place + look + RECORD_BYTES_MAX)
        base = file.base + place
        found = find_record(window, 0, len(window), base, min(look, limit - place))
        if found is not None:
            return base + found
        place += look
        look = _LOOK_FAR_BYTES  # no record is that far away: here are zeros, or much is damaged
    return None


def next_of_log(storage: Storage, files: Iterable[StoreFile], at: int, end: int) -> int | None:
    """The physical offset of the first record that begins in ``[at, end)`` of all files of a log; None for none."""
    for file in files:
        start, stop = max(at, file.base), min(end, file.end)
        try:
            found = next_record(storage, file, start, stop) if start < stop else None
        except FileNotFoundError:  # retention has deleted the file since it was listed
            continue
        if found is not None:
            return found
    return None
