"""Finds, at start, the end of the log and the begin of the part that must be dispatched again.

A store that ended cleanly has no ``abort`` file. Its log is read from the last file that the queues know. After an
unclean end it is read from the file that the checkpoint vouches for, or from the first. Every record on the way must be
at the place that it holds (a reused file can have old records that are otherwise sound). Its body must match its CRC.

The bytes after the end of the log decide the next step:

- Nothing sound follows: that is the torn end of a crash. It is zeroed durably before anything is served: a second crash
  can't bring it back.
- Sound records follow, but none that was on the disk according to the checkpoint: a machine that lost power wrote its
  pages in any order. These records are no part of the log, as nobody knows the records before them. Their bytes are
  kept aside under ``quarantine/`` before they are cut.
- Sound records follow that were on the disk: the log is damaged in the middle. Cutting it there, as RocketMQ does,
  would lose them. The start is refused with the place, and ``firearrow store repair`` repairs it. A body that doesn't
  match its CRC, in a log that goes on after it, is only reported: its record still holds the place of the next one.

After a loss of power the unflushed part of a queue's file may hold anything. So queues are cut at the start of the walk
and dispatched again from there. The rest of an entry may refer to a place before that: the record of a last entry that
may be torn must exist. If only the process was killed (see ``checkpoint``), the walk starts at the last step of
dispatch, which may be incomplete. A database of queues holds its progress. Queues and index skip entries that they
have: an early start costs only time.

Source: RocketMQ's ``CommitLog#recoverNormally``, ``#recoverAbnormally``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.errors import CorruptStore
from firearrow.files import SECTOR_BYTES, free_path
from firearrow.logs import Log
from firearrow.message.names import is_lmq
from firearrow.message.record import BLANK_BYTES, encode_blank
from firearrow.store.checkpoint import Checkpoint, End
from firearrow.store.commitlog import SCAN_BYTES_MAX, CommitLog
from firearrow.store.fs import FileSystem
from firearrow.store.index import Index
from firearrow.store.lmq import lmq_entries
from firearrow.store.queues import ConsumeQueues, RecordPlace
from firearrow.store.reading.walk import find_record
from firearrow.store.scan import RECORDS_MAX, Columns, Properties, Stop, scan

log: Final = Log(__name__)

_RECORDS_A_STEP: Final = 4096
# A kill within a step of dispatch may leave some queues without their entries of it.
_DISPATCHED_BYTES: Final = 2 * SCAN_BYTES_MAX
_LENGTH_BYTES: Final = 2
_COPY_BYTES: Final = 1 << 20


class Recovered(NamedTuple):
    """Result of recovery: the end of the log, the next offset of dispatch, the same offset for the queues alone, and
    the store time of the last record. The index may lack earlier keys than the queues.
    """

    log_end_offset: int
    dispatch_offset: int
    queues_offset: int
    last_store_ms: int


class Sound(NamedTuple):
    """A sound record after damage."""

    physical_offset: int
    store_ms: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """Input of recovery. ``ended``: the end of the last run."""

    commit_log: CommitLog
    queues: ConsumeQueues
    index: Index | None
    checkpoint: Checkpoint
    fs: FileSystem
    quarantine: Path
    ended: End
    check_crc: bool
    progress: StartProgress

    @property
    def clean(self) -> bool:
        """Tell whether the last run closed the store."""
        return self.ended is End.CLEAN

    def run(self) -> Recovered:
        """Settle the end of log and queues; nothing has been dispatched again on return.

        Raises CorruptStore, having changed nothing, when the log is damaged before records that were on the disk.
        """
        commit_log, index = self.commit_log, self.index
        if not commit_log.segments.files:
            dropped = self.queues.clear()
            if dropped:
                log.warning("queues are deleted: the CommitLog is empty", extra={"count": dropped})
            if index is not None:
                index.cut(0)
            return Recovered(0, 0, 0, 0)
        walk_from = self._walk_from()
        blanks: list[int] = []
        end, last_ms = self._end_of_log(walk_from, blanks)
        assert commit_log.start_offset <= end <= commit_log.segments.end_offset
        # The log before the queues: it refuses the start while nothing has been changed.
        self._cut_log(end)
        for blank in blanks:
            self._mend_blank(blank)
        trusted = self.clean or self.queues.dispatched_offset is not None
        has_record = self._has_record if self.ended is End.LOST else None
        self.queues.cut(end if trusted else min(walk_from, end), has_record)
        self.queues.correct_min(commit_log.start_offset)
        if index is not None:
            index.cut(end)
        if not commit_log.segments.files:  # everything in its only file is lost
            return Recovered(end, end, end, last_ms)
        queues_offset = min(self._queues_from(walk_from), end)
        start = queues_offset
        if index is not None:  # the last record in the index may lack keys
            start = max(min(start, index.end_physical_offset), commit_log.start_offset)
        assert start <= queues_offset, "entries that the queues lack are dispatched again"
        return Recovered(end, min(start, end), queues_offset, last_ms)

    def _queues_from(self, walk_from: int) -> int:
        """Physical offset of the first record that a queue may lack.

        After a clean end the checkpoint has it, and a deleted topic stays deleted. If there are no queue files, all
        queues are rebuilt.
        """
        if self.queues.dispatched_offset is not None:
            return max(self.queues.dispatched_offset, self.commit_log.start_offset)
        if self.queues.max_physical_offset < 0:
            return self.commit_log.start_offset
        if not self.clean:
            return walk_from
        known = max(self.queues.max_physical_offset, self.checkpoint.queues_physical_offset)
        return _after_record(self.commit_log, known)

    def _has_record(self, place: RecordPlace) -> bool | None:
        """Tell whether the log has the record of a queue's entry."""
        commit_log = self.commit_log
        if place.physical_offset < commit_log.start_offset:
            return None
        columns = commit_log.scan(place.physical_offset, commit_log.segments.end_offset, 1)
        if columns is None or not len(columns):
            return False
        if (int(columns.physical_offset[0]), int(columns.size[0])) != place[3:]:
            return False
        if is_lmq(place.topic):
            lmq = lmq_entries(columns, Properties(columns))
            if lmq is not None:
                found = zip(lmq.name.tolist(), lmq.queue_offset.tolist(), strict=True)
                return (place.topic.encode(), place.queue_offset) in [
                    (lmq.names[name], queue_offset) for name, queue_offset in found
                ]
        [topic] = columns.slices(columns.topic_start, columns.topic_size)
        queue = topic.decode("utf-8", "replace"), int(columns.queue_id[0])
        return (*queue, int(columns.queue_offset[0])) == place[:3]

    # --- the end of the log ---

    def _walk_from(self) -> int:
        """Find the start of the walk to the end of the log.

        After the end of the process alone that is the start of the last step of dispatch: everything before it is
        complete. It is never before the place that the checkpoint vouches for. Entries that are written again may be
        missing on the disk, although the checkpoint says that they are there, and a loss of power would lose them.
        """
        vouched_for = self._vouched_for()
        if self.ended is not End.KILLED:
            return vouched_for
        last = self.queues.max_physical_offset
        settled = self.queues.last_before(last - _DISPATCHED_BYTES)
        is_known = settled >= self.commit_log.start_offset
        if not is_known and not 0 <= last < self.commit_log.start_offset + _DISPATCHED_BYTES:
            return vouched_for
        return self._last_step_from(max(vouched_for, settled), last)

    def _vouched_for(self) -> int:
        """Start of the last file that may hold the end of the log, by the checkpoint."""
        commit_log, checkpoint = self.commit_log, self.checkpoint
        known = checkpoint.queues_physical_offset
        if self.clean:
            known = max(known, self.queues.max_physical_offset)
        known_ms = 0
        if not self.clean and known <= 0:
            known_ms = min(checkpoint.log_ms, checkpoint.queues_ms)
            if self.queues.dispatched_offset is not None:
                known_ms = checkpoint.log_ms
        for segment in reversed(commit_log.segments.files):
            first = commit_log.scan(segment.base, segment.end, 1)
            if first is None or not len(first) or int(first.physical_offset[0]) != segment.base:
                continue
            # Before that time, not at it: the checkpoint has the time of the last flushed record, and others of the
            # same millisecond may not have been flushed. One of six hundred simulated losses of power found such a file
            # after a hole.
            if segment.base <= known or 0 < int(first.store_ms[0]) < known_ms:
                return segment.base
        return commit_log.start_offset

    def _last_step_from(self, start: int, last: int) -> int:
        """Find the earliest possible start of the last step of dispatch, not before ``start``.

        ``last`` is the last record that a queue knows. Otherwise very many queues would each have to forget an entry
        and get it again.
        """
        commit_log, at = self.commit_log, start
        places: deque[int] = deque(maxlen=RECORDS_MAX)
        while at < last:
            columns = commit_log.scan(at, last, _RECORDS_A_STEP)
            if columns is None:
                return start
            found = columns.position + commit_log.base_of(at)
            if not np.array_equal(found, columns.physical_offset):
                return start
            places.extend(found.tolist())
            after = commit_log.after(at, columns)
            if after <= at:
                break
            at = after
        earliest = places[0] if at == last and len(places) == RECORDS_MAX else start
        assert earliest >= start
        return earliest

    def _end_of_log(self, start: int, blanks: list[int]) -> tuple[int, int]:
        """The offset after the last sound record, and that record's store time. ``blanks`` gets the places of the
        blanks on the way, which may have lost their size.
        """
        commit_log = self.commit_log
        assert start >= commit_log.start_offset
        at, last_ms = start, 0
        last: tuple[Columns, int] | None = None
        space_end = commit_log.segments.end_offset
        while at < space_end:
            self.progress(at - start, space_end - start)
            columns = commit_log.scan(at, space_end, _RECORDS_A_STEP)
            if columns is None:
                break
            sound = self._sound(columns, commit_log.base_of(at))
            if sound:
                last_ms = int(columns.store_ms[sound - 1])
            if sound < len(columns):
                return commit_log.base_of(at) + int(columns.position[sound]), last_ms
            if sound:
                last = columns, commit_log.base_of(at)
            after = commit_log.after(at, columns)
            if columns.stop not in (Stop.FULL, Stop.BLANK):
                at_file_end = after == commit_log.base_of(at) + commit_log.segments.file_size_bytes
                if not at_file_end:
                    return self._before_unfinished(after, last), last_ms
            assert after > at, "each step of the walk goes on"
            if columns.stop is Stop.BLANK and not self.clean:
                blanks.append(commit_log.base_of(at) + columns.end)
            at = after
        return min(at, space_end), last_ms

    def _before_unfinished(self, end: int, last: tuple[Columns, int] | None) -> int:
        """The end of the log without a last record whose writing was interrupted."""
        if self.clean or last is None or not last[0].breaks_off:
            return end
        return last[1] + int(last[0].position[-1])

    def _sound(self, columns: Columns, base: int) -> int:
        """Count the records, from the first, that are part of the log."""
        good = columns.physical_offset == columns.position + base
        if self.check_crc:
            whole = columns.body_crc_holds()
            if not whole.all():
                doubtful = self._doubtful(columns)
                for at in np.flatnonzero(~whole & ~doubtful & good).tolist():
                    _report_body(columns, base, at)
                good &= whole | ~doubtful
        if not self.clean:
            good &= ~(_torn(columns) & self._doubtful(columns))
        return len(columns) if good.all() else int(np.argmin(good))

    def _doubtful(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Mask of the records that a loss of power may have left incomplete."""
        if self.clean:
            return np.zeros(len(columns), np.bool_)
        return columns.store_ms >= self.checkpoint.log_ms

    def _cut_log(self, end: int) -> None:
        sound = list(islice(self._sound_behind(end), 2))
        for behind in sound:  # a record at the end itself only looks sound: its last bytes are missing
            if behind.physical_offset > end and self._was_on_disk(behind):
                raise CorruptStore(
                    f"the CommitLog is damaged from {end} to {behind.physical_offset}, and sound "
                    "records follow; nothing was changed: `firearrow store verify` lists the "
                    "damage, `firearrow store repair` repairs it"
                )
        if sound:
            self._keep_aside(end)
        self.commit_log.segments.cut_durably(end)

    def _mend_blank(self, physical_offset: int) -> None:
        """Write the size of a blank again if a loss of power has left only its magic. The logs of a master and its
        slaves are the same to the byte.
        """
        segment = self.commit_log.segments.find(physical_offset)
        assert segment is not None, "the walk came by it"
        start = physical_offset - segment.base
        blank = encode_blank(self.commit_log.segments.file_size_bytes - start)
        if segment.map[start : start + BLANK_BYTES] != blank:
            segment.map[start : start + BLANK_BYTES] = blank

    def _was_on_disk(self, record: Sound) -> bool:
        known = self.checkpoint
        return self.clean or record.store_ms < known.log_ms or record.physical_offset <= known.queues_physical_offset

    def _sound_behind(self, end: int) -> Iterator[Sound]:
        """The sound records after the end whose place and body CRC are right."""
        for segment, start, data_end in self.commit_log.segments.data(end):
            mapped, size, base = segment.map, segment.size_bytes, segment.base
            before = data_end - 7  # its magic is among the data, its size may begin before them
            at = find_record(mapped, max(start - 4, 0), size, base, before)
            while at is not None:
                columns = scan(mapped, at, size, 1)
                if columns.body_crc_holds().all():
                    yield Sound(base + at, int(columns.store_ms[0]))
                at = find_record(mapped, at + 1, size, base, before)

    def _keep_aside(self, end: int) -> None:
        """Copy the bytes that will be cut, with sound records in them, to the quarantine.

        The copies and their names are on the disk before anything is cut.
        """
        for segment, start, data_end in self.commit_log.segments.data(end):
            path = free_path(self.quarantine / f"commitlog-{segment.base + start:020d}")
            assert segment.base + start >= end, "records of the log stay"
            pieces = range(start, data_end, _COPY_BYTES)
            self.fs.write_file(path, (segment.map[at : min(at + _COPY_BYTES, data_end)] for at in pieces))
            self.fs.sync_directory(self.quarantine)
            self.fs.sync_directory(self.quarantine.parent)
            log.warning(
                "CommitLog ends where a record is torn: the bytes after it are not known to have been "
                "on the disk, and are kept",
                extra={"end_physical_offset": end, "path": path},
            )


def _torn(columns: Columns) -> npt.NDArray[np.bool_]:
    """Mask of the records that have lost a sector outside their body, where no CRC would show it.

    A sector that never reached the disk reads as zeros. Heads, topics and properties never have as many zeros in a row,
    up to the border of a sector.
    """
    torn = np.zeros(len(columns), np.bool_)
    if not len(columns):
        return torn
    first = int(columns.position[0]) // SECTOR_BYTES
    last = min(-(-columns.end // SECTOR_BYTES), len(columns.buffer) // SECTOR_BYTES)
    if last <= first:
        return torn
    data = np.frombuffer(columns.buffer, np.uint8, (last - first) * SECTOR_BYTES, first * SECTOR_BYTES)
    lost = np.flatnonzero(~data.reshape(-1, SECTOR_BYTES).any(axis=1))
    for start in ((lost + first) * SECTOR_BYTES).tolist():
        at = int(np.searchsorted(columns.position, start, side="right")) - 1
        if at < 0:
            continue
        # A record without properties ends in zeros: their length, which its size confirms.
        zeros = _LENGTH_BYTES if not columns.properties_size[at] else 0
        end = min(start + SECTOR_BYTES, int(columns.position[at] + columns.size[at]) - zeros)
        body = int(columns.body_start[at])
        inside_body = body <= start and end <= body + int(columns.body_size[at])
        torn[at] |= start < end and not inside_body
    return torn


def _report_body(columns: Columns, base: int, at: int) -> None:
    topic = columns.slices(columns.topic_start[at : at + 1], columns.topic_size[at : at + 1])[0]
    log.error(
        "body of a record is damaged",
        extra={
            "physical_offset": base + int(columns.position[at]),
            "topic": topic.decode("utf-8", "replace"),
            "queue_id": int(columns.queue_id[at]),
            "queue_offset": int(columns.queue_offset[at]),
        },
    )


def _after_record(commit_log: CommitLog, physical_offset: int) -> int:
    """Offset after a record; the start of the log if there is no such record."""
    segment = commit_log.segments.find(physical_offset)
    if segment is None:
        return commit_log.start_offset
    start = physical_offset - segment.base
    return physical_offset + int.from_bytes(segment.map[start : start + 4], "big")


# --- Progress of a long start, as log lines ---


_INTERVAL_SECONDS: Final = 2.0


class StartProgress:
    """Called with the number of finished bytes and of all bytes; logs now and then.

    ``what`` is the work, as in "checking the CommitLog".
    """

    def __init__(self, what: str, monotonic: Callable[[], float]) -> None:
        self._what = what
        self._monotonic = monotonic
        self._started = self._said = monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Log the share and, by the average pace, the remaining time; at most every 2 s."""
        now = self._monotonic()
        if now - self._said < _INTERVAL_SECONDS or not 0 < done <= total:
            return
        self._said = now
        left_seconds = (now - self._started) * (total - done) / done
        log.info(
            "start goes on",
            extra={
                "work": self._what,
                "done_bytes": done,
                "total_bytes": total,
                "done_percent": 100 * done // total,
                "left_seconds": round(left_seconds),
            },
        )
