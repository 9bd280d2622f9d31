"""Care of the store: flushing, acknowledging, retention, healing, and writes of state files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from firearrow.broker.events import SettingsChanged
from firearrow.broker.feature import Base, Feature
from firearrow.broker.metrics.stats import SAMPLE_SECONDS
from firearrow.broker.state.persistence import StateFile
from firearrow.broker.storage.saving import Confirming, Saving, SavingService, SyncedState
from firearrow.errors import FirearrowError
from firearrow.logs import Log
from firearrow.net.tasks import SerialWorker
from firearrow.replication.fetching import LogSource
from firearrow.services import Service
from firearrow.store import MessageStore, RecordDamaged


class StorageFeature(Feature):
    """The store's services, and one writer of all state files.

    Changes of ``kept`` tables outlive the process before they are answered, and answers to the
    codes of ``confirming`` wait for slaves as well. ``files`` follow their tables.
    """

    def __init__(
        self, base: Base, kept: Sequence[SyncedState], files: Iterable[StateFile], confirming: Mapping[int, Confirming]
    ) -> None:
        self._base = base
        self._files = tuple(files)
        self.saving: Final = Saving(kept, confirming=confirming)
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
            SavingService(self.saving, self._files, base.loop),
            store.acknowledging,
            *([store.confirming] if store.confirming is not store.acknowledging else []),
            base.every("counters", SAMPLE_SECONDS, base.stats.sample_step),
            self._healing,
        )

    async def finish(self) -> None:
        """Return once no state file is being written."""
        await self.saving.finish()


# --- Catch-up of queues left out ---


CATCH_UP_SECONDS: Final = 1.0  # pause between two looks at the queues that were left out
RESTING_SECONDS: Final = 5.0  # the same pause if the log did not grow since the last look


class CatchingUp:
    """Dispatches records to the queues of a store that were left out."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._looked_at = -1  # end of the log at the last look

    def step(self) -> float:
        """Let the queues catch up; return the seconds until the next look."""
        wait = self._store.catch_up_left_out()
        looked_at, self._looked_at = self._looked_at, self._store.log_end_offset
        if wait is None and looked_at == self._looked_at:
            return RESTING_SECONDS
        return CATCH_UP_SECONDS if wait is None else min(wait, CATCH_UP_SECONDS)


# --- Repair of damaged records ---
#
# A slave asks its master for the record, a master asks the broker that `healFrom` names. The read that met the damage
# goes on without the record; later reads find it. After a start each record is requested once, one after the other, in
# a thread.


log: Final = Log(__name__)

WAITING_MAX: Final = 1024
"""Records that are still to request; a store with more damage has another problem."""


class Healing(SerialWorker[RecordDamaged]):
    """Repairs records of a store; ``replica`` returns another broker that has the log, or None."""

    def __init__(self, store: MessageStore, replica: Callable[[], LogSource | None]) -> None:
        super().__init__("healing", WAITING_MAX)
        self._store = store
        self._replica = replica

    def met(self, record: RecordDamaged) -> None:
        """Queue a record for repair, if there is a replica."""
        if self._replica() is not None:
            self._add(record)

    async def _do(self, item: RecordDamaged) -> None:
        replica = self._replica()
        if replica is None:
            return  # the role has changed meanwhile
        extra = {"physical_offset": item.physical_offset, "address": replica.address}
        try:
            why = await self._healed(item, replica)
        except (OSError, FirearrowError) as error:
            why = str(error)
        if why is None:
            log.warning("damaged record is restored from a replica", extra=extra)
        else:
            log.error("damaged record can't be restored from a replica", extra={**extra, "reason": why})

    async def _healed(self, record: RecordDamaged, replica: LogSource) -> str | None:
        """Repair a record; return the reason if that is not possible."""
        asked = self._store.asked_for(record)
        if asked is None:
            return "the log does not hold it any more"
        data = await asyncio.to_thread(replica.fetch, asked.start, asked.size)
        why = self._store.mend(record, asked, data)
        if why is None:
            await asyncio.to_thread(self._store.flush_mended, record)
        return why
