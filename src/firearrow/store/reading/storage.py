"""Files of a store: named by the offset of their first byte, and read wherever they are.

A ``Storage`` lists and reads the files below one root. ``LocalStorage`` maps files of this machine;
``firearrow.spark.planning.storage`` reads from the file systems that Arrow knows. Nothing is written, locked or
created. A file that retention has deleted raises FileNotFoundError; an open file stays readable.

``Maps`` and ``WholeFiles`` hold whole files.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from firearrow.files import StoredPath
from firearrow.store.segments import NAME_DIGITS

_BLOCK_BYTES: Final = 512  # of stat's count
_LITTLE_BYTES: Final = 1 << 20
_MAPS_MAX: Final = 512  # a process may have some 65,000; a store may have more queue files
Buffer = mmap.mmap | bytes | memoryview


class StoreFile(NamedTuple):
    """A file with the offset of its first byte as its name.

    ``path`` is relative to the root of its storage, or absolute where the file is elsewhere.
    """

    path: str
    base: int
    size_bytes: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.base + self.size_bytes


class Directory(NamedTuple):
    """The files of one address space in order, and the paths that do not belong there."""

    files: list[StoreFile]
    strays: list[str]

    @property
    def start(self) -> int:
        """The offset of the first byte, 0 without files."""
        return self.files[0].base if self.files else 0

    @property
    def end(self) -> int:
        """The offset after the last byte, 0 without files."""
        return self.files[-1].end if self.files else 0

    @property
    def file_size_bytes(self) -> int:
        """The most frequent size of the files, 0 without files."""
        sizes = Counter(file.size_bytes for file in self.files)
        return max(sizes, key=lambda size: (sizes[size], size), default=0)

    def find(self, offset: int) -> StoreFile | None:
        """The file that holds a byte."""
        number = bisect_right(self.files, offset, key=lambda file: file.base) - 1
        if number < 0 or offset >= self.files[number].end:
            return None
        return self.files[number]


class Entry(NamedTuple):
    """A file or directory."""

    name: str
    size_bytes: int
    is_file: bool


class Storage(Protocol):
    """Files below one root; paths are relative to it, with slashes."""

    root: str
    window_bytes_max: int

    def entries(self, directory: str) -> list[Entry]:
        """The content of a directory, sorted; empty without the directory."""

    def window(self, path: str, start: int, end: int) -> memoryview:
        """The bytes of a file from ``start`` to before ``end``, fewer if it is shorter."""

    def read(self, path: str) -> memoryview:
        """A whole file."""

    def place(self, path: str) -> StoredPath:
        """A path below the root, for readers of small files."""


class LocalStorage:
    """Files of this machine, mapped. Where it is ``tolerant``, directories that can't be read count as empty."""

    window_bytes_max = 1 << 31

    def __init__(self, root: str, *, tolerant: bool = False) -> None:
        self.root = root
        self._ignored = OSError if tolerant else (FileNotFoundError, NotADirectoryError)

    def _full(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.root}/{path}"

    def entries(self, directory: str) -> list[Entry]:
        """The content of a directory, sorted; empty without the directory."""
        found: list[Entry] = []
        try:
            with os.scandir(self._full(directory)) as items:
                for item in items:
                    try:
                        is_file = item.is_file()
                        size = item.stat().st_size if is_file else 0
                    except FileNotFoundError:
                        continue  # a broker has just deleted it
                    found.append(Entry(item.name, size, is_file))
        except self._ignored:
            return []
        return sorted(found)

    def window(self, path: str, start: int, end: int) -> memoryview:
        """The bytes of a file from ``start`` to before ``end``, fewer if it is shorter."""
        assert start >= 0, "a position is in the file"
        fd = os.open(self._full(path), os.O_RDONLY)
        try:
            status = os.fstat(fd)
            end = min(end, status.st_size)
            if end <= start:
                return memoryview(b"")
            aligned = start - start % mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(fd, end - aligned, offset=aligned, access=mmap.ACCESS_READ)
            _advise(mapped, status)
        finally:
            os.close(fd)
        window = memoryview(mapped)[start - aligned :]
        assert len(window) == end - start, "the bytes before the window only align its map"
        return window

    def read(self, path: str) -> memoryview:
        """A whole file."""
        return self.window(path, 0, 1 << 62)

    def place(self, path: str) -> Path:
        """A path below the root, for readers of small files."""
        return Path(self.root) / path

    def map(self, file: StoreFile, corrections: list[Correction]) -> mmap.mmap | bytes:
        """A whole file with its corrections; empty where it is gone or can't be read."""
        try:
            fd = os.open(self._full(file.path), os.O_RDONLY)
        except OSError:
            return b""
        try:
            status = os.fstat(fd)
            if status.st_size == 0:
                return b""
            mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY if corrections else mmap.ACCESS_READ)
            _advise(mapped, status)
            for correction in corrections:
                at = correction.physical_offset - file.base
                assert at >= 0, "a correction is given to the file that holds it"
                mapped[at : at + len(correction.data)] = correction.data
            return mapped
        except OSError:
            return b""
        finally:
            os.close(fd)

    def stretches(self, file: StoreFile, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Stretches of a file between two positions that are no holes.

        Files are made at their full size; where there are many queues, most of their files is holes.
        """
        try:
            fd = os.open(self._full(file.path), os.O_RDONLY)
        except OSError:
            return
        try:
            at = start
            while at < end:
                at = os.lseek(fd, at, os.SEEK_DATA)
                stop = min(os.lseek(fd, at, os.SEEK_HOLE), end)
                yield at, stop
                at = stop
        except OSError:  # no data up to the file's end
            return
        finally:
            os.close(fd)

    def data_end(self, file: StoreFile) -> int:
        """A position after which a file is certainly zero: a hole up to its end."""
        return max((stop for _, stop in self.stretches(file, 0, file.size_bytes)), default=0)


def _advise(mapped: mmap.mmap, status: os.stat_result) -> None:
    """Read nothing ahead in a file with little data: the zeros of its holes would fill the memory.

    Files are made at their full size. A system may read 8 MiB ahead, so that a look at a new queue costs a millisecond
    and pushes other files out of the memory.
    """
    if status.st_blocks * _BLOCK_BYTES <= min(_LITTLE_BYTES, status.st_size // 2):
        mapped.madvise(mmap.MADV_RANDOM)


def list_files(storage: Storage, *directories: str, digits: int = NAME_DIGITS) -> Directory:
    """List the files of one address space that is in one or several directories."""
    files: list[StoreFile] = []
    strays: list[str] = []
    for directory in directories:
        for name, size, is_file in storage.entries(directory):
            path = f"{directory}/{name}"
            if is_file and len(name) == digits and name.isascii() and name.isdecimal():
                files.append(StoreFile(path, int(name), size))
            else:
                strays.append(path)
    return Directory(sorted(files, key=lambda file: file.base), strays)


class Correction(NamedTuple):
    """Bytes that are proved to belong into the log at an offset, though others are there."""

    physical_offset: int
    data: bytes


def corrections_by_path(files: Iterable[StoreFile], corrections: Iterable[Correction]) -> dict[str, list[Correction]]:
    """The corrections of each of the files, by its path."""
    found: dict[str, list[Correction]] = {}
    directory = Directory(sorted(files, key=lambda file: file.base), [])
    for correction in corrections:
        file = directory.find(correction.physical_offset)
        if file is not None and correction.physical_offset + len(correction.data) <= file.end:
            found.setdefault(file.path, []).append(correction)
    return found


class Maps:
    """Local files mapped read-only with their corrections; only the most recently used ones."""

    def __init__(self, storage: LocalStorage, corrections: dict[str, list[Correction]] | None = None) -> None:
        self._storage = storage
        self._corrections = corrections or {}
        self._maps: OrderedDict[str, mmap.mmap | bytes] = OrderedDict()

    def of(self, file: StoreFile) -> mmap.mmap | bytes:
        """The bytes of a file; empty where it is gone or can't be read."""
        found = self._maps.get(file.path)
        if found is None:
            found = self._maps[file.path] = self._storage.map(file, self._corrections.get(file.path, []))
            if len(self._maps) > _MAPS_MAX:
                self._maps.popitem(last=False)  # its last reader unmaps it
        else:
            self._maps.move_to_end(file.path)
        return found

    def close(self) -> None:
        """Release all maps."""
        while self._maps:
            mapped = self._maps.popitem()[1]
            if isinstance(mapped, mmap.mmap):
                try:
                    mapped.close()
                except BufferError:
                    continue  # the last array that views it frees it


class WholeFiles:
    """Files as they were at their first read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[str, memoryview] = {}

    def of(self, file: StoreFile) -> memoryview:
        """The bytes of a file; none if it has been deleted since it was listed."""
        found = self._read.get(file.path)
        if found is None:
            try:
                found = self._storage.read(file.path)
            except FileNotFoundError:
                found = memoryview(b"")
            self._read[file.path] = found
        return found


class Files(NamedTuple):
    """The files of a queue and their bytes: none for a deleted file, and only zeros after ``data_end``."""

    directory: Directory
    of: Callable[[StoreFile], Buffer]
    data_end: Callable[[StoreFile], int] = lambda file: file.size_bytes

    def stored(self, start: int, end: int) -> bytes:
        """The bytes from one offset to another; fewer where files end or are missing."""
        parts: list[bytes] = []
        while start < end and (file := self.directory.find(start)) is not None:
            stop = min(end, file.end)
            part = bytes(self.of(file)[start - file.base : stop - file.base])
            parts.append(part)
            start += len(part)
            if start < stop:  # the file is gone, or shorter than it was listed
                break
        return b"".join(parts)

    def array(self, file: StoreFile, dtype: np.dtype[Any], *, whole: bool = False) -> npt.NDArray[Any]:
        """The entries of a file up to its last data, or in all its bytes."""
        buffer = self.of(file)
        count = len(buffer) // dtype.itemsize
        if not whole:
            count = min(count, -(-self.data_end(file) // dtype.itemsize))
        assert count >= 0, "a negative count would take all bytes"
        return np.frombuffer(buffer, dtype, count)


NO_FILES: Final = Files(Directory([], []), lambda _: b"")


def is_zero(data: bytes) -> bool:
    """Tell whether all bytes are zero; comparing is ten times as fast as stripping."""
    return data == bytes(len(data))
