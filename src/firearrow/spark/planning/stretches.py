"""Walk a stretch of the CommitLog as a task of Spark.

A task begins at the first record that begins in its stretch, reads all records that begin inside, and checks that the
next stretch begins where this one ended.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from functools import partial
from typing import Final, NamedTuple

from firearrow.errors import CorruptStore, DataLost
from firearrow.message.record import BLANK_BYTES
from firearrow.store.reading.storage import Storage, StoreFile
from firearrow.store.reading.walk import WINDOW_BYTES, Look, RecordRun, first_of, next_record, pieces, runs
from firearrow.store.scan import Buffer, Columns, Stop

_LOOKS: Final = 10  # for a missing record, while a broker writes
_PAUSE_SECONDS: Final = 0.02


class LogStretch(NamedTuple):
    """A part of a file: the records that begin in ``[start, end)`` of the log.

    The log may end in the last file with records, or in a file that was made ahead: ``may_end`` says so. There it may
    end before anything that is no record, but not before ``known_end``, the end of the queues' messages. If it
    ``may_grow``, or its broker was killed, its last record may be incomplete.

    After bytes that are no record, ``look_bytes`` are searched for other records. ``begins`` says that a record begins
    at ``start`` if any follows; otherwise the first one is looked for.
    """

    file: StoreFile
    start: int
    end: int
    may_end: bool
    may_grow: bool
    known_end: int = 0
    look_bytes: int = 1 << 62
    begins: bool = False


def walk(storage: Storage, stretch: LogStretch, *, skip: bool) -> Iterator[RecordRun]:
    """The records of a stretch.

    Raises CorruptStore where bytes are no record, or where the next stretch would not begin where this one ends; with
    ``skip`` the walk goes on at the next record. Raises DataLost where the log ends before its known end.
    """
    file, start, end = stretch[:3]
    is_known = stretch.begins or start == file.base
    first = start if is_known else next_record(storage, file, start, end)
    if first is None:
        return

    def on_stop(at: int, stop: Stop) -> Generator[RecordRun, None, int | None]:
        yield from ()
        return None if stop is Stop.BLANK else _behind(storage, stretch, at, stop, skip)

    counting = partial(_finished, stretch)
    reached, stop = yield from runs(look_at(storage, file), first, end, on_stop, counting)
    if reached is not None and stop is not Stop.BLANK and not skip:
        _require_meeting(storage, stretch, reached)


def look_at(storage: Storage, file: StoreFile) -> Look:
    """A view of the bytes of a file of the log, for ``runs``."""

    def look(at: int) -> tuple[Buffer, int]:
        place = at - file.base
        return storage.window(file.path, place, place + WINDOW_BYTES), at

    return look


def _finished(stretch: LogStretch, columns: Columns) -> Columns:
    """The records without an incomplete last one, which a broker is writing, or was writing when it ended."""
    if not (stretch.may_end and stretch.may_grow and len(columns)):
        return columns
    if columns.stop in (Stop.BLANK, Stop.FULL):
        return columns
    last = Columns(columns.buffer, columns.position[-1:], columns.end)
    if not last.breaks_off and last.body_crc_holds().all():
        return columns
    return first_of(columns, len(columns) - 1)


def _behind(storage: Storage, stretch: LogStretch, at: int, stop: Stop, skip: bool) -> int | None:
    """The offset where the walk goes on after bytes that are no record; None where the log may end there."""
    file, end = stretch.file, stretch.end
    if stop is Stop.END and file.end - at < BLANK_BYTES:
        return None  # too few bytes for a record
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


def _comes(storage: Storage, stretch: LogStretch, at: int) -> bool:
    """Tell whether a record appears within a moment.

    A broker writes several records in one piece, and the first may become visible last: libc copies the first 64 bytes
    of a large piece after all others, and the broker may have to wait in between.
    """
    for _ in range(_LOOKS):
        found, _ = next(pieces(look_at(storage, stretch.file), at, at + 1))
        if len(_finished(stretch, found)):
            return True
        _pause()
    return False


def _pause() -> None:
    threading.Event().wait(_PAUSE_SECONDS)


def _require_known_end(storage: Storage, stretch: LogStretch, at: int) -> None:
    if at < stretch.known_end:
        raise DataLost(f"the log in {storage.root} ends at {at}, but queues have messages up to {stretch.known_end}")


def _require_meeting(storage: Storage, stretch: LogStretch, reached: int) -> None:
    """Raise CorruptStore unless the next stretch begins where the records of this one end."""
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
