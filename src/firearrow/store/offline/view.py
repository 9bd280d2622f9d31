"""A store directory as it is, read-only: nothing is locked, created or changed.

Sizes of files are taken from the files themselves, so no configuration is needed, and what does not
fit is kept as an oddity for verification to judge: to look at a broken store never fails. The
directory may belong to a running broker; then it is a moving target, of which a caller takes the
end once.

Source of the layout: upstream ``StorePathConfigHelper``, ``MultiPathMappedFileQueue``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, Self

from firearrow.clock import Clock
from firearrow.errors import StoreError
from firearrow.state import PARTS, has_database
from firearrow.store import inventory
from firearrow.store.batchqueue import DIRECTORY as BATCH_DIRECTORY
from firearrow.store.batchqueue import UNIT_BYTES
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.config import StoreConfig
from firearrow.store.index import NAME_DIGITS
from firearrow.store.offline.batchstored import StoredBatchQueue
from firearrow.store.offline.settings import topics_with_batches
from firearrow.store.offline.stored import StoredFileQueue
from firearrow.store.queuefiles import batch_topics
from firearrow.store.snapshot.entries import QueueKey, StoredQueue, entry_at
from firearrow.store.snapshot.indexrows import DIRECTORY as INDEX_DIRECTORY
from firearrow.store.snapshot.mapped import (
    Correction,
    Directory,
    Maps,
    StoreFile,
    corrections_by_path,
    list_files,
    sorted_children,
)
from firearrow.store.snapshot.rocksrows import DIRECTORIES, RocksQueue, RocksQueues, database_directory

_ROCKSDB_FILES: Final = ("MANIFEST-*", "OPTIONS-*", "IDENTITY", "*.sst")


class Layout(NamedTuple):
    """Where a store is: its root, and the directories of its CommitLog if they are elsewhere.

    ``index_slots`` is the number of hash slots of an IndexFile where the usual ones do not hold,
    ``delay_levels`` the broker's messageDelayLevel. ``corrections`` are bytes that are read in
    place of those in the log, see ``restoring``. ``made_as`` is how the broker makes files: None
    where its configuration is not known.
    """

    root: Path
    log_directories: tuple[Path, ...] = ()
    index_slots: int | None = None
    delay_levels: str = StoreConfig().message_delay_level
    corrections: tuple[Correction, ...] = ()
    made_as: StoreConfig | None = None

    @staticmethod
    def of(
        root: Path,
        commit_log: str | None = None,
        index_slots: int | None = None,
        delay_levels: str | None = None,
        made_as: StoreConfig | None = None,
    ) -> Layout:
        """Read ``commit_log`` as the key storePathCommitLog: directories separated by commas."""
        given = [Path(part.strip()) for part in (commit_log or "").split(",") if part.strip()]
        levels = delay_levels or StoreConfig().message_delay_level
        return Layout(root, tuple(given), index_slots, levels, made_as=made_as)


class StoreView:
    """The files of a store. Raises StoreError when the directory holds nothing of a store.

    ``owned`` says that the caller itself holds the store's lock: then nothing moves.
    """

    def __init__(self, layout: Layout, *, owned: bool = False) -> None:
        self.layout = layout
        self.root = root = layout.root
        if not root.is_dir():
            raise StoreError(f"{root} is not a directory")
        self.log_directories: Sequence[Path] = layout.log_directories or (root / "commitlog",)
        known = [*self.log_directories, root / "consumequeue", root / "checkpoint", root / "config"]
        if not any(path.exists() for path in known):
            raise StoreError(f"{root} is not a store: it has neither commitlog nor consumequeue")
        self.log = list_files(*self.log_directories)
        self.maps = Maps(corrections_by_path(self.log.files, layout.corrections))
        self._names: dict[Path, str] = {}
        self.holder = None if owned else lock_holder(root / "lock")

    def close(self) -> None:
        """Let go of all maps and databases."""
        self.maps.close()
        if "queues" in self.__dict__ and isinstance(self.queues, RocksQueues):
            self.queues.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log_start(self) -> int:
        """The lowest physical offset that the log holds."""
        return self.log.files[0].base if self.log.files else 0

    @property
    def log_end(self) -> int:
        """The physical offset behind its last file."""
        return self.log.files[-1].end if self.log.files else 0

    def log_file(self, base: int) -> StoreFile | None:
        """The CommitLog file that begins at an offset."""
        return next((file for file in self.log.files if file.base == base), None)

    @property
    def log_file_bytes(self) -> int:
        """Bytes of one CommitLog file."""
        return self.log.file_size_bytes

    @property
    def clean(self) -> bool:
        """Tell whether the last broker ended in good order, as far as ``abort`` says."""
        return not (self.root / "abort").exists()

    @cached_property
    def closed_without(self) -> Callable[[QueueKey], bool]:
        """Tells of a queue in files whether there was none of it when the store was closed."""
        noted = inventory.load(self.root)
        had = None if noted is None else {key for key, _, _ in noted.each_queue()}
        return lambda key: had is not None and key not in had

    @property
    def live(self) -> bool:
        """Tell whether a process has the store open."""
        return self.holder is not None

    @cached_property
    def rocks_directory(self) -> Path | None:
        """The directory of the database that the queues are kept in; None where they have files.

        A store has both where its broker has changed ``storeType``. The one that goes on counts:
        as the broker's file says, else the one that is further in the log.
        """
        name = database_directory(self.root.joinpath)
        if name is None:
            return None
        files = list(self._stored_file_queues().values())
        made_as = self.layout.made_as
        if made_as is None:
            with closing(RocksQueues.at(self.root / name)) as database:
                dispatched = database.dispatched_offset
            ends = (entry_at(queue, queue.end - 1)[0] for queue in files if queue.end)
            files_go_on = any(physical_offset >= dispatched for physical_offset in ends)
        else:
            files_go_on = bool(files) and made_as.store_type == "default"
        return None if files_go_on else self.root / name

    @cached_property
    def lost_database(self) -> Path | None:
        """The directory of the database that the queues were kept in before it was deleted."""
        if self.rocks_directory is not None:
            return None
        made_as = self.layout.made_as
        if made_as is not None and made_as.store_type == "defaultRocksDB":
            return self.root / made_as.rocks_queue_paths[0].name
        for name in DIRECTORIES:
            if any(any((self.root / name).glob(pattern)) for pattern in _ROCKSDB_FILES):
                return self.root / name
        if made_as is not None or any(self._queue_directories("consumequeue")):
            return None
        # Java: only with storeType=defaultRocksDB are topics, groups and offsets in databases.
        kept = any(has_database(self.root / "config", part) for part in PARTS.values())
        return self.root / DIRECTORIES[0] if kept else None

    @property
    def database(self) -> Path | None:
        """The directory of the database that the queues are, or were, kept in; None for files."""
        return self.rocks_directory or self.lost_database

    @cached_property
    def queues(self) -> Mapping[QueueKey, StoredQueue]:
        """The ConsumeQueues, by topic and queue id.

        Raises ConfigError where they are in RocksDB and its package is missing.
        """
        if self.rocks_directory is not None:
            return RocksQueues.at(self.rocks_directory)
        of_batches = self.batch_topics  # to have an empty directory is not enough
        usual = {key: queue for key, queue in self.file_queues.items() if key[0] not in of_batches}
        batches = {key: queue for key, queue in self.batch_queues.items() if key[0] in of_batches}
        return {**usual, **batches}

    @cached_property
    def file_queues(self) -> dict[QueueKey, StoredFileQueue]:
        """The ConsumeQueues that have files."""
        return self._stored_file_queues() if self.rocks_directory is None else {}

    def _stored_file_queues(self) -> dict[QueueKey, StoredFileQueue]:
        directories = self._queue_directories("consumequeue")
        return {key: StoredFileQueue(self.maps, list_files(path)) for key, path in directories}

    @cached_property
    def batch_queues(self) -> dict[QueueKey, StoredBatchQueue]:
        """The queues of batches, which only stores have whose other queues have files."""
        if self.rocks_directory is not None:
            return {}
        directories = self._queue_directories(BATCH_DIRECTORY)
        return {key: StoredBatchQueue(self.maps, list_files(path)) for key, path in directories}

    def _queue_directories(self, name: str) -> Iterator[tuple[QueueKey, Path]]:
        for topic in sorted_children(self.root / name):
            for path in sorted_children(topic) if topic.is_dir() else ():
                if path.is_dir() and path.name.isascii() and path.name.isdecimal():
                    yield (topic.name, int(path.name)), path

    @property
    def entry_bytes(self) -> int:
        """What a queue entry takes."""
        return StoredFileQueue.entry_bytes if self.rocks_directory is None else RocksQueue.entry_bytes

    @property
    def dispatched_offset(self) -> int:
        """The log offset before which the next start dispatches nothing, whatever queues lack."""
        return self.queues.dispatched_offset if isinstance(self.queues, RocksQueues) else 0

    def place_of_entry(self, queue: StoredQueue | None, queue_offset: int) -> tuple[str | None, int | None]:
        """The name of the file or database that a queue entry is in, and the byte in a file."""
        if isinstance(queue, StoredFileQueue | StoredBatchQueue):
            at = queue_offset * queue.entry_bytes
            if isinstance(queue, StoredBatchQueue):
                at = queue.number_of(queue_offset) * UNIT_BYTES
            file = queue.directory.find(at)
            return (self.name_of(file.path), at - file.base) if file else (None, None)
        return (self.name_of(self.rocks_directory) if self.rocks_directory else None), None

    @property
    def queue_files_bytes(self) -> int:
        """What the files of queues, or of their database, take."""
        if self.rocks_directory is not None:
            return sum(path.stat().st_size for path in sorted_children(self.rocks_directory))
        directories = [queue.directory for queue in self.file_queues.values()]
        directories += [queue.directory for queue in self.batch_queues.values()]
        return sum(file.size_bytes for directory in directories for file in directory.files)

    @cached_property
    def batch_topics(self) -> frozenset[str]:
        """The topics whose queues are of batches: by their files, or by their attribute."""
        if self.database is not None:
            return frozenset()
        return batch_topics(self.root) | self.topics_with_batches

    @cached_property
    def topics_with_batches(self) -> frozenset[str]:
        """The topics with the attribute ``queue.type=BatchCQ``."""
        return topics_with_batches(self.root / "config")

    @cached_property
    def index(self) -> Directory:
        """The IndexFiles, oldest first; ``base`` is the time in their name."""
        return list_files(self.root / INDEX_DIRECTORY, digits=NAME_DIGITS)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint's fields, all zero without one."""
        try:
            return Checkpoint.load(self.root / "checkpoint")
        except OSError:
            return Checkpoint()

    def name_of(self, path: Path) -> str:
        """A path for people: relative to the store where it is in it."""
        name = self._names.get(path)
        if name is None:
            name = str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)
            self._names[path] = name
        return name

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


def free_directory(root: Path, purpose: str, clock: Clock) -> Path:
    """A name for a directory that is not there yet, with the time: ``.repair-20261121T034500Z``."""
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    first = root / f".{purpose}-{now:%Y%m%dT%H%M%SZ}"
    names = (first if number == 1 else Path(f"{first}.{number}") for number in count(1))
    return next(name for name in names if not name.exists())


def lock_holder(lock: Path) -> int | None:
    """The pid of the process that holds a store's lock, or its directory; None if nobody does.

    Asked of the kernel's table: to open the file and close it again would release the lock of a
    store that this process has open itself.
    """
    held = {
        (kind, str(path.stat().st_ino)) for kind, path in (("POSIX", lock), ("FLOCK", lock.parent)) if path.exists()
    }
    try:
        table = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    for line in table.splitlines():
        words = line.split()
        if len(words) >= 6 and (words[1], words[5].rpartition(":")[2]) in held:
            return int(words[4])
    return None
