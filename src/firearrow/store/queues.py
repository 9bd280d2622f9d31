"""All ConsumeQueues of a store, by topic and queue id."""

from __future__ import annotations

import logging
from pathlib import Path

from firearrow.errors import CorruptStore, StoreError
from firearrow.store.consumequeue import ConsumeQueue
from firearrow.store.fs import OS_FILES, FileSystem

log = logging.getLogger(__name__)


class ConsumeQueues:
    """The table ``by_key[topic, queue_id]``; queues come into it when they are first written.

    A queue that can't be opened is left out, with the reason logged: one broken queue never keeps
    the others from being served. Until it is mended, nothing is sent to it either.
    """

    def __init__(self, directory: Path, file_size_bytes: int, fs: FileSystem = OS_FILES) -> None:
        self._fs = fs
        self._directory = directory
        self._file_size_bytes = file_size_bytes
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        self._broken: dict[tuple[str, int], str] = {}

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
            self.by_key[queue.topic, queue.queue_id] = queue

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = self._directory / topic / str(queue_id)
        return ConsumeQueue(directory, topic, queue_id, self._file_size_bytes, self._fs)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if any message was ever sent to it."""
        return self.by_key.get((topic, queue_id))

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one gets its files with its first dispatched message.

        Raises CorruptStore for a queue that was left out.
        """
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            if (topic, queue_id) in self._broken:
                reason = self._broken[topic, queue_id]
                raise CorruptStore(f"queue {topic}-{queue_id} is left out: {reason}")
            queue = self.by_key[topic, queue_id] = self._make(topic, queue_id)
        return queue

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """All queues of a topic."""
        return [queue for (name, _), queue in self.by_key.items() if name == topic]

    @property
    def max_physical_offset(self) -> int:
        """The highest record that any queue knows, -1 for none."""
        return max((queue.max_physical_offset for queue in self.by_key.values()), default=-1)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues and delete their files."""
        for queue in self.of_topic(topic):
            del self.by_key[topic, queue.queue_id]
            queue.close()
            self._broken.pop((topic, queue.queue_id), None)
        directory = self._directory / topic
        # The name of a topic that was made by a broker leads nowhere else; one of a file might.
        if directory.parent == self._directory and topic not in (".", "..") and directory.is_dir():
            self._fs.remove_tree(directory)

    def close(self) -> None:
        """Unmap all files."""
        for queue in self.by_key.values():
            queue.close()
        self.by_key.clear()
