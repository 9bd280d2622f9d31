"""Puts a damaged record right while the broker runs, with the bytes that a replica has.

The log of a replica is the same byte by byte. So what it has for the record is compared around it,
before or behind: both may be damaged, too, but neither may be if the log is another one. The record
itself must be sound to the CRC of its body, say that it is there, and be what its queue's entry
leads to. If not, nothing is changed.

The end of a log is compared whenever a slave connects (`LogEnd`). Where it differs behind the body
of a record, of which all before is the same, both have one message, and one of the two has lost
what no CRC covers: its topic or its properties. If they tell by themselves which that is, a slave's
are put right, and a slave's stay where they are the sound ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

from firearrow.errors import MessageError, StoreError
from firearrow.message import properties
from firearrow.message.record import behind_body, read_frame, verify_crc_property
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from firearrow.store.commitlog import CommitLog
from firearrow.store.events import RecordDamaged
from firearrow.store.queues import ConsumeQueues
from firearrow.store.recordchecks import fault_of
from firearrow.store.snapshot.walk import find_record

logger = logging.getLogger(__name__)

AROUND_BYTES: Final = 4096
COMPARED_BYTES: Final = 64 * 1024
"""Of the end of a log, at least: enough for the head of a usual record, which says when it was
stored."""


class Asked(NamedTuple):
    """The bytes of the log that are to be had from a replica: a record with what is around it."""

    start: int
    size: int


def asked_for(log: CommitLog, record: RecordDamaged) -> Asked | None:
    """Give the request to a replica; None if the log does not hold the record any more."""
    at, end = record.physical_offset, record.physical_offset + record.size
    segment = log.segments.find(at)
    if segment is None or end > min(segment.end, log.end_offset):
        return None
    start = max(segment.base, at - AROUND_BYTES)
    return Asked(start, min(segment.end, log.end_offset, end + AROUND_BYTES) - start)


def mend(log: CommitLog, queues: ConsumeQueues, record: RecordDamaged, asked: Asked, data: bytes) -> str | None:
    """Write what a replica has; give the reason if it is of no use, None if that is done. It is
    not on the disk by then."""
    if len(data) < asked.size:
        return f"its log ends at {asked.start + len(data)}"
    before = record.physical_offset - asked.start
    behind = before + record.size
    ours = log.stretch(asked.start, asked.size)
    if len(ours) < asked.size:
        return "the log does not hold it any more"
    is_same = [theirs == mine for theirs, mine in _around(data, ours, before, behind)]
    if is_same and not any(is_same):
        return "its log is another one there"
    found = data[before:behind]
    fault = fault_of(found, record.physical_offset, check_crc=True)
    if fault is not None:
        return f"it is damaged there, too: {fault.why}"
    if verify_crc_property(found) is False or not _is_of_its_queue(queues, record, found):
        return "it is damaged there, too: it does not fit its queue"
    log.put_right(record.physical_offset, found)
    return None


def _around(data: bytes, ours: bytes, before: int, behind: int) -> list[tuple[bytes, bytes]]:
    """Pair the bytes before and behind a record with ours, where there are any."""
    parts = [(data[:before], ours[:before]), (data[behind:], ours[behind:])]
    return [part for part in parts if part[0]]


def _is_of_its_queue(queues: ConsumeQueues, record: RecordDamaged, found: bytes) -> bool:
    """Tell whether no entry of the queue that a record names contradicts it."""
    frame = read_frame(found)
    if frame.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
        return True
    queue = queues.find(frame.topic, frame.queue_id)
    if queue is None or not queue.min_offset <= frame.queue_offset < queue.max_offset:
        return True
    place = queue.entry(frame.queue_offset)[:2]
    return place == (record.physical_offset, record.size)


# --- the end of a log ---


class LogEnd:
    """The end of a log, as it is compared with what its master sends from ``start`` on; both are
    the same up to ``same_to``."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._from = _start_of_end(log)
        self.start = self.same_to = min(max(self._from, 1), log.end_offset)  # 0: it is empty
        self._theirs = bytearray(log.stretch(self._from, self.start - self._from))

    def take(self, piece: bytes | memoryview) -> str | None:
        """Compare what comes next; say why it does not fit. Raises StoreError where the log does
        not hold it any more."""
        self._theirs += piece
        while self.same_to < self._from + len(self._theirs):
            theirs = self._theirs[self.same_to - self._from :]
            ours = self._log.stretch(self.same_to, len(theirs))
            if not ours:
                raise StoreError(f"the CommitLog has nothing at {self.same_to}")
            if theirs.startswith(ours):
                self.same_to += len(ours)
                continue
            pairs = enumerate(zip(ours, theirs, strict=False))
            differs_at = self.same_to + next(at for at, (a, b) in pairs if a != b)
            records = _records(self._log, self._from)
            record = next((it for it in records if it.end > differs_at), None)
            if record is None or differs_at < record.behind_body:
                return f"another one between {self.same_to} and {self.same_to + len(ours)}"
            found = bytes(self._theirs[record.start - self._from : record.end - self._from])
            if len(found) < len(record.data):
                return None  # the rest is under way
            if not _settle(self._log, record, found):
                return (
                    f"another one in topic or properties of the message at {record.start}, and "
                    "nothing says which is right"
                )
            self.same_to = record.end
        return None


