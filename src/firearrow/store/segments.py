"""Fixed-size mapped files as one address space.

A directory of files, each named by the 20-digit decimal offset of its first byte: CommitLog and
ConsumeQueue are both this. Offsets here are bytes from the start of the address space, not of a
file. Files of another size, stray names and gaps are not part of it; ``load`` leaves them alone and
says which and why.

Source of the layout: upstream ``MappedFileQueue``, ``UtilAll#offset2FileName``.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from pathlib import Path

from firearrow.errors import CorruptStore
from firearrow.store import fs

log = logging.getLogger(__name__)

NAME_DIGITS = 20


class Segment:
    """One mapped file; ``base`` is the offset of its first byte, ``reserved_bytes`` how much of it
    surely has blocks on the disk."""

    __slots__ = ("base", "map", "path", "reserved_bytes", "size_bytes")

    def __init__(self, base: int, path: Path, mapped: mmap.mmap, reserved_bytes: int) -> None:
        self.base = base
        self.path = path
        self.map = mapped
        self.size_bytes = len(mapped)
        self.reserved_bytes = reserved_bytes

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.base + self.size_bytes


class Segments:
    """The files of one directory in order of their offsets.

    ``reserve_step_bytes``: blocks are reserved in steps of this size ahead of the writer; None
    reserves a file whole when it is created.
    """

    def __init__(
        self, directory: Path, file_size_bytes: int, reserve_step_bytes: int | None = None
    ) -> None:
        self.directory = directory
        self.file_size_bytes = file_size_bytes
        self._reserve_step_bytes = reserve_step_bytes or file_size_bytes
        self.files: list[Segment] = []

    def load(self) -> None:
        """Map the files that are there; CorruptStore when one in the middle is missing."""
        for path in sorted(self.directory.glob("*")):
            reason = self._why_not(path)
            if reason is not None:
                log.warning("%s is ignored: %s", path, reason)
                continue
            if self.files and int(path.name) != self.files[-1].end:
                raise CorruptStore(f"a file is missing before {path}: {self.files[-1].end:020d}")
            self.files.append(Segment(int(path.name), path, fs.map_file(path), 0))

    def _why_not(self, path: Path) -> str | None:
        if not (path.name.isascii() and path.name.isdigit() and len(path.name) == NAME_DIGITS):
            return f"its name is not {NAME_DIGITS} digits"
        size = path.stat().st_size
        if size != self.file_size_bytes:
            return f"it has {size} bytes, not the configured {self.file_size_bytes}"
        return None

    @property
    def first_offset(self) -> int:
        """The offset of the first byte there is (0 without files)."""
        return self.files[0].base if self.files else 0

    @property
    def end_offset(self) -> int:
        """The offset after the last byte there is room for (0 without files)."""
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> Segment | None:
        """The file that holds a byte."""
        files = self.files
        if not files or offset < files[0].base:
            return None
        number = (offset - files[0].base) // self.file_size_bytes
        return files[number] if number < len(files) else None

    def path_of(self, base: int) -> Path:
        """Where the file that starts at ``base`` lies."""
        return self.directory / f"{base:0{NAME_DIGITS}d}"

    def create(self, base: int) -> Segment:
        """Create the file that starts at ``base``, not yet part of the space (see ``attach``)."""
        path = self.path_of(base)
        reserved = min(self._reserve_step_bytes, self.file_size_bytes)
        fs.create_file(path, self.file_size_bytes, reserved)
        return Segment(base, path, fs.map_file(path), reserved)

    def attach(self, segment: Segment) -> None:
        """Put a created file at the end of the space."""
        assert not self.files or segment.base == self.files[-1].end
        self.files.append(segment)

    def reserve(self, segment: Segment, end_bytes: int) -> None:
        """Make sure that the first ``end_bytes`` of a file have blocks; OSError on a full disk."""
        if end_bytes > segment.reserved_bytes:
            steps = -(-end_bytes // self._reserve_step_bytes)
            upto = min(steps * self._reserve_step_bytes, segment.size_bytes)
            fs.reserve(segment.path, segment.reserved_bytes, upto - segment.reserved_bytes)
            segment.reserved_bytes = upto

    def cut(self, offset: int) -> None:
        """Forget everything from ``offset`` on: later files go, the rest of its own is zeroed."""
        while self.files and self.files[-1].base >= offset:
            self.drop(self.files.pop())
        if self.files and offset < self.files[-1].end:
            last = self.files[-1]
            start = offset - last.base
            end = len(last.map)
            if written_after(last, start):
                last.map[start:end] = bytes(end - start)

    def drop(self, segment: Segment) -> None:
        """Delete a file that is no longer part of the space."""
        fs.unmap(segment.map)
        segment.path.unlink()

    def close(self) -> None:
        """Unmap all files."""
        for segment in self.files:
            fs.unmap(segment.map)
        self.files.clear()


def written_after(segment: Segment, start: int) -> bool:
    """Whether any byte of a file from ``start`` on is not zero.

    Only what the file system holds as data is read: a preallocated tail of a gigabyte has none.
    """
    fd = os.open(segment.path, os.O_RDONLY)
    try:
        while True:
            try:
                at = os.lseek(fd, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return False
                raise
            start = os.lseek(fd, at, os.SEEK_HOLE)
            if segment.map[at:start].strip(b"\0"):
                return True
    finally:
        os.close(fd)
