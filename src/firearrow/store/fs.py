"""What the store asks of the file system, in one place.

Files are mapped shared and written through their map: a write is in the page cache, and so outlives
the process, as soon as the assignment is done; it outlives the machine once ``sync_file`` has
returned. A hole in a mapped file would kill the process by SIGBUS when the disk is full, so blocks
are reserved (``posix_fallocate``) before anything is written there, and a full disk is an OSError
that the caller can answer.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def create_file(path: Path, size_bytes: int, reserved_bytes: int) -> None:
    """Create a zero-filled file whose first ``reserved_bytes`` have blocks; OSError if it can't."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.ftruncate(fd, size_bytes)
        if reserved_bytes:
            os.posix_fallocate(fd, 0, reserved_bytes)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(fd)


def reserve(path: Path, start_bytes: int, size_bytes: int) -> None:
    """Give a stretch of an existing file its blocks; what is there already stays as it is."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(fd, start_bytes, size_bytes)
    finally:
        os.close(fd)


def map_file(path: Path, *, writable: bool = True) -> mmap.mmap:
    """Map a whole file, shared."""
    fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return mmap.mmap(fd, 0, access=access)
    finally:
        os.close(fd)


def unmap(mapped: mmap.mmap) -> None:
    """Let go of a map; one that a reader still views is freed when that reader is done."""
    try:
        mapped.close()
    except BufferError:
        return


def sync_file(path: Path) -> None:
    """Return once all that was written to the file, also through maps, is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Return once the names in a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
