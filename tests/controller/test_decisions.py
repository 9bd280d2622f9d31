"""What is refused, with which code, and what is looked at first."""

from __future__ import annotations

import pytest

from firearrow.controller import decisions
from firearrow.controller.decisions import ControllerResult
from firearrow.controller.election import Standing
from firearrow.controller.replicas import (
    AddressChanged,
    BrokerSet,
    Cleaned,
    InSyncChanged,
    MasterElected,
    ReplicaMember,
)
from firearrow.wire import headers
from firearrow.wire.codes import ResponseCode as Code
from firearrow.wire.controller_bodies import SyncStateSet
from tests.controller.test_replicas import Living

MEMBERS = {broker_id: ReplicaMember(f"h:{broker_id}", f"h:{broker_id};9") for broker_id in (1, 2, 3)}
SETS = {
    "a": BrokerSet("C", MEMBERS, 4, 1, 7, frozenset((1, 2)), 9),
    "lost": BrokerSet("C", MEMBERS, 4, None, 3, frozenset((1,)), 2),
}
LIVING = Living()
LIVING.alive = {(name, one): Standing(1, 1, 1) for name in SETS for one in (1, 2)}


FAILED = Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED


def told(*ids: int, name: str = "a", master: int = 1, epoch: int = 7, set_epoch: int = 9) -> ControllerResult:
    header = headers.AlterSyncStateSet(name, master, epoch)
    return decisions.alter_sync_state_set(SETS, LIVING, header, SyncStateSet([*ids], set_epoch))


