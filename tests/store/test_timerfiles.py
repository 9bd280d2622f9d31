"""What a stopped timer has not delivered, read from files made by hand (and RocketMQ's own in
``tests/broker/administration/test_takeover.py``)."""

from pathlib import Path

import numpy as np
import pytest

from firearrow.store import TimerLog, on_wheel
from firearrow.store.timerfiles import CHECK, CHECK_BYTES, DELETE, SLOT, UNIT, OnWheel, Unit

READ_S = 1_795_000_000
FILE_UNITS = 4  # and 20 bytes that no unit fits into
FILE_BYTES = FILE_UNITS * UNIT.itemsize + 20


def write_wheel(root: Path, slots: list[tuple[int, int, int, int]]) -> None:
    """``slots`` are (second, first, last, number)."""
    (root / "config").mkdir(exist_ok=True)
    check = CHECK.pack(READ_S * 1000, 0, 7, 0, 0, 0, 0)
    (root / "config" / "timercheck").write_bytes(check.ljust(CHECK_BYTES, b"\0"))
    wheel = np.zeros(100, SLOT)
    for at, slot in enumerate(slots):
        wheel[at * 3] = (*slot, 0)
    wheel.tofile(root / "timerwheel")


def write_log(root: Path, units: dict[int, tuple[int, int, int, int]]) -> None:
    """``units`` by position are (previous, magic, physical offset, hash)."""
    (root / "timerlog").mkdir()
    for base in range(0, max(units) + 1, FILE_BYTES):
        file = np.zeros(FILE_BYTES, np.uint8)
        for position, (previous, magic, physical_offset, topic_hash) in units.items():
            if base <= position < base + FILE_BYTES:
                unit = (52, previous, magic, 0, 0, physical_offset, 100, topic_hash, 0)
                data = np.frombuffer(np.array([unit], UNIT).tobytes(), np.uint8)
                file[position - base : position - base + len(data)] = data
        file.tofile(root / "timerlog" / f"{base:020d}")


def test_slots_that_are_due_from_the_next_second_on_count(tmp_path: Path) -> None:
    write_wheel(
        tmp_path,
        [
            (READ_S - 1, 0, 520, 9),  # was delivered
            (READ_S, 52, 104, 2),
            (READ_S + 5, 156, 156, 1),
            (READ_S + 9, 208, 260, 0),  # one unit, and one that deletes it
        ],
    )
    assert on_wheel(tmp_path) == OnWheel(3, [(104, 52), (156, 156)], 520, 7)


@pytest.mark.parametrize("missing", ["config/timercheck", "timerwheel"])
def test_without_a_whole_wheel_there_is_none(tmp_path: Path, missing: str) -> None:
    write_wheel(tmp_path, [])
    assert on_wheel(tmp_path) == OnWheel(0, [], -1, 7)
    for size in (0, 9):
        (tmp_path / missing).write_bytes(bytes(size))
        assert on_wheel(tmp_path) is None
    (tmp_path / missing).unlink()
    assert on_wheel(tmp_path) is None


def test_a_slot_is_read_from_its_end_over_several_files(tmp_path: Path) -> None:
    second = FILE_BYTES
    write_log(
        tmp_path,
        {
            0: (-1, 1, 1000, 5),
            52: (0, 1, 2000, 6),
            second: (52, 1 | DELETE, 3000, 7),
            second + 52: (second + 52, 1, 4000, 8),  # before itself: damage
        },
    )
    log = TimerLog(tmp_path)
    newest_first = [Unit(3000, 7, True), Unit(2000, 6, False), Unit(1000, 5, False)]
    assert list(log.chain(second, 0)) == newest_first
    assert list(log.chain(second, 52)) == newest_first[:2]
    assert list(log.chain(second + 52, 0)) == [Unit(4000, 8, False)]
    for position in (-1, 104, 156, FILE_BYTES - 20, 2 * FILE_BYTES):
        assert log.unit(position) is None
        assert list(log.chain(position, 0)) == []


def test_without_files_there_is_no_unit(tmp_path: Path) -> None:
    assert TimerLog(tmp_path).unit(0) is None
    (tmp_path / "timerlog" / "7").mkdir(parents=True)
    (tmp_path / "timerlog" / f"{0:020d}").touch()
    assert TimerLog(tmp_path).unit(0) is None
