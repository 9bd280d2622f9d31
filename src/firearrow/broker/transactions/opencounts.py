"""Count of open transactions by topic (RocketMQ's ``TransactionMetrics``).

``config/transactionMetrics``, one line, written some seconds after a change::

    {"dataVersion":{...},"transactionCount":{"T":{"count":3,"timeStamp":1795320632309}}}

RocketMQ shows the counts in its metrics, and nothing depends on them: a kill may leave the file a little behind, and
if the file can't be read, the counts begin at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, Final

import msgspec

from firearrow.broker.state.persistence import CONFIG_DIRECTORY, JsonFile, Rest, StateFile, no_rest, typed
from firearrow.clock import Clock
from firearrow.errors import ConfigError
from firearrow.files import replace_atomically
from firearrow.logs import Log
from firearrow.store import QueuesDeleted
from firearrow.wire import fastjson
from firearrow.wire.bodies import DataVersion

log: Final = Log(__name__)

FILE_NAME: Final = "transactionMetrics"
_TABLE: Final = "transactionCount"


class OpenCount(msgspec.Struct, rename="camel"):
    """Count of a topic's open transactions; ``time_stamp`` is the time of its last change, in ms."""

    count: int = 0
    time_stamp: int = 0


class _LineFile(JsonFile):
    """State in a JSON file of one line."""

    def write(self, content: Mapping[str, Any], rest: Rest = no_rest) -> None:
        replace_atomically(self.path, fastjson.dumps(content))


class OpenCounts:
    """Counts of all topics."""

    def __init__(self, clock: Clock, store_root: Path | None) -> None:
        self._clock = clock
        self._counts: dict[str, OpenCount] = {}
        self._version = DataVersion(timestamp=clock.now_ms())
        self._changes = 0  # changes that the version does not count yet
        self._changed_ms = 0
        storage = None if store_root is None else _LineFile(store_root / CONFIG_DIRECTORY / FILE_NAME, 0)
        self.file: Final = StateFile(storage, self._content)

    def add(self, topic: str, more: int) -> None:
        """Add to the count of open transactions of a topic."""
        found = self._counts.get(topic)
        if found is None:
            found = self._counts[topic] = OpenCount()
        found.count += more
        found.time_stamp = self._changed_ms = self._clock.now_ms()
        self._changes += abs(more)
        self.file.behind = True

    def counts(self) -> dict[str, int]:
        """Return the counts by topic."""
        return {topic: found.count for topic, found in self._counts.items()}

    def topic_gone(self, gone: QueuesDeleted) -> None:
        """Forget a deleted topic."""
        if gone.queue_id is None and self._counts.pop(gone.topic, None) is not None:
            self.file.behind = True

    def load(self) -> None:
        """Read the file."""
        try:
            raw = self.file.read()
            self._counts = typed(raw.get(_TABLE) or {}, dict[str, OpenCount], FILE_NAME)
            self._version = typed(raw.get("dataVersion") or {}, DataVersion, FILE_NAME)
        except ConfigError as error:
            log.warning("open transactions are counted from 0", extra={"error": error})

    def _content(self) -> Mapping[str, Any]:
        if self._changes:
            state, counter = self._version.state_version, self._version.counter + self._changes
            self._version = DataVersion(state, self._changed_ms, counter)
            self._changes = 0
        counts = {topic: copy(found) for topic, found in self._counts.items()}
        return {"dataVersion": self._version, _TABLE: counts}
