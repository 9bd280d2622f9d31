"""Walks the CommitLog without queues: where records begin, from any place on, and all of them.

A record says at which physical offset it is, so a place where magic, offset and the sum of the
parts agree is the beginning of one, and copied bytes inside of a body are not. Who reads a piece of
a file begins there, reads every record that begins inside, and makes sure that the next piece
begins where this one ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from firearrow.errors import CorruptStore, DataLost
from firearrow.message.record import BLANK_BYTES, RECORD_BYTES_MAX
from firearrow.spark.storage import NumberedFile, Storage
from firearrow.store.scan import Buffer, Columns, Stop
from firearrow.store.snapshot.walk import WINDOW_BYTES, Look, Piece, find_record, first_of, pieces

_LOOK_BYTES: Final = 64 * 1024
_LOOK_FAR_BYTES: Final = 4 << 20
_LOOKS: Final = 10  # at a record that does not stand where one should, while a broker writes
_PAUSE_SECONDS: Final = 0.02


def next_record(storage: Storage, file: NumberedFile, at: int, end: int) -> int | None:
    """The physical offset of the first record that begins in ``[at, end)``; None for none."""
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
        look = _LOOK_FAR_BYTES  # no record is so far away: these are zeros, or much is damaged
    return None


def next_of_log(storage: Storage, files: Iterable[NumberedFile], at: int, end: int) -> int | None:
    """The same in all files of a log."""
    for file in files:
        start, stop = max(at, file.base), min(end, file.end)
        try:
            found = next_record(storage, file, start, stop) if start < stop else None
        except FileNotFoundError:  # retention has deleted it since it was listed
            continue
        if found is not None:
            return found
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


def walk(storage: Storage, stretch: Stretch, *, skip: bool) -> Iterator[Piece]:
    """The records of a stretch.

    Raises CorruptStore where bytes are no record, or where the next stretch would not begin where
    this one ends; with ``skip`` goes on at the next record. Raises DataLost where the log ends
    before its known end.
    """
    file, start, end = stretch[:3]
    is_known = stretch.begins or start == file.base
    at = start if is_known else next_record(storage, file, start, end)
    while at is not None and at < end:
        for columns, base in pieces(_look(storage, file), at, end):
            found = _finished(columns, stretch)
            if len(found):
                yield Piece(found, base)
            at, stop = base + found.end, found.stop
        if stop is Stop.BLANK:
            return
        if at < end:
            at = _behind(storage, stretch, at, stop, skip)
    if at is not None and at >= end and not skip:
        _require_meeting(storage, stretch, at)


def _look(storage: Storage, file: NumberedFile) -> Look:
    def look(at: int) -> tuple[Buffer, int]:
        place = at - file.base
        return storage.window(file.path, place, place + WINDOW_BYTES), at

    return look


def _finished(columns: Columns, stretch: Stretch) -> Columns:
    """The records without a last one that is just being written, or was when its broker ended."""
    if not (stretch.may_end and stretch.may_grow and len(columns)):
        return columns
    if columns.stop in (Stop.BLANK, Stop.FULL):
        return columns
    last = Columns(columns.buffer, columns.position[-1:], columns.end)
    if not last.breaks_off and last.body_crc_holds().all():
        return columns
    return first_of(columns, len(columns) - 1)


def _behind(storage: Storage, stretch: Stretch, at: int, stop: Stop, skip: bool) -> int | None:
    """Where to go on behind bytes that are no record; None where the log may well end there."""
    file, end = stretch.file, stretch.end
    if stop is Stop.END and file.end - at < BLANK_BYTES:
        return None  # the few bytes that no record fits into
    after = next_record(storage, file, at + 1, min(file.end, at + stretch.look_bytes))
    if after is not None and stretch.may_grow and _comes(storage, stretch, at):
        return at
    if after is None and stretch.may_end:
        _require_known_end(storage, stretch, at)
        return None
    if skip:
        return after if after is not None and after < end else None
    until = "" if after is None else f"; the next is at {after}"
    raise CorruptStore(
        f"{storage.root}/{file.path}: the bytes at {at} of the log are not a record{until} (onCorrupt=skip skips them)"
    )


def _comes(storage: Storage, stretch: Stretch, at: int) -> bool:
    """Tell whether a record is there by now, or a moment later.

    Of records that a broker writes in one piece the first may be seen last: libc copies the first
    64 bytes of a large piece behind all others, and the broker may have to wait in between.
    """
    for _ in range(_LOOKS):
        found, _ = next(pieces(_look(storage, stretch.file), at, at + 1))
        if len(_finished(found, stretch)):
            return True
        _pause()
    return False


def _pause() -> None:
    threading.Event().wait(_PAUSE_SECONDS)


def _require_known_end(storage: Storage, stretch: Stretch, at: int) -> None:
    if at < stretch.known_end:
        raise DataLost(f"the log in {storage.root} ends at {at}, but queues have messages up to {stretch.known_end}")


def _require_meeting(storage: Storage, stretch: Stretch, reached: int) -> None:
    """The next stretch must begin where the records of this one end."""
    if stretch.end >= stretch.file.end:
        return
    begins = next_record(storage, stretch.file, stretch.end, stretch.file.end)
    if begins is None and stretch.may_end:
        _require_known_end(storage, stretch, reached)
    if begins is not None and begins != reached:
        raise CorruptStore(
            f"{storage.root}/{stretch.file.path}: at {reached} of the log a record should follow, "
            f"but the next one begins at {begins} (onCorrupt=skip continues there)"
        )
