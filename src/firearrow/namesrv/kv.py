"""The name server's key-value configuration, on disk in kvConfig.json.

The file is ``{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:8"}}}``: namespaces of pairs. It is replaced on each
change, before the change is confirmed. The namespace ``ORDER_TOPIC_CONFIG`` holds the count of ordered queues that each
broker has of a topic. Registering brokers get it too.

Source: RocketMQ's ``KVConfigManager``, ``NamesrvUtil``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import field

from firearrow.errors import BrokerError
from firearrow.files import GENERATIONS, read_newest, replace_atomically
from firearrow.wire import fastjson
from firearrow.wire.bodies import Body
from firearrow.wire.codes import ResponseCode

NAME_CHARS_MAX: Final = 255  # of a namespace or a key, which is usually a topic
VALUE_CHARS_MAX: Final = 64 * 1024  # of an ordered topic on 2,000 brokers
PAIR_CHARS: Final = 64  # that a pair counts for in addition to its own
CHARS_MAX: Final = 4 * 1024 * 1024  # of all; to write them takes some 20 ms


class _KvFile(Body, frozen=True):
    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class KvConfig:
    """Pairs of text in namespaces. ``version`` counts the changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        self._chars = 0
        self.version: int = 0

    def load(self) -> None:
        """Read the file, if there is one; raises ConfigError when it can't be read."""
        found = read_newest(self._path, lambda data: fastjson.decode(data, _KvFile))
        self._take(found.value.config_table if found else {})

    def _take(self, table: dict[str, dict[str, str]]) -> None:
        self._table = table
        self._chars = sum(
            _chars_of(namespace, key, value) for namespace, pairs in table.items() for key, value in pairs.items()
        )
        self.version += 1

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key; None when there is none."""
        return self._table.get(namespace, {}).get(key)

    def pairs(self, namespace: str) -> dict[str, str] | None:
        """Return all pairs of a namespace; None when it is unknown."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a key. Raises OSError, with nothing changed, when the file can't be saved.

        Raises BrokerError for a pair that is too long, or beyond the size of the file, which is written again for each
        change.
        """
        if max(len(namespace), len(key)) > NAME_CHARS_MAX or len(value) > VALUE_CHARS_MAX:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"a namespace or key has more than {NAME_CHARS_MAX} characters, or a value more than {VALUE_CHARS_MAX}",
            )
        before = self.get(namespace, key)
        chars = self._chars + _chars_of(namespace, key, value)
        chars -= 0 if before is None else _chars_of(namespace, key, before)
        if chars > CHARS_MAX:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY, f"all pairs would have {chars} characters, the limit is {CHARS_MAX}"
            )
        self._replace(namespace, {**self._table.get(namespace, {}), key: value})

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key, if it exists. Raises OSError as ``put`` does."""
        pairs = self._table.get(namespace)
        if pairs is not None and key in pairs:
            self._replace(namespace, {name: pairs[name] for name in pairs if name != key})

    def _replace(self, namespace: str, pairs: dict[str, str]) -> None:
        table = {**self._table, namespace: pairs}
        data = fastjson.dumps(_KvFile(table))
        replace_atomically(self._path, data, generations=GENERATIONS)
        self._take(table)


def _chars_of(namespace: str, key: str, value: str) -> int:
    return PAIR_CHARS + len(namespace) + len(key) + len(value)
