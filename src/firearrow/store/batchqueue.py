"""The BatchConsumeQueue: places of the records of a topic with ``queue.type=BatchCQ`` in the log.

A batch send to such a topic is one record with all its messages (an inner batch). It takes one queue offset for each of
its messages. So an entry also says which messages it stands for. 46 bytes, big-endian:

====== ==== ==================================================================
offset size field
====== ==== ==================================================================
0      8    physical offset of the record
8      4    size of the record
12     8    tag code: hash of TAGS, sign-extended; 0 without tags
20     8    store time, ms
28     8    queue offset of the record's first message
36     2    number of its messages: INNER_NUM of an inner batch, or 1
38     4    place in a compacted log; -1, as nothing is compacted
42     4    0
====== ==== ==================================================================

Worked example, the second record of a queue: 641 bytes at 898, three messages from 1 on: ``0000000000000382 00000281
0000000000000000 000001a1fcd0ee7d 0000000000000001 0003 ffffffff 00000000``.

Files are in ``batchconsumequeue/TOPIC/QUEUE_ID/`` and named by the byte offset of their first entry. That offset does
not show queue offsets: bisection finds these. So the first file made is always 0, and no entry stands in for records
that the log has lost. The rest of the last file is zero.

Source: RocketMQ's ``BatchConsumeQueue``, ``CommitLog#setBatchSizeIfNeeded``; proven on the store ``batch-queues`` that
RocketMQ 5.5.0 wrote.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.errors import CorruptStore
from firearrow.message.properties import INNER_NUM, parse
from firearrow.message.sysflag import INNER_BATCH
from firearrow.store.consumequeue import WritableFileQueue, last_written
from firearrow.store.queues import ENTRY, DispatchedEntries, RecordPlace, Run
from firearrow.store.scan import Columns, Ints
from firearrow.store.segments import Segment

DIRECTORY: Final = "batchconsumequeue"
UNIT: Final = struct.Struct(">qiqqqhii")
UNIT_BYTES: Final = UNIT.size
UNIT_DTYPE: Final = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tag_code", ">i8"),
        ("store_ms", ">i8"),
        ("queue_offset", ">i8"),
        ("messages", ">i2"),
        ("compacted", ">i4"),
        ("reserved", ">i4"),
    ]
)
assert UNIT_DTYPE.itemsize == UNIT_BYTES == 46
MESSAGES_MAX: Final = 0x7FFF
"""Largest number of messages in a record."""
_NOT_COMPACTED: Final = -1
_NOWHERE: Final = 1 << 62


class BatchUnit(NamedTuple):
    """An entry: a record, and its ``messages`` from ``queue_offset`` on."""

    physical_offset: int
    size: int
    tag_code: int
    store_ms: int
    queue_offset: int
    messages: int

    @property
    def end(self) -> int:
        """The queue offset after its last message."""
        return self.queue_offset + self.messages


def inner_count(properties: dict[str, str], sys_flag: int) -> int:
    """Count the messages in a record by its properties. An inner batch states the count; other records have one.

    A number that can't be a count is taken as 1.
    """
    if not sys_flag & INNER_BATCH:
        return 1
    text = properties.get(INNER_NUM, "")
    count = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 1
    return count if 0 < count <= MESSAGES_MAX else 1


def inner_counts(columns: Columns) -> Ints | None:
    """Count the messages in each record; None if none of them is an inner batch."""
    inner = columns.sys_flag & INNER_BATCH
    if not np.count_nonzero(inner):
        return None
    counts = np.ones(len(columns), np.int64)
    rows = inner.nonzero()[0]
    texts = columns.slices(columns.properties_start[rows], columns.properties_size[rows])
    counts[rows] = [inner_count(parse(text), INNER_BATCH) for text in texts]
    return counts


def units_of(entries: DispatchedEntries, start: int, end: int) -> npt.NDArray[Any]:
    """Some rows of the entries of dispatch, as units of a batch queue."""
    assert 0 <= start < end <= len(entries.size)
    units: npt.NDArray[Any] = np.zeros(end - start, UNIT_DTYPE)
    units["physical_offset"] = entries.physical_offset[start:end]
    units["size"] = entries.size[start:end]
    units["tag_code"] = entries.tag_code[start:end]
    units["store_ms"] = entries.store_ms[start:end]
    units["queue_offset"] = entries.queue_offset[start:end]
    units["messages"] = 1 if entries.messages is None else entries.messages[start:end]
    units["compacted"] = _NOT_COMPACTED
    return units


def messages_end(entries: DispatchedEntries, run: Run) -> int:
    """The queue offset after a run, in a queue of either kind."""
    last = 1 if entries.messages is None else int(entries.messages[run.end - 1])
    return int(entries.queue_offset[run.end - 1]) + last


class Units(ABC):
    """The units of a queue.

    ``read`` gives an entry for each message of a record.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def numbers(self) -> range:
        """Numbers of the existing units: byte position in the queue's files, divided by the unit size."""

    @abstractmethod
    def unit(self, number: int) -> BatchUnit:
        """A unit; IndexError where no file holds it."""

    def number_of(self, queue_offset: int) -> int:
        """Number of the unit that holds a message; if the log has lost the message, number of the next unit."""
        units = self.numbers
        number = self._begun_before(queue_offset) - 1
        if number >= 0 and self.unit(units[number]).end > queue_offset:
            return units[number]
        return units.start + number + 1

    def _begun_before(self, queue_offset: int) -> int:
        """Count the units that begin at or before a queue offset."""
        return bisect_right(self.numbers, queue_offset, key=lambda n: self.unit(n).queue_offset)

    def number_at_or_after(self, physical_offset: int) -> int:
        """Number of the first unit whose record is at or after a physical offset.

        Bytes that are clearly no unit, which a loss of power may leave, count as a later unit.
        """
        units = self.numbers
        return units.start + bisect_left(units, physical_offset, key=self._place)

    def _place(self, number: int) -> int:
        unit = self.unit(number)
        whole = unit.size > 0 and unit.messages > 0 and (unit.physical_offset > 0 or number == 0)
        return unit.physical_offset if whole else _NOWHERE

    def units_from(self, queue_offset: int) -> Iterator[BatchUnit]:
        """The units from the unit of a message on, at least to the end of its file."""
        return map(self.unit, range(self.number_of(queue_offset), self.numbers.stop))

    def read(self, queue_offset: int, count: int) -> bytes:
        """Up to ``count`` entries from an offset on; empty where there are none."""
        parts: list[bytes] = []
        at, end = queue_offset, queue_offset + count
        for unit in self.units_from(queue_offset):
            held = min(unit.end, end) - at
            if held <= 0 or unit.queue_offset > at:  # damaged units may lead back
                break
            parts.append(ENTRY.pack(*unit[:3]) * held)
            at += held
        return b"".join(parts)


