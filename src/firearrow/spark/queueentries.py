"""The ConsumeQueues of a store in files: which there are, and what they lack.

What the log has behind all of them is laid over by ``undispatched``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Final, Protocol

from firearrow.client.queues import Span
from firearrow.spark.storage import NumberedFile, Storage, WholeFiles, numbered_files
from firearrow.state import open_database
from firearrow.store import rocksformat
from firearrow.store.batchqueue import DIRECTORY
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.queues import ENTRY_BYTES
from firearrow.store.snapshot.batchunits import BatchQueue
from firearrow.store.snapshot.entries import Queue, QueueKey
from firearrow.store.snapshot.entryfiles import FileQueue
from firearrow.store.snapshot.files import Files
from firearrow.store.snapshot.rocksrows import RocksQueues, database_directory
from firearrow.store.snapshot.undispatched import dispatched_offset

_DIRECTORIES: Final = ("consumequeue", DIRECTORY)


class Queues(Protocol):
    """All queues of a store."""

    def keys_of(self, topics: Collection[str] | None) -> Iterator[QueueKey]:
        """Topic and queue id of each, or of those of some topics, in order."""

    def open(self, key: QueueKey) -> Queue:
        """One of them; an empty one if there is none of that name."""


def _gaps(files: list[NumberedFile]) -> list[tuple[NumberedFile, NumberedFile]]:
    """The files before and behind each gap."""
    return [(before, after) for before, after in pairwise(files) if before.end < after.base]


class FileQueues:
    """Queues in files: ``consumequeue/TOPIC/QUEUE/``, of batches ``batchconsumequeue/...``.

    Of which kind a topic's are is told as to a broker, see ``queuefiles``; others don't count.
    """

    def __init__(self, storage: Storage, topics_with_batches: frozenset[str] = frozenset()) -> None:
        """``topics_with_batches`` are those with the attribute ``queue.type=BatchCQ``."""
        self._storage = storage
        self._with_attribute = topics_with_batches
        self._listed: dict[QueueKey, tuple[list[NumberedFile], bool]] = {}

    @property
    def dispatched_offset(self) -> int:
        """See ``undispatched.dispatched_offset``."""
        try:
            checkpoint = Checkpoint.of(self._storage.read("checkpoint"))
        except FileNotFoundError:
            checkpoint = Checkpoint()
        return dispatched_offset(checkpoint, map(self.open, self.keys_of(None)))

    def keys_of(self, topics: Collection[str] | None) -> Iterator[QueueKey]:
        """Topic and queue id of each, or of those of some topics, in order."""
        if topics is None:
            found = [entry for name in _DIRECTORIES for entry in self._storage.entries(name)]
            topics = {entry.name for entry in found if not entry.is_file}
        for topic in sorted(topics):
            names = {entry.name for entry in self._storage.entries(self._home(topic))}
            numbers = [int(name) for name in names if name.isascii() and name.isdecimal()]
            yield from ((topic, number) for number in sorted(numbers))

    def cut(self, keys: Iterable[QueueKey], growing: bool) -> list[QueueKey]:
        """Which queues have lost the end of their last file: all files have the same size, which is
        a multiple of an entry's, and a last one is full only if it is as large as others.

        While a store is ``growing``, an empty file is a new one: a broker gives it its size after
        its name.
        """
        lasts = {
            key: files[-1]
            for key in keys
            for files, of_batches in [self._files(key)]
            if files and not of_batches and (files[-1].size_bytes or not growing)
        }
        usual = max((file.size_bytes for file in lasts.values()), default=0)
        return [
            key
            for key, file in lasts.items()
            if file.size_bytes % ENTRY_BYTES
            or (file.size_bytes < usual and self.open(key).span[1] * ENTRY_BYTES == file.end)
        ]

    def holes(self, key: QueueKey) -> list[Span]:
        """The queue offsets of which a file is missing or cut between two others."""
        files, of_batches = self._files(key)
        if not of_batches:
            return [Span(one.end // ENTRY_BYTES, other.base // ENTRY_BYTES) for one, other in _gaps(files)]
        return [Span(self._batches([one]).end, self._batches([other]).first) for one, other in _gaps(files)]

    def begin(self, key: QueueKey) -> int | None:
        """The queue offset with which the first file of a queue begins; None if it has none, or is
        of batches."""
        files, of_batches = self._files(key)
        return files[0].base // ENTRY_BYTES if files and not of_batches else None

    @property
    def batch_topics(self) -> frozenset[str]:
        """The topics whose queues are of batches: by their files, or by their attribute."""
        return self._with_batch_files | self._with_attribute

    def of_other_kind(self) -> dict[QueueKey, int]:
        """The usual queues of topics that are to have queues of batches and have none; and how many
        messages each holds."""
        found: dict[QueueKey, int] = {}
        usual = FileQueues(self._storage)
        for key in usual.keys_of(self._with_attribute - self._with_batch_files):
            first, end = usual.open(key).span
            if end > first:
                found[key] = end - first
        return found

    @cached_property
    def _with_batch_files(self) -> frozenset[str]:
        storage = self._storage
        homes = (f"{DIRECTORY}/{entry.name}" for entry in storage.entries(DIRECTORY))
        return frozenset(
            home.rpartition("/")[2]
            for home in homes
            for queue in storage.entries(home)
            if numbered_files(storage, f"{home}/{queue.name}")
        )

    def _home(self, topic: str) -> str:
        return f"{DIRECTORY if topic in self.batch_topics else 'consumequeue'}/{topic}"

    def _files(self, key: QueueKey) -> tuple[list[NumberedFile], bool]:
        """The files of a queue, and whether they are of batches."""
        if key not in self._listed:
            found = self._list(key)
            if _gaps(found[0]):  # retention may have deleted the first ones meanwhile
                found = self._list(key)
            self._listed[key] = found
        return self._listed[key]

    def _list(self, key: QueueKey) -> tuple[list[NumberedFile], bool]:
        files = numbered_files(self._storage, f"{self._home(key[0])}/{key[1]}")
        return files, key[0] in self.batch_topics

    def open(self, key: QueueKey) -> Queue:
        """One of them; an empty one if there is none of that name."""
        files, of_batches = self._files(key)
        return self._batches(files) if of_batches else FileQueue(self._read(files))

    def _batches(self, files: list[NumberedFile]) -> BatchQueue:
        return BatchQueue(self._read(files))

    def _read(self, files: list[NumberedFile]) -> Files:
        return Files(files, WholeFiles(self._storage).of)


def rocks_queues(storage: Storage) -> RocksQueues | None:
    """The queues of a store if they are in a database."""
    directory = database_directory(storage.place)
    if directory is None:
        return None
    families = (rocksformat.ENTRIES, rocksformat.OFFSETS)
    return RocksQueues(open_database(storage.place(directory), families))
