"""Messages from the files of stores, without a broker: the ``Origin`` behind the option ``path``.

Consumers see the messages that ConsumeQueues refer to, and those that the next dispatch adds. A task takes the entries
of its queue offsets, sorts them in the order of the log and reads the records side by side. Each record must fit its
entry. A record that is in no file is reported. With ``visibility=log`` every record is read, with or without an entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from socket import gethostname
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from firearrow.client.queues import Bound, Mark, Queue, RecordTimes, Span
from firearrow.errors import ConfigError, CorruptStore, DataLost
from firearrow.logs import Log
from firearrow.message.names import SCHEDULE_TOPIC, is_lmq, tag_code
from firearrow.spark.columns.recordbatches import Batches, Parts, QueueBatches
from firearrow.spark.options import Options, Range
from firearrow.spark.planning import splits
from firearrow.spark.planning.commitlogorder import NOTHING_WANTED, EntriesInOrder, Wanted
from firearrow.spark.planning.losses import lost
from firearrow.spark.planning.shortqueues import CarriedEntries, Part
from firearrow.spark.planning.stores import Store, StoredTimes, last_place, open_stores
from firearrow.spark.planning.stretches import LogStretch, walk
from firearrow.spark.source.filters import PushedFilters
from firearrow.spark.source.origin import UNKNOWN_BYTES
from firearrow.store.batchqueue import MESSAGES_MAX
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.entries import Entries, QueueKey
from firearrow.store.reading.entries import Queue as EntryQueue
from firearrow.store.reading.index import candidates
from firearrow.store.reading.storage import StoreFile
from firearrow.store.reading.undispatched import NO_EXTENT, Extent
from firearrow.store.scan import Ints

log: Final = Log(__name__)

_STRETCHES_MAX = 10_000  # places of a key in one topic; a search for more does not pay
_TAG_CODE_MIN = -(1 << 31)  # a lower one is no hash, but a place in another file
_SAMPLE_ROWS = 4096  # messages of each queue that are looked at for their size
_SIZED_MAX = 10_000  # queues whose messages are looked at for their size, if not one of each topic
_OPEN_MAX = 10_000  # queues that a search for a time keeps open: a process may map 65,530 files
_NOWHERE = 1 << 63  # behind any log
_NO_CODES = np.empty(0, np.int64)

_LOOKS_MAX = 5  # while retention deletes files that were listed


@dataclass
class QueuePartition(InputPartition):
    """Parts of the queues of one store that a task reads."""

    root: str
    broker: str
    parts: list[Part]
    extent: Extent | None = None  # the undispatched part of the log
    carried: CarriedEntries | None = None  # of the first parts


@dataclass
class LogPartition(InputPartition):
    """The stretch of the log of one store that a task reads."""

    root: str
    broker: str
    stretch: LogStretch


class FileOrigin:
    """``Origin`` of files. ``narrow`` holds the filters of a query."""

    def __init__(self, options: Options, narrow: PushedFilters | None = None) -> None:
        self.options = options
        self.narrow: PushedFilters = narrow or PushedFilters()

    @cached_property
    def stores(self) -> dict[str, Store]:
        """The stores, by the names of their brokers."""
        return {store.broker: store for store in open_stores(self.options)}

    def bounds(self) -> Mapping[Queue, Bound]:
        """Return every chosen queue and its bounds now, see ``Origin.bounds``.

        Raises ConfigError for a topic that no store has.
        """
        for _ in range(_LOOKS_MAX):
            try:
                return self._bounds()
            except FileNotFoundError:  # retention has deleted it since it was listed
                self.__dict__.pop("stores", None)
        return self._bounds()

    def _bounds(self) -> Mapping[Queue, Bound]:
        is_first = "_looks" not in self.__dict__  # a plan follows; a stream looks more often than it plans
        for seen in ("_times", "_queues", "_looks"):  # queues may have grown or gone since
            self.__dict__.pop(seen, None)
        stores = open_stores(self.options, self.__dict__.pop("stores", {}).values())
        self.stores = {store.broker: store for store in stores}
        found: dict[Queue, Bound] = {}
        for broker, store in self.stores.items():
            ends: dict[QueueKey, int] = {}
            log_start = store.log_start
            looks = self._looks[broker] = splits.Looks(store.queues.open)
            for key in store.queue_keys(self.options):
                if self._is_wanted(*key):
                    stored = store.queues.open(key)
                    first, end = stored.span_from(log_start)
                    found[Queue(key[0], broker, key[1])] = Bound(first, end, last_place(stored, end))
                    ends[key] = end
                    if is_first:
                        looks.keep(key, Span(first, end), stored)
            self.require_whole(store, ends)
        self._require_topics({queue.topic for queue in found})
        self._require_assigned(found)
        return found

    def require_whole(self, store: Store, ends: Mapping[QueueKey, int]) -> None:
        """Report chosen queues that lack messages which the log has; ``ends`` holds the known ends of some queues."""
        if holes := store.holes(self.options):
            key, [first, *_] = next(iter(holes.items()))
            total = sum(span.end - span.start for spans in holes.values() for span in spans)
            how = f"has no file with the offsets {first.start} to {first.end - 1}"
            self._lacks(store, key, how, f"{total} messages", len(holes) - 1)
        if lacking := store.lacking(self.options, ends):
            key = max(lacking, key=lacking.__getitem__)
            how = f"ends at {store.stored_queues.open(key).span[1]}"
            total = sum(lacking.values())
            what = f"{total} messages that the log has" if total else "the end of a file"
            self._lacks(store, key, how, what, len(lacking) - 1)

    def _lacks(self, store: Store, key: QueueKey, how: str, what: str, others: int) -> None:
        topic, queue_id = key
        more = f" and {others} other queues" if others else ""
        self._lost(
            f"queue {queue_id} of topic {topic!r} in {store.root}, which {how},{more} lack {what}: "
            "`firearrow store rebuild` rebuilds them"
        )

    def _require_assigned(self, found: Collection[Queue]) -> None:
        """Report queues of the option ``assign`` that do not exist."""
        missing = [
            Queue(topic, broker, queue_id)
            for topic, broker, queue_ids in self.options.choice.assign
            for queue_id in queue_ids
            if topic in self.narrow.topic
            and queue_id in self.narrow.queue_id
            and Queue(topic, broker, queue_id) not in found
            and not (broker in self.stores and self.stores[broker].has_queue((topic, queue_id)))
        ]
        if not missing:
            return
        topic, broker, queue_id = missing[0]
        text = f"option assign: topic {topic!r} has no queue {queue_id} on {broker!r}"
        if self.options.reading.fail_on_data_loss:
            raise ConfigError(f"{text} (failOnDataLoss=false leaves it out)")
        log.warning("queues to read are missing", extra={"count": len(missing), "reason": text})

    def _is_wanted(self, topic: str, queue_id: int) -> bool:
        """Tell whether a query needs a queue; all queues count if the options name offsets."""
        if self.options.range != Range():
            return True
        return topic in self.narrow.topic and queue_id in self.narrow.queue_id

    def _require_topics(self, known: set[str]) -> None:
        for topic in self.options.choice.subscribe:
            if topic not in known and topic in self.narrow.topic:
                self._require_topic(topic)

    def _require_topic(self, topic: str) -> None:
        known = self.attributes().keys()
        if topic not in known:
            raise ConfigError(
                f"option subscribe: topic {topic!r} is in none of the stores, which have "
                f"{', '.join(sorted(known)) or 'none'}"
            )

    def attributes(self) -> dict[str, dict[str, str]]:
        """Return the attributes of all topics of the stores, with a configuration or without."""
        found: dict[str, dict[str, str]] = {}
        for store in self.stores.values():
            for topic in {*store.topics, *(name for name, _ in store.queues.keys_of(None))}:
                config = store.topics.get(topic, {})
                found.setdefault(topic, {}).update(config.get("attributes") or {})
        return found

    def offset_at(self, queue: Queue, timestamp_ms: int) -> int | None:
        """Return the first offset of a message stored at or after a time; None if there is none."""
        store = self.stores[queue.broker]
        entries = store.queues.open((queue.topic, queue.queue_id))
        first, end = entries.span_from(store.log_start)
        place = self._place_at(store, timestamp_ms)
        found = entries.first_at_or_after(place, first, end)
        return found if found < end else None

    def marks(self, places: Mapping[Queue, int]) -> dict[Queue, Mark]:
        """Return the marks of messages, see ``LoggedOrigin.marks``."""
        found: dict[Queue, Mark] = {}
        for (topic, broker, queue_id), queue_offset in places.items():
            mark = self.stores[broker].mark((topic, queue_id), queue_offset)
            if mark is not None:
                found[Queue(topic, broker, queue_id)] = mark
        return found

    def stored_at(self, broker: str, physical_offset: int) -> RecordTimes | None:
        """Return the record at a place of a log, see ``LoggedOrigin.stored_at``."""
        return self.stores[broker].stored_at(physical_offset)

    def offsets_at(self, spans: Mapping[Queue, Span], timestamp_ms: int) -> Mapping[Queue, int]:
        """Return the first offset in each span that was stored at or after a time."""
        brokers = {queue.broker for queue in spans}
        places = {broker: self._place_at(self.stores[broker], timestamp_ms) for broker in brokers}
        found: dict[Queue, int] = {}
        for queue, span in spans.items():
            stored = self._queues.get(queue)
            if stored is None:
                stored = self.stores[queue.broker].queues.open((queue.topic, queue.queue_id))
                if len(self._queues) < _OPEN_MAX:
                    self._queues[queue] = stored
            found[queue] = stored.first_at_or_after(places[queue.broker], *span)
        return found

    @cached_property
    def _queues(self) -> dict[Queue, EntryQueue]:
        return {}

    @cached_property
    def _looks(self) -> dict[str, splits.Looks]:
        """Looks at the queues of each store, which a plan continues."""
        return {}

    @cached_property
    def _times(self) -> dict[str, StoredTimes]:
        return {}

    def _place_at(self, store: Store, timestamp_ms: int) -> int:
        """Return the first place in the log that was stored at or after a time."""
        times = self._times.get(store.root)
        if times is None:
            times = self._times[store.root] = StoredTimes(store, store.records_end)
        return times.first_at(timestamp_ms)

    # --- tasks ---

    def row_bytes(self, spans: Mapping[Queue, Span]) -> dict[Queue, float]:
        """Return the approximate size of a stored message of each span: the mean at its begin.

        Of very many spans, one of each topic stands for the others.
        """
        of_topic: dict[tuple[str, str], float] = {}
        found: dict[Queue, float] = {}
        for queue, span in spans.items():
            topic = queue.broker, queue.topic
            if len(spans) <= _SIZED_MAX or topic not in of_topic:
                of_topic[topic] = self._message_bytes(queue, span)
            found[queue] = of_topic[topic]
        return found

    def _message_bytes(self, queue: Queue, span: Span) -> float:
        found = self.stores[queue.broker].queues.open((queue.topic, queue.queue_id))
        end = min(span.end, span.start + _SAMPLE_ROWS)
        if isinstance(found, BatchQueue):
            size = found.holding(span.start, end).size
            messages = found.messages_of(span.start, end)
        else:
            size = found.entries(span.start, end).size
            messages = len(size)
        return int(size.sum(dtype=np.int64)) / messages if messages else UNKNOWN_BYTES

    def partitions(self, spans: Mapping[Queue, Span]) -> list[InputPartition]:
        """Cut the spans into tasks, see ``Origin.partitions``."""
        reading = self.options.reading
        by_broker: dict[str, list[tuple[QueueKey, Span]]] = {}
        for queue, span in spans.items():
            key = queue.topic, queue.queue_id
            by_broker.setdefault(queue.broker, []).append((key, span))
        tasks: list[InputPartition] = []
        for broker, of_broker in by_broker.items():
            store = self.stores[broker]
            needed = [(key, part) for key, span in of_broker for part in self._needed(store, key, span)]
            looks = self._looks.get(broker) or splits.Looks(store.queues.open)
            parts_min = -(-(reading.partitions_min or 1) // len(by_broker))
            tasks += [
                QueuePartition(store.root, broker, parts, store.extent(parts), carried if self._takes_all else None)
                for parts, carried in splits.cut(looks, needed, reading.split_bytes, parts_min)
            ]
        return tasks

    @property
    def _takes_all(self) -> bool:
        """Tell whether a task takes all entries of its parts, see ``_chosen``."""
        narrow = self.narrow
        has_tags = narrow.tags is not None or self.options.choice.tags
        return narrow.queue_offset.is_all and narrow.physical_offset.is_all and not has_tags

    def _needed(self, store: Store, key: QueueKey, span: Span) -> list[Span]:
        """Return the parts of a span that a query needs."""
        narrow = self.narrow
        if key[0] not in narrow.topic or key[1] not in narrow.queue_id:
            return []
        low, high = narrow.queue_offset.ends
        start, end = max(span.start, low), min(span.end, high + 1)
        if start >= end:
            return []
        low, high = narrow.physical_offset.ends
        if not narrow.store_ms.is_all:
            first_ms, last_ms = narrow.store_ms.ends
            low = max(low, self._place_at(store, first_ms) if first_ms > 0 else 0)
            high = min(high, self._place_at(store, last_ms + 1) - 1 if last_ms < 1 << 62 else high)
        stretches = self._stretches_with_keys(store, key[0])
        if low <= 0 and high >= 1 << 62 and stretches is None:
            return [Span(start, end)]
        queue = store.queues.open(key)
        if low > 0:
            start = queue.first_at_or_after(low, start, end)
        if high < 1 << 62:
            end = queue.first_at_or_after(high + 1, start, end)
        if stretches is None or isinstance(queue, BatchQueue):  # the index has keys of records
            return [Span(start, end)] if start < end else []
        parts = (
            Span(queue.first_at_or_after(first, start, end), queue.first_at_or_after(behind, start, end))
            for first, behind in stretches
        )
        return [part for part in parts if part.start < part.end]

    def _stretches_with_keys(self, store: Store, topic: str) -> list[tuple[int, int]] | None:
        """Return the stretches of the log that can hold messages of a topic with the wanted keys; None is the whole
        log."""
        words = self.narrow.words or frozenset(self.options.choice.keys)
        if not words or is_lmq(topic):
            return None
        key = store.root, topic
        if key not in self._with_keys:
            end = store.log.end
            found = candidates(store.storage, topic, words, end)
            self._with_keys[key] = found if len(found) < _STRETCHES_MAX else None
        return self._with_keys[key]

    @cached_property
    def _with_keys(self) -> dict[tuple[str, str], list[tuple[int, int]] | None]:
        return {}

    def log_partitions(self) -> list[InputPartition]:
        """Cut the whole logs into tasks, for ``visibility=log``.

        Raises ConfigError if the options name offsets, because a log has no queue offsets.
        """
        limits = self.options.range
        if limits.starting_offsets or limits.ending_offsets:
            raise ConfigError(
                "options startingOffsets and endingOffsets are for queues, but visibility=log "
                "reads the log: use startingTimestamp and endingTimestamp"
            )
        tasks: list[InputPartition] = []
        for broker, store in self.stores.items():
            tasks += [LogPartition(store.root, broker, stretch) for stretch in self._stretches(store)]
        return tasks

    def _stretches(self, store: Store) -> Iterator[LogStretch]:
        known_end = store.dispatched_offset
        log_end = store.log.end
        if known_end > log_end:
            gone = store.count_behind(log_end)
            self._lost(f"the log in {store.root} ends at {log_end}, and {gone} of them were behind")
        reading = self.options.reading
        size = sum(file.size_bytes for file in store.log.files)
        step = min(reading.split_bytes, max(size // (reading.partitions_min or 1), 1 << 16))
        narrow = self._log_narrow
        low, high = narrow.physical_offset.ends
        first_ms, last_ms = narrow.store_ms.ends
        if first_ms > 0:
            low = max(low, self._place_at(store, first_ms))
        if last_ms < 1 << 62:
            high = min(high, self._place_at(store, last_ms + 1) - 1)
        at = store.log_start
        for file in store.log.files:
            if at < file.base and at <= high and file.base > low:
                self._lost(_without_file(store, at, file.base))
            at = file.end
            for start in range(file.base, file.end, step):
                end = min(start + step, file.end)
                if start <= high and end > low:
                    yield store.stretch(file, start, end)._replace(known_end=known_end)

    @property
    def _log_narrow(self) -> PushedFilters:
        """Return the filters on a log, with the times that the options name."""
        limits = self.options.range
        times = self.narrow.store_ms
        if isinstance(limits.starting_ms, str) or isinstance(limits.ending_ms, str):
            raise ConfigError(
                "options startingTimestamp and endingTimestamp: JSON is for queues, but "
                "visibility=log reads the log: give one time"
            )
        if limits.starting_ms is not None:
            times &= replace(times, low=limits.starting_ms, high=times.high)
        if limits.ending_ms is not None:
            times &= replace(times, high=min(times.high, limits.ending_ms - 1))
        return replace(self.narrow, store_ms=times)

    # --- reading ---

    def read(self, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task, see ``Origin.read``."""
        if isinstance(partition, LogPartition):
            return self._read_log(partition, schema)
        assert isinstance(partition, QueuePartition)
        return self._read_queues(partition, schema)

    def _read_log(self, task: LogPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        store = _seen(Store(task.root, task.broker, self.options.reading))
        batches = Batches(self.options, self._log_narrow, schema, store)
        skip = self.options.reading.on_corrupt == "skip"
        try:
            for columns, base in walk(store.storage, task.stretch, skip=skip):
                yield from batches.of_log(columns, base)
        except FileNotFoundError as error:
            self._lost(f"{store.root}/{task.stretch.file.path} is gone", error)
        except DataLost as error:
            self._lost(str(error), error)

    def _lost(self, what: str, cause: Exception | None = None) -> None:
        lost(self.options.reading, what, cause)

    def _read_queues(self, task: QueuePartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        store = _seen(Store(task.root, task.broker, self.options.reading, task.extent or NO_EXTENT))
        known = task.carried.parts if task.carried else 0
        opened = self._opened(store, task.parts[known:])
        if opened is None:
            return
        found, are_batches = opened
        carried = task.carried.unpacked(task.parts) if task.carried else NOTHING_WANTED
        wanted = EntriesInOrder(carried.and_then(Wanted.of(found, known)))
        batches = QueueBatches(self.options, self.narrow, schema, store)
        parts = Parts(task.parts, [False] * known + are_batches)
        for file, some in self._by_file(store, wanted, task.parts):
            try:
                yield from batches.of_queues(file, some, parts)
            except FileNotFoundError as error:
                self._lost(f"{store.root}/{file.path} is gone", error)

    def _opened(self, store: Store, parts: Sequence[Part]) -> tuple[list[Entries], list[bool]] | None:
        """Return the wanted entries of each part, and which parts are of queues of batches; None where all are lost."""
        found: list[Entries] = []
        are_batches: list[bool] = []
        if not parts:
            return found, are_batches
        try:
            queues = store.queues
        except FileNotFoundError as error:  # undispatched messages of the log
            self._lost(f"{error.filename} is gone", error)
            return None
        for part in parts:  # one is open at a time: a process may map 65,530 files
            queue = queues.open(part[:2])
            found.append(self._entries(store, part, queue))
            are_batches.append(isinstance(queue, BatchQueue))
        return found, are_batches

    def _entries(self, store: Store, part: Part, queue: EntryQueue) -> Entries:
        """Return the entries of a part that a query can want, without their tag codes.

        In a queue of batches an entry is that of the record, and does not say which of its messages are wanted.
        """
        topic, queue_id, start, end = part
        if isinstance(queue, BatchQueue):
            entries = chosen = queue.holding(start, end)
            held = queue.held(start, end)
        else:
            entries = queue.entries(start, end + 1)
            chosen = self._chosen(topic, entries, end)
            held = int((entries.queue_offset < end).sum())
        if held < end - start:
            first = int(entries.queue_offset[0]) if held and len(entries.size) else end
            begins = f", it has from {first} on" if first > start else ""
            self._lost(
                f"queue {queue_id} of topic {topic!r} in {store.root} no longer has "
                f"{end - start - held} of the messages {start} to {end - 1}{begins}"
            )
        return chosen._replace(tag_code=_NO_CODES)  # the codes would keep the queue's file mapped

    def _chosen(self, topic: str, entries: Entries, end: int) -> Entries:
        """Return the entries before ``end`` that a query can want."""
        chosen = entries.counting(end)
        end_row = int(entries.queue_offset.searchsorted(end))
        narrow = self.narrow
        if not narrow.queue_offset.is_all:
            chosen &= narrow.queue_offset.mask(entries.queue_offset)
        if not narrow.physical_offset.is_all:
            chosen &= narrow.physical_offset.mask(entries.physical_offset)
        for tags in (narrow.tags, frozenset(self.options.choice.tags) or None):
            if tags is not None and topic != SCHEDULE_TOPIC:
                codes = np.array([tag_code(tag) for tag in tags], np.int64)
                chosen &= np.isin(entries.tag_code, codes) | (entries.tag_code < _TAG_CODE_MIN)
        if np.count_nonzero(chosen) == end_row:
            return Entries(*(column[:end_row] for column in entries))
        return entries.take(chosen)

    def _by_file(
        self, store: Store, wanted: EntriesInOrder, parts: Sequence[Part]
    ) -> Iterator[tuple[StoreFile, EntriesInOrder]]:
        """Yield the entries by the files of their records.

        Records are written before their entries, and the log's files are listed after the entries were read. So a
        running broker cannot cause a missing record.
        """
        at = store.log_start
        if gone := wanted.count_before(at):
            self._lost(f"{store.root} has deleted {gone} of them before {at}")
        for file in store.log.files:
            if at < file.base and (gone := len(wanted.between(at, file.base))):
                self._lost(f"{_without_file(store, at, file.base)}, where {gone} of them were")
            if len(some := wanted.between(file.base, file.end)):
                yield file, some
            at = file.end
        self._require_none_behind(store, wanted.between(at, _NOWHERE), parts, at)

    def _require_none_behind(self, store: Store, behind: EntriesInOrder, parts: Sequence[Part], log_end: int) -> None:
        """Report entries that point behind the log: some are damaged, or the log has lost their records."""
        damaged = 0
        for number, offsets in _by_part(behind).items():
            topic, queue_id, _, _ = parts[number]
            wrong = offsets[np.isin(offsets, _contradicted(store, parts[number]))]
            if len(wrong) and self.options.reading.on_corrupt == "fail":
                raise CorruptStore(
                    f"{store.root}: the entry of message {wrong[0]} in queue {queue_id} of topic "
                    f"{topic!r} points beyond the log, which ends at {log_end}, and further than "
                    "the entries that follow it (onCorrupt=skip skips it)"
                )
            damaged += len(wrong)
        if gone := len(behind) - damaged:
            self._lost(f"the log in {store.root} ends at {log_end}, and {gone} of them were behind")


def _seen(store: Store) -> Store:
    """Return a store that this host sees. Raises ConfigError if it does not see it, because no message of the store is
    lost."""
    try:
        store.require()
    except ConfigError as error:
        raise ConfigError(f"{error} on {gethostname()}: all workers must see the store") from None
    return store


def _without_file(store: Store, start: int, end: int) -> str:
    return f"{store.root}/commitlog has no file with the bytes {start} to {end - 1} of the log"


def _by_part(wanted: EntriesInOrder) -> dict[int, Ints]:
    """Return the queue offsets of entries, by the parts of the task that they belong to."""
    found: dict[int, list[Ints]] = {}
    for piece in wanted.pieces():
        for number in np.unique(piece.part).tolist():
            found.setdefault(number, []).append(piece.queue_offset[piece.part == number])
    return {number: np.concatenate(offsets) for number, offsets in found.items()}


def _contradicted(store: Store, part: Part) -> Ints:
    """Return the queue offsets whose places cannot be right, because places rise along a queue.

    The entry behind the part is compared too. Nothing contradicts the last entry of a queue.
    """
    topic, queue_id, start, end = part
    queue = store.queues.open((topic, queue_id))
    reach = MESSAGES_MAX if isinstance(queue, BatchQueue) else 1
    entries = queue.entries(max(start - reach, 0), end + reach)
    places = entries.physical_offset
    lowest_from = np.minimum.accumulate(places[::-1])[::-1]
    return entries.queue_offset[places > lowest_from]
