"""The ConsumeQueues of a store in files, and their missing parts.

``undispatched`` adds the messages that the log has after them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final

from firearrow.state import open_database
from firearrow.store import rocksformat
from firearrow.store.batchqueue import DIRECTORY as BATCH_DIRECTORY
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.queues import ENTRY_BYTES
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.entries import QueueKey, Span
from firearrow.store.reading.filequeues import FileQueue
from firearrow.store.reading.rocksqueues import RocksQueues, database_directory
from firearrow.store.reading.storage import Buffer, Directory, Files, Storage, StoreFile, WholeFiles, list_files
from firearrow.store.reading.undispatched import dispatched_offset

DIRECTORY: Final = "consumequeue"


def queue_directories(
    storage: Storage, home: str, topics: Collection[str] | None = None
) -> Iterator[tuple[QueueKey, str]]:
    """The queues with a directory below ``consumequeue`` or its like, in order, or the queues of some topics."""
    if topics is None:
        topics = {entry.name for entry in storage.entries(home) if not entry.is_file}
    for topic in sorted(topics):
        names = (entry.name for entry in storage.entries(f"{home}/{topic}") if not entry.is_file)
        for number in sorted(int(name) for name in names if name.isascii() and name.isdecimal()):
            yield (topic, number), f"{home}/{topic}/{number}"


def read_checkpoint(storage: Storage) -> Checkpoint:
    """The checkpoint of a store, all zero without one."""
    try:
        return Checkpoint.of(storage.read("checkpoint"))
    except OSError:
        return Checkpoint()


def _gaps(files: list[StoreFile]) -> list[tuple[StoreFile, StoreFile]]:
    """The files before and after each gap."""
    return [(before, after) for before, after in pairwise(files) if before.end < after.base]


class FileQueues(Mapping[QueueKey, FileQueue | BatchQueue]):
    """Queues in files: ``consumequeue/TOPIC/QUEUE/``, or ``batchconsumequeue/...`` for queues of batches.

    A topic has queues of one kind, as a broker decides it, see ``queuefiles``; the others don't count.
    """

    def __init__(
        self,
        storage: Storage,
        topics_with_batches: frozenset[str] = frozenset(),
        of: Callable[[StoreFile], Buffer] | None = None,
        data_end: Callable[[StoreFile], int] = lambda file: file.size_bytes,
    ) -> None:
        """Open the queues; ``topics_with_batches`` have the attribute ``queue.type=BatchCQ``.

        ``of`` gives the bytes of a file, by default as they are at the first read. See ``Files`` for ``data_end``.
        """
        self._storage = storage
        self._with_attribute = topics_with_batches
        self._of = of
        self._data_end = data_end
        self._listed: dict[QueueKey, Directory] = {}
        self._opened: dict[QueueKey, FileQueue | BatchQueue] = {}

    @property
    def dispatched_offset(self) -> int:
        """See ``undispatched.dispatched_offset``."""
        return dispatched_offset(read_checkpoint(self._storage), map(self.open, self.keys_of(None)))

    def keys_of(self, topics: Collection[str] | None) -> Iterator[QueueKey]:
        """Topic and queue id of each queue, or of the queues of some topics, in order."""
        if topics is None:
            homes = (self._storage.entries(name) for name in (DIRECTORY, BATCH_DIRECTORY))
            topics = {entry.name for entries in homes for entry in entries if not entry.is_file}
        for topic in sorted(topics):
            for key, _ in queue_directories(self._storage, self._home(topic), [topic]):
                yield key

    # --- as a mapping of the queues that existed at the first look ---

    @cached_property
    def _keys(self) -> dict[QueueKey, None]:
        return dict.fromkeys(self.keys_of(None))

    def __getitem__(self, key: QueueKey) -> FileQueue | BatchQueue:
        if key not in self._opened:
            if key not in self._keys:
                raise KeyError(key)
            self._opened[key] = self.open(key)
        return self._opened[key]

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    # --- missing parts ---

    def cut(self, keys: Iterable[QueueKey], growing: bool) -> list[QueueKey]:
        """The queues that have lost the end of their last file.

        All files have the same size, a multiple of an entry's; a last file is full only if it is as large as others.
        While a store is ``growing``, an empty file is a new one: a broker gives it its size after its name.
        """
        lasts = [
            (key, files[-1])
            for key in keys
            if (files := self.directory(key).files)
            and key[0] not in self.batch_topics
            and (files[-1].size_bytes or not growing)
        ]
        usual = max((file.size_bytes for _, file in lasts), default=0)
        return [
            key
            for key, file in lasts
            if file.size_bytes % ENTRY_BYTES
            or (file.size_bytes < usual and self.open(key).span[1] * ENTRY_BYTES == file.end)
        ]

    def holes(self, key: QueueKey) -> list[Span]:
        """The queue offsets whose file is missing, or cut, between two others."""
        gaps = _gaps(self.directory(key).files)
        if key[0] not in self.batch_topics:
            return [(one.end // ENTRY_BYTES, other.base // ENTRY_BYTES) for one, other in gaps]
        parts = [tuple(BatchQueue(self._read(Directory([file], []))) for file in gap) for gap in gaps]
        return [(before.end, after.first) for before, after in parts]

    def begin(self, key: QueueKey) -> int | None:
        """The first queue offset in the first file of a queue; None without a file, and for batches."""
        files = self.directory(key).files
        return files[0].base // ENTRY_BYTES if files and key[0] not in self.batch_topics else None

    # --- kinds ---

    @cached_property
    def batch_topics(self) -> frozenset[str]:
        """The topics with queues of batches: by their files, or by their attribute."""
        return self._with_batch_files | self._with_attribute

    def of_other_kind(self) -> dict[QueueKey, int]:
        """Count the messages of usual queues whose topics should have queues of batches, and have none."""
        found: dict[QueueKey, int] = {}
        usual = FileQueues(self._storage)
        for key in usual.keys_of(self._with_attribute - self._with_batch_files):
            first, end = usual.open(key).span
            if end > first:
                found[key] = end - first
        return found

    @cached_property
    def _with_batch_files(self) -> frozenset[str]:
        found = queue_directories(self._storage, BATCH_DIRECTORY)
        return frozenset(topic for (topic, _), path in found if list_files(self._storage, path).files)

    def _home(self, topic: str) -> str:
        return BATCH_DIRECTORY if topic in self.batch_topics else DIRECTORY

    # --- queues ---

    def open(self, key: QueueKey) -> FileQueue | BatchQueue:
        """A queue; an empty one if none has that name."""
        files = self._read(self.directory(key))
        return BatchQueue(files) if key[0] in self.batch_topics else FileQueue(files)

    def directory(self, key: QueueKey) -> Directory:
        """The files of a queue, as they were at the first look; nothing is read."""
        if key not in self._listed:
            path = f"{self._home(key[0])}/{key[0]}/{key[1]}"
            found = list_files(self._storage, path)
            if _gaps(found.files):  # retention may just have deleted the first ones
                found = list_files(self._storage, path)
            self._listed[key] = found
        return self._listed[key]

    def _read(self, directory: Directory) -> Files:
        return Files(directory, self._of or WholeFiles(self._storage).of, self._data_end)


def rocks_queues(storage: Storage) -> RocksQueues | None:
    """The queues of a store if they are in a database."""
    directory = database_directory(storage.place)
    if directory is None:
        return None
    families = (rocksformat.ENTRIES, rocksformat.OFFSETS)
    return RocksQueues(open_database(storage.place(directory), families))
