"""Finds out, at start, where the log ends and from where it must be dispatched again.

A store that ended cleanly has no ``abort`` file. Its log is read from the last file that the queues
know; after an unclean end from the file that the checkpoint vouches for, or from the first. Every
record on the way must stand where it says it does (a reused file can hold old records that are
otherwise sound) and its body must match its CRC. The first that doesn't ends the log, and what the
queues say of anything behind is cut off.

Dispatch then goes on from the earliest record that a queue or the index may not have; both skip
what they do have, so starting early costs time and nothing else.

Source: upstream ``CommitLog#recoverNormally``, ``#recoverAbnormally``.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np

from firearrow.store.checkpoint import Checkpoint
from firearrow.store.commitlog import CommitLog
from firearrow.store.index import Index
from firearrow.store.queues import ConsumeQueues
from firearrow.store.scan import Columns, Stop

log = logging.getLogger(__name__)

_RECORDS_A_STEP: Final = 4096


class Recovered(NamedTuple):
    """Where the log ends, where dispatch goes on, from where on for the queues (the index may lack
    earlier keys), and the store time of the last record."""

    log_end_offset: int
    dispatch_offset: int
    queues_offset: int
    last_store_ms: int


def recover(
    commit_log: CommitLog,
    queues: ConsumeQueues,
    index: Index | None,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    check_crc: bool,
) -> Recovered:
    """Settle the end of log and queues; nothing has been dispatched again when this returns."""
    if not commit_log.segments.files:
        dropped = queues.clear()
        if dropped:
            log.warning("the CommitLog is empty: %d queues are deleted", dropped)
        if index is not None:
            index.cut(0)
        return Recovered(0, 0, 0, 0)
    walk_from = _walk_from(commit_log, queues, checkpoint, clean=clean)
    end, last_ms = _end_of_log(commit_log, walk_from, check_crc)
    _cut(commit_log, queues, end if clean else min(walk_from, end), end)
    if index is not None:
        index.cut(end)
    queues_offset = _queues_from(commit_log, queues, checkpoint, walk_from, clean=clean)
    start = queues_offset
    if index is not None:  # the last record that it knows may lack keys
        start = max(min(start, index.end_physical_offset), commit_log.start_offset)
    return Recovered(end, min(start, end), queues_offset, last_ms)


def _queues_from(
    commit_log: CommitLog,
    queues: ConsumeQueues,
    checkpoint: Checkpoint,
    walk_from: int,
    *,
    clean: bool,
) -> int:
    """The first record that a queue may lack.

    After a clean end the checkpoint says it, and a topic that was deleted stays so; without any
    queue files all are made anew.
    """
    if queues.max_physical_offset < 0:
        return commit_log.start_offset
    if not clean:
        return walk_from
    known = max(queues.max_physical_offset, checkpoint.queues_physical_offset)
    return _after_record(commit_log, known)


def _walk_from(
    commit_log: CommitLog, queues: ConsumeQueues, checkpoint: Checkpoint, *, clean: bool
) -> int:
    """The start of the last file in which the end of the log may lie."""
    known = queues.max_physical_offset if clean else checkpoint.queues_physical_offset
    known_ms = 0 if clean or known > 0 else min(checkpoint.log_ms, checkpoint.queues_ms)
    for segment in reversed(commit_log.segments.files):
        first = commit_log.scan(segment.base, segment.end, 1)
        if first is None or not len(first) or int(first.physical_offset[0]) != segment.base:
            continue
        if segment.base <= known or 0 < int(first.store_ms[0]) <= known_ms:
            return segment.base
    return commit_log.start_offset


def _end_of_log(commit_log: CommitLog, start: int, check_crc: bool) -> tuple[int, int]:
    """The offset after the last sound record, and that record's store time."""
    at, last_ms = start, 0
    space_end = commit_log.segments.end_offset
    while at < space_end:
        columns = commit_log.scan(at, space_end, _RECORDS_A_STEP)
        if columns is None:
            break
        sound = _sound(columns, commit_log.base_of(at), check_crc)
        if sound:
            last_ms = int(columns.store_ms[sound - 1])
        if sound < len(columns):
            broken = commit_log.base_of(at) + int(columns.position[sound])
            log.warning("the log ends at %d: the record there is damaged", broken)
            return broken, last_ms
        after = commit_log.after(at, columns)
        if columns.stop not in (Stop.FULL, Stop.BLANK):
            at_file_end = after == commit_log.base_of(at) + commit_log.segments.file_size_bytes
            if columns.stop is Stop.INVALID:
                log.warning("the log ends at %d: no record follows", after)
            if not at_file_end:
                return after, last_ms
        at = after
    return _whole_end(commit_log, at), last_ms


def _whole_end(commit_log: CommitLog, at: int) -> int:
    return min(at, commit_log.segments.end_offset)


def _sound(columns: Columns, base: int, check_crc: bool) -> int:
    """How many of the records, from the first, stand where they say and hold what they say."""
    good = columns.physical_offset == columns.position + base
    if check_crc:
        good &= columns.body_crc_holds()
    return len(columns) if good.all() else int(np.argmin(good))


def _cut(commit_log: CommitLog, queues: ConsumeQueues, rebuilt_from: int, end: int) -> None:
    """Cut the log at its end, and the queues where they are to be rebuilt from.

    After an unclean end a queue's pages may have reached the disk in any order: what is behind the
    start of the walk is written again rather than trusted.
    """
    commit_log.cut(end)
    queues.cut(rebuilt_from)
    queues.correct_min(commit_log.start_offset)


def _after_record(commit_log: CommitLog, physical_offset: int) -> int:
    """The offset behind a record; the start of the log where there is no such record."""
    segment = commit_log.segments.find(physical_offset)
    if segment is None:
        return commit_log.start_offset
    start = physical_offset - segment.base
    return physical_offset + int.from_bytes(segment.map[start : start + 4], "big")
