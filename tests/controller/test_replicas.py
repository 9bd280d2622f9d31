"""What controllers agree on, whatever is asked of them in whatever order: the promises to brokers.

The world is a handful of brokers of two names that apply, register, beat, fall silent, ask to be
elected and tell who is in sync, right and wrong.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.controller import decisions
from firearrow.controller.decisions import ControllerResult
from firearrow.controller.election import Standing
from firearrow.controller.replicas import (
    NO_SETS,
    BrokerSet,
    Cleaned,
    IdApplied,
    InSyncChanged,
    MasterElected,
    Sets,
    after,
    decode_events,
    decode_sets,
    encode_events,
    encode_sets,
)
from firearrow.wire import headers
from firearrow.wire.controller_bodies import SyncStateSet

NAMES = ["a", "b"]
IDS = st.integers(1, 4)


class Living:
    """Some brokers live, and have some data."""

    def __init__(self) -> None:
        self.alive: dict[tuple[str, int], Standing] = {}

    def is_alive(self, cluster: str, name: str, broker_id: int) -> bool:
        return cluster == "C" and (name, broker_id) in self.alive

    def standing(self, cluster: str, name: str, broker_id: int) -> Standing:
        return self.alive[name, broker_id]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.sampled_from(NAMES), IDS, st.sampled_from(["x;1", "y;2"])),
        st.tuples(st.just("live"), st.sampled_from(NAMES), IDS, st.integers(0, 3)),
        st.tuples(st.just("die"), st.sampled_from(NAMES), IDS),
        st.tuples(st.just("register"), st.sampled_from(NAMES), IDS, st.sampled_from(["x", "z"])),
        st.tuples(
            st.just("elect"), st.sampled_from(NAMES), st.sampled_from([-1, 1, 2, 3, 4]),
            st.booleans(), st.booleans(),
        ),
        st.tuples(
            st.just("alter"), st.sampled_from(NAMES), IDS, st.integers(-1, 1), st.integers(-1, 1),
            st.lists(IDS, max_size=4),
        ),
        st.tuples(st.just("clean"), st.sampled_from(NAMES), st.lists(IDS, max_size=2)),
    ),
    max_size=60,
)  # fmt: skip


def decided(sets: Sets, living: Living, step: tuple[Any, ...]) -> ControllerResult:
    kind, name, *rest = step
    found = sets.get(name, BrokerSet("C"))
    match kind, *rest:
        case "apply", broker_id, code:
            return decisions.apply_broker_id(sets, headers.ApplyBrokerId("C", name, broker_id, code))
        case "register", broker_id, address:
            register = headers.RegisterToController("C", name, broker_id, address)
            return decisions.register_broker(sets, living, register)
        case "elect", broker_id, designate, unclean:
            elect = headers.ElectMaster(name, "C", broker_id, designate)
            return decisions.elect_master(sets, living, elect, is_unclean_allowed=unclean)
        case "alter", broker_id, late, set_late, ids:
            alter = headers.AlterSyncStateSet(name, broker_id, found.master_epoch + late)
            told = SyncStateSet(ids, found.in_sync_epoch + set_late)
            return decisions.alter_sync_state_set(sets, living, alter, told)
        case "clean", ids:
            clean = headers.CleanBrokerData(name, "C", ";".join(map(str, ids)))
            return decisions.clean_broker_data(sets, living, clean)
        case _:
            return ControllerResult()


@settings(max_examples=300)
@given(STEPS)
def test_the_promises_to_brokers_hold(steps: list[tuple[Any, ...]]) -> None:
    sets, living = NO_SETS, Living()
    masters: dict[tuple[str, int, int], int] = {}
    lives = dict.fromkeys(NAMES, 0)  # a name that was forgotten as a whole begins anew
    for step in steps:
        kind, name, *rest = step
        if kind == "live":
            living.alive[name, rest[0]] = Standing(1, rest[1], 0)
        elif kind == "die":
            living.alive.pop((name, rest[0]), None)
        before = sets
        decision = decided(sets, living, step)
        assert not (decision.code and kind != "elect" and decision.events), "a refusal changes it"
        for event in decode_events(encode_events(list(decision.events))):
            sets = after(sets, event)
        if name in before and name not in sets:
            lives[name] += 1
        for one, found in sets.items():
            check(found, before.get(one))
            if found.master is not None:
                epoch = one, lives[one], found.master_epoch
                assert masters.setdefault(epoch, found.master) == found.master
        assert decode_sets(encode_sets(sets)) == sets


def check(found: BrokerSet, before: BrokerSet | None) -> None:
    assert found.in_sync <= found.members.keys()
    assert found.master is None or found.master in found.in_sync
    assert max(found.members) < found.next_id
    if before is None:
        return
    assert found.master_epoch - before.master_epoch in (0, 1)
    assert found.in_sync_epoch - before.in_sync_epoch in (0, 1)
    assert (found.master == before.master) or found.master_epoch > before.master_epoch
    assert (found.in_sync == before.in_sync) or found.in_sync_epoch > before.in_sync_epoch


def test_who_is_forgotten_is_master_no_more() -> None:
    sets: Sets = NO_SETS
    for broker_id in (1, 2):
        sets = after(sets, IdApplied("a", "C", broker_id, "x:1", f"x:1;{broker_id}"))
    sets = after(sets, MasterElected("a", 1))
    sets = after(sets, InSyncChanged("a", frozenset((1, 2))))
    sets = after(sets, Cleaned("a", frozenset((1,))))
    found = sets["a"]
    assert (found.master, found.master_epoch) == (None, 2)
    assert (found.in_sync, found.in_sync_epoch, list(found.members)) == (frozenset((2,)), 3, [2])
    assert after(sets, Cleaned("a", frozenset((2,)))) == {}


def test_an_id_beyond_has_its_turn_passed() -> None:
    """Else the broker whose turn it is would be refused for ever."""
    sets: Sets = NO_SETS
    for broker_id in (1, 3):
        sets = after(sets, IdApplied("a", "C", broker_id, "x:1", f"x:1;{broker_id}"))
    header = headers.NextBrokerId("C", "a")
    assert decisions.next_broker_id(sets, header).fields["nextBrokerId"] == 4


def test_the_election_of_a_broker_that_is_not_there_changes_nothing() -> None:
    """No controller decides one, but another member can send it: what is agreed on is applied."""
    sets = after(NO_SETS, IdApplied("a", "C", 1, "x:1", "x:1;1"))
    assert after(sets, MasterElected("a", 7)) == sets


def test_the_last_id_can_be_kept() -> None:
    sets = after(NO_SETS, IdApplied("a", "C", 2**63 - 1, "x:1", "x:1;1"))
    assert decode_sets(encode_sets(sets)) == sets
