"""Messages with a delivery time: the timer wheel, delivery, recall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.feature import Base, Feature, Handlers
from firearrow.broker.replication.slavesync import SlaveSync
from firearrow.broker.timing.counts import TimerCounts
from firearrow.broker.timing.recalls import RecallProcessor
from firearrow.broker.timing.timer import Delivering, TimedMessages, open_timers
from firearrow.services import Service
from firearrow.store import TimerFlush, TimerStore
from firearrow.wire.bodies import LEAD
from firearrow.wire.codes import RequestCode


class TimingFeature(Feature):
    """The timer's files, and the service that keeps and delivers its messages."""

    def __init__(self, base: Base) -> None:
        self._base = base
        keys = base.settings.store
        self._is_on = keys.timer_wheel_enable
        self.store: Final = TimerStore(base.root, keys.mapped_file_size_timer_log, keys.timer_precision_ms, base.fs)
        self.counts: Final = TimerCounts(self.store, base.clock, base.root / "config")
        self.timed: TimedMessages | None = None

    def load(self) -> None:
        """Bring the timer's files in line with the log."""
        if self._is_on:
            open_timers(self._base.store, self.store, self._base.clock.now_ms())
            self.counts.load(self._base.topics.table)

    def connect(self, context: BrokerContext, sync: SlaveSync) -> None:
        """Make the timer; a slave's timer follows its master's."""
        self._recalls = RecallProcessor(context, self.store)
        if not self._is_on:
            return
        base = self._base
        self._flush = TimerFlush(
            self.store,
            base.store.flush_log,
            self.counts.content,
            base.settings.store.timer_flush_interval_ms,
            base.clock.monotonic,
            None if base.in_background else base.loop,
        )
        self.timed = timed = TimedMessages(context, self.store, self.counts, self._flush, base.loop)
        base.events.listen(WaitsElsewhere, timed.waits)
        sync.timer_told.listen(timed.follow)
        sync.timer_back.listen(timed.take_back)
        base.store.keep_from(timed.let_go)

    def lead(self) -> None:
        """Mark the timer's progress as later than that of an absent master."""
        self.store.lead(LEAD)

    def saved_handlers(self) -> Handlers:
        """Handler of recalls."""
        return {RequestCode.RECALL_MESSAGE: self._recalls.recall}

    def inner_services(self) -> Sequence[Service]:
        """Flush and timer."""
        return () if self.timed is None else (self._flush, self.timed)

    def deliveries(self) -> Sequence[Service]:
        """The delivery by the timer, if only the acting broker may run it."""
        return (Delivering(self.timed),) if self.timed is not None and self._base.acts else ()

    def close(self) -> None:
        """Close the timer's files."""
        self.store.close()
