"""Whatever clients of lite topics do: nobody gets what is not his, and none sleeps over a message.

Random clients of a shared, an exclusive and a wildcard group send, subscribe, pop, acknowledge and
end, several of them in one turn of the broker's loop, and the broker itself ends; see `consuming`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.broker.lite.consuming import CLIENTS, GROUPS, LITES, Client, LiteWorld
from tests.store.stores import KINDS

KIND_OF_STORE = st.sampled_from(KINDS)
CLIENT = st.tuples(st.sampled_from(list(GROUPS)), st.sampled_from(CLIENTS))
LITE = st.sampled_from(LITES)
SOME = st.sets(LITE, min_size=1)
MOST = st.sampled_from((1, 2, 32))
INVISIBLE_MS = st.sampled_from((500, 5_000, 60_000))
POLL_MS = st.sampled_from((0, 15_000, 15_000))
AT = st.integers(0, 20)

THINGS = st.one_of(
    st.tuples(st.just("send"), LITE),
    st.tuples(st.just("pop"), CLIENT, MOST, INVISIBLE_MS, POLL_MS),
    st.tuples(st.just("unsubscribe"), CLIENT, SOME),
    st.tuples(st.just("leave"), CLIENT),
    st.tuples(st.just("lose"), CLIENT),
    st.tuples(st.just("ack"), AT),
)


class Consuming(RuleBasedStateMachine):
    """What may happen."""

    @initialize(kind=KIND_OF_STORE, seed=st.integers(0, 99))
    def begin(self, kind: str, seed: int) -> None:
        self._directory = TemporaryDirectory(prefix="lite-")
        self.world = LiteWorld(Path(self._directory.name), kind, seed)

    @rule(client=CLIENT, lites=SOME, at=st.sampled_from((None, None, None, 1, 2)))
    def subscribe(self, client: tuple[str, str], lites: set[str], at: int | None) -> None:
        one = self.world.clients[client]
        self.world.do(lambda: self.world.subscribe(one, lites, at))

    @rule(client=CLIENT, lites=SOME)
    def replace(self, client: tuple[str, str], lites: set[str]) -> None:
        one = self.world.clients[client]
        self.world.do(lambda: self.world.replace(one, lites))

    @rule(things=st.lists(THINGS, min_size=1, max_size=8))
    def at_once(self, things: list[tuple[Any, ...]]) -> None:
        world, gone = self.world, set()
        some = []
        for name, *values in things:
            if values and isinstance(values[0], tuple):
                if values[0] in gone:
                    continue
                if name == "lose":
                    gone.add(values[0])
                values[0] = world.clients[values[0]]
            some.append(partial(getattr(world, name), *values))
        world.do(*some)

    @rule(client=CLIENT, most=MOST)
    def wait(self, client: tuple[str, str], most: int) -> None:
        one = self.world.clients[client]
        self.world.do(lambda: self.world.pop(one, most, 60_000, 25_000))

    @rule(lites=st.lists(LITE, min_size=1, max_size=6))
    def send(self, lites: list[str]) -> None:
        self.world.do(*[partial(self.world.send, lite) for lite in lites])

    @rule(at=st.lists(AT, min_size=1, max_size=12))
    def ack(self, at: list[int]) -> None:
        self.world.do(*[partial(self.world.ack, one) for one in at])

    @rule(at=AT, in_ms=st.sampled_from((1, 3000, 60_000)))
    def change(self, at: int, in_ms: int) -> None:
        self.world.do(lambda: self.world.change(at, in_ms))

    @rule(seconds=st.sampled_from((0.3, 2.0, 20.0)))
    def sleep(self, seconds: float) -> None:
        self.world.sleep(seconds)

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        self.world.restart(killed=killed)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()
            self.world.close()
            self._directory.cleanup()


def test_whatever_clients_do() -> None:
    run_state_machine_as_test(Consuming, settings=settings(max_examples=25, stateful_step_count=40))


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiteWorld]:
    made = LiteWorld(tmp_path, request.param)
    yield made
    made.finish()
    made.close()


def waiting(world: LiteWorld, group: str, most: int) -> list[Client]:
    """Two clients of a group that want all and wait."""
    clients = [world.clients[group, one] for one in CLIENTS[:2]]
    for client in clients:
        world.do(partial(world.subscribe, client, set(LITES)))
        world.do(partial(world.pop, client, most, 60_000, 60_000))
    return clients


@pytest.mark.parametrize("group", ["shared", "wildcard"])
def test_who_has_enough_leaves_the_rest_to_another(world: LiteWorld, group: str) -> None:
    for _ in range(8):  # by chance, one is woken for both
        clients = waiting(world, group, 1)
        world.do(lambda: world.send("a"), lambda: world.send("b"))
        assert [len(client.waiting) for client in clients] == [0, 0]
        world.do(*[lambda: world.ack(0)] * 2)


@pytest.mark.parametrize("group", ["shared", "wildcard"])
@pytest.mark.parametrize("way", ["unsubscribe", "leave", "lose"])
def test_who_goes_leaves_it_to_another(world: LiteWorld, group: str, way: str) -> None:
    for number in range(4):
        clients = waiting(world, group, 1)
        gone = clients[number % 2]
        ends = {
            "unsubscribe": partial(world.unsubscribe, gone, {"a"}),
            "leave": partial(world.leave, gone),
            "lose": partial(world.lose, gone),
        }
        world.do(lambda: world.send("a"), ends[way])
        world.sleep(70)
        while world.held:
            world.do(lambda: world.ack(0))


@pytest.mark.parametrize("begins", ["pop", "ack"])
@pytest.mark.parametrize("popper", [0, 1])
def test_what_is_popped_again_is_acknowledged_by_its_last_pop(world: LiteWorld, begins: str, popper: int) -> None:
    clients = [world.clients["shared", one] for one in CLIENTS[:2]]
    for client in clients:
        world.do(partial(world.subscribe, client, {"a"}))
    world.do(*[partial(world.send, "a")] * 2)
    world.do(partial(world.pop, clients[0], 2, 500, 0))
    world.sleep(2)
    some = [partial(world.pop, clients[popper], 2, 60_000, 0), partial(world.ack, 0)]
    world.do(*some if begins == "pop" else reversed(some))
    given = [offset for _, _, offset, _, _ in world.held]
    if popper == 0:
        assert given == ([1, 0, 1] if begins == "pop" else [1, 1])
    world.do(*[partial(world.ack, at) for at in (-1, -1)])
