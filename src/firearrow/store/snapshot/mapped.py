"""Files of a store as they are found: listed by the offsets in their names, mapped read-only."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from firearrow.store.segments import NAME_DIGITS

_MAPS_MAX: Final = 512  # a process may have some 65,000; a store may have more queue files


class StoreFile(NamedTuple):
    """A file that is named by the offset of its first byte; ``base`` is that offset."""

    path: Path
    base: int
    size_bytes: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.base + self.size_bytes


class Correction(NamedTuple):
    """Bytes that are proved to belong into the log at an offset, though others are there."""

    physical_offset: int
    data: bytes


class Directory(NamedTuple):
    """The files of one address space in order, and the paths that do not belong there."""

    files: list[StoreFile]
    strays: list[Path]

    @property
    def file_size_bytes(self) -> int:
        """The size that most files have, 0 without files."""
        sizes = Counter(file.size_bytes for file in self.files)
        return max(sizes, key=lambda size: (sizes[size], size), default=0)

    def find(self, offset: int) -> StoreFile | None:
        """The file that holds a byte."""
        number = bisect_right(self.files, offset, key=lambda file: file.base) - 1
        if number < 0 or offset >= self.files[number].end:
            return None
        return self.files[number]


def corrections_by_path(files: Iterable[StoreFile], mends: Iterable[Correction]) -> dict[Path, list[Correction]]:
    """Which mends belong into which of the files."""
    found: dict[Path, list[Correction]] = {}
    directory = Directory(sorted(files, key=lambda file: file.base), [])
    for mend in mends:
        file = directory.find(mend.physical_offset)
        if file is not None and mend.physical_offset + len(mend.data) <= file.end:
            found.setdefault(file.path, []).append(mend)
    return found


class Maps:
    """Files mapped read-only, the most recently used ones only.

    Of a file that ``mends`` has something for, the bytes are those after that.
    """

    def __init__(self, mends: dict[Path, list[Correction]] | None = None) -> None:
        self._maps: OrderedDict[Path, mmap.mmap | bytes] = OrderedDict()
        self._mends = mends or {}

    def of(self, file: StoreFile) -> mmap.mmap | bytes:
        """The bytes of a file; empty where it is gone or unreadable by now."""
        found = self._maps.get(file.path)
        if found is None:
            found = self._maps[file.path] = _map(file, self._mends.get(file.path, []))
            if len(self._maps) > _MAPS_MAX:
                self._maps.popitem(last=False)  # unmapped once nobody uses it any more
        else:
            self._maps.move_to_end(file.path)
        return found

    def close(self) -> None:
        """Let go of all maps."""
        while self._maps:
            _close(self._maps.popitem()[1])


def _map(file: StoreFile, mends: list[Correction]) -> mmap.mmap | bytes:
    try:
        fd = os.open(file.path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        if os.fstat(fd).st_size == 0:
            return b""
        access = mmap.ACCESS_COPY if mends else mmap.ACCESS_READ
        mapped = mmap.mmap(fd, 0, access=access)
        for mend in mends:
            at = mend.physical_offset - file.base
            mapped[at : at + len(mend.data)] = mend.data
        return mapped
    except OSError:
        return b""
    finally:
        os.close(fd)


def _close(mapped: mmap.mmap | bytes) -> None:
    if isinstance(mapped, mmap.mmap):
        try:
            mapped.close()
        except BufferError:
            return  # freed with the last array that looks into it


def data_end(file: StoreFile) -> int:
    """A position behind which a file is surely zero: all is a hole from there on.

    Files are made at their full size; where there are many queues, most of them is holes.
    """
    try:
        fd = os.open(file.path, os.O_RDONLY)
    except OSError:
        return 0
    at = end = 0
    try:
        while at < file.size_bytes:
            at = os.lseek(fd, at, os.SEEK_DATA)
            at = end = os.lseek(fd, at, os.SEEK_HOLE)
    except OSError:  # no data up to the file's end
        pass
    finally:
        os.close(fd)
    return min(end, file.size_bytes)


def list_files(*directories: Path, digits: int = NAME_DIGITS) -> Directory:
    """List the files of one address space that is in one or several directories."""
    files: list[StoreFile] = []
    strays: list[Path] = []
    for path in (path for directory in directories for path in sorted_children(directory)):
        name = path.name
        if name.isascii() and name.isdecimal() and len(name) == digits and path.is_file():
            try:
                files.append(StoreFile(path, int(name), path.stat().st_size))
            except FileNotFoundError:
                continue  # deleted by the broker meanwhile
        else:
            strays.append(path)
    return Directory(sorted(files, key=lambda file: file.base), strays)


def is_zero(data: bytes) -> bool:
    """Tell whether all bytes are zero; to compare is ten times as fast as to strip."""
    return data == bytes(len(data))


def sorted_children(directory: Path) -> list[Path]:
    """What is in a directory; nothing where it can't be read."""
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []
