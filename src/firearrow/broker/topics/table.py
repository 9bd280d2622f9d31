"""Topics of a broker (RocketMQ's ``TopicConfigManager``, ``TopicValidator``).

A topic is created in one of four ways: with the broker (system topics), by an administrator (`TopicTable.put`), by a
send to a new name while a template topic allows it (`TopicTable.create_in_send`), or because the broker needs it
(`TopicTable.create`: retry and dead-letter topics). Each change is a new data version. It is stored before it is made
(``file``; if that fails, the change is refused by a DiskFull). The event `TopicsChanged` registers it with the name
servers. ``config/topics.json``::

    {
        "dataVersion":{"counter":7,"stateVersion":0,"timestamp":1795210273741},
        "topicConfigTable":{
            "T":{"attributes":{},"order":false,"perm":6,"readQueueNums":4,
                 "topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}
        }
    }

``perm`` is the sum of 4 read, 2 write, 1 inherit: a topic with the last bit is a template. The
system flag is 1 for a topic of a unit, 2 for one with subscribers of a unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from firearrow.broker.events import TopicMade, TopicsChanged
from firearrow.broker.state.attributes import TOPIC_ATTRIBUTES, altered
from firearrow.broker.state.persistence import StateFile, all_with_unknown, typed, unknown_fields, wire_names
from firearrow.broker.state.rows import storage_of
from firearrow.broker.state.settings import Settings
from firearrow.broker.topics.deleted import DeletedTopics
from firearrow.clock import Clock
from firearrow.events import Events
from firearrow.journal import NOTHING, Change
from firearrow.logs import Log
from firearrow.message import names
from firearrow.state import TOPICS
from firearrow.store import QueuesLeft
from firearrow.wire.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE, QUEUE_TYPE, DataVersion, TopicConfig

log: Final = Log(__name__)

FILE_NAME: Final = TOPICS.file_name

QUEUE_NUMS_MAX: Final = 16_384
"""Limit of the queues of a topic. RocketMQ has no limit. But each queue with messages is a file, mapped while it is in
use, and Linux allows a process 65,530 maps (``vm.max_map_count``).
"""

UNIT_FLAG: Final = 1
UNIT_SUBSCRIBED_FLAG: Final = 2

_READ_WRITE: Final = PERM_READ | PERM_WRITE
_ALL: Final = _READ_WRITE | PERM_INHERIT
_KNOWN: Final = ("dataVersion", "topicConfigTable")
_LMQ: Final = TopicConfig(names.LMQ_PREFIX, 1, 1, _READ_WRITE)
_NAMES_SHOWN: Final = 20  # in a log line


class TopicTable:
    """All topics by name. ``table`` may be read directly, and only this class changes it."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store_root: Path | None = None,
        *,
        in_database: bool = False,
        events: Events | None = None,
    ) -> None:
        self.table: dict[str, TopicConfig] = {}
        self.data_version: DataVersion = DataVersion(timestamp=clock.now_ms())
        events = events or Events()
        self.changed: Final = events.of(TopicsChanged)
        self._made = events.of(TopicMade)
        self._settings = settings
        self._clock = clock
        self._unknown: dict[str, Any] = {}
        self._unknown_of: dict[str, dict[str, Any]] = {}
        storage = storage_of(
            store_root, TOPICS, in_database=in_database, generations=settings.broker.config_generations
        )
        self.file: Final = StateFile(storage, self._content)
        generations = settings.broker.config_generations
        self.deleted: Final = DeletedTopics(clock, store_root, generations)
        self._system = frozenset[str]()
        self._create_system_topics()

    def read_queues(self, topic: str) -> int | None:
        """Return the count of a topic's read queues, None without the topic."""
        config = self.get(topic)
        return None if config is None else config.read_queue_nums

    def get(self, topic: str) -> TopicConfig | None:
        """Return the config of a topic, None if there is no such topic.

        All LMQs share one config, under their common prefix, and none is in the table.
        """
        config = self.table.get(topic)
        if config is None and self._settings.store.enable_lmq and names.is_lmq(topic):
            return _LMQ
        return config

    def wants_batches(self, topic: str) -> bool:
        """Tell whether a topic has the attribute ``queue.type=BatchCQ``."""
        config = self.table.get(topic)
        return config is not None and config.wants_batches

    def is_system(self, topic: str) -> bool:
        """Tell whether a topic belongs to the system: then clients may not create, change or delete it."""
        return names.is_system_topic(topic, self._system)

    def system_topics(self) -> list[str]:
        """Return the names of all system topics."""
        return sorted(self._system | names.SYSTEM_TOPICS)

    def put(self, config: TopicConfig) -> None:
        """Create or change one topic; see `put_all`."""
        self.put_all([config])

    def put_all(self, configs: Iterable[TopicConfig]) -> None:
        """Create or change topics; their ``attributes`` are changes (``+k``, ``-k``).

        A config that equals the present one changes nothing. Raises BrokerError for a forbidden change of attributes;
        then none of the topics is changed.
        """
        outcome = [self._with_attributes(config) for config in configs]
        self._accept(config for config in outcome if config != self.table.get(_name(config)))

    def create(
        self, topic: str, queue_nums: int, *, perm: int = _READ_WRITE, order: bool = False, sys_flag: int = 0
    ) -> TopicConfig:
        """Return a topic that the broker needs, and create it if it is missing.

        If it exists, only its ``order`` is updated. An impossible count of queues becomes the nearest possible one.
        Java: TopicConfigManager#createTopicInSendMessageBackMethod accepts any count.
        """
        config = self.table.get(topic)
        if config is None:
            queue_nums = _possible(queue_nums)
            config = TopicConfig(topic, queue_nums, queue_nums, perm, topic_sys_flag=sys_flag, order=order)
        elif order == config.order:
            return config
        else:
            config = replace(config, order=order)
        self._accept([config])
        return config

    def create_retry(self, group: str, queue_nums: int, *, order: bool = False, unit: bool = False) -> TopicConfig:
        """Return a group's retry topic, and create it if it is missing."""
        flag = UNIT_SUBSCRIBED_FLAG if unit else 0
        return self.create(names.retry_topic(group), queue_nums, order=order, sys_flag=flag)

    def create_in_send(
        self, topic: str, default_topic: str, client_queue_nums: int, *, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Return the topic of a message, and create it after its template if it is missing.

        None if there is no such template, or it does not allow new topics. Java:
        TopicConfigManager#createTopicInSendMessageMethod makes a topic without queues for a client that asks for none;
        such a topic takes no sends.
        """
        config = self.table.get(topic)
        if config is not None:
            return config
        template = self.table.get(default_topic)
        if template is None or not self._is_template(template):
            return None
        queue_nums = _possible(min(client_queue_nums, template.write_queue_nums))
        config = TopicConfig(
            topic, queue_nums, queue_nums, template.perm & ~PERM_INHERIT, template.topic_filter_type, sys_flag
        )
        self._accept([config])
        self._made(TopicMade(config))
        return config

    def adopt(self, left: Iterable[QueuesLeft]) -> list[str]:
        """Give queues with messages but without a topic a topic, and log it.

        These messages were acknowledged, so the cause of the loss does not matter. Returns the topics to delete again
        instead: all their messages are older than their deletion. Java: serves no queue without a topic in
        ``topics.json``.
        """
        doomed: list[str] = []
        made: dict[str, TopicConfig] = {}
        left = [queues for queues in left if self._may_be_topic(queues.topic)]
        for topic, queue_nums, last_physical_offset, batches in left:
            if self.deleted.covers(topic, last_physical_offset):
                doomed.append(topic)
                continue
            nums = _possible(queue_nums)
            attributes = {QUEUE_TYPE: "BatchCQ"} if batches else {}
            made[topic] = TopicConfig(topic, nums, nums, _READ_WRITE, attributes=attributes)
        if made:
            log.warning(
                "topics have messages but no configuration: they get one with as many queues as have messages",
                extra={"count": len(made), "topics": sorted(made)[:_NAMES_SHOWN]},
            )
            self._accept(made.values())
        return doomed

    def delete(self, topic: str, log_end_offset: int = 0) -> bool:
        """Delete a topic with its messages before that place; False if there is none."""
        if log_end_offset:
            self.deleted.note(topic, log_end_offset)
        if topic not in self.table:
            return False
        self._next_version(gone=[topic])
        del self.table[topic]
        self._unknown_of.pop(topic, None)
        return True

    def follow(self, table: Mapping[str, TopicConfig], version: DataVersion, *, also_empty: bool = False) -> None:
        """Adopt the topics of a master at its data version, and remove all others; queues stay.

        A name that can't be a directory's is left out. A master without any topic except the system's does not empty
        this table, with two exceptions: ``also_empty``, and a master that has made more changes than are known here.
        Such a master has deleted the last topic.
        """
        table = {name: config for name, config in table.items() if self._may_be_topic(name)}
        is_empty = not any(map(self._is_own, table)) and any(map(self._is_own, self.table))
        if is_empty and not also_empty and version.counter <= self.data_version.counter:
            log.error("topics are kept though the master has none: its files may be lost")
            return
        new = {
            name: replace(config, topic_name=name)
            for name, config in table.items()
            if replace(config, topic_name=name) != self.table.get(name)
        }
        self._become(version, new, [name for name in self.table if name not in table])

    def follow_change(self, table: Mapping[str, TopicConfig], gone: Iterable[str], version: DataVersion) -> None:
        """Adopt a master's change to some topics, which makes this version."""
        new = {name: replace(config, topic_name=name) for name, config in table.items()}
        self._become(version, new, [name for name in gone if name in self.table])

    def _become(self, version: DataVersion, new: Mapping[str, TopicConfig], gone: Sequence[str]) -> None:
        self._keep(version, new, gone)
        for name in gone:
            del self.table[name]
            self._unknown_of.pop(name, None)
        self.table.update(new)
        if new:
            self.changed(TopicsChanged(list(new.values())))

    def _is_own(self, topic: str) -> bool:
        """Tell whether a topic exists because a user wanted it."""
        return not self.is_system(topic)

    def _may_be_topic(self, topic: str) -> bool:
        """Tell whether a name from another source can be a topic's; impossible names are logged."""
        fault = None if self.is_system(topic) else names.fault_as_directory(topic)
        if fault is not None:
            log.warning("topic is left out", extra={"topic": topic, "reason": fault})
        return fault is None

    def touch(self) -> None:
        """Make a new data version with unchanged topics: a setting of all topics has changed."""
        self._next_version()
        self.changed(TopicsChanged(list(self.table.values())))

    def enter_epoch(self, epoch: int) -> None:
        """Make a data version that shows name servers a later master.

        Java: ReplicasManager#changeToMaster.
        """
        version = replace(self.data_version, state_version=epoch)
        self._keep(version.next_version(self._clock.now_ms()), NOTHING, ())
        self.changed(TopicsChanged(list(self.table.values())))

    def close(self) -> None:
        """Close files or database; unsaved changes are lost."""
        self.file.close()
        self.deleted.file.close()

    def load(self) -> None:
        """Read the file over the system topics; ConfigError when it can't be read."""
        self.deleted.load()
        raw = self.file.read()
        if not raw:
            return
        self.data_version = typed(raw.get("dataVersion") or {}, DataVersion, FILE_NAME)
        topics: dict[str, Any] = raw.get("topicConfigTable") or {}
        for topic, fields in topics.items():
            if not self._may_be_topic(topic):
                continue
            config = typed(fields, TopicConfig, f"{FILE_NAME}: topic {topic}")
            self.table[topic] = replace(config, topic_name=topic)
            unknown = unknown_fields(fields, wire_names(TopicConfig))
            if unknown:
                self._unknown_of[topic] = unknown
        self._unknown = unknown_fields(raw, _KNOWN)

    def save(self) -> None:
        """Write the files that are behind, in this thread."""
        self.file.save()
        self.deleted.file.save()

    def _is_template(self, template: TopicConfig) -> bool:
        auto = self._settings.broker.auto_create_topic_enable
        return bool(template.perm & PERM_INHERIT) and (auto or template.topic_name != names.AUTO_CREATE_TOPIC)

    def _with_attributes(self, config: TopicConfig) -> TopicConfig:
        known = self.table.get(_name(config))
        current = None if known is None else known.attributes
        return replace(config, attributes=altered(TOPIC_ATTRIBUTES, current, config.attributes))

    def _accept(self, configs: Iterable[TopicConfig]) -> None:
        changed = list(configs)
        if not changed:
            return
        by_name = {_name(config): config for config in changed}
        self._next_version(by_name)
        self.table.update(by_name)
        self.changed(TopicsChanged(changed))

    def _next_version(self, new: Mapping[str, TopicConfig] = NOTHING, gone: Sequence[str] = ()) -> None:
        """Store a change as a new data version; DiskFull if topics are new and can't be stored."""
        self._keep(self.data_version.next_version(self._clock.now_ms()), new, gone)

    def _keep(self, version: DataVersion, new: Mapping[str, TopicConfig], gone: Sequence[str]) -> None:
        table = {"topicConfigTable": all_with_unknown(new, self._unknown_of)} if new else {}
        change = Change(
            self.data_version, {"dataVersion": version, **table}, {"topicConfigTable": gone} if gone else {}
        )
        self.file.keep(change, must=bool(new))
        self.data_version = version

    def _content(self) -> Mapping[str, Any]:
        topics = all_with_unknown(self.table, self._unknown_of)
        own = {"dataVersion": self.data_version, "topicConfigTable": topics}
        return dict(sorted((own | self._unknown).items()))

    def _create_system_topics(self) -> None:
        for topic, queue_nums, perm in self._system_topics():
            self.table[topic] = TopicConfig(topic, queue_nums, queue_nums, perm)
        # Java: only the topics of the broker's constructor are added to TopicValidator; all others among them have the
        # prefix of system topics.
        self._system = frozenset(self.table)
        self.file.behind = True

    def _system_topics(self) -> Iterator[tuple[str, int, int]]:
        config = self._settings.broker
        cluster, broker_name = config.broker_cluster_name, config.broker_name
        if config.auto_create_topic_enable:
            yield names.AUTO_CREATE_TOPIC, config.default_topic_queue_nums, _ALL
        if config.trace_topic_enable:
            yield config.msg_trace_topic_name, 1, _READ_WRITE
        cluster_perm = _ALL if config.cluster_topic_enable else PERM_INHERIT
        broker_perm = _ALL if config.broker_topic_enable else PERM_INHERIT
        levels = len(self._settings.store.message_delay_level.split())
        yield names.SELF_TEST_TOPIC, 1, _READ_WRITE
        yield names.BENCHMARK_TOPIC, 1024, _READ_WRITE
        yield cluster, 16, cluster_perm
        yield broker_name, 1, broker_perm
        yield names.OFFSET_MOVED_TOPIC, 1, _READ_WRITE
        yield names.SCHEDULE_TOPIC, levels, _READ_WRITE
        yield names.reply_topic(cluster), 1, _READ_WRITE
        yield names.revive_topic(cluster), config.revive_queue_num, _READ_WRITE
        yield names.broker_member_topic(broker_name), 1, PERM_INHERIT
        yield names.TRANS_HALF_TOPIC, 1, _READ_WRITE
        yield names.TRANS_OP_HALF_TOPIC, 1, _READ_WRITE
        yield names.ROCKSDB_TRANS_HALF_TOPIC, 1, _READ_WRITE
        yield names.ROCKSDB_TRANS_OP_HALF_TOPIC, 1, _READ_WRITE
        yield names.TIMER_TOPIC, 1, _READ_WRITE


def _possible(queue_nums: int) -> int:
    return max(1, min(queue_nums, QUEUE_NUMS_MAX))


def _name(config: TopicConfig) -> str:
    assert config.topic_name, "a topic has a name here"
    return config.topic_name
