"""A whole broker against what it owes, whatever happens (see ``world``)."""

from __future__ import annotations

import shutil
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.broker.world import OPERATIONS, World, scratch
from tests.store.stores import KINDS

EXAMPLES = settings.default.max_examples // 8 if settings.default else 12


class Delivery(RuleBasedStateMachine):
    """A world, of which hypothesis says what happens."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = scratch()
        self._world: World | None = None

    @initialize(kind=st.sampled_from(KINDS), is_sync=st.booleans(), seed=st.integers(0, 999))
    def begin_world(self, kind: str, is_sync: bool, seed: int) -> None:
        self._world = World(self._directory, seed, kind=kind, is_sync=is_sync)

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
    drawn: dict[str, Any] = {
        key: st.sampled_from(values) for key, values in OPERATIONS[name].arguments.items()
    }
    decorated: Any = rule(**drawn)
    setattr(Delivery, name, decorated(happens))


for _name in OPERATIONS:
    _add_rule(_name)

TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
