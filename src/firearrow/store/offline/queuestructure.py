"""Verify ConsumeQueues without the log: the files of each, or its rows in a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from firearrow.store import rocksformat as rows
from firearrow.store.batchqueue import UNIT_BYTES, are_written
from firearrow.store.offline.findings import Finding, Findings, Severity
from firearrow.store.offline.view import StoreView
from firearrow.store.queues import ENTRY_BYTES
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.entries import PRE_BLANK_SIZE, QueueKey, StoredQueue
from firearrow.store.reading.filequeues import FileQueue
from firearrow.store.reading.rocksqueues import RocksQueue, RocksQueues
from firearrow.store.reading.storage import StoreFile, is_zero

Entries = npt.NDArray[Any]


def look_at_queues(view: StoreView, keys: Iterable[QueueKey]) -> list[Finding]:
    """Verify some queues, each alone."""
    findings = Findings()
    for key in keys:
        queue = view.queues.get(key)
        if isinstance(queue, FileQueue) and queue.is_there:
            _FilesLook(view, key, queue, findings).run()
        elif isinstance(queue, BatchQueue) and queue.is_there:
            _UnitsLook(view, key, queue, findings).run()
        elif isinstance(queue, RocksQueue):
            _RowsLook(view, key, queue, findings).run()
    return findings.all()


class QueueLook:
    """Verification of one queue alone; names it in each finding."""

    def __init__(self, view: StoreView, key: QueueKey, queue: StoredQueue | None, findings: Findings) -> None:
        self._view = view
        self._topic, self._queue_id = key
        self._place_of = queue
        self._findings = findings

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
        name, position = self._view.place_of_entry(self._place_of, queue_offset)
        self._findings.add(
            invariant,
            what,
            file=name,
            position=position,
            topic=self._topic,
            queue_id=self._queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            times=times,
            severity=severity,
        )


class _DirectoryLook(QueueLook, ABC):
    """Verification of the files of a queue; a subclass knows its entries."""

    unit_bytes: ClassVar[int]

    def __init__(self, view: StoreView, key: QueueKey, queue: FileQueue | BatchQueue, findings: Findings) -> None:
        super().__init__(view, key, queue, findings)
        self._directory = queue.directory

    def run(self) -> None:
        """Check names and sizes, and the entries if these are right."""
        for stray in self._directory.strays:
            self._findings.add("queue-stray", "is no file of a queue", file=stray)
        files = self._directory.files
        if self._files_fit(files):
            for file in files:
                self._file(file, last=file is files[-1])

    @abstractmethod
    def _file(self, file: StoreFile, *, last: bool) -> None:
        """Check the entries of a file."""

    @abstractmethod
    def _first_offset(self, file: StoreFile) -> int | None:
        """The first queue offset of a file, if its name says it."""

    def _files_fit(self, files: list[StoreFile]) -> bool:
        """Tell whether sizes and names form one address space."""
        usual = self._directory.file_size_bytes
        sound = True
        for before, file in zip([None, *files], files, strict=False):
            size = file.size_bytes
            if size != usual or size % self.unit_bytes or not size:
                text = f"the file has {size} bytes, others {usual}"
                self._found_in(file, "queue-file-size", text)
                sound = False
            if before is not None and file.base != before.end:
                text = f"the file before it ends at byte {before.end}"
                self._found_in(file, "queue-file-missing", text)
                sound = False
        return sound

    def _found_in(self, file: StoreFile, invariant: str, what: str) -> None:
        """Report a finding on a whole file."""
        self._findings.add(
            invariant,
            what,
            file=file.path,
            position=0,
            topic=self._topic,
            queue_id=self._queue_id,
            queue_offset=self._first_offset(file),
        )


class _UnitsLook(_DirectoryLook):
    """Verification of the files of a queue of batches."""

    unit_bytes = UNIT_BYTES

    def __init__(self, view: StoreView, key: QueueKey, queue: BatchQueue, findings: Findings) -> None:
        super().__init__(view, key, queue, findings)
        self._queue = queue
        self._before = -1, 0  # offset of the last record, and the end of its messages

    def _first_offset(self, file: StoreFile) -> int | None:
        return None

    def _file(self, file: StoreFile, *, last: bool) -> None:
        assert not file.size_bytes % UNIT_BYTES, "no unit lies across two files"
        units = self._queue.units_of(file)
        fields = ("physical_offset", "queue_offset", "messages")
        physical, first, messages = (units[name].astype(np.int64) for name in fields)
        written = are_written(units)
        count = len(units) if written.all() else int(np.argmin(written))
        places = np.append(self._before[0], physical[:count])
        ends = np.append(self._before[1], (first + messages)[:count])
        for row in np.flatnonzero(places[1:] <= places[:-1]).tolist():
            text = f"its record is at {places[row + 1]}, that before it at {places[row]}"
            self._found("queue-order", text, int(first[row]))
        for row in np.flatnonzero(first[:count] < ends[:-1]).tolist():
            text = f"its messages begin at {first[row]}, the earlier ones end at {ends[row]}"
            self._found("queue-order", text, int(first[row]))
        self._before = int(places[-1]), int(ends[-1])
        tail = units[count:].tobytes()
        if count < file.size_bytes // UNIT_BYTES and not self._view.live:
            if not last:
                text = "the queue ends within a file that has a successor"
                self._found("queue-tail", text, self._before[1])
            elif not is_zero(tail):
                text = "bytes after the last entry are not zero"
                self._found("queue-tail", text, self._before[1])


class _FilesLook(_DirectoryLook):
    """Verification of the files of a usual queue."""

    unit_bytes = ENTRY_BYTES

    def __init__(self, view: StoreView, key: QueueKey, queue: FileQueue, findings: Findings) -> None:
        super().__init__(view, key, queue, findings)
        self._queue = queue

    def _first_offset(self, file: StoreFile) -> int | None:
        return file.base // ENTRY_BYTES

    def _file(self, file: StoreFile, *, last: bool) -> None:
        """Check one file's entries as columns."""
        assert not file.size_bytes % ENTRY_BYTES, "no entry lies across two files"
        entries = self._queue.entries_of(file)
        first = file.base // ENTRY_BYTES
        size = entries["size"]
        written = (size > 0) & (entries["physical_offset"] >= 0)
        count = len(entries) if written.all() else int(np.argmin(written))
        blanks = int(np.count_nonzero(size[:count] == PRE_BLANK_SIZE))
        self._pre_blank(entries[:count], blanks, first)
        offsets = entries["physical_offset"][blanks:count].astype(np.int64)
        pairs = entries[blanks:count]
        falls = (np.diff(offsets) <= 0) & (pairs[1:] != pairs[:-1])  # an equal entry stands in
        for number in np.flatnonzero(falls).tolist():
            text = f"its record is at {offsets[number + 1]}, that before it at {offsets[number]}"
            self._found("queue-order", text, first + blanks + number + 1)
        rest = entries[count:].tobytes()
        if count < file.size_bytes // ENTRY_BYTES and not self._view.live and (not last or not is_zero(rest)):
            behind = len(rest) - len(rest.lstrip(b"\0"))
            at = first + count + behind // ENTRY_BYTES
            text = "bytes after the last entry are not zero"
            if not last:
                text = "the queue ends within a file that has a successor"
            self._found("queue-tail", text, at if last else first + count)

    def _pre_blank(self, entries: Entries, blanks: int, first: int) -> None:
        """Check the pre-blank entries: they come first, hold nothing, and are in the first file only."""
        if not blanks:
            return
        leading = entries["size"][:blanks] == PRE_BLANK_SIZE
        empty = (entries["physical_offset"] == 0) & (entries["tag_code"] == 0)
        in_place = first * ENTRY_BYTES == self._directory.files[0].base
        if not (in_place and leading.all() and empty[:blanks].all()):
            misplaced = np.flatnonzero(entries["size"] == PRE_BLANK_SIZE)
            odd = misplaced[misplaced >= blanks] if in_place else misplaced
            at = int(odd[0]) if len(odd) else int(np.argmin(empty[:blanks]))
            text = "a pre-blank entry stands where a message should, or says something"
            self._found("queue-pre-blank", text, first + at)


