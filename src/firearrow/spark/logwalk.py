"""Walks the CommitLog without queues: where records begin, from any place on, and all of them.

A record says at which physical offset it lies, so a place where magic, offset and the sum of the
parts agree is the beginning of one, and copied bytes inside of a body are not. Who reads a piece of
a file begins there, reads every record that begins inside, and makes sure that the next piece
begins where this one ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from firearrow.errors import CorruptStore
from firearrow.message.record import BLANK_BYTES, RECORD_BYTES_MAX
from firearrow.spark.storage import NumberedFile
from firearrow.spark.stores import Store
from firearrow.store.offline.mapped import is_zero
from firearrow.store.scan import Columns, Stop, scan

_MAGICS: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
_MAGIC_HEAD: Final = b"\xda\xa3\x20"
_LOOK_BYTES: Final = 64 * 1024
_LOOK_FAR_BYTES: Final = 4 << 20
_SCAN_RECORDS: Final = 8192
_WINDOW_BYTES: Final = 16 << 20


class Piece(NamedTuple):
    """Records of a file: their columns, whose positions are relative to ``base`` in the log."""

    columns: Columns
    base: int


def next_record(store: Store, file: NumberedFile, at: int, end: int) -> int | None:
    """The physical offset of the first record that begins in ``[at, end)``; None for none."""
    place = at - file.base
    limit = end - file.base
    look = _LOOK_BYTES
    while place < limit:
        window = store.storage.window(file.path, place, place + look + RECORD_BYTES_MAX)
        found = _find(window, file.base + place, min(look, limit - place))
        if found is not None:
            return found
        place += look
        look = _LOOK_FAR_BYTES  # no record is so far away: these are zeros, or much is damaged
    return None


def _find(window: memoryview, base: int, limit: int) -> int | None:
    """The first record that begins in the first ``limit`` bytes of a window."""
    text = bytes(window[: limit + 8])
    if is_zero(text):
        return None  # told ten times as fast as a search ends
    at = text.find(_MAGIC_HEAD)
    while at >= 0:
        if at >= 4 and text[at : at + 4] in _MAGICS and at - 4 < limit:
            columns = scan(window, at - 4, len(window), 1)
            if len(columns) and int(columns.physical_offset[0]) == base + at - 4:
                return base + at - 4
        at = text.find(_MAGIC_HEAD, at + 1)
    return None


def first_stored_at(store: Store, timestamp_ms: int, end: int) -> int:
    """The physical offset of the first record before ``end`` stored at a time or later.

    Store times rise along a log; ``end`` if there is none.
    """
    files = [file for file in store.log if file.base < end]
    low, high = 0, len(files)
    while low < high:  # the first file that begins at that time or later
        middle = (low + high) // 2
        first = _stored_ms(store, files[middle], files[middle].base)
        if first is None or first >= timestamp_ms:
            high = middle
        else:
            low = middle + 1
    if low == 0:
        return files[0].base if files else end
    file = files[low - 1]
    begin, stop = file.base, min(file.end, end)
    while begin < stop:  # the first byte from which on the next record is of that time or later
        middle = (begin + stop) // 2
        at = next_record(store, file, middle, stop)
        if at is None or (_stored_ms(store, file, at) or 0) >= timestamp_ms:
            stop = middle
        else:
            begin = at + 1
    at = next_record(store, file, begin, min(file.end, end))
    return at if at is not None else min(file.end, end)


def _stored_ms(store: Store, file: NumberedFile, physical_offset: int) -> int | None:
    at = physical_offset - file.base
    window = store.storage.window(file.path, at, at + RECORD_BYTES_MAX)
    columns = scan(window, 0, len(window), 1)
    return int(columns.store_ms[0]) if len(columns) else None


class Stretch(NamedTuple):
    """A part of a file: the records that begin in ``[start, end)`` of the log.

    What is behind ``limit`` is not confirmed, and not looked at. The last file may end in zeros;
    where it is not known how much is confirmed, it may have any ``tail`` behind its last record.
    """

    file: NumberedFile
    start: int
    end: int
    limit: int
    is_last: bool
    tail: bool


def walk(store: Store, stretch: Stretch, *, skip: bool) -> Iterator[Piece]:
    """The records of a stretch.

    Raises CorruptStore where bytes are no record, or where the next stretch would not begin where
    this one ends; with ``skip`` goes on at the next record.
    """
    file, start, end, limit = stretch[:4]
    end = min(end, limit)
    at = start if start == file.base else next_record(store, file, start, end)
    while at is not None and at < end:
        place = at - file.base
        window = store.storage.window(
            file.path, place, min(place + _WINDOW_BYTES, limit - file.base)
        )
        columns = _sound(scan(window, 0, len(window), _SCAN_RECORDS), at)
        own = int((columns.position < end - at).sum())
        if own:
            kept = columns if own == len(columns) else _first(columns, own)
            yield Piece(kept, at)
        if own < len(columns):
            at += int(columns.position[own])
            break
        at += columns.end
        if columns.stop is Stop.BLANK:
            return
        if at < end and not (own and (columns.stop is Stop.FULL or _cut(window, columns))):
            at = _behind(store, stretch, at, columns.stop, skip)
    if at is not None and at >= end and not skip:
        _require_meeting(store, stretch, at)


def _cut(window: memoryview, columns: Columns) -> bool:
    return columns.stop is Stop.END and len(window) == _WINDOW_BYTES


def _first(columns: Columns, count: int) -> Columns:
    return Columns(columns.buffer, columns.position[:count], len(columns.buffer))


def _behind(store: Store, stretch: Stretch, at: int, stop: Stop, skip: bool) -> int | None:
    """Where to go on behind bytes that are no record; None where the log may well end there."""
    file, _, end, limit, is_last, _ = stretch
    if stop is Stop.END and (limit < file.end or file.end - at < BLANK_BYTES):
        return None  # what is not confirmed, or the few bytes that no record fits into
    after = next_record(store, file, at + 1, limit)
    may_end = is_last and (stop is Stop.ZERO or stretch.tail)
    if skip or (after is None and may_end):
        return after if after is not None and after < end else None
    until = "" if after is None else f"; the next is at {after}"
    raise CorruptStore(
        f"{store.root}/{file.path}: the bytes at {at} of the log are not a record{until} "
        "(onCorrupt=skip skips them)"
    )


def _sound(columns: Columns, base: int) -> Columns:
    """The records up to the first that says that it lies elsewhere."""
    elsewhere = columns.physical_offset != columns.position + base
    if not elsewhere.any():
        return columns
    first = int(elsewhere.argmax())
    kept = _first(columns, first)
    kept.end = int(columns.position[first])
    kept.stop = Stop.INVALID
    return kept


def _require_meeting(store: Store, stretch: Stretch, reached: int) -> None:
    """The next stretch must begin where the records of this one end."""
    limit = min(stretch.file.end, stretch.limit)
    if stretch.end >= limit:
        return
    begins = next_record(store, stretch.file, stretch.end, limit)
    if begins is not None and begins != reached:
        raise CorruptStore(
            f"{store.root}/{stretch.file.path}: at {reached} of the log a record should follow, "
            f"but the next one begins at {begins} (onCorrupt=skip continues there)"
        )
