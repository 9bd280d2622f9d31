"""Puts a damaged record right while the broker runs, with the bytes that a replica has.

The log of a replica is the same byte by byte. So what it has for the record is compared around it,
before or behind: both may be damaged, too, but neither may be if the log is another one. The record
itself must be sound to the CRC of its body, say that it is there, and be what its queue's entry
leads to. If not, nothing is changed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from firearrow.message.record import read_frame, verify_crc_property
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from firearrow.store.commitlog import CommitLog
from firearrow.store.events import RecordDamaged
from firearrow.store.queues import ConsumeQueues
from firearrow.store.soundness import fault_of

AROUND_BYTES: Final = 4096


class Asked(NamedTuple):
    """The bytes of the log that are to be had from a replica: a record with what is around it."""

    start: int
    size: int


def asked_for(log: CommitLog, record: RecordDamaged) -> Asked | None:
    """What to ask a replica for; None if the log does not hold the record any more."""
    at, end = record.physical_offset, record.physical_offset + record.size
    segment = log.segments.find(at)
    if segment is None or end > min(segment.end, log.end_offset):
        return None
    start = max(segment.base, at - AROUND_BYTES)
    return Asked(start, min(segment.end, log.end_offset, end + AROUND_BYTES) - start)


def mend(
    log: CommitLog, queues: ConsumeQueues, record: RecordDamaged, asked: Asked, data: bytes
) -> str | None:
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
    """What is before a record and behind it on both sides, where there is something."""
    parts = [(data[:before], ours[:before]), (data[behind:], ours[behind:])]
    return [part for part in parts if part[0]]


def _is_of_its_queue(queues: ConsumeQueues, record: RecordDamaged, found: bytes) -> bool:
    """Whether no entry of the queue that a record names contradicts it."""
    frame = read_frame(found)
    if frame.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
        return True
    queue = queues.find(frame.topic, frame.queue_id)
    if queue is None or not queue.min_offset <= frame.queue_offset < queue.max_offset:
        return True
    place = queue.entry(frame.queue_offset)[:2]
    return place == (record.physical_offset, record.size)
