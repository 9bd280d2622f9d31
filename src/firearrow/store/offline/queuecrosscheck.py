"""Verify ConsumeQueues against the log; ``queuestructure`` verifies them without it.

The entries have been compared with the log stretch by stretch (``logcheck``). Here all reports come together, so that
entries without a record show up.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from firearrow.message.names import fault_as_directory, is_lmq
from firearrow.store.batchqueue import UNIT, BatchUnit
from firearrow.store.extension import ADDRESS_MAX, DIRECTORY, Extension
from firearrow.store.offline.compare import QueueReport
from firearrow.store.offline.findings import Findings, Severity
from firearrow.store.offline.logcheck import GapReport
from firearrow.store.offline.metadata import configured_topics, is_deleted
from firearrow.store.offline.queuestructure import QueueLook
from firearrow.store.offline.view import StoreView
from firearrow.store.queues import ENTRY, ENTRY_BYTES
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.entries import PRE_BLANK_SIZE, QueueKey, StoredQueue, physical_offsets
from firearrow.store.reading.storage import is_zero


class QueueCheck(QueueLook):
    """Verification of one queue against the reports on the log."""

    def __init__(self, view: StoreView, key: QueueKey, report: QueueReport, log_end: int, findings: Findings) -> None:
        self._queue = view.queues.get(key)
        super().__init__(view, key, self._queue, findings)
        self._size = view.entry_bytes
        self._report = report
        self._log_end = log_end
        self._lost: list[tuple[int, int]] = []
        self.behind: int = 0
        """Number of messages that it lacks at its end, as expected."""
        self._extension = Extension(view.root / DIRECTORY / self._topic / str(self._queue_id))

    def missing(self, deleted: bool) -> bool:
        """Tell whether the queue has no entries.

        It may have none if its topic was deleted, or if it has no messages in the log.
        """
        there = self._queue is not None and self._queue.is_there
        if there or not self._report.numbers or deleted:
            return not there
        count = sum(end - first for first, end in self._report.numbers)
        kept = "files" if self._view.rocks_directory is None else "rows"
        text = f"the queue has no {kept}, the log has {count} messages of it"
        kind = self._kind_of_missing(0)
        severity = None
        if is_lmq(self._topic):  # no table of topics says whether the topic was deleted
            text += "; it may have been deleted"
            severity = Severity.NOTE
        elif self._view.rocks_directory is None and self._view.closed_without((self._topic, self._queue_id)):
            text += "; there was none when the store was closed: its topic was deleted before that"
            severity = Severity.NOTE
        self._found(kind, text, self._report.numbers[0][0], times=count, severity=severity)
        self._count_behind(kind, count)
        return True

    def _count_behind(self, kind: str, messages: int) -> None:
        if kind == "queue-behind-log" and not is_lmq(self._topic):  # its messages are in other queues, too
            self.behind += messages

    def _kind_of_missing(self, physical_offset: int) -> str:
        """The invariant that is broken where the end of a queue lacks the entry of a record."""
        expected = self._view.live or not self._view.clean
        if physical_offset < self._view.dispatched_offset and not self._view.live:
            expected = False  # the next start will not write it
        return "queue-behind-log" if expected else "queue-entry-missing"

    def run(self, gaps: list[GapReport]) -> None:
        """Check the entries; ``gaps`` are the stretches of the log without records."""
        self._lost = [(gap.start, gap.end) for gap in gaps]
        self._wrong_entries()
        self._extra_entries()

    def _wrong_entries(self) -> None:
        """Report for each wrong entry the field that differs from the log."""
        covered = _as_set(self._report.covered)
        expected: dict[int, bytes] = {}
        for wrong in self._report.wrong:  # of two records with one queue offset the later one counts
            assert not len(wrong.entries) % self._size, "only whole entries are noted"
            for number in range(len(wrong.entries) // self._size):
                if not _inside(covered, wrong.first + number):
                    entry = wrong.entries[number * self._size : (number + 1) * self._size]
                    expected[wrong.first + number] = entry
        if not expected:
            return
        assert self._queue is not None
        end = self._queue.end
        behind = [at for at in expected if at >= end]
        for at in sorted(expected.keys() - set(behind)):
            self._differs(at, expected[at])
        if behind:
            self._behind(min(behind), len(behind), expected[min(behind)])

    def _behind(self, first: int, count: int, entry: bytes) -> None:
        physical = int.from_bytes(entry[:8], "big")
        text = f"the queue ends before {count} messages, and the first of them is at {physical}"
        kind = self._kind_of_missing(physical)
        self._found(kind, text, first, times=count, physical_offset=physical)
        self._count_behind(kind, count)

    def _differs(self, at: int, entry: bytes) -> None:
        physical, size, tag = ENTRY.unpack_from(entry)
        assert self._queue is not None
        found = self._queue.read(at, 1)
        if len(found) < self._size or is_zero(found):
            text = f"there is no entry for the record at {physical}"
            self._found("queue-entry-missing", text, at, physical_offset=physical)
            return
        have_physical, have_size, have_tag = ENTRY.unpack_from(found)
        if have_physical != physical:
            text = f"points at {have_physical}, the record of this queue offset is at {physical}"
            self._found("queue-entry-position", text, at, physical_offset=physical)
        elif have_size != size:
            text = f"says {have_size} bytes, the record has {size}"
            self._found("queue-entry-size", text, at, physical_offset=physical)
        elif have_tag > ADDRESS_MAX and have_tag != tag:
            text = f"has the tag code {have_tag}, the record's is {tag}"
            self._found("queue-entry-tag", text, at, physical_offset=physical)
        elif have_tag <= ADDRESS_MAX and self._leads_elsewhere(have_tag, tag):
            ext = self._extension.tag_code(have_tag)
            text = f"leads to the tag code {ext} in its extension, the record's is {tag}"
            self._found("queue-entry-tag", text, at, physical_offset=physical)
        elif found[ENTRY_BYTES:] != entry[ENTRY_BYTES:]:
            have_ms, store_ms = (int.from_bytes(row[ENTRY_BYTES:], "big") for row in (found, entry))
            text = f"says that its message was stored at {have_ms}, it was at {store_ms}"
            self._found("queue-entry-time", text, at, physical_offset=physical)

    def _leads_elsewhere(self, address: int, tag: int) -> bool:
        """Tell whether an extension has another tag code; without an extension the record has it."""
        return self._extension.is_there and self._extension.tag_code(address) != tag

    def _extra_entries(self) -> None:
        """Check the entries without a record in the log."""
        known = _as_set(self._report.covered)
        for wrong in self._report.wrong:
            known.append((wrong.first, wrong.first + len(wrong.entries) // self._size))
        known.sort()
        assert self._queue is not None
        for start, end in self._queue.others(known):
            self._orphans(self._queue, start, end)

    def _orphans(self, queue: StoredQueue, start: int, end: int) -> None:
        assert start < end, "a stretch has entries"
        data = queue.read(start, end - start + 1)
        if is_zero(data):
            return
        size = self._size
        entries = [data[at : at + size] for at in range(0, len(data) - size + 1, size)]
        stand_in = False
        for number in range(end - start - 1, -1, -1):
            behind = entries[number + 1] if number + 1 < len(entries) else b""
            known = stand_in or number + 1 == end - start
            stand_in = known and entries[number] == behind
            self._orphan(start + number, entries[number], stand_in)

    def _orphan(self, at: int, entry: bytes, stand_in: bool) -> None:
        """Check an entry without a separate record; ``stand_in`` if it equals the next one."""
        physical, size, _ = ENTRY.unpack_from(entry)
        if size <= 0 or size == PRE_BLANK_SIZE or physical < self._view.log_start:
            return  # unwritten, or in a deleted part of the log
        kind = "queue-entry-orphan"
        if physical >= self._log_end:
            kind, text = ("queue-beyond-log", f"points at {physical}, the log ends at {self._log_end}")
            if self._view.live:
                return
        elif stand_in:
            kind, text = "queue-stand-in", f"is the entry of the next message, at {physical}"
        elif any(low <= physical < high for low, high in self._lost):
            text = f"its message lay at {physical}, where the log is damaged"
        else:
            text = f"points at {physical}, where no record of this queue offset is"
        self._found(kind, text, at, physical_offset=physical)

    def check_numbers(self, gaps: list[GapReport]) -> None:
        """Report where the log skips queue offsets; a restart at 0 is a topic that was made again.

        Offsets whose entries point into a damaged stretch are not reported twice.
        """
        numbers = self._report.numbers
        for (_, end), (first, _) in pairwise(numbers):
            if first not in (end, 0) and not self._in_gaps(end, first, gaps):
                text = f"the log has no record for the queue offsets {end} to {first - 1}"
                if first < end:
                    text = f"the log goes back from queue offset {end - 1} to {first}"
                self._found("record-queue-order", text, min(first, end))

    def _in_gaps(self, first: int, end: int, gaps: list[GapReport]) -> bool:
        data = b"" if self._queue is None else self._queue.read(first, max(end - first, 0))
        places = physical_offsets(data, self._size)
        return bool(places) and all(any(gap.start <= physical < gap.end for gap in gaps) for physical in places)


def _as_set(stretches: list[list[int]]) -> list[tuple[int, int]]:
    """The stretches, sorted and without overlaps."""
    joined: list[list[int]] = []
    for first, end in sorted((first, end) for first, end in stretches):
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([first, end])
    return [(first, end) for first, end in joined]


def _inside(stretches: list[tuple[int, int]], number: int) -> bool:
    return any(first <= number < end for first, end in stretches)


# --- queues of batches ---


_POSITION: Final = "points to {}, but the record of this queue offset is at {}"
_TAG: Final = "has the tag code {}, the record's is {}"
_TIME: Final = "says that its record was stored at {}, it was at {}"
_MESSAGES: Final = "stands for {} messages, the record has {}"


class BatchQueueCheck(QueueCheck):
    """Verification of one queue of batches against the reports on the log."""

    def _wrong_entries(self) -> None:
        """Report for each wrong unit the field that differs from the log."""
        queue = self._units
        covered = [(queue.unit(first).queue_offset, queue.unit(end - 1).end) for first, end in self._report.covered]
        expected = {  # of two records with one queue offset the later one counts
            wrong.first: wrong.entries
            for wrong in self._report.wrong
            if not any(first <= wrong.first < end for first, end in covered)
        }
        behind = [at for at in expected if at >= queue.end]
        for at in sorted(expected.keys() - set(behind)):
            self._unit_differs(queue, BatchUnit._make(UNIT.unpack(expected[at])[:6]))
        if behind:
            messages = sum(BatchUnit._make(UNIT.unpack(expected[at])[:6]).messages for at in behind)
            self._behind(min(behind), messages, expected[min(behind)])

    @property
    def _units(self) -> BatchQueue:
        assert isinstance(self._queue, BatchQueue)
        return self._queue

    def _unit_differs(self, queue: BatchQueue, want: BatchUnit) -> None:
        at, physical = want.queue_offset, want.physical_offset
        have = queue.unit(queue.number_of(at))
        if have.queue_offset != at:
            text = f"there is no entry for the record at {physical}"
            self._found("queue-entry-missing", text, at, physical_offset=physical)
            return
        for invariant, mine, theirs, what in (
            ("queue-entry-position", have.physical_offset, physical, _POSITION),
            ("queue-entry-size", have.size, want.size, "says {} bytes, the record has {}"),
            ("queue-entry-tag", have.tag_code, want.tag_code, _TAG),
            ("queue-entry-time", have.store_ms, want.store_ms, _TIME),
            ("queue-entry-messages", have.messages, want.messages, _MESSAGES),
        ):
            if mine != theirs:
                text = what.format(mine, theirs)
                self._found(invariant, text, at, physical_offset=physical)
                return

    def _extra_entries(self) -> None:
        """Check the units without a record in the log."""
        queue = self._units
        extra = np.ones(len(queue.numbers), np.bool_)
        for first, end in self._report.covered:
            extra[first - queue.numbers.start : end - queue.numbers.start] = False
        known = {wrong.first for wrong in self._report.wrong}
        for row in np.flatnonzero(extra).tolist():
            unit = queue.unit(queue.numbers[row])
            if unit.queue_offset not in known:
                self._orphan(unit.queue_offset, UNIT.pack(*unit, 0, 0), False)


# --- all queues of a store ---


def check_queues(
    view: StoreView, merged: dict[QueueKey, QueueReport], log_end: int, gaps: list[GapReport], findings: Findings
) -> tuple[int, int]:
    """Verify all queues against the log; return their number, and the number of messages that their ends may lack."""
    keys = sorted({*view.queues, *merged})
    configured = configured_topics(view)
    behind = 0
    has_lmqs = any(is_lmq(topic) for topic, _ in view.queues)
    for key in keys:
        report = merged.get(key, QueueReport())
        fault = fault_as_directory(key[0])
        if fault is not None and view.rocks_directory is None and key not in view.queues:
            count = sum(end - first for first, end in report.numbers)
            text = f"{count} messages have no queue: {fault}"
            findings.add("queue-name", text, topic=key[0], queue_id=key[1], times=count)
            continue
        kind = BatchQueueCheck if key[0] in view.batch_topics else QueueCheck
        check = kind(view, key, report, log_end, findings)
        check.check_numbers(gaps)
        # LMQs are never configured: other LMQs show that they are in use.
        deleted = is_deleted(key[0], configured) and not (is_lmq(key[0]) and has_lmqs)
        if not check.missing(deleted):
            check.run(gaps)
        behind += check.behind
    return len(keys), behind
