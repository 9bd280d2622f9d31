"""Has a damaged record that a read meets put right by a replica of the log.

A slave has its master for that, a master the broker that `healFrom` names. The read that has met it
goes on without the record, as ever; those that come later find it. Each record is asked for once
after a start, one after the other, in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from firearrow.errors import FirearrowError
from firearrow.net.serialworker import SerialWorker
from firearrow.replication.fetching import Source
from firearrow.store import MessageStore, RecordDamaged

log = logging.getLogger(__name__)

WAITING_MAX: Final = 1024
"""Records that are still to be asked for; a store with more damage has another problem."""


class Healing(SerialWorker[RecordDamaged]):
    """Puts records of a store right; ``replica`` gives another broker that has the log, or None."""

    def __init__(self, store: MessageStore, replica: Callable[[], Source | None]) -> None:
        super().__init__("healing", WAITING_MAX)
        self._store = store
        self._replica = replica

    def met(self, record: RecordDamaged) -> None:
        """Have a record put right soon, if there is a replica."""
        if self._replica() is not None:
            self._add(record)

    async def _do(self, item: RecordDamaged) -> None:
        replica = self._replica()
        if replica is None:
            return  # the role is another one by now
        extra = {"physical_offset": item.physical_offset, "address": replica.address}
        try:
            why = await self._healed(item, replica)
        except (OSError, FirearrowError) as error:
            why = str(error)
        if why is None:
            log.warning("damaged record is as it was: a replica has it", extra=extra)
        else:
            log.error("a replica does not help", extra={**extra, "reason": why})

    async def _healed(self, record: RecordDamaged, replica: Source) -> str | None:
        """Put one right; give the reason if that can't be done."""
        asked = self._store.asked_for(record)
        if asked is None:
            return "the log does not hold it any more"
        data = await asyncio.to_thread(replica.fetch, asked.start, asked.size)
        why = self._store.mend(record, asked, data)
        if why is None:
            await asyncio.to_thread(self._store.flush_mended, record)
        return why
