"""The timer's files against a plain list, over restarts, kills and losses of power."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.message.hosts import Host, pack_host
from firearrow.message.names import java_hash
from firearrow.message.properties import encode
from firearrow.message.record import encode_record
from firearrow.store import timers
from firearrow.store.fs import OS_FILES, FileSystem
from firearrow.store.timerfiles import CHECK, DELETE, NORMAL, ROLL, SLOT, UNIT
from firearrow.store.timers import TimedQueue, TimerStore, ToldProgress
from firearrow.store.timerunits import UNIT_BYTES, TimerUnit, TimerUnits
from firearrow.testing.fs import CrashableFileSystem, PowerLoss

START_MS = 1_795_000_000_000
SLOTS = 64
WINDOW_MS = 20_000
FILE_BYTES = 7 * UNIT_BYTES + 30
HOST = pack_host(Host("127.0.0.1", 1))
NOBODY = -1


class Stored(NamedTuple):
    """Of the log: a message that waits, or one that was delivered; ``deletes`` another."""

    number: int
    due_ms: int
    deletes: int = NOBODY
    delivered: bool = False


class Log:
    """A log of messages that wait and messages that were delivered; ``synced`` are on the disk."""

    def __init__(self) -> None:
        self.stored: list[Stored] = []
        self.synced = 0

    def add(self, stored: Stored) -> None:
        self.stored.append(stored)

    @property
    def waiting(self) -> list[tuple[int, Stored]]:
        """The timer's queue: where in the log a message is."""
        return [(at, one) for at, one in enumerate(self.stored) if not one.delivered]

    def record_at(self, physical_offset: int) -> bytes | None:
        at, rest = divmod(physical_offset, 1000)
        if rest or at >= len(self.stored) or self.stored[at].delivered:
            return None
        one = self.stored[at]
        found = {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": str(one.due_ms)}
        if one.deletes != NOBODY:
            found["TIMER_DEL_UNIQKEY"] = str(one.deletes)
        offset = sum(not before.delivered for before in self.stored[:at])
        return encode_record(
            "rmq_sys_wheel_timer", str(one.number).encode(), encode(found), 0, offset,
            physical_offset, 0, 0, 1, HOST, 1, HOST,
        )  # fmt: skip

    @property
    def queue(self) -> TimedQueue:
        return TimedQueue(1000 * len(self.stored), 0, len(self.waiting), self.record_at)


class Driver:
    """Does with a `TimerStore` what the broker does, against a `Log` in place of a store."""

    def __init__(self, root: Path, log: Log, now_ms: int, fs: FileSystem = OS_FILES) -> None:
        self.log = log
        self.store = TimerStore(root, FILE_BYTES, 1000, fs, SLOTS)
        self.store.open(now_ms, log.queue)

    def place(self, now_ms: int) -> None:
        slot_ms = now_ms // 1000 * 1000
        for offset, (at, one) in enumerate(self.log.waiting):
            if offset < self.store.progress.queue_offset:
                continue
            is_old = one.due_ms < self.store.progress.read_ms
            if is_old and offset < self.store.placed_again_before:
                self.store.pass_over(offset)
                continue
            delay_ms = one.due_ms - slot_ms
            magic = NORMAL | (0 if one.deletes == NOBODY else DELETE)
            if delay_ms >= WINDOW_MS:
                is_near = delay_ms - WINDOW_MS < WINDOW_MS // 3
                delay_ms, magic = WINDOW_MS // 2 if is_near else WINDOW_MS, magic | ROLL
            if slot_ms + delay_ms > self.store.last_ms:
                if self.store.last_ms <= slot_ms:
                    return
                delay_ms, magic = self.store.last_ms - slot_ms, magic | ROLL
            record = self.log.record_at(1000 * at)
            assert record is not None
            unit = TimerUnit(-1, magic, slot_ms, delay_ms, 1000 * at, len(record), java_hash("T"))
            self.store.place(unit, offset)

    def deliver(self, now_ms: int) -> None:
        """Deliver all slots that are over; nothing may be early."""
        now_ms = now_ms // 1000 * 1000
        while (read_ms := self.store.progress.read_ms) < now_ms:
            slot_ms, is_used = self.store.wheel.next_used(read_ms, now_ms)
            if is_used:
                self._deliver(slot_ms, now_ms)
                slot_ms += 1000
            self.store.was_read(slot_ms)
            if is_used:
                self.place(now_ms)  # what rolled may be due before the next slot

    def _deliver(self, slot_ms: int, now_ms: int) -> None:
        units: list[TimerUnit] = []
        for piece in self.store.chain(slot_ms, 3):
            for position in piece:
                unit = self.store.units.unit(position)
                assert unit is not None
                units.append(unit)
        found: list[tuple[int, Stored]] = []
        # Recalls that could not be placed yet count, as with `TimedMessages._read_recalls`.
        waiting = self.log.waiting[self.store.progress.queue_offset :]
        deleted = {one.deletes for _, one in waiting}
        for unit in reversed(units):
            self.store.count(unit.topic_hash, 1 if unit.magic & DELETE else -1)
            record = self.log.record_at(unit.physical_offset)
            assert record is not None, "only what the log has is on the wheel"
            assert len(record) == unit.record_size
            one = self.log.stored[unit.physical_offset // 1000]
            if unit.magic & DELETE and not unit.magic & ROLL:
                deleted.add(one.deletes)
            else:
                found.append((unit.magic, one))
        for magic, one in found:
            if magic & ROLL:
                self.log.add(one)
            elif one.number not in deleted:
                assert one.due_ms // 1000 * 1000 + 1000 <= now_ms, "not before its time"
                self.log.add(one._replace(delivered=True))

    def flush(self) -> None:
        progress, saved = self.store.progress, self.store.saved
        if progress == saved or not self.store.wheel.is_there:
            return
        self.log.synced = len(self.log.stored)
        self.store.flush(min(saved.end, progress.end), progress)
        self.store.save(progress)
        self.store.needed_offset()
        self.store.drop_files()


class Life:
    """A random life of a timer; ``crashes`` says what may happen to it besides clean restarts."""

    def __init__(self, root: Path, seed: int, crashes: tuple[str, ...], downtimes: tuple[int, ...]) -> None:
        self.downtimes = downtimes
        self.random = Random(seed)
        self.roots = root
        self.crashes = crashes
        self.now_ms = START_MS + 300
        self.log = Log()
        self.added = 0
        self.generation = 0
        self.operations = 0
        (root / "0").mkdir()
        self.fs = CrashableFileSystem(root / "0", self.before)
        self.fails_at = 1 << 60
        self.driver = Driver(self.root, self.log, self.now_ms, self.fs)
        self.add()
        self.driver.place(self.now_ms)  # before the first message a timer has no files to go by
        self.driver.flush()

    @property
    def root(self) -> Path:
        return self.roots / str(self.generation)

    def before(self, operation: str, path: Path) -> None:
        self.operations += 1
        if self.operations >= self.fails_at:
            raise PowerLoss

    def run(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self.step()
            except PowerLoss:
                self.lose_power()

    def step(self) -> None:
        step = self.random.choice(
            ("add", "add", "add", "place", "place", "time", "deliver", "flush", "restart", "crash")
        )
        if step == "add":
            for _ in range(self.random.choice((1, 1, 2, 9))):
                self.add()
        elif step == "place":
            self.driver.place(self.now_ms)
        elif step == "time":
            self.now_ms += self.random.choice((10, 300, 1000, 1700, 9000))
        elif step == "deliver":
            self.driver.place(self.now_ms)
            self.driver.deliver(self.now_ms)
        elif step == "flush":
            self.driver.flush()
        elif step == "restart":
            self.driver.flush()
            self.restart()
        elif self.crashes:
            self.crash(self.random.choice(self.crashes))

    def add(self) -> None:
        due_ms = (self.now_ms + self.random.choice((1, 500, 3000, 15_000, 25_000, 50_000))) - 1
        due_ms = due_ms // 1000 * 1000
        waiting = [one for _, one in self.log.waiting if one.deletes == NOBODY]
        if waiting and self.random.random() < 0.1:
            other = self.random.choice(waiting)
            if other.due_ms > self.now_ms:
                self.log.add(Stored(self.added, other.due_ms, other.number))
        else:
            self.log.add(Stored(self.added, due_ms))
        self.added += 1

    def crash(self, how: str) -> None:
        if how == "kill":
            self.restart()
        else:
            self.fails_at = self.operations + self.random.randrange(1, 12)

    def restart(self) -> None:
        self.driver.store.close()
        self.now_ms += self.random.choice(self.downtimes)
        self.driver = Driver(self.root, self.log, self.now_ms, self.fs)

    def lose_power(self) -> None:
        while True:
            self.driver.store.close()
            self.fails_at = 1 << 60
            left = self.random.randint(self.log.synced, len(self.log.stored))
            del self.log.stored[left:]
            self.log.synced = left
            self.generation += 1
            self.fs.crash(self.root, self.random.randrange(1 << 30))
            self.fs = CrashableFileSystem(self.root, self.before)
            if self.random.random() < 0.3:
                self.fails_at = self.operations + self.random.randrange(1, 8)
            try:
                self.driver = Driver(self.root, self.log, self.now_ms, self.fs)
            except PowerLoss:
                continue
            return

    def finish(self) -> None:
        """Let the time of all messages come."""
        self.fails_at = 1 << 60
        for _ in range(100):
            self.now_ms += 3000
            self.driver.place(self.now_ms)
            self.driver.deliver(self.now_ms)
            self.driver.flush()
        assert self.driver.store.pending == {}
        assert self.driver.store.progress.queue_offset == len(self.log.waiting)
        self.driver.flush()
        self.driver.store.close()

    @property
    def delivered(self) -> list[Stored]:
        return [one for one in self.log.stored if one.delivered]


def lived(
    seed: int, crashes: tuple[str, ...], steps: int = 60, downtimes: tuple[int, ...] = (0, 50, 5000, 200_000)
) -> Life:
    with tempfile.TemporaryDirectory() as root:
        life = Life(Path(root), seed, crashes, downtimes)
        life.run(steps)
        life.finish()
        return life


seeds = st.integers(0, (1 << 32) - 1)
few = settings(max_examples=20, deadline=None)


@few
@given(seeds)
def test_each_message_once_unless_deleted_over_restarts(seed: int) -> None:
    life = lived(seed, (), downtimes=(0, 50, 5000))
    deleted = {one.deletes for one in life.log.stored} - {NOBODY}
    stored = {one.number: one for one in life.log.stored if one.deletes == NOBODY}
    expected = [one.number for one in stored.values() if one.number not in deleted]
    numbers = [one.number for one in life.delivered]
    assert sorted(numbers) == sorted(expected)


@few
@given(seeds)
def test_messages_are_delivered_in_the_order_of_their_times(seed: int) -> None:
    """And those of one time in the order in which they came, but those that rolled."""
    life = lived(seed, (), downtimes=(0,))
    keys = [(one.due_ms, one.number) for one in life.delivered]
    copies = Counter(one.number for _, one in life.log.waiting)
    rolled = {number for number, count in copies.items() if count > 1}
    assert [due_ms for due_ms, _ in keys] == sorted(due_ms for due_ms, _ in keys)
    kept = [key for key in keys if key[1] not in rolled]
    assert kept == sorted(kept)


@few
@given(seeds)
def test_no_message_is_lost_by_kills(seed: int) -> None:
    """The steps of this life are whole: so nothing comes twice either."""
    life = lived(seed, ("kill",))
    deleted = {one.deletes for one in life.log.stored} - {NOBODY}
    numbers = Counter(one.number for one in life.delivered)
    for one in life.log.stored:
        if one.deletes == NOBODY and one.number not in deleted:
            assert numbers[one.number] >= 1


@few
@given(seeds)
def test_no_message_is_lost_by_losses_of_power(seed: int) -> None:
    life = lived(seed, ("kill", "power"), steps=80)
    deleted = {one.deletes for one in life.log.stored} - {NOBODY}
    numbers = {one.number for one in life.delivered}
    for one in life.log.stored:
        if one.deletes == NOBODY and one.number not in deleted:
            assert one.number in numbers


def placed(root: Path, dues: list[int], now_ms: int = START_MS) -> Driver:
    """A timer with one message for each time, all on the wheel and on the disk."""
    log = Log()
    driver = Driver(root, log, now_ms)
    for number, due_ms in enumerate(dues):
        log.add(Stored(number, due_ms))
    driver.place(now_ms)
    driver.flush()
    return driver


def test_a_cut_log_cuts_the_timer_log(tmp_path: Path) -> None:
    """What comes then takes the place of what is gone, and is delivered."""
    driver = placed(tmp_path, [START_MS + 5000 + number * 1000 for number in range(5)])
    driver.store.close()
    log = driver.log
    del log.stored[3:]
    again = Driver(tmp_path, log, START_MS)
    assert again.store.progress.queue_offset == 3
    assert sum(again.store.pending.values()) == 3
    log.add(Stored(9, START_MS + 6000))
    again.place(START_MS)
    again.deliver(START_MS + 60_000)
    numbers = [one.number for one in log.stored if one.delivered]
    assert numbers == [0, 1, 9, 2]


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "config/timercheck", "all"])
def test_lost_files_are_made_again(tmp_path: Path, lost: str) -> None:
    driver = placed(tmp_path, [START_MS + 5000 + number * 1000 for number in range(20)])
    driver.store.close()
    names = ["timerwheel", "timerlog", "config/timercheck"] if lost == "all" else [lost]
    for name in names:
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = Driver(tmp_path, driver.log, START_MS + 1000)
    again.place(START_MS + 1000)
    again.deliver(START_MS + 60_000)
    numbers = [one.number for one in driver.log.stored if one.delivered]
    assert numbers == list(range(20))


def test_files_are_as_rocketmq_writes_them(tmp_path: Path) -> None:
    driver = placed(tmp_path, [START_MS + 5000, START_MS + 5000, START_MS + 9000])
    units = np.fromfile(tmp_path / "timerlog" / f"{0:020d}", UNIT, 3)
    size = len(driver.log.record_at(0) or b"")
    shared = {"size": 52, "magic": 1, "written_ms": START_MS, "record_size": size}
    for name, value in shared.items():
        assert units[name].tolist() == [value] * 3
    assert units["previous"].tolist() == [-1, 0, -1]
    assert units["delay_ms"].tolist() == [5000, 5000, 9000]
    assert units["physical_offset"].tolist() == [0, 1000, 2000]
    assert units["topic_hash"].tolist() == [java_hash("T")] * 3
    slots = np.fromfile(tmp_path / "timerwheel", SLOT)
    assert len(slots) == SLOTS
    used = slots[slots["time"] > 0]
    number = START_MS // 1000
    assert sorted(map(tuple, used.tolist())) == [(number + 5, 0, 52, 2, 0), (number + 9, 104, 104, 1, 0)]
    check = (tmp_path / "config" / "timercheck").read_bytes()
    assert len(check) == 4096
    assert CHECK.unpack_from(check)[:4] == (START_MS, 156, 3, 3)


def test_a_file_ends_with_a_blank(tmp_path: Path) -> None:
    driver = placed(tmp_path, [START_MS + 5000] * 8)
    first = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert len(first) == FILE_BYTES
    blank = first[7 * UNIT_BYTES :]
    assert int.from_bytes(blank[:4], "big") == len(blank)
    assert blank[12:16] == b"\xcb\xd4\x31\x94"
    assert driver.store.units.end == FILE_BYTES + UNIT_BYTES


def told(read_ms: int, queue_offset: int) -> ToldProgress:
    return ToldProgress(START_MS + read_ms, queue_offset, (0, 0, 9))


def test_a_master_delivers_what_the_slave_did_not_have_that_acted_for_it(tmp_path: Path) -> None:
    """Whenever it is killed before that is delivered."""
    dues = [5000, 10_000, 15_000, 17_000, 19_000, 17_000]  # the slave did not have the last one
    master = placed(tmp_path, [START_MS + due_ms for due_ms in dues])
    master.deliver(START_MS + 12_000)
    master.flush()
    log = master.log
    [unhandled] = [1000 * at for at, one in log.waiting if one.number == 5]
    master.store.go_on_from(told(18_000, 5), START_MS + 41_000, log.queue, unhandled)
    for _ in range(3):
        master.store.close()
        master = Driver(tmp_path, log, START_MS + 41_000)
        assert master.store.version >= (0, 0, 9)
        master.place(START_MS + 41_000)
    master.deliver(START_MS + 60_000)
    assert [one.number for one in log.stored if one.delivered] == [0, 1, 5, 4]
    assert CHECK.unpack_from(master.store.content(master.store.progress))[3] == 6


@pytest.mark.parametrize("looks_max", [0, 1, 2, 5000])
def test_what_a_start_finds_due_is_not_all_late(
    tmp_path: Path, looks_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that takes over places again what is late, so it is told of nothing else."""
    monkeypatch.setattr(timers, "LATE_LOOKS_MAX", looks_max)
    driver = placed(tmp_path, [START_MS + due_ms for due_ms in (5000, 15_500, 14_000)])
    driver.deliver(START_MS + 8000)
    driver.flush()
    driver.store.close()
    driver = Driver(tmp_path, driver.log, START_MS + 16_000)
    told = driver.store.told_offset(driver.store.progress)
    assert told == (3 if looks_max >= 2 else 1 + looks_max)
    driver.log.add(Stored(9, START_MS + 7000))
    driver.place(START_MS + 16_000)
    driver.flush()
    driver.store.close()
    driver = Driver(tmp_path, driver.log, START_MS + 16_000)
    assert driver.store.told_offset(driver.store.progress) == min(told, 3)
    driver.deliver(START_MS + 17_000)
    assert driver.store.told_offset(driver.store.progress) == 4


def test_who_has_messages_that_are_late_tells_of_those_before_them(tmp_path: Path) -> None:
    """They are in a later slot than that of their time: nobody may take them for delivered."""
    driver = placed(tmp_path, [START_MS + 5000, START_MS + 15_000])
    driver.deliver(START_MS + 8000)
    driver.log.add(Stored(8, START_MS + 18_000))
    driver.log.add(Stored(9, START_MS + 7000))
    driver.place(START_MS + 8000)
    for _ in range(2):
        progress = driver.store.progress
        assert (progress.queue_offset, driver.store.told_offset(progress)) == (4, 3)
        driver.flush()
        driver.store.close()
        driver = Driver(tmp_path, driver.log, START_MS + 8000)
    driver.deliver(START_MS + 9000)
    assert driver.store.told_offset(driver.store.progress) == 4
    assert [one.number for one in driver.log.stored if one.delivered] == [0, 9]


def test_positions_go_on_after_a_cut_that_leaves_no_file(tmp_path: Path) -> None:
    units = TimerUnits(tmp_path / "timerlog", FILE_BYTES, OS_FILES)
    units.load()
    unit = TimerUnit(-1, NORMAL, START_MS, 0, 0, 100, 0)
    for _ in range(20):
        last = units.append(unit)
    units.drop_before(last)
    start = units.start
    assert start == 2 * FILE_BYTES
    units.cut(start)
    assert units.append(unit) == start
    assert units.start == start
    units.close()
