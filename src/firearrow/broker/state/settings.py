"""The configuration as it is now.

Configurations are frozen; a change at run time (request 25) puts new ones in their place. Whoever
obeys a key reads it here each time it matters, and so obeys changes; a key that is read only at
start, such as a port or a file size, has its new value after the next start, as upstream. Source:
upstream ``Configuration``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from firearrow.broker.config import BrokerConfig
from firearrow.clock import Clock
from firearrow.config import properties
from firearrow.config.table import Effect, as_properties, keys, review, update
from firearrow.files import replace_atomically
from firearrow.store.config import StoreConfig
from firearrow.wire.bodies import DataVersion

log = logging.getLogger(__name__)

_NEVER_CHANGED: Final = ("brokerConfigPath", "configBlackList", "rocketmqHome")
_SERVERS: Final = ("broker", "store", "server", "client", "auth")


class Settings:
    """What broker and store are configured to do at present.

    ``file`` is the file that a change is written to, the one that the broker was started with.
    ``on_change`` is told the keys that a request has changed.
    """

    def __init__(
        self,
        clock: Clock,
        broker: BrokerConfig | None = None,
        store: StoreConfig | None = None,
        *,
        file: Path | None = None,
    ) -> None:
        self.broker = broker or BrokerConfig()
        self.store = store or StoreConfig()
        self.version = DataVersion(timestamp=clock.now_ms())
        self.on_change: Callable[[Collection[str]], None] = lambda _: None
        self._clock = clock
        self._file = file

    def text(self) -> str:
        """Give all keys and their values, one ``key=value`` a line, in order of the keys."""
        pairs = as_properties(self.broker) | as_properties(self.store)
        return properties.dumps(dict(sorted(pairs.items())))

    def is_fixed(self, key: str) -> bool:
        """Whether no client may change a key (upstream ``configBlackList``)."""
        listed = (name.strip() for name in self.broker.config_black_list.split(";"))
        return key in _NEVER_CHANGED or key in listed

    def change(self, pairs: Mapping[str, str]) -> None:
        """Set keys, write them to the file, and tell who wants to know.

        A key that RocketMQ does not know either is ignored with a log entry, as upstream. Raises
        ConfigError for a value that its key can't have; then nothing is changed. Java:
        Configuration#update silently skips such a value. Raises OSError when the file can't be
        written; then the change holds until the broker stops.
        """
        ignored = self._ignored(pairs)
        own = {name: value for name, value in pairs.items() if name not in ignored}
        store_keys = keys(StoreConfig)
        stored = {name: value for name, value in own.items() if name in store_keys}
        rest = {name: value for name, value in own.items() if name not in store_keys}
        store, broker = update(self.store, stored), update(self.broker, rest)
        self.store, self.broker = store, broker
        self.version = self.version.next_version(self._clock.now_ms())
        self.on_change(own.keys())
        if self._file is not None:
            replace_atomically(self._file, self.text().encode())

    def _ignored(self, pairs: Mapping[str, str]) -> set[str]:
        known = keys(BrokerConfig).keys() | keys(StoreConfig).keys()
        rest = {name: value for name, value in pairs.items() if name not in known}
        notes = review(rest, BrokerConfig, StoreConfig, servers=_SERVERS)
        unknown = {note.key for note in notes if note.effect is Effect.UNKNOWN}
        for note in notes:
            if note.key in unknown:
                log.warning("unknown key %s is ignored", note.key)
            else:
                log.warning("%s", note)
        return unknown
