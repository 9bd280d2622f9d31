"""A node's memory on the disk: what a crash leaves of it is read, and what damage leaves is not."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import CorruptStore, StoreLocked
from firearrow.raft import LogEntry, LogFile, OsFile, Saved, StateSnapshot
from firearrow.raft.logfile import MAGIC
from tests.raft.simulation import MemoryFile

CHANGES = [
    Saved(1, "n0"),
    Saved(1, "n0", [LogEntry(1, 1), LogEntry(2, 1, b"two")]),
    Saved(2, "", [LogEntry(2, 2, b"another two"), LogEntry(3, 2, b"three")]),
    Saved(2, "n1"),
]
AFTER = Saved(2, "n1", [LogEntry(1, 1), LogEntry(2, 2, b"another two"), LogEntry(3, 2, b"three")])


def written(*changes: Saved) -> MemoryFile:
    file = MemoryFile()
    log = LogFile(file)
    assert log.load() == Saved()
    for change in changes:
        log.append(change)
        log.sync()
    return file


def loaded(data: bytes) -> Saved:
    file = MemoryFile()
    file.replace(data)
    return LogFile(file).load()


def test_the_bytes_are_those_of_the_documentation() -> None:
    record = bytes.fromhex("299fc01a 00000007 94 02 a26e31 90 c0")
    assert written(Saved(2, "n1")).read().endswith(record)


def test_changes_come_to_the_same_as_what_they_change() -> None:
    assert loaded(written(*CHANGES).read()) == AFTER


def test_a_snapshot_takes_the_place_of_all_before() -> None:
    snapshot = StateSnapshot(9, 2, b"state")
    change = Saved(3, "", [LogEntry(10, 3)], snapshot)
    assert loaded(written(*CHANGES, change).read()) == change
    after = Saved(3, "", [LogEntry(10, 3), LogEntry(11, 3)], snapshot)
    assert loaded(written(*CHANGES, change, Saved(3, "", [LogEntry(11, 3)])).read()) == after


def test_a_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    for number, change in enumerate(CHANGES):
        file = OsFile(tmp_path / "deep" / "raft.log")
        log = LogFile(file)
        assert log.load().term == (CHANGES[number - 1].term if number else 0)
        log.append(change)
        log.sync()
        size_bytes = log.size_bytes
        file.close()
        assert (tmp_path / "deep" / "raft.log").stat().st_size == size_bytes
    file = OsFile(tmp_path / "deep" / "raft.log")
    log = LogFile(file)
    assert log.load() == AFTER
    log.rewrite(Saved(7, "n2"))
    log.append(Saved(8, "n2"))
    log.sync()
    file.close()
    assert loaded((tmp_path / "deep" / "raft.log").read_bytes()) == Saved(8, "n2")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["raft.log"]


def test_a_directory_is_for_one_node_at_a_time(tmp_path: Path) -> None:
    file = OsFile(tmp_path / "raft.log")
    with pytest.raises(StoreLocked, match="another process"):
        OsFile(tmp_path / "raft.log")
    file.close()
    OsFile(tmp_path / "raft.log").close()


@given(st.integers(0, 2**32), st.integers(0, 3))
def test_what_a_crash_leaves_is_what_was_synced(seed: int, synced: int) -> None:
    chance = Random(seed)
    file = written(*CHANGES[:synced], Saved(1, "n" * chance.randrange(600)))
    before = LogFile(file).load()
    LogFile(file).append(Saved(5, "n2", [LogEntry(9, 5, chance.randbytes(chance.randrange(2000)))]))
    file.crash(chance)
    log = LogFile(file)
    after = log.load()
    assert after == before or after.term == 5
    log.append(Saved(6, "n0"))
    assert LogFile(file).load().term == 6


@given(st.data())
def test_a_damaged_byte_is_never_taken_for_a_crash(data: st.DataObject) -> None:
    """But in the length of the last record, whose end is then anywhere."""
    content = bytearray(written(*CHANGES).read())
    lasts_head = len(content) - len(written(CHANGES[-1]).read()) + len(written().read())
    at = data.draw(st.integers(0, len(content) - 1).filter(lambda at: not 0 <= at - lasts_head < 8))
    content[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptStore):
        loaded(bytes(content))


def test_a_lost_sector_in_the_middle_is_damage() -> None:
    content = bytearray(written(*CHANGES, Saved(3, "n" * 2000), Saved(4, "n0")).read())
    content[1024:1536] = bytes(512)
    with pytest.raises(CorruptStore, match="a record follows"):
        loaded(bytes(content))


@pytest.mark.parametrize("size", [len(MAGIC), len(MAGIC) + 3, len(MAGIC) + 40])
def test_a_file_without_its_first_record_is_damaged(size: int) -> None:
    """It was made with one: to begin anew would be to forget all."""
    with pytest.raises(CorruptStore, match="first record"):
        loaded(written(Saved(1, "n" * 100)).read()[:size].replace(b"\0\0\0", b"\xff\0\0"))


def test_another_file_is_refused() -> None:
    with pytest.raises(CorruptStore, match=MAGIC.decode()):
        loaded(b"something else entirely")
