"""The name server's key-value configuration, on disk in kvConfig.json.

The file is ``{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:8"}}}``: namespaces of pairs. It
is replaced on each change, before the change is confirmed. The namespace ``ORDER_TOPIC_CONFIG``
holds how many queues of a topic each broker has in order, and is also given to registering brokers.

Source: upstream ``KVConfigManager``, ``NamesrvUtil``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import field

from firearrow.files import GENERATIONS, read_newest, replace_atomically
from firearrow.wire import fastjson
from firearrow.wire.bodies import Body

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class _KvFile(Body, frozen=True):
    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KvConfig:
    """Pairs of text in namespaces. ``version`` counts the changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        self.version = 0

    def load(self) -> None:
        """Read the file, if there is one; ConfigError when it can't be read."""
        found = read_newest(self._path, lambda data: fastjson.decode(data, _KvFile))
        self._table = found.value.config_table if found else {}
        self.version += 1

    def get(self, namespace: str, key: str) -> str | None:
        """The value of a key; None when there is none."""
        return self._table.get(namespace, {}).get(key)

    def pairs(self, namespace: str) -> dict[str, str] | None:
        """All pairs of a namespace; None when it is unknown."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a key. Raises OSError, with nothing changed, when that can't be saved."""
        self._replace(namespace, {**self._table.get(namespace, {}), key: value})

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key, if it is there. Raises OSError as ``put`` does."""
        pairs = self._table.get(namespace)
        if pairs is not None and key in pairs:
            self._replace(namespace, {name: pairs[name] for name in pairs if name != key})

    def _replace(self, namespace: str, pairs: dict[str, str]) -> None:
        table = {**self._table, namespace: pairs}
        data = fastjson.dumps(_KvFile(table))
        replace_atomically(self._path, data, generations=GENERATIONS)
        self._table = table
        self.version += 1
