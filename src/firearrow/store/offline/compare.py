"""Dispatch that compares: the entries and keys that the log leads to, against queues and index.

The store's own ``Dispatcher`` turns records into queue entries and index keys. Sinks take them and look whether the
same bytes exist. So there is one rule, and a clean store costs only a comparison of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.store.batchqueue import UNIT_DTYPE, units_of
from firearrow.store.offline.view import StoreView
from firearrow.store.queues import DispatchedEntries
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.dispatching import dispatch_to
from firearrow.store.reading.entries import QueueKey
from firearrow.store.reading.index import IndexRows, geometry
from firearrow.store.reading.rocksqueues import ROW
from firearrow.store.reading.storage import StoreFile
from firearrow.store.scan import Columns, Ints

_SECONDS_MAX: Final = (1 << 31) - 1

_OF_THE_LOG: Final = ["physical_offset", "size", "tag_code", "store_ms", "queue_offset", "messages"]


class Wrong(NamedTuple):
    """Expected entries; at least one of them is missing or different."""

    first: int
    entries: bytes


@dataclass
class QueueReport:
    """Report of a part of the log on a queue.

    ``covered`` are the queue offsets with the expected entry, as [first, end) stretches. ``wrong`` are the others, in
    the order of the log; ``numbers`` are all queue offsets in the log. In a queue of batches ``covered`` are numbers of
    units, and each ``wrong`` has one unit, under its queue offset.
    """

    covered: list[list[int]] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    numbers: list[list[int]] = field(default_factory=list)


def add_queues(whole: dict[QueueKey, QueueReport], part: Mapping[QueueKey, QueueReport]) -> None:
    """Add the reports of a later part of the log on queues."""
    for key, more in part.items():
        report = whole.setdefault(key, QueueReport())
        for first, end in more.covered:
            extend(report.covered, first, end)
        for first, end in more.numbers:
            extend(report.numbers, first, end)
        report.wrong += more.wrong


class QueueSink:
    """Receiver of a queue's entries that notes which of them the queue has."""

    topic: str
    queue_id: int

    def __init__(self, view: StoreView, key: QueueKey) -> None:
        self._queue = view.queues.get(key)
        self._entry_bytes = view.entry_bytes
        self.topic, self.queue_id = key
        self.max_offset = 0
        self.report: Final = QueueReport()

    def put(self, queue_offset: int, entries: bytes) -> None:
        """Compare some consecutive entries."""
        size = self._entry_bytes
        count = len(entries) // size
        extend(self.report.numbers, queue_offset, queue_offset + count)
        if self._queue is None:
            return
        if self._queue.read(queue_offset, count) == entries:
            extend(self.report.covered, queue_offset, queue_offset + count)
            return
        for number in range(count):
            entry = entries[number * size : (number + 1) * size]
            at = queue_offset + number
            if self._queue.read(at, 1) == entry:
                extend(self.report.covered, at, at + 1)
            else:
                self._note_wrong(at, entry)

    def _note_wrong(self, queue_offset: int, entry: bytes) -> None:
        assert len(entry) == self._entry_bytes, "one entry is noted"
        wrong = self.report.wrong
        count = len(wrong[-1].entries) // self._entry_bytes if wrong else 0
        if wrong and count < 4096 and wrong[-1].first + count == queue_offset:
            wrong[-1] = Wrong(wrong[-1].first, wrong[-1].entries + entry)
        else:
            wrong.append(Wrong(queue_offset, entry))


class BatchSink:
    """Receiver of a queue's units that notes which of them the queue has."""

    def __init__(self, view: StoreView, key: QueueKey) -> None:
        queue = view.queues.get(key)
        self._queue = queue if isinstance(queue, BatchQueue) else None
        self.report: Final = QueueReport()

    def put(self, units: npt.NDArray[Any]) -> None:
        """Compare some consecutive units."""
        report, queue = self.report, self._queue
        end = int(units["queue_offset"][-1]) + int(units["messages"][-1])
        extend(report.numbers, int(units["queue_offset"][0]), end)
        if queue is None:
            return
        number = queue.number_at_or_after(int(units["physical_offset"][0]))
        if same_units(queue.unit_bytes(number, len(units)), units.tobytes()):
            extend(report.covered, number, number + len(units))
            return
        for at in range(len(units)):
            number = queue.number_at_or_after(int(units["physical_offset"][at]))
            unit = units[at : at + 1].tobytes()
            if same_units(queue.unit_bytes(number, 1), unit):
                extend(report.covered, number, number + 1)
            else:
                report.wrong.append(Wrong(int(units["queue_offset"][at]), unit))


