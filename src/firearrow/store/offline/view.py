"""A store directory as it is, read-only: nothing is locked, created or changed.

The sizes of files come from the files themselves, so no configuration is needed. Files that do not fit are kept as
strays, and verification judges them: looking at a broken store never fails. The directory may belong to a running
broker. Then it is a moving target, and a caller reads its end once.

Source of the layout: RocketMQ's ``StorePathConfigHelper``, ``MultiPathMappedFileQueue``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from firearrow import state
from firearrow.clock import Clock
from firearrow.errors import CorruptStore, FirearrowError, StoreError
from firearrow.state import PARTS, TOPICS, StatePart, has_database, object_of, stored_state, table_of
from firearrow.store import inventory
from firearrow.store.batchqueue import DIRECTORY as BATCH_DIRECTORY
from firearrow.store.batchqueue import UNIT_BYTES
from firearrow.store.config import StoreConfig
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.entries import QueueKey, StoredQueue, entry_at
from firearrow.store.reading.filequeues import FileQueue
from firearrow.store.reading.queues import DIRECTORY, FileQueues, queue_directories
from firearrow.store.reading.rocksqueues import DIRECTORIES, RocksQueue, RocksQueues, database_directory
from firearrow.store.reading.storage import (
    Correction,
    Directory,
    LocalStorage,
    Maps,
    StoreFile,
    corrections_by_path,
    list_files,
)
from firearrow.store.reading.store import StoreFiles

_ROCKSDB_FILES: Final = ("MANIFEST-*", "OPTIONS-*", "IDENTITY", "*.sst")


class Layout(NamedTuple):
    """Paths of a store: its root, and the directories of its CommitLog if they are elsewhere.

    ``index_slots`` is the number of hash slots of an IndexFile if it is not the usual one, ``delay_levels`` the
    broker's messageDelayLevel. ``corrections`` are bytes to read in place of the log's, see ``restoring``. ``made_as``
    is the broker's configuration for the files that it makes: None where it is not known.
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


