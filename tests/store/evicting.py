"""Files that are on the disk and not in memory."""

import os
from os import fsync  # the real one: tests replace that of the module
from pathlib import Path


def evict(path: Path) -> None:
    """Have the system forget what it keeps of a file, but for pages that somebody has mapped."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fsync(descriptor)  # the system keeps unwritten pages
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
