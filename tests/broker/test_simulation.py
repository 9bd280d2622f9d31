"""Everything that delivers, with crashes, in virtual time (see ``simulation``)."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.simulation import EVENTS_OF_RUN, Simulation
from tests.broker.world import scratch


@pytest.fixture
def directory() -> Iterator[Path]:
    path = scratch()
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("seed", [0, 3, 5, 6])
def test_what_is_acknowledged_is_delivered_when_it_is_due(directory: Path, seed: int) -> None:
    """In either kind of queue, with either way to flush, with kills and with losses of power."""
    simulation = Simulation(seed, directory)
    simulation.run(EVENTS_OF_RUN // 3)
    assert simulation.crashes


def test_without_a_crash_nothing_comes_twice(directory: Path) -> None:
    simulation = Simulation(0, directory, has_crashes=False)
    simulation.run(EVENTS_OF_RUN // 5)
    assert not simulation.crashes