class StoreView(StoreFiles[LocalStorage]):
    """The files of a store. Raises StoreError when the directory holds no part of a store.

    ``owned`` says that the caller itself holds the store's lock: then nothing moves.
    """

    def __init__(self, layout: Layout, *, owned: bool = False) -> None:
        self.layout = layout
        root = layout.root
        self.root: Final = root
        if not root.is_dir():
            raise StoreError(f"{root} is not a directory")
        self.log_directories: Sequence[Path] = layout.log_directories or (root / "commitlog",)
        known = [*self.log_directories, root / "consumequeue", root / "checkpoint", root / "config"]
        if not any(path.exists() for path in known):
            raise StoreError(f"{root} is not a store: it has neither commitlog nor consumequeue")
        super().__init__(LocalStorage(str(root), tolerant=True), [self._name(path) for path in self.log_directories])
        self.maps: Final = Maps(self.storage, corrections_by_path(self.log.files, layout.corrections))
        self.holder: int | None = None if owned else lock_holder(root / "lock")

    def close(self) -> None:
        """Release all maps and databases."""
        self.maps.close()
        if "queues" in self.__dict__ and isinstance(self.queues, RocksQueues):
            self.queues.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_file(self, base: int) -> StoreFile | None:
        """The CommitLog file that begins at an offset."""
        return next((file for file in self.log.files if file.base == base), None)

    @property
    def log_file_bytes(self) -> int:
        """Bytes of one CommitLog file."""
        return self.log.file_size_bytes

    @property
    def clean(self) -> bool:
        """Tell whether the last broker stopped in good order, according to ``abort``."""
        return not self.is_open

    @cached_property
    def closed_without(self) -> Callable[[QueueKey], bool]:
        """Make a test whether a queue in files did not exist when the store was closed."""
        noted = inventory.load(self.root)
        had = None if noted is None else {key for key, _, _ in noted.each_queue()}
        return lambda key: had is not None and key not in had

    @property
    def live(self) -> bool:
        """Tell whether a process has the store open."""
        return self.holder is not None

    @cached_property
    def rocks_directory(self) -> Path | None:
        """The directory of the database with the queues; None where they have files.

        A store has both where its broker has changed ``storeType``. The current one counts: according to the broker's
        file, otherwise the one that is further in the log.
        """
        name = database_directory(self.root.joinpath)
        if name is None:
            return None
        files = list(self._queues_in_files().values())
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
        """The directory of the database that held the queues before it was deleted."""
        if self.rocks_directory is not None:
            return None
        made_as = self.layout.made_as
        if made_as is not None and made_as.store_type == "defaultRocksDB":
            return self.root / made_as.rocks_queue_paths[0].name
        for name in DIRECTORIES:
            if any(any((self.root / name).glob(pattern)) for pattern in _ROCKSDB_FILES):
                return self.root / name
        if made_as is not None or any(queue_directories(self.storage, DIRECTORY)):
            return None
        # Java: only with storeType=defaultRocksDB are topics, groups and offsets in databases.
        kept = any(has_database(self.root / "config", part) for part in PARTS.values())
        return self.root / DIRECTORIES[0] if kept else None

    @property
    def database(self) -> Path | None:
        """The directory of the database that holds, or held, the queues; None for files."""
        return self.rocks_directory or self.lost_database

    @cached_property
    def queues(self) -> RocksQueues | FileQueues:
        """The ConsumeQueues, by topic and queue id.

        Raises ConfigError where they are in RocksDB and its package is missing.
        """
        if self.rocks_directory is not None:
            return RocksQueues.at(self.rocks_directory)
        return self._queues_in_files(self.topics_with_batches if self.database is None else frozenset())

    def _queues_in_files(self, topics_with_batches: frozenset[str] = frozenset()) -> FileQueues:
        return FileQueues(self.storage, topics_with_batches, self.maps.of, self.storage.data_end)

    @cached_property
    def file_queues(self) -> dict[QueueKey, Directory]:
        """The files of usual ConsumeQueues, whether these count or not; none where the queues are in RocksDB."""
        return self._directories(DIRECTORY)

    @cached_property
    def batch_queues(self) -> dict[QueueKey, Directory]:
        """The files of queues of batches, whether these count or not."""
        return self._directories(BATCH_DIRECTORY)

    def _directories(self, home: str) -> dict[QueueKey, Directory]:
        if self.rocks_directory is not None:
            return {}
        return {key: list_files(self.storage, path) for key, path in queue_directories(self.storage, home)}

    @property
    def entry_bytes(self) -> int:
        """Bytes of a queue entry."""
        return FileQueue.entry_bytes if self.rocks_directory is None else RocksQueue.entry_bytes

    @property
    def dispatched_offset(self) -> int:
        """The log offset before which the next start dispatches nothing, though queues may lack entries."""
        return self.queues.dispatched_offset if isinstance(self.queues, RocksQueues) else 0

    def place_of_entry(self, queue: StoredQueue | None, queue_offset: int) -> tuple[str | None, int | None]:
        """The name of the file or database that holds a queue entry, and the byte in a file."""
        if isinstance(queue, FileQueue | BatchQueue):
            at = queue_offset * queue.entry_bytes
            if isinstance(queue, BatchQueue):
                at = queue.number_of(queue_offset) * UNIT_BYTES
            file = queue.directory.find(at)
            return (file.path, at - file.base) if file else (None, None)
        return (self.name_of(self.rocks_directory) if self.rocks_directory else None), None

    @property
    def queue_files_bytes(self) -> int:
        """Bytes of the files of queues, or of their database."""
        if self.rocks_directory is not None:
            return sum(entry.size_bytes for entry in self.storage.entries(self.name_of(self.rocks_directory)))
        directories = [*self.file_queues.values(), *self.batch_queues.values()]
        return sum(file.size_bytes for directory in directories for file in directory.files)

    @cached_property
    def batch_topics(self) -> frozenset[str]:
        """The topics whose queues are of batches: by their files, or by their attribute."""
        if self.database is None and isinstance(self.queues, FileQueues):
            return self.queues.batch_topics
        return frozenset()

    @cached_property
    def topics_with_batches(self) -> frozenset[str]:
        """The topics with the attribute ``queue.type=BatchCQ``."""
        return topics_with_batches(self.root / "config")

    def name_of(self, path: Path) -> str:
        """A path as its ``StoreFile`` has it: relative to the store where it is inside."""
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def _name(self, directory: Path) -> str:
        return self.name_of(directory) if directory.is_relative_to(self.root) else str(directory.absolute())

    def path_of(self, name: str) -> Path:
        """The path for a name of ``name_of``."""
        return self.root / name

    def log_bytes(self, physical_offset: int, size: int) -> bytes:
        """Bytes of the log, within one file; fewer, or none, where it does not hold them."""
        file = self.log.find(physical_offset)
        if file is None or size <= 0:
            return b""
        at = physical_offset - file.base
        return bytes(self.maps.of(file)[at : at + size])


def free_directory(root: Path, purpose: str, clock: Clock) -> Path:
    """A free name for a directory, with the time: ``.repair-20261121T034500Z``."""
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    first = root / f".{purpose}-{now:%Y%m%dT%H%M%SZ}"
    names = (first if number == 1 else Path(f"{first}.{number}") for number in count(1))
    return next(name for name in names if not name.exists())


def lock_holder(lock: Path) -> int | None:
    """The pid of the process that holds a store's lock, or its directory; None without one.

    The kernel's table of locks says so: opening the file and closing it again would release the lock of a store that
    this process itself has open.
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


# --- the broker's configuration (`firearrow.state`) ---


def stored_config(directory: Path, part: StatePart) -> dict[str, Any] | str:
    """The content of a part of the state in a configuration directory; or the reason why it can't be read.

    Raises ConfigError where it is a database, and the package for it is missing.
    """
    try:
        return stored_state(directory, part)
    except CorruptStore as error:
        return str(error)


def topics_with_batches(directory: Path) -> frozenset[str]:
    """The topics with the attribute ``queue.type=BatchCQ``; none where the table can't be read."""
    return state.topics_with_batches(table_of(stored_config(directory, TOPICS), "topicConfigTable"))


def parse_config(path: Path) -> dict[str, Any] | str:
    """The content of a configuration file itself, or the reason why it can't be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return str(error)
    if not data:
        return "it is empty"
    try:
        return object_of(data)
    except (FirearrowError, ValueError) as error:
        return str(error) if data.strip(b"\0") else "all its bytes are zero"
