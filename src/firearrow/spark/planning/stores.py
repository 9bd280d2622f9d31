"""One store directory for the file source: its log, its queues, its name.

A broker may be writing to it, or was killed. Then records may follow in the log that no ConsumeQueue knows yet. They
are read as if the queues knew them (``firearrow.store.reading.undispatched``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final
from zlib import crc32

import numpy as np

from firearrow.client.queues import NOT_STORED, Mark, RecordTimes, Span
from firearrow.errors import ConfigError, DataLost
from firearrow.files import StoredPath
from firearrow.message.names import is_lmq
from firearrow.message.record import RECORD_BYTES_MAX
from firearrow.spark.options import Options, ReadOptions
from firearrow.spark.planning.losses import lost
from firearrow.spark.planning.storage import open_storage, why_unreadable
from firearrow.spark.planning.stretches import LogStretch, walk
from firearrow.state import TOPICS, stored_state, table_of, topics_with_batches
from firearrow.store import inventory
from firearrow.store.batchqueue import UNIT_BYTES, UNIT_DTYPE
from firearrow.store.config import StoreConfig
from firearrow.store.inventory import Inventory
from firearrow.store.logtail import LOOK_BYTES
from firearrow.store.queues import ENTRY_BYTES
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.entries import Entries, Queue, QueueKey, Queues
from firearrow.store.reading.queues import FileQueues, rocks_queues
from firearrow.store.reading.rocksqueues import RocksQueues
from firearrow.store.reading.storage import Storage, StoreFile
from firearrow.store.reading.store import StoreFiles
from firearrow.store.reading.undispatched import EntriesAhead, Extent, QueuesAndAhead, record_end
from firearrow.store.reading.walk import next_of_log
from firearrow.store.scan import RECORDS_MAX, Columns, scan

_MEMBER_TOPIC: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
_NO_UNITS: Final = np.empty(0, UNIT_DTYPE)
_LOOK_BEHIND_BYTES: Final = 4 << 20  # of the log after damage that are searched for records
_HEAD_BYTES: Final = 8  # of a record: its size and its magic
DELAY_LEVELS: Final = StoreConfig().message_delay_level
_PARTS: Final = {"commitlog", "consumequeue", "consumequeue_rocksdb", "config"}


class Store(StoreFiles[Storage]):
    """A store below a path or URI; ``broker`` is its name where that is known."""

    def __init__(
        self,
        root: str,
        broker: str | None = None,
        reading: ReadOptions | None = None,
        extent: Extent | None = None,
        before: EntriesAhead | None = None,
    ) -> None:
        """Open a store; nothing is read yet.

        ``extent`` is the stretch of the log to dispatch on the fly, where it is known; otherwise it is everything that
        queues lack. ``before`` is the result of an earlier look at the store, which is continued.
        """
        self.root = root
        super().__init__(open_storage(root))
        self._broker = broker
        self._reading = reading or ReadOptions()
        self._extent = extent
        self._before = before
        self._listed: dict[Options, list[QueueKey]] = {}

    def require(self) -> None:
        """Raise ConfigError unless the directory holds a store."""
        try:
            names = {entry.name for entry in self.storage.entries("")}
        except OSError as error:
            reason = why_unreadable(error)
            raise ConfigError(f"option path={self.root!r}: {reason}") from None
        if not names:
            raise ConfigError(f"option path={self.root!r}: the directory does not exist or is empty")
        if not names & _PARTS:
            raise ConfigError(f"option path={self.root!r}: not a store, it has neither commitlog nor consumequeue")

    @cached_property
    def broker(self) -> str:
        """The broker's name: the given one, otherwise the configuration's, otherwise the directory's."""
        if self._broker is not None:
            return self._broker
        identity = self.text("brokerIdentity").split("#")
        if len(identity) == 3:
            return identity[1]
        for name in self.topics:
            if name.startswith(_MEMBER_TOPIC):
                return name[len(_MEMBER_TOPIC) :]
        return self.root.rstrip("/").rpartition("/")[2] or self.root

    def text(self, path: str) -> str:
        """A small file as text, empty without the file."""
        try:
            return bytes(self.storage.read(path)).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""

    @cached_property
    def topics(self) -> dict[str, Any]:
        """The configured topics."""
        return table_of(stored_state(self.config, TOPICS), "topicConfigTable")

    @property
    def config(self) -> StoredPath:
        """The directory with the broker's state."""
        return self.storage.place("config")

    def mark(self, key: QueueKey, queue_offset: int) -> Mark | None:
        """The mark of a message, see ``LoggedOrigin.marks``."""
        entries = _entries_of(self.queues.open(key), queue_offset)
        if not len(entries.size):
            return None
        place, size = int(entries.physical_offset[0]), int(entries.size[0])
        stored = self.stored_at(place, size)
        if stored is None or stored == NOT_STORED:
            return None
        return Mark(place, stored.store_ms)

    def stored_at(self, physical_offset: int, size: int = RECORD_BYTES_MAX) -> RecordTimes | None:
        """The record at a place of the log, see ``LoggedOrigin.stored_at``; of at most that size."""
        file = self.log.find(physical_offset)
        if file is None:  # a file between others may be lost
            return NOT_STORED if physical_offset >= self.log_end else None
        at = physical_offset - file.base
        try:
            window = self.storage.window(file.path, at, at + size)
        except FileNotFoundError:  # retention has deleted it since it was listed
            return None
        columns = scan(window, 0, len(window), 1)
        if not len(columns) or int(columns.physical_offset[0]) != physical_offset:
            return NOT_STORED
        return RecordTimes(int(columns.store_ms[0]), int(columns.born_ms[0]))

    @cached_property
    def stored_queues(self) -> RocksQueues | FileQueues:
        """The ConsumeQueues as they are on the disk."""
        return rocks_queues(self.storage) or FileQueues(self.storage, topics_with_batches(self.topics))

    @cached_property
    def queues(self) -> Queues:
        """The ConsumeQueues, and after them the messages that the log has for them.

        Raises CorruptStore or DataLost where the log can't be read to its end.
        """
        if not self.has_ahead:
            return self.stored_queues
        return QueuesAndAhead(self.stored_queues, self.ahead, self.log_start)

    @cached_property
    def has_ahead(self) -> bool:
        """Tell whether the log may be ahead of the queues: not if these have files, and the store was closed."""
        return self.is_open or isinstance(self.stored_queues, RocksQueues)

    @cached_property
    def ahead(self) -> EntriesAhead:
        """Entries of the last part of the log, from a place before which everything is dispatched.

        Some queues in files may lack entries that others have, so a part before that is read, too.
        """
        if self._extent is not None:
            start = self._extent.start
            found = EntriesAhead(start, start, self._batch_topics, DELAY_LEVELS)
            self._follow(found, self._extent.end, skip=True)
            return found
        is_exact = isinstance(self.stored_queues, RocksQueues)
        settled = min(max(self.dispatched_offset, self.log_start), self.log_end)
        begin = start = settled if is_exact else max(settled - LOOK_BYTES, self.log_start)
        known = self._before
        if known is not None and known.start <= begin and known.end <= self.log_end:
            found = known
            found.begin_at(begin)
        else:
            if not is_exact and begin > self.log_start:
                at = next_of_log(self.storage, self.log.files, begin, self.log_end)
                start = self.log_end if at is None else at
            found = EntriesAhead(begin, start, self._batch_topics, DELAY_LEVELS)
        self._follow(found, settled, skip=True)  # readers of that part report its damage
        try:
            self._follow(found, skip=self._reading.on_corrupt == "skip" or not self.has_ahead)
        except DataLost as error:
            lost(self._reading, str(error), error)
        return found

    def _follow(self, ahead: EntriesAhead, until: int | None = None, *, skip: bool) -> None:
        """Go on to the current end of the log, or to a place.

        Raises CorruptStore where records follow bytes that are no record, unless these should be skipped, and DataLost
        where all together is too much.
        """
        start, stop = ahead.end, self.log_end if until is None else until
        for file in self.log.files:
            if file.end <= start or file.base >= stop:
                continue
            stretch = self.stretch(file, max(start, file.base), min(stop, file.end))
            stretch = stretch._replace(look_bytes=_LOOK_BEHIND_BYTES, begins=True)
            for columns, _ in walk(self.storage, stretch, skip=skip):
                ahead.take(columns)
                if until is None:
                    ahead.require_little(self.root, self.log_end)
        ahead.end = max(ahead.end, until or 0)

    @property
    def found_ahead(self) -> EntriesAhead | None:
        """The same if it has been read."""
        found: EntriesAhead | None = self.__dict__.get("ahead")
        return found

    @property
    def records_end(self) -> int:
        """End of the log's records, if it is known; otherwise the end of its files."""
        return self.log_end if self.found_ahead is None else self.found_ahead.end

    @property
    def _batch_topics(self) -> frozenset[str]:
        """The topics whose queues are of batches."""
        stored = self.stored_queues
        return stored.batch_topics if isinstance(stored, FileQueues) else frozenset()

    @cached_property
    def last_written_base(self) -> int:
        """Begin of the last file with records: a broker makes files ahead, which are empty."""
        for file in reversed(self.log.files):
            if any(self.storage.window(file.path, 0, _HEAD_BYTES)):
                return file.base
        return self.log_start

    def extent(self, parts: Iterable[tuple[str, int, int, int]]) -> Extent | None:
        """The stretch of the log to dispatch on the fly for ranges of queues."""
        queues = self.queues
        return queues.extent(parts) if isinstance(queues, QueuesAndAhead) else None

    def count_behind(self, log_end: int) -> int:
        """Count the entries of queues whose records are after the end of the log."""
        found = 0
        for key in self.stored_queues.keys_of(None):
            queue = self.stored_queues.open(key)
            latest = queue.span[1]
            if not is_lmq(key[0]):
                found += latest - queue.first_at_or_after(log_end, 0, latest)
        return found

    def stretch(self, file: StoreFile, start: int, end: int) -> LogStretch:
        """A part of a file of the log, with the known facts about its end."""
        return LogStretch(file, start, end, file.base >= self.last_written_base, self.is_open)

    def queue_keys(self, options: Options) -> list[QueueKey]:
        """The queues that the options choose.

        LMQs only where they are named: their messages are in other queues, too.
        """
        if self.queues is self.stored_queues:
            return self._stored_keys(options)
        return list(self._chosen(self.queues.keys_of(_named(options) or None), options))

    def _stored_keys(self, options: Options) -> list[QueueKey]:
        """The chosen queues that are on the disk; each directory is listed once."""
        if options not in self._listed:
            self._listed[options] = list(self._chosen(self.stored_queues.keys_of(_named(options) or None), options))
        return self._listed[options]

    def _chosen(self, keys: Iterable[QueueKey], options: Options) -> Iterator[QueueKey]:
        wants, named, broker = options.choice.wants_queue(), _named(options), self.broker
        for key in keys:
            if wants(key[0], broker, key[1]) and (not is_lmq(key[0]) or key[0] in named):
                yield key

    def has_queue(self, key: QueueKey) -> bool:
        """Tell whether a queue exists, though it may have no message yet."""
        if key in self.queues.keys_of([key[0]]):
            return True
        config = self.topics.get(key[0])
        if not isinstance(config, dict):
            return False
        counts = [config.get("readQueueNums", 0), config.get("writeQueueNums", 0)]
        return key[1] < max(count for count in counts if isinstance(count, int))

    @cached_property
    def dispatched_offset(self) -> int:
        """The log offset before which everything is dispatched, if the queues say it; otherwise -1."""
        return self.stored_queues.dispatched_offset

    def lacking(self, options: Options, ends: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        """The chosen queues in files that were shortened, are gone, or are of another kind than their topic's queues,
        with the number of messages that they lack.

        These are messages of the last part of the log, or up to the end of the queue when the store was closed. The
        number is 0 where neither has any, but a file was cut. ``ends`` are the known ends of some queues.

        A queue without any entry that did not exist when the store was closed may be of a topic that was deleted and
        made again: it lacks nothing unless there are no queues at all.
        """
        stored = self.stored_queues
        if not isinstance(stored, FileQueues):
            return {}
        keys = self._stored_keys(options)
        found = dict.fromkeys(stored.cut(keys, growing=self.is_open), 0)
        of_other_kind = stored.of_other_kind()
        for key in self._chosen(of_other_kind, options):
            units = self.ahead.of(key) if self.has_ahead else _NO_UNITS
            missing = of_other_kind[key] - int(units["messages"].sum(dtype=np.int64))
            if missing > 0:
                found[key] = missing
        if self.has_ahead:
            return found
        ahead = self.ahead
        has_none = self.dispatched_offset < 0

        def end_of(key: QueueKey) -> int:
            return ends[key] if key in ends else stored.open(key).span[1]

        last_offsets = ahead.last_offsets
        for key in self._chosen(last_offsets, options):
            end = end_of(key)
            if last_offsets[key] < end:
                continue
            units = ahead.of(key, end)
            if len(units) and (end or has_none):
                units = units[units["physical_offset"] >= record_end(stored.open(key))]
            if len(units) and (end or has_none):
                found[key] = int(units["messages"].sum(dtype=np.int64))
        for key, (first, last) in self._noted(options).items():
            missing = last - (end_of(key) or first)
            if missing > found.get(key, 0):
                found[key] = missing
        return found

    def holes(self, options: Options) -> dict[QueueKey, list[Span]]:
        """The chosen queues that lack files before their last ones, with the queue offsets of messages that the log
        still has.
        """
        stored = self.stored_queues
        if not isinstance(stored, FileQueues):
            return {}
        noted = self._noted(options)
        found: dict[QueueKey, list[Span]] = {}
        for key in self._stored_keys(options):
            spans = stored.holes(key)
            if spans:
                earliest, _ = stored.open(key).span_from(self.log_start)
                spans = [(max(start, earliest), end) for start, end in spans]
            if key in noted and (begin := stored.begin(key)) is not None:
                spans.insert(0, (noted[key][0], begin))
            if spans := [Span(*span) for span in spans if span[0] < span[1]]:
                found[key] = spans
        return found

    def _noted(self, options: Options) -> dict[QueueKey, Span]:
        """The chosen queues in files that existed when the store was closed, with their queue offsets.

        The first offset is the begin of their first file, whose messages may be deleted.
        """
        note = self._inventory
        if note is None or note.log[0] != self.log_start:
            return {}
        queues = {key: (first, end) for key, first, end in note.each_queue()}
        entry_bytes = {True: UNIT_BYTES, False: ENTRY_BYTES}  # a unit has one message at least
        return {
            key: Span(queues[key][0] // entry_bytes[key[0] in self._batch_topics], queues[key][1])
            for key in self._chosen(queues, options)
        }

    @cached_property
    def _inventory(self) -> Inventory | None:
        """The notes of a clean stop; None without them, or if the store has changed since then."""
        if self.is_open:
            return None
        try:
            checkpoint = crc32(self.storage.read("checkpoint"))
            return inventory.parse(self.storage.read(inventory.NAME), checkpoint)
        except (FileNotFoundError, ValueError):
            return None


def last_place(queue: Queue, latest: int) -> int:
    """The place in the log of the last message of a queue, -1 without one."""
    return queue.place(latest - 1)


def _entries_of(queue: Queue, queue_offset: int) -> Entries:
    """The entry of a message, if it has one."""
    if isinstance(queue, BatchQueue):
        return queue.holding(queue_offset, queue_offset + 1)
    return queue.entries(max(queue_offset, 0), queue_offset + 1)


def _named(options: Options) -> set[str]:
    """The topics that the options name."""
    choice = options.choice
    return {*choice.subscribe, *(topic for topic, _, _ in choice.assign)}


def open_stores(options: Options, before: Iterable[Store] = ()) -> list[Store]:
    """The stores that the options name; ``before`` are earlier looks at some of them.

    Raises ConfigError where a path holds none, and for two of one broker.
    """
    place = options.place
    known = {store.root: store.found_ahead for store in before}
    stores = [Store(path, place.broker_name, options.reading, before=known.get(path)) for path in place.paths]
    names: dict[str, str] = {}
    for store in stores:
        store.require()
        other = names.setdefault(store.broker, store.root)
        if other != store.root:
            raise ConfigError(
                f"option path: {other} and {store.root} are both of broker {store.broker!r}: "
                "read them one by one, with brokerName to tell them apart"
            )
    return stores


# --- times ---


_BEFORE_ALL: Final = -1
_NEAR_BYTES: Final = 128 * 1024  # of the log, whose times are all read at once


class StoredTimes:
    """Finds times in the log of a store whose records end at ``end``, or before.

    Store times rise along a log, so this is a binary search over its bytes. It keeps the times that it has read: a step
    of a limited stream searches for forty times, each nearer to the last. Otherwise each of them would take some twenty
    reads of the log.
    """

    def __init__(self, store: Store, end: int) -> None:
        self._store = store
        self._end = end
        self._places: list[int] = []  # of the records that were read, in order
        self._times: list[int] = []

    def first_at(self, timestamp_ms: int) -> int:
        """The physical offset of the first record of a time or later; the end without one."""
        row = bisect_left(self._times, timestamp_ms)
        begin = self._places[row - 1] + 1 if row else self._store.log_start
        stop = found = self._places[row] if row < len(self._places) else self._end
        while stop - begin > _NEAR_BYTES:
            middle = (begin + stop) // 2
            at = self._next(middle, stop)
            if at is None:
                if stop == found == self._end:
                    self._end = found = middle
                stop = middle
                continue
            _, [stored_ms] = self._read(at, at + 1)
            if stored_ms >= timestamp_ms:
                stop, found = middle, at
            else:
                begin = at + 1
        at = self._next(begin, stop)
        while at is not None:
            places, times = self._read(at, stop)
            row = bisect_left(times, timestamp_ms)
            if row < len(times):
                return places[row]
            at = self._next(places[-1] + 1, stop)
        return found

    def _next(self, physical_offset: int, stop: int) -> int | None:
        """The physical offset of the first record that begins between two places of the log."""
        return next_of_log(self._store.storage, self._store.log.files, physical_offset, stop)

    def _read(self, at: int, stop: int) -> tuple[list[int], list[int]]:
        """Places and store times of the records from one on up to a place, of at least that one."""
        file = self._store.log.find(at)
        assert file is not None
        start = at - file.base
        window = self._store.storage.window
        try:
            columns = _scan(window(file.path, start, stop - file.base))
            if not len(columns):
                columns = _scan(window(file.path, start, start + RECORD_BYTES_MAX), 1)
        except FileNotFoundError:  # as above: the wanted record is after it
            return [file.end - 1], [_BEFORE_ALL]
        places, times = columns.physical_offset.tolist(), columns.store_ms.tolist()
        known = slice(bisect_left(self._places, at), bisect_right(self._places, places[-1]))
        self._places[known], self._times[known] = places, times
        return places, times


def _scan(window: memoryview, records_max: int = RECORDS_MAX) -> Columns:
    return scan(window, 0, len(window), records_max)
