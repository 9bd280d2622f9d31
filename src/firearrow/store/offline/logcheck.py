"""Verify a stretch of a CommitLog file, and with its records their queue entries and index keys.

Stretches are checked one by one, perhaps in several processes, and their reports are joined to one report for each
file. ``firearrow.store.offline.verdict`` judges from the reports the rules beyond one file: queue offsets and the end
of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from firearrow.message.properties import fault_of, is_utf8
from firearrow.message.record import CRC_PROPERTY_BYTES, verify_crc_property
from firearrow.message.sysflag import (
    COMPRESSED,
    COMPRESSION_MASK,
    HOSTS_V6_MASK,
    INNER_BATCH,
    MULTI_TAGS,
    NEED_UNWRAP,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from firearrow.store.offline.compare import Comparison, IndexReport, QueueReport, add_queues
from firearrow.store.offline.findings import FINDINGS_PER_PLACE_MAX, Finding, Findings
from firearrow.store.offline.pieces import Stretch, side_by_side
from firearrow.store.offline.view import StoreView
from firearrow.store.offline.walk import FileEnd, Gap, first_record, walk_file
from firearrow.store.reading.entries import QueueKey
from firearrow.store.reading.storage import StoreFile
from firearrow.store.reading.walk import RecordRun
from firearrow.store.scan import PADDING, Bytes, Columns, Ints, gather, joined

_KNOWN_FLAGS: Final = (
    COMPRESSED | MULTI_TAGS | TRANSACTION_MASK | HOSTS_V6_MASK | NEED_UNWRAP | INNER_BATCH | COMPRESSION_MASK
)
_ODD: Final = "\ufffd"  # decoded from bytes that are no UTF-8
_CRC_MARK: Final = b"__CRC32#\x01"
_CRC_WORD: Final = np.dtype((np.void, len(_CRC_MARK)))


class GapReport(NamedTuple):
    """A stretch without records, as physical offsets; see ``walk.Gap``."""

    start: int
    end: int
    invariant: str
    why: str


class First(NamedTuple):
    """Place and store time of the first record of a stretch."""

    position: int
    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    store_ms: int


@dataclass
class FileReport:
    """Content of a log file, or of a stretch of one.

    ``bad_records`` are (physical offset, size) of records that nobody can consume. ``altered`` are the same of records
    that can be consumed, but differ from the stored ones.

    ``end``, ``begin``, ``reached`` and ``over`` are as in ``pieces.StretchResult``.
    """

    base: int
    size_bytes: int
    end: int = 0
    begin: int | None = None
    reached: int = 0
    over: bool = False
    first: First | None = None
    records: int = 0
    last_offset: int = -1
    end_offset: int = -1
    blank: bool = False
    first_ms: int = 0
    last_ms: int = 0
    gaps: list[GapReport] = field(default_factory=list)
    bad_records: set[tuple[int, int]] = field(default_factory=set)
    altered: set[tuple[int, int]] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    queues: dict[QueueKey, QueueReport] = field(default_factory=dict)
    index: IndexReport = field(default_factory=IndexReport)


class StretchCheck:
    """Check of the records of one file that begin in a stretch; ``run`` gives the report."""

    def __init__(self, view: StoreView, file: StoreFile, stretch: Stretch) -> None:
        self._view = view
        self._file = file
        self._stretch = stretch
        self._name = file.path
        self._findings = Findings()
        self._comparison = Comparison(view, FINDINGS_PER_PLACE_MAX)
        self.report: Final = FileReport(file.base, file.size_bytes, stretch.end, end_offset=file.base)

    def run(self) -> FileReport:
        """Check all records."""
        report, stretch = self.report, self._stretch
        start: int | None = stretch.start
        if not stretch.known:
            start = first_record(self._view, self._file, stretch.start, stretch.end)
        report.begin = start
        if start is None:
            return report
        assert stretch.start <= start <= stretch.end, "the first record begins in the stretch"
        for piece in walk_file(self._view, self._file, start, stretch.end):
            match piece:
                case RecordRun():
                    self._records(piece.columns)
                    report.reached = piece.columns.end
                case Gap():
                    places = piece.physical_offset, piece.physical_end
                    report.gaps.append(GapReport(*places, piece.invariant, piece.why))
                    report.reached = piece.end
                case FileEnd():
                    report.blank, report.over = piece.blank, True
        assert report.over or report.reached > start, "the walk goes on from its start"
        self._take_comparison()
        report.findings = self._findings.all()
        return report

    def _take_comparison(self) -> None:
        queues = self._comparison.queues.by_key
        self.report.queues = {key: sink.report for key, sink in queues.items()}
        self.report.index = self._comparison.index.report

    def _records(self, columns: Columns) -> None:
        report = self.report
        self._store_times(columns)
        self._bodies(columns)
        self._properties(columns)
        self._flags(columns)
        self._comparison.compare(columns)
        self._topics(columns)
        report.records += len(columns)
        report.last_offset = int(columns.physical_offset[-1])
        report.end_offset = self._file.base + columns.end
        report.last_ms = int(columns.store_ms[-1])
        assert report.last_offset < report.end_offset, "records are in their places"

    def _found(self, invariant: str, columns: Columns, number: int, what: str) -> None:
        self._findings.add(
            invariant,
            what,
            file=self._name,
            position=int(columns.position[number]),
            physical_offset=int(columns.physical_offset[number]),
            queue_id=int(columns.queue_id[number]),
            queue_offset=int(columns.queue_offset[number]),
            topic=_topic_of(columns, number),
        )

    def _store_times(self, columns: Columns) -> None:
        store_ms = columns.store_ms
        if not self.report.records:
            self.report.first_ms = int(store_ms[0])
            self.report.first = First(
                int(columns.position[0]),
                int(columns.physical_offset[0]),
                _topic_of(columns, 0),
                int(columns.queue_id[0]),
                int(columns.queue_offset[0]),
                int(store_ms[0]),
            )
        before = np.append(self.report.last_ms, store_ms[:-1])
        for number in np.flatnonzero(store_ms < before).tolist():
            text = _late(int(store_ms[number]), int(before[number]))
            self._found("record-store-time", columns, number, text)

    def _bodies(self, columns: Columns) -> None:
        holds = columns.body_crc_holds()
        if not holds.all():
            for number in np.flatnonzero(~holds).tolist():
                stated = int(columns.body_crc[number])
                text = f"its body does not have the CRC {stated:#010x} that it states"
                self._found("record-body-crc", columns, number, text)
                self.report.altered.add(_place(columns, number))
        self._crc_properties(columns)

    def _crc_properties(self, columns: Columns) -> None:
        ends = columns.properties_start + columns.properties_size
        long = np.flatnonzero(columns.properties_size >= CRC_PROPERTY_BYTES)
        if not len(long):
            return
        words = gather(columns.buffer, _CRC_WORD, ends[long] - CRC_PROPERTY_BYTES)
        for number in long[words == np.void(_CRC_MARK)].tolist():
            start = int(columns.position[number])
            record = bytes(columns.buffer[start : start + int(columns.size[number])])
            if verify_crc_property(record) is False:
                text = "its bytes do not agree with its CRC property"
                self._found("record-crc-property", columns, number, text)
                self.report.altered.add(_place(columns, number))

    def _topics(self, columns: Columns) -> None:
        """Look for topics that are empty or no UTF-8.

        The comparison has decoded all topics of records with a place in a queue. Only where one of them is odd, and for
        records without a place, the stored bytes are read.
        """
        kind = columns.sys_flag & TRANSACTION_MASK
        placeless = (kind != TRANSACTION_NONE) & (kind != TRANSACTION_COMMIT)
        odd = any(not topic or _ODD in topic for topic, _ in self._comparison.queues.by_key)
        if not odd and not placeless.any():
            return
        topics, number = columns.topics()
        for at, topic in enumerate(topics):
            if topic and not is_utf8(topic):
                self._bad_topic(columns, number, at, f"its topic {topic!r} is not UTF-8")
            elif not topic:
                self._bad_topic(columns, number, at, "its topic is empty")

    def _bad_topic(self, columns: Columns, topic_number: Ints, topic: int, what: str) -> None:
        for number in np.flatnonzero(topic_number == topic).tolist():
            self._found("record-topic", columns, number, what)
            self.report.bad_records.add(_place(columns, number))

    def _properties(self, columns: Columns) -> None:
        for number, fault in faults(columns):
            self._found("record-properties", columns, number, fault)

    def _flags(self, columns: Columns) -> None:
        for number in np.flatnonzero(~columns.ports_fit).tolist():
            self._found("record-hosts", columns, number, "a port of its hosts is above 65535")
        flags = columns.sys_flag
        for number in np.flatnonzero(flags & ~_KNOWN_FLAGS).tolist():
            text = f"its system flag {int(flags[number]):#x} has unknown bits"
            self._found("record-flags", columns, number, text)
        for number in np.flatnonzero(flags & INNER_BATCH).tolist():
            start = int(columns.properties_start[number])
            size = int(columns.properties_size[number])
            if b"INNER_NUM\x01" not in bytes(columns.buffer[start : start + size]):
                text = "an inner batch that does not say how many messages it holds"
                self._found("record-flags", columns, number, text)
        # A rollback may lack the offset of its half message: filler records have none.
        kind = flags & TRANSACTION_MASK
        for number in np.flatnonzero(kind == TRANSACTION_COMMIT).tolist():
            half = int(columns.prepared_offset[number])
            if not 0 <= half < int(columns.physical_offset[number]):
                text = f"its half message is noted at {half}, after it"
                self._found("record-transaction", columns, number, text)


def _place(columns: Columns, number: int) -> tuple[int, int]:
    return int(columns.physical_offset[number]), int(columns.size[number])


def _topic_of(columns: Columns, number: int) -> str:
    start, size = int(columns.topic_start[number]), int(columns.topic_size[number])
    return bytes(columns.buffer[start : start + size]).decode("utf-8", "replace")


def _late(store_ms: int, before_ms: int) -> str:
    return f"stored at {store_ms}, the record before it at {before_ms}"


def check_stretch(view: StoreView, stretch: Stretch) -> FileReport | None:
    """Verify a stretch of the log; None if its file has been deleted."""
    file = view.log_file(stretch.base)
    return None if file is None else StretchCheck(view, file, stretch).run()


def join_stretches(view: StoreView, reports: list[FileReport]) -> FileReport:
    """Join the reports of a file's stretches, which are in order."""
    whole, *parts = side_by_side(reports, lambda stretch: check_stretch(view, stretch))
    for part in parts:
        _append(view, whole, part)
    return whole


