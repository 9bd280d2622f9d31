"""What clients are answered, step by step, is what RocketMQ's broker answers.

``make differ`` runs many seeds (FIREARROW_DIFFER_SEEDS, from FIREARROW_DIFFER_START on).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.interop.differ import SETTINGS, STEPS, Side, compare
from tests.interop.servers import serve

START = int(os.environ.get("FIREARROW_DIFFER_START", "0"))
SEEDS = range(START, START + int(os.environ.get("FIREARROW_DIFFER_SEEDS", "3")))


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """RocketMQ's broker and ours, with the same configuration."""
    root = tmp_path_factory.mktemp("differ")
    with (
        serve("real", root / "real", root / "real-logs", settings=SETTINGS) as real,
        serve("firearrow", root / "own", root / "own-logs", settings=SETTINGS) as own,
    ):
        pair = Side(real), Side(own)
        yield pair
        for side in pair:
            side.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_both_answer_the_same(sides: tuple[Side, Side], seed: int) -> None:
    assert compare(sides, seed) > STEPS
