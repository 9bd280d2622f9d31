"""Epochs of a log, and the file that RocketMQ keeps them in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import ConfigError, RemoteProtocolError
from firearrow.replication.epochs import Epoch, Epochs, encode, parse

EXAMPLE = b"2\n903091474\n1-0\n2-3641\n"  # by RocketMQ 5.5.0


def test_the_example_of_the_module(tmp_path: Path) -> None:
    entries = [Epoch(1, 0), Epoch(2, 3641)]
    assert encode(entries) == EXAMPLE
    assert parse(EXAMPLE) == entries
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(EXAMPLE)
    epochs = Epochs.load(path)
    assert (epochs.entries, epochs.last_epoch, epochs.changed) == (entries, 2, False)


@pytest.mark.parametrize(
    "content", [b"2\n1\n1-0\n2-3641\n", b"3\n903091474\n1-0\n2-3641\n", b"1\n0\nx\n", b"x", b"2\n0\n2-5\n1-9\n"]
)
def test_a_file_that_can_not_be_read_has_its_backup(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        Epochs.load(path)
    (tmp_path / "epochFileCheckpoint.bak").write_bytes(EXAMPLE)
    assert Epochs.load(path).last == Epoch(2, 3641)


def test_what_is_saved_is_there_and_nothing_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s" / "epochFileCheckpoint"
    epochs = Epochs.load(path)
    assert epochs.last is None
    epochs.save()
    assert not path.exists()
    epochs.begin(1, 0)
    epochs.save()
    epochs.begin(4, 100)
    epochs.save()
    assert path.read_bytes() == encode([Epoch(1, 0), Epoch(4, 100)])
    assert Epochs.load(path).entries == epochs.entries
    epochs.cut_behind(-1)
    epochs.save()
    assert Epochs.load(path).entries == []


def test_an_epoch_without_data_stays_as_another_log_may_have_some() -> None:
    epochs = Epochs([Epoch(1, 0), Epoch(3, 100)])
    other = Epochs([Epoch(1, 0), Epoch(3, 100)])
    epochs.begin(5, 100)
    assert epochs.entries == [Epoch(1, 0), Epoch(3, 100), Epoch(5, 100)]
    assert epochs.at(100) == Epoch(5, 100)
    assert other.common_end(170, epochs, 200) == 100
    epochs.begin(6, 90)
    assert epochs.entries == [Epoch(1, 0), Epoch(6, 90)]
    epochs.cut_start(100)
    assert epochs.entries == [Epoch(6, 90)]
    epochs.cut_behind(89)
    assert epochs.entries == []


@pytest.mark.parametrize("second", [(1, 10), (0, 5)])
def test_epochs_that_do_not_grow_are_none(second: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="can't follow"):
        Epochs([Epoch(1, 0), Epoch(*second)])


class Log:
    """A log whose bytes say which epoch wrote them."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.epochs = Epochs()

    def lead(self, epoch: int) -> None:
        self.epochs.cut_behind(len(self.bytes))
        self.epochs.begin(epoch, len(self.bytes))

    def follow(self, other: Log, most: int) -> None:
        """Cut what the other does not have, and take so many bytes more of it."""
        self.epochs.cut_behind(len(self.bytes))
        if self.bytes and self.epochs.entries:
            common = self.epochs.common_end(len(self.bytes), other.epochs, len(other.bytes))
            assert common is not None, "all begin with the first epoch"
            assert self.bytes[:common] == other.bytes[:common]
            del self.bytes[common:]
        self.epochs.follow(other.epochs, len(self.bytes))
        for at in range(len(self.bytes), min(len(self.bytes) + most, len(other.bytes))):
            epoch = other.epochs.at(at)
            assert epoch is not None
            if epoch.epoch > self.epochs.last_epoch:
                self.epochs.begin(*epoch)
            self.bytes.append(other.bytes[at])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)), max_size=60))
def test_a_log_is_cut_to_what_it_has_in_common_with_another(steps: list[tuple[int, int, int]]) -> None:
    """Whoever leads after whom, with whatever of the others' logs."""
    logs = [Log(), Log(), Log()]
    logs[0].lead(1)
    for log in logs[1:]:
        log.follow(logs[0], 0)
    leader, epoch = 0, 1
    for who, what, most in steps:
        if what == 0 and who != leader:
            leader, epoch = who, epoch + 1
            logs[leader].lead(epoch)
        elif what == 1:
            logs[leader].bytes += [epoch] * most
        elif who != leader:
            logs[who].follow(logs[leader], most)
    for log in logs:
        if log is not logs[leader]:
            log.follow(logs[leader], 1 << 20)
        assert log.bytes == logs[leader].bytes
        for at, wrote in enumerate(log.bytes):
            assert log.epochs.at(at) is not None
            assert log.epochs.at(at).epoch == wrote  # type: ignore[union-attr]
