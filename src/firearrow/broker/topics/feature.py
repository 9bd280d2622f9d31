"""Topics: their configuration, their administration, and their registration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import SettingsChanged
from firearrow.broker.feature import Base, Feature, Handlers
from firearrow.broker.state.attributes import CLEANUP_POLICY, COMPACTION
from firearrow.broker.state.persistence import CONFIG_DIRECTORY, StateFile
from firearrow.broker.storage.reconciling import adopt_queues
from firearrow.broker.topics.processor import TopicAdminProcessor
from firearrow.errors import ConfigError
from firearrow.logs import Log
from firearrow.state import read_json, table_of
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.codes import RequestCode


class TopicFeature(Feature):
    """The topics of a broker. The core has loaded their table before it opened the store."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._topics = base.topics

    @property
    def files(self) -> Iterable[StateFile]:
        """The files of topics, and of topics that were deleted."""
        return self._topics.file, self._topics.deleted.file

    def connect(self, context: BrokerContext) -> None:
        """Give messages a topic, delete the messages of deleted topics, and make the handlers."""
        if not self._base.replicas.is_slave:  # a slave has the topics of its master
            adopt_queues(self._base.store, self._topics)
        warn_of_compaction(self._topics.table)
        self._handlers = topic_handlers(context)

    def saved_handlers(self) -> Handlers:
        """Handlers of the administration of topics."""
        return self._handlers

    def listen(self) -> None:
        """Register a changed permission of the broker with the name servers, by its topics."""
        self._base.events.listen(SettingsChanged, self._settings_changed)

    def _settings_changed(self, changed: SettingsChanged) -> None:
        if "brokerPermission" in changed.keys:
            self._topics.touch()

    def save(self) -> None:
        """Write the table of topics."""
        self._topics.save()

    def close(self) -> None:
        """Close the table of topics."""
        self._topics.close()


def topic_handlers(context: BrokerContext) -> Handlers:
    """Make the handlers of the administration of topics."""
    admin = TopicAdminProcessor(context)
    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: admin.put,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: admin.put_list,
        RequestCode.DELETE_TOPIC_IN_BROKER: admin.delete,
        RequestCode.DELETE_TOPIC_IN_BROKER_LIST: admin.delete_all,
        RequestCode.GET_ALL_TOPIC_CONFIG: admin.list_all,
        RequestCode.GET_TOPIC_CONFIG: admin.get,
        RequestCode.GET_TOPIC_STATS_INFO: admin.status,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin.consumers,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: admin.system_topics,
    }


# --- Static and compaction topics of RocketMQ ---
#
# The store may have been RocketMQ's. A static topic has separate queue numbers, which brokers map to theirs. Without
# the mapping, messages would go to other queues and offsets would belong to other messages: the start is refused.
#
# Of a compaction topic RocketMQ keeps the last message of each key, in separate files. Here its messages are deleted
# with the files of the CommitLog, as those of all topics: the start logs that.
#
# Neither kind can be created (``admission``, ``state.attributes``).
#
# Source: RocketMQ's ``TopicQueueMappingManager``, ``CompactionStore``.


log: Final = Log(__name__)

MAPPINGS: Final = "topicQueueMapping.json"


def refuse_static_topics(store_root: Path) -> None:
    """Raise ConfigError if a store has static topics."""
    path = store_root / CONFIG_DIRECTORY / MAPPINGS
    content, _ = read_json(path, ())
    topics = sorted(table_of(content, "topicQueueMappingInfoMap"))
    if topics:
        raise ConfigError(
            f"{path}: there are no static topics here, but the store has {', '.join(topics)}; "
            f"only RocketMQ's broker can go on with them"
        )


def warn_of_compaction(topics: Mapping[str, TopicConfig]) -> None:
    """Log the names of compaction topics, whose messages are kept no longer than others."""
    for name, topic in topics.items():
        if topic.attributes.get(CLEANUP_POLICY) == COMPACTION:
            log.warning(
                "there are no compaction topics: this one is served as any other, messages that RocketMQ "
                "has compacted are not read, and messages are deleted with the log's files",
                extra={"topic": name},
            )
