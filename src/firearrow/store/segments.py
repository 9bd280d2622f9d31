"""Fixed-size mapped files as one address space.

A directory of files, each named by the 20-digit decimal offset of its first byte: CommitLog and ConsumeQueue both have
this form. Offsets here are bytes from the start of the address space, not of a file. A file whose name is not an offset
is left alone, with a log line. A file of another size than the configured one stops ``load``, because without it its
content would be forgotten.

Source of the layout: RocketMQ's ``MappedFileQueue``, ``UtilAll#offset2FileName``.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from firearrow.errors import CorruptStore
from firearrow.logs import Log
from firearrow.machine import descriptors_max
from firearrow.store.fs import MAP_HAS_DESCRIPTOR, OS_FILES, FileSystem, unmap

log: Final = Log(__name__)

NAME_DIGITS = 20
_STEP_BYTES = 1 << 20
_ZEROS = bytes(_STEP_BYTES)
_FIRST_BYTES = 4096  # first bytes to reserve of a file which gets its blocks as it grows
_MAPS_OF_LINUX = 65_530
_CLOSED: Final = mmap.mmap(-1, 1)
_CLOSED.close()


class Segment:
    """One mapped file. ``base`` is the offset of its first byte, ``end`` the offset after its last; its first
    ``reserved_bytes`` have blocks on the disk.
    """

    __slots__ = ("base", "end", "map", "path", "reserved_bytes", "size_bytes")

    def __init__(self, base: int, path: Path, mapped: mmap.mmap, reserved_bytes: int) -> None:
        self.base: int = base
        self.path: Path = path
        self.map: mmap.mmap = mapped
        self.size_bytes: int = len(mapped)
        self.end: int = base + self.size_bytes
        self.reserved_bytes: int = reserved_bytes

    def advise(self, *, read_ahead: bool) -> None:
        """Tell the system to read ahead in the file, or not."""
        self.map.madvise(mmap.MADV_NORMAL if read_ahead else mmap.MADV_RANDOM)

    def head(self, size_bytes: int) -> bytes:
        """First bytes of the file."""
        return self.map[:size_bytes]

    def unmap(self) -> None:
        """Close the map: nobody reads or writes here any more."""
        unmap(self.map)


class LateSegment(Segment):
    """A file that is mapped when its map is first used, and again after ``let_go``.

    A start of very many queues maps none, and ``MappedFiles`` limits the number of files that are mapped at once.
    """

    __slots__ = ("_segments",)

    def __init__(self, base: int, segments: Segments, reserved_bytes: int) -> None:
        self.base = base
        self.size_bytes: int = segments.file_size_bytes
        self.end: int = base + self.size_bytes
        self.reserved_bytes = reserved_bytes
        self._segments = segments

    def __getattr__(self, name: str) -> Any:
        """Supply an attribute without a slot value: the map, or the path, which is not stored."""
        if name not in ("map", "path"):
            raise AttributeError(name)
        path = self._segments.path_of(self.base)
        if name == "path":
            return path
        self.map = mapped = self._segments.mapped(path)
        assert self._segments.maps is not None, "otherwise all files are mapped at once"
        self._segments.maps.note(self)
        return mapped

    @property
    def _present(self) -> mmap.mmap | None:
        try:
            found: mmap.mmap = object.__getattribute__(self, "map")
        except AttributeError:
            return None
        return found

    def head(self, size_bytes: int) -> bytes:
        """First bytes of the file, read without mapping it."""
        if self._present is not None:
            return self.map[:size_bytes]
        fd = os.open(self._segments.name_of(self.base), os.O_RDONLY)
        try:
            return os.pread(fd, size_bytes, 0)
        finally:
            os.close(fd)

    def unmap(self) -> None:
        """Close the map for good."""
        if self._present is None:
            self.map: mmap.mmap = _CLOSED
        unmap(self.map)

    def let_go(self) -> None:
        """Close the map; code that uses it right now keeps it."""
        present = self._present
        if present is not None and not present.closed:
            del self.map


class MappedFiles:
    """The files of very many queues that are mapped at present: at most ``most``, see ``maps_max``. One file more
    closes the map of the earliest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._mapped: deque[LateSegment] = deque()

    def note(self, segment: LateSegment) -> None:
        """Note that a file was mapped."""
        self._mapped.append(segment)
        if len(self._mapped) > self._most:
            self._mapped.popleft().let_go()


