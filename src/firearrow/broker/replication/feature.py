"""Replication: the copy of the log, and the state beside the log that slaves take from masters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.auth.metadata import Metadata
from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.broker.feature import Base, Feature, Handlers
from firearrow.broker.groups.feature import GroupFeature
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.replication.slavesync import SlaveSync
from firearrow.broker.replication.statefeed import StateFeed
from firearrow.broker.storage.saving import Saving
from firearrow.broker.timing.counts import TimerCounts
from firearrow.services import Service
from firearrow.store import MessagesArrived
from firearrow.wire.codes import RequestCode


class ReplicationFeature(Feature):
    """Both directions of replication: a master sends changes to slaves, a slave asks its master."""

    def __init__(self, base: Base, groups: GroupFeature, offsets: ConsumerOffsets) -> None:
        self._base = base
        self._groups = groups
        self._offsets = offsets
        wait_seconds = base.settings.store.slave_timeout / 1000
        self.feed: Final = StateFeed(base.replicas, base.chance, base.clock, base.loop, wait_seconds)
        self.feed.watch_all(base.topics, groups.table, offsets, groups.modes, base.events)

    def make_sync(self, delays: DelayOffsets, users: Metadata | None, saving: Saving, counts: TimerCounts) -> None:
        """Make the part that asks the master."""
        base, config = self._base, self._base.settings.broker
        has_timer = base.settings.store.timer_wheel_enable
        self.sync: SlaveSync = SlaveSync(
            base.topics, self._groups.table, self._offsets, delays, self._groups.modes, users,
            saving, counts if has_timer else None, base.clock, base.access, acts=base.acts,
            is_chosen=config.enable_controller_mode, broker_id=config.broker_id,
        )  # fmt: skip

    def begin(self) -> None:
        """Begin to copy the log, or to send it."""
        self._replication = self._base.replicas.begin(self._base.store, self._base.clock)

    def handlers(self) -> Handlers:
        """Handler of slaves' requests for changes."""
        return {RequestCode(code): handler for code, handler in self.feed.handlers().items()}

    def listen(self) -> None:
        """In a slave, ask the master for topics that get messages."""
        if self._base.replicas.is_slave:
            self._base.events.listen(MessagesArrived, self.sync.arrived)

    def inner_services(self) -> Sequence[Service]:
        """The copy of the log."""
        return (self._replication,)

    def services(self) -> Sequence[Service]:
        """The feed of changes, and in a slave the requests to the master."""
        return (self.feed, self.sync) if self._base.replicas.is_slave else (self.feed,)
