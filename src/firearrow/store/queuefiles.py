"""The ConsumeQueues of a store with ``storeType=default``: each has a directory of files.

The tree is ``consumequeue/TOPIC/QUEUE_ID/``, see ``consumequeue`` for the files. Topics with the
attribute ``queue.type=BatchCQ`` have ``batchconsumequeue/TOPIC/QUEUE_ID/`` instead, see
``batchqueue``. Of which kind a topic is, is settled when its first queue is loaded or made, and
stays so until it is deleted: files of queues of batches say it, else the attribute does. RocketMQ
does not start where files and attribute disagree; here usual queues of such a topic are set aside
and made anew, and queues of batches without the attribute are served.

Source: upstream ``ConsumeQueueStore``, ``#queueTypeShouldBe``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.errors import CorruptStore, StoreError
from firearrow.files import free_path
from firearrow.message.names import is_lmq
from firearrow.store.batchqueue import DIRECTORY, FileBatchQueue, units_of
from firearrow.store.config import BATCH_FILE_BYTES
from firearrow.store.consumequeue import FileConsumeQueue
from firearrow.store.fs import OS_FILES, FileSystem, NewNames, ensure_directory
from firearrow.store.queues import (
    ENTRY_BYTES,
    Entries,
    HasRecord,
    ManyNewQueues,
    OnArrivals,
    QueueRange,
)

log = logging.getLogger(__name__)

_ENTRY: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
AnyQueue = FileConsumeQueue | FileBatchQueue

NEW_QUEUES_MAX: Final = 64
"""Queues that get their first file in one round. Each costs a tenth of a millisecond, a directory
included; a round may be all there is between two reads of a socket."""


def no_topic(_: str) -> bool:
    """What ``wants_batches`` says where no topic has the attribute."""
    return False


class FileConsumeQueues:
    """Implements ``ConsumeQueues``; queues come into the table when they are first opened.

    A queue that can't be opened is left out, with the reason logged: one broken queue never keeps
    the others from being served. Until it is mended, nothing is sent to it either.
    ``wants_batches`` says of a topic whether it has the attribute.
    """

    def __init__(
        self,
        directory: Path,
        file_size_bytes: int,
        fs: FileSystem = OS_FILES,
        *,
        batch_file_bytes: int = BATCH_FILE_BYTES,
        wants_batches: Callable[[str], bool] = no_topic,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._batch_directory = directory.parent / DIRECTORY
        self._file_size_bytes = file_size_bytes
        self._batch_file_bytes = batch_file_bytes
        self._wants_batches = wants_batches
        self._kinds: dict[str, bool] = {}  # by topic that has queues: whether they are of batches
        self._by_key: dict[tuple[str, int], AnyQueue] = {}
        self._broken: dict[tuple[str, int], str] = {}
        self._names = NewNames(directory.parent, fs)
        self._left_out: set[tuple[str, int]] = set()

    def load(self) -> None:
        """Open every queue that has files."""
        for topic in sorted(batch_topics(self._batch_directory.parent)):
            if not self._wants_batches(topic):
                log.warning(
                    "topic %s has queues of batches: RocketMQ does not start before the topic has "
                    "the attribute queue.type=BatchCQ", topic,
                )  # fmt: skip
            self._kinds[topic] = True
        for path in _queue_paths(self._batch_directory):
            if self.is_batch(path.parent.name):  # else it has no files, and nothing to say
                self._load(path)
        for path in _queue_paths(self._directory):
            if self.is_batch(path.parent.name):
                self._break(path, "the topic's queues are of batches (queue.type=BatchCQ)")
            else:
                self._load(path)

    def _load(self, path: Path) -> None:
        queue = self._make(path.parent.name, int(path.name))
        try:
            queue.load()
        except StoreError as error:
            self._break(path, str(error))
        else:
            self._by_key[queue.topic, queue.queue_id] = queue

    def _break(self, path: Path, reason: str) -> None:
        log.error("queue %s is left out: %s", path, reason)
        key = path.parent.name, int(path.name)
        self._broken[key] = reason
        queue = self._by_key.pop(key, None)
        if queue is not None:
            queue.close()

    def is_batch(self, topic: str) -> bool:
        """Whether a topic's queues are such as ``batchqueue`` has."""
        settled = self._kinds.get(topic)
        return self._wants_batches(topic) if settled is None else settled

    def admit_batches(self, topic: str) -> bool:
        """Whether queues of a topic can be of batches, see ``ConsumeQueues.admit_batches``."""
        if self._kinds.get(topic, True):
            return True
        if any(queue.next_offset for queue in self._of_topic(topic).values()):
            return False
        self.delete_topic(topic)
        return True

    def _of_topic(self, topic: str) -> dict[tuple[str, int], AnyQueue]:
        return {key: queue for key, queue in self._by_key.items() if key[0] == topic}

    def _make(self, topic: str, queue_id: int) -> AnyQueue:
        if self._kinds.setdefault(topic, self.is_batch(topic)):
            directory = self._batch_directory / topic / str(queue_id)
            return FileBatchQueue(directory, topic, queue_id, self._batch_file_bytes, self._fs)
        directory = self._directory / topic / str(queue_id)
        return FileConsumeQueue(directory, topic, queue_id, self._file_size_bytes, self._fs)

    def find(self, topic: str, queue_id: int) -> AnyQueue | None:
        """The queue, if it was ever opened."""
        return self._by_key.get((topic, queue_id))

    def open(self, topic: str, queue_id: int) -> AnyQueue:
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
        arrived: list[tuple[AnyQueue, int]] = []
        made = 0
        for topic, queue_id, first, start, end in entries.each_run():
            try:
                queue = self.open(topic, queue_id)
                if not queue.segments.files:
                    if made == NEW_QUEUES_MAX:
                        on_arrivals(arrived)
                        raise ManyNewQueues
                    made += 1
                if isinstance(queue, FileBatchQueue):
                    queue.put(units_of(entries, start, end), complete=complete)
                else:
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

    def cut(self, log_end_offset: int, has_record: HasRecord | None = None) -> None:
        """Forget the entries of later records, see ``ConsumeQueues.cut``."""
        for queue in self._by_key.values():
            if queue.cut(log_end_offset, has_record):
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
        self._left_out -= keys
        left = {topic for topic, _ in self._by_key}
        for topic in {topic for topic, _ in keys} - left:
            self._kinds.pop(topic, None)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues and delete their files."""
        for key, queue in self._of_topic(topic).items():
            del self._by_key[key]
            queue.close()
        self._broken = {key: why for key, why in self._broken.items() if key[0] != topic}
        self._left_out = {key for key in self._left_out if key[0] != topic}
        self._kinds.pop(topic, None)
        for root in (self._directory, self._batch_directory):
            directory = root / topic
            # The name of a topic that was made by a broker leads nowhere else; one of a file might.
            if directory.parent == root and topic not in (".", "..") and directory.is_dir():
                self._fs.remove_tree(directory)
                self._fs.sync_directory(root)

    def set_aside(self, directory: Path) -> set[tuple[str, int]]:
        """Move the files of queues that are left out, see ``ConsumeQueues.set_aside``."""
        aside = self._broken.keys() | self._left_out
        for topic, queue_id in aside:
            queue = self._by_key.pop((topic, queue_id), None)
            if queue is not None:
                queue.close()
            places = [
                root / topic / str(queue_id) for root in (self._directory, self._batch_directory)
            ]
            for source in filter(Path.exists, places):
                target = free_path(directory / source.relative_to(self._directory.parent))
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
        self._kinds.clear()


def _queue_paths(directory: Path) -> list[Path]:
    paths = sorted(directory.glob("*/*"))
    return [path for path in paths if path.name.isdigit() and path.is_dir()]


def batch_topics(root: Path) -> frozenset[str]:
    """The topics of a store that have files of queues of batches (``batchqueue``)."""
    files = (root / DIRECTORY).glob("*/*/[0-9]*")
    return frozenset(path.parent.parent.name for path in files)
