"""The store's operations on the file system, in one place.

Files are mapped shared and written through their map. A write is in the page cache as soon as the assignment is done,
and so outlives the process. It outlives the machine once ``sync_file`` has returned, and the name of a file once
``sync_directory`` has. A hole in a mapped file would kill the process by SIGBUS when the disk is full. So blocks are
reserved (``posix_fallocate``) before anything is written there, and a full disk is an OSError that the caller can
answer.

Everything that makes, changes, syncs or removes a file goes through a ``FileSystem``, which is a constructor argument
at every level: ``firearrow.testing.fs`` has one that loses power.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from firearrow.errors import naming
from firearrow.files import (
    DIRECTORY_MODE,
    FILE_MODE,
    SECTOR_BYTES,
    free_path,
    is_thrown_away,
    make_directories,
    sync_directory,
)
from firearrow.logs import Log

log: Final = Log(__name__)

# A map needs no descriptor: otherwise each file of very many queues would hold one.
MAP_HAS_DESCRIPTOR: Final = sys.version_info < (3, 13)
_NO_DESCRIPTOR: Final[dict[str, Any]] = {} if MAP_HAS_DESCRIPTOR else {"trackfd": False}

UNREACHABLE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP})
"""Errors that keep a file from being found or opened; they tell nothing about its pages."""

# From 5.17 on, syncfs reports every error that fsync would (since 5.8 for pages, since 5.17 for the rest).
_SYNCFS_LINUX: Final = (5, 17)
# These note a failed write of a page for the whole file system; overlayfs, for example, does not.
_SYNCFS_TYPES: Final = frozenset({"ext3", "ext4", "xfs"})

FOREIGN_BYTES: Final = 64 * 1024
"""Bytes that a slow disk writes in the time that it takes to sync one file."""


class FileSystem:
    """The file system of the machine."""

    many_files: ClassVar[int] = 64
    """Number of files from which on they are not synced one after another, see ``ManyFiles``."""
    sync_threads: ClassVar[int] = 16
    """Number of threads that sync files side by side: the journal of a file system commits for all at once."""

    def create_file(self, path: Path, size_bytes: int, reserved_bytes: int) -> None:
        """Create a zero-filled file whose first ``reserved_bytes`` have blocks.

        Raises OSError if that fails; then no file is left.
        """
        assert 0 <= reserved_bytes <= size_bytes
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
        """Make a directory in an existing one, or do nothing if it exists."""
        path.mkdir(DIRECTORY_MODE, exist_ok=True)

    def reserve(self, path: Path, start_bytes: int, size_bytes: int) -> None:
        """Give a stretch of an existing file its blocks; its content stays as it is."""
        assert start_bytes >= 0
        assert size_bytes > 0, "the system refuses an empty stretch"
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
        """Open an existing file, to write into it beside its mapping."""
        return os.open(path, os.O_WRONLY)

    def resize(self, path: Path, size_bytes: int) -> None:
        """Cut a file, or lengthen it by zeros."""
        os.truncate(path, size_bytes)

    def replace_head(self, path: Path, data: bytes, size_bytes: int) -> None:
        """Write the first bytes of a small file of fixed size, which is made if it is missing.

        A write of up to 512 bytes, one disk sector, is atomic. Durable on return.
        """
        assert len(data) <= SECTOR_BYTES, "a longer write is not atomic"
        assert len(data) <= size_bytes
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
        """Remove a directory and everything in it."""
        shutil.rmtree(path)

    def used_ratio(self, path: Path) -> float:
        """Used share of a path's disk, in hundredths, rounded up; 0 for a file system without blocks.

        The space that only root may write is neither used nor free. Java: UtilAll#getDiskPartitionSpaceUsedPercent.
        """
        disk = os.statvfs(path)
        used = disk.f_blocks - disk.f_bfree
        total = used + disk.f_bavail
        return -(-used * 100 // total) / 100 if total else 0.0

    def sync_file(self, path: Path) -> None:
        """Return once everything that was written to the file, also through maps, is on the disk."""
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
        """Open a directory for ``sync_whole``, which reports failures from now on. None where the machine does not
        report every error that ``sync_file`` would.
        """
        if _SYNCFS is None or is_thrown_away(directory):
            return None
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        if _type_of(descriptor) in _SYNCFS_TYPES:
            return descriptor
        os.close(descriptor)
        return None

    def sync_whole(self, held: int) -> None:
        """Return once everything that was written to the file system of a held directory, and all names there, are on
        the disk.
        """
        assert _SYNCFS is not None, "otherwise nothing is held"
        if _SYNCFS(held):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        if os.fstatvfs(held).f_flag & os.ST_RDONLY:  # after an error it may be read-only: nothing was written
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def unwritten_bytes(self) -> int:
        """Bytes that the machine has yet to write to its disks; 0 where it does not tell."""
        try:
            lines = Path("/proc/meminfo").read_text().splitlines()
        except OSError:
            return 0
        kib = (line.split()[1] for line in lines if line.startswith(("Dirty:", "Writeback:")))
        return 1024 * sum(map(int, kib))

    def let_go(self, held: int) -> None:
        """Close a directory that ``hold_whole`` has opened."""
        os.close(held)


OS_FILES: Final = FileSystem()


class ReadOnlyFiles(FileSystem):
    """The files of a store that is only read, perhaps while a broker has it open.

    Maps can't be written to. Files that an owner would clean up stay as they are.
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

    Syncing files one after another takes a commit of the file system's journal for each: 3.5 ms on a usual disk, so 35
    s for ten thousand queues. Large numbers are synced with the whole file system in one call (``syncfs``). That also
    waits for the writes of other processes. So it is done only while the machine has no more to write than the files
    would have taken (`FOREIGN_BYTES`). Otherwise, and where the call is missing, threads sync the files side by side.
    An error of the call may concern any file of the file system, and is reported once: from then on each file is synced
    separately.
    """

    def __init__(self, root: Path, fs: FileSystem) -> None:
        self._root = root
        self._fs = fs
        self._held: int | None = None
        self._device = -1

    def open(self) -> None:
        """Begin to collect failures: the next sync reports them."""
        self.close()
        with suppress(FileNotFoundError):
            self._device = self._root.stat().st_dev
            self._held = self._fs.hold_whole(self._root)

    def close(self) -> None:
        """Release the file system."""
        if self._held is not None:
            self._fs.let_go(self._held)
            self._held = None

    def sync_files(self, paths: Sequence[Path]) -> dict[Path, OSError]:
        """Return once everything that was written to some files is on the disk. The result has the unreachable files
        with their errors; any other OSError is raised.
        """
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
        """Sync the file system, if that is faster; return the files that must still be synced separately.

        These are the missing files, so that their errors are reported, and the ones on another file system.
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
    """Type of the file system that an open file is on; empty where that is unknown."""
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
    """Directories below a root that may hold names that are not on the disk yet."""

    def __init__(self, root: Path, many: ManyFiles) -> None:
        self._root = str(root)
        self._many = many
        self._grown: set[str] = set()

    def note(self, directory: Path) -> None:
        """Note that something was made in a directory; the directories up to the root may also be new."""
        grown, name = self._grown, str(directory)
        assert name.startswith(self._root), "the directory is below the root"
        while name not in grown and name.startswith(self._root):
            grown.add(name)
            name = name.rpartition("/")[0]

    def sync(self) -> None:
        """Sync the noted directories; after an OSError the next call syncs the rest."""
        grown = sorted(self._grown, reverse=True)
        self._grown.difference_update(grown)  # names that are made from now on need another sync
        try:
            present = [path for path in map(Path, grown) if path.is_dir()]  # otherwise it was deleted
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
    """Make a directory and those above it if they are missing, durably."""
    if not path.is_dir():
        ensure_directory(fs, path.parent)
        fs.make_directory(path)
        fs.sync_directory(path.parent)


def replace_file(fs: FileSystem, path: Path, pieces: Iterable[bytes]) -> None:
    """Make ``pieces`` the content of a file, which is old or new at any moment. Durable on return."""
    fresh = path.with_name(f"{path.name}.tmp")
    if fresh.exists():
        fs.remove(fresh)
    fs.write_file(fresh, pieces)
    fs.rename(fresh, path)
    fs.sync_directory(path.parent)


def keep_aside(fs: FileSystem, source: Path, root: Path, directory: Path) -> None:
    """Move something below ``directory``, to the same relative path that it has below ``root``."""
    target = free_path(directory / source.relative_to(root))
    ensure_directory(fs, target.parent)
    fs.rename(source, target)
    fs.sync_directory(target.parent)
    fs.sync_directory(source.parent)
    log.warning("file is kept aside", extra={"path": source, "kept_path": target})


def clear_way(fs: FileSystem, place: Path, root: Path, directory: Path) -> None:
    """Keep aside anything that is no directory in the place of a directory, or of one between it and ``root``."""
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
    """Close a map; if a reader still views it, it is freed when that reader is done."""
    try:
        mapped.close()
    except BufferError:
        return
