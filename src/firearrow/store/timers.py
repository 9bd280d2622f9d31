"""Messages with a delivery time: the timer log, the wheel, and the progress of both.

Messages with a delivery time are in ``rmq_sys_wheel_timer``. For each, in the order of that queue, a unit is appended
to the timer log and linked into the slot of its time (`TimerStore.place`). When a time is over, its units are read
(`TimerStore.chain`), their messages are put, and `read_ms` moves on. ``timercheck`` holds the progress of all this:
`TimerProgress`. It is written when the CommitLog, with all delivered messages, the timer log and the wheel are on the
disk, in this order. So its statements are true after any loss of power.

The CommitLog is the truth, the timer log follows from its queue, the wheel from the timer log. So a start reads the
timer log and cuts it at a unit that is not sound, or whose record the CommitLog no longer has. It makes the wheel again
from the remaining units. It continues after the message of the last unit: messages without a remaining unit are placed
again.

No unit is in a slot that was read: a late message is placed in the next slot to be read. Java: TimerMessageStore
delivers it separately, without a unit, and again at the next start.

Source: RocketMQ's ``TimerMessageStore``, ``TimerCheckpoint``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.errors import MessageError
from firearrow.javanumbers import INT_MAX, LONG_MAX
from firearrow.logs import Log
from firearrow.message.model import MessageView
from firearrow.message.names import TIMER_TOPIC
from firearrow.message.properties import TIMER_DELETE_UNIQUE_KEY, TIMER_OUT_MS
from firearrow.message.record import decode_record
from firearrow.store.fs import OS_FILES, FileSystem, ensure_directory
from firearrow.store.timerfiles import CHECK, CHECK_BYTES, DELETE, NORMAL, ROLL, SLOT, WHEEL_SLOTS
from firearrow.store.timerunits import UNIT_BYTES, TimerUnit, TimerUnits
from firearrow.store.timerwheel import TimerWheel, WheelSlot

log: Final = Log(__name__)

SPARED_MAX: Final = 500_000  # some 30 MB; reached only if none go on the wheel
SPARED_STEP: Final = 10_000  # a millisecond
LATE_LOOKS_MAX: Final = 5000  # a start takes 0.1 s for them
_PIECE_UNITS: Final = 1 << 16
_DELAY_MS_MAX: Final = INT_MAX
_NONE_LATE: Final = LONG_MAX


_WAITING: Final = np.dtype([("position", "i8"), ("previous", "i8"), ("due_ms", "i8"), ("magic", "i4"), ("hash", "i4")])


class TimerProgress(NamedTuple):
    """Progress of a timer.

    All times before ``read_ms`` are delivered; all messages before ``queue_offset`` are on the
    wheel, by units before the position ``end``.
    """

    read_ms: int
    queue_offset: int
    end: int


class TimedQueue(NamedTuple):
    """Facts about the store for a start: the ends of the log and of the timer's queue, and the record at a physical
    offset.
    """

    log_end: int
    first_offset: int
    end_offset: int
    record_at: Callable[[int], bytes | None]

    def message(self, physical_offset: int, size: int) -> MessageView | None:
        """The message of a unit; None if the log has none there, or another one."""
        record = self.record_at(physical_offset)
        if record is None or len(record) != size:
            return None
        return timed_message(record)


def timed_message(record: bytes) -> MessageView | None:
    """Decode a record if it is a message with a delivery time, otherwise None."""
    try:
        view = decode_record(record)
    except MessageError:
        return None
    return view if view.topic == TIMER_TOPIC and due_ms_of(view) is not None else None


def due_ms_of(view: MessageView) -> int | None:
    """Delivery time of a message; None if it has none."""
    text = view.properties.get(TIMER_OUT_MS, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


class ToldProgress(NamedTuple):
    """Report of a broker by its ``timercheck``: it has delivered all messages due before a time and before the queue
    offset. With the data version of that.
    """

    read_ms: int
    queue_offset: int
    version: tuple[int, int, int]


def told_progress(content: bytes) -> ToldProgress | None:
    """Read a broker's report on its timer; None if it is too short."""
    if len(content) < CHECK.size:
        return None
    read_ms, _, _, queue_offset, state, time_ms, counter = CHECK.unpack_from(content)
    return ToldProgress(read_ms, queue_offset, (state, time_ms, counter))


