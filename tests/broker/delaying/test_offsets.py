"""How far delay levels are delivered: the file as RocketMQ has it, what a crash leaves of it."""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.broker.delaying import offsets as delayoffsets
from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.errors import ConfigError
from firearrow.state import DELAYS, stored_state
from firearrow.wire import fastjson
from firearrow.wire.bodies import DataVersion
from tests.broker.fakes import HandClock
from tests.golden import extract, golden_names

EVERYTHING = 1 << 62


def file_in(root: Path) -> Path:
    return root / "config" / "delayOffset.json"


def offsets(root: Path, log_end: int = EVERYTHING) -> DelayOffsets:
    found = DelayOffsets(HandClock(), root)
    found.load(log_end)
    return found


@pytest.mark.parametrize("name", [*golden_names, "waiting"])
def test_a_file_of_rocketmq_is_written_as_it_was(name: str, tmp_path: Path) -> None:
    root = extract(name, tmp_path)
    before = file_in(root).read_bytes()
    found = offsets(root)
    assert found.table == {int(level): at for level, at in fastjson.loads(before)["offsetTable"].items()}
    assert found.table
    found.save()
    assert file_in(root).read_bytes() == before
    found.file.behind = True
    found.save()
    assert file_in(root).read_bytes() == before


LEVELS = st.integers(1, 20)
OFFSETS = st.integers(0, 1 << 62)


@settings(max_examples=50)
@given(table=st.dictionaries(LEVELS, OFFSETS), extra=st.dictionaries(st.text("xyz"), st.integers()))
def test_what_is_written_is_read_again(table: dict[int, int], extra: dict[str, int]) -> None:
    """Fields that nobody knows included."""
    with TemporaryDirectory() as directory:
        root = Path(directory)
        file_in(root).parent.mkdir()
        content = {"dataVersion": {"counter": 7}, "offsetTable": table, **extra}
        file_in(root).write_bytes(fastjson.dumps(content))
        found = offsets(root)
        assert found.table == table
        found.note({1: 5}, 100, 100)
        found.save()
        raw = fastjson.loads(file_in(root).read_bytes())
        assert offsets(root).table == table | {1: 5}
        assert raw["dataVersion"]["counter"] == 8
        assert {name: raw[name] for name in extra} == extra
        assert set(raw) == {"dataVersion", "offsetTable", *extra}


STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.integers(1, 3), st.integers(1, 3), min_size=1),  # deliveries by level
        st.booleans(),  # whether the log is flushed up to here
        st.booleans(),  # whether the file is written then
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, lost=st.integers(0, 12))
def test_a_crash_loses_no_delivery_and_repeats_few(steps: list[tuple[dict[int, int], bool, bool]], lost: int) -> None:
    """After a kill nothing is repeated; after a loss of power what the log does not have any more
    is, and never less than that."""
    with TemporaryDirectory() as directory:
        root = Path(directory)
        found = offsets(root)
        table: dict[int, int] = defaultdict(int)
        log_end = flushed = 0
        states = [(0, dict(table))]
        for deliveries, flushes, writes in steps:
            for level, count in deliveries.items():
                table[level] += count
            log_end += 100
            flushed = log_end if flushes else flushed
            found.note({level: table[level] for level in deliveries}, log_end, flushed)
            states.append((log_end, dict(table)))
            if writes:
                found.settle(flushed)
                found.save()
        killed = root / "killed"
        shutil.copytree(root / "config", killed / "config") if steps else killed.mkdir()
        assert offsets(killed, log_end).table == dict(table)
        cut = max(log_end - 100 * lost, flushed)  # what was flushed is there
        really = next(state for end, state in reversed(states) if end <= cut)
        sure = next(state for end, state in reversed(states) if end <= flushed)
        for level, at in offsets(root, cut).table.items():
            assert at <= really.get(level, 0)
        written = stored_state(root / "config", DELAYS).get("offsetTable") or {}
        assert all(at <= sure.get(int(level), 0) for level, at in written.items())


def test_steps_beyond_the_limit_count_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayoffsets, "STEPS_MAX", 2)
    found = offsets(tmp_path)
    for number in range(1, 6):
        found.note({1: number, 2: number}, number * 100, 0)
    found.settle(100)
    assert found.content()["offsetTable"] == {1: 1, 2: 1}
    found.settle(499)
    assert found.content()["offsetTable"] == {1: 1, 2: 1}
    assert not found.is_settled
    found.settle(500)
    assert found.content()["offsetTable"] == {1: 5, 2: 5}
    assert found.is_settled
    assert set(found.content()) == {"dataVersion", "offsetTable"}


def test_what_a_master_tells_counts_when_the_log_is_as_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayoffsets, "TOLD_MAX", 3)
    found = offsets(tmp_path)
    for number in range(1, 6):
        found.follow({1: number}, DataVersion(number), number * 100)
    found.settle(99)
    assert (found.table, found.is_settled) == ({}, False)
    found.settle(299)
    assert (found.table, found.data_version) == ({1: 2}, DataVersion(2))
    assert found.content()["offsetTable"] == {1: 2}
    found.settle(499)
    assert found.table == {1: 2}
    found.settle(500)
    assert (found.table, found.is_settled) == ({1: 5}, True)
    found.follow({1: 9}, DataVersion(6), 900)
    found.follow({1: 4, 2: 1}, DataVersion(7), 600)  # another master, of which the log is shorter
    found.settle(900)
    assert found.table == {1: 4, 2: 1}
    found.follow({1: 7}, DataVersion(8), 1000)
    found.lead()
    found.settle(1000)
    assert found.table == {1: 4, 2: 1}


def test_a_disk_that_refuses_keeps_nothing_from_being_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = offsets(tmp_path)
    found.note({1: 1}, 100, 0)

    def refuse(*_: object) -> Iterator[None]:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("os.pwrite", refuse)
        found.note({1: 2}, 200, 0)
        found.note({2: 1}, 300, 0)
    assert found.table == {1: 2, 2: 1}
    assert offsets(tmp_path).table == {1: 1}
    found.note({1: 3}, 400, 0)
    assert offsets(tmp_path).table == {1: 3, 2: 1}


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{1:"often"}}',
        '{"offsetTable":[1]}',
        '{"deliveredTable":{"1":[1]}}',
        '{"deliveredTable":{"1":1}}',
    ],
)
def test_a_file_that_can_not_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    file_in(tmp_path).parent.mkdir()
    file_in(tmp_path).write_text(text)
    with pytest.raises(ConfigError, match=r"delayOffset\.json"):
        offsets(tmp_path)