class _Record(NamedTuple):
    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    @property
    def behind_body(self) -> int:
        """The place where its topic field begins; its end, if that can't be told."""
        try:
            return self.start + behind_body(self.data)[0]
        except MessageError:
            return self.end


def first_torn(log: CommitLog) -> int | None:
    """Find the first record at the end of a log that has lost its topic or properties."""
    records = _records(log, _start_of_end(log))
    return next((it.start for it in records if _is_torn(it.data)), None)


def _start_of_end(log: CommitLog) -> int:
    """Find the record that is as far before the end of a log as it is compared."""
    end = log.end_offset
    at = max(log.start_offset, end - COMPARED_BYTES)
    segment = log.segments.find(at)
    if at >= end or segment is None:  # a log may have lost all that it had behind a file's begin
        return end
    back = AROUND_BYTES
    while back < 2 * segment.size_bytes:
        first = max(at - segment.base - back, 0)
        found = find_record(segment.map, first, segment.size_bytes, segment.base, at - segment.base)
        if found is not None:
            records = _records(log, segment.base + found)
            return next((it.start for it in records if it.end > at), at)
        back *= 4
    return at


def _records(log: CommitLog, start: int) -> Iterator[_Record]:
    """The records from one that begins at an offset on, over the ends of files."""
    while start < log.end_offset:
        data = log.record_at(start)
        if data is not None:
            yield _Record(start, data)
            start += len(data)
            continue
        segment = log.segments.find(start)
        if segment is None:
            return
        start = segment.base + segment.size_bytes


def _settle(log: CommitLog, ours: _Record, theirs: bytes) -> bool:
    """Have the message as the one of two has it that is not torn; say if there is such a one."""
    is_torn, is_theirs = _is_torn(ours.data), _is_torn(theirs)
    if is_torn == is_theirs:
        return False
    extra = {"physical_offset": ours.start}
    if is_torn:
        log.put_right(ours.start, theirs)
        log.segments.flush(ours.start, ours.end)
        logger.warning("topic and properties of a message are the master's again", extra=extra)
    else:
        logger.error("a message is damaged at the master, and sound here: see healFrom", extra=extra)
    return True


def _is_torn(record: bytes) -> bool:
    """Tell whether a record has lost what is behind its body, which no CRC covers.

    What a disk has not got reads as zeros, which are in no topic, and in hardly any properties.
    """
    try:
        _, topic, text = behind_body(record)
    except MessageError:
        return True
    is_name = topic.isascii() and topic.decode().isprintable()
    is_sound = is_name and b"\0" not in text and properties.fault_of(text) is None
    return not is_sound or verify_crc_property(record) is False