def maps_max() -> int:
    """Half of the maps that a process may have, or of its open files where each map has one."""
    most = _MAPS_OF_LINUX
    with suppress(OSError, ValueError):
        most = int(Path("/proc/sys/vm/max_map_count").read_text())
    if MAP_HAS_DESCRIPTOR and 0 < descriptors_max() < most:  # -1 is no limit
        most = descriptors_max()
    return max(most // 2, 1)


class Segments:
    """The files of one directory in order of their offsets.

    ``reserve_step_bytes``: blocks are reserved in steps of this size ahead of the writer, the first of them in smaller
    ones; None reserves a whole file when it is created. ``read_ahead`` False keeps the system from reading around the
    touched bytes. It would read the whole of a small file, and making the pages of 6 MB for the first 20 bytes costs a
    hundred times as much as the rest. With ``maps``, files are mapped when they are used.
    """

    __slots__ = ("_directory", "_fs", "_read_ahead", "_reserve_step_bytes", "file_size_bytes", "files", "maps")

    def __init__(
        self,
        directory: Path | str,
        file_size_bytes: int,
        reserve_step_bytes: int | None = None,
        fs: FileSystem = OS_FILES,
        *,
        read_ahead: bool = True,
        maps: MappedFiles | None = None,
    ) -> None:
        self._directory = str(directory)
        self.file_size_bytes: Final = file_size_bytes
        self._reserve_step_bytes = reserve_step_bytes
        self._fs = fs
        self._read_ahead = read_ahead
        self.maps: Final = maps
        self.files: list[Segment] = []

    @property
    def directory(self) -> Path:
        """The directory of the files."""
        return Path(self._directory)

    def load(self) -> None:
        """Map the existing files.

        Remains of a crash, or files that somebody has put there, are no obstacle. Files without a byte at the end (a
        crash during their creation) are deleted, a last file that was cut short is lengthened by zeros, other names are
        left alone. Raises CorruptStore when a file in the middle is missing or has another size: without it its content
        would be forgotten.
        """
        found = self._without_empty(self._found())
        last = found[-1][0] if found else 0
        for base, size in found:
            path = self.name_of(base)
            if size is None:
                raise CorruptStore(f"{path} is no file")
            if size < self.file_size_bytes and base == last and len(found) > 1:
                log.warning(
                    "file is lengthened: it is too short",
                    extra={"path": path, "size_bytes": size, "right_size_bytes": self.file_size_bytes},
                )
                self._fs.resize(Path(path), self.file_size_bytes)
            elif size != self.file_size_bytes:
                raise CorruptStore(f"{path} has {size} bytes, files here are configured to have {self.file_size_bytes}")
            if base % self.file_size_bytes:
                raise CorruptStore(f"no file of {self.file_size_bytes} bytes can start at {path}")
            if self.files and base != self.files[-1].end:
                raise CorruptStore(f"a file is missing before {path}: {self.files[-1].end:020d}")
            self.files.append(self._found_at(base))

    def _found(self) -> list[tuple[int, int | None]]:
        """Offsets of the files by their names, and their sizes; None as the size of something that is no file."""
        found: list[tuple[int, int | None]] = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._directory) as files:
            found = [
                (int(file.name), file.stat().st_size if file.is_file() else None)
                for file in files
                if self._is_offset(file.name)
            ]
        found.sort()
        starts = [file for file in found if file[0] % self.file_size_bytes == 0]
        for base, _ in found if starts else ():  # otherwise the configuration does not fit the files
            if base % self.file_size_bytes:
                log.warning("file is ignored: no file of this size starts there", extra={"path": self.path_of(base)})
        return starts or found

    def _found_at(self, base: int) -> Segment:
        if self.maps is not None:
            return LateSegment(base, self, 0)
        path = self.path_of(base)
        return Segment(base, path, self.mapped(path), 0)

    def _is_offset(self, name: str) -> bool:
        if name.isascii() and name.isdigit() and len(name) == NAME_DIGITS:
            return True
        log.warning(
            "file is ignored: its name has another number of digits",
            extra={"path": self.directory / name, "digits": NAME_DIGITS},
        )
        return False

    def _without_empty(self, found: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
        while found and found[-1][1] == 0:
            path = self.path_of(found.pop()[0])
            log.warning("file is deleted: it is empty", extra={"path": path})
            self._fs.remove(path)
        return found

    @property
    def first_offset(self) -> int:
        """Offset of the first byte of the files (0 without files)."""
        return self.files[0].base if self.files else 0

    @property
    def end_offset(self) -> int:
        """Offset after the last byte of the files (0 without files)."""
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> Segment | None:
        """The file that holds a byte."""
        files = self.files
        if not files or offset < files[0].base:
            return None
        number = (offset - files[0].base) // self.file_size_bytes
        return files[number] if number < len(files) else None

    def path_of(self, base: int) -> Path:
        """Path of the file that starts at ``base``."""
        return Path(self.name_of(base))

    def name_of(self, base: int) -> str:
        """The same as a string, which takes a tenth of the time."""
        return f"{self._directory}/{base:0{NAME_DIGITS}d}"

    def create(self, base: int) -> Segment:
        """Create the file that starts at ``base``, not yet part of the space (see ``attach``).

        Raises OSError if that fails. A file that is left then has no data, and a later call replaces it.
        """
        assert base % self.file_size_bytes == 0, "files start at multiples of their size"
        path = self.path_of(base)
        reserved = self._reserved_for(1)
        try:
            self._fs.create_file(path, self.file_size_bytes, reserved)
        except FileExistsError:
            self._remove_blank(path)
            self._fs.create_file(path, self.file_size_bytes, reserved)
        try:
            mapped = self.mapped(path)
        except OSError:
            self._fs.remove(path)
            raise
        if self.maps is None:
            return Segment(base, path, mapped, reserved)
        segment = LateSegment(base, self, reserved)
        segment.map = mapped
        self.maps.note(segment)
        return segment

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

    def mapped(self, path: Path) -> mmap.mmap:
        """Map one of the files."""
        mapped = self._fs.map_file(path)
        if not self._read_ahead:
            mapped.madvise(mmap.MADV_RANDOM)
        return mapped

    def advise(self, *, read_ahead: bool) -> None:
        """Tell the system to read ahead in all files, or not."""
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
            assert end_bytes <= segment.size_bytes, "nothing is written after the end of a file"
            upto = self._reserved_for(end_bytes)
            self._fs.reserve(segment.path, segment.reserved_bytes, upto - segment.reserved_bytes)
            segment.reserved_bytes = upto

    def _reserved_for(self, end_bytes: int) -> int:
        """The bytes of a file that have blocks once ``end_bytes`` of it must have them."""
        step = self._reserve_step_bytes
        if step is None:
            return self.file_size_bytes
        if end_bytes < step:  # a step is the largest of the doubling ones
            step = min(step, max(_FIRST_BYTES, 1 << (end_bytes - 1).bit_length()))
        return min(-(-end_bytes // step) * step, self.file_size_bytes)

    def flush(self, start: int, end: int) -> bool:
        """Return once the bytes ``start`` to ``end`` are on the disk.

        Tells whether a file begins in them: then its name must be synced next. Any thread may call it.
        """
        assert start <= end
        touched = [segment for segment in list(self.files) if segment.base < end and segment.end > start]
        for segment in touched:
            try:
                self._fs.sync_file(segment.path)
            except FileNotFoundError:
                if segment in self.files:  # otherwise it was deleted meanwhile
                    raise
        return any(segment.base >= start for segment in touched)

    def cut(self, offset: int, *, keep_first: bool = False) -> None:
        """Forget everything from ``offset`` on: later files are deleted, and the rest of the file with that offset is
        zeroed.

        ``keep_first``: the first file stays in any case.
        """
        while len(self.files) > keep_first and self.files[-1].base >= offset:
            self.drop(self.files.pop())
        if self.files and offset < self.files[-1].end:
            last = self.files[-1]
            zero_after(last, max(offset - last.base, 0))

    def cut_durably(self, offset: int) -> None:
        """Do a ``cut``, and return once it is on the disk: a crash can't bring back the bytes.

        Names are synced one by one and the zeros last. With another order, simulated losses of power found a start that
        met a later file without the one before it, and bytes from after the cut.
        """
        while self.files and self.files[-1].base >= offset:
            self.drop(self.files.pop())
            self._fs.sync_directory(self.directory)  # in this order: no gap at any moment
        self.cut(offset)
        if self.files:
            self._fs.sync_file(self.files[-1].path)

    def shift(self) -> Segment:
        """Take the first file out of the space, which must not be the last; its owner removes it."""
        assert len(self.files) > 1
        segment = self.files.pop(0)
        segment.unmap()
        return segment

    def drop(self, segment: Segment) -> None:
        """Delete a file that is no longer part of the space."""
        segment.unmap()
        self._fs.remove(segment.path)

    def data(self, start: int) -> Iterator[tuple[Segment, int, int]]:
        """The stretches from an offset on with bytes that are not zero: the file, and their start and end in it."""
        for segment in self.files:
            if segment.end > start:
                for at, end in _written(segment, max(start - segment.base, 0)):
                    yield segment, at, end

    def close(self) -> None:
        """Unmap all files."""
        for segment in self.files:
            segment.unmap()
        self.files.clear()


def _data(segment: Segment, start: int) -> Iterator[tuple[int, int]]:
    """The stretches of a file from ``start`` on that the file system holds as data, not as holes. It knows that nothing
    was written to a preallocated tail of a gigabyte.
    """
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
    # The list is complete before any stretch is read: bytes that the system reads ahead then count as data, too, and a
    # preallocated gigabyte would be read to its end.
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

    Holes are left alone: writing into one would need blocks that a full disk does not have.
    """
    assert 0 <= start <= segment.size_bytes
    for begin, end in _written(segment, start):
        for piece in range(begin, end, _STEP_BYTES):
            size = min(_STEP_BYTES, end - piece)
            segment.map[piece : piece + size] = _ZEROS[:size]
