"""The ConsumeQueues of a store with ``storeType=defaultRocksDB``: all in one database.

``rocksformat`` has the rows. Queues cost no files, so there may be a million of them. The database
keeps no log of its own writes: what a kill takes from it is dispatched again from the CommitLog.

The first use of a topic reads the rows of all its queues, which lie side by side, in little more
time than that of one. From then on they are objects, of some 200 bytes each, until the store is
closed: an appender's count and dispatch's must be the same object's.

Entries are written in each round of dispatch, one batch for all queues, by columns: with very many
queues each message is a run of its own. A queue's row in ``offset``, which says how far it goes,
and the row that says how far dispatch has come are written when the entries that they vouch for are
on the disk (``flush``). So whatever is on the disk after any end, no queue claims an entry that is
missing; entries that none claims are written over.

Source: upstream ``RocksDBConsumeQueueStore``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np

from firearrow.database import Batch, Database, Family, KiB, MiB, Table
from firearrow.errors import ConfigError, CorruptStore
from firearrow.message.names import is_lmq
from firearrow.store import rocksformat as rows
from firearrow.store.queues import Entries, OnArrivals, QueueRange, Run
from firearrow.store.rocksqueue import RocksConsumeQueue, RocksTopic
from firearrow.store.scan import RECORD_BYTES_MIN, Ints

log = logging.getLogger(__name__)

_OPEN_FILES_MAX: Final = 512
_CACHE_BYTES: Final = 64 * MiB
_ENTRY_BUFFER_BYTES: Final = 32 * MiB
_OFFSET_BUFFER_BYTES: Final = 16 * MiB
_OFFSET_BLOCK_BYTES: Final = 4 * KiB  # a topic's rows are read when it is first used: often few
_FLUSH_STEP_QUEUES: Final = 1024  # bounds how long a flush keeps dispatch waiting
_FLUSH_ENTRIES: Final = 262_144  # what a kill may cost the next start: some two seconds
_END_KEY: Final = b"\xff"


class RocksConsumeQueues:
    """Implements ``ConsumeQueues``.

    ``_unsaved`` has what the rows of queues in ``offset`` are to say; ``_saving`` is that of it
    which the flush under way makes true.
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
        self._topics: dict[str, RocksTopic] = {}
        self._left_out: set[tuple[str, int]] = set()
        self._unsaved: dict[RocksConsumeQueue, bytes] = {}
        self._saving: dict[RocksConsumeQueue, bytes] = {}
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
                if self._saving:  # the disk refused them
                    self._saving.update(self._unsaved)
                else:
                    self._saving = self._unsaved
                self._unsaved = {}
            self.entries.flush()
            self._save()
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

    def _save(self) -> None:
        """Write the rows of queues whose entries are on the disk."""
        while self._saving:
            batch = self._open_database.batch()
            with self._writing:
                count = min(len(self._saving), _FLUSH_STEP_QUEUES)
                some = [self._saving.popitem() for _ in range(count)]
                heads = [queue.of_topic.head for queue, _ in some]
                keys = rows.max_keys(heads, [queue.queue_id for queue, _ in some])
                batch.put_all(rows.OFFSETS, keys, [place for _, place in some])
                try:
                    self._open_database.write(batch)
                except OSError:
                    self._saving.update(some)
                    raise

    def close(self) -> None:
        """Close the database; what was not flushed is dispatched again at the next start."""
        if self._database is not None:
            self._database.close()
            self._database = None
        self._topics.clear()
        self._unsaved.clear()
        self._saving.clear()

    # --- queues in memory ---

    def find(self, topic: str, queue_id: int) -> RocksConsumeQueue | None:
        """The queue, if it has messages or is in use."""
        of_topic = self._topic(topic)
        return of_topic.queues.get(queue_id) if of_topic else None

    def open(self, topic: str, queue_id: int) -> RocksConsumeQueue:
        """The queue; a new one gets its row some time after its first message."""
        return self._open_topic(topic).open(queue_id)

    def _open_topic(self, name: str) -> RocksTopic:
        of_topic = self._topics.get(name) or self._topic(name)
        if of_topic is None:
            of_topic = self._topics[name] = RocksTopic(self, name)
        return of_topic

    def _topic(self, name: str) -> RocksTopic | None:
        """The queues of a topic; None if none has messages or is in use."""
        if name not in self._topics:
            head = rows.topic_head(name) + rows.MAX_MIDDLE
            found = [
                (rows.QUEUE_ID.unpack_from(key, len(head))[0], rows.PLACE.unpack(value))
                for key, value in self._offsets.rows(head)
                if len(value) == rows.PLACE.size
            ]
            if not found:
                return None
            of_topic = self._topics[name] = RocksTopic(self, name)
            for queue_id, place in found:
                of_topic.open(queue_id, place)
        return self._topics[name]

    def _forget(self, topic: str, queue_id: int) -> None:
        of_topic = self._topics.get(topic)
        queue = of_topic.queues.pop(queue_id, None) if of_topic else None
        if queue is not None:
            self._forget_row(queue)

    def _forget_row(self, queue: RocksConsumeQueue) -> None:
        self._unsaved.pop(queue, None)
        self._saving.pop(queue, None)

    def _rows(self, prefix: bytes = b"") -> Iterator[rows.OffsetRow]:
        for key, value in self._offsets.rows(prefix):
            row = rows.offset_row(key, value)
            if row is not None:
                yield row

    def _filled(self) -> Iterator[RocksConsumeQueue]:
        """All queues that have messages; those whose topic was not used are made for the caller."""
        used = dict(self._topics)
        for of_topic in used.values():
            yield from [queue for queue in of_topic.queues.values() if queue.max_offset]
        others = (row for row in self._rows() if row.kind == rows.MAX and row.topic not in used)
        for topic, some in groupby(others, attrgetter("topic")):
            of_topic = RocksTopic(self, topic)
            for row in some:
                place = row.physical_offset, row.queue_offset
                yield RocksConsumeQueue(of_topic, row.queue_id, place)

    def ranges(self) -> Iterator[QueueRange]:
        """What each queue has."""
        for queue in self._filled():
            yield QueueRange(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset)

    def light_count(self) -> int:
        """How many light queues there are."""
        return sum(is_lmq(queue.topic) for queue in self._filled())

    # --- writing ---

    def put(self, entries: Entries, on_arrivals: OnArrivals, *, complete: bool = False) -> None:
        """Write all runs in one batch, see ``ConsumeQueues.put``."""
        changes: list[_Change] = []
        places: dict[RocksConsumeQueue, bytes] = {}
        with self._writing:
            batch = self._open_database.batch()
            try:
                self._stage(batch, entries, changes, places, complete)
                self._open_database.write(batch)
            except OSError:
                for queue, _, max_offset, physical_offset in reversed(changes):
                    queue.set_end(max_offset, physical_offset)
                raise
            self._unsaved.update(places)
            self._unflushed_entries += len(entries.size)
            last = int(entries.physical_offset.argmax())
            end = int(entries.physical_offset[last] + entries.size[last])
            self.dispatched_offset = max(self.dispatched_offset, end)
        on_arrivals((queue, first) for queue, first, _, _ in changes)

    def _stage(
        self,
        batch: Batch,
        entries: Entries,
        changes: list[_Change],
        places: dict[RocksConsumeQueue, bytes],
        complete: bool,
    ) -> None:
        """Add the rows of all runs to a batch and note the new ends of the queues."""
        physical, queue_offset, runs = entries.physical_offset, entries.queue_offset, entries.runs
        last = runs.end - 1
        of_runs = zip(
            runs.topic,
            runs.queue_id,
            queue_offset[runs.start].tolist(),
            (queue_offset[last] + 1).tolist(),
            physical[runs.start].tolist(),
            physical[last].tolist(),
            rows.places(physical[last], queue_offset[last]),
            strict=True,
        )
        values = rows.entry_values(entries)
        heads: list[bytes] = []
        known: list[tuple[int, int]] = []
        of_topic = None
        for number, run in enumerate(of_runs):
            topic, queue_id, first, end, first_physical, last_physical, place = run
            if of_topic is None or of_topic.name != topic:  # they are in order of topics
                of_topic = self._open_topic(topic)
            heads.append(of_topic.head)
            queue = of_topic.queues.get(queue_id) or of_topic.open(queue_id)
            if first != queue.max_offset or first_physical <= queue.max_physical_offset:
                whole = entries.run(number)
                start = self._fit_or_leave_out(batch, queue, whole, physical, values, complete)
                known.append((whole.start, start))
                if start == whole.end:
                    continue
                first += start - whole.start
            changes.append((queue, first, queue.max_offset, queue.max_physical_offset))
            queue.set_end(end, last_physical)
            places[queue] = place
        head_of_each = np.array(heads, object).repeat(runs.end - runs.start).tolist()
        keys = rows.entry_keys(head_of_each, entries.queue_id, queue_offset)
        for start, end in reversed(known):
            del keys[start:end], values[start:end]
        batch.put_all(rows.ENTRIES, keys, values)

    def _fit_or_leave_out(
        self,
        batch: Batch,
        queue: RocksConsumeQueue,
        run: Run,
        physical: Ints,
        values: list[bytes],
        complete: bool,
    ) -> int:
        """The row from which on the queue lacks entries; the end of those it can't take."""
        try:
            return self._fit(batch, queue, run, physical, values, complete)
        except CorruptStore as error:
            self._leave_out(run.topic, run.queue_id, error)
            return run.end

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
                key = queue.head + missing.to_bytes(8, "big")
                batch.put(rows.ENTRIES, key, values[run.start + known])
        queue.forget_min()
        return run.start + known

    def _leave_out(self, topic: str, queue_id: int, error: CorruptStore) -> None:
        """One broken queue must not keep the others from their messages."""
        if (topic, queue_id) not in self._left_out:
            self._left_out.add((topic, queue_id))
            log.error("a queue gets no further entries, its messages stay in the log: %s", error)

    def adopt(self, taken: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Take rows of another database as they are, each with its family; they are on the disk on
        return. Their queues must not be in use."""
        taken = iter(taken)
        while some := list(islice(taken, _FLUSH_ENTRIES)):
            batch = self._open_database.batch()
            for family, key, value in some:
                batch.put(family, key, value)
            self._open_database.write(batch)
        self.entries.flush()
        self._offsets.flush()

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

    def cut(self, log_end_offset: int) -> None:
        """Forget the entries of records at or after a physical offset."""
        if self.dispatched_offset <= log_end_offset:
            return
        self.dispatched_offset = log_end_offset
        batch = self._open_database.batch()
        for queue in self._filled():
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
            batch.delete(rows.OFFSETS, queue.offset_key)
        else:
            batch.put(rows.OFFSETS, queue.offset_key, rows.PLACE.pack(physical_offset, end - 1))
        self._forget_row(queue)
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
        of_topic = self._topic(topic)
        if of_topic is not None:
            self.delete_queues({(topic, queue_id) for queue_id in of_topic.queues})

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
                self._forget(*key)
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
        filled = sum(1 for _ in self._filled())
        batch = self._open_database.batch()
        for family in (rows.ENTRIES, rows.OFFSETS):
            batch.delete_range(family, b"", _END_KEY)
        with self._writing:
            self._open_database.write(batch)
            self._topics.clear()
            self._unsaved.clear()
            self._saving.clear()
            self.dispatched_offset = 0
        return filled


# A queue, its first new queue offset, and its end as it was: max_offset, max_physical_offset.
_Change = tuple[RocksConsumeQueue, int, int, int]


def _put_dispatched(batch: Batch, physical_offset: int) -> None:
    batch.put(rows.OFFSETS, rows.DISPATCHED_KEY, rows.DISPATCHED.pack(physical_offset))
