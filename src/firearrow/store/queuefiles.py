"""The ConsumeQueues of a store with ``storeType=default``: each has a directory of files.

The tree is ``consumequeue/TOPIC/QUEUE_ID/``, see ``consumequeue`` for the files.
Source: upstream ``ConsumeQueueStore``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.errors import CorruptStore, StoreError
from firearrow.files import free_path
from firearrow.message.names import is_lmq
from firearrow.store.consumequeue import FileConsumeQueue
from firearrow.store.fs import OS_FILES, FileSystem, NewNames, ensure_directory
from firearrow.store.queues import ENTRY_BYTES, Entries, OnArrivals, QueueRange

log = logging.getLogger(__name__)

_ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])


class FileConsumeQueues:
    """Implements ``ConsumeQueues``; queues come into the table when they are first opened.

    A queue that can't be opened is left out, with the reason logged: one broken queue never keeps
    the others from being served. Until it is mended, nothing is sent to it either.
    """

    def __init__(self, directory: Path, file_size_bytes: int, fs: FileSystem = OS_FILES) -> None:
        self._fs = fs
        self._directory = directory
        self._file_size_bytes = file_size_bytes
        self._by_key: dict[tuple[str, int], FileConsumeQueue] = {}
        self._broken: dict[tuple[str, int], str] = {}
        self._names = NewNames(directory.parent, fs)
        self._left_out: set[tuple[str, int]] = set()

    def load(self) -> None:
        """Open every queue that has files."""
        for path in sorted(self._directory.glob("*/*")):
            if not path.name.isdigit() or not path.is_dir():
                continue
            queue = self._make(path.parent.name, int(path.name))
            try:
                queue.load()
            except StoreError as error:
                log.error("queue %s is left out: %s", path, error)
                self._broken[queue.topic, queue.queue_id] = str(error)
                continue
            self._by_key[queue.topic, queue.queue_id] = queue

    def _make(self, topic: str, queue_id: int) -> FileConsumeQueue:
        directory = self._directory / topic / str(queue_id)
        return FileConsumeQueue(directory, topic, queue_id, self._file_size_bytes, self._fs)

    def find(self, topic: str, queue_id: int) -> FileConsumeQueue | None:
        """The queue, if it was ever opened."""
        return self._by_key.get((topic, queue_id))

    def open(self, topic: str, queue_id: int) -> FileConsumeQueue:
        """The queue; a new one gets its files with its first dispatched message.

        Raises CorruptStore for a queue that was left out.
        """
        queue = self._by_key.get((topic, queue_id))
        if queue is None:
            if (topic, queue_id) in self._broken:
                reason = self._broken[topic, queue_id]
                raise CorruptStore(f"queue {topic}-{queue_id} is left out: {reason}")
            queue = self._by_key[topic, queue_id] = self._make(topic, queue_id)
        return queue

    def put(self, entries: Entries, on_arrivals: OnArrivals, *, complete: bool = False) -> None:
        """Write each run to its queue, see ``ConsumeQueues.put``."""
        rows: npt.NDArray[Any] = np.empty(len(entries.size), _ENTRY)
        rows["physical_offset"] = entries.physical_offset
        rows["size"] = entries.size
        rows["tag_code"] = entries.tag_code
        data = rows.tobytes()
        arrived: list[tuple[FileConsumeQueue, int]] = []
        for topic, queue_id, first, start, end in entries.each_run():
            try:
                queue = self.open(topic, queue_id)
                part = data[start * ENTRY_BYTES : end * ENTRY_BYTES]
                queue.put(first, part, complete=complete)
            except CorruptStore as error:
                self._leave_out(topic, queue_id, error)
                continue
            arrived.append((queue, first))
        on_arrivals(arrived)

    def _leave_out(self, topic: str, queue_id: int, error: CorruptStore) -> None:
        """One broken queue must not keep the others from their messages."""
        if (topic, queue_id) not in self._left_out:
            self._left_out.add((topic, queue_id))
            log.error("a queue gets no further entries, its messages stay in the log: %s", error)

    @property
    def dispatched_offset(self) -> None:
        """None: pages reach the disk in any order."""
        return None

    @property
    def max_physical_offset(self) -> int:
        """The highest record that any queue knows, -1 for none."""
        return max((queue.max_physical_offset for queue in self._by_key.values()), default=-1)

    def last_before(self, physical_offset: int) -> int:
        """The last record before a physical offset, see ``ConsumeQueues.last_before``."""
        return max(
            (queue.last_before(physical_offset) for queue in self._by_key.values()), default=-1
        )

    def ranges(self) -> Iterator[QueueRange]:
        """What each queue has."""
        for (topic, queue_id), queue in self._by_key.items():
            yield QueueRange(topic, queue_id, queue.min_offset, queue.max_offset)

    def light_count(self) -> int:
        """How many light queues there are."""
        return sum(is_lmq(topic) for topic, _ in self._by_key)

    def correct_min(self, log_start_offset: int) -> None:
        """Move each ``min_offset`` to the first message that the log still holds."""
        for queue in self._by_key.values():
            queue.correct_min(log_start_offset)

    def cut(self, log_end_offset: int) -> None:
        """Forget the entries of records at or after a physical offset."""
        for queue in self._by_key.values():
            if queue.max_physical_offset >= log_end_offset:
                queue.cut(log_end_offset)
                self._names.note(queue.segments.directory)

    def delete_expired(self, log_start_offset: int) -> list[Path]:
        """Take the files out of each queue that hold no entry of a record that is still there."""
        gone: list[Path] = []
        for queue in self._by_key.values():
            gone += queue.delete_expired(log_start_offset)
        return gone

    def delete_queues(self, keys: set[tuple[str, int]]) -> None:
        """Forget single queues and delete their files."""
        for key in keys & self._by_key.keys():
            queue = self._by_key.pop(key)
            queue.close()
            if queue.segments.directory.is_dir():
                self._fs.remove_tree(queue.segments.directory)
                self._fs.sync_directory(queue.segments.directory.parent)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues and delete their files."""
        for key in [key for key in self._by_key if key[0] == topic]:
            self._by_key.pop(key).close()
            self._broken.pop(key, None)
        directory = self._directory / topic
        # The name of a topic that was made by a broker leads nowhere else; one of a file might.
        if directory.parent == self._directory and topic not in (".", "..") and directory.is_dir():
            self._fs.remove_tree(directory)
            self._fs.sync_directory(self._directory)

    def set_aside(self, directory: Path) -> set[tuple[str, int]]:
        """Move the files of queues that are left out, see ``ConsumeQueues.set_aside``."""
        aside = self._broken.keys() | self._left_out
        for topic, queue_id in aside:
            queue = self._by_key.pop((topic, queue_id), None)
            if queue is not None:
                queue.close()
            source = self._directory / topic / str(queue_id)
            target = free_path(directory / "consumequeue" / topic / str(queue_id))
            if source.exists():
                ensure_directory(self._fs, target.parent)
                self._fs.rename(source, target)
                self._fs.sync_directory(target.parent)
                self._fs.sync_directory(source.parent)
                log.warning("the files of queue %s-%d are kept in %s", topic, queue_id, target)
        self._broken.clear()
        self._left_out.clear()
        return aside

    def clear(self) -> int:
        """Delete all queues that have messages; return how many."""
        filled = [key for key, queue in self._by_key.items() if queue.max_offset]
        for topic in {topic for topic, _ in filled}:
            self.delete_topic(topic)
        return len(filled)

    def flush(self, least_pages: int) -> None:
        """Bring what was put, and the names of new files, to the disk."""
        for queue in list(self._by_key.values()):
            if queue.flush(least_pages):
                self._names.note(queue.segments.directory)
        self._names.sync()

    def close(self) -> None:
        """Unmap all files."""
        for queue in self._by_key.values():
            queue.close()
        self._by_key.clear()


def batch_topics(root: Path) -> frozenset[str]:
    """The topics of a store with the attribute ``queue.type=BatchCQ`` that have messages.

    A record of theirs may hold several messages, and their queues, in ``batchconsumequeue/``, are
    written by the original only. It does not start where such a topic has a queue of the usual
    kind. Source: upstream ``BatchConsumeQueue``, ``ConsumeQueueStore#queueTypeShouldBe``.
    """
    files = (root / "batchconsumequeue").glob("*/*/[0-9]*")
    return frozenset(path.parent.parent.name for path in files)