def _append(view: StoreView, whole: FileReport, part: FileReport) -> None:
    """Add the report of the next stretch."""
    assert part.base == whole.base, "the stretches are of one file"
    findings = Findings()
    findings.extend(whole.findings)
    file = view.log_file(part.base)
    if part.first and part.first.store_ms < whole.last_ms:
        findings.add(
            "record-store-time",
            _late(part.first.store_ms, whole.last_ms),
            file=None if file is None else file.path,
            position=part.first.position,
            physical_offset=part.first.physical_offset,
            topic=part.first.topic,
            queue_id=part.first.queue_id,
            queue_offset=part.first.queue_offset,
        )
    findings.extend(part.findings)
    whole.findings = findings.all()
    if part.records:
        whole.first = whole.first or part.first
        whole.first_ms = whole.first_ms if whole.records else part.first_ms
        whole.last_offset, whole.end_offset = part.last_offset, part.end_offset
        whole.last_ms = part.last_ms
    whole.records += part.records
    whole.end, whole.reached, whole.over = part.end, part.reached, part.over
    whole.blank = part.blank
    whole.gaps += part.gaps
    whole.bad_records |= part.bad_records
    whole.altered |= part.altered
    add_queues(whole.queues, part.queues)
    whole.index.add(part.index, FINDINGS_PER_PLACE_MAX)


