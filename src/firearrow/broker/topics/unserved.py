"""Kinds of topics of RocketMQ's that this broker does not serve, in a store that it takes over.

A static topic has queues with numbers of its own, which brokers map to theirs. Without the mapping
messages would go to other queues and offsets would be those of other messages: the start is
refused.

Of a compaction topic RocketMQ keeps the last message of each key, in files of its own. Here its
messages go with the files of the CommitLog, as those of all topics do: the start says so.

Neither kind can be created (``unserved``, ``state.attributes``).

Source: upstream ``TopicQueueMappingManager``, ``CompactionStore``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from firearrow.broker.state.attributes import CLEANUP_POLICY, COMPACTION
from firearrow.broker.state.persistence import CONFIG_DIRECTORY
from firearrow.errors import ConfigError
from firearrow.state import read_json, table_of
from firearrow.wire.bodies import TopicConfig

log = logging.getLogger(__name__)

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
    """Log which topics are compaction topics, of which nothing is kept longer than of others."""
    for name, topic in topics.items():
        if topic.attributes.get(CLEANUP_POLICY) == COMPACTION:
            log.warning(
                "there are no compaction topics: this one is served as any other, what RocketMQ "
                "has compacted of it is not read, and its messages go with the log's files",
                extra={"topic": name},
            )
