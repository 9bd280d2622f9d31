"""One part of a broker, as its core sees it, and the parts that nearly all of them need.

The core (``broker.core``) calls each feature in the order of its list: `load` when the store is open,
`connect` when all state is loaded, then it gathers handlers, listeners and services. At the end, or
before the role of the broker changes, services stop in the reverse order, then `save` and `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from firearrow.broker.metrics.stats import BrokerStats
from firearrow.broker.replication.replicas import Replicas
from firearrow.broker.state.settings import Settings
from firearrow.broker.topics.table import TopicTable
from firearrow.clock import Clock
from firearrow.events import Events
from firearrow.net.access import Access
from firearrow.net.server import BulkHandler, Handler
from firearrow.services import Every, Service
from firearrow.store import FileSystem, MessageStore
from firearrow.wire.codes import RequestCode

Handlers = Mapping[RequestCode, Handler]
BulkHandlers = Mapping[RequestCode, BulkHandler]


class Base(NamedTuple):
    """The parts of a broker that exist before its features.

    ``in_background`` allows threads; without them all work is done in the event loop.
    """

    settings: Settings
    store: MessageStore
    topics: TopicTable
    stats: BrokerStats
    clock: Clock
    loop: asyncio.AbstractEventLoop
    chance: Random
    events: Events
    replicas: Replicas
    access: Access
    address: str
    fs: FileSystem
    in_background: bool

    @property
    def root(self) -> Path:
        """Directory of the store."""
        return self.settings.store.root_path

    @property
    def in_database(self) -> bool:
        """Tell whether topics, groups and offsets are in RocksDB."""
        return self.settings.store.store_type == "defaultRocksDB"

    @property
    def acts(self) -> bool:
        """Tell whether slaves of this broker name act for their master."""
        return self.settings.broker.enable_slave_acting_master

    @property
    def is_only_master(self) -> bool:
        """Tell whether the broker is the master, and no slave ever acts in its place."""
        return not self.replicas.is_slave and not self.acts

    def every(self, name: str, seconds: float, call: Callable[[], float | None]) -> Service:
        """Make a service that calls a function periodically."""
        return Every(name, seconds, call, self.loop)


class Feature:
    """One part of a broker: its state files, its requests, its listeners and its services.

    A subclass overrides the methods that it needs. `saved_handlers` are those whose answers wait until the changed
    state is durable.
    """

    def load(self) -> None:
        """Read the state files. Raises ConfigError when one can't be read."""

    def handlers(self) -> Handlers:
        """Handlers by request code."""
        return {}

    def saved_handlers(self) -> Handlers:
        """Handlers whose answers wait until the changed state is on the disk."""
        return {}

    def bulk_handlers(self) -> BulkHandlers:
        """Handlers of several requests of one code at once."""
        return {}

    def saved_bulk_handlers(self) -> BulkHandlers:
        """Bulk handlers that step aside while changed state is not on the disk yet."""
        return {}

    def wrap(self, handlers: dict[int, Handler], bulk_handlers: dict[int, BulkHandler]) -> None:
        """Replace handlers of other features by handlers around them."""

    def listen(self) -> None:
        """Register for events."""

    def inner_services(self) -> Sequence[Service]:
        """Services that start before the first client is served, and stop after the last."""
        return ()

    def deliveries(self) -> Sequence[Service]:
        """Services that deliver messages.

        They run in a master. Where slaves act for their master, the acting broker runs them.
        """
        return ()

    def services(self) -> Sequence[Service]:
        """Services that start when clients are served, and stop before the last is gone."""
        return ()

    def save(self) -> None:
        """Write the state files that have changed."""

    def close(self) -> None:
        """Close files and databases; changes that were not saved are lost."""