class FileBatchQueue(Units, WritableFileQueue):
    """Implements ``ConsumeQueue`` by the files of one directory."""

    __slots__ = ("_end",)

    unit_bytes = UNIT_BYTES

    def _forget(self) -> None:
        super()._forget()
        self._end = 0  # the number after the last unit

    @property
    def numbers(self) -> range:
        """Numbers of the units from the first file on."""
        return range(self.segments.first_offset // UNIT_BYTES, self._end)

    @property
    def _end_bytes(self) -> int:
        return self._end * UNIT_BYTES

    def _place_of(self, number: int) -> RecordPlace:
        unit = self.unit(number)
        return RecordPlace(self.topic, self.queue_id, unit.queue_offset, unit.physical_offset, unit.size)

    def _bytes_before(self, physical_offset: int) -> int:
        return self.number_at_or_after(physical_offset) * UNIT_BYTES

    def _find_end(self) -> None:
        self._end = self.segments.first_offset // UNIT_BYTES
        last: BatchUnit | None = None
        for segment in reversed(self.segments.files):
            written, fields = last_written(segment, UNIT, is_written)
            if written:
                self._end = segment.base // UNIT_BYTES + written
                last = BatchUnit._make(fields[:6])
                break
        self.max_offset: int = last.end if last else 0
        self.next_offset: int = self.max_offset
        self.max_physical_offset: int = last.physical_offset if last else -1

    # --- units ---

    def unit(self, number: int) -> BatchUnit:
        """A unit; IndexError where no file holds it."""
        at = number * UNIT_BYTES
        segment = self.segments.find(at)
        if segment is None:
            raise IndexError(number)
        return BatchUnit._make(UNIT.unpack_from(segment.map, at - segment.base)[:6])

    def units_from(self, queue_offset: int) -> Iterator[BatchUnit]:
        """The units from the unit of a message on, up to the end of its file."""
        number = self.number_of(queue_offset)
        segment = self.segments.find(number * UNIT_BYTES)
        if segment is None:
            return
        start = number * UNIT_BYTES - segment.base
        end = min(self._end_bytes - segment.base, segment.size_bytes)
        for at in range(start, end, UNIT_BYTES):
            yield BatchUnit._make(UNIT.unpack_from(segment.map, at)[:6])

    def at_time(self, time_ms: int, *, last: bool = False) -> int:
        """Queue offset of the first message stored at or after a time. Of several records with exactly that time, the
        first counts, or the ``last``.

        Java: BatchConsumeQueue#getOffsetInQueueByTime first chooses a file: the last one that does not begin after the
        time, or the first one. After the last record of that file it returns this record, as here. It also does so for
        several records of that time; here it is the first, so that no message is missed. For UPPER its bisection may
        find nothing, which means the queue's first message.
        """
        files = [segment for segment in self.segments.files if self._written_in(segment)]
        if not files:
            return self.max_offset
        begins = [self.unit(segment.base // UNIT_BYTES).store_ms for segment in files]
        chosen = self._written_in(files[max(bisect_right(begins, time_ms) - 1, 0)])
        bisect = bisect_right if last else bisect_left
        number = bisect(chosen, time_ms, key=lambda n: self.unit(n).store_ms)
        if last and number and self.unit(chosen[number - 1]).store_ms == time_ms:
            number -= 1
        found = self.unit(chosen[min(number, len(chosen) - 1)])
        return max(found.queue_offset, self.min_offset)

    def _written_in(self, segment: Segment) -> range:
        """The numbers of a file's units."""
        return range(segment.base // UNIT_BYTES, min(segment.end // UNIT_BYTES, self._end))

    # --- as a ConsumeQueue ---

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """Physical offset, size and tag code of a message's record; IndexError without one."""
        return self.unit(self.number_of(queue_offset))[:3]

    def extended_tag_code(self, address: int) -> int | None:
        """None: units have no extension."""
        return None

    def stored_ms(self, queue_offset: int) -> int | None:
        """Store time (ms) of a message."""
        return self.unit(self.number_of(queue_offset)).store_ms

    def gap_end(self, queue_offset: int) -> int:
        """Queue offset of the next record, where reading goes on when ``read`` has nothing at an offset."""
        number = self.number_of(queue_offset)
        return self.unit(number).queue_offset if number in self.numbers else self.max_offset

    def put(self, units: npt.NDArray[Any], *, complete: bool = False) -> None:
        """Write consecutive units (``UNIT_DTYPE``); units that the queue already has are skipped.

        Raises CorruptStore if messages before them would be missing, unless ``complete`` (see ``ConsumeQueues.put``).
        Raises OSError when the disk is full.
        """
        units = units[units["physical_offset"] > self.max_physical_offset]
        if not len(units):
            return
        first = int(units["queue_offset"][0])
        if first == 0 and self.max_offset:
            self._begin_again()
        if first != self.max_offset and not (complete and first > self.max_offset):
            raise CorruptStore(
                f"queue {self.topic}-{self.queue_id} ends at {self.max_offset}, its next message has {first}"
            )
        assert not self.numbers or self._end_bytes <= self.segments.end_offset
        at, data = self._end_bytes, units.tobytes()
        if not self.segments.files:
            self._min_offset = -1  # unknown: the queue may begin after 0
        while data:
            segment = self._segment_for(at)
            start = at - segment.base
            part = data[: segment.size_bytes - start]
            assert len(part) % UNIT_BYTES == 0, "no unit lies across two files"
            self.segments.reserve(segment, start + len(part))
            segment.map[start : start + len(part)] = part
            at += len(part)
            self._end = at // UNIT_BYTES
            last = self.unit(self._end - 1)
            self.max_physical_offset, self.max_offset = last.physical_offset, last.end
            data = data[len(part) :]
        self.next_offset = max(self.next_offset, self.max_offset)

    def first_at_or_after(self, physical_offset: int) -> int:
        """Queue offset of the first message of the first record at or after a physical offset."""
        number = self.number_at_or_after(physical_offset)
        return self.unit(number).queue_offset if number in self.numbers else self.max_offset

    def last_before(self, physical_offset: int) -> int:
        """Start of the queue's last record before a physical offset, -1 for none."""
        before = self.number_at_or_after(physical_offset) - 1
        return self.unit(before).physical_offset if before in self.numbers else -1


def is_written(fields: tuple[int, ...]) -> bool:
    """Tell whether a unit is written: in the rest of a file its fields are zero."""
    return fields[0] >= 0 and fields[1] > 0 and fields[4] >= 0 and fields[5] > 0


def are_written(units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mask of the written units (``UNIT_DTYPE``), see ``is_written``."""
    written: npt.NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
    written &= (units["queue_offset"] >= 0) & (units["messages"] > 0)
    return written
