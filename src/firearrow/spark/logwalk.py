"""Walks the CommitLog without queues: where records begin, from any place on, and all of them.

A record says at which physical offset it is, so a place where magic, offset and the sum of the
parts agree is the beginning of one, and copied bytes inside of a body are not. Who reads a piece of
a file begins there, reads every record that begins inside, and makes sure that the next piece
begins where this one ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from firearrow.errors import CorruptStore, DataLost
from firearrow.message.record import BLANK_BYTES, RECORD_BYTES_MAX
from firearrow.spark.storage import NumberedFile
from firearrow.store.scan import Columns, Stop, scan
from firearrow.store.snapshot.mapped import is_zero

if TYPE_CHECKING:
    from firearrow.spark.stores import Store

_MAGICS: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
_MAGIC_HEAD: Final = b"\xda\xa3\x20"
_LOOK_BYTES: Final = 64 * 1024
_LOOK_FAR_BYTES: Final = 4 << 20
_SCAN_RECORDS: Final = 8192
_WINDOW_BYTES: Final = 16 << 20
_LOOKS: Final = 10  # at a record that does not stand where one should, while a broker writes
_PAUSE_SECONDS: Final = 0.02


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


class Stretch(NamedTuple):
    """A part of a file: the records that begin in ``[start, end)`` of the log.

    The log may end in the file that is the last one with records, or in one that was made ahead,
    and there ``may_end`` says so: before anything that is no record, but not before ``known_end``,
    up to where queues say that there are records. If it ``may_grow``, or was left by a broker that
    was killed, its last record may be there in part.

    Of what is behind bytes that are no record, ``look_bytes`` are searched for others. ``begins``
    says that a record begins at ``start`` if any follows; else the first one is looked for.
    """

    file: NumberedFile
    start: int
    end: int
    may_end: bool
    may_grow: bool
    known_end: int = 0
    look_bytes: int = 1 << 62
    begins: bool = False


def walk(store: Store, stretch: Stretch, *, skip: bool) -> Iterator[Piece]:
    """The records of a stretch.

    Raises CorruptStore where bytes are no record, or where the next stretch would not begin where
    this one ends; with ``skip`` goes on at the next record. Raises DataLost where the log ends
    before its known end.
    """
    file, start, end = stretch[:3]
    is_known = stretch.begins or start == file.base
    at = start if is_known else next_record(store, file, start, end)
    while at is not None and at < end:
        columns, goes_on = _records_at(store, stretch, at)
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
        if at < end and not (own and goes_on):
            at = _behind(store, stretch, at, columns.stop, skip)
    if at is not None and at >= end and not skip:
        _require_meeting(store, stretch, at)


def _records_at(store: Store, stretch: Stretch, at: int) -> tuple[Columns, bool]:
    """Some records from a place on, and whether others may follow at once."""
    place = at - stretch.file.base
    window = store.storage.window(stretch.file.path, place, place + _WINDOW_BYTES)
    columns = _sound(scan(window, 0, len(window), _SCAN_RECORDS), at)
    is_cut = columns.stop is Stop.END and len(window) == _WINDOW_BYTES
    goes_on = columns.stop is Stop.FULL or is_cut
    if stretch.may_end and stretch.may_grow and not goes_on:
        columns = _finished(columns)
    return columns, goes_on


def _first(columns: Columns, count: int) -> Columns:
    return Columns(columns.buffer, columns.position[:count], len(columns.buffer))


def _finished(columns: Columns) -> Columns:
    """The records without a last one that is just being written, or was when its broker ended."""
    if not len(columns) or columns.stop is Stop.BLANK:
        return columns
    last = Columns(columns.buffer, columns.position[-1:], columns.end)
    if not last.breaks_off and last.body_crc_holds().all():
        return columns
    finished = _first(columns, len(columns) - 1)
    finished.end, finished.stop = int(last.position[0]), Stop.INVALID
    return finished


def _behind(store: Store, stretch: Stretch, at: int, stop: Stop, skip: bool) -> int | None:
    """Where to go on behind bytes that are no record; None where the log may well end there."""
    file, end = stretch.file, stretch.end
    if stop is Stop.END and file.end - at < BLANK_BYTES:
        return None  # the few bytes that no record fits into
    after = next_record(store, file, at + 1, min(file.end, at + stretch.look_bytes))
    if after is not None and stretch.may_grow and _comes(store, stretch, at):
        return at
    if after is None and stretch.may_end:
        _require_known_end(store, stretch, at)
        return None
    if skip:
        return after if after is not None and after < end else None
    until = "" if after is None else f"; the next is at {after}"
    raise CorruptStore(
        f"{store.root}/{file.path}: the bytes at {at} of the log are not a record{until} "
        "(onCorrupt=skip skips them)"
    )


def _comes(store: Store, stretch: Stretch, at: int) -> bool:
    """Whether a record is there by now, or a moment later.

    Of records that a broker writes in one piece the first may be seen last: libc copies the first
    64 bytes of a large piece behind all others, and the broker may have to wait in between.
    """
    for _ in range(_LOOKS):
        if len(_records_at(store, stretch, at)[0]):
            return True
        _pause()
    return False


def _pause() -> None:
    threading.Event().wait(_PAUSE_SECONDS)


def _sound(columns: Columns, base: int) -> Columns:
    """The records up to the first that says that it is elsewhere."""
    elsewhere = columns.physical_offset != columns.position + base
    if not elsewhere.any():
        return columns
    first = int(elsewhere.argmax())
    kept = _first(columns, first)
    kept.end = int(columns.position[first])
    kept.stop = Stop.INVALID
    return kept


def _require_known_end(store: Store, stretch: Stretch, at: int) -> None:
    if at < stretch.known_end:
        raise DataLost(
            f"the log in {store.root} ends at {at}, but queues have messages up to "
            f"{stretch.known_end}"
        )


def _require_meeting(store: Store, stretch: Stretch, reached: int) -> None:
    """The next stretch must begin where the records of this one end."""
    if stretch.end >= stretch.file.end:
        return
    begins = next_record(store, stretch.file, stretch.end, stretch.file.end)
    if begins is None and stretch.may_end:
        _require_known_end(store, stretch, reached)
    if begins is not None and begins != reached:
        raise CorruptStore(
            f"{store.root}/{stretch.file.path}: at {reached} of the log a record should follow, "
            f"but the next one begins at {begins} (onCorrupt=skip continues there)"
        )
