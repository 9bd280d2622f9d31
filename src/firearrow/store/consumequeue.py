"""Queues in files: their common base, and the ConsumeQueue, which holds the place of each message in the log.

A queue is a directory of files of one size. Together they are one space of bytes: unit ``n`` is at ``n * unit_bytes``,
and all bytes after the last unit are zero. The units of a ConsumeQueue are its entries. The units of a queue of batches
are in ``batchqueue``.

After a loss of power, a sector that was not flushed has its old bytes, zeros, or its new bytes. So a part of a unit on
two sectors may be zero, and such a unit can look like a sound one.

An entry, 20 bytes, big-endian; entry number = queue offset:

====== ==== ==============================================================
offset size field
====== ==== ==============================================================
0      8    physical offset of the record
8      4    size of the record
12     8    tag code: hash of TAGS, sign-extended; 0 without tags
====== ==== ==============================================================

Worked example, a record of 300 bytes at 4096 with tag ``TagA``: ``0000000000001000 0000012c 000000000027a807``.

Files are named by the byte offset of their first entry. Where a queue's first file starts before its first message, the
entries up to that message are (0, 0x7FFFFFFF, 0). If the records of some messages are lost, and the log has earlier
records of the queue, their entries repeat the entry of the next message. That message is then delivered more than once,
which consumers must tolerate anyway, and no message after it is missed. The rest of the last file is zero. Entries are
written in order, so bisection finds the end.

Source: RocketMQ's ``ConsumeQueue``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import ClassVar, Final, NamedTuple

import numpy as np

from firearrow.errors import CorruptStore
from firearrow.files import SECTOR_BYTES
from firearrow.logs import Log
from firearrow.message.record import RECORD_BYTES_MIN, topic_field
from firearrow.store import extension
from firearrow.store.config import FLUSH_PAGE_BYTES
from firearrow.store.fs import OS_FILES, FileSystem
from firearrow.store.queues import ENTRY, ENTRY_BYTES, UNCOUNTED, HasRecord, PutCounters, RecordPlace
from firearrow.store.segments import MappedFiles, Segment, Segments

log: Final = Log(__name__)

_RESERVE_STEP_BYTES: Final = 64 * 1024  # a queue with few messages takes fewer blocks
HEAD_BYTES: Final = 4096  # of a file: if its units end within them, a start does not map it
_beginning: Final = Lock()  # a new beginning of a queue, against a flush of its former units; rare, so one lock for all


class Unflushed(NamedTuple):
    """The part of a queue that the disk lacks: the ``files`` up to a place. The names of some are ``new``; ``lives`` is
    the number of the queue's beginnings at that time.
    """

    lives: int
    end: int
    files: list[Segment]
    new: bool


class WritableFileQueue(ABC):
    """One queue; a subclass defines its units. ``maps`` limits the number of mapped files."""

    __slots__ = (
        "_lives",
        "_log_start_offset",
        "_min_offset",
        "counters",
        "flushed_bytes",
        "magic",
        "max_offset",
        "max_physical_offset",
        "next_offset",
        "queue_id",
        "segments",
        "topic",
        "topic_field",
    )

    unit_bytes: ClassVar[int]
    magic: int
    topic_field: bytes

    def __init__(
        self,
        directory: Path | str,
        topic: str,
        queue_id: int,
        file_size_bytes: int,
        fs: FileSystem = OS_FILES,
        maps: MappedFiles | None = None,
    ) -> None:
        self.topic: str = topic
        self.queue_id: int = queue_id
        self.magic, self.topic_field = topic_field(topic)
        file_size = -(-file_size_bytes // self.unit_bytes) * self.unit_bytes
        reserved = min(_RESERVE_STEP_BYTES, file_size)
        self.segments: Segments = Segments(directory, file_size, reserved, fs, read_ahead=False, maps=maps)
        self.counters: PutCounters = UNCOUNTED
        self._lives = 1
        self._forget()

    def _forget(self) -> None:
        self.max_offset: int = 0
        self.next_offset: int = 0
        self.max_physical_offset: int = -1
        self._min_offset = self._log_start_offset = 0
        self.flushed_bytes: int = 0

    @property
    @abstractmethod
    def _end_bytes(self) -> int:
        """End of the units, in bytes."""

    @abstractmethod
    def _find_end(self) -> None:
        """Find the end of the units in the files, and the offsets of the last unit."""

    @abstractmethod
    def _place(self, number: int) -> int:
        """Physical offset of a unit's record."""

    @abstractmethod
    def _place_of(self, number: int) -> RecordPlace:
        """Place of a unit's record."""

    @abstractmethod
    def _bytes_before(self, physical_offset: int) -> int:
        """Byte position of the first unit whose record is at or after a physical offset."""

    @abstractmethod
    def first_at_or_after(self, physical_offset: int) -> int:
        """Queue offset of the first message whose record is at or after a physical offset."""

    @property
    def min_offset(self) -> int:
        """Offset of the first message whose record the log still holds; looked up on first use."""
        if self._min_offset < 0:
            self._min_offset = self.first_at_or_after(self._log_start_offset)
        return self._min_offset

    def load(self, *, on_disk: bool = False) -> None:
        """Load the files and find the end; ``on_disk`` tells that all units are on the disk."""
        self.segments.load()
        self._find_end()
        self.flushed_bytes = self._end_bytes if on_disk else 0

    def _begin_again(self) -> None:
        """Forget the units of a deleted topic."""
        log.warning(
            "queue begins again: its topic was made again", extra={"topic": self.topic, "queue_id": self.queue_id}
        )
        self._drop_files()

    def _drop_files(self) -> None:
        """Drop all units, and every trace of their beginning."""
        self.segments.cut(0)
        assert not self.segments.files, "nothing is left"
        with _beginning:
            self._lives += 1
            self._forget()

    def _segment_for(self, at: int) -> Segment:
        segment = self.segments.find(at)
        if segment is None:
            segment = self.segments.create(at - at % self.segments.file_size_bytes)
            self.segments.attach(segment)
        return segment

    def delete_expired(self, log_start_offset: int) -> list[Path]:
        """Take out the files, except the last, that have only records before a physical offset."""
        gone: list[Path] = []
        files = self.segments.files
        while len(files) > 1:
            end = files[1].base
            if end > self._end_bytes or self._place(end // self.unit_bytes - 1) >= log_start_offset:
                break
            gone.append(self.segments.shift().path)
        return gone

    def correct_min(self, log_start_offset: int) -> None:
        """Make ``min_offset`` the first message that the log still holds.

        It is looked up later, so that a round of cleaning does not stop at each of very many queues.
        """
        self._log_start_offset = log_start_offset
        self._min_offset = -1

    def cut(self, log_end_offset: int, has_record: HasRecord | None = None) -> bool:
        """Forget the units of records at or after a physical offset; tell whether there were any.

        With ``has_record`` also forget torn units and all units after a gap, which a loss of power may leave. The units
        of records before that offset must be whole.
        """
        before = self._end_bytes, len(self.segments.files)
        # An empty queue keeps its first file: its name holds the offset, and most such queues get units again.
        while self.max_physical_offset >= log_end_offset or self._last_is_torn(has_record):
            last = self._end_bytes - self.unit_bytes
            self.segments.cut(min(self._bytes_before(log_end_offset), last), keep_first=True)
            self._find_end()
            assert self._end_bytes <= last, "each turn forgets a unit, so this ends"
            # The zeros after the end must reach the disk, too, even if there are no units before them.
            is_empty = self._end_bytes == self.segments.first_offset
            self.flushed_bytes = min(self.flushed_bytes, self.segments.files[-1].base - is_empty)
        if has_record is not None:
            # Units that a loss of power left after a gap must not appear once the queue has grown up to them.
            self.segments.cut(self._end_bytes, keep_first=True)
        return (self._end_bytes, len(self.segments.files)) != before

    def _last_is_torn(self, has_record: HasRecord | None) -> bool:
        """Tell whether the last unit may be torn, and the log has no such record."""
        if has_record is None or self.max_physical_offset < 0:
            return False
        at = self._end_bytes - self.unit_bytes
        segment = self.segments.find(at)
        assert segment is not None
        start = at - segment.base
        border = -start % SECTOR_BYTES
        unit = segment.map[start : start + self.unit_bytes]
        if not 0 < border < self.unit_bytes or (any(unit[:border]) and any(unit[border:])):
            return False
        number = at // self.unit_bytes
        found = has_record(self._place_of(number))
        if found is None:  # places rise along a queue; nobody reads entries from before the log
            return self._place(number - 1) >= self.max_physical_offset
        return not found

    def unflushed(self, least_pages: int) -> Unflushed | None:
        """The part that is not on the disk, if it has at least ``least_pages`` pages. Any thread may call this."""
        lives, start, end = self._lives, self.flushed_bytes, self._end_bytes
        if end <= start or end // FLUSH_PAGE_BYTES - start // FLUSH_PAGE_BYTES < least_pages:
            return None
        files = list(self.segments.files)
        touched = [file for file in files if file.base <= end and file.end > start]
        return Unflushed(lives, end, touched, any(file.base >= start for file in touched))

    def flushed(self, what: Unflushed) -> None:
        """Note that these units are on the disk."""
        with _beginning:
            if self._lives == what.lives:  # otherwise other units are now at these places
                assert what.end <= self._end_bytes, "the units of one life only grow"
                self.flushed_bytes = what.end

    def begin_at(self, queue_offset: int) -> None:
        """Give the first message of an empty queue that offset; OSError if that is impossible."""
        if self.max_offset in (0, queue_offset):
            self.next_offset = max(self.next_offset, queue_offset)

    def take_over(self, other: WritableFileQueue) -> None:
        """Take the files of another object of this queue; ``next_offset`` does not fall."""
        assert (other.topic, other.queue_id) == (self.topic, self.queue_id)
        next_offset, earlier = self.next_offset, self.segments
        with _beginning:
            self._lives += 1
            self.segments = other.segments
            self._find_end()
            self.flushed_bytes = 0
            self._min_offset = -1
        self.next_offset = max(self.next_offset, next_offset)
        earlier.close()

    def close(self) -> None:
        """Unmap the files."""
        self.segments.close()


_CODE: Final = np.dtype([("place", "V12"), ("tag_code", ">i8")])
_PRE_BLANK_SIZE: Final = 0x7FFFFFFF
_PRE_BLANK: Final = ENTRY.pack(0, _PRE_BLANK_SIZE, 0)


class FileConsumeQueue(WritableFileQueue):
    """Implements ``ConsumeQueue`` by the files of one directory."""

    __slots__ = ("_extension",)

    unit_bytes = ENTRY_BYTES

    def _forget(self) -> None:
        super()._forget()
        self._extension: extension.Extension | None = None  # opened at the first entry that refers to it

    @property
    def _end_bytes(self) -> int:
        return self.max_offset * ENTRY_BYTES

    def _place(self, number: int) -> int:
        return self.entry(number)[0]

    def _place_of(self, number: int) -> RecordPlace:
        physical_offset, size, _ = self.entry(number)
        return RecordPlace(self.topic, self.queue_id, number, physical_offset, size)

    def _bytes_before(self, physical_offset: int) -> int:
        return self.first_at_or_after(physical_offset) * ENTRY_BYTES

    def _find_end(self) -> None:
        files = self.segments.files
        self.max_offset: int = self.segments.first_offset // ENTRY_BYTES
        self.next_offset: int = self.max_offset
        self.max_physical_offset: int = -1
        for segment in reversed(files):
            entries, last = last_written(segment, ENTRY, _is_entry)
            if entries:
                self.max_offset = self.next_offset = segment.base // ENTRY_BYTES + entries
                if last[1] != _PRE_BLANK_SIZE:
                    self.max_physical_offset = last[0]
                break

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """Physical offset, size and tag code; IndexError where no file holds the entry."""
        segment = self.segments.find(queue_offset * ENTRY_BYTES)
        if segment is None:
            raise IndexError(queue_offset)
        entry: tuple[int, int, int] = ENTRY.unpack_from(segment.map, queue_offset * ENTRY_BYTES - segment.base)
        return entry

    def read(self, queue_offset: int, count: int) -> bytes:
        """Up to ``count`` entries from an offset on, within one file; empty where there are none."""
        at = queue_offset * ENTRY_BYTES
        segment = self.segments.find(at)
        if segment is None:
            return b""
        end = min(at + count * ENTRY_BYTES, self.max_offset * ENTRY_BYTES, segment.end)
        return segment.map[at - segment.base : max(end - segment.base, 0)]

    def extended_tag_code(self, address: int) -> int | None:
        """The tag code in a file that RocketMQ wrote, see ``extension``."""
        return self._known_extension().tag_code(address)

    def _known_extension(self) -> extension.Extension:
        if self._extension is None:
            root = self.segments.directory.parents[2]
            self._extension = extension.Extension(root / extension.DIRECTORY / self.topic / str(self.queue_id))
        return self._extension

    def delete_expired(self, log_start_offset: int) -> list[Path]:
        """Take out the files that have only records before a physical offset, and the files of the extension that
        entries no longer refer to.
        """
        gone = super().delete_expired(log_start_offset)
        if gone and self._known_extension().is_there:
            gone += self._known_extension().before(self._first_address())
        return gone

    def _first_address(self) -> int | None:
        """The first address that stands in an entry in place of a tag code."""
        for segment in self.segments.files:
            codes = np.frombuffer(segment.map, _CODE)["tag_code"]
            addressed = (codes <= extension.ADDRESS_MAX).nonzero()[0]
            if len(addressed):
                return int(codes[addressed[0]])
        return None

    def stored_ms(self, queue_offset: int) -> int | None:
        """None: the entries of a file have no time."""
        return None

    def gap_end(self, queue_offset: int) -> int:
        """Start of the next file, where reading goes on when ``read`` has nothing at an offset."""
        per_file = self.segments.file_size_bytes // ENTRY_BYTES
        return (queue_offset // per_file + 1) * per_file

    def put(self, queue_offset: int, entries: bytes, *, complete: bool = False) -> None:
        """Write consecutive entries; entries that the queue already has are skipped.

        Raises CorruptStore if that would leave a hole, unless ``complete`` (see ``ConsumeQueues.put``). Raises OSError
        when the disk is full.
        """
        physical = int.from_bytes(entries[:8], "big")
        if queue_offset != self.max_offset or physical <= self.max_physical_offset:
            queue_offset, entries = self._fit(queue_offset, entries, complete)
        at = queue_offset * ENTRY_BYTES
        while entries:
            segment = self._segment_for(at)
            start = at - segment.base
            part = entries[: segment.size_bytes - start]
            self.segments.reserve(segment, start + len(part))
            segment.map[start : start + len(part)] = part
            self.max_physical_offset = ENTRY.unpack_from(part, len(part) - ENTRY_BYTES)[0]
            at += len(part)
            self.max_offset = at // ENTRY_BYTES
            entries = entries[len(part) :]
        self.next_offset = max(self.next_offset, self.max_offset)

    def _fit(self, queue_offset: int, entries: bytes, complete: bool) -> tuple[int, bytes]:
        """The entries that the queue lacks, and the offset of the first.

        Physical offsets rise along a queue. So a record at or before the last one is already there, or belongs to an
        earlier topic of the same name. A later record with the number 0 opens a later topic of that name, and the
        messages of that topic count.
        """
        known = 0
        for physical, _, _ in ENTRY.iter_unpack(entries):
            if physical > self.max_physical_offset:
                break
            known += 1
        queue_offset, entries = queue_offset + known, entries[known * ENTRY_BYTES :]
        if not entries or queue_offset == self.max_offset:
            return queue_offset, entries
        if queue_offset == 0:
            self._begin_again()
            assert self.max_offset == 0, "it begins at 0 again"
        elif complete and self.max_physical_offset < self._log_start_offset:
            # None of its entries can be read: entries for lost messages would only repeat others.
            self._drop_files()
            self._jump(queue_offset)
        elif complete and 0 < (lost := queue_offset - self.max_offset) <= self._room_for(entries):
            return self.max_offset, entries[:ENTRY_BYTES] * lost + entries
        else:
            raise CorruptStore(
                f"queue {self.topic}-{self.queue_id} ends at {self.max_offset}, its next message has {queue_offset}"
            )
        return queue_offset, entries

    def _room_for(self, entries: bytes) -> int:
        """Largest possible number of records between the last one and the first of some entries."""
        physical = int.from_bytes(entries[:8], "big")
        return (physical - self.max_physical_offset) // RECORD_BYTES_MIN

    def _jump(self, queue_offset: int) -> None:
        """Begin an empty queue at an offset that is not 0: the log before it is gone."""
        assert not self.segments.files, "only an empty queue begins elsewhere"
        file_size = self.segments.file_size_bytes
        at = queue_offset * ENTRY_BYTES
        segment = self.segments.create(at - at % file_size)
        start = at - segment.base
        assert start % ENTRY_BYTES == 0, "no entry lies across two files"
        try:
            self.segments.reserve(segment, start)
        except OSError:
            self.segments.drop(segment)
            raise
        self.segments.attach(segment)
        segment.map[:start] = _PRE_BLANK * (start // ENTRY_BYTES)
        self.max_offset = self._min_offset = queue_offset

    def begin_at(self, queue_offset: int) -> None:
        """Give the first message of an empty queue that offset; OSError if that is impossible."""
        if not self.segments.files and queue_offset:
            self._jump(queue_offset)
            super().begin_at(queue_offset)

    def first_at_or_after(self, physical_offset: int) -> int:
        """Queue offset of the first entry whose record is at or after a physical offset."""
        low, high = self.segments.first_offset // ENTRY_BYTES, self.max_offset
        while low < high:
            middle = (low + high) // 2
            at, size, _ = self.entry(middle)
            if size and (size == _PRE_BLANK_SIZE or at < physical_offset):
                low = middle + 1
            else:
                high = middle
        return low

    def last_before(self, physical_offset: int) -> int:
        """Start of the queue's last record before a physical offset, -1 for none."""
        if self.max_physical_offset < physical_offset:
            return self.max_physical_offset
        before = self.first_at_or_after(physical_offset) - 1
        if before < self.segments.first_offset // ENTRY_BYTES:
            return -1
        physical, size, _ = self.entry(before)
        return physical if 0 < size < _PRE_BLANK_SIZE else -1


def last_written(
    segment: Segment, unit: Struct, is_written: Callable[[tuple[int, ...]], bool]
) -> tuple[int, tuple[int, ...]]:
    """Count the written units of a file, and return the last one: the first unwritten unit ends them.

    A file whose units end within its head is not mapped for this, and no page after the head is made.
    """

    assert segment.size_bytes % unit.size == 0, "no unit lies across two files"

    def is_missing(number: int) -> bool:
        return not is_written(unit.unpack_from(data, number * unit.size))

    data: bytes | mmap = segment.head(HEAD_BYTES)
    count = bisect_left(range(len(data) // unit.size), True, key=is_missing)
    if count == len(data) // unit.size and len(data) < segment.size_bytes:
        data = segment.map
        count = bisect_left(range(len(data) // unit.size), True, count, key=is_missing)
    return count, unit.unpack_from(data, (count - 1) * unit.size) if count else ()


def _is_entry(fields: tuple[int, ...]) -> bool:
    """Tell whether an entry is written: in the rest of a file its fields are zero."""
    return fields[0] >= 0 and fields[1] > 0
