"""The state that controllers agree on: the brokers of each name, their master, and the in-sync set.

The state is a value, from name to `BrokerSet`, and changes by events, one after another. ``after`` computes the next
value from an event, the same on every controller. Epochs count changes of the master and of the in-sync set. They only
rise, so that a broker can tell old news from new.

Source: RocketMQ's ``ReplicasInfoManager#applyEvent``, ``BrokerReplicaInfo``, ``SyncStateInfo``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from firearrow.javanumbers import LONG_MAX
from firearrow.raft import readable

FIRST_ID: Final = 1
ID_MAX: Final = LONG_MAX

Id = Annotated[int, Meta(ge=-ID_MAX - 1, le=ID_MAX)]
Epoch = Annotated[int, Meta(ge=0, le=ID_MAX)]


class ReplicaMember(msgspec.Struct, array_like=True, frozen=True):
    """A broker: its address, and the check code that proves to it that an id is its own."""

    address: str
    check_code: str


class BrokerSet(msgspec.Struct, array_like=True, frozen=True):
    """All brokers of a name."""

    cluster: str
    members: dict[Id, ReplicaMember] = {}
    next_id: Id = FIRST_ID
    master: Id | None = None
    master_epoch: Epoch = 0
    in_sync: frozenset[Id] = frozenset()
    in_sync_epoch: Epoch = 0

    def address_of(self, broker_id: int | None) -> str | None:
        """Return the address of a broker; None if it is unknown."""
        member = None if broker_id is None else self.members.get(broker_id)
        return None if member is None else member.address


Sets = Mapping[str, BrokerSet]
NO_SETS: Final[Sets] = {}


class ControllerEvent(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Base of the events; each is about one name."""

    broker: str


class IdApplied(ControllerEvent, frozen=True, tag=True):
    """A broker has received an id."""

    cluster: str
    broker_id: Id
    address: str
    check_code: str


class AddressChanged(ControllerEvent, frozen=True, tag=True):
    """A broker listens at another address."""

    broker_id: Id
    address: str


class MasterElected(ControllerEvent, frozen=True, tag=True):
    """A new master, which alone is in sync; None: the last one is lost, without a successor."""

    master: Id | None


class InSyncChanged(ControllerEvent, frozen=True, tag=True):
    """A new in-sync set, as the master has announced it."""

    in_sync: frozenset[Id]


class Cleaned(ControllerEvent, frozen=True, tag=True):
    """Brokers are forgotten; an empty set means all brokers of the name."""

    broker_ids: frozenset[Id]


AnyEvent = IdApplied | AddressChanged | MasterElected | InSyncChanged | Cleaned
_encoder: Final = msgspec.msgpack.Encoder()
_events: Final = msgspec.msgpack.Decoder(list[AnyEvent])
_sets: Final = msgspec.msgpack.Decoder(dict[str, BrokerSet])


def after(sets: Sets, event: AnyEvent) -> Sets:
    """Return the state after an event.

    An event about an unknown name changes nothing, and neither does the election of an unknown broker.
    """
    found = sets.get(event.broker)
    if found is None:
        if not isinstance(event, IdApplied):
            return sets
        found = BrokerSet(event.cluster)
    changed = _changed(found, event)
    others = {name: one for name, one in sets.items() if name != event.broker}
    return others if changed is None else {**others, event.broker: changed}


def after_all(sets: Sets, events: Iterable[AnyEvent]) -> Sets:
    """Return the state after several events."""
    return reduce(after, events, sets)


def _changed(found: BrokerSet, event: AnyEvent) -> BrokerSet | None:
    """Return the set after an event; None if nothing is left of it."""
    match event:
        case IdApplied():
            return _with_member(found, event)
        case AddressChanged():
            return _moved(found, event)
        case MasterElected(_, None):
            return replace(found, master=None, master_epoch=found.master_epoch + 1)
        case MasterElected(_, master):
            if master not in found.members:
                return found
            return replace(_in_sync(found, frozenset((master,))), master=master, master_epoch=found.master_epoch + 1)
        case InSyncChanged():
            return _in_sync(found, event.in_sync)
        case Cleaned():
            return _without(found, event.broker_ids)


def _in_sync(found: BrokerSet, in_sync: frozenset[int]) -> BrokerSet:
    return replace(found, in_sync=in_sync, in_sync_epoch=found.in_sync_epoch + 1)


def _with_member(found: BrokerSet, event: IdApplied) -> BrokerSet:
    if event.broker_id in found.members:
        return found
    members = {**found.members, event.broker_id: ReplicaMember(event.address, event.check_code)}
    # Java: BrokerReplicaInfo#addBroker adds one, also for an id beyond the next: its turn never passes then.
    next_id = min(max(found.next_id, event.broker_id) + 1, ID_MAX)
    return replace(found, members=members, next_id=next_id)


def _moved(found: BrokerSet, event: AddressChanged) -> BrokerSet:
    member = found.members.get(event.broker_id)
    if member is None:
        return found
    moved = ReplicaMember(event.address, member.check_code)
    return replace(found, members={**found.members, event.broker_id: moved})


def _without(found: BrokerSet, broker_ids: frozenset[int]) -> BrokerSet | None:
    members = {one: member for one, member in found.members.items() if one not in broker_ids}
    if not broker_ids or not members:
        return None
    # Java: ReplicasInfoManager#handleCleanBrokerDataEvent keeps a forgotten broker as master. It forgets the remaining
    # brokers if none of them is in sync: the name then begins at epoch 0.
    is_lost = found.master in broker_ids
    in_sync = found.in_sync - broker_ids
    found = replace(found, members=members)
    if in_sync != found.in_sync:
        found = _in_sync(found, in_sync)
    if is_lost:
        found = replace(found, master=None, master_epoch=found.master_epoch + 1)
    return found


def encode_events(events: list[AnyEvent]) -> bytes:
    """Return the bytes of events, for an entry of the log."""
    return _encoder.encode(events)


def decode_events(data: bytes) -> list[AnyEvent]:
    """Read the events of an entry, none if it is empty; raises MessageError for other bytes."""
    return readable(_events.decode, data) if data else []


def encode_sets(sets: Sets) -> bytes:
    """Return the bytes of a whole state, for a snapshot."""
    return _encoder.encode(dict(sets))


def decode_sets(data: bytes) -> Sets:
    """Read a whole state; raises MessageError for other bytes."""
    return readable(_sets.decode, data) if data else {}


class ReplicaStateMachine:
    """The state machine of an `Agreement`; ``sets`` is the agreed state."""

    def __init__(self) -> None:
        self.sets: Sets = NO_SETS

    def check(self, changes: Iterable[bytes], state: bytes) -> None:
        """Raise MessageError for data that can't be applied, or restored."""
        for data in changes:
            decode_events(data)
        decode_sets(state)

    def apply(self, data: bytes) -> None:
        """Apply the next agreed entry."""
        self.sets = after_all(self.sets, decode_events(data))

    def restore(self, data: bytes) -> None:
        """Replace the state by a snapshot."""
        self.sets = decode_sets(data)

    def snapshot(self) -> bytes:
        """Return the whole state as a snapshot."""
        return encode_sets(self.sets)
