"""Residency: the parts of the log that are in memory, and the reads that bring in the others.

Touching a record that is not in memory costs a read of the disk for each of its pages. In the event loop all clients
would wait for that. So a pull of old messages checks first (`Fetch` names the missing parts). A thread then reads them
by its own descriptor, which releases the interpreter. After that the pull finds everything in memory; it shares nothing
with the thread but the page cache.

Parts that were found in memory count as present for a tenth of a second (`Resident`). A check costs as much as the rest
of the work on a single message. Pages that leave memory in that time have not been used for long, and are read when
they are touched. Where the system has no such check (``mincore`` is in Linux, macOS and the BSDs), everything counts as
present.

Source: RocketMQ's ``ColdDataCheckService``, which calls ``mincore`` for all files once a minute.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from firearrow.store.segments import Segment

PIECE_BYTES: Final = 256 * 1024  # of one read: a thread can be stopped between two
_PAGE_BYTES: Final = mmap.PAGESIZE
_THERE: Final = b"\1"
_BLOCK_BITS: Final = 20
_BLOCKS_MAX: Final = 256
KNOWN_SECONDS: Final = 0.1


class FileRange(NamedTuple):
    """Bytes of a file."""

    path: Path
    start: int
    end: int


class Fetch(Exception):
    """A read would have to wait for the disk: for these ``stretches`` of files, see `fetch`."""

    def __init__(self, stretches: Sequence[FileRange]) -> None:
        super().__init__(f"{len(stretches)} stretches of files are not in memory")
        self.stretches = stretches


def _mincore() -> Callable[[int, int, object], int] | None:
    try:
        call = ctypes.PyDLL(None).mincore  # it is so fast that releasing the interpreter is not worth it
    except (AttributeError, OSError):
        return None
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    call.restype = ctypes.c_int
    return call


_MINCORE: Final = _mincore()


def is_resident(mapped: mmap.mmap, start: int, end: int) -> bool:
    """Tell whether all pages of a part of a mapped file are in memory; True if the system can't tell."""
    assert 0 <= start <= end <= len(mapped), "a part of the file"
    if _MINCORE is None or start == end:
        return True
    start -= start % _PAGE_BYTES
    count = -(-(end - start) // _PAGE_BYTES)
    found = ctypes.create_string_buffer(count)
    at = ctypes.addressof(ctypes.c_char.from_buffer(mapped)) + start
    if _MINCORE(at, end - start, found):
        return True
    pages = found.raw
    # Linux says 1 for a page in memory, others may say more. A comparison instead of a loop over hundreds of pages,
    # which made a pull of old messages twice as expensive.
    return pages == _THERE * count or not any(not page & 1 for page in pages)


class Resident:
    """Parts of the log that are in memory, by blocks of 1 MiB that were found there just now."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._known_until: dict[int, float] = {}

    def knows(self, start: int, end: int) -> bool:
        """Tell whether everything from one physical offset to before another was found there just now."""
        known, now = self._known_until, self._monotonic()
        block, last = start >> _BLOCK_BITS, end - 1 >> _BLOCK_BITS
        while known.get(block, 0.0) > now:
            if block == last:
                return True
            block += 1
        return False

    def has(self, segment: Segment, start: int, end: int) -> bool:
        """Tell whether a part of a segment is in memory, from one physical offset to before another."""
        if self.knows(start, end):
            return True
        known = self._known_until
        blocks = range(start >> _BLOCK_BITS, (end - 1 >> _BLOCK_BITS) + 1)
        base = segment.base
        block_start = max(blocks.start << _BLOCK_BITS, base)
        block_end = min(blocks.stop << _BLOCK_BITS, segment.end)
        if not is_resident(segment.map, block_start - base, block_end - base):
            return is_resident(segment.map, start - base, end - base)
        if len(known) >= _BLOCKS_MAX:
            known.clear()
        known.update(dict.fromkeys(blocks, self._monotonic() + KNOWN_SECONDS))
        return True


def fetch(stretches: Sequence[FileRange]) -> None:
    """Read stretches of files into memory; any thread may call it. Unreadable files are left out."""
    for path, start, end in stretches:
        with suppress(OSError):  # it may have been deleted; the next read will notice that
            _read(path, start, end)


def _read(path: Path, start: int, end: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for at in range(start, end, PIECE_BYTES):
            os.pread(descriptor, min(PIECE_BYTES, end - at), at)
    finally:
        os.close(descriptor)