# --- property strings of many records at once ---
#
# A string is pairs of a name, 01, a value, 02; the last 02 may be missing. All strings of a batch are one text
# (``firearrow.store.scan.joined``), and only its separators are checked: each pair that is not empty has one 01, not at
# its begin. So the number of pairs and their ends do not matter.


_NAME_END: Final = 1
_PAIR_END: Final = 2


def faults(columns: Columns) -> list[tuple[int, str]]:
    """The numbers of the records with odd properties, and the fault of each."""
    text, row_bytes = joined(columns)
    text = text[: -len(PADDING)]
    if _is_sound(text, row_bytes):
        return []
    texts = columns.slices(columns.properties_start, columns.properties_size)
    found = ((number, fault_of(text)) for number, text in enumerate(texts))
    return [(number, fault) for number, fault in found if fault]


def _is_sound(text: Bytes, row_bytes: int) -> bool:
    """Tell whether all pairs of a text are in order; ``row_bytes`` is the length of equal strings."""
    if row_bytes and _is_repeated(text, row_bytes):
        return fault_of(text[: row_bytes - 1].tobytes()) is None
    return (int(text.max()) < 128 or is_utf8(text.tobytes())) and _pairs_are_sound(text)


def _is_repeated(text: Bytes, row_bytes: int) -> bool:
    """Tell whether all rows are ASCII and have their separators where the first has them."""
    rows = text.reshape(-1, row_bytes)
    odd = (rows <= _PAIR_END) | (rows > 127)
    first = rows[0]
    if first.max() > 127 or odd.tobytes() != odd[0].tobytes() * len(rows):
        return False
    marks = odd[0].nonzero()[0]
    return bool((rows[:, marks] == first[marks]).all())


def _pairs_are_sound(text: Bytes) -> bool:
    """Tell whether each pair that is not empty has one 01, not at its beginning."""
    place = ((text == _NAME_END) | (text == _PAIR_END)).nonzero()[0]
    ends = text[place] == _PAIR_END
    after_end = np.append(True, ends[:-1])  # whether the previous separator is a pair's end
    distance = np.diff(place, prepend=-1)
    # A name's end follows a pair's end, and not at once; a pair's end follows a name's end, or at
    # once the end of the pair before.
    sound = np.where(ends, ~after_end | (distance == 1), after_end & (distance > 1))
    return bool(sound.all())
