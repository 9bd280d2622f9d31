"""The ConsumeQueues of a store with ``storeType=defaultRocksDB``: all in one database.

``rocksformat`` has the rows. Queues cost no files, so there may be a million of them; a queue is an
object only while it is in use. The database keeps no log of its own writes: what a kill takes from
it is dispatched again from the CommitLog.

Entries are written in each round of dispatch, one batch for all queues. A queue's row in
``offset``, which says how far it goes, and the row that says how far dispatch has come are written
when the entries that they vouch for are on the disk (``flush``). So whatever is on the disk after
any end, no queue claims an entry that is missing; entries that none claims are written over.

Source: upstream ``RocksDBConsumeQueueStore``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from firearrow.database import Batch, Database, Family, KiB, MiB, Table
from firearrow.errors import ConfigError, CorruptStore
from firearrow.store import rocksformat as rows
from firearrow.store.queues import Entries, OnArrival, QueueRange, Run
from firearrow.store.rocksqueue import RocksConsumeQueue
from firearrow.store.scan import RECORD_BYTES_MIN, Ints

log = logging.getLogger(__name__)

QUEUES_IN_MEMORY_MAX: Final = 65_536
"""How many queues that nothing holds may stay objects, of some 600 bytes, for their next use."""
_OPEN_FILES_MAX: Final = 512
_CACHE_BYTES: Final = 64 * MiB
_ENTRY_BUFFER_BYTES: Final = 32 * MiB
_OFFSET_BUFFER_BYTES: Final = 16 * MiB
_OFFSET_BLOCK_BYTES: Final = 4 * KiB  # rows are looked up one by one, when a queue is first used
_FLUSH_STEP_QUEUES: Final = 1024  # bounds how long a flush keeps dispatch waiting
_FLUSH_ENTRIES: Final = 262_144  # what a kill may cost the next start: some two seconds
_END_KEY: Final = b"\xff"
_VALUE: Final = np.dtype(
    [("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8"), ("store_ms", ">i8")]
)


class RocksConsumeQueues:
    """Implements ``ConsumeQueues``.

    There is one object for a queue at any time. ``pending`` keeps those that have messages which
    are not dispatched yet, ``_unsaved`` those whose row is out of date, and two generations those
    that were used last; others go when nobody holds them.
    """

    def __init__(self, directory: Path, elsewhere: Path, compression: str) -> None:
        """Have the queues in ``directory``; that none are ``elsewhere`` is checked by ``load``."""
        self._directory = directory
        self._elsewhere = elsewhere
        self._families = [
            Family(rows.ENTRIES, _ENTRY_BUFFER_BYTES, (compression, "zstd"), universal=True),
            Family(rows.OFFSETS, _OFFSET_BUFFER_BYTES, block_bytes=_OFFSET_BLOCK_BYTES),
        ]
        self._database: Database | None = None
        self.log_start_offset = 0
        self.dispatched_offset = 0
        self.pending: set[RocksConsumeQueue] = set()
        self._all: WeakValueDictionary[tuple[str, int], RocksConsumeQueue] = WeakValueDictionary()
        self._recent: dict[tuple[str, int], RocksConsumeQueue] = {}
        self._less_recent: dict[tuple[str, int], RocksConsumeQueue] = {}
        self._left_out: set[tuple[str, int]] = set()
        self._unsaved: set[RocksConsumeQueue] = set()
        self._unflushed_entries = 0
        self._expire_to = self._expired_to = 0  # where the log began, and as far as rows know it
        self._writing = Lock()  # entries together with what is known of them, against flush
        self._flushing = Lock()

    # --- the database ---

    def load(self) -> None:
        """Open the database.

        Raises ConfigError if it is in the other of its two places, or without the package for it.
        """
        if (self._elsewhere / "CURRENT").exists():
            raise ConfigError(
                f"the queues are in {self._elsewhere}, not in {self._directory}: "
                "useSeparateStorePathForRocksdbCQ has been changed"
            )
        self._database = Database(
            self._directory,
            self._families,
            cache_bytes=_CACHE_BYTES,
            open_files_max=_OPEN_FILES_MAX,
            log_ahead=False,
        )
        value = self._offsets.get(rows.DISPATCHED_KEY)
        self.dispatched_offset = rows.DISPATCHED.unpack(value)[0] if value else 0

    @property
    def _open_database(self) -> Database:
        assert self._database is not None
        return self._database

    @property
    def entries(self) -> Table:
        """The rows of entries."""
        return self._open_database.tables[rows.ENTRIES]

    @property
    def _offsets(self) -> Table:
        return self._open_database.tables[rows.OFFSETS]

    def flush(self, least_pages: int) -> None:
        """Bring to the disk what was put before the call, see ``ConsumeQueues.flush``."""
        if least_pages and self._unflushed_entries < _FLUSH_ENTRIES:
            return
        with self._flushing:
            with self._writing:
                self._unflushed_entries = 0
                dispatched_offset = self.dispatched_offset
                ends = [
                    (queue, queue.max_physical_offset, queue.max_offset) for queue in self._unsaved
                ]
            self.entries.flush()
            for start in range(0, len(ends), _FLUSH_STEP_QUEUES):
                self._save(ends[start : start + _FLUSH_STEP_QUEUES])
            with self._writing:
                batch = self._open_database.batch()
                dispatched_offset = min(dispatched_offset, self.dispatched_offset)
                _put_dispatched(batch, dispatched_offset)
                self._open_database.write(batch)
            if least_pages == 0 and self._expired_to < self._expire_to:
                expire_to = self._expire_to
                self._remove_expired(expire_to)
                self._expired_to = expire_to
            self._offsets.flush()

    def _save(self, ends: list[tuple[RocksConsumeQueue, int, int]]) -> None:
        """Write the rows of queues whose entries are on the disk."""
        batch = self._open_database.batch()
        with self._writing:
            for queue, physical_offset, max_offset in ends:
                if queue not in self._unsaved:
                    continue  # its topic was deleted meanwhile
                _put_place(batch, queue, rows.MAX, physical_offset, max_offset - 1)
                if (queue.max_physical_offset, queue.max_offset) == (physical_offset, max_offset):
                    self._unsaved.discard(queue)
            self._open_database.write(batch)

    def close(self) -> None:
        """Close the database; what was not flushed is dispatched again at the next start."""
        if self._database is not None:
            self._database.close()
            self._database = None
        for some in (self._recent, self._less_recent, self.pending, self._unsaved):
            some.clear()

    # --- queues in memory ---

    def find(self, topic: str, queue_id: int) -> RocksConsumeQueue | None:
        """The queue, if it has messages or is in use."""
        queue = self._recent.get((topic, queue_id))
        if queue is None:
            queue = self._all.get((topic, queue_id)) or self._load(topic, queue_id)
            if queue is not None:
                self._keep(queue)
        return queue

    def open(self, topic: str, queue_id: int) -> RocksConsumeQueue:
        """The queue; a new one gets its row some time after its first message."""
        queue = self._recent.get((topic, queue_id)) or self.find(topic, queue_id)
        if queue is None:
            queue = self._all[topic, queue_id] = RocksConsumeQueue(self, topic, queue_id, (-1, -1))
            self._keep(queue)
        return queue

    def _load(self, topic: str, queue_id: int) -> RocksConsumeQueue | None:
        value = self._offsets.get(rows.offset_key(topic, queue_id, rows.MAX))
        if value is None or len(value) != rows.PLACE.size:
            return None
        queue = RocksConsumeQueue(self, topic, queue_id, rows.PLACE.unpack(value))
        self._all[topic, queue_id] = queue
        return queue

    def _keep(self, queue: RocksConsumeQueue) -> None:
        if len(self._recent) >= QUEUES_IN_MEMORY_MAX // 2:
            self._less_recent, self._recent = self._recent, {}
        self._recent[queue.topic, queue.queue_id] = queue

    def _forget(self, key: tuple[str, int]) -> None:
        self._recent.pop(key, None)
        self._less_recent.pop(key, None)
        queue = self._all.pop(key, None)
        if queue is not None:
            self.pending.discard(queue)
            self._unsaved.discard(queue)

    def _rows(self, prefix: bytes = b"") -> Iterator[rows.OffsetRow]:
        for key, value in self._offsets.rows(prefix):
            row = rows.offset_row(key, value)
            if row is not None:
                yield row

    def _keys(self, prefix: bytes = b"") -> set[tuple[str, int]]:
        """Topic and queue id of every queue that has messages; ``prefix`` is of their keys."""
        saved = {(row.topic, row.queue_id) for row in self._rows(prefix) if row.kind == rows.MAX}
        unsaved = {(queue.topic, queue.queue_id) for queue in list(self._unsaved)}
        return saved | {key for key in unsaved if rows.topic_head(key[0]).startswith(prefix)}

    def ranges(self) -> Iterator[QueueRange]:
        """What each queue has."""
        for topic, queue_id in sorted(self._keys()):
            queue = self.find(topic, queue_id)
            if queue is not None:
                yield QueueRange(topic, queue_id, queue.min_offset, queue.max_offset)

    # --- writing ---

    def put(self, entries: Entries, on_arrival: OnArrival, *, complete: bool = False) -> None:
        """Write all runs in one batch, see ``ConsumeQueues.put``."""
        arrived: list[tuple[RocksConsumeQueue, int]] = []
        before: list[tuple[RocksConsumeQueue, int, int]] = []
        with self._writing:
            batch = self._open_database.batch()
            try:
                self._stage(batch, entries, arrived, before, complete)
                self._open_database.write(batch)
            except OSError:
                for queue, max_offset, physical_offset in reversed(before):
                    queue.max_offset, queue.max_physical_offset = max_offset, physical_offset
                raise
            last = int(entries.physical_offset.argmax())
            end = int(entries.physical_offset[last] + entries.size[last])
            self.dispatched_offset = max(self.dispatched_offset, end)
            changed = [queue for queue, _ in arrived]
            self._unsaved.update(changed)
            self.pending.difference_update([queue for queue in changed if queue.is_settled])
        for queue, first in arrived:
            on_arrival(queue, first)

    def _stage(
        self,
        batch: Batch,
        entries: Entries,
        arrived: list[tuple[RocksConsumeQueue, int]],
        before: list[tuple[RocksConsumeQueue, int, int]],
        complete: bool,
    ) -> None:
        """Add the rows of all runs to a batch and note the new ends of the queues."""
        keys = entries.queue_offset.astype(">i8").view("V8").tolist()
        values = _values(entries)
        physical = entries.physical_offset
        firsts = physical[[run.start for run in entries.runs]].tolist()
        lasts = physical[[run.end - 1 for run in entries.runs]].tolist()
        put = batch.put_default
        for run, first_physical, last_physical in zip(entries.runs, firsts, lasts, strict=True):
            topic, queue_id, first, start, end = run
            queue = self.open(topic, queue_id)
            before.append((queue, queue.max_offset, queue.max_physical_offset))
            if first != queue.max_offset or first_physical <= queue.max_physical_offset:
                try:
                    start = self._fit(batch, queue, run, physical, values, complete)
                except CorruptStore as error:
                    self._leave_out(topic, queue_id, error)
                    continue
            head = queue.head
            if end - start == 1:
                put(head + keys[start], values[start])
            else:
                for key, value in zip(keys[start:end], values[start:end], strict=True):
                    put(head + key, value)
            if start < end:
                queue.set_end(first + end - run.start, last_physical)
            arrived.append((queue, first))

    def _fit(
        self,
        batch: Batch,
        queue: RocksConsumeQueue,
        run: Run,
        physical: Ints,
        values: list[bytes],
        complete: bool,
    ) -> int:
        """The row from which on the queue lacks entries, see ``FileConsumeQueue``."""
        some = physical[run.start : run.end]
        known = int(some.searchsorted(queue.max_physical_offset, side="right"))
        queue_offset = run.queue_offset + known
        if known == len(some) or queue_offset == queue.max_offset:
            return run.start + known
        lost = queue_offset - queue.max_offset
        room = (int(some[known]) - queue.max_physical_offset) // RECORD_BYTES_MIN
        if queue_offset == 0:
            log.warning(
                "queue %s-%d begins anew: its topic was made again", queue.topic, queue.queue_id
            )
            batch.delete_range(rows.ENTRIES, *rows.entry_range(queue.head))
            queue.next_offset = 0
        elif not complete or lost < 0 or (queue.max_offset and lost > room):
            raise CorruptStore(
                f"queue {queue.topic}-{queue.queue_id} ends at {queue.max_offset}, "
                f"its next message has {queue_offset}"
            )
        elif queue.max_offset:  # what is lost leads to what follows it
            for missing in range(queue.max_offset, queue_offset):
                batch.put_default(
                    queue.head + missing.to_bytes(8, "big"), values[run.start + known]
                )
        queue.forget_min()
        return run.start + known

    def _leave_out(self, topic: str, queue_id: int, error: CorruptStore) -> None:
        """One broken queue must not keep the others from their messages."""
        if (topic, queue_id) not in self._left_out:
            self._left_out.add((topic, queue_id))
            log.error("a queue gets no further entries, its messages stay in the log: %s", error)

    # --- forgetting ---

    @property
    def max_physical_offset(self) -> int:
        """The last byte of the log that any queue knows of, -1 for none."""
        return self.dispatched_offset - 1

    def last_before(self, physical_offset: int) -> int:
        """-1: entries are in order of queues, not of records."""
        return -1

    def correct_min(self, log_start_offset: int) -> None:
        """Have each ``min_offset`` be the first message that the log still holds."""
        self.log_start_offset = log_start_offset
        for queue in list(self._all.values()):
            queue.forget_min()

    def cut(self, log_end_offset: int) -> None:
        """Forget the entries of records at or after a physical offset."""
        if self.dispatched_offset <= log_end_offset:
            return
        self.dispatched_offset = log_end_offset
        batch = self._open_database.batch()
        for topic, queue_id in self._keys():
            queue = self.open(topic, queue_id)
            if queue.max_physical_offset >= log_end_offset:
                self._cut_queue(batch, queue, log_end_offset)
        _put_dispatched(batch, log_end_offset)
        self._open_database.write(batch)

    def _cut_queue(self, batch: Batch, queue: RocksConsumeQueue, log_end_offset: int) -> None:
        end = queue.first_at_or_after(log_end_offset)
        start = queue.head + end.to_bytes(8, "big")
        batch.delete_range(rows.ENTRIES, start, rows.entry_range(queue.head)[1])
        physical_offset = queue.physical_offset_at(end - 1)
        if physical_offset < 0:
            end = 0
            batch.delete(rows.OFFSETS, rows.offset_key(queue.topic, queue.queue_id, rows.MAX))
        else:
            _put_place(batch, queue, rows.MAX, physical_offset, end - 1)
        queue.next_offset = 0
        queue.set_end(end, physical_offset)
        queue.forget_min()

    def delete_expired(self, log_start_offset: int) -> list[Path]:
        """Have the next thorough ``flush``, which has a thread of its own, remove the entries of
        records that the log no longer holds: with very many queues that takes a while."""
        self._expire_to = log_start_offset
        return []

    def _remove_expired(self, log_start_offset: int) -> None:
        """Remove the entries of records before a physical offset; of queues with entries on the
        disk only, and without any queue in memory.

        Java: RemoveConsumeQueueCompactionFilter drops them whenever files are merged.
        """
        ends = (row for row in self._rows() if row.kind == rows.MAX)
        while some := list(islice(ends, _FLUSH_STEP_QUEUES)):
            batch = self._open_database.batch()
            for row in some:
                self._expire(batch, row, log_start_offset)
            self._open_database.write(batch)

    def _expire(self, batch: Batch, row: rows.OffsetRow, log_start_offset: int) -> None:
        head = rows.entry_head(row.topic, row.queue_id)
        start, end = rows.entry_range(head)
        oldest = self.entries.some(start, 1)
        if not oldest or not start < oldest[0][0] < end:
            return
        if rows.VALUE.unpack(oldest[0][1])[0] >= log_start_offset:
            return
        low, high = int.from_bytes(oldest[0][0][-8:], "big") + 1, row.queue_offset + 1
        while low < high:
            middle = (low + high) // 2
            value = self.entries.get(head + middle.to_bytes(8, "big"))
            if value is None or rows.VALUE.unpack(value)[0] < log_start_offset:
                low = middle + 1
            else:
                high = middle
        batch.delete_range(rows.ENTRIES, start, head + low.to_bytes(8, "big"))
        key = rows.offset_key(row.topic, row.queue_id, rows.MIN)
        batch.put(rows.OFFSETS, key, rows.PLACE.pack(log_start_offset, low))

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues; that they are deleted is on the disk on return."""
        self._delete(
            self._keys(rows.topic_head(topic)) | {key for key in list(self._all) if key[0] == topic}
        )
        self._offsets.flush()

    def delete_queues(self, keys: set[tuple[str, int]]) -> None:
        """Forget single queues; that they are deleted is on the disk on return."""
        self._delete(keys)
        self._offsets.flush()

    def _delete(self, keys: set[tuple[str, int]]) -> None:
        with self._writing:
            batch = self._open_database.batch()
            for key in keys:
                batch.delete_range(rows.ENTRIES, *rows.entry_range(rows.entry_head(*key)))
                for kind in (rows.MAX, rows.MIN):
                    batch.delete(rows.OFFSETS, rows.offset_key(*key, kind))
                self._forget(key)
            self._open_database.write(batch)

    def set_aside(self, directory: Path) -> set[tuple[str, int]]:
        """Delete the rows of queues that are left out: the log has all that they say."""
        aside = set(self._left_out)
        self._left_out.clear()
        if aside:
            self._delete(aside)
        return aside

    def clear(self) -> int:
        """Delete all queues; return how many had messages."""
        keys = self._keys()
        batch = self._open_database.batch()
        for family in (rows.ENTRIES, rows.OFFSETS):
            batch.delete_range(family, b"", _END_KEY)
        with self._writing:
            self._open_database.write(batch)
            for key in list(self._all):
                self._forget(key)
            self.dispatched_offset = 0
        return len(keys)


def _values(entries: Entries) -> list[bytes]:
    """The values of all entries' rows."""
    columns: npt.NDArray[Any] = np.empty(len(entries.size), _VALUE)
    columns["physical_offset"] = entries.physical_offset
    columns["size"] = entries.size
    columns["tag_code"] = entries.tag_code
    columns["store_ms"] = entries.store_ms
    values: list[bytes] = columns.view(f"V{rows.VALUE_BYTES}").tolist()
    return values


def _put_place(
    batch: Batch, queue: RocksConsumeQueue, kind: bytes, physical_offset: int, queue_offset: int
) -> None:
    key = rows.offset_key(queue.topic, queue.queue_id, kind)
    batch.put(rows.OFFSETS, key, rows.PLACE.pack(physical_offset, queue_offset))


def _put_dispatched(batch: Batch, physical_offset: int) -> None:
    batch.put(rows.OFFSETS, rows.DISPATCHED_KEY, rows.DISPATCHED.pack(physical_offset))
