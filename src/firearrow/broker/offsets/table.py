"""Progress of each consumer group in each queue (RocketMQ's ``ConsumerOffsetManager``, ``LmqConsumerOffsetManager``).

``config/consumerOffset.json``::

    {
        "dataVersion":{"counter":0,"stateVersion":0,"timestamp":1795210212360},
        "groupTopicMap":{"g":["T"]},
        "offsetTable":{"T@g":{0:44,1:45}},
        "pullOffsetTable":{"T@g":{0:44,1:45}}
    }

``offsetTable`` is for committed offsets, ``pullOffsetTable`` for the offsets of the last pulls. With ``enableLmq`` the
file is ``config/lmqConsumerOffset.json``. There the offsets that LMQ groups (``%LMQ%...``) committed are in a separate
table, always for queue 0: ``"lmqOffsetTable":{"%LMQ%a@%LMQ%g":3}``. When the setting changes, the file with the higher
data version counts.

Commits come with every pull and are the most frequent change of state in a broker. A commit costs a few accesses to
dictionaries, is not logged and reaches the disk with the next `ConsumerOffsets.save`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from firearrow.broker.state.persistence import CONFIG_DIRECTORY, JsonFile, StateFile, typed, unknown_fields
from firearrow.broker.state.rows import storage_of
from firearrow.clock import Clock
from firearrow.events import Event
from firearrow.files import GENERATIONS
from firearrow.journal import Change
from firearrow.message.names import is_lmq, offset_key, topic_and_group
from firearrow.state import LMQ_OFFSETS, OFFSETS, has_database, newer
from firearrow.store import Consumed, group_progress
from firearrow.wire.bodies import DataVersion

FILE_NAME: Final = OFFSETS.file_name
UNKNOWN: Final = -1
_STEP_KEYS: Final = 1000  # in a step, which splits some of them

OffsetTable = dict[str, dict[int, int]]

_TABLE: Final = "offsetTable"
_LMQ_TABLE: Final = "lmqOffsetTable"
_KNOWN: Final = ("dataVersion", "groupTopicMap", _LMQ_TABLE, "offsetTable", "pullOffsetTable")


class ConsumerOffsets:
    """Committed and pulled offsets by group, topic and queue.

    ``commits_per_version`` is the count of commits that make a new data version (RocketMQ:
    ``consumerOffsetUpdateVersionStep``). ``lmq`` keeps LMQ groups in a separate table. When ``before_write`` returns,
    the data behind the offsets are durable; it is called in any thread.
    """

    def __init__(
        self,
        clock: Clock,
        store_root: Path | None = None,
        *,
        commits_per_version: int = 500,
        generations: int = GENERATIONS,
        in_database: bool = False,
        lmq: bool = False,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        self.committed: OffsetTable = {}
        self.pulled: OffsetTable = {}
        self.resets: OffsetTable = {}
        # Keys whose queues are in no copy that is being written: their queues may be changed in place.
        self._own: set[str] = set()
        # Moves of groups by commits since `take_moved`; None while no slave takes them.
        self._moved: dict[tuple[str, int], None] | None = None
        self._own_pulled: set[str] = set()
        self.data_version: DataVersion = DataVersion(timestamp=clock.now_ms())
        self._clock = clock
        self._commits_per_version = commits_per_version
        self._commits = 0
        self._unknown: dict[str, Any] = {}
        self._outdates = (
            store_root is not None and not in_database and has_database(store_root / CONFIG_DIRECTORY, OFFSETS)
        )
        self._lmq = lmq and not in_database  # Java: RocksDBConsumerOffsetManager does not know LMQs
        storage = storage_of(
            store_root, LMQ_OFFSETS if self._lmq else OFFSETS, in_database=in_database, generations=generations
        )
        self.file: Final = StateFile(storage, self._copied, self._complete, before_write)
        self.changed: Event[Change] = Event()
        """Changes by administrators; for commits, which are too many, see `take_moved`."""
        self._other: JsonFile | None = None
        if store_root is not None and not in_database:
            other = OFFSETS if self._lmq else LMQ_OFFSETS
            self._other = JsonFile(store_root / CONFIG_DIRECTORY / other.file_name, generations)

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Commit an offset of a group; it may be lower than before."""
        key = f"{topic}@{group}"  # as offset_key: a call less in each pull
        if _put(self.committed, self._own, key, queue_id, queue_offset):
            self.file.behind = True
            if self._moved is not None:
                self._moved[key, queue_id] = None
        self._commits += 1
        if self._commits % self._commits_per_version == 0:
            self._next_version()

    def note_moves(self, *, wanted: bool) -> None:
        """Begin or end the recording of moves by commits, for `take_moved`."""
        if wanted != (self._moved is not None):
            self._moved = {} if wanted else None

    def take_moved(self, most: int) -> Change | None:
        """Return moved offsets of groups, of up to ``most`` queues, the earliest first, each once; None without any."""
        moved = self._moved or {}
        new: OffsetTable = {}
        for key, queue_id in list(islice(moved, most)):
            del moved[key, queue_id]
            queue_offset = self.committed.get(key, {}).get(queue_id)
            if queue_offset is not None:  # otherwise the group or the topic was deleted meanwhile
                new.setdefault(key, {})[queue_id] = queue_offset
        return Change(None, {_TABLE: new}, {_TABLE: ()}) if new else None

    def go_back(self, end_of: Callable[[str, int], int]) -> list[tuple[str, int]]:
        """Move groups that are beyond the end of a queue back to it; return their queues.

        A power failure may take messages that a group has consumed, and leave its committed offset. New messages get
        their places, and the group would never see them. Java: ConsumerOffsetManager does not correct that.
        """
        found = []
        for key, queues in list(self.committed.items()):
            topic, group = topic_and_group(key)
            for queue_id, queue_offset in list(queues.items()):
                end = end_of(topic, queue_id)
                if queue_offset > end:
                    self.commit(group, topic, queue_id, end)
                    found.append((topic, queue_id))
        return found

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Reset a group to an offset; commits of its consumers are ignored until `take_reset`.

        A restart drops pending resets: then the commits of the consumers count, as with RocketMQ.
        """
        self.commit(group, topic, queue_id, queue_offset)
        key = offset_key(topic, group)
        self.resets.setdefault(key, {})[queue_id] = queue_offset
        self._tell({key: {queue_id: queue_offset}})

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Tell whether an offset was reset and the consumer does not know it yet."""
        return queue_id in self.resets.get(offset_key(topic, group), ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the reset offset for a consumer, once; None if there is none."""
        key = offset_key(topic, group)
        queues = self.resets.get(key)
        if queues is None:
            return None
        queue_offset = queues.pop(queue_id, None)
        if not queues:
            del self.resets[key]
        return queue_offset

    def progress(self, is_group: Callable[[str], bool], queue_count: Callable[[str], int]) -> Iterator[Consumed]:
        """Yield the progress of each group, see ``firearrow.store.group_progress``."""
        return group_progress(self.committed.items(), is_group, queue_count)

    def commit_pull(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store the offset of a group's last pull."""
        key = f"{topic}@{group}"  # as offset_key, see `commit`
        if _put(self.pulled, self._own_pulled, key, queue_id, queue_offset):
            self.file.behind = True

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the committed offset, -1 if there is none."""
        queues = self.committed.get(offset_key(topic, group))
        return UNKNOWN if queues is None else queues.get(queue_id, UNKNOWN)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets that a group committed in the queues of a topic."""
        return self.committed.get(offset_key(topic, group), {})

    def clone(self, group: str, source: str, topic: str) -> bool:
        """Copy the offsets of a group to another in all queues of a topic, in place of the other's.

        False, with nothing changed, if the first has none there.
        """
        queues = self.committed.get(offset_key(topic, source))
        if queues is None:
            return False
        key = offset_key(topic, group)
        self.committed[key] = {**queues}
        self._own.add(key)
        self.resets.pop(key, None)  # pending resets are outdated
        self.file.behind = True
        self._next_version()
        self._tell({key: queues}, [key])
        return True

    def query_pull(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset of a group's last pull, -1 if there was none."""
        queues = self.pulled.get(offset_key(topic, group))
        return UNKNOWN if queues is None else queues.get(queue_id, UNKNOWN)

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that committed an offset of a topic."""
        return {topic_and_group(key)[1] for key in _of_topic(self.committed, topic)}

    def topics_of(self, group: str) -> set[str]:
        """Return the topics with a committed offset of a group."""
        return {topic_and_group(key)[0] for key in _of_group(self.committed, group)}

    def topics_by_group(self) -> Generator[None, None, dict[str, list[str]]]:
        """Return the topics with committed offsets of each group, in steps of a millisecond."""
        found: dict[str, list[str]] = {}
        for number, key in enumerate(list(self.committed), 1):
            topic, group = topic_and_group(key)
            found.setdefault(group, []).append(topic)
            if not number % _STEP_KEYS:
                yield
        return found

    def delete_topic(self, topic: str) -> None:
        """Remove the offsets of all groups in a topic."""
        self._delete(_of_topic(self._keys(), topic))

    def forget(self, group: str, topic: str) -> None:
        """Remove the offsets of a group in a topic."""
        key = offset_key(topic, group)
        self._delete([key] if key in self.committed or key in self.pulled else [])

    def delete_group(self, group: str) -> None:
        """Remove the offsets of a group in all topics."""
        self._delete(_of_group(self._keys(), group))

    def shared(self) -> OffsetTable:
        """Return the committed offsets of all groups, for slaves (43); the result does not change later."""
        self._own.clear()
        return self.committed.copy()

    def content(self) -> Mapping[str, Any]:
        """Return the present content of the file."""
        return self._complete(self._copied())

    def _copied(self) -> Mapping[str, Any]:
        """Copy as little of the changing content as possible: a million keys take about 30 ms.

        The queues of each key are shared with the copy until they change, which makes new ones. The rest and the
        formatting, which take some seconds, are left to a thread.
        """
        self._own.clear()
        self._own_pulled.clear()
        return {
            "dataVersion": self.data_version,
            "offsetTable": self.committed.copy(),
            "pullOffsetTable": self.pulled.copy(),
        }

    def _complete(self, copied: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the parts that are computed from the offsets."""
        committed = dict(copied["offsetTable"])
        topics: dict[str, list[str]] = {}
        lmq: dict[str, int] = {}
        for key, queues in copied["offsetTable"].items():
            topic, group = topic_and_group(key)
            topics.setdefault(group, []).append(topic)
            if self._lmq and is_lmq(group):
                lmq[key] = max(queues.values())
                del committed[key]
        own = {**copied, "groupTopicMap": topics, "offsetTable": committed}
        if self._lmq:
            own[_LMQ_TABLE] = lmq
        return dict(sorted((own | self._unknown).items()))

    def follow(self, table: OffsetTable, version: DataVersion, *, exactly: bool = False) -> None:
        """Put the offsets of a master over the present ones, at its data version.

        With ``exactly`` no others are kept, unless the master never had any: its files may be lost.
        """
        if exactly and (table or version.counter):
            self._delete([key for key in self._keys() if key not in table])
        for key, queues in table.items():
            for queue_id, queue_offset in queues.items():
                if _put(self.committed, self._own, key, queue_id, queue_offset):
                    self.file.behind = True
        if version != self.data_version:
            self.data_version = version
            self.file.behind = True

    def follow_change(self, table: OffsetTable, gone: Iterable[str]) -> None:
        """Adopt a master's change: remove keys, then put offsets over the others."""
        self._delete([key for key in gone if key in self.committed or key in self.pulled])
        self.follow(table, self.data_version)

    def take_back(self, table: OffsetTable, version: DataVersion) -> None:
        """Adopt the offsets of a slave that are ahead of the present ones."""
        for key, queues in table.items():
            own = self.committed.get(key, {})
            for queue_id, queue_offset in queues.items():
                if queue_offset > own.get(queue_id, UNKNOWN):
                    _put(self.committed, self._own, key, queue_id, queue_offset)
                    self.file.behind = True
        if version.is_later_than(self.data_version):
            self.data_version = version
            self.file.behind = True

    def lead(self) -> None:
        """Count these offsets as later than an absent master's."""
        self.data_version = self.data_version.leading(self._clock.now_ms())
        self.file.behind = True

    def close(self) -> None:
        """Close file or database; unsaved changes are lost."""
        self.file.close()

    def load(self) -> None:
        """Read the file; without one the table starts empty.

        Raises ConfigError when it can't be read.
        """
        raw = self._newest()
        if not raw:
            return
        self.committed = _table(raw, "offsetTable")
        lmq = typed(raw.get(_LMQ_TABLE) or {}, dict[str, int], f"{FILE_NAME}: {_LMQ_TABLE}")
        self.committed.update((key, {0: queue_offset}) for key, queue_offset in lmq.items())
        self.pulled = _table(raw, "pullOffsetTable")
        self.data_version = typed(raw.get("dataVersion") or {}, DataVersion, FILE_NAME)
        self._unknown = unknown_fields(raw, _KNOWN)
        if self._outdates:  # many commits make one version: it might stay that of the outdated file
            self._next_version()
            self.file.behind = True

    def _newest(self) -> dict[str, Any]:
        """Return the content of the file, or of the other setting's file if that is newer."""
        raw = self.file.read()
        other = {} if self._other is None else self._other.read()[0]
        found = newer(raw, other)
        if found is not raw:
            self.file.behind = self._outdates = True
        return found

    def save(self) -> None:
        """Write the file if anything has changed since the last time."""
        self.file.save()

    def _keys(self) -> set[str]:
        return self.committed.keys() | self.pulled.keys()

    def _delete(self, doomed: list[str]) -> None:
        for key in doomed:
            self.committed.pop(key, None)
            self.pulled.pop(key, None)
            self._own.discard(key)
            self._own_pulled.discard(key)
            self.resets.pop(key, None)
        if doomed:
            self.file.behind = True
            self._next_version()
            self._tell({}, doomed)

    def _tell(self, new: OffsetTable, gone: Sequence[str] = ()) -> None:
        self.changed(Change(None, {_TABLE: new}, {_TABLE: gone}))

    def _next_version(self) -> None:
        self.data_version = self.data_version.next_version(self._clock.now_ms())


def _put(table: OffsetTable, own: set[str], key: str, queue_id: int, queue_offset: int) -> bool:
    """Store an offset; False if it is unchanged, as clients commit their offsets every 5 s."""
    queues = table.get(key)
    if queues is None:
        queues = table[key] = {}
        own.add(key)
    elif queues.get(queue_id) == queue_offset:
        return False
    elif key not in own:
        queues = table[key] = queues.copy()
        own.add(key)
    queues[queue_id] = queue_offset
    return True


def _of_topic(keys: Iterable[str], topic: str) -> list[str]:
    """Return the keys of a topic; splitting all keys would cost ten times as much."""
    return [key for key in keys if key.startswith(topic) and topic_and_group(key)[0] == topic]


def _of_group(keys: Iterable[str], group: str) -> list[str]:
    return [key for key in keys if key.endswith(group) and topic_and_group(key)[1] == group]


def _table(raw: Mapping[str, Any], field: str) -> OffsetTable:
    return typed(raw.get(field) or {}, OffsetTable, f"{FILE_NAME}: {field}")