def same_units(one: bytes, other: bytes) -> bool:
    """Tell whether units say the same of the log; their places in a compacted log may differ."""
    if one == other or len(one) != len(other):
        return one == other
    rows = [np.frombuffer(data, UNIT_DTYPE)[_OF_THE_LOG] for data in (one, other)]
    return bool((rows[0] == rows[1]).all())


def extend(stretches: list[list[int]], first: int, end: int) -> None:
    """Add a stretch; a stretch that follows the last one lengthens it."""
    if stretches and stretches[-1][1] == first:
        stretches[-1][1] = end
    else:
        stretches.append([first, end])


class QueueSinks:
    """Receiver of entries, in place of all queues."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self.by_key: dict[QueueKey, QueueSink | BatchSink] = {}

    def put(self, entries: DispatchedEntries) -> None:
        """Compare the entries of one round."""
        size = self._view.entry_bytes
        rows: npt.NDArray[Any] = np.empty(len(entries.size), ROW)
        rows["physical_offset"] = entries.physical_offset
        rows["size"] = entries.size
        rows["tag_code"] = entries.tag_code
        rows["store_ms"] = entries.store_ms
        data = np.ascontiguousarray(rows.view((np.uint8, ROW.itemsize))[:, :size]).tobytes()
        for run in entries.each_run():
            sink = self._open(run.topic, run.queue_id)
            if isinstance(sink, BatchSink):
                sink.put(units_of(entries, run.start, run.end))
            else:
                sink.put(run.queue_offset, data[run.start * size : run.end * size])

    def _open(self, topic: str, queue_id: int) -> QueueSink | BatchSink:
        key = topic, queue_id
        sink = self.by_key.get(key)
        if sink is None:
            kind = BatchSink if topic in self._view.batch_topics else QueueSink
            sink = self.by_key[key] = kind(self._view, key)
        return sink


def index_rows(view: StoreView, file: StoreFile) -> IndexRows | None:
    """The entries of an IndexFile; None where its size fits none."""
    slots = view.layout.index_slots
    if not geometry(file.size_bytes, slots)[0]:
        return None

    def window(start: int, end: int) -> memoryview:
        return memoryview(view.maps.of(file))[start:end]

    return IndexRows(window, file.size_bytes, slots)


class Key(NamedTuple):
    """A key that only the log has, or only the index."""

    hash: int
    physical_offset: int


@dataclass
class IndexReport:
    """Report of a part of the log on the index; lists are limited, counts are complete.

    ``outside_count`` keys belong to records before the first or after the last indexed one.
    """

    missing: list[Key] = field(default_factory=list)
    missing_count: int = 0
    outside_count: int = 0
    foreign: list[Key] = field(default_factory=list)
    foreign_count: int = 0
    late: list[Key] = field(default_factory=list)
    late_count: int = 0
    key_count: int = 0

    def add(self, part: IndexReport, keep_max: int) -> None:
        """Add the report of a later part of the log; each list keeps up to ``keep_max`` keys."""
        for mine, more in ((self.missing, part.missing), (self.foreign, part.foreign), (self.late, part.late)):
            assert len(mine) <= keep_max, "a list keeps its limit"
            mine += more[: keep_max - len(mine)]
        self.missing_count += part.missing_count
        self.outside_count += part.outside_count
        self.foreign_count += part.foreign_count
        self.late_count += part.late_count
        self.key_count += part.key_count


class IndexSink:
    """Receiver of keys, in place of the index, that notes missing and additional keys."""

    def __init__(self, view: StoreView, keep_max: int) -> None:
        self._keep_max = keep_max
        self.files: Final = [
            rows
            for rows in (index_rows(view, file) for file in view.index.files)
            if rows is not None and rows.taken > 1
        ]
        spans = [rows.span for rows in self.files]
        self.begin_offset: Final = min((first for first, _ in spans), default=-1)
        self.end_offset: int = max((last for _, last in spans), default=-1)
        self.report: Final = IndexReport()

    def put(self, hashes: Ints, physical_offsets: Ints, store_ms: Ints) -> None:
        """Compare the keys of consecutive records."""
        assert len(hashes) == len(physical_offsets) == len(store_ms), "each key has its record's place and time"
        self.report.key_count += len(hashes)
        if not len(hashes):
            return
        inside = (physical_offsets >= self.begin_offset) & (physical_offsets <= self.end_offset)
        if not inside.all() or not self.files:
            self.report.outside_count += len(hashes) - int(inside.sum()) if self.files else len(hashes)
            if not self.files or not inside.any():
                return
            hashes, physical_offsets, store_ms = (hashes[inside], physical_offsets[inside], store_ms[inside])
        found = self._between(int(physical_offsets[0]), int(physical_offsets[-1]))
        have_hash, have_offset, *have_time = found
        if len(have_hash) == len(hashes) and bool(((have_hash == hashes) & (have_offset == physical_offsets)).all()):
            self._compare_times(hashes, physical_offsets, store_ms, *have_time)
            return
        self._compare_sets(have_hash, have_offset, hashes, physical_offsets)

    def _between(self, first: int, last: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Hash, offset and seconds of the entries of records from one offset to another, both included, and the start
        time of their seconds: -1 where the format does not say.
        """
        parts: list[tuple[Ints, Ints, Ints, Ints]] = []
        for rows in self.files:
            if rows.span[1] < first or rows.span[0] > last:
                continue
            low, high = rows.place_of(first), rows.place_of(last + 1)
            if low < high:
                begin_ms = np.full(high - low, rows.begin_ms)
                if low == 0:
                    begin_ms[0] = -1  # its seconds count from the begin that the file inherited
                parts.append((*rows.part(low, high), begin_ms))
        if not parts:
            nothing = np.empty(0, np.int64)
            return nothing, nothing, nothing, nothing
        if len(parts) == 1:
            return parts[0]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return columns[0], columns[1], columns[2], columns[3]

    def _compare_times(
        self, hashes: Ints, physical_offsets: Ints, store_ms: Ints, have_seconds: Ints, begin_ms: Ints
    ) -> None:
        seconds = np.clip((store_ms - begin_ms) // 1000, 0, _SECONDS_MAX)
        off = (begin_ms >= 0) & (seconds != have_seconds)
        if off.any():
            self.report.late_count += int(off.sum())
            _keep(self.report.late, hashes[off], physical_offsets[off], self._keep_max)

    def _compare_sets(self, have_hashes: Ints, have_offsets: Ints, hashes: Ints, physical_offsets: Ints) -> None:
        have = np.stack((have_offsets, have_hashes), axis=1)
        want = np.stack((physical_offsets, hashes), axis=1)
        lacking = _minus(want, have)
        foreign = _minus(have, want)
        self.report.missing_count += len(lacking)
        self.report.foreign_count += len(foreign)
        _keep(self.report.missing, lacking[:, 1], lacking[:, 0], self._keep_max)
        _keep(self.report.foreign, foreign[:, 1], foreign[:, 0], self._keep_max)


def _minus(these: Ints, those: Ints) -> Ints:
    """The pairs of one set that another lacks."""
    known = set(map(tuple, those.tolist()))
    lacking = [pair for pair in these.tolist() if tuple(pair) not in known]
    return np.array(lacking, np.int64).reshape(-1, 2)


def _keep(keys: list[Key], hashes: Ints, offsets: Ints, keep_max: int) -> None:
    room = keep_max - len(keys)
    if room > 0:
        pairs = zip(hashes[:room].tolist(), offsets[:room].tolist(), strict=True)
        keys += [Key(key_hash, offset) for key_hash, offset in pairs]


class Comparison:
    """Records in, differences out."""

    def __init__(self, view: StoreView, keep_max: int) -> None:
        self.queues: Final = QueueSinks(view)
        self.index: Final = IndexSink(view, keep_max)
        levels = view.layout.delay_levels
        self._dispatch = dispatch_to(self.queues.put, view.batch_topics, levels, self.index)

    def compare(self, columns: Columns) -> None:
        """Compare what some records, in the order of the log, lead to."""
        if len(columns):
            self._dispatch(columns)
