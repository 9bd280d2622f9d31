"""The store on a machine that loses power, at any operation and with any of the unsynced left."""

import os
from pathlib import Path

import pytest

from tests.store.powerloss import Life

SEEDS = int(os.environ.get("FIREARROW_POWER_LOSS_SEEDS", "100"))
SEEDS_A_TEST = 10


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_what_was_on_the_disk_is_there_and_nothing_else(first: int, tmp_path: Path) -> None:
    for seed in range(first, min(first + SEEDS_A_TEST, SEEDS)):
        directory = tmp_path / str(seed)
        directory.mkdir()
        try:
            Life(seed, directory).run()
        except AssertionError as failure:
            failure.add_note(f"seed {seed}")
            raise
