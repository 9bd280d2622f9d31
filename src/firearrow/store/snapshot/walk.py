"""Walks the CommitLog without queues: where records begin, and all that follow each other.

A record says at which physical offset it is, so a place where magic, offset and the sum of the
parts agree is the beginning of one, and copied bytes inside of a body are not. Records come from
the one scanner (``firearrow.store.scan``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from firearrow.message.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from firearrow.store.commitlog import SCAN_BYTES_MAX
from firearrow.store.scan import RECORDS_MAX, Buffer, Columns, Stop, scan
from firearrow.store.snapshot.mapped import is_zero

RECORD_MAGICS: Final = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
BLANK_MAGIC: Final = (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
WINDOW_BYTES: Final = 2 * SCAN_BYTES_MAX
"""So much is looked at at a time: a scan, and the record that it ends in."""

_SEARCH_BYTES: Final = 1 << 16  # a magic that does not occur is not looked for to the file's end


class Piece(NamedTuple):
    """Records of a file: their columns, whose positions are relative to ``base`` in the log."""

    columns: Columns
    base: int


Look = Callable[[int], tuple[Buffer, int]]


def pieces(look: Look, start: int, end: int) -> Iterator[Piece]:
    """The records that begin in ``[start, end)`` of the log, the first of them at ``start``.

    ``look`` gives the bytes of a file from a place of the log on, ``WINDOW_BYTES`` or up to its
    end, maybe with some before them, and where the first of them is. The last piece may be empty:
    its ``columns.stop`` says why nothing follows, FULL where a record may begin at ``end``.
    """
    at = start
    while at < end:
        buffer, base = look(at)
        columns = _in_place(_scan(buffer, at - base, min(end - base, len(buffer))), base)
        yield Piece(columns, base)
        if columns.stop is not Stop.FULL:
            return
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
    """The records up to the first that says that it is elsewhere."""
    placed = columns.physical_offset == columns.position + base
    if placed.all():
        return columns
    return first_of(columns, int(np.argmin(placed)))


def first_of(columns: Columns, count: int) -> Columns:
    """The first records of some, before one that does not count as such."""
    first = Columns(columns.buffer, columns.position[:count], columns.end)
    first.end, first.stop = int(columns.position[count]), Stop.INVALID
    return first


def find_record(
    buffer: Buffer, start: int, end: int, base: int | None, before: int | None = None, *, or_blank: bool = False
) -> int | None:
    """The first position from ``start`` on at which a sound record begins, if that is ``before`` a
    position; None if there is none. ``or_blank``: or the blank that ends the file, at ``end``.

    ``base`` is the offset of the buffer's first byte: a record must then say that it belongs to its
    place. Without it any record counts whose parts add up and whose body has its CRC.
    """
    magics_end = end if before is None else min(end, before + 7)
    magics = (*RECORD_MAGICS, BLANK_MAGIC) if or_blank else RECORD_MAGICS
    for at in _positions(buffer, magics, start + 4, magics_end):
        if _stands(buffer, at - 4, end, base):
            return at - 4
    return None


def _positions(buffer: Buffer, magics: tuple[bytes, ...], start: int, end: int) -> Iterator[int]:
    """Where one of the magics is whole, in order.

    Pieces are copied, also because `mmap.find` of CPython before 3.11.5 reads a byte behind the
    map, which ends the process where that page is not there.
    """
    for low in range(start, end, _SEARCH_BYTES):
        # A magic belongs to where it begins.
        text = bytes(buffer[low : min(low + _SEARCH_BYTES + 3, end)])
        if is_zero(text):
            continue  # told ten times as fast as a search ends
        found: list[int] = []
        for magic in magics:
            at = text.find(magic)
            while at >= 0:
                found.append(low + at)
                at = text.find(magic, at + 1)
        yield from sorted(found)


def _stands(buffer: Buffer, at: int, end: int, base: int | None) -> bool:
    if bytes(buffer[at + 4 : at + 8]) == BLANK_MAGIC:
        return base is not None and int.from_bytes(buffer[at : at + 4], "big") == end - at
    columns = scan(buffer, at, end, 1)
    if not len(columns):
        return False
    if base is None:
        return bool(columns.body_crc_holds()[0])
    return int(columns.physical_offset[0]) == base + at
