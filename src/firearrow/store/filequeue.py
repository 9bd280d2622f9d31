"""What queues with files of their own have in common: ConsumeQueues and queues of batches.

A queue is a directory of files of one size, which together are one space of bytes: unit ``n`` is at
``n * unit_bytes``, and all bytes behind the last unit are zero.

After a loss of power, a sector that was not flushed has its old bytes, zeros, or its new bytes. So
a part of a unit on two sectors may be zero, and such a unit can look as good as any.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from pathlib import Path
from threading import Lock
from typing import ClassVar, Final

from firearrow.message.record import topic_field
from firearrow.store.config import FLUSH_PAGE_BYTES
from firearrow.store.fs import OS_FILES, FileSystem
from firearrow.store.queues import UNCOUNTED, HasRecord, Place
from firearrow.store.segments import Segment, Segments

log = logging.getLogger(__name__)

_SECTOR_BYTES: Final = 512  # what a disk writes whole or not at all
_RESERVE_STEP_BYTES: Final = 64 * 1024  # a queue with few messages takes few blocks
_beginning: Final = Lock()  # again of a queue, against a flush of what it was; rare, so one for all


class FileQueue(ABC):
    """One queue; a subclass says what its units are."""

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

    def __init__(
        self,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size_bytes: int,
        fs: FileSystem = OS_FILES,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.magic, self.topic_field = topic_field(topic)
        file_size = -(-file_size_bytes // self.unit_bytes) * self.unit_bytes
        reserved = min(_RESERVE_STEP_BYTES, file_size)
        self.segments = Segments(directory, file_size, reserved, fs, read_ahead=False)
        self.counters = UNCOUNTED
        self._lives = 1
        self._forget()

    def _forget(self) -> None:
        self.max_offset = self.next_offset = 0
        self.max_physical_offset = -1
        self._min_offset = self._log_start_offset = 0
        self.flushed_bytes = 0

    @property
    @abstractmethod
    def _end_bytes(self) -> int:
        """Where the units end."""

    @abstractmethod
    def _find_end(self) -> None:
        """Find in the files where the units end, and what the last one says."""

    @abstractmethod
    def _place(self, number: int) -> int:
        """The physical offset that a unit has."""

    @abstractmethod
    def _place_of(self, number: int) -> Place:
        """What a unit says of its record."""

    @abstractmethod
    def _bytes_before(self, physical_offset: int) -> int:
        """Where the first unit of a record at or after a physical offset is."""

    @abstractmethod
    def first_at_or_after(self, physical_offset: int) -> int:
        """The queue offset of the first message whose record is at or after a physical offset."""

    @property
    def min_offset(self) -> int:
        """The first message whose record the log still holds; looked up when it is asked for."""
        if self._min_offset < 0:
            self._min_offset = self.first_at_or_after(self._log_start_offset)
        return self._min_offset

    def load(self) -> None:
        """Map the files and find the end."""
        self.segments.load()
        self._find_end()

    def _begin_again(self) -> None:
        """Forget the units of a deleted topic."""
        log.warning(
            "queue begins again: its topic was made again",
            extra={"topic": self.topic, "queue_id": self.queue_id},
        )
        self.segments.cut(0)
        assert not self.segments.files, "nothing is left of the earlier topic"
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
        """Take out the files, but the last, that have only records before a physical offset."""
        gone: list[Path] = []
        files = self.segments.files
        while len(files) > 1:
            end = files[1].base
            if end > self._end_bytes or self._place(end // self.unit_bytes - 1) >= log_start_offset:
                break
            gone.append(self.segments.shift().path)
        return gone

    def correct_min(self, log_start_offset: int) -> None:
        """Have ``min_offset`` be the first message that the log still holds.

        It is looked up later: a round of cleaning may not stop at each of very many queues.
        """
        self._log_start_offset = log_start_offset
        self._min_offset = -1

    def cut(self, log_end_offset: int, has_record: HasRecord | None = None) -> bool:
        """Forget the units of records at or after a physical offset; say whether there were any.

        With ``has_record`` also forget torn units and all behind a gap, which a loss of power may
        leave. The units of records before that offset must be whole.
        """
        before = self._end_bytes, len(self.segments.files)
        while self.max_physical_offset >= log_end_offset or self._last_is_torn(has_record):
            last = self._end_bytes - self.unit_bytes
            self.segments.cut(min(self._bytes_before(log_end_offset), last))
            self._find_end()
            assert self._end_bytes <= last, "each turn forgets a unit, so this ends"
            files = self.segments.files  # the zeros behind the end must reach the disk too
            self.flushed_bytes = min(self.flushed_bytes, files[-1].base if files else 0)
        if has_record is not None:  # an empty queue keeps its first file, which says its offset
            # What power left behind a gap must not be found once the queue has grown up to it.
            first_end = self.segments.first_offset + self.unit_bytes
            self.segments.cut(max(self._end_bytes, first_end))
        return (self._end_bytes, len(self.segments.files)) != before

    def _last_is_torn(self, has_record: HasRecord | None) -> bool:
        """Whether the last unit may be a part of one, and the log has no such record."""
        if has_record is None or self.max_physical_offset < 0:
            return False
        at = self._end_bytes - self.unit_bytes
        segment = self.segments.find(at)
        assert segment is not None
        start = at - segment.base
        border = -start % _SECTOR_BYTES
        unit = segment.map[start : start + self.unit_bytes]
        if not 0 < border < self.unit_bytes or (any(unit[:border]) and any(unit[border:])):
            return False
        number = at // self.unit_bytes
        found = has_record(self._place_of(number))
        if found is None:  # places rise along a queue; nobody reads what is before the log
            return self._place(number - 1) >= self.max_physical_offset
        return not found

    def flush(self, least_pages: int) -> bool:
        """Bring to the disk what was put before the call, if it is so many pages.

        Says whether a file was made for it.
        """
        lives, start, end = self._lives, self.flushed_bytes, self._end_bytes
        if end <= start or end // FLUSH_PAGE_BYTES - start // FLUSH_PAGE_BYTES < least_pages:
            return False
        is_new = self.segments.flush(start, end)
        with _beginning:
            if self._lives == lives:  # else other units have come to these places
                self.flushed_bytes = end
        return is_new

    def begin_at(self, queue_offset: int) -> None:
        """Have the first message of an empty queue get that offset; OSError where it can't be."""
        if self.max_offset in (0, queue_offset):
            self.next_offset = max(self.next_offset, queue_offset)

    def take_over(self, other: FileQueue) -> None:
        """Take the files of another object of this queue; ``next_offset`` stays."""
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
