"""Facts that a start learns from the last records of the log alone.

After a clean stop of RocketMQ nothing notes the ends of queues (``inventory``). The last records of the log show them,
for the queues of these records. After a kill only the committed messages show which transactions were committed last.
Likewise, a broker that takes over may learn only from the deliveries which delayed messages were delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from firearrow.message.names import SCHEDULE_TOPIC
from firearrow.message.properties import TIMER_OUT_MS
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from firearrow.store.events import MessagesArrived
from firearrow.store.laggingqueues import Key
from firearrow.store.queues import DispatchedEntries
from firearrow.store.scan import RECORDS_MAX, Columns, Properties
from firearrow.store.writer import Writer

_TIMED: Final = f"{TIMER_OUT_MS}\x01".encode()
LOOK_BYTES: Final = 16 << 20
"""Bytes of the log's end that are read, some 0.1 s with small messages."""


class LastRecords:
    """Takes entries as queues do, and keeps the start of the last record of each queue."""

    def __init__(self, is_batch: Callable[[str], bool]) -> None:
        self.is_batch = is_batch
        self.by_key: dict[Key, int] = {}

    def put(self, entries: DispatchedEntries, *, complete: bool = False) -> MessagesArrived:
        """Keep the last record of each queue that has some here."""
        for run in entries.each_run():
            self.by_key[run.topic, run.queue_id] = int(entries.physical_offset[run.end - 1])
        return MessagesArrived()


def committed_halves(store: Writer, physical_offset: int, bytes_max: int) -> Iterator[list[tuple[int, int]]]:
    """The physical offsets of halves whose commits are among the records from an offset on, each with the offset of its
    commit.

    A record that names offset 0 may be of a half there, or a copy of a committed message: a delayed or retried message
    names no half. There is a list for each scan, so that other work gets its turn; nothing beyond ``bytes_max``.
    """
    for columns in _scans(store, physical_offset, bytes_max):
        is_commit = columns.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
        halves, records = columns.prepared_offset[is_commit], columns.physical_offset[is_commit]
        yield list(zip(halves.tolist(), records.tolist(), strict=True))


def delivered_copies(store: Writer, physical_offset: int, bytes_max: int) -> Iterator[list[tuple[int, int]]]:
    """The records from an offset on that may be deliveries of delayed messages: the physical offset of the message that
    each names, 0 if none, and its own.

    There is a list for each scan, so that other work gets its turn; nothing from before the file of the log that has
    the byte ``bytes_max`` before its end.
    """
    schedule = SCHEDULE_TOPIC.encode()
    for columns in _last_scans(store, physical_offset, bytes_max):
        topics, number = columns.topics()
        goes_on = np.array([topic != schedule for topic in topics], np.bool_)[number]
        is_copy = goes_on & (Properties(columns).delay_levels() > 0)
        named, records = columns.prepared_offset[is_copy], columns.physical_offset[is_copy]
        yield list(zip(named.tolist(), records.tolist(), strict=True))


def timed_copies(store: Writer, physical_offset: int, bytes_max: int) -> Iterator[list[tuple[int, int]]]:
    """The records from an offset on that name a message with a delivery time, like `delivered_copies`
    for delay levels.
    """
    for columns in _last_scans(store, physical_offset, bytes_max):
        timed = Properties(columns).holding(_TIMED)
        timed = timed[columns.prepared_offset[timed] > 0]
        named, records = columns.prepared_offset[timed], columns.physical_offset[timed]
        yield list(zip(named.tolist(), records.tolist(), strict=True))


def _last_scans(store: Writer, physical_offset: int, bytes_max: int) -> Iterator[Columns]:
    """The records from an offset on, but none before the file of the log that has the byte ``bytes_max`` before its
    end.
    """
    log = store.log
    begin = max(physical_offset, log.base_of(max(log.end_offset - bytes_max, 0)))
    yield from _scans(store, begin, log.end_offset - begin)


def _scans(store: Writer, physical_offset: int, bytes_max: int) -> Iterator[Columns]:
    """The records from an offset on, up to the end of the log or ``bytes_max``."""
    log = store.log
    end = log.end_offset
    at, before = physical_offset, -1
    while before < at < min(end, physical_offset + bytes_max):
        columns = log.scan(at, end, RECORDS_MAX)
        if columns is None:
            return
        if len(columns):
            yield columns
        at, before = log.after(at, columns), at
