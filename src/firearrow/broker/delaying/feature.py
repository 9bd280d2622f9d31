"""Messages with a delay level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from firearrow.broker.delaying.delivery import DelayedDelivery, settle_deliveries
from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.broker.events import SettingsChanged
from firearrow.broker.feature import Base, Feature
from firearrow.broker.sending.puts import Puts
from firearrow.broker.storage.reconciling import load_deliveries
from firearrow.broker.storage.saving import Saving
from firearrow.services import Service
from firearrow.store import MessagesArrived


class DelayFeature(Feature):
    """Progress of delay levels, and the delivery."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.offsets: Final = DelayOffsets(base.clock, base.root, base.settings.broker.config_generations)

    def load(self) -> None:
        """Read the progress of each level."""
        load_deliveries(self._base.store, self.offsets)

    def connect(self, puts: Puts, saving: Saving) -> None:
        """Make the delivery."""
        base = self._base
        self._saving = saving
        self.delivery: DelayedDelivery = DelayedDelivery(
            base.store, puts, base.topics, self.offsets, base.clock, base.loop, base.stats.tally
        )

    def listen(self) -> None:
        """Note waiting messages, and changed levels."""
        self._base.events.listen(MessagesArrived, self.delivery.arrived)
        self._base.events.listen(SettingsChanged, self._settings_changed)

    def _settings_changed(self, changed: SettingsChanged) -> None:
        if "messageDelayLevel" in changed.keys:
            self.delivery.change_levels(self._base.settings.store.message_delay_level)

    def deliveries(self) -> Sequence[Service]:
        """Delivery of due messages."""
        return (self.delivery,)

    def services(self) -> Sequence[Service]:
        """Periodic writes of the progress."""
        seconds = self._base.settings.store.flush_delay_offset_interval / 1000
        return (self._base.every("delay offsets", seconds, self._write),)

    def _write(self) -> None:
        self.offsets.settle(self._base.store.flushed_offset)
        self._saving.write(self.offsets.file)

    def save(self) -> None:
        """Write the progress that is on the disk with the log."""
        settle_deliveries(self._base.store, self.offsets)
        self.offsets.save()

    def close(self) -> None:
        """Close the progress."""
        self.offsets.close()
