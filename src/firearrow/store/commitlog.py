"""The CommitLog: every message of a broker, one record after another.

``append`` gives a record its physical offset and its queue offset and copies it into the mapped file. When it returns,
the kernel has the record, which outlives the process. A record is durable against the loss of the machine only after a
flush (``firearrow.store.flush``). The parts are joined and assigned once, in 0.9 µs. Packing the head into the map and
assigning the parts one by one copies less and takes 1.6 µs; so does ``os.pwrite``, because of its system call.

A record never spans two files. Where it does not fit, eight bytes of blank (remaining size, magic) mark the rest of the
file as unused. The record then starts the next file. A background thread has already made that file (``prepare_next``),
so that a roll costs a pointer.

On a full disk a record that needs a new file is refused (``no_room``). The disk is asked again at most once a second,
because its refusals are slow. A log can also refuse everything on request (``refuse``). This costs an append nothing:
the limit of the current file becomes zero. The log of a slave (``follow``) takes only bytes of its master's log
(``append_raw``).

If the clock is set back by no more than ``CLOCK_BACK_MS_MAX``, store times don't fall: they wait for the clock. If it
is set back further, it was wrong before, so store times follow it.

Record layout: ``firearrow.message.record``. Source: RocketMQ's ``CommitLog#asyncPutMessage``, ``MessageExtEncoder``,
``AllocateMappedFileService``.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from firearrow.errors import DiskFull, MessageError, StoreError
from firearrow.logs import Log
from firearrow.message.record import BLANK_BYTES, MAGIC_V1, MAGIC_V2, Content, contents_in, crc32, encode_blank
from firearrow.message.record import HEADS_BY_HOSTS as _HEADS
from firearrow.store.fs import OS_FILES, FileSystem, ensure_directory
from firearrow.store.queues import ConsumeQueue, QueueEnd
from firearrow.store.scan import Columns, Stop, scan, scan_at
from firearrow.store.segments import Segment, Segments

log: Final = Log(__name__)

# The next file is made once this share of the current one is used.
PREPARE_NEXT_AT: Final = 0.5
# Limit of one scan: data derived from it may need a multiple of this in memory.
SCAN_BYTES_MAX: Final = 8 * 1024 * 1024
CLOCK_BACK_MS_MAX: Final = 10_000
"""Largest setback of the clock for which store times wait; a time server corrects by less."""
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_PLACE: Final = struct.Struct(">Ii20xQ")  # size, magic and physical offset of a record
_PLACE_BYTES: Final = _PLACE.size
_NOWHERE: Final = 1 << 62  # after every record
_TAIL_BYTES: Final = 2  # length of the properties
_NOTED_MAX: Final = 65_536  # some 2 MB, and far more than a round of dispatch takes
# A full file system takes up to tens of ms to refuse: it first flushes data that might free some room.
_ASK_AGAIN_SECONDS: Final = 1.0


FOLLOWS: Final = "the broker is a slave: only its master takes messages"

NewMessage: TypeAlias = tuple[ConsumeQueue, bytes, bytes, int, int, int, bytes, int, int]
"""A message to append with others: the arguments of `CommitLog.append` in their order, without the time. A named tuple
takes three times as long to make.
"""


def _no_time() -> float:
    """The time of a log without a clock: every wait is over."""
    return math.inf


def _ignore_clock(now_ms: int) -> None:
    """Ignore a clock that was set back, in a store that keeps no times."""


class CommitLog:
    """The log as one address space; ``end_offset`` is the offset of the next record.

    Records from ``own_from`` on are read without a check (``recordchecks``): this process has written them since the
    last doubt. The system keeps recent writes in memory, so no disk can have damaged them. Writes of another process
    over them are not noticed until the next doubt. Checking for these would make the store's work for a pull of 32
    records half as much again.
    """

    def __init__(
        self,
        directory: Path,
        file_size_bytes: int,
        store_host: bytes,
        fs: FileSystem = OS_FILES,
        monotonic: Callable[[], float] = _no_time,
    ) -> None:
        self.segments: Final = Segments(directory, file_size_bytes, fs=fs)
        self._fs = fs
        self._monotonic = monotonic
        self.store_host = store_host
        self.end_offset: int = 0
        self.last_store_ms: int = 0
        self.own_from: int = _NOWHERE
        self.on_clock_back: Callable[[int], None] = _ignore_clock
        self._map: mmap.mmap | None = None
        self._long_writes = LongWrites(fs)
        self._base = 0
        self._limit = 0  # no record may end after it: the room for the blank stays free
        self._refusal: str | None = None
        self.follows: bool = False  # whether this is the log of a slave
        self.failed_appends: int = 0  # since the start
        self._no_room: str | None = None
        self._ask_again_at = 0.0
        self._follow_clock_from = -math.inf
        self._prepare_at = 0
        # Starts of the latest records. Finding them again by their sizes, as a scan must, costs 0.3 µs a record. That
        # is more than half of the time that dispatch takes for it.
        self._noted: list[int] = []
        self._next: Segment | None = None
        self.prepares_aside = True  # whether a thread makes the next file, or the calling code itself
        self._preparing: threading.Thread | None = None

    def load(self) -> None:
        """Map the existing files; ``resume`` then sets the end of the log."""
        ensure_directory(self._fs, self.segments.directory)
        self.segments.load()

    def resume(self, end_offset: int, last_store_ms: int) -> None:
        """Continue writing at ``end_offset``, after a record that was stored at ``last_store_ms``."""
        assert end_offset >= 0
        assert not self.segments.files or self.start_offset <= end_offset <= self.segments.end_offset
        self.end_offset = self.own_from = end_offset
        self.last_store_ms = last_store_ms
        segment = self.segments.find(end_offset)
        if segment is not None:
            try:
                self._enter_reserved(segment)
            except DiskFull as error:
                self._found_full(error)  # existing records can be read; sends will try again

    def _enter_reserved(self, segment: Segment) -> None:
        """Continue in an existing file; one that RocketMQ made is sparse."""
        try:
            self.segments.reserve(segment, segment.size_bytes)
        except OSError as error:
            raise DiskFull(f"no room for the rest of {segment.path}: {error}") from error
        self._enter(segment)

    def doubt(self, physical_offset: int) -> None:
        """Check records before a physical offset again before they are read."""
        self.own_from = max(self.own_from, physical_offset)

    @property
    def start_offset(self) -> int:
        """Lowest physical offset that the log still holds; its end, if it is empty."""
        return self.segments.first_offset if self.segments.files else self.end_offset

    def append(
        self,
        queue: QueueEnd,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        now_ms: int,
        reconsume_times: int,
        prepared_transaction_offset: int = 0,
    ) -> int:
        """Append one message to a queue and return its physical offset.

        ``sys_flag`` has no address bits: they follow from the hosts. The store time is ``now_ms``, or the previous
        store time if that is a little later. The queue offset is ``queue.next_offset`` as it was before the call.
        Raises DiskFull or MessageError, having written nothing.
        """
        head, address_flags = _HEADS[len(born_host), len(self.store_host)]
        body_bytes = len(body)
        size = head.size + body_bytes + len(queue.topic_field) + _TAIL_BYTES + len(properties)
        at = self.end_offset
        if at + size > self._limit:
            at = self._roll(size)
        if now_ms > self.last_store_ms:
            self.last_store_ms = now_ms
        elif now_ms < self.last_store_ms - CLOCK_BACK_MS_MAX:
            self._go_back(now_ms)
        queue_offset = queue.next_offset
        packed = head.pack(
            size, queue.magic, crc32(body) & 0x7FFFFFFF, queue.queue_id, flag, queue_offset, at,
            sys_flag | address_flags, born_ms, born_host, self.last_store_ms, self.store_host,
            reconsume_times, prepared_transaction_offset, body_bytes,
        )  # fmt: skip
        parts = packed, body, queue.topic_field, len(properties).to_bytes(2, "big"), properties
        start = at - self._base
        if size < LONG_BYTES:  # like `_put`, whose call would cost noticeable time here
            self._map[start : start + size] = b"".join(parts)  # type: ignore[index]
        else:
            self._long_writes.write(start, b"".join(parts))
        queue.next_offset = queue_offset + 1
        self.end_offset = at + size
        self._noted.append(at)
        return at

    def append_several(self, messages: Sequence[NewMessage], now_ms: int) -> list[int] | None:
        """Append messages side by side, as `append` does one by one. Return their physical offsets and the offset after
        the last.

        A message takes 1.0 µs in this way instead of 1.5. Returns None, having written nothing, if they don't fit into
        the current file or the clock was set back far. Then `append` must handle them.
        """
        if now_ms < self.last_store_ms:
            if now_ms < self.last_store_ms - CLOCK_BACK_MS_MAX:
                return None
            now_ms = self.last_store_ms
        store_host = self.store_host
        host_bytes = len(store_host)
        next_offsets: dict[ConsumeQueue, int] = {}
        places: list[int] = []
        parts: list[bytes] = []
        at = first = self.end_offset
        for (
            queue, body, properties, flag, sys_flag, born_ms, born_host, reconsume_times, prepared
        ) in messages:  # fmt: skip
            head, address_flags = _HEADS[len(born_host), host_bytes]
            body_bytes, topic_field = len(body), queue.topic_field
            size = head.size + body_bytes + len(topic_field) + _TAIL_BYTES + len(properties)
            queue_offset = next_offsets.get(queue)
            if queue_offset is None:
                queue_offset = queue.next_offset
            next_offsets[queue] = queue_offset + 1
            packed = head.pack(
                size, queue.magic, crc32(body) & 0x7FFFFFFF, queue.queue_id, flag, queue_offset, at,
                sys_flag | address_flags, born_ms, born_host, now_ms, store_host, reconsume_times,
                prepared, body_bytes,
            )  # fmt: skip
            parts += (packed, body, topic_field, len(properties).to_bytes(2, "big"), properties)
            places.append(at)
            at += size
        if at > self._limit:
            return None
        self._put(first, b"".join(parts))
        self.last_store_ms, self.end_offset = now_ms, at
        self._noted += places
        for queue, queue_offset in next_offsets.items():
            queue.next_offset = queue_offset
        places.append(at)
        return places

    def make_room(self, size: int, now_ms: int) -> tuple[int, int]:
        """Find room for ``size`` bytes of records in one file.

        Returns their physical offset and their store time; ``write`` must follow before anything else is appended.
        """
        at = self.end_offset
        if at + size > self._limit:
            at = self._roll(size)
        if now_ms > self.last_store_ms:
            self.last_store_ms = now_ms
        elif now_ms < self.last_store_ms - CLOCK_BACK_MS_MAX:
            self._go_back(now_ms)
        return at, self.last_store_ms

    def _go_back(self, now_ms: int) -> None:
        """Let store times follow a clock that was set back far.

        Java: CommitLog#asyncPutMessage always takes the time of the clock.
        """
        if self._monotonic() < self._follow_clock_from:
            return
        before_ms = self.last_store_ms
        try:
            self.on_clock_back(now_ms)
        except OSError as error:
            # The checkpoint on the disk must hold for later records: until it does, store times wait.
            self.last_store_ms = before_ms
            self._follow_clock_from = self._monotonic() + _ASK_AGAIN_SECONDS
            log.warning("clock was set back: store times can't follow it yet", extra={"error": error})
            return
        self.last_store_ms = now_ms
        log.warning(
            "clock is behind the last store time: from now on store times follow it",
            extra={"behind_ms": before_ms - now_ms, "last_store_ms": before_ms},
        )

    def write(self, at: int, records: bytes | memoryview) -> None:
        """Write records into the room that ``make_room`` found; the caller then moves their queues on."""
        assert at == self.end_offset
        self._put(at, records)
        self.end_offset = at + len(records)
        self._noted.clear()

    def _put(self, at: int, data: bytes | memoryview) -> None:
        """Write into the current file, which must have the room."""
        start = at - self._base
        if len(data) < LONG_BYTES:
            self._map[start : start + len(data)] = data  # type: ignore[index]
        else:
            self._long_writes.write(start, data)

    def put_right(self, physical_offset: int, data: bytes) -> None:
        """Write bytes over existing ones; they are not on the disk on return."""
        segment = self.segments.find(physical_offset)
        assert segment is not None, "they are in the log"
        assert physical_offset + len(data) <= min(segment.end, self.end_offset)
        start = physical_offset - segment.base
        segment.map[start : start + len(data)] = data

    def append_raw(self, at: int, data: bytes | memoryview) -> None:
        """Append the bytes that another log has at an offset: any part of it, blanks included.

        The files of both logs must be of one size. Raises StoreError if this log ends elsewhere. Raises DiskFull
        without room for all bytes: then the log ends at the last byte with room.
        """
        if at != self.end_offset:
            raise StoreError(f"the CommitLog ends at {self.end_offset}, {at} is not its next byte")
        file_size, end_offset = self.segments.file_size_bytes, at + len(data)
        while data:
            if self._map is None or self.end_offset == self._base + file_size:
                self._roll(0)  # room for any byte is enough here; only a record must fit into its file
            piece = data[: self._base + file_size - self.end_offset]
            # Short pieces, too: after a page fault the system reads megabytes ahead, which takes too long for a slave.
            self._long_writes.write(self.end_offset - self._base, piece)
            self.end_offset += len(piece)
            self.doubt(self.end_offset)  # this process does not know the content of these bytes
            data = data[len(piece) :]
        assert self.end_offset == end_offset, "all bytes are there, and nothing else"
        self._noted.clear()

    def begin_at(self, physical_offset: int) -> None:
        """Begin an empty log at an offset, which must be the start of a file."""
        assert not self.segments.files, "only an empty log begins elsewhere"
        assert not physical_offset % self.segments.file_size_bytes
        self.end_offset = self.own_from = physical_offset

    def drop_end(self, end_offset: int) -> None:
        """Take back everything after an offset in the last file; durable on return."""
        assert self.base_of(self.end_offset - 1) <= end_offset <= self.end_offset
        self.end_offset = end_offset
        self.segments.cut_durably(end_offset)

    def saw(self, store_ms: int) -> None:
        """Note the store time of a record that was appended as raw bytes."""
        self.last_store_ms = max(self.last_store_ms, store_ms)

    def follow(self, on: bool) -> None:
        """Refuse everything but raw bytes from now on, or accept records again."""
        self.follows = on
        self._set_limit()

    @property
    def refused(self) -> str | None:
        """Reason why records are refused at present, None while they are accepted."""
        return self.without_room or (FOLLOWS if self.follows else None)

    @property
    def without_room(self) -> str | None:
        """Reason why there is no room for records, in a slave's log as well, or None."""
        return self._refusal or self._no_room

    @property
    def refused_by_owner(self) -> bool:
        """Tell whether ``refuse`` is in effect."""
        return self._refusal is not None

    def refuse(self, reason: str | None) -> None:
        """Answer every append with DiskFull and this reason from now on; None ends that."""
        self._refusal = reason
        self._set_limit()

    def _set_limit(self) -> None:
        room = self._map is not None and self._refusal is None and not self.follows
        self._limit = self._base + self.segments.file_size_bytes - BLANK_BYTES if room else 0

    def _roll(self, size: int) -> int:
        """Find ``size`` bytes that the current file does not have; return their offset.

        Raises DiskFull, or MessageError for a record that no file has room for.
        """
        self.failed_appends += 1  # until it is known that the append did not fail
        if self._refusal is not None:
            raise DiskFull(self._refusal)
        if self.follows and size:
            raise DiskFull(FOLLOWS)
        if self._no_room is not None and self._monotonic() < self._ask_again_at:
            raise DiskFull(self._no_room)
        try:
            at = self._enter_next(size) if size else self._enter_following()
        except DiskFull as error:
            self._found_full(error)
            raise
        self.failed_appends -= 1
        if self._no_room is not None:
            log.info("records are taken again: there is room for the CommitLog")
            self._no_room = None
        return at

    def _found_full(self, error: DiskFull) -> None:
        if self._no_room is None:
            log.error("records are refused: there is no room for the CommitLog", extra={"error": error})
        self._no_room = str(error)
        self._ask_again_at = self._monotonic() + _ASK_AGAIN_SECONDS

    def _enter_next(self, size: int) -> int:
        """Enter the file that has room for ``size`` bytes; return the offset of its start."""
        file_size = self.segments.file_size_bytes
        if size + BLANK_BYTES > file_size:
            raise MessageError(f"a record of {size} bytes does not fit a CommitLog file of {file_size}", "record")
        at = self.end_offset
        found = self.segments.find(at) if self._map is None else None
        if found is not None:
            self._enter_reserved(found)
            return at if at + size <= self._limit else self._enter_next(size)
        if self._map is None or at == self._base + file_size:
            base = at - at % file_size
        else:
            base = self._base + file_size
        assert base >= at, "a log grows"
        segment = self._take_next(base)
        if self._map is not None and at < base:
            start = at - self._base
            self._map[start : start + BLANK_BYTES] = encode_blank(base - at)
        self.segments.attach(segment)
        self._enter(segment)
        self.end_offset = base
        return base

    def _enter_following(self) -> int:
        """Enter the file of the next raw byte."""
        at = self.end_offset
        found = self.segments.find(at)
        if found is not None:
            self._enter_reserved(found)
            return at
        assert not at % self.segments.file_size_bytes, "a log ends in a file, or where one ends"
        segment = self._take_next(at)
        self.segments.attach(segment)
        self._enter(segment)
        return at

    def _enter(self, segment: Segment) -> None:
        self._map = segment.map
        self._long_writes.enter(segment)
        self._base = segment.base
        self._set_limit()
        self._prepare_at = segment.base + int(segment.size_bytes * PREPARE_NEXT_AT)

    def _take_next(self, base: int) -> Segment:
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        segment, self._next = self._next, None
        if segment is not None and segment.base == base:
            return segment
        try:
            return self._create(base)
        except OSError as error:
            raise DiskFull(f"no room for the CommitLog file {base:020d}: {error}") from error

    def _create(self, base: int) -> Segment:
        """Make a file; its size and its name are on the disk before anything is written to it."""
        segment = self.segments.create(base)
        try:
            self._fs.sync_file(segment.path)
            self._fs.sync_directory(self.segments.directory)
        except OSError:
            self.segments.drop(segment)
            raise
        return segment

    def prepare_next(self) -> None:
        """Make the next file if it will be needed soon; frequent calls are cheap."""
        if self.end_offset < self._prepare_at or self._preparing is not None or self._next:
            return
        if self._map is None or self._refusal or self._no_room:
            return
        base = self._base + self.segments.file_size_bytes
        if not self.prepares_aside:
            self._prepare(base)
            return
        thread = threading.Thread(target=self._prepare, args=(base,), name="firearrow-next-file", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are too many threads on the machine
            log.warning("next CommitLog file can't be made ready", extra={"error": error})
            self._prepare_at = base
            return
        self._preparing = thread

    def _prepare(self, base: int) -> None:
        assert self._next is None, "one file is made in advance"
        try:
            self._next = self._create(base)
        except OSError as error:
            # Not yet a failure: the roll tries again and then answers the sender.
            log.warning("next CommitLog file can't be made ready", extra={"error": error})

    def scan(self, physical_offset: int, end_offset: int, records_max: int) -> Columns | None:
        """The records from an offset on, within its file; None where the log has no file.

        Positions of the result are within the file: add ``base_of(physical_offset)``.
        """
        segment = self.segments.find(physical_offset)
        if segment is None:
            return None
        start = physical_offset - segment.base
        end = min(end_offset - segment.base, segment.size_bytes)
        noted = self._noted
        if len(noted) > _NOTED_MAX:
            noted.clear()  # the reader is far behind
        del noted[: bisect_left(noted, physical_offset)]
        if noted and noted[0] == physical_offset:
            upto = segment.base + min(end, start + SCAN_BYTES_MAX)
            count = min(bisect_left(noted, upto), records_max)
            stop = Stop.FULL if len(noted) > count else Stop.END
            if end_offset < self.end_offset and count and _leaves(segment, noted[count - 1], end):
                count, stop = count - 1, Stop.END
            positions = np.array(noted[:count], np.int64)
            return scan_at(segment.map, positions - segment.base, start, end, stop)
        bounded = min(end, start + SCAN_BYTES_MAX)
        columns = scan(segment.map, start, bounded, records_max)
        if bounded < end and not len(columns):
            columns = scan(segment.map, start, end, 1)
        elif bounded < end and columns.stop is Stop.END:
            columns.stop = Stop.FULL
        return columns

    def noted(self, physical_offset: int, count_max: int) -> list[int]:
        """Starts of the records from an offset on, if these are the latest of all. Empty if they were not put one by
        one, or exceed a count.
        """
        noted = self._noted
        del noted[: bisect_left(noted, physical_offset)]
        if len(noted) > count_max or not noted or noted[0] != physical_offset:
            return []
        return noted.copy()

    def has_noted(self, physical_offset: int) -> bool:
        """Tell whether one of the latest records is known to begin at an offset. These may not be dispatched yet."""
        noted = self._noted
        at = bisect_left(noted, physical_offset)
        return at < len(noted) and noted[at] == physical_offset

    def base_of(self, physical_offset: int) -> int:
        """Offset of the start of the file that holds a byte."""
        return physical_offset - physical_offset % self.segments.file_size_bytes

    def after(self, physical_offset: int, columns: Columns) -> int:
        """Offset where a scan that began at ``physical_offset`` continues: after a blank, the start of
        the next file.
        """
        base = self.base_of(physical_offset)
        if columns.stop is Stop.BLANK:
            return base + self.segments.file_size_bytes
        return base + columns.end

    def stretch(self, physical_offset: int, bytes_max: int) -> bytes:
        """The bytes of the log from an offset on, within one file; empty where the log has none."""
        segment = self.segments.find(physical_offset)
        if segment is None:
            return b""
        start = physical_offset - segment.base
        end = min(start + bytes_max, self.end_offset - segment.base, segment.size_bytes)
        return segment.map[start:end]

    def record(self, physical_offset: int, size: int) -> bytes | None:
        """The bytes of a stretch within one file; None where the log doesn't hold it."""
        segment = self.segments.find(physical_offset)
        if segment is None or physical_offset + size > min(segment.end, self.end_offset):
            return None
        start = physical_offset - segment.base
        return segment.map[start : start + size]

    def record_at(self, physical_offset: int) -> bytes | None:
        """The record that begins at an offset, None if none does."""
        segment = self.segments.find(physical_offset)
        if segment is None:
            return None
        end, mapped = segment.end, segment.map
        if end > self.end_offset:
            end = self.end_offset
        start, room = physical_offset - segment.base, end - physical_offset
        if room < _PLACE_BYTES:
            return None
        size, magic, place = _PLACE.unpack_from(mapped, start)
        if magic not in _MAGICS or place != physical_offset or size > room:
            return None
        return mapped[start : start + size]

    def contents_at(self, physical_offsets: Sequence[int]) -> list[Content]:
        """Contents of the records that begin at some offsets. The list ends at the first offset where `record_at` has
        none, and lacks records that `contents_in` can't return.
        """
        found: list[Content] = []
        while len(found) < len(physical_offsets):
            left = physical_offsets[len(found) :]
            segment = self.segments.find(left[0])
            if segment is None:
                break
            limit = min(segment.end, self.end_offset) - segment.base
            contents = contents_in(segment.map, segment.base, left, limit)
            if not contents:
                break
            found += contents
        return found

    def cut(self, end_offset: int) -> None:
        """Forget everything from ``end_offset`` on."""
        self.segments.cut(end_offset)

    def advise(self, *, read_ahead: bool) -> None:
        """Tell the system to read ahead in the log, or not."""
        self.segments.advise(read_ahead=read_ahead)
        if self._next is not None:
            self._next.advise(read_ahead=read_ahead)

    def close(self) -> None:
        """Unmap the files, and delete the file that was made in advance."""
        if self._preparing is not None:
            self._preparing.join()
        if self._next is not None:
            self.segments.drop(self._next)
            self._next = None
        self._map = None
        self._limit = 0
        self._long_writes.close()
        self.segments.close()


def _leaves(segment: Segment, physical_offset: int, end: int) -> bool:
    """Tell whether a record of a file goes on behind a position in it."""
    at = physical_offset - segment.base
    return at + int.from_bytes(segment.map[at : at + 4], "big") > end


# --- Long writes into a mapped file: by the system's call instead of through the mapping ---
#
# The first byte that is written to a page of a mapped file costs a page fault, 2 to 3 µs for each 4 KiB. A call
# takes all its pages at once. For 12.8 KB, 32 messages that come together, that is 7 µs instead of 15, for 64 KB 20
# instead of 73. Below 8 KiB the mapping is as fast. Filling pages ahead in a thread was rejected: its frequent
# wake-ups slow down all other work.
#
# A fault on a page that is not in memory makes all pages of the disk's read-ahead. That is cheap for each page, as
# they are kept together, but a long wait for the writer: up to 26 ms for 8 MiB. Senders wait together with their
# broker, but a slave's master does not. So a slave writes by calls whatever the length. Forbidding the read-ahead
# was rejected: sends took 3 µs more each, as pages came one by one.
#
# Linux file systems use one memory for both. Where that is not so (folders that a virtual machine shares), the
# mapping would not show the written bytes. So they are compared after each call, 1 µs for 12.8 KB. If they differ,
# or the call fails, the same bytes go through the mapping, and so do all later writes to the file.


LONG_BYTES: Final = 8192


class LongWrites:
    """Writes to one file at a time, the one that was entered last."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._segment: Segment | None = None
        self._descriptor = -1

    def enter(self, segment: Segment) -> None:
        """Write to this file from now on."""
        self.close()
        self._segment = segment
        try:
            self._descriptor = self._fs.open_to_write(segment.path)
        except OSError as error:
            self._give_up(str(error))

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Write so that the mapping shows the bytes."""
        segment = self._segment
        assert segment is not None, "a file was entered"
        mapped, end = segment.map, start + len(data)
        if self._descriptor >= 0:
            try:
                os.pwrite(self._descriptor, data, start)
            except OSError as error:
                self._give_up(str(error))
            else:
                if mapped[start:end] == bytes(data):
                    return
                self._give_up("its mapping does not show what is written to it")
        mapped[start:end] = data

    def _give_up(self, reason: str) -> None:
        assert self._segment is not None, "a file was entered"
        log.warning("long records are written as short ones", extra={"file": self._segment.path, "reason": reason})
        self._close_file()

    def close(self) -> None:
        """Release the file."""
        self._close_file()
        self._segment = None

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
