"""Answers of a controller, and the events that need agreement before them: pure functions.

Each function takes the state, the living brokers, and a request. It changes nothing: a `ControllerResult` holds the
answer and the events that must be agreed on before the answer may leave.

The order of the checks is that of RocketMQ's ``ReplicasInfoManager``, and so are the remarks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from firearrow.controller.election import NOBODY_ASKED, Living, elected
from firearrow.controller.replicas import (
    FIRST_ID,
    AddressChanged,
    AnyEvent,
    BrokerSet,
    Cleaned,
    IdApplied,
    InSyncChanged,
    MasterElected,
    Sets,
)
from firearrow.javanumbers import INT_MAX
from firearrow.wire import fastjson, headers
from firearrow.wire.bodies import MemberGroup
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue
from firearrow.wire.controller_bodies import ElectedBody, ReplicaIdentity, ReplicasInfo, ReplicasTable, SyncStateSet

ID_APPLIED_MAX: Final = INT_MAX
# Limit of the known brokers of all names. Each has a kilobyte at most, and all of them are one message to a controller
# that was away.
BROKERS_MAX: Final = 10_000
_IDS: Final = re.compile(r"[+-]?[0-9]{1,18}(;[+-]?[0-9]{1,18})*;*")


class Liveness(Protocol):
    """Source of the living brokers."""

    def is_alive(self, cluster: str, name: str, broker_id: int) -> bool:
        """Tell whether a broker has sent a heartbeat in time."""
        ...


class ControllerResult(NamedTuple):
    """An answer, and the events that must be agreed on before it may leave.

    Fields that are None are left out.
    """

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    fields: Mapping[str, FieldValue | None] = {}
    body: bytes = b""
    events: Sequence[AnyEvent] = ()


# --- ids and addresses -----------------------------------------------------------------------


def next_broker_id(sets: Sets, header: headers.NextBrokerId) -> ControllerResult:
    """1012."""
    found = sets.get(header.broker_name)
    next_id = FIRST_ID if found is None else found.next_id
    return ControllerResult(fields={**_named(header), "nextBrokerId": next_id})


def apply_broker_id(sets: Sets, header: headers.ApplyBrokerId) -> ControllerResult:
    """1013."""
    name, broker_id = header.broker_name, header.applied_broker_id
    found = sets.get(name)
    if found is None and broker_id != FIRST_ID:
        return _refused(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"Broker-set: {name} hasn't been registered in controller, but broker try to apply brokerId: {broker_id}",
            _named(header),
        )
    member = None if found is None else found.members.get(broker_id)
    if member is not None:
        if member.check_code == header.register_check_code:
            return ControllerResult(fields=_named(header))
        return _refused(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"Fail to apply brokerId: {broker_id} in broker-set: {name}",
            _named(header),
        )
    if not FIRST_ID <= broker_id <= ID_APPLIED_MAX:
        why = f"brokerId: {broker_id} is not from {FIRST_ID} to {ID_APPLIED_MAX}"
        return _refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, why, _named(header))
    if sum(len(one.members) for one in sets.values()) >= BROKERS_MAX:
        return _refused(ResponseCode.SYSTEM_BUSY, f"{BROKERS_MAX} brokers are known already")
    address = header.register_check_code.partition(";")[0]
    applied = IdApplied(name, header.cluster_name, broker_id, address, header.register_check_code)
    return ControllerResult(fields=_named(header), events=[applied])


def register_broker(sets: Sets, lives: Liveness, header: headers.RegisterToController) -> ControllerResult:
    """1003."""
    name, broker_id = header.broker_name, header.broker_id
    found = sets.get(name)
    if found is None:
        return _unregistered(f"Broker-set: {name} hasn't been registered in controller", header)
    member = found.members.get(broker_id)
    if member is None:
        return _unregistered(f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}", header)
    fields = _named(header)
    if found.master is not None and lives.is_alive(header.cluster_name, name, found.master):
        fields |= _master(found)
    moved = AddressChanged(name, broker_id, header.broker_address)
    return ControllerResult(
        fields=fields, body=_set_body(found), events=[] if member.address == header.broker_address else [moved]
    )


def _unregistered(remark: str, header: headers.RegisterToController) -> ControllerResult:
    code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    return _refused(code, remark, _named(header))


def _named(
    header: headers.NextBrokerId | headers.ApplyBrokerId | headers.RegisterToController,
) -> dict[str, FieldValue | None]:
    return {"clusterName": header.cluster_name, "brokerName": header.broker_name}


# --- the in-sync set ---------------------------------------------------------------------------


def alter_sync_state_set(
    sets: Sets, lives: Liveness, header: headers.AlterSyncStateSet, told: SyncStateSet
) -> ControllerResult:
    """1001."""
    name, found = header.broker_name, sets.get(header.broker_name)
    if found is None:
        return _not_altered("Broker metadata is not existed")
    in_sync = frozenset(told.sync_state_set)
    if in_sync == found.in_sync:
        return _not_altered("The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet")
    rejected = "Rejecting alter syncStateSet request because the"
    if found.master is None or found.master != header.master_broker_id:
        master = "null" if found.master is None else found.master
        return _not_altered(
            f"{rejected} current leader is:{{{master}}}, not {{{header.master_broker_id}}}",
            ResponseCode.CONTROLLER_INVALID_MASTER,
        )
    if header.master_epoch != found.master_epoch:
        return _not_altered(
            f"{rejected} current master epoch is:{{{found.master_epoch}}}, not {{{header.master_epoch}}}",
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        )
    if told.sync_state_set_epoch != found.in_sync_epoch:
        return _not_altered(
            f"{rejected} current syncStateSet epoch is:{{{found.in_sync_epoch}}}, not {{{told.sync_state_set_epoch}}}",
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        )
    for broker_id in sorted(in_sync):
        if broker_id not in found.members:
            return _not_altered(
                f"{rejected} replicas {{{broker_id}}} don't exist", ResponseCode.CONTROLLER_INVALID_REPLICAS
            )
        if not lives.is_alive(found.cluster, name, broker_id):
            return _not_altered(
                f"{rejected} replicas {{{broker_id}}} don't alive", ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
            )
    if found.master not in in_sync:
        return _not_altered(f"{rejected} newSyncStateSet don't contains origin leader {{{found.master}}}")
    epoch = found.in_sync_epoch + 1
    return ControllerResult(
        fields={"newSyncStateSetEpoch": epoch},
        body=fastjson.dumps(SyncStateSet(sorted(in_sync), epoch)),
        events=[InSyncChanged(name, in_sync)],
    )


def _not_altered(
    remark: str, code: ResponseCode = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
) -> ControllerResult:
    return _refused(code, remark, {"newSyncStateSetEpoch": 0})


# --- elections -------------------------------------------------------------------------------


def elect_master(
    sets: Sets, lives: Living, header: headers.ElectMaster, *, is_unclean_allowed: bool
) -> ControllerResult:
    """1002, and a controller's own election when a master is lost."""
    name, found = header.broker_name, sets.get(header.broker_name)
    if found is None:
        return _refused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered")
    master = elected(name, found, lives, header, is_unclean_allowed=is_unclean_allowed)
    if master is not None and master == found.master:
        return _refused(
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            f"The old master {master} is still alive, not need to elect new master for broker {name}",
            _master(found),
            fastjson.dumps(ElectedBody(sorted(found.in_sync))),
        )
    if master is not None:
        addresses = {one: member.address for one, member in found.members.items()}
        group = MemberGroup(found.cluster, name, addresses)
        return ControllerResult(
            fields={
                "masterBrokerId": master,
                "masterAddress": found.address_of(master),
                "masterEpoch": found.master_epoch + 1,
                "syncStateSetEpoch": found.in_sync_epoch + 1,
            },
            # Java: with bare numbers as keys, which RocketMQ's mqadmin electMaster can't read.
            body=fastjson.dumps_standard(ElectedBody([master], group)),
            events=[MasterElected(name, master)],
        )
    if header.broker_id == NOBODY_ASKED:  # the loss of the last master must become known
        return _refused(
            ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, "Old master has down and failed to elect a new broker master"
        )._replace(events=[MasterElected(name, None)])
    return _refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master")


