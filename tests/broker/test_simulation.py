"""Everything that delivers, with kills, in virtual time (see ``simulation``, ``make simulate``)."""

from pathlib import Path

import pytest

from tests.broker.simulation import EVENTS_OF_RUN, Simulation


@pytest.mark.parametrize("seed", range(4))
def test_what_is_acknowledged_is_delivered_when_it_is_due(tmp_path: Path, seed: int) -> None:
    simulation = Simulation(seed, tmp_path)
    simulation.run(EVENTS_OF_RUN)
    assert simulation.kills


def test_without_a_kill_nothing_comes_twice(tmp_path: Path) -> None:
    simulation = Simulation(0, tmp_path, kill_share=0)
    simulation.run(EVENTS_OF_RUN // 3)
    assert not simulation.kills
