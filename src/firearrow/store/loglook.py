"""What a start learns from the last records of the log alone.

After a clean stop of RocketMQ nothing says what queues had (``inventory``). The last records of the
log do, for the queues that these belong to. After a kill nothing says which transactions were
committed last, but the committed messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from firearrow.store.doors import Doors
from firearrow.store.events import MessagesArrived
from firearrow.store.leftout import Key
from firearrow.store.queues import Entries
from firearrow.store.scan import RECORDS_MAX

LOOK_BYTES: Final = 16 << 20
"""So much of the log's end is looked at, some 0.1 s with small messages."""


class LastRecords:
    """Takes entries as queues do, and keeps of each queue where its last record begins."""

    def __init__(self, is_batch: Callable[[str], bool]) -> None:
        self.is_batch = is_batch
        self.by_key: dict[Key, int] = {}

    def put(self, entries: Entries, *, complete: bool = False) -> MessagesArrived:
        """Keep the last record of each queue that has some here."""
        for run in entries.each_run():
            self.by_key[run.topic, run.queue_id] = int(entries.physical_offset[run.end - 1])
        return MessagesArrived()


def committed_halves(
    store: Doors, physical_offset: int, bytes_max: int
) -> Iterator[list[tuple[int, int]]]:
    """The physical offsets of halves that the records from an offset on are commits of, each with
    that of its record.

    A record that names offset 0 may be of a half there, or a copy of a committed message: one that
    was delayed or sent back names no half. A list for each scan, so that others get their turn;
    nothing beyond ``bytes_max``.
    """
    log = store.log
    end = log.end_offset
    at, before = physical_offset, -1
    while before < at < min(end, physical_offset + bytes_max):
        columns = log.scan(at, end, RECORDS_MAX)
        if columns is None:
            return
        is_commit = columns.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
        halves, records = columns.prepared_offset[is_commit], columns.physical_offset[is_commit]
        yield list(zip(halves.tolist(), records.tolist(), strict=True))
        at, before = log.after(at, columns), at
