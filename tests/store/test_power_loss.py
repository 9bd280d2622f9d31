"""The store on a machine that loses power, at any operation and with any of the unsynced left."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from firearrow.database import Database, Table
from tests.store.powerloss import Life
from tests.store.stores import KINDS

SEEDS = int(os.environ.get("FIREARROW_POWER_LOSS_SEEDS", "60"))
SEEDS_A_TEST = 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_what_was_on_the_disk_is_there_and_nothing_else(
    first: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a database it is trusted that what was flushed is on the disk, and nothing else."""
    lives: list[Life] = []
    for patched in (Table.flush, Database.write):
        owner = Table if patched is Table.flush else Database
        monkeypatch.setattr(owner, patched.__name__, _failing(patched, lives))
    for seed in range(first, min(first + SEEDS_A_TEST, SEEDS)):
        directory = tmp_path / str(seed)
        directory.mkdir()
        life = Life(seed, directory, kind)
        lives[:] = [life]
        try:
            life.run()
        except AssertionError as failure:
            failure.add_note(f"seed {seed}")
            raise


def _failing(call: Callable[..., None], lives: list[Life]) -> Callable[..., None]:
    """The call, before which the power may fail."""

    def failing(*arguments: object) -> None:
        for life in lives:
            life.before("database", None)
        call(*arguments)

    return failing
