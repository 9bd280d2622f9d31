"""The store's operations on the file system, in one place.

Files are mapped shared and written through their map: a write is in the page cache, and so outlives
the process, as soon as the assignment is done; it outlives the machine once ``sync_file`` has
returned, and the name of a file once ``sync_directory`` has. A hole in a mapped file would kill
the process by SIGBUS when the disk is full, so blocks are reserved (``posix_fallocate``) before
anything is written there, and a full disk is an OSError that the caller can answer.

Everything that makes, changes, syncs or removes a file goes through a ``FileSystem``, which is a
constructor argument all the way down: ``firearrow.testing.fs`` has one that loses power.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

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
MAP_HAS_DESCRIPTOR: Final = sys.version_info < (3, 13)
_NO_DESCRIPTOR: Final[dict[str, Any]] = {} if MAP_HAS_DESCRIPTOR else {"trackfd": False}

UNREACHABLE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP})
"""Errors that keep a file from being found or opened; of its pages they say nothing."""

# From 5.17 on, syncfs says all that fsync would (since 5.8 of pages, since then of the rest).
_SYNCFS_LINUX: Final = (5, 17)
# These note a failed write of a page for the whole file system; overlayfs, for one, does not.
_SYNCFS_TYPES: Final = frozenset({"ext3", "ext4", "xfs"})

FOREIGN_BYTES: Final = 64 * 1024
"""Bytes that a slow disk writes in the time that it takes to sync one file."""


class FileSystem:
    """The file system of the machine."""

    many_files: ClassVar[int] = 64
    """From so many on, files are not synced one after another, see ``ManyFiles``."""
    sync_threads: ClassVar[int] = 16
    """That sync files side by side: the journal of a file system commits for all at once."""

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
        """Give the used share of a path's disk, in hundredths, rounded up; 0 where that has no meaning.

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

    def hold_whole(self, directory: Path) -> int | None:
        """Open a directory for ``sync_whole``, which tells of what fails from here on; None where
        the machine does not tell all that ``sync_file`` would."""
        if _SYNCFS is None or is_thrown_away(directory):
            return None
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        if _type_of(descriptor) in _SYNCFS_TYPES:
            return descriptor
        os.close(descriptor)
        return None

    def sync_whole(self, held: int) -> None:
        """Return once all that was written to the file system of a held directory, and all names
        there, are on the disk."""
        assert _SYNCFS is not None, "else nothing is held"
        if _SYNCFS(held):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        if os.fstatvfs(held).f_flag & os.ST_RDONLY:  # after an error it may be: nothing was written
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def unwritten_bytes(self) -> int:
        """The bytes that the machine has yet to write to its disks; 0 where it does not tell."""
        try:
            lines = Path("/proc/meminfo").read_text().splitlines()
        except OSError:
            return 0
        kib = (line.split()[1] for line in lines if line.startswith(("Dirty:", "Writeback:")))
        return 1024 * sum(map(int, kib))

    def let_go(self, held: int) -> None:
        """Close what ``hold_whole`` has opened."""
        os.close(held)


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