class _RowsLook(QueueLook):
    """Verification of the rows of a queue."""

    def __init__(self, view: StoreView, key: QueueKey, queue: RocksQueue, findings: Findings) -> None:
        super().__init__(view, key, queue, findings)
        self._queue = queue

    def run(self) -> None:
        """Check all entries, and the queue's own rows against them."""
        for key in self._queue.odd_rows():
            text = f"the row {key.hex()} has not the form of an entry"
            self._found("queue-row", text, int.from_bytes(key[-8:], "big"))
        before: Entries | None = None
        for numbers, entries in self._queue.all():
            self._order(before, numbers, entries)
            blank = (entries["size"] <= 0) | (entries["size"] == PRE_BLANK_SIZE)
            for number in np.flatnonzero(blank).tolist():
                text = f"says that its record has {entries['size'][number]} bytes"
                self._found("queue-pre-blank", text, int(numbers[number]))
            before = entries[-1:]
        if not self._view.live:
            self._last()
            self._behind_last()

    def _order(self, before: Entries | None, numbers: npt.NDArray[np.int64], entries: Entries) -> None:
        """Check that physical offsets rise; an equal entry stands in for a lost message."""
        whole = entries if before is None else np.concatenate((before, entries))
        offsets = whole["physical_offset"].astype(np.int64)
        falls = (np.diff(offsets) <= 0) & (whole[1:] != whole[:-1])
        ahead = len(whole) - len(entries)
        for number in np.flatnonzero(falls).tolist():
            text = f"its record is at {offsets[number + 1]}, that before it at {offsets[number]}"
            self._found("queue-order", text, int(numbers[number + 1 - ahead]))

    def _last(self) -> None:
        """Compare the queue's own rows with its entries."""
        last, first = self._queue.row(rows.MAX), self._queue.row(rows.MIN)
        if last is not None:
            physical, queue_offset = last
            entry = self._queue.read(queue_offset, 1)
            have = int.from_bytes(entry[:8], "big") if entry else None
            if have != physical:
                said = "there is no entry" if have is None else f"its entry says {have}"
                text = f"its last message is noted at {physical}, {said}"
                self._found("queue-row", text, queue_offset)
        end = self._queue.end
        if first is not None and first[1] > end and last is not None:
            text = f"its first message is said to be {first[1]}, its last is {end - 1}"
            self._found("queue-row", text, first[1])

    def _behind_last(self) -> None:
        """Look for entries that no consumer sees; a killed process may leave some."""
        if not self._view.clean:
            return
        end = self._queue.end
        numbers = next((numbers for numbers, _ in self._queue.all(end)), None)
        if numbers is not None:
            text = f"there are entries after the last message, which is noted as {end - 1}"
            self._found("queue-tail", text, int(numbers[0]))


def check_database(view: StoreView, log_end: int, findings: Findings) -> None:
    """Verify the keys of a database of queues that belong to no queue."""
    queues = view.queues
    if not isinstance(queues, RocksQueues):
        return
    name = view.name_of(view.rocks_directory or view.root)
    for key in queues.strays:
        findings.add("queue-row", f"the row {key.hex()} is of no queue", file=name)
    if queues.dispatched_offset > log_end and not view.live:
        text = f"all is said to be dispatched up to {queues.dispatched_offset}"
        findings.add("queue-row", f"{text}, the log ends at {log_end}", file=name)
