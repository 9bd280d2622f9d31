"""How far each consumer group is in each queue (upstream ``ConsumerOffsetManager``).

``config/consumerOffset.json``::

    {
        "dataVersion":{"counter":0,"stateVersion":0,"timestamp":1795210212360},
        "groupTopicMap":{"g":["T"]},
        "offsetTable":{"T@g":{0:44,1:45}},
        "pullOffsetTable":{"T@g":{0:44,1:45}}
    }

``offsetTable`` is what groups committed, ``pullOffsetTable`` what they were last given. Commits
come with every pull and are the most frequent change of state in a broker: one costs two dictionary
accesses, is not logged and reaches the disk with the next `ConsumerOffsets.save`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from firearrow.broker.state.persistence import StateFile, typed, unknown_fields
from firearrow.broker.state.rows import Layout, has_database, storage_of
from firearrow.clock import Clock
from firearrow.files import GENERATIONS
from firearrow.store import Consumed
from firearrow.wire.bodies import DataVersion

FILE_NAME: Final = "consumerOffset.json"
LAYOUT: Final = Layout("consumerOffsets", {"default": "offsetTable"}, wrapped="offsetTable")
SEPARATOR: Final = "@"  # no topic or group can contain it
UNKNOWN: Final = -1

OffsetTable = dict[str, dict[int, int]]

_KNOWN: Final = ("dataVersion", "groupTopicMap", "offsetTable", "pullOffsetTable")


class ConsumerOffsets:
    """Committed and pulled offsets by group, topic and queue.

    ``commits_per_version`` is the number of commits that make a new data version (upstream
    ``consumerOffsetUpdateVersionStep``).
    """

    def __init__(
        self,
        clock: Clock,
        store_root: Path | None = None,
        *,
        commits_per_version: int = 500,
        generations: int = GENERATIONS,
        in_database: bool = False,
    ) -> None:
        self.committed: OffsetTable = {}
        self.pulled: OffsetTable = {}
        self.data_version = DataVersion(timestamp=clock.now_ms())
        self._clock = clock
        self._commits_per_version = commits_per_version
        self._commits = 0
        self._unknown: dict[str, Any] = {}
        self._outdates_database = not in_database and has_database(store_root, LAYOUT)
        storage = storage_of(
            store_root,
            FILE_NAME,
            LAYOUT,
            in_database=in_database,
            generations=generations,
        )
        self._file = StateFile(storage, self.content)

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note that a group has consumed up to an offset; it may be lower than before."""
        key = f"{topic}@{group}"
        queues = self.committed.get(key)
        if queues is None:
            queues = self.committed[key] = {}
        queues[queue_id] = queue_offset
        self._file.behind = True
        self._commits += 1
        if self._commits % self._commits_per_version == 0:
            self._next_version()

    def progress(self) -> Iterator[Consumed]:
        """Say of each group how far it is in each queue that it has committed an offset of."""
        for key, queues in self.committed.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, queue_offset in queues.items():
                yield Consumed(group, topic, queue_id, queue_offset)

    def commit_pull(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note up to which offset a group was given messages."""
        key = f"{topic}@{group}"
        queues = self.pulled.get(key)
        if queues is None:
            queues = self.pulled[key] = {}
        queues[queue_id] = queue_offset
        self._file.behind = True

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Give the committed offset, -1 if there is none."""
        queues = self.committed.get(f"{topic}@{group}")
        return UNKNOWN if queues is None else queues.get(queue_id, UNKNOWN)

    def query_pull(self, group: str, topic: str, queue_id: int) -> int:
        """Give the offset that a group pulled up to, -1 if it never did."""
        queues = self.pulled.get(f"{topic}@{group}")
        return UNKNOWN if queues is None else queues.get(queue_id, UNKNOWN)

    def groups_of(self, topic: str) -> set[str]:
        """Give the groups that committed an offset of a topic."""
        return {group for its_topic, group in map(_parts, self.committed) if its_topic == topic}

    def topics_of(self, group: str) -> set[str]:
        """Give the topics of which a group committed an offset."""
        return {topic for topic, its_group in map(_parts, self.committed) if its_group == group}

    def delete_topic(self, topic: str) -> None:
        """Forget the offsets of all groups in a topic."""
        self._delete(key for key in self._keys() if _parts(key)[0] == topic)

    def delete_group(self, group: str) -> None:
        """Forget the offsets of a group in all topics."""
        self._delete(key for key in self._keys() if _parts(key)[1] == group)

    def content(self) -> Mapping[str, Any]:
        """Give what the file holds, and what a slave is told (43), as it is now.

        What is given does not change any more: copying 200,000 offsets takes some 6 ms, formatting
        them, which is left to a thread, twenty times that.
        """
        topics: dict[str, list[str]] = {}
        for topic, group in map(_parts, self.committed):
            topics.setdefault(group, []).append(topic)
        own = {
            "dataVersion": self.data_version,
            "groupTopicMap": topics,
            "offsetTable": {key: queues.copy() for key, queues in self.committed.items()},
            "pullOffsetTable": {key: queues.copy() for key, queues in self.pulled.items()},
        }
        return dict(sorted((own | self._unknown).items()))

    def close(self) -> None:
        """Let go of file or database; what was not saved is lost."""
        self._file.close()

    def load(self) -> None:
        """Read the file; without one everything starts empty.

        Raises ConfigError when it can't be read.
        """
        raw = self._file.read()
        if not raw:
            return
        self.committed = _table(raw, "offsetTable")
        self.pulled = _table(raw, "pullOffsetTable")
        self.data_version = typed(raw.get("dataVersion") or {}, DataVersion, FILE_NAME)
        self._unknown = unknown_fields(raw, _KNOWN)
        if self._outdates_database:  # many commits make one version: it might stay the database's
            self._next_version()
            self._file.behind = True

    def save(self) -> None:
        """Write the file if anything has changed since the last time."""
        self._file.save()

    def prepare_save(self) -> Callable[[], None] | None:
        """Like `save`, but the writing is left to whoever calls the result, in any thread."""
        return self._file.prepare()

    def _keys(self) -> set[str]:
        return self.committed.keys() | self.pulled.keys()

    def _delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        for key in doomed:
            self.committed.pop(key, None)
            self.pulled.pop(key, None)
        if doomed:
            self._file.behind = True
            self._next_version()

    def _next_version(self) -> None:
        self.data_version = self.data_version.next_version(self._clock.now_ms())


def _parts(key: str) -> tuple[str, str]:
    topic, _, group = key.partition(SEPARATOR)
    return topic, group


def _table(raw: Mapping[str, Any], field: str) -> OffsetTable:
    return typed(raw.get(field) or {}, OffsetTable, f"{FILE_NAME}: {field}")
