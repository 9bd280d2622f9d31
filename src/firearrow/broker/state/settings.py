"""Present configuration of a broker.

Configurations are frozen; a change at run time (request 25) replaces them by new ones. A part that obeys a `LIVE` key
reads it here each time. Other keys, for example ports and file sizes, keep their values from the start. Source:
RocketMQ's ``Configuration``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from firearrow.broker.config import KEY_GROUPS, BrokerConfig
from firearrow.broker.events import SettingsChanged
from firearrow.clock import Clock
from firearrow.config import properties
from firearrow.config.changes import acceptable
from firearrow.config.table import as_properties, keys, public_properties, update
from firearrow.events import Events
from firearrow.files import replace_atomically
from firearrow.store.config import StoreConfig
from firearrow.wire.bodies import DataVersion

_NEVER_CHANGED: Final = ("brokerConfigPath", "configBlackList", "rocketmqHome")


class SharedFile(NamedTuple):
    """Configuration file of several brokers; the keys of one have its name as a prefix."""

    path: Path
    broker: str

    def change(self, pairs: Mapping[str, str]) -> None:
        """Set keys of the broker; concurrent changes of other brokers are not lost.

        Raises OSError or ConfigError; then the file is unchanged.
        """
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            found = properties.load(self.path) if self.path.exists() else {}
            found |= {f"{self.broker}.{key}": text for key, text in pairs.items()}
            replace_atomically(self.path, properties.dumps(found).encode())
        finally:
            os.close(directory)


class Settings:
    """The present configuration of broker and store.

    ``file`` is the configuration file that the broker was started with, which gets the changes. The event
    `SettingsChanged` names the keys that a request has changed.
    """

    def __init__(
        self,
        clock: Clock,
        broker: BrokerConfig | None = None,
        store: StoreConfig | None = None,
        *,
        file: Path | SharedFile | None = None,
        events: Events | None = None,
    ) -> None:
        self.broker: BrokerConfig = broker or BrokerConfig()
        self.store: StoreConfig = store or StoreConfig()
        self.version: DataVersion = DataVersion(timestamp=clock.now_ms())
        self.changed: Final = (events or Events()).of(SettingsChanged)
        self._clock = clock
        self._file = file

    def text(self) -> str:
        """Return all keys and their values, one ``key=value`` a line, in order of the keys.

        Secrets are left out. Java: AdminBrokerProcessor#getBrokerConfig returns them.
        """
        pairs = public_properties(self.broker) | public_properties(self.store)
        return properties.dumps(dict(sorted(pairs.items())))

    def is_fixed(self, key: str) -> bool:
        """Tell whether no client may change a key (RocketMQ: ``configBlackList``)."""
        listed = (name.strip() for name in self.broker.config_black_list.split(";"))
        return key in _NEVER_CHANGED or key in listed

    def change(self, pairs: Mapping[str, str]) -> None:
        """Set keys, here and in the file, and notify the listeners.

        A key that RocketMQ does not know either is ignored with a log entry, as in RocketMQ. Raises ConfigError for
        keys or values that can't be changed, and OSError when the file can't be written; then nothing is changed. Java:
        Configuration#update has changed the values at that point.
        """
        own = acceptable(pairs, self.broker, self.store, servers=KEY_GROUPS)
        store_keys = keys(StoreConfig)
        stored = {name: value for name, value in own.items() if name in store_keys}
        rest = {name: value for name, value in own.items() if name not in store_keys}
        store, broker = update(self.store, stored), update(self.broker, rest)
        if isinstance(self._file, SharedFile):
            self._file.change(own)
        elif self._file is not None:
            pairs = as_properties(broker) | as_properties(store)
            replace_atomically(self._file, properties.dumps(dict(sorted(pairs.items()))).encode())
        self.store, self.broker = store, broker
        self.version = self.version.next_version(self._clock.now_ms())
        self.changed(SettingsChanged(own.keys()))
