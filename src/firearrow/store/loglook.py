"""Where the log itself says that queues must reach: for a start that has no note of the last stop.

After a clean stop of RocketMQ nothing says what queues had (``inventory``). The last records of the
log do, for the queues that these belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from firearrow.store.leftout import Key
from firearrow.store.queues import Entries, OnArrivals

LOOK_BYTES: Final = 16 << 20
"""So much of the log's end is looked at, some 0.1 s with small messages."""


class LastRecords:
    """Takes entries as queues do, and keeps of each queue where its last record begins."""

    def __init__(self, is_batch: Callable[[str], bool]) -> None:
        self.is_batch = is_batch
        self.by_key: dict[Key, int] = {}

    def put(self, entries: Entries, on_arrivals: OnArrivals, *, complete: bool = False) -> None:
        """Keep the last record of each queue that has some here; nobody is told."""
        for run in entries.each_run():
            self.by_key[run.topic, run.queue_id] = int(entries.physical_offset[run.end - 1])