class TimerStore:
    """The timer's files below ``root``; they are made when the first message comes.

    Only `progress` is thread-safe: a thread may read it at any time.
    """

    def __init__(
        self,
        root: Path,
        file_size_bytes: int,
        precision_ms: int,
        fs: FileSystem = OS_FILES,
        wheel_slots: int = WHEEL_SLOTS,
    ) -> None:
        self.root = root
        self.precision_ms = precision_ms
        self._fs = fs
        self.units: Final = TimerUnits(root / "timerlog", file_size_bytes, fs)
        self.wheel: Final = TimerWheel(root / "timerwheel", precision_ms, fs, wheel_slots)
        self.check_path: Final = root / "config" / "timercheck"
        self.progress: TimerProgress = TimerProgress(0, 0, 0)
        self.saved: TimerProgress = self.progress
        """Present progress, and progress at the last flush."""
        self.version: tuple[int, int, int] = (0, 0, 0)
        self.placed_again_before: int = 0
        """Queue offset before which messages may have been delivered, if their time is over."""
        self.pending: dict[int, int] = {}
        """Number of waiting units, by the hash of their topic; a unit that deletes counts as -1."""
        self.spared: set[int] = set()  # queue offsets
        self.late_slot_ms: int = 0
        """The last slot that may have messages whose own slot was read before they came."""
        self._late_offset = _NONE_LATE  # the queue offset of the first of them
        self._newest_ms = -1  # nothing waits for a later time
        self._oldest = 0  # no unit before this position waits

    # --- start and end ---

    def open(self, now_ms: int, queue: TimedQueue) -> None:
        """Read the files, and make them agree with the log.

        Raises CorruptStore if a file of the timer log is missing in the middle, and OSError.
        """
        check, told_offset = self._load_check()
        self.pending.clear()
        self.spared.clear()
        self._newest_ms = -1
        self.units.load()
        self.wheel.open()
        found = _SoundUnits(self.units, queue, check, self.precision_ms)
        rows, read_ms = found.rows(), self.slot_of(now_ms)
        times = (rows["due_ms"] // self.precision_ms).astype(np.int64)
        queue_offset = found.next_queue_offset()
        if check is not None and (len(rows) or queue_offset < queue.end_offset):
            read_ms = self.slot_of(check.read_ms)
        elif len(rows):
            read_ms = int(times.min()) * self.precision_ms
        if len(rows):
            # Only damage makes units wait for longer than the wheel's span.
            newest_ms = int(times.max()) * self.precision_ms
            read_ms = max(read_ms, newest_ms - self.wheel.span_ms + self.precision_ms)
            kept = times >= read_ms // self.precision_ms
            rows, times = rows[kept], times[kept]
            self._newest_ms = newest_ms
        assert read_ms % self.precision_ms == 0, "a slot begins then"
        self._cut(found.end)
        self._note_late(now_ms, queue, rows["position"][times <= now_ms // self.precision_ms])
        self._make_wheel(read_ms, rows, times)
        self.progress = self.saved = TimerProgress(read_ms, queue_offset, found.end)
        vouched = 0
        if check is not None:
            self.placed_again_before = min(max(check.queue_offset, told_offset), queue.end_offset)
            vouched = min(check.end, found.end)
        if self.progress != check and self.wheel.is_there:
            self.flush(vouched, self.progress)
            self.save(self.progress)
        self._oldest = int(rows["position"].min()) if len(rows) else found.end
        if len(rows):
            log.info("timer goes on", extra={"count": len(rows), "queue_offset": queue_offset})

    def go_on_from(self, told: ToldProgress, now_ms: int, queue: TimedQueue, unhandled_offset: int) -> None:
        """Take over from another broker with the same log: messages that it had and has delivered are not delivered
        here.

        ``unhandled_offset`` is the physical offset of the first record that it did not have. From there on all messages
        must be placed again, even if their time is over. No step of a flush may be in progress. Raises as ``open``; the
        call may be repeated then.
        """
        position = self._position_of(unhandled_offset)
        queue_offset = min(self.progress.queue_offset, told.queue_offset)
        progress = TimerProgress(self.slot_of(told.read_ms), queue_offset, position)
        self.flush(min(self.saved.end, position), progress)
        self._cut(position)  # first: with a later read time, these units would count as delivered
        self.version = told.version
        self._write_check(progress)
        self.close()
        self.open(now_ms, queue)
        self.placed_again_before = min(told.queue_offset, queue.end_offset)

    def lead(self, changes: int) -> None:
        """Count this progress as ``changes`` changes later than that of the former master."""
        state, time_ms, counter = self.version
        self.version = state, time_ms, counter + changes

    def close(self) -> None:
        """Release the files."""
        self.units.close()
        self.wheel.close()

    def _load_check(self) -> tuple[TimerProgress | None, int]:
        """Read the file: the broker's progress, and the queue offset for other brokers."""
        try:
            data = self.check_path.read_bytes()
        except FileNotFoundError:
            return None, 0
        if len(data) < CHECK.size:
            return None, 0
        read_ms, end, queue_offset, told_offset, *version = CHECK.unpack_from(data)
        self.version = (version[0], version[1], version[2])
        return (TimerProgress(read_ms, queue_offset, end) if read_ms > 0 else None), told_offset

    def _position_of(self, physical_offset: int) -> int:
        """Position of the first unit of a record at or after a physical offset."""
        for position, rows in self.units.pieces(self.units.start, _PIECE_UNITS):
            rows = rows[: max(self.units.end - position, 0) // UNIT_BYTES]
            is_behind = (rows["size"] == UNIT_BYTES) & (rows["physical_offset"] >= physical_offset)
            if is_behind.any():
                return position + int(np.argmax(is_behind)) * UNIT_BYTES
        return self.units.end

    def _note_late(self, now_ms: int, queue: TimedQueue, positions: npt.NDArray[Any]) -> None:
        """Note the units of slots up to now that are late: in a later slot than that of their time.

        No file marks them; only their messages show it. If there are very many, not all are read: units after
        `LATE_LOOKS_MAX` may be late. Java places all again that may be late. A message that comes a second time may
        then undo a change (a pop's acknowledgement).
        """
        self.late_slot_ms, self._late_offset = self.slot_of(now_ms), _NONE_LATE
        next_offset = queue.first_offset
        for looks, position in enumerate(np.sort(positions).tolist()):
            unit = self.units.unit(position)
            assert unit is not None, "it was found there"
            message = queue.message(unit.physical_offset, unit.record_size)
            due_ms = None if message is None else due_ms_of(message)
            slot_ms = self.slot_of(unit.written_ms + unit.delay_ms)
            if message is not None:
                next_offset = message.queue_offset
            if due_ms is None or due_ms < slot_ms or looks == LATE_LOOKS_MAX:
                self._late_offset = next_offset
                break
            next_offset += 1

    def _cut(self, end: int) -> None:
        if end < self.units.end:
            log.warning("timer log is cut", extra={"path": self.root, "position": end})
        self.units.cut(end)

    def _make_wheel(self, read_ms: int, rows: npt.NDArray[Any], times: npt.NDArray[np.int64]) -> None:
        """Make wheel, links and counts from the waiting units, in the order of positions."""
        if not len(rows) and not self.wheel.is_there:
            return
        self.wheel.make()
        order = np.argsort(times, kind="stable")
        rows, times = rows[order], times[order]
        begins = np.flatnonzero(np.diff(times, prepend=-1))
        counts = np.where(rows["magic"] & DELETE, -1, 1)
        slots = np.zeros(len(begins), SLOT)
        if len(rows):
            slots["time"] = times[begins]
            slots["first"] = rows["position"][begins]
            slots["last"] = rows["position"][np.append(begins[1:], len(rows)) - 1]
            slots["number"] = np.add.reduceat(counts, begins)
        assert int(slots["number"].sum(dtype=np.int64)) == int(counts.sum()), "each unit is in one slot"
        before = np.roll(rows["position"], 1)
        before[begins] = -1
        for row in np.flatnonzero(rows["previous"] != before).tolist():
            self.units.link(int(rows["position"][row]), int(before[row]))
        self.wheel.replace(read_ms, times[begins], slots)
        for topic_hash, count in zip(rows["hash"].tolist(), counts.tolist(), strict=True):
            self.count(topic_hash, count)

    # --- waiting units ---

    def slot_of(self, time_ms: int) -> int:
        """Time of the slot that contains a time."""
        return time_ms - time_ms % self.precision_ms

    def count(self, topic_hash: int, number: int) -> None:
        """Count units of a topic that wait from now on."""
        left = self.pending.get(topic_hash, 0) + number
        if left:
            self.pending[topic_hash] = left
        else:
            self.pending.pop(topic_hash, None)

    @property
    def has_units(self) -> bool:
        """Tell whether an unread unit is on the wheel. ``pending`` does not tell: a message and others that delete it
        may add up to none.
        """
        return self._newest_ms >= self.progress.read_ms

    @property
    def last_ms(self) -> int:
        """Last time that has a slot on the wheel, even for a start after a loss of power."""
        return self.saved.read_ms + self.wheel.span_ms - self.precision_ms

    def place(self, unit: TimerUnit, queue_offset: int) -> None:
        """Put the message at a queue offset on the wheel, at ``written_ms + delay_ms`` or at the next time that is
        read. The method sets `previous` of the unit.

        Raises OSError without room; then nothing has changed.
        """
        read_ms = self.progress.read_ms
        due_ms = unit.written_ms + unit.delay_ms
        slot_ms = max(self.slot_of(due_ms), read_ms)
        written_ms = unit.written_ms
        if abs(slot_ms - written_ms) > _DELAY_MS_MAX:
            written_ms = slot_ms
        self.make_files()
        known = self.wheel.get(slot_ms)
        position = self.units.append(
            unit._replace(
                previous=-1 if known is None else known.last, written_ms=written_ms, delay_ms=slot_ms - written_ms
            )
        )
        number = -1 if unit.magic & DELETE else 1
        if known is None:
            self.wheel.put(slot_ms, WheelSlot(position, position, number))
        else:
            self.wheel.put(slot_ms, WheelSlot(known.first, position, known.number + number))
        self.count(unit.topic_hash, number)
        if due_ms < read_ms:
            if self.late_slot_ms < read_ms:
                self._late_offset = queue_offset
            self._late_offset = min(self._late_offset, queue_offset)
            self.late_slot_ms = max(self.late_slot_ms, read_ms)
        self._newest_ms = max(self._newest_ms, slot_ms)
        self.progress = TimerProgress(read_ms, queue_offset + 1, self.units.end)

    def spare(self, queue_offsets: Iterable[int]) -> None:
        """Keep messages off the wheel that are not on it yet: nobody needs them any more.

        A start forgets this. So among messages that are spared together, each must be useless to a reader that did not
        get the ones before it.
        """
        if len(self.spared) < SPARED_MAX:
            self.spared.update(queue_offsets)

    def pass_spared(self) -> int:
        """Pass over consecutive spared messages; return their number."""
        first = at = self.progress.queue_offset
        spared = self.spared
        while at in spared and at - first < SPARED_STEP:
            spared.remove(at)
            at += 1
        if at > first:
            self.pass_over(at - 1)
        return at - first

    def pass_over(self, queue_offset: int) -> None:
        """Leave a message of the queue out: it waits for nothing."""
        assert queue_offset >= self.progress.queue_offset, "progress never goes back"
        self.progress = self.progress._replace(queue_offset=queue_offset + 1)

    def chain(self, slot_ms: int, step: int) -> Iterator[array[int]]:
        """The positions of the units of a time, newest first, ``step`` at a time."""
        slot = self.wheel.get(slot_ms)
        if slot is not None:
            yield from self.units.chain(slot.last, slot.first, step)

    def delivered_before_ms(self, now_ms: int) -> int:
        """Time before which nothing is left on the wheel."""
        read_ms = self.progress.read_ms
        return max(read_ms, self.wheel.next_used(read_ms, self.slot_of(now_ms))[0])

    def late_ms(self, now_ms: int) -> int:
        """Lateness (ms) of the first message that is due and not delivered, 0 if there is none."""
        at_ms, is_due = self.wheel.next_used(self.progress.read_ms, self.slot_of(now_ms))
        return max(0, now_ms - at_ms) if is_due and at_ms else 0

    def was_read(self, before_ms: int) -> None:
        """Note that all times before one are delivered: the delivered messages are in the CommitLog."""
        assert before_ms >= self.progress.read_ms, "progress never goes back"
        self.follow(before_ms)

    def follow(self, before_ms: int) -> None:
        """Take over the progress of the master's timer, which goes back when the master is killed: it delivers some
        messages again then.
        """
        assert before_ms % self.precision_ms == 0, "a slot begins then"
        self.progress = self.progress._replace(read_ms=before_ms)

    def needed_offset(self) -> int | None:
        """Physical offset of the oldest record of a unit that waits, or would wait after a loss of power; None if there
        is none.
        """
        for position, rows in self.units.pieces(self._oldest, _PIECE_UNITS):
            if position >= self.units.end:
                break
            rows = rows[: (self.units.end - position) // UNIT_BYTES]
            due = rows["written_ms"] + rows["delay_ms"]
            waiting = np.flatnonzero((rows["size"] == UNIT_BYTES) & (due >= self.saved.read_ms))
            if len(waiting):
                self._oldest = position + int(waiting[0]) * UNIT_BYTES
                return int(rows["physical_offset"][waiting[0]])
            self._oldest = position + len(rows) * UNIT_BYTES
        return None

    def drop_files(self) -> None:
        """Remove the files of the timer log before the oldest unit that `needed_offset` found."""
        self.units.drop_before(self._oldest)

    # --- to the disk ---

    def flush(self, start: int, progress: TimerProgress) -> None:
        """Bring the timer log from a position on, and the wheel, to the disk; in any thread."""
        self.units.flush(start, progress.end)
        if self.wheel.is_there:
            self._fs.sync_file(self.wheel.path)

    def save(self, progress: TimerProgress) -> None:
        """Write ``timercheck``. Its statements must be true on the disk already; in any thread."""
        state, time_ms, counter = self.version
        self.version = state, time_ms, counter + 1
        self._write_check(progress)
        self.saved = progress

    def _write_check(self, progress: TimerProgress) -> None:
        ensure_directory(self._fs, self.check_path.parent)
        self._fs.replace_head(self.check_path, self.content(progress), CHECK_BYTES)
        self._fs.sync_directory(self.check_path.parent)

    def content(self, progress: TimerProgress) -> bytes:
        """Beginning of ``timercheck`` for a progress."""
        told = self.told_offset(progress)
        return CHECK.pack(progress.read_ms, progress.end, progress.queue_offset, told, *self.version)

    def told_offset(self, progress: TimerProgress) -> int:
        """Queue offset before which every message is on the wheel, or delivered if its time is over.

        Other brokers are told this value: late messages wait here in a later slot than theirs.
        """
        has_late = self.late_slot_ms >= progress.read_ms
        return min(progress.queue_offset, self._late_offset if has_late else progress.queue_offset)

    def make_files(self) -> None:
        """Make the files if they are missing; OSError if there is no room for them."""
        if not self.wheel.is_there:
            self.wheel.make()
            self._fs.sync_directory(self.root)
            self.save(self.progress)


class _SoundUnits:
    """The sound units of a timer log that was just loaded, up to ``end``.

    Units that `timercheck` does not vouch for are only taken with their record. A loss of power may have left the begin
    of a unit, or one whose record the CommitLog has lost.
    """

    def __init__(self, units: TimerUnits, queue: TimedQueue, check: TimerProgress | None, precision_ms: int) -> None:
        self._queue = queue
        self._precision_ms = precision_ms
        self._check = check
        self._vouched = 0 if check is None else check.end
        self._rows = [np.zeros(0, _WAITING)]
        self._last: tuple[int, int] | None = None
        self.end = units.start
        for position, piece in units.pieces(units.start, _PIECE_UNITS):
            if position != self.end and not units.ends_at(self.end):
                break
            count = self._sound(position, piece)
            if not count:
                break
            self._take(position, piece[:count])
            self.end = position + count * UNIT_BYTES

    def rows(self) -> npt.NDArray[Any]:
        """The waiting units, in the order of their positions."""
        return np.concatenate(self._rows)

    def next_queue_offset(self) -> int:
        """Offset of the next message in the timer's queue."""
        queue, check = self._queue, self._check
        message = None if self._last is None else queue.message(*self._last)
        behind_last = queue.first_offset if message is None else message.queue_offset + 1
        if check is None or self.end < check.end:
            found = behind_last
        elif self.end == check.end:
            found = check.queue_offset
        else:
            found = max(check.queue_offset, behind_last)
        return max(queue.first_offset, min(found, queue.end_offset))

    def _sound(self, position: int, piece: npt.NDArray[Any]) -> int:
        """Count the sound units before the first that is not sound."""
        offsets = piece["physical_offset"]
        sound = (piece["size"] == UNIT_BYTES) & ((piece["magic"] & ~(ROLL | DELETE)) == NORMAL)
        sound &= (offsets >= 0) & (offsets + piece["record_size"] <= self._queue.log_end)
        count = len(piece) if sound.all() else int(np.argmin(sound))
        for row in range(max(0, (self._vouched - position) // UNIT_BYTES), count):
            if not self._has_record(piece[row]):
                return row
        return count

    def _has_record(self, unit: Any) -> bool:
        message = self._queue.message(int(unit["physical_offset"]), int(unit["record_size"]))
        if message is None:
            return False
        due_ms = due_ms_of(message)
        assert due_ms is not None
        slot_ms = int(unit["written_ms"]) + int(unit["delay_ms"])
        deletes = TIMER_DELETE_UNIQUE_KEY in message.properties
        rolls = slot_ms // self._precision_ms < due_ms // self._precision_ms
        return deletes == bool(unit["magic"] & DELETE) and rolls == bool(unit["magic"] & ROLL)

    def _take(self, position: int, piece: npt.NDArray[Any]) -> None:
        self._last = int(piece["physical_offset"][-1]), int(piece["record_size"][-1])
        due_ms = piece["written_ms"] + piece["delay_ms"]
        read_ms = 0 if self._check is None else self._check.read_ms
        waiting = np.flatnonzero(due_ms >= read_ms)
        rows = np.zeros(len(waiting), _WAITING)
        rows["position"] = position + waiting * UNIT_BYTES
        rows["previous"] = piece["previous"][waiting]
        rows["magic"] = piece["magic"][waiting]
        rows["due_ms"] = due_ms[waiting]
        rows["hash"] = piece["topic_hash"][waiting]
        self._rows.append(rows)
