"""What the store asks of the file system, in one place.

Files are mapped shared and written through their map: a write is in the page cache, and so outlives
the process, as soon as the assignment is done; it outlives the machine once ``sync_file`` has
returned, and the name of a file once ``sync_directory`` has. A hole in a mapped file would kill
the process by SIGBUS when the disk is full, so blocks are reserved (``posix_fallocate``) before
anything is written there, and a full disk is an OSError that the caller can answer.

Everything that makes, changes, syncs or removes a file goes through a ``FileSystem``, which is a
constructor argument all the way down: ``firearrow.testing.fs`` has one that loses power.
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from firearrow.files import (
    DIRECTORY_MODE,
    FILE_MODE,
    free_path,
    is_thrown_away,
    make_directories,
    naming,
    sync_directory,
)

log = logging.getLogger(__name__)

# A map needs no descriptor: each file of very many queues would hold one.
_NO_DESCRIPTOR: Final[dict[str, Any]] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class FileSystem:
    """The file system of the machine."""

    def create_file(self, path: Path, size_bytes: int, reserved_bytes: int) -> None:
        """Create a zero-filled file whose first ``reserved_bytes`` have blocks.

        Raises OSError if it can't; nothing is left then.
        """
        make_directories(path.parent)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
        try:
            with naming(path):
                os.ftruncate(fd, size_bytes)
                if reserved_bytes:
                    os.posix_fallocate(fd, 0, reserved_bytes)
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(fd)

    def make_directory(self, path: Path) -> None:
        """Make a directory in one that is there, or do nothing if it exists."""
        path.mkdir(DIRECTORY_MODE, exist_ok=True)

    def reserve(self, path: Path, start_bytes: int, size_bytes: int) -> None:
        """Give a stretch of an existing file its blocks; what is there already stays as it is."""
        fd = os.open(path, os.O_RDWR)
        try:
            with naming(path):
                os.posix_fallocate(fd, start_bytes, size_bytes)
        finally:
            os.close(fd)

    def map_file(self, path: Path) -> mmap.mmap:
        """Map a whole file, shared and writable."""
        return _map(path, os.O_RDWR, mmap.ACCESS_WRITE)

    def open_to_write(self, path: Path) -> int:
        """Open a file that is there, to write into it beside its mapping."""
        return os.open(path, os.O_WRONLY)

    def resize(self, path: Path, size_bytes: int) -> None:
        """Cut a file, or lengthen it by zeros."""
        os.truncate(path, size_bytes)

    def replace_head(self, path: Path, data: bytes, size_bytes: int) -> None:
        """Write the first bytes of a small file of fixed size, which is made if it is missing.

        Up to 512 bytes, one disk sector, are there whole or not at all. Durable on return.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            with naming(path):
                if os.fstat(fd).st_size != size_bytes:
                    os.ftruncate(fd, size_bytes)
                os.pwrite(fd, data, 0)
                if not is_thrown_away(path):
                    os.fdatasync(fd)
        finally:
            os.close(fd)

    def write_file(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Write a new file, in a directory that is made if it is missing. Durable on return."""
        make_directories(path.parent)
        with naming(path), path.open("xb") as file:
            file.writelines(pieces)
            file.flush()
            if not is_thrown_away(path):
                os.fdatasync(file.fileno())

    def rename(self, path: Path, target: Path) -> None:
        """Give a file or directory another name, in a directory that is made if it is missing."""
        make_directories(target.parent)
        path.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all in it."""
        shutil.rmtree(path)

    def used_ratio(self, path: Path) -> float:
        """How full the disk of a path is, in hundredths, rounded up; 0 where that has no meaning.

        What only root may write is neither used nor free.
        Java: UtilAll#getDiskPartitionSpaceUsedPercent.
        """
        disk = os.statvfs(path)
        used = disk.f_blocks - disk.f_bfree
        total = used + disk.f_bavail
        return -(-used * 100 // total) / 100 if total else 0.0

    def sync_file(self, path: Path) -> None:
        """Return once all that was written to the file, also through maps, is on the disk."""
        if is_thrown_away(path):
            return
        fd = os.open(path, os.O_RDONLY)
        try:
            with naming(path):
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def sync_directory(self, path: Path) -> None:
        """Return once the names in a directory are on the disk."""
        sync_directory(path)


OS_FILES: Final = FileSystem()


class ReadOnlyFiles(FileSystem):
    """The files of a store that is looked at only, perhaps while a broker has it open.

    Maps can't be written to. What an owner would clean up on the way is left as it is.
    """

    def map_file(self, path: Path) -> mmap.mmap:
        """Map a whole file, shared and read-only."""
        return _map(path, os.O_RDONLY, mmap.ACCESS_READ)

    def remove(self, path: Path) -> None:
        """Leave the file where it is."""

    def resize(self, path: Path, size_bytes: int) -> None:
        """Leave the file as it is."""


class NewNames:
    """Directories below a root in which names may be that are not on the disk yet."""

    def __init__(self, root: Path, fs: FileSystem) -> None:
        self._root = root
        self._fs = fs
        self._grown: set[Path] = set()

    def note(self, directory: Path) -> None:
        """Note that something was made in a directory; those up to the root may be as new."""
        self._grown.add(directory)
        self._grown.update(path for path in directory.parents if path.is_relative_to(self._root))

    def sync(self) -> None:
        """Bring them to the disk; those that an OSError leaves are taken by the next call."""
        for directory in sorted(self._grown, reverse=True):
            if directory.is_dir():  # or it was deleted meanwhile
                self._fs.sync_directory(directory)
            self._grown.discard(directory)


def ensure_directory(fs: FileSystem, path: Path) -> None:
    """Make a directory and those above it where they are missing, durably."""
    if not path.is_dir():
        ensure_directory(fs, path.parent)
        fs.make_directory(path)
        fs.sync_directory(path.parent)


def replace_file(fs: FileSystem, path: Path, pieces: Iterable[bytes]) -> None:
    """Make ``pieces`` the content of a file, old or new at any moment. Durable on return."""
    fresh = path.with_name(f"{path.name}.tmp")
    if fresh.exists():
        fs.remove(fresh)
    fs.write_file(fresh, pieces)
    fs.rename(fresh, path)
    fs.sync_directory(path.parent)


def keep_aside(fs: FileSystem, source: Path, root: Path, directory: Path) -> None:
    """Move something below ``directory``, where it gets the place that it has below ``root``."""
    target = free_path(directory / source.relative_to(root))
    ensure_directory(fs, target.parent)
    fs.rename(source, target)
    fs.sync_directory(target.parent)
    fs.sync_directory(source.parent)
    log.warning("file is kept aside", extra={"path": source, "kept_path": target})


def clear_way(fs: FileSystem, place: Path, root: Path, directory: Path) -> None:
    """Keep aside what is in the place of a directory, or of one between it and ``root``, and is
    none."""
    for path in (*reversed(place.parents), place):
        if path.is_relative_to(root) and os.path.lexists(path) and not path.is_dir():
            keep_aside(fs, path, root, directory)


def _map(path: Path, flags: int, access: int) -> mmap.mmap:
    fd = os.open(path, flags)
    try:
        with naming(path):
            return mmap.mmap(fd, 0, access=access, **_NO_DESCRIPTOR)
    finally:
        os.close(fd)


def unmap(mapped: mmap.mmap) -> None:
    """Let go of a map; one that a reader still views is freed when that reader is done."""
    try:
        mapped.close()
    except BufferError:
        return