@pytest.mark.parametrize(
    ("decision", "code"),
    [
        # Each is wrong in all that is looked at later, too.
        (told(9, name="x", master=9, epoch=9, set_epoch=0), FAILED),
        (told(1, 2, master=9, epoch=9, set_epoch=0), FAILED),
        (told(9, master=2, epoch=9, set_epoch=0), Code.CONTROLLER_INVALID_MASTER),
        (told(9, name="lost", epoch=9, set_epoch=0), Code.CONTROLLER_INVALID_MASTER),
        (told(9, epoch=6, set_epoch=0), Code.CONTROLLER_FENCED_MASTER_EPOCH),
        (told(9, set_epoch=8), Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (told(9), Code.CONTROLLER_INVALID_REPLICAS),
        (told(3), Code.CONTROLLER_BROKER_NOT_ALIVE),
        (told(2), FAILED),
    ],
)  # fmt: skip
def test_a_set_of_those_in_sync_is_refused(decision: ControllerResult, code: Code) -> None:
    assert decision.code == code
    assert (decision.fields, decision.events) == ({"newSyncStateSetEpoch": 0}, ())
    assert decision.remark


def test_a_set_of_those_in_sync_is_taken() -> None:
    decision = told(1)
    assert decision.events == [InSyncChanged("a", frozenset((1,)))]
    assert decision.fields == {"newSyncStateSetEpoch": 10}
    assert decision.body == b'{"syncStateSet":[1],"syncStateSetEpoch":10}'


def apply(name: str, broker_id: int, code: str) -> ControllerResult:
    return decisions.apply_broker_id(SETS, headers.ApplyBrokerId("C", name, broker_id, code))


def test_an_id_is_given_once() -> None:
    assert apply("new", 2, "h:9;1").code == Code.CONTROLLER_BROKER_ID_INVALID
    assert apply("a", 1, "h:9;1").code == Code.CONTROLLER_BROKER_ID_INVALID
    again = apply("a", 1, "h:1;9")
    assert (again.code, again.events) == (0, ())
    (event,) = apply("new", 1, "h:9;1").events
    assert (event.broker, getattr(event, "address", None)) == ("new", "h:9")


def register(name: str, broker_id: int, address: str, cluster: str = "C") -> ControllerResult:
    header = headers.RegisterToController(cluster, name, broker_id, address)
    return decisions.register_broker(SETS, LIVING, header)


def test_a_broker_that_starts_hears_of_a_master_that_lives() -> None:
    assert register("x", 1, "h:1").code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert register("a", 9, "h:1").code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    decision = register("a", 2, "h:2")
    assert decision.fields["masterAddress"] == "h:1"
    assert (decision.body, decision.events) == (
        b'{"syncStateSet":[1,2],"syncStateSetEpoch":9}', [],
    )  # fmt: skip
    assert "masterAddress" not in register("lost", 2, "h:2").fields
    assert "masterAddress" not in register("a", 2, "h:2", cluster="D").fields
    assert register("a", 2, "h:22").events == [AddressChanged("a", 2, "h:22")]


def elect(name: str, broker_id: int) -> ControllerResult:
    header = headers.ElectMaster(name, "C", broker_id)
    return decisions.elect_master(SETS, LIVING, header, is_unclean_allowed=False)


def test_elections_that_change_nothing_or_fail() -> None:
    assert elect("x", 1).code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    decision = elect("a", 2)
    assert decision.code == Code.CONTROLLER_MASTER_STILL_EXIST
    assert decision.fields["masterBrokerId"] == 1
    assert (decision.body, decision.events) == (b'{"syncStateSet":[1,2]}', ())
    nobody = Living()
    for broker_id, code, events in (
        (2, Code.CONTROLLER_ELECT_MASTER_FAILED, ()),
        (-1, Code.CONTROLLER_MASTER_NOT_AVAILABLE, [MasterElected("a", None)]),
    ):
        header = headers.ElectMaster("a", "C", broker_id)
        decision = decisions.elect_master(SETS, nobody, header, is_unclean_allowed=True)
        assert (decision.code, decision.events) == (code, events)


def clean(name: str, ids: str | None, *, living: bool = False, cluster: str = "C") -> ControllerResult:
    header = headers.CleanBrokerData(name, cluster, ids, living)
    return decisions.clean_broker_data(SETS, LIVING, header)


def test_what_is_forgotten() -> None:
    refused = Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    for decision in (
        clean("a", None), clean("a", "1"), clean("a", "3;2"), clean("a", "one"), clean("x", "3"),
        clean("x", None, living=True),
    ):  # fmt: skip
        assert (decision.code, decision.events) == (refused, ())
    assert clean("a", "3;").events == [Cleaned("a", frozenset((3,)))]
    assert clean("lost", None).events == [Cleaned("lost", frozenset())]
    assert clean("a", "3", living=True).events == [Cleaned("a", frozenset())]


def test_what_is_known_of_a_name() -> None:
    header = headers.BrokerNameHeader("x")
    decision = decisions.replica_info(SETS, header)
    assert decision.code == Code.CONTROLLER_BROKER_METADATA_NOT_EXIST
    decision = decisions.replica_info(SETS, headers.BrokerNameHeader("lost"))
    assert decision.fields == {"masterBrokerId": None, "masterAddress": None, "masterEpoch": 3}
    assert decision.body == b'{"syncStateSet":[1],"syncStateSetEpoch":2}'
    assert decisions.sync_state_data(SETS, LIVING, ["x", "lost"]).body == (
        b'{"replicasInfoTable":{"lost":{"inSyncReplicas":[{"alive":true,"brokerAddress":"h:1",'
        b'"brokerId":1,"brokerName":"lost"}],"masterEpoch":3,"notInSyncReplicas":[{"alive":true,'
        b'"brokerAddress":"h:2","brokerId":2,"brokerName":"lost"},{"alive":false,'
        b'"brokerAddress":"h:3","brokerId":3,"brokerName":"lost"}],"syncStateSetEpoch":2}}}'
    )


def test_names_whose_master_is_lost_while_others_live() -> None:
    living = Living()
    living.alive = {("a", 2): Standing(1, 1, 1), ("lost", 2): Standing(1, 1, 1)}
    assert decisions.without_master(SETS, living) == ["a"]
    assert decisions.without_master(SETS, Living()) == []
    assert decisions.without_master(SETS, LIVING) == []
