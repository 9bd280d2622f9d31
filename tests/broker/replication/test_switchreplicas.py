"""What a broker knows of itself among its replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.broker.control.controllers import Mastery
from firearrow.broker.replication.switchreplicas import ReplicaState
from firearrow.replication.epochs import Epoch, Epochs

MASTERY = Mastery(1, "127.0.0.1:1", 3, frozenset({1}), 1)


def place(*entries: Epoch, path: Path | None = None, lost: bool = False) -> ReplicaState:
    return ReplicaState(Epochs(entries, path), 1, MASTERY, lost)


def test_a_new_master_begins_its_epoch_where_the_log_ends(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    new = place(Epoch(1, 0), Epoch(2, 100), path=path)
    new.begin_epoch(0, 150)
    assert Epochs.load(path).entries == [Epoch(1, 0), Epoch(2, 100), Epoch(3, 150)]


@pytest.mark.parametrize(("lost", "start"), [(False, 100), (True, 150)])
def test_a_master_that_starts_again_in_its_epoch(lost: bool, start: int) -> None:
    """Slaves may have more of it than a log that has lost its end."""
    again = place(Epoch(1, 0), Epoch(3, 100), lost=lost)
    again.begin_epoch(0, 150)
    assert again.epochs.entries == [Epoch(1, 0), Epoch(3, start)]
    assert not again.lost


def test_what_the_log_has_no_more_is_forgotten() -> None:
    old = place(Epoch(1, 0), Epoch(2, 100), Epoch(5, 900))
    old.begin_epoch(200, 500)
    assert old.epochs.entries == [Epoch(2, 100), Epoch(3, 500)]
