"""Care of the store: flushing, acknowledging, retention, healing, and writes of state files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from firearrow.broker.events import SettingsChanged
from firearrow.broker.feature import Base, Feature
from firearrow.broker.metrics.stats import SAMPLE_SECONDS
from firearrow.broker.state.persistence import StateFile
from firearrow.broker.storage.healing import Healing
from firearrow.broker.storage.saving import Confirming, Following, Kept, Saving
from firearrow.services import Service
from firearrow.store import MessageStore, RecordDamaged


class StorageFeature(Feature):
    """The store's services, and one writer of all state files.

    Changes of ``kept`` tables outlive the process before they are answered, and answers to the
    codes of ``confirming`` wait for slaves as well. ``files`` follow their tables.
    """

    def __init__(
        self, base: Base, kept: Sequence[Kept], files: Iterable[StateFile], confirming: Mapping[int, Confirming]
    ) -> None:
        self._base = base
        self._files = tuple(files)
        self.saving = Saving(kept, confirming=confirming)
        self._healing = Healing(base.store, base.replicas.source_of_log)

    def listen(self) -> None:
        """Heal records that a read found damaged, and follow changed settings of retention."""
        self._base.events.listen(RecordDamaged, self._healing.met)
        self._base.events.listen(SettingsChanged, self._settings_changed)

    def _settings_changed(self, _: SettingsChanged) -> None:
        self._base.store.retain_by(self._base.settings.store)

    def inner_services(self) -> Sequence[Service]:
        """Services of the store, retention, and queues that fell behind the log."""
        base, store = self._base, self._base.store
        clean_seconds = base.settings.store.clean_resource_interval / 1000
        return (
            *store.services,
            base.every("retention", clean_seconds, store.clean),
            base.every("queues left out", CATCH_UP_SECONDS, CatchingUp(store).step),
        )

    def services(self) -> Sequence[Service]:
        """Writers of state files, the answers that wait for the disk, counters, and healing."""
        base, store = self._base, self._base.store
        return (
            self.saving,
            Following(self.saving, self._files, base.loop),
            store.acknowledging,
            *([store.confirming] if store.confirming is not store.acknowledging else []),
            base.every("counters", SAMPLE_SECONDS, base.stats.sample_step),
            self._healing,
        )

    async def finish(self) -> None:
        """Return once no state file is being written."""
        await self.saving.finish()


# --- Has queues that were left out catch up with the log, by time ---


CATCH_UP_SECONDS: Final = 1.0  # how soon a queue that was left out is seen to
RESTING_SECONDS: Final = 5.0  # the same where the log did not grow since the last look


class CatchingUp:
    """Looks after the queues of a store that were left out."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._looked_at = -1  # where the log ended at the last look

    def step(self) -> float:
        """Let them catch up; look again soon whether there are any."""
        wait = self._store.catch_up_left_out()
        looked_at, self._looked_at = self._looked_at, self._store.log_end_offset
        if wait is None and looked_at == self._looked_at:
            return RESTING_SECONDS
        return CATCH_UP_SECONDS if wait is None else min(wait, CATCH_UP_SECONDS)
