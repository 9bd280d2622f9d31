"""Fixed-size mapped files as one address space.

A directory of files, each named by the 20-digit decimal offset of its first byte: CommitLog and
ConsumeQueue are both this. Offsets here are bytes from the start of the address space, not of a
file. A name that is not an offset is left alone, with a log line; a file of another size than the
configured one stops ``load``, because to go on without it would be to forget what it holds.

Source of the layout: upstream ``MappedFileQueue``, ``UtilAll#offset2FileName``.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from firearrow.errors import CorruptStore
from firearrow.store.fs import OS_FILES, FileSystem, unmap

log = logging.getLogger(__name__)

NAME_DIGITS = 20
_STEP_BYTES = 1 << 20
_ZEROS = bytes(_STEP_BYTES)


class Segment:
    """One mapped file. ``base`` is the offset of its first byte, ``end`` that after its last; its
    first ``reserved_bytes`` have blocks on the disk."""

    __slots__ = ("base", "end", "map", "path", "reserved_bytes", "size_bytes")

    def __init__(self, base: int, path: Path, mapped: mmap.mmap, reserved_bytes: int) -> None:
        self.base = base
        self.path = path
        self.map = mapped
        self.size_bytes = len(mapped)
        self.end = base + self.size_bytes
        self.reserved_bytes = reserved_bytes

    def advise(self, *, read_ahead: bool) -> None:
        """Have the system read more of it than what is touched, or not."""
        self.map.madvise(mmap.MADV_NORMAL if read_ahead else mmap.MADV_RANDOM)


class Segments:
    """The files of one directory in order of their offsets.

    ``reserve_step_bytes``: blocks are reserved in steps of this size ahead of the writer; None
    reserves a file whole when it is created. ``read_ahead`` False keeps the system from reading
    more of a file than what is touched: it takes the whole of a small file for its neighbourhood,
    and to make the pages of 6 MB for the first 20 bytes costs a hundred times as much as the rest.
    """

    def __init__(
        self,
        directory: Path,
        file_size_bytes: int,
        reserve_step_bytes: int | None = None,
        fs: FileSystem = OS_FILES,
        *,
        read_ahead: bool = True,
    ) -> None:
        self.directory = directory
        self.file_size_bytes = file_size_bytes
        self._reserve_step_bytes = reserve_step_bytes or file_size_bytes
        self._fs = fs
        self._read_ahead = read_ahead
        self.files: list[Segment] = []

    def load(self) -> None:
        """Map the files that are there.

        What a crash or a hand may have left beside them is no obstacle: files without a byte at the
        end (they were just being made) are deleted, a last file that was cut short is lengthened by
        zeros, other names are left alone. Raises CorruptStore when a file in the middle is missing
        or has another size: to go on without it would be to forget what it holds.
        """
        paths = self._remove_empty(self._paths())
        for path in paths:
            if not path.is_file():
                raise CorruptStore(f"{path} is no file")
            size = path.stat().st_size
            if size < self.file_size_bytes and path == paths[-1] and len(paths) > 1:
                log.warning(
                    "file is lengthened: it is too short",
                    extra={
                        "path": path,
                        "size_bytes": size,
                        "right_size_bytes": self.file_size_bytes,
                    },
                )
                self._fs.resize(path, self.file_size_bytes)
            elif size != self.file_size_bytes:
                raise CorruptStore(
                    f"{path} has {size} bytes, files here are configured to have "
                    f"{self.file_size_bytes}"
                )
            if int(path.name) % self.file_size_bytes:
                raise CorruptStore(f"no file of {self.file_size_bytes} bytes can start at {path}")
            if self.files and int(path.name) != self.files[-1].end:
                raise CorruptStore(f"a file is missing before {path}: {self.files[-1].end:020d}")
            self.files.append(Segment(int(path.name), path, self._map(path), 0))

    def _paths(self) -> list[Path]:
        """The files whose names are offsets at which a file can start."""
        paths = sorted(path for path in self.directory.glob("*") if _is_offset(path))
        starts = [path for path in paths if int(path.name) % self.file_size_bytes == 0]
        if not starts:  # then it is the configuration that does not fit
            return paths
        for path in paths:
            if path not in starts:
                log.warning(
                    "file is ignored: no file of this size starts there",
                    extra={"path": path},
                )
        return starts

    def _remove_empty(self, paths: list[Path]) -> list[Path]:
        while paths and paths[-1].is_file() and paths[-1].stat().st_size == 0:
            log.warning("file is deleted: it is empty", extra={"path": paths[-1]})
            self._fs.remove(paths.pop())
        return paths

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
        """Where the file that starts at ``base`` is."""
        return self.directory / f"{base:0{NAME_DIGITS}d}"

    def create(self, base: int) -> Segment:
        """Create the file that starts at ``base``, not yet part of the space (see ``attach``).

        Raises OSError if it can't be made. A file that is left then has no data, and a later call
        replaces it.
        """
        assert base % self.file_size_bytes == 0, "files start at multiples of their size"
        path = self.path_of(base)
        reserved = min(self._reserve_step_bytes, self.file_size_bytes)
        try:
            self._fs.create_file(path, self.file_size_bytes, reserved)
        except FileExistsError:
            self._remove_blank(path)
            self._fs.create_file(path, self.file_size_bytes, reserved)
        try:
            mapped = self._map(path)
        except OSError:
            self._fs.remove(path)
            raise
        return Segment(base, path, mapped, reserved)

    def _remove_blank(self, path: Path) -> None:
        """Remove the file of an earlier attempt; FileExistsError if it holds data."""
        if not path.is_file():
            raise FileExistsError(errno.EEXIST, "something else is in the place of a file", path)
        if path.stat().st_size:
            found = Segment(0, path, self._fs.map_file(path), 0)
            try:
                if next(_written(found, 0), None) is not None:
                    raise FileExistsError(errno.EEXIST, "a file with data is in the way", path)
            finally:
                unmap(found.map)
        log.warning("file is made again: nothing was written to it", extra={"path": path})
        self._fs.remove(path)

    def _map(self, path: Path) -> mmap.mmap:
        mapped = self._fs.map_file(path)
        if not self._read_ahead:
            mapped.madvise(mmap.MADV_RANDOM)
        return mapped

    def advise(self, *, read_ahead: bool) -> None:
        """Have the system read more of all files than what is touched, or not."""
        self._read_ahead = read_ahead
        for segment in self.files:
            segment.advise(read_ahead=read_ahead)

    def attach(self, segment: Segment) -> None:
        """Put a created file at the end of the space."""
        assert not self.files or segment.base == self.files[-1].end
        assert segment.size_bytes == self.file_size_bytes
        self.files.append(segment)

    def reserve(self, segment: Segment, end_bytes: int) -> None:
        """Make sure that the first ``end_bytes`` of a file have blocks; OSError on a full disk."""
        if end_bytes > segment.reserved_bytes:
            assert end_bytes <= segment.size_bytes, "nothing is written behind a file"
            steps = -(-end_bytes // self._reserve_step_bytes)
            upto = min(steps * self._reserve_step_bytes, segment.size_bytes)
            self._fs.reserve(segment.path, segment.reserved_bytes, upto - segment.reserved_bytes)
            segment.reserved_bytes = upto

    def flush(self, start: int, end: int) -> bool:
        """Return once the bytes ``start`` to ``end`` are on the disk.

        Says whether a file begins in them: its name is then to follow. Any thread may call it.
        """
        assert start <= end
        touched = [
            segment for segment in list(self.files) if segment.base < end and segment.end > start
        ]
        for segment in touched:
            try:
                self._fs.sync_file(segment.path)
            except FileNotFoundError:
                if segment in self.files:  # else it was deleted meanwhile
                    raise
        return any(segment.base >= start for segment in touched)

    def cut(self, offset: int) -> None:
        """Forget everything from ``offset`` on: later files go, the rest of its own is zeroed."""
        while self.files and self.files[-1].base >= offset:
            self.drop(self.files.pop())
        if self.files and offset < self.files[-1].end:
            last = self.files[-1]
            zero_after(last, offset - last.base)

    def cut_durably(self, offset: int) -> None:
        """``cut``, and return once that is on the disk: a crash can't bring back what was there.

        Names are synced one by one and the zeros last, for simulated losses of power found a start
        that met a later file without the one before it, and bytes from behind the cut.
        """
        while self.files and self.files[-1].base >= offset:
            self.drop(self.files.pop())
            self._fs.sync_directory(self.directory)  # in this order: no gap at any moment
        self.cut(offset)
        if self.files:
            self._fs.sync_file(self.files[-1].path)

    def shift(self) -> Segment:
        """Take the first file out of the space, which never is the last; its owner removes it."""
        assert len(self.files) > 1
        segment = self.files.pop(0)
        unmap(segment.map)
        return segment

    def drop(self, segment: Segment) -> None:
        """Delete a file that is no longer part of the space."""
        unmap(segment.map)
        self._fs.remove(segment.path)

    def data(self, start: int) -> Iterator[tuple[Segment, int, int]]:
        """The stretches from an offset on with bytes that are not zero: the file, and where in it
        they start and end."""
        for segment in self.files:
            if segment.end > start:
                for at, end in _written(segment, max(start - segment.base, 0)):
                    yield segment, at, end

    def close(self) -> None:
        """Unmap all files."""
        for segment in self.files:
            unmap(segment.map)
        self.files.clear()


def _is_offset(path: Path) -> bool:
    name = path.name
    if name.isascii() and name.isdigit() and len(name) == NAME_DIGITS:
        return True
    log.warning(
        "file is ignored: its name has not so many digits",
        extra={"path": path, "digits": NAME_DIGITS},
    )
    return False


def _data(segment: Segment, start: int) -> Iterator[tuple[int, int]]:
    """The stretches of a file from ``start`` on that the file system holds as data, not as holes:
    of a preallocated tail of a gigabyte it knows that nothing was written there."""
    fd = os.open(segment.path, os.O_RDONLY)
    try:
        while True:
            try:
                at = os.lseek(fd, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                error.filename = str(segment.path)
                raise
            start = os.lseek(fd, at, os.SEEK_HOLE)
            yield at, start
    finally:
        os.close(fd)


def _written(segment: Segment, start: int) -> Iterator[tuple[int, int]]:
    """The stretches of a file from ``start`` on with bytes that are not zero, to a mebibyte."""
    begin = written = start
    # All are asked for before any is read: what the system reads ahead then counts as data, too,
    # and a preallocated gigabyte would be read to its end.
    for at, end_of_data in list(_data(segment, start)):
        for piece in range(at, end_of_data, _STEP_BYTES):
            end = min(piece + _STEP_BYTES, end_of_data)
            if segment.map[piece:end] == _ZEROS[: end - piece]:
                continue
            if piece > written:
                if written > begin:
                    yield begin, written
                begin = piece
            written = end
    if written > begin:
        yield begin, written


def zero_after(segment: Segment, start: int) -> None:
    """Make every byte of a file from ``start`` on zero.

    Holes are left alone: to write into one would need blocks that a full disk does not have.
    """
    assert 0 <= start <= segment.size_bytes
    for begin, end in _written(segment, start):
        for piece in range(begin, end, _STEP_BYTES):
            size = min(_STEP_BYTES, end - piece)
            segment.map[piece : piece + size] = _ZEROS[:size]
