"""Deleted topics, and the end of their messages in the log.

A deleted topic loses its queues at once, but its records stay in the log until retention deletes them, and a start
after a crash may dispatch them again. The topic must not come back with them. But messages without a topic for another
reason do get one (`TopicTable.adopt`). So a deletion is noted, in a separate file, ``config/deletedTopics.json``, as
long as the log holds such records::

    {
        "dataVersion":{"counter":1,"stateVersion":0,"timestamp":1795210273741},
        "deletedTopics":{"T":4096}
    }

RocketMQ notes nothing: such queues come back there without a topic, until 316 deletes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from firearrow.broker.state.persistence import CONFIG_DIRECTORY, JsonFile, StateFile, typed
from firearrow.clock import Clock
from firearrow.journal import Change
from firearrow.state import DELETED
from firearrow.wire.bodies import DataVersion

FILE_NAME: Final = DELETED.file_name
_TABLE: Final = "deletedTopics"


class DeletedTopics:
    """End of the log at the last deletion of each topic."""

    def __init__(self, clock: Clock, store_root: Path | None, generations: int) -> None:
        self._clock = clock
        self._ends: dict[str, int] = {}
        self._data_version = DataVersion()
        storage = None
        if store_root is not None:
            path = store_root / CONFIG_DIRECTORY / FILE_NAME
            storage = JsonFile(path, generations, (_TABLE,))
        self.file: Final = StateFile(storage, self._content)

    def note(self, topic: str, physical_offset: int) -> None:
        """Note that the messages of a topic before a place in the log are deleted.

        A failing disk does not prevent the deletion.
        """
        self._change({topic: physical_offset}, [])

    def covers(self, topic: str, physical_offset: int) -> bool:
        """Tell whether a record belongs to a topic that was deleted since."""
        return physical_offset < self._ends.get(topic, 0)

    def forget_before(self, log_start_offset: int) -> None:
        """Remove deletions without a record in the log."""
        gone = [topic for topic, end in self._ends.items() if end <= log_start_offset]
        if gone:
            self._change({}, gone)

    def whole(self) -> Change:
        """All deletions, as one change."""
        return Change(None, {_TABLE: dict(self._ends)})

    def load(self) -> None:
        """Read the file; ConfigError when it can't be read."""
        raw = self.file.read()
        self._ends = typed(raw.get(_TABLE) or {}, dict[str, int], FILE_NAME)
        self._data_version = typed(raw.get("dataVersion") or {}, DataVersion, FILE_NAME)

    def _change(self, new: dict[str, int], gone: list[str]) -> None:
        version = self._data_version.next_version(self._clock.now_ms())
        change = Change(self._data_version, {"dataVersion": version, _TABLE: new}, {_TABLE: gone})
        self.file.keep(change, must=False)
        self._data_version = version
        self._ends.update(new)
        for topic in gone:
            del self._ends[topic]

    def _content(self) -> Mapping[str, Any]:
        return {"dataVersion": self._data_version, _TABLE: dict(self._ends)}
