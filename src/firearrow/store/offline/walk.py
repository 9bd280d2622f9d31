"""The log from one end to the other, also across damage: runs of records, and gaps between them.

Where the records stop at something other than a blank or the unwritten rest, the walk looks for the next record that
says that it belongs to its place: its magic, its size, the sum of its parts and its physical offset are right. All
bytes up to it are a gap. A last record that its broker had not finished when it ended is a gap, too: the next start
cuts it off.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from firearrow.message.record import BLANK_BYTES, RECORD_BYTES_MIN
from firearrow.store.offline.view import StoreView
from firearrow.store.reading.storage import StoreFile, is_zero
from firearrow.store.reading.walk import BLANK_MAGIC, RECORD_MAGICS, RecordRun, find_record, first_of, runs
from firearrow.store.scan import Buffer, Stop, scan

_LOOK_BYTES: Final = 1 << 20


class Gap(NamedTuple):
    """Bytes of a file that are no record, though something was written there; positions in the file.

    ``invariant`` is broken at ``start``, see ``firearrow.store.offline.findings``.
    """

    file: StoreFile
    start: int
    end: int
    invariant: str
    why: str

    @property
    def physical_offset(self) -> int:
        """Begin of the gap in the log."""
        return self.file.base + self.start

    @property
    def physical_end(self) -> int:
        """End of the gap in the log."""
        return self.file.base + self.end


class FileEnd(NamedTuple):
    """The end of the records of a file: a blank follows, or nothing."""

    file: StoreFile
    position: int
    blank: bool


Piece = RecordRun | Gap | FileEnd


def walk(view: StoreView, start: int = 0, end: int | None = None) -> Iterator[Piece]:
    """All pieces of the log that begin between two physical offsets, in order.

    If no record begins at ``start``, and it is within a file, the bytes up to the next record are a gap.
    """
    for file in view.log.files:
        if file.end > start and (end is None or file.base < end):
            last = file.size_bytes if end is None else min(file.size_bytes, end - file.base)
            yield from walk_file(view, file, max(start - file.base, 0), last)


def walk_file(view: StoreView, file: StoreFile, start: int = 0, end: int | None = None) -> Iterator[Piece]:
    """The pieces of one file that begin before ``end``, from the start of a record on.

    The last piece may go on after ``end``. The walk ends with a ``FileEnd`` only if it reaches the end of the records.
    """
    found = _all_pieces(view, file, start, end)
    return found if view.clean else _without_unfinished(file, found)


def _without_unfinished(file: StoreFile, found: Iterator[Piece]) -> Iterator[Piece]:
    """The pieces of a file; a last record that was written only in part is a gap."""
    last: RecordRun | None = None
    for piece in found:
        if last is not None:
            over = isinstance(piece, FileEnd) and not piece.blank
            yield from _unfinished(file, last) if over and last.columns.breaks_off else (last,)
        last = piece if isinstance(piece, RecordRun) else None
        if last is None:
            yield piece
    if last is not None:
        yield last


def _unfinished(file: StoreFile, run: RecordRun) -> Iterator[Piece]:
    columns = run.columns
    whole = first_of(columns, len(columns) - 1)
    if len(whole):
        yield RecordRun(whole, run.base)
    assert whole.end < columns.end, "the unfinished record is the last one"
    why = "the record there ends in zeros: it was being written when the broker ended"
    yield Gap(file, whole.end, columns.end, "record-frame", why)


def _all_pieces(view: StoreView, file: StoreFile, start: int, end: int | None) -> Iterator[Piece]:
    buffer, base = view.maps.of(file), file.base
    size = len(buffer)

    def on_stop(place: int, stop: Stop) -> Generator[Piece, None, int | None]:
        at = place - base
        fault = _fault(buffer, at, stop, base)
        look_from: int | None = at + 1
        if fault is not None and stop is Stop.ZERO:
            look_from = next_written(view, file, at, size)
        if fault is None or look_from is None:
            yield FileEnd(file, at, blank=stop is Stop.BLANK)
            return None
        found = find_record(buffer, look_from or at + 1, size, base, or_blank=True)
        gap_end = size if found is None else found
        assert at < gap_end, "a gap has bytes"
        yield Gap(file, at, gap_end, *fault)
        return base + gap_end

    end = size if end is None else min(end, size)
    reached, _ = yield from runs(lambda _: (buffer, base), base + start, base + end, on_stop)
    if reached is not None and (reached >= base + size or _is_unwritten(view, file, reached - base)):
        yield FileEnd(file, reached - base, blank=False)


def _is_unwritten(view: StoreView, file: StoreFile, at: int) -> bool:
    """Tell whether nothing was written from a position on."""
    buffer = view.maps.of(file)
    behind = scan(buffer, at, len(buffer), 0).stop
    return behind is Stop.ZERO and next_written(view, file, at, len(buffer)) is None


def first_record(view: StoreView, file: StoreFile, start: int, end: int) -> int | None:
    """Position of the first sound record, or of the blank that ends a file, between any two positions; None for
    none.
    """
    buffer = view.maps.of(file)
    written = next_written(view, file, start, min(end, len(buffer)))
    if written is None:
        return None
    # The first bytes of a record may be zero: they are the upper bytes of its size.
    return find_record(buffer, max(start, written - 3), len(buffer), file.base, end, or_blank=True)


def _fault(buffer: Buffer, at: int, stop: Stop, base: int) -> tuple[str, str] | None:
    """The broken invariant where the records stop, and a sentence; None where a file may end like this."""
    if stop is Stop.INVALID and len(elsewhere := scan(buffer, at, len(buffer), 1)):
        stated = int(elsewhere.physical_offset[0])
        return "record-position", f"the record there says that it belongs to {stated}"
    size = int.from_bytes(buffer[at : at + 4], "big", signed=True)
    left = len(buffer) - at
    assert left > 0, "the records stop within the file"
    if stop is Stop.BLANK:
        text = f"the blank there says that {size} bytes remain, there are {left}"
        return None if size == left else ("log-file-end", text)
    if stop is Stop.ZERO:
        return "record-frame", "bytes there are zero, and later ones are not"
    if left < BLANK_BYTES:
        return "log-file-end", "the file ends without a blank"
    magic = bytes(buffer[at + 4 : at + 8])
    if magic not in (*RECORD_MAGICS, BLANK_MAGIC):
        return "record-frame", f"the magic there is 0x{magic.hex()}"
    if size < RECORD_BYTES_MIN or size > left:
        return "record-frame", f"the record there has a size of {size}, {left} bytes are left"
    return "record-frame", f"the record there has {size} bytes, its parts do not add up to that"


def next_written(view: StoreView, file: StoreFile, start: int, end: int) -> int | None:
    """A position at or after ``start``, at most at the first byte from there that is not zero.

    None if all bytes up to ``end`` are zero; holes of the file are not read.
    """
    buffer = view.maps.of(file)
    for first, stop in view.storage.stretches(file, start, end):
        for at in range(first, stop, _LOOK_BYTES):
            if not is_zero(bytes(buffer[at : min(at + _LOOK_BYTES, stop)])):
                assert start <= at < end, "the place is between the positions"
                return at
    return None
