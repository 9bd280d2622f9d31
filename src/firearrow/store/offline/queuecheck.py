"""Verifies the ConsumeQueues: their files by themselves, and their entries against the log.

The entries have been compared with the log stretch by stretch (``logcheck``); here the reports of
all come together, so that an entry that no record accounts for shows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.message.names import is_lmq
from firearrow.store.offline.around import configured_topics
from firearrow.store.offline.compare import QUEUE_ENTRY, QueueReport, entries_of, read_queue
from firearrow.store.offline.findings import Finding, Findings, Severity
from firearrow.store.offline.logcheck import GapReport
from firearrow.store.offline.view import Directory, QueueKey, StoreFile, StoreView, is_zero
from firearrow.store.queues import ENTRY, ENTRY_BYTES

_PRE_BLANK_SIZE: Final = 0x7FFFFFFF
_EXTENSION_BELOW: Final = -(1 << 31)  # lower tag codes are addresses in the extension file

Entries = npt.NDArray[Any]


class QueueCheck:
    """Looks at one queue."""

    def __init__(
        self, view: StoreView, key: QueueKey, report: QueueReport, log_end: int, findings: Findings
    ) -> None:
        self._view = view
        self._topic, self._queue_id = key
        self._directory = view.queues.get(key, Directory([], []))
        self._report = report
        self._log_end = log_end
        self._findings = findings
        self._lost: list[tuple[int, int]] = []

    def missing(self, deleted: bool) -> bool:
        """Whether the queue has messages in the log and no files; a deleted topic may."""
        if self._directory.files or not self._report.numbers or deleted:
            return not self._directory.files
        count = sum(end - first for first, end in self._report.numbers)
        text = f"the queue has no files, the log has {count} messages of it"
        expected = self._view.live or not self._view.clean
        kind = "queue-behind-log" if expected else "queue-entry-missing"
        self._found(kind, text, self._report.numbers[0][0], times=count)
        return True

    def run(self, gaps: list[GapReport]) -> None:
        """Look at entries; ``gaps`` are the stretches of the log without records."""
        self._lost = [(gap.start, gap.end) for gap in gaps]
        self._wrong_entries()
        self._extra_entries()

    def files(self) -> None:
        """Look at the files by themselves."""
        for stray in self._directory.strays:
            where = self._view.name_of(stray)
            self._findings.add("queue-stray", "is no file of a queue", file=where)
        files = self._directory.files
        if self._files_fit(files):
            for file in files:
                self._file(file, last=file is files[-1])

    def _found(
        self,
        invariant: str,
        what: str,
        queue_offset: int,
        *,
        times: int = 1,
        physical_offset: int | None = None,
        severity: Severity | None = None,
    ) -> None:
        file = self._directory.find(queue_offset * ENTRY_BYTES)
        self._findings.add(
            invariant,
            what,
            file=self._view.name_of(file.path) if file else None,
            position=queue_offset * ENTRY_BYTES - file.base if file else None,
            topic=self._topic,
            queue_id=self._queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            times=times,
            severity=severity,
        )

    def _files_fit(self, files: list[StoreFile]) -> bool:
        """Whether sizes and names are those of one address space."""
        usual = self._directory.file_size_bytes
        sound = True
        for before, file in zip([None, *files], files, strict=False):
            number = file.base // ENTRY_BYTES
            if file.size_bytes != usual or file.size_bytes % ENTRY_BYTES or not file.size_bytes:
                text = f"the file has {file.size_bytes} bytes, others {usual}"
                self._found("queue-file-size", text, number)
                sound = False
            if before is not None and file.base != before.end:
                text = f"the file before it ends at byte {before.end}"
                self._found("queue-file-missing", text, number)
                sound = False
        return sound

    def _file(self, file: StoreFile, *, last: bool) -> None:
        """Look at one file's entries as columns."""
        buffer = self._view.maps.of(file)
        entries: Entries = np.frombuffer(buffer, QUEUE_ENTRY, len(buffer) // ENTRY_BYTES)
        first = file.base // ENTRY_BYTES
        size = entries["size"]
        written = (size > 0) & (entries["physical_offset"] >= 0)
        count = len(entries) if written.all() else int(np.argmin(written))
        blanks = int(np.count_nonzero(size[:count] == _PRE_BLANK_SIZE))
        self._pre_blank(entries[:count], blanks, first)
        offsets = entries["physical_offset"][blanks:count].astype(np.int64)
        pairs = entries[blanks:count]
        falls = (np.diff(offsets) <= 0) & (pairs[1:] != pairs[:-1])  # an equal one stands in
        for number in np.flatnonzero(falls).tolist():
            text = f"its record lies at {offsets[number + 1]}, that before it at {offsets[number]}"
            self._found("queue-order", text, first + blanks + number + 1)
        rest = bytes(buffer[count * ENTRY_BYTES :])
        if count < len(entries) and not self._view.live and (not last or not is_zero(rest)):
            behind = len(rest) - len(rest.lstrip(b"\0"))
            at = first + count + behind // ENTRY_BYTES
            text = "bytes behind the last entry are not zero"
            if not last:
                text = "the queue ends within a file that has a successor"
            self._found("queue-tail", text, at if last else first + count)

    def _pre_blank(self, entries: Entries, blanks: int, first: int) -> None:
        """Pre-blank entries come first, say nothing, and stand in the first file only."""
        if not blanks:
            return
        leading = entries["size"][:blanks] == _PRE_BLANK_SIZE
        empty = (entries["physical_offset"] == 0) & (entries["tag_code"] == 0)
        in_place = first * ENTRY_BYTES == self._directory.files[0].base
        if not (in_place and leading.all() and empty[:blanks].all()):
            misplaced = np.flatnonzero(entries["size"] == _PRE_BLANK_SIZE)
            odd = misplaced[misplaced >= blanks] if in_place else misplaced
            at = int(odd[0]) if len(odd) else int(np.argmin(empty[:blanks]))
            text = "a pre-blank entry stands where a message should, or says something"
            self._found("queue-pre-blank", text, first + at)

    @property
    def _end(self) -> int:
        """The queue offset behind the last entry that is there."""
        for file in reversed(self._directory.files):
            buffer = self._view.maps.of(file)
            entries: Entries = np.frombuffer(buffer, QUEUE_ENTRY, len(buffer) // ENTRY_BYTES)
            written = np.flatnonzero(entries["size"] > 0)
            if len(written):
                return file.base // ENTRY_BYTES + int(written[-1]) + 1
        return 0

    def _wrong_entries(self) -> None:
        """Say of each entry that is not as the log wants it in what it differs."""
        covered = _as_set(self._report.covered)
        expected: dict[int, bytes] = {}
        for wrong in self._report.wrong:  # of two records with one queue offset the later counts
            for number in range(len(wrong.entries) // ENTRY_BYTES):
                if not _inside(covered, wrong.first + number):
                    entry = wrong.entries[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES]
                    expected[wrong.first + number] = entry
        if not expected:
            return
        end = self._end
        behind = [at for at in expected if at >= end]
        for at in sorted(expected.keys() - set(behind)):
            self._differs(at, expected[at])
        if behind:
            self._behind(min(behind), len(behind), expected[min(behind)])

    def _behind(self, first: int, count: int, entry: bytes) -> None:
        physical = int.from_bytes(entry[:8], "big")
        text = f"the queue ends before {count} messages, the first of which lies at {physical}"
        expected = self._view.live or not self._view.clean
        kind = "queue-behind-log" if expected else "queue-entry-missing"
        self._found(kind, text, first, times=count, physical_offset=physical)

    def _differs(self, at: int, entry: bytes) -> None:
        physical, size, tag = ENTRY.unpack(entry)
        found = read_queue(self._view, self._directory.files, at, 1)
        if len(found) < ENTRY_BYTES or is_zero(found):
            text = f"there is no entry for the record at {physical}"
            self._found("queue-entry-missing", text, at, physical_offset=physical)
            return
        have_physical, have_size, have_tag = ENTRY.unpack(found)
        if have_physical != physical:
            text = f"points at {have_physical}, the record of this queue offset lies at {physical}"
            self._found("queue-entry-position", text, at, physical_offset=physical)
        elif have_size != size:
            text = f"says {have_size} bytes, the record has {size}"
            self._found("queue-entry-size", text, at, physical_offset=physical)
        elif have_tag >= _EXTENSION_BELOW:
            text = f"has the tag code {have_tag}, the record's is {tag}"
            self._found("queue-entry-tag", text, at, physical_offset=physical)

    def _extra_entries(self) -> None:
        """Look at the entries that no record of the log accounts for."""
        known = _as_set(self._report.covered)
        for wrong in self._report.wrong:
            known.append((wrong.first, wrong.first + len(wrong.entries) // ENTRY_BYTES))
        known.sort()
        for file in self._directory.files:
            first = file.base // ENTRY_BYTES
            for start, end in _without(first, first + file.size_bytes // ENTRY_BYTES, known):
                self._orphans(start, end)

    def _orphans(self, start: int, end: int) -> None:
        data = read_queue(self._view, self._directory.files, start, end - start + 1)
        if is_zero(data):
            return
        entries = [data[at : at + ENTRY_BYTES] for at in range(0, len(data) - 19, ENTRY_BYTES)]
        stand_in = False
        for number in range(end - start - 1, -1, -1):
            behind = entries[number + 1] if number + 1 < len(entries) else b""
            known = stand_in or number + 1 == end - start
            stand_in = known and entries[number] == behind
            self._orphan(start + number, entries[number], stand_in)

    def _orphan(self, at: int, entry: bytes, stand_in: bool) -> None:
        """Look at an entry without a record of its own; ``stand_in`` if it is as the next one."""
        physical, size, _ = ENTRY.unpack(entry)
        if size <= 0 or size == _PRE_BLANK_SIZE or physical < self._view.log_start:
            return  # unwritten, or of a part of the log that was deleted
        kind = "queue-entry-orphan"
        if physical >= self._log_end:
            kind, text = (
                "queue-beyond-log",
                f"points at {physical}, the log ends at {self._log_end}",
            )
            if self._view.live:
                return
        elif stand_in:
            kind, text = "queue-stand-in", f"is the entry of the message behind it, at {physical}"
        elif any(low <= physical < high for low, high in self._lost):
            text = f"its message lay at {physical}, where the log is damaged"
        else:
            text = f"points at {physical}, where no record of this queue offset is"
        self._found(kind, text, at, physical_offset=physical)

    def check_numbers(self, gaps: list[GapReport]) -> None:
        """Say where the log skips queue offsets; a restart at 0 is a topic that was made again.

        Offsets whose entries point into a damaged stretch are not said twice.
        """
        numbers = self._report.numbers
        for (_, end), (first, _) in pairwise(numbers):
            if first not in (end, 0) and not self._in_gaps(end, first, gaps):
                text = f"the log has no record for the queue offsets {end} to {first - 1}"
                if first < end:
                    text = f"the log goes back from queue offset {end - 1} to {first}"
                self._found("record-queue-order", text, min(first, end))

    def _in_gaps(self, first: int, end: int, gaps: list[GapReport]) -> bool:
        data = read_queue(self._view, self._directory.files, first, max(end - first, 0))
        places = [physical for physical, _, _ in entries_of(data[: len(data) // 20 * 20])]
        return bool(places) and all(
            any(gap.start <= physical < gap.end for gap in gaps) for physical in places
        )


def _as_set(stretches: list[list[int]]) -> list[tuple[int, int]]:
    """Sorted, without overlaps."""
    joined: list[list[int]] = []
    for first, end in sorted((first, end) for first, end in stretches):
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([first, end])
    return [(first, end) for first, end in joined]


def _inside(stretches: list[tuple[int, int]], number: int) -> bool:
    return any(first <= number < end for first, end in stretches)


def _without(start: int, end: int, known: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches of [start, end) that none of the sorted ``known`` ones covers."""
    free: list[tuple[int, int]] = []
    for first, last in known:
        if first > start:
            free.append((start, min(first, end)))
        start = max(start, last)
        if start >= end:
            break
    if start < end:
        free.append((start, end))
    return [(first, last) for first, last in free if first < last]


def check_queues(
    view: StoreView,
    merged: dict[QueueKey, QueueReport],
    log_end: int,
    gaps: list[GapReport],
    findings: Findings,
) -> int:
    """Verify all queues against the log; return how many there are."""
    keys = sorted({*view.queues, *merged})
    configured = configured_topics(view)
    has_light = any(is_lmq(topic) for topic, _ in view.queues)
    for key in keys:
        report = merged.get(key, QueueReport())
        check = QueueCheck(view, key, report, log_end, findings)
        check.check_numbers(gaps)
        # Light queues are never configured: that there are others says that they are in use.
        gone = not has_light if is_lmq(key[0]) else key[0] not in (configured or ())
        deleted = configured is not None and gone
        if not view.rocksdb_queues and not check.missing(deleted):
            check.run(gaps)
    return len(keys)


def look_at_queues(view: StoreView, keys: tuple[QueueKey, ...]) -> list[Finding]:
    """Verify the files of some queues by themselves."""
    findings = Findings()
    for key in keys:
        if view.queues.get(key, Directory([], [])).files:
            QueueCheck(view, key, QueueReport(), 0, findings).files()
    return findings.all()
