"""A whole broker against what it owes, whatever happens (see ``world``)."""

from __future__ import annotations

import itertools
import shutil
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.broker.owed import GROUPS, QUEUES
from tests.broker.popworld import POP_OPERATIONS, PopWorld
from tests.broker.world import World, scratch
from tests.store.stores import KINDS

EXAMPLES = settings.default.max_examples // 8 if settings.default else 12


class Delivery(RuleBasedStateMachine):
    """A world, of which hypothesis says what happens."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = scratch()
        self._world: PopWorld | None = None

    @initialize(kind=st.sampled_from(KINDS), is_sync=st.booleans(), is_buffered=st.booleans(), seed=st.integers(0, 999))
    def begin_world(self, kind: str, is_sync: bool, is_buffered: bool, seed: int) -> None:
        config = {"enable_pop_buffer_merge": is_buffered}
        self._world = PopWorld(self._directory, seed, kind=kind, is_sync=is_sync, config=config)

    def happens(self, name: str, **arguments: Any) -> None:
        world, self._world = self._world, None
        getattr(world, name)(**arguments)
        self._world = world  # a world that has failed is not finished

    def teardown(self) -> None:
        try:
            if self._world is not None:
                self._world.finish()
        finally:
            shutil.rmtree(self._directory)


def _add_rule(name: str) -> None:
    def happens(self: Delivery, **arguments: Any) -> None:
        self.happens(name, **arguments)

    happens.__name__ = name
    drawn: dict[str, Any] = {key: st.sampled_from(values) for key, values in POP_OPERATIONS[name].arguments.items()}
    decorated: Any = rule(**drawn)
    setattr(Delivery, name, decorated(happens))


for _name in POP_OPERATIONS:
    _add_rule(_name)

TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_gets_what_takes_the_place_of_lost_messages(kind: str) -> None:
    """It had consumed these, and said so on the disk."""
    directory = scratch()
    lazy: dict[str, Any] = {"flush_interval_commit_log": 600_000, "flush_commit_log_thorough_interval": 600_000}
    for seed in range(4):
        place = directory / str(seed)
        place.mkdir()
        world = World(place, seed, kind=kind, **lazy)
        world.send(40)
        for group, queue in itertools.product(GROUPS, range(QUEUES)):
            world.consume(group, queue, commits=True)
        world.sleep(31_000)
        world.lose_power(0, 0)
        world.send(40)
        world.finish()
    shutil.rmtree(directory)
