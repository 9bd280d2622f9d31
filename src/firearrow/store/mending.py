"""Repairs a damaged record while the broker runs, with the bytes of a replica.

A replica's log is the same byte by byte. So the replica's bytes are compared around the record, before and after.
Either part may be damaged, too; only if both differ, the log counts as another one. The record itself must be sound to
the CRC of its body, hold its own place, and fit its queue's entry. Otherwise nothing is changed.

The end of a log is compared whenever a slave connects (`LogEnd`). It may differ after the body of a record whose
earlier bytes are all the same. Then both logs have one message, and one of the two has lost bytes that no CRC covers:
its topic or its properties. If the bytes themselves show which log that is, a slave's bytes are repaired; a slave's
sound bytes stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from firearrow.errors import MessageError, StoreError
from firearrow.logs import Log
from firearrow.message import properties
from firearrow.message.record import behind_body, read_frame, verify_crc_property
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from firearrow.store.commitlog import CommitLog
from firearrow.store.events import RecordDamaged
from firearrow.store.queues import ConsumeQueues
from firearrow.store.reading.walk import find_record
from firearrow.store.recordchecks import fault_of

logger: Final = Log(__name__)

AROUND_BYTES: Final = 4096
COMPARED_BYTES: Final = 64 * 1024
"""Least number of bytes of the end of a log: enough for the head of a usual record, which has its store time."""


class RequestedBytes(NamedTuple):
    """The bytes of the log that a replica must send: a record with the bytes around it."""

    start: int
    size: int


def asked_for(log: CommitLog, record: RecordDamaged) -> RequestedBytes | None:
    """The request to a replica; None if the log does not hold the record any more."""
    at, end = record.physical_offset, record.physical_offset + record.size
    segment = log.segments.find(at)
    if segment is None or end > min(segment.end, log.end_offset):
        return None
    start = max(segment.base, at - AROUND_BYTES)
    return RequestedBytes(start, min(segment.end, log.end_offset, end + AROUND_BYTES) - start)


def mend(
    log: CommitLog, queues: ConsumeQueues, record: RecordDamaged, asked: RequestedBytes, data: bytes
) -> str | None:
    """Write a replica's bytes; return the reason if they are of no use, None if they are written.

    They are not on the disk on return.
    """
    if len(data) < asked.size:
        return f"its log ends at {asked.start + len(data)}"
    before = record.physical_offset - asked.start
    behind = before + record.size
    assert 0 <= before < behind <= asked.size, "the request is for this record"
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
    """Pairs of the bytes before and after a record with ours, where there are any."""
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
    """The end of a log, compared with the master's bytes from ``start`` on; both are the same up to ``same_to``."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._from = _start_of_end(log)
        self.start: Final = min(max(self._from, 1), log.end_offset)  # 0: it is empty
        self.same_to: int = self.start
        assert self._from <= self.start <= log.end_offset
        self._theirs = bytearray(log.stretch(self._from, self.start - self._from))

    def take(self, piece: bytes | memoryview) -> str | None:
        """Compare the next bytes; return the reason if they do not fit. Raises StoreError if the log does not hold that
        place any more.
        """
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
                return None  # the rest is on its way
            if not _settle(self._log, record, found):
                return (
                    f"another one in topic or properties of the message at {record.start}, and "
                    "nothing says which is right"
                )
            self.same_to = record.end
        assert self.same_to <= self._log.end_offset
        return None


class _RecordBytes(NamedTuple):
    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    @property
    def behind_body(self) -> int:
        """Offset of its topic field; its end, if that field can't be found."""
        try:
            return self.start + behind_body(self.data)[0]
        except MessageError:
            return self.end


def first_torn(log: CommitLog) -> int | None:
    """Offset of the first record at the end of a log that has lost its topic or properties."""
    records = _records(log, _start_of_end(log))
    return next((it.start for it in records if _is_torn(it.data)), None)


def _start_of_end(log: CommitLog) -> int:
    """Offset of the first record of the compared end of a log."""
    end = log.end_offset
    at = max(log.start_offset, end - COMPARED_BYTES)
    segment = log.segments.find(at)
    if at >= end or segment is None:  # a log may have lost everything after a file's begin
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


def _records(log: CommitLog, start: int) -> Iterator[_RecordBytes]:
    """The records from an offset on, over the ends of files. A record must begin there."""
    while start < log.end_offset:
        data = log.record_at(start)
        if data is not None:
            yield _RecordBytes(start, data)
            start += len(data)
            continue
        segment = log.segments.find(start)
        if segment is None:
            return
        start = segment.base + segment.size_bytes


def _settle(log: CommitLog, ours: _RecordBytes, theirs: bytes) -> bool:
    """Settle on the message that is not torn; tell whether exactly one of the two is torn."""
    assert len(theirs) == len(ours.data), "the whole record of the master has arrived"
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
    """Tell whether a record has lost bytes after its body, which no CRC covers.

    Bytes that never reached the disk read as zeros, which are in no topic, and in hardly any properties.
    """
    try:
        _, topic, text = behind_body(record)
    except MessageError:
        return True
    is_name = topic.isascii() and topic.decode().isprintable()
    is_sound = is_name and b"\0" not in text and properties.fault_of(text) is None
    return not is_sound or verify_crc_property(record) is False
