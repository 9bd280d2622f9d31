"""A store directory as it lies there, read-only: nothing is locked, created or changed.

Sizes of files are taken from the files themselves, so no configuration is needed, and what does not
fit is kept as an oddity for verification to judge: to look at a broken store never fails. The
directory may belong to a running broker; then it is a moving target, of which a caller takes the
end once.

Source of the layout: upstream ``StorePathConfigHelper``, ``MultiPathMappedFileQueue``.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, Self

from firearrow.clock import Clock
from firearrow.errors import StoreError
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.config import StoreConfig
from firearrow.store.segments import NAME_DIGITS

_MAPS_MAX: Final = 512  # a process may have some 65,000; a store may have more queue files
_ROCKSDB_MARK: Final = "CURRENT"

QueueKey = tuple[str, int]


class StoreFile(NamedTuple):
    """A file that is named by the offset of its first byte; ``base`` is that offset."""

    path: Path
    base: int
    size_bytes: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.base + self.size_bytes


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


class Maps:
    """Files mapped read-only, the most recently used ones only."""

    def __init__(self) -> None:
        self._maps: OrderedDict[Path, mmap.mmap | bytes] = OrderedDict()

    def of(self, file: StoreFile) -> mmap.mmap | bytes:
        """The bytes of a file; empty where it is gone or unreadable by now."""
        found = self._maps.get(file.path)
        if found is None:
            found = self._maps[file.path] = _map(file.path)
            if len(self._maps) > _MAPS_MAX:
                _, oldest = self._maps.popitem(last=False)
                _close(oldest)
        else:
            self._maps.move_to_end(file.path)
        return found

    def close(self) -> None:
        """Let go of all maps."""
        while self._maps:
            _close(self._maps.popitem()[1])


def _map(path: Path) -> mmap.mmap | bytes:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        if os.fstat(fd).st_size == 0:
            return b""
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
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


class Layout(NamedTuple):
    """Where a store lies: its root, and the directories of its CommitLog if they are elsewhere.

    ``index_slots`` is the number of hash slots of an IndexFile where the usual ones do not hold,
    ``delay_levels`` the broker's messageDelayLevel.
    """

    root: Path
    log_directories: tuple[Path, ...] = ()
    index_slots: int | None = None
    delay_levels: str = StoreConfig().message_delay_level

    @staticmethod
    def of(
        root: Path,
        commit_log: str | None = None,
        index_slots: int | None = None,
        delay_levels: str | None = None,
    ) -> Layout:
        """Read ``commit_log`` as the key storePathCommitLog: directories separated by commas."""
        given = [Path(part.strip()) for part in (commit_log or "").split(",") if part.strip()]
        levels = delay_levels or StoreConfig().message_delay_level
        return Layout(root, tuple(given), index_slots, levels)


class StoreView:
    """The files of a store. Raises StoreError when the directory holds nothing of a store.

    ``owned`` says that the caller itself holds the store's lock: then nothing moves.
    """

    def __init__(self, layout: Layout, *, owned: bool = False) -> None:
        self.layout = layout
        self.root = root = layout.root
        if not root.is_dir():
            raise StoreError(f"{root} is no directory")
        self.log_directories: Sequence[Path] = layout.log_directories or (root / "commitlog",)
        known = [*self.log_directories, root / "consumequeue", root / "checkpoint", root / "config"]
        if not any(path.exists() for path in known):
            raise StoreError(f"{root} is no store: it has neither commitlog nor consumequeue")
        self.log = list_files(*self.log_directories)
        self.maps = Maps()
        self.holder = None if owned else lock_holder(root / "lock")

    def close(self) -> None:
        """Let go of all maps."""
        self.maps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log_start(self) -> int:
        """The lowest physical offset that the log holds."""
        return self.log.files[0].base if self.log.files else 0

    @property
    def log_file_bytes(self) -> int:
        """Bytes of one CommitLog file."""
        return self.log.file_size_bytes

    @property
    def clean(self) -> bool:
        """Whether the last broker ended in good order, as far as ``abort`` says."""
        return not (self.root / "abort").exists()

    @property
    def live(self) -> bool:
        """Whether a process has the store open."""
        return self.holder is not None

    @property
    def rocksdb_queues(self) -> bool:
        """Whether the queues are kept in RocksDB."""
        return any(
            (self.root / name / _ROCKSDB_MARK).exists()
            for name in ("consumequeue", "consumequeue_rocksdb")
        )

    @cached_property
    def queues(self) -> dict[QueueKey, Directory]:
        """The ConsumeQueues that have files, by topic and queue id."""
        found: dict[QueueKey, Directory] = {}
        if self.rocksdb_queues:
            return found
        for topic in _sorted_children(self.root / "consumequeue"):
            for path in _sorted_children(topic) if topic.is_dir() else ():
                if path.is_dir() and path.name.isascii() and path.name.isdecimal():
                    found[topic.name, int(path.name)] = list_files(path)
        return found

    @cached_property
    def index(self) -> Directory:
        """The IndexFiles, oldest first; ``base`` is the time in their name."""
        return list_files(self.root / "index", digits=17)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint's fields, all zero without one."""
        try:
            return Checkpoint.load(self.root / "checkpoint")
        except OSError:
            return Checkpoint()

    def queue_files(self) -> Iterator[tuple[QueueKey, StoreFile]]:
        """All files of all queues."""
        for key, directory in self.queues.items():
            for file in directory.files:
                yield key, file

    def name_of(self, path: Path) -> str:
        """A path for people: relative to the store where it lies in it."""
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def path_of(self, name: str) -> Path:
        """The path that ``name_of`` gave a name."""
        return self.root / name

    def log_bytes(self, physical_offset: int, size: int) -> bytes:
        """Bytes of the log, within one file; fewer, or none, where it does not hold them."""
        file = self.log.find(physical_offset)
        if file is None or size <= 0:
            return b""
        at = physical_offset - file.base
        return bytes(self.maps.of(file)[at : at + size])


def list_files(*directories: Path, digits: int = NAME_DIGITS) -> Directory:
    """List the files of one address space that lies in one or several directories."""
    files: list[StoreFile] = []
    strays: list[Path] = []
    for path in (path for directory in directories for path in _sorted_children(directory)):
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
    """Whether all bytes are zero; to compare is ten times as fast as to strip."""
    return data == bytes(len(data))


def _sorted_children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def free_directory(root: Path, purpose: str, clock: Clock) -> Path:
    """A name for a directory that is not there yet, with the time: ``.repair-20261121T034500Z``."""
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    first = root / f".{purpose}-{now:%Y%m%dT%H%M%SZ}"
    names = (first if number == 1 else Path(f"{first}.{number}") for number in count(1))
    return next(name for name in names if not name.exists())


def lock_holder(lock: Path) -> int | None:
    """The pid of the process that holds a store's lock, None if nobody does.

    Asked of the kernel's table: to open the file and close it again would release the lock of a
    store that this process has open itself.
    """
    try:
        inode = str(lock.stat().st_ino)
        table = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    for line in table.splitlines():
        words = line.split()
        if len(words) >= 6 and words[1] == "POSIX" and words[5].rpartition(":")[2] == inode:
            return int(words[4])
    return None