class ManyFiles:
    """Brings files of one store to the disk, also very many at once.

    To sync one file after another is a commit of the file system's journal for each: 3.5 ms on a
    usual disk, so 35 s for ten thousand queues. So many are synced with the whole file system in
    one call (``syncfs``). That waits for what others have written there, too, so it is done only
    while the machine has no more to write than the files would have taken (`FOREIGN_BYTES`). Else,
    and where the call is missing, threads sync the files side by side. An error of the call may be
    about anybody's file, and is told once: from there on each file is asked for its own.
    """

    def __init__(self, root: Path, fs: FileSystem) -> None:
        self._root = root
        self._fs = fs
        self._held: int | None = None
        self._device = -1

    def open(self) -> None:
        """Have what fails from here on be told by the next sync."""
        self.close()
        with suppress(FileNotFoundError):
            self._device = self._root.stat().st_dev
            self._held = self._fs.hold_whole(self._root)

    def close(self) -> None:
        """Let go of the file system."""
        if self._held is not None:
            self._fs.let_go(self._held)
            self._held = None

    def sync_files(self, paths: Sequence[Path]) -> dict[Path, OSError]:
        """Return once all that was written to some files is on the disk; give those that can't be
        reached with the reason. Any other OSError is raised."""
        missing: dict[Path, OSError] = {}

        def sync(path: Path) -> None:
            try:
                self._fs.sync_file(path)
            except OSError as error:
                if error.errno not in UNREACHABLE:
                    raise
                missing[path] = error

        self._each(sync, self._left_by_whole(paths))
        return missing

    def sync_directories(self, paths: Sequence[Path]) -> None:
        """Return once the names in some directories are on the disk."""
        self._each(self._fs.sync_directory, self._left_by_whole(paths))

    def _left_by_whole(self, paths: Sequence[Path]) -> Sequence[Path]:
        """Sync the file system, if that is sooner done; give what has yet to be synced by itself.

        That is what is gone, so that somebody says so, or leads to another file system.
        """
        if not self._synced_whole(len(paths)):
            return paths
        return [path for path in paths if not self._is_there(path)]

    def _is_there(self, path: Path) -> bool:
        try:
            return path.stat().st_dev == self._device
        except OSError:
            return False

    def _synced_whole(self, count: int) -> bool:
        if self._held is None or count < self._fs.many_files:
            return False
        if self._fs.unwritten_bytes() > count * FOREIGN_BYTES:
            return False
        try:
            self._fs.sync_whole(self._held)
        except OSError as error:
            log.warning(
                "file system is not synced as a whole any more: something there can't be written",
                extra={"path": self._root, "error": error},
            )
            self.close()
            return False
        return True

    def _each(self, sync: Callable[[Path], None], paths: Sequence[Path]) -> None:
        if len(paths) < self._fs.many_files or self._fs.sync_threads == 1:
            for path in paths:
                sync(path)
            return
        with ThreadPoolExecutor(self._fs.sync_threads, "firearrow-sync") as threads:
            for _ in threads.map(sync, paths):
                pass


def _syncfs() -> Callable[[int], int] | None:
    release = os.uname().release.split("-")[0].split(".")
    if sys.platform != "linux" or not all(map(str.isdecimal, release[:2])):
        return None
    if tuple(map(int, release[:2])) < _SYNCFS_LINUX:
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError):
        return None
    call.argtypes = (ctypes.c_int,)
    call.restype = ctypes.c_int
    return call


_SYNCFS: Final = _syncfs()


def _type_of(descriptor: int) -> str:
    """The type of the file system that an open file is on; empty where that is not known."""
    device = os.fstat(descriptor).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        of_mount, _, of_system = line.partition(" - ")
        if of_mount.split()[2] == wanted:
            return of_system.split()[0]
    return ""


class NewNames:
    """Directories below a root in which names may be that are not on the disk yet."""

    def __init__(self, root: Path, many: ManyFiles) -> None:
        self._root = str(root)
        self._many = many
        self._grown: set[str] = set()

    def note(self, directory: Path) -> None:
        """Note that something was made in a directory; those up to the root may be as new."""
        grown, name = self._grown, str(directory)
        while name not in grown and name.startswith(self._root):
            grown.add(name)
            name = name.rpartition("/")[0]

    def sync(self) -> None:
        """Bring them to the disk; those that an OSError leaves are taken by the next call."""
        grown = sorted(self._grown, reverse=True)
        self._grown.difference_update(grown)  # what comes to be from here on needs another sync
        try:
            present = [path for path in map(Path, grown) if path.is_dir()]  # or it was deleted
            self._many.sync_directories(present)
        except OSError:
            self._grown.update(grown)
            raise


def names_in(directory: str) -> list[str]:
    """The names in a directory; none where there is no such directory."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        return [entry.name for entry in entries]
    return []


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
