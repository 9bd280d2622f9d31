"""The ConsumeQueues of a store with ``storeType=defaultRocksDB``: all in one database.

``rocksformat`` has the rows. Queues cost no files, so there may be a million of them. The database has no write-ahead
log: entries that a kill takes from it are dispatched again from the CommitLog.

The first use of a topic reads the rows of all its queues. They are side by side, so this takes little more time than
the row of one. From then on the queues are objects, of some 200 bytes each, until the store is closed: an appender and
dispatch must count in the same object.

Each round of dispatch writes its entries in one batch for all queues, by columns: with very many queues each message is
a separate run. A queue's row in ``offset``, which holds its end, and the row with the progress of dispatch are written
once their entries are on the disk (``flush``). So after any kind of end no queue claims a missing entry. Entries that
no queue claims are overwritten.

Source: RocketMQ's ``RocksDBConsumeQueueStore``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress, groupby, islice
from operator import attrgetter
from pathlib import Path
from threading import Lock, RLock
from typing import Final, NamedTuple

import numpy as np

from firearrow.database import Batch, Database, FamilyOptions, KiB, MiB, Table
from firearrow.errors import ConfigError, CorruptStore, MessageError
from firearrow.logs import Log
from firearrow.message.names import is_lmq
from firearrow.message.record import RECORD_BYTES_MIN, topic_field
from firearrow.store import rocksformat as rows
from firearrow.store.events import MessagesArrived
from firearrow.store.queues import DispatchedEntries, HasRecord, QueueRange, Run, Runs
from firearrow.store.rocksqueue import NO_PLACE, QueueEnds, RocksConsumeQueue, RocksTopic
from firearrow.store.scan import Ints

log: Final = Log(__name__)

_OPEN_FILES_MAX: Final = 512
_CACHE_BYTES: Final = 64 * MiB
_ENTRY_BUFFER_BYTES: Final = 8 * MiB  # more of a small buffer stays in the processor's cache
_OFFSET_BUFFER_BYTES: Final = 16 * MiB
_OFFSET_BLOCK_BYTES: Final = 4 * KiB  # a topic's rows are read when it is first used: often few
_FLUSH_STEP_QUEUES: Final = 1024  # limit of the time that dispatch waits for a flush
_FLUSH_ENTRIES: Final = 262_144  # the cost of a kill for the next start: some two seconds
_SCAN_STEP_TOPICS: Final = 200  # topics that are passed over in a row; a millisecond
_END_KEY: Final = b"\xff"


class RocksConsumeQueues:
    """Implements ``ConsumeQueues``.

    ``ends`` knows the queues with pending rows in ``offset``.
    """

    def __init__(self, directory: Path, elsewhere: Path, compression: str) -> None:
        """The queues in ``directory``; ``load`` checks that none are ``elsewhere``."""
        self._directory = directory
        self._elsewhere = elsewhere
        self._families = [
            FamilyOptions(rows.ENTRIES, _ENTRY_BUFFER_BYTES, (compression, "zstd"), universal=True),
            FamilyOptions(rows.OFFSETS, _OFFSET_BUFFER_BYTES, block_bytes=_OFFSET_BLOCK_BYTES),
        ]
        self._database: Database | None = None
        self.log_start_offset: int = 0
        self.dispatched_offset: int = 0
        self._topics: dict[str, RocksTopic] = {}
        self._left_out: set[tuple[str, int]] = set()
        self.ends: QueueEnds[RocksConsumeQueue] = QueueEnds()
        self._unflushed_entries = 0
        self._expire_to = self._expired_to = 0  # the log's begin, and the begin below which rows have been removed
        self._writing = RLock()  # guards entries together with the ends of their queues, against flush
        self._flushing = Lock()

    # --- the database ---

    def load(self, *, on_disk: bool = False) -> None:
        """Open the database.

        Raises ConfigError if it is in the other of its two places, or if its package is missing.
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
            log_ahead=False,  # the CommitLog is that log: each entry would be written twice
        )
        assert not self._topics, "queues are loaded before they are used"
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
        """Bring all entries that were put before the call to the disk, see ``ConsumeQueues.flush``.

        The entries come first. The rows with the ends of queues, and the row with the progress of dispatch, follow,
        with the values from before the flush of the entries. A power failure between the two leaves entries that no row
        claims, and they are dispatched again. The other order would leave rows that claim missing entries. (RocketMQ
        flushes both column families together, which Firearrow's binding can't.) The price is that a flush writes a row
        for each queue that has changed.
        """
        if least_pages and self._unflushed_entries < _FLUSH_ENTRIES:
            return
        with self._flushing:
            with self._writing:
                self._unflushed_entries = 0
                dispatched_offset = self.dispatched_offset
                slots = self.ends.begin_saving()
                ends = self.ends.max_offset[slots]
                physical_offsets = self.ends.max_physical_offset[slots]
            assert 0 not in slots, "the slot of forgotten queues has nothing to save"
            try:
                self.entries.flush()
                self._save(slots, rows.places(physical_offsets, ends - 1))
            except OSError:
                with self._writing:
                    self.ends.give_back()
                raise
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

    def _save(self, slots: Ints, places: list[bytes]) -> None:
        """Write the rows of queues whose entries are on the disk, except queues that were forgotten since.

        It takes steps, each under the lock: taking all 262,144 rows at once held the interpreter, and so the event
        loop, for some ten milliseconds.
        """
        assert len(places) == len(slots), "each slot has a place"
        for at in range(0, len(slots), _FLUSH_STEP_QUEUES):
            step = slice(at, at + _FLUSH_STEP_QUEUES)
            batch = self._open_database.batch()
            with self._writing:
                ends, some = self.ends, slots[step]
                still = ends.saving[some]
                found = map(ends.queues.__getitem__, some[still].tolist())
                queues = [queue for queue in found if queue is not None]
                heads = [queue.of_topic.head for queue in queues]
                keys = rows.max_keys(heads, [queue.queue_id for queue in queues])
                batch.put_all(rows.OFFSETS, keys, compress(places[step], still))
                self._open_database.write(batch)
                ends.saving[some] = False

    def close(self) -> None:
        """Close the database; entries that were not flushed are dispatched again at the next start."""
        if self._database is not None:
            self._database.close()
            self._database = None
        self._topics.clear()
        self.ends = QueueEnds()

    # --- queues in memory ---

    def is_batch(self, topic: str) -> bool:
        """False: the database has a row for each message, whatever the topic's attributes."""
        return False

    def admit_batches(self, topic: str) -> bool:
        """True: there is one kind of queue."""
        return True

    def find(self, topic: str, queue_id: int) -> RocksConsumeQueue | None:
        """The queue, if it has messages or is in use."""
        of_topic = self._topic(topic)
        return self.open(topic, queue_id) if of_topic and queue_id in of_topic.queues else None

    def open(self, topic: str, queue_id: int) -> RocksConsumeQueue:
        """The queue; a new one gets its row some time after its first message."""
        of_topic = self._topics.get(topic) or self._open_topic(topic)
        queue = of_topic.queues.get(queue_id) or self._new(of_topic, queue_id)
        if queue.next_offset < (end := self.ends.max_offsets[queue.slot]):
            queue.next_offset = end
        return queue

    def _new(self, of_topic: RocksTopic, queue_id: int, place: tuple[int, int] = NO_PLACE) -> RocksConsumeQueue:
        with self._writing:
            return of_topic.open(queue_id, place)

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
                self._new(of_topic, queue_id, place)
        return self._topics[name]

    def _forget(self, topic: str, queue_id: int) -> None:
        of_topic = self._topics.get(topic)
        queue = of_topic.queues.pop(queue_id, None) if of_topic else None
        if queue is not None:
            self.ends.give_up(queue)

    def _rows(self, prefix: bytes = b"", *, lmqs: bool = True) -> Iterator[rows.OffsetRow]:
        for key, value in self._offsets.rows(prefix):
            if not lmqs and rows.is_of_lmq(key):
                continue
            row = rows.offset_row(key, value)
            if row is not None:
                yield row

    def _filled(self) -> Iterator[RocksConsumeQueue]:
        """All queues that have messages; a queue whose topic was not used is made for the caller."""
        return (queue for queue in self._scanned() if queue is not None)

    def _scanned(self, *, lmqs: bool = True) -> Iterator[RocksConsumeQueue | None]:
        """The same, perhaps without LMQs. The iterator returns None now and then while it passes over rows."""
        used = dict(self._topics)
        for name, of_topic in used.items():
            if lmqs or not is_lmq(name):
                yield from [queue for queue in of_topic.queues.values() if queue.max_offset]
        of_queues = (row for row in self._rows(lmqs=lmqs) if row.kind == rows.MAX)
        for number, (topic, some) in enumerate(groupby(of_queues, attrgetter("topic"))):
            if topic in used:
                if number % _SCAN_STEP_TOPICS == 0:
                    yield None
                continue
            of_topic = RocksTopic(self, topic)
            for row in some:
                place = row.physical_offset, row.queue_offset
                with self._writing:
                    queue = RocksConsumeQueue(of_topic, row.queue_id, place)
                try:
                    yield queue
                finally:
                    with self._writing:
                        self.ends.give_up(queue)

    def ranges(self, *, lmqs: bool = True) -> Iterator[QueueRange]:
        """The range of each queue."""
        for queue in self._scanned(lmqs=lmqs):
            if queue is not None:
                yield QueueRange(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset)

    def topics_from(self, prefix: str) -> Iterator[str | None]:
        """The topics with messages whose names begin with a prefix, see ``ConsumeQueues.topics_from``."""
        last = ""
        for number, queue in enumerate(self._scanned()):
            if queue is not None and queue.topic != last and queue.topic.startswith(prefix):
                last = queue.topic
                yield last
            elif queue is None or number % _SCAN_STEP_TOPICS == 0:
                yield None

    def lmq_count(self) -> int:
        """Number of LMQs."""
        return sum(is_lmq(queue.topic) for queue in self._filled())

    # --- writing ---

    def put(self, entries: DispatchedEntries, *, complete: bool = False) -> MessagesArrived:
        """Write all runs in one batch, see ``ConsumeQueues.put``."""
        try:
            return self._put(entries, complete)
        except MessageError:  # no record can have one of the topics, so it has no queue
            runs = [run for run in entries.each_run() if self._can_be(run)]
        return self._put(entries.parts(runs), complete) if runs else MessagesArrived()

    def _can_be(self, run: Run) -> bool:
        """Tell whether a run's queue is possible. A topic that is no UTF-8 gets longer as a name."""
        try:
            topic_field(run.topic)
        except MessageError as error:
            self._leave_out(run.topic, run.queue_id, CorruptStore(str(error)))
            return False
        return True

    def _put(self, entries: DispatchedEntries, complete: bool) -> MessagesArrived:
        ends = self.ends
        with self._writing:
            batch = self._open_database.batch()
            queues, heads = self._queues_of(entries.runs)
            assert len(queues) == len(entries.runs.start), "each run has a queue"
            slots = np.array([queue.slot for queue in queues], np.int64)
            before = ends.max_offset[slots], ends.max_physical_offset[slots]
            first = entries.queue_offset[entries.runs.start]
            try:
                self._stage(batch, _Staged(entries, queues, slots, heads, first), complete)
                self._open_database.write(batch)
            except OSError:
                ends.max_offset[slots], ends.max_physical_offset[slots] = before
                raise
            ends.unsaved[slots[first >= 0]] = True
            self._unflushed_entries += len(entries.size)
            last = int(entries.physical_offset.argmax())
            end = int(entries.physical_offset[last] + entries.size[last])
            self.dispatched_offset = max(self.dispatched_offset, end)
            return _arrived(entries.runs, first, ends.max_offset[slots])

    def _queues_of(self, runs: Runs) -> tuple[list[RocksConsumeQueue], list[bytes]]:
        """The queue of each run, and the beginning of its topic's keys; the caller holds the lock."""
        queues: list[RocksConsumeQueue] = []
        heads: list[bytes] = []
        before = -1
        for number, queue_id in zip(runs.topic.tolist(), runs.queue_id.tolist(), strict=True):
            if number != before:  # they are in order of topics
                before = number
                name = runs.topics[number]
                of_topic = self._topics.get(name) or self._open_topic(name)
            queues.append(of_topic.queues.get(queue_id) or of_topic.open(queue_id))
            heads.append(of_topic.head)
        return queues, heads

    def _stage(self, batch: Batch, staged: _Staged, complete: bool) -> None:
        """Add the rows of all runs to a batch, and move the ends of their queues."""
        entries, ends = staged.entries, self.ends
        physical, queue_offset, runs = entries.physical_offset, entries.queue_offset, entries.runs
        values = rows.entry_values(entries)
        heads = staged.heads
        if len(heads) < len(values):
            heads = np.array(heads, object).repeat(runs.end - runs.start).tolist()
        # Entries are in the order of these keys, as topics are numbered in it (``Columns.topics``): the database then
        # takes half the time.
        keys = rows.entry_keys(heads, entries.queue_id, queue_offset)
        slots = staged.slots
        fits = staged.first == ends.max_offset[slots]
        fits &= physical[runs.start] > ends.max_physical_offset[slots]
        fits[1:] &= slots[1:] != slots[:-1]  # the second run of a queue is compared with the first's end
        if np.count_nonzero(fits) == len(fits):
            last = runs.end - 1
            ends.max_offset[slots] = queue_offset[last] + 1
            ends.max_physical_offset[slots] = physical[last]
        else:
            # From the end on, so that the numbers of earlier rows stay the same.
            for start, end in reversed(self._fit_each(batch, staged, values, complete)):
                del keys[start:end], values[start:end]
        batch.put_all(rows.ENTRIES, keys, values)

    def _fit_each(self, batch: Batch, staged: _Staged, values: list[bytes], complete: bool) -> list[tuple[int, int]]:
        """Move the ends run by run; return the rows that must not be written."""
        physical = staged.entries.physical_offset
        known: list[tuple[int, int]] = []
        for number, (run, queue) in enumerate(zip(staged.entries.each_run(), staged.queues, strict=True)):
            start = run.start
            if run.queue_offset != queue.max_offset or int(physical[start]) <= queue.max_physical_offset:
                start = self._fit_or_leave_out(batch, queue, run, physical, values, complete)
                assert run.start <= start <= run.end, "rows that are left out are the run's"
                known.append((run.start, start))
            if start == run.end:
                staged.first[number] = -1
                continue
            staged.first[number] += start - run.start
            end = run.queue_offset + run.end - run.start
            queue.set_end(end, int(physical[run.end - 1]))
        return known

    def _fit_or_leave_out(
        self, batch: Batch, queue: RocksConsumeQueue, run: Run, physical: Ints, values: list[bytes], complete: bool
    ) -> int:
        """First row that the queue lacks; the run's end if the queue can't take any."""
        try:
            return self._fit(batch, queue, run, physical, values, complete)
        except CorruptStore as error:
            self._leave_out(run.topic, run.queue_id, error)
            return run.end

    def _fit(
        self, batch: Batch, queue: RocksConsumeQueue, run: Run, physical: Ints, values: list[bytes], complete: bool
    ) -> int:
        """First row that the queue lacks, see ``FileConsumeQueue``."""
        some = physical[run.start : run.end]
        known = int(some.searchsorted(queue.max_physical_offset, side="right"))
        queue_offset = run.queue_offset + known
        if known == len(some) or queue_offset == queue.max_offset:
            return run.start + known
        lost = queue_offset - queue.max_offset
        room = (int(some[known]) - queue.max_physical_offset) // RECORD_BYTES_MIN
        if queue_offset == 0:
            log.warning(
                "queue begins again: its topic was made again", extra={"topic": queue.topic, "queue_id": queue.queue_id}
            )
            self._begin_again(batch, queue)
        elif complete and queue.max_physical_offset < self.log_start_offset:
            if queue.max_offset:  # each of a million new ones would leave a mark in the database
                self._begin_again(batch, queue)
        elif complete and 0 < lost <= room:  # entries of lost messages repeat the next entry
            for missing in range(queue.max_offset, queue_offset):
                key = queue.head + missing.to_bytes(8, "big")
                batch.put(rows.ENTRIES, key, values[run.start + known])
        else:
            raise CorruptStore(
                f"queue {queue.topic}-{queue.queue_id} ends at {queue.max_offset}, its next message has {queue_offset}"
            )
        queue.forget_min()
        return run.start + known

    @staticmethod
    def _begin_again(batch: Batch, queue: RocksConsumeQueue) -> None:
        batch.delete_range(rows.ENTRIES, *rows.entry_range(queue.head))
        queue.next_offset = 0

    def _leave_out(self, topic: str, queue_id: int, error: CorruptStore) -> None:
        """Leave out a broken queue, so that the others get their messages."""
        if (topic, queue_id) not in self._left_out:
            self._left_out.add((topic, queue_id))
            log.error(
                "queue gets no further entries: its messages stay in the log",
                extra={"topic": topic, "queue_id": queue_id, "error": error},
            )

    def adopt(self, taken: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Add rows of another database as they are, each with its family. They are on the disk on return. Their queues
        must not be in use.
        """
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
        """Last byte of the log that any queue knows, -1 for none."""
        return self.dispatched_offset - 1

    def last_before(self, physical_offset: int) -> int:
        """-1: entries are in order of queues, not of records."""
        return -1

    def correct_min(self, log_start_offset: int) -> None:
        """Make each ``min_offset`` the first message that the log still holds."""
        self.log_start_offset = log_start_offset

    def cut(self, log_end_offset: int, has_record: HasRecord | None = None) -> None:
        """Forget the entries of records at or after a physical offset; rows are never torn."""
        if self.dispatched_offset <= log_end_offset:
            return
        assert not self.ends.saving.any(), "queues are cut before any is flushed"
        self.dispatched_offset = log_end_offset
        batch = self._open_database.batch()
        for queue in self._filled():
            if queue.max_physical_offset >= log_end_offset:
                self._cut_queue(batch, queue, log_end_offset)
        _put_dispatched(batch, log_end_offset)
        self._open_database.write(batch)
        # A kill would bring back the entries: by that time, the log may have other records there.
        self._offsets.flush()
        self.entries.flush()

    def _cut_queue(self, batch: Batch, queue: RocksConsumeQueue, log_end_offset: int) -> None:
        end = queue.first_at_or_after(log_end_offset)
        assert end <= queue.max_offset, "a cut adds nothing"
        start = queue.head + end.to_bytes(8, "big")
        batch.delete_range(rows.ENTRIES, start, rows.entry_range(queue.head)[1])
        physical_offset = queue.physical_offset_at(end - 1)
        if physical_offset < 0:
            end = 0
            batch.delete(rows.OFFSETS, queue.offset_key)
        else:
            batch.put(rows.OFFSETS, queue.offset_key, rows.PLACE.pack(physical_offset, end - 1))
        self.ends.settled(queue.slot)
        queue.next_offset = 0
        queue.set_end(end, physical_offset)
        queue.forget_min()

    def delete_expired(self, log_start_offset: int) -> list[Path]:
        """Order the removal of entries of records that the log no longer holds. The next thorough ``flush`` does it in
        its thread: with very many queues it takes a while.
        """
        self._expire_to = log_start_offset
        return []

    def _remove_expired(self, log_start_offset: int) -> None:
        """Remove the entries of records before a physical offset, if they are on the disk.

        It loads no queue into memory. Java: RemoveConsumeQueueCompactionFilter drops such entries whenever files are
        merged.
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
        """Forget a topic's queues; their deletion is on the disk on return."""
        of_topic = self._topic(topic)
        if of_topic is not None:
            self.delete_queues({(topic, queue_id) for queue_id in of_topic.queues})

    def delete_queues(self, keys: set[tuple[str, int]]) -> None:
        """Forget single queues; their deletion is on the disk on return."""
        self._delete(keys)
        # Only these rows make a queue: no queue claims entries that come back.
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
        self._left_out -= keys

    def set_aside(self, directory: Path) -> set[tuple[str, int]]:
        """Delete the rows of queues that are left out: the log has all their messages."""
        aside = set(self._left_out)
        self._left_out.clear()
        if aside:
            self._delete(aside)
        return aside

    def clear(self) -> int:
        """Delete all queues; return the number of queues with messages."""
        filled = sum(1 for _ in self._filled())
        batch = self._open_database.batch()
        for family in (rows.ENTRIES, rows.OFFSETS):
            batch.delete_range(family, b"", _END_KEY)
        with self._writing:
            self._open_database.write(batch)
            for of_topic in self._topics.values():
                for queue in of_topic.queues.values():
                    self.ends.give_up(queue)
            self._topics.clear()
            self.dispatched_offset = 0
        return filled


class _Staged(NamedTuple):
    """A round that is being put. It has for each run the queue, its slot, the beginning of its keys, and the first new
    queue offset, -1 for none.
    """

    entries: DispatchedEntries
    queues: list[RocksConsumeQueue]
    slots: Ints
    heads: list[bytes]
    first: Ints


def _put_dispatched(batch: Batch, physical_offset: int) -> None:
    batch.put(rows.OFFSETS, rows.DISPATCHED_KEY, rows.DISPATCHED.pack(physical_offset))


def _arrived(runs: Runs, first: Ints, end: Ints) -> MessagesArrived:
    """Event for the runs that queues got, from ``first`` on; a negative ``first`` means none."""
    topic = map(runs.topics.__getitem__, runs.topic.tolist())
    columns = topic, runs.queue_id.tolist(), first.tolist(), end.tolist()
    return MessagesArrived(got for got in zip(*columns, strict=True) if got[2] >= 0)
