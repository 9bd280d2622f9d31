"""The entries of ConsumeQueues that are kept in RocksDB, as columns; see ``queueentries``.

Format: ``firearrow.store.rocksformat``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Final

import numpy as np

from firearrow.client.queues import Bound
from firearrow.database import Table
from firearrow.spark.queueentries import ENTRY, ENTRY_BYTES, Entries, QueueKey, entry_columns
from firearrow.spark.storage import Storage
from firearrow.state import is_database, open_database
from firearrow.store import rocksformat as rows

PLACES: Final = ("consumequeue", "consumequeue_rocksdb")


class RocksQueue:
    """A queue in a database."""

    def __init__(self, table: Table, key: QueueKey, end: int) -> None:
        self._table = table
        self._head = rows.entry_head(*key)
        self._last = end

    def bound(self, log_start: int) -> Bound:
        """What it holds of a log that begins at ``log_start``."""
        return Bound(self.first_at_or_after(max(log_start, 0), 0, self._last), self._last)

    def first_at_or_after(self, physical_offset: int, start: int, end: int) -> int:
        """The first queue offset in ``[start, end]`` whose record is there or later."""
        return bisect_left(range(end), physical_offset, start, key=self._physical)

    def _key(self, queue_offset: int) -> bytes:
        return self._head + queue_offset.to_bytes(8, "big")

    def _physical(self, queue_offset: int) -> int:
        value = self._table.get(self._key(queue_offset))
        return -1 if value is None else int.from_bytes(value[:8], "big")

    def entries(self, start: int, end: int, step: int = 1) -> Entries:
        """The entries of queue offsets in ``[start, end)``, or of every so many of them."""
        end = min(end, self._last)
        offsets: list[int] = []
        values: list[bytes] = []
        if step == 1:
            for key, value in self._table.some(self._key(max(start, 0)), max(end - start, 0)):
                offset = int.from_bytes(key[-8:], "big")
                if not key.startswith(self._head) or offset >= end:
                    break
                offsets.append(offset)
                values.append(value[:ENTRY_BYTES])
        else:
            for offset in range(start, end, step):
                value_or_none = self._table.get(self._key(offset))
                if value_or_none is not None:
                    offsets.append(offset)
                    values.append(value_or_none[:ENTRY_BYTES])
        return entry_columns(np.array(offsets, np.int64), np.frombuffer(b"".join(values), ENTRY))


class RocksQueues:
    """Queues in a database."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._database = open_database(storage.place(directory), (rows.ENTRIES, rows.OFFSETS))

    @property
    def dispatched_offset(self) -> int:
        """The log offset before which all is dispatched, -1 if that is not known."""
        value = self._database.tables[rows.OFFSETS].get(rows.DISPATCHED_KEY)
        return -1 if value is None else int(rows.DISPATCHED.unpack(value)[0])

    def keys(self, topics: Collection[str] | None) -> Iterator[QueueKey]:
        """Topic and queue id of each, or of those of some topics, in order."""
        heads = [b""] if topics is None else [rows.topic_head(topic) for topic in topics]
        table = self._database.tables[rows.OFFSETS]
        found = (rows.offset_row(*pair) for head in heads for pair in table.rows(head))
        yield from sorted(
            (row.topic, row.queue_id) for row in found if row is not None and row.kind == rows.MAX
        )

    def open(self, key: QueueKey) -> RocksQueue:
        """One of them; an empty one if there is none of that name."""
        value = self._database.tables[rows.OFFSETS].get(rows.offset_key(*key, rows.MAX))
        end = 0 if value is None else rows.PLACE.unpack(value)[1] + 1
        return RocksQueue(self._database.tables[rows.ENTRIES], key, end)


def rocks_queues(storage: Storage) -> RocksQueues | None:
    """The queues of a store if they are in a database."""
    for directory in PLACES:
        if is_database(storage.place(directory)):
            return RocksQueues(storage, directory)
    return None