def without_master(sets: Sets, lives: Liveness) -> list[str]:
    """Return the names whose master is dead while another broker lives.

    Java: ReplicasInfoManager#scanNeedReelectBrokerSets.
    """
    return [
        name
        for name, found in sets.items()
        if found.master is not None
        and not lives.is_alive(found.cluster, name, found.master)
        and any(lives.is_alive(found.cluster, name, broker_id) for broker_id in found.members)
    ]


# --- queries -----------------------------------------------------------------------------------


def replica_info(sets: Sets, header: headers.BrokerNameHeader) -> ControllerResult:
    """1004."""
    found = sets.get(header.broker_name)
    if found is None:
        return _refused(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed")
    fields = _master(found)
    del fields["syncStateSetEpoch"]
    return ControllerResult(fields=fields, body=_set_body(found))


def sync_state_data(sets: Sets, lives: Liveness, names: Iterable[str]) -> ControllerResult:
    """1006: unknown names are left out."""
    table = {name: _replicas(name, sets[name], lives) for name in names if name in sets}
    return ControllerResult(body=fastjson.dumps(ReplicasTable(table)))


def _replicas(name: str, found: BrokerSet, lives: Liveness) -> ReplicasInfo:
    replicas = [
        ReplicaIdentity(name, broker_id, member.address, lives.is_alive(found.cluster, name, broker_id))
        for broker_id, member in sorted(found.members.items())
    ]
    return ReplicasInfo(
        master_epoch=found.master_epoch,
        sync_state_set_epoch=found.in_sync_epoch,
        in_sync_replicas=[one for one in replicas if one.broker_id in found.in_sync],
        not_in_sync_replicas=[one for one in replicas if one.broker_id not in found.in_sync],
        master_broker_id=found.master,
        master_address=found.address_of(found.master),
    )


# --- forgetting ------------------------------------------------------------------------------


def clean_broker_data(sets: Sets, lives: Liveness, header: headers.CleanBrokerData) -> ControllerResult:
    """1011. With ``clean_living_broker`` all brokers of the name are forgotten, whichever ids it has."""
    name, ids = header.broker_name, (header.broker_controller_ids_to_clean or "").strip()
    found = sets.get(name)
    broker_ids: frozenset[int] = frozenset()
    if not header.clean_living_broker:
        if not ids and found is not None and found.master is not None:
            return _not_cleaned(f"Broker {name} is still alive, clean up failure")
        if ids and not _IDS.fullmatch(ids):
            return _not_cleaned(
                "Please set the option <brokerControllerIdsToClean> according to the format: "
                f"ids joined by ;, not {ids}"
            )
        broker_ids = frozenset(int(one) for one in ids.split(";") if one)
        for broker_id in sorted(broker_ids):
            if lives.is_alive(header.cluster_name or "", name, broker_id):
                return _not_cleaned(f"Broker [{name},  {broker_id}] is still alive, clean up failure")
    if found is None:
        return _not_cleaned(f"Broker {name} is not existed,clean broker data failure.")
    return ControllerResult(events=[Cleaned(name, broker_ids)])


def _not_cleaned(remark: str) -> ControllerResult:
    return _refused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark)


# --- parts of answers ------------------------------------------------------------------------


def _master(found: BrokerSet) -> dict[str, FieldValue | None]:
    return {
        "masterBrokerId": found.master,
        "masterAddress": found.address_of(found.master),
        "masterEpoch": found.master_epoch,
        "syncStateSetEpoch": found.in_sync_epoch,
    }


def _set_body(found: BrokerSet) -> bytes:
    return fastjson.dumps(SyncStateSet(sorted(found.in_sync), found.in_sync_epoch))


def _refused(
    code: ResponseCode, remark: str, fields: Mapping[str, FieldValue | None] | None = None, body: bytes = b""
) -> ControllerResult:
    return ControllerResult(code, remark, fields or {}, body)
