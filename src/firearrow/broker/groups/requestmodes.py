"""Request modes that administrators set for groups: pulls or POP.

``config/messageRequestMode.json``, written whenever that changes::

    {
        "messageRequestModeMap":{"T":{
            "G":{"consumerGroup":"G","mode":"POP","popShareQueueNum":0,"topic":"T"}
        }}
    }

Source: upstream ``MessageRequestModeManager``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from firearrow.broker.state.persistence import CONFIG_DIRECTORY, JsonFile, StateFile, typed
from firearrow.errors import DiskFull
from firearrow.events import Event
from firearrow.wire.client_bodies import RequestMode

FILE_NAME: Final = "messageRequestMode.json"
_TABLE: Final = "messageRequestModeMap"


class RequestModes:
    """Request modes by topic and group."""

    def __init__(self, store_root: Path | None, generations: int) -> None:
        self._table: dict[str, dict[str, RequestMode]] = {}
        storage = None
        if store_root is not None:
            storage = JsonFile(store_root / CONFIG_DIRECTORY / FILE_NAME, generations)
        self.file = StateFile(storage, self.content)
        self.changed: Event[None] = Event()

    def get(self, topic: str, group: str) -> RequestMode | None:
        """Give what was said, None if nothing was."""
        return self._table.get(topic, {}).get(group)

    def put(self, topic: str, group: str, mode: RequestMode) -> None:
        """Note how a group is to consume a topic, on the disk; DiskFull if that refuses.

        The whole file is written, here and now: an administrator says so once in a while.
        """
        before = self._table
        self._table = {**before, topic: {**before.get(topic, {}), group: mode}}
        self.file.behind = True
        self.file.save()
        if self.file.behind:
            self._table = before
            raise DiskFull(f"{FILE_NAME} can't be written")
        self.changed(None)

    def follow(self, table: Mapping[str, dict[str, RequestMode]]) -> None:
        """Have the modes of a master and no others."""
        if table != self._table:
            self._table = dict(table)
            self.file.behind = True
            self.file.save()

    def load(self) -> None:
        """Read the file; ConfigError when it can't be read."""
        raw = self.file.read()
        self._table = typed(raw.get(_TABLE) or {}, dict[str, dict[str, RequestMode]], FILE_NAME)

    def content(self) -> Mapping[str, Any]:
        """Give what the file holds, and what a slave is told (402)."""
        return {_TABLE: self._table}
