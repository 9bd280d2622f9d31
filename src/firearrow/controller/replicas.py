"""What controllers agree on: the brokers of each name, their master, and who has all it has.

It is a value, from name to `BrokerSet`, and changes by events, one after another. ``after`` makes
the next value of an event, the same on every controller. Epochs count changes of the master and of
the set of those in sync. They only rise, so that a broker can tell old news from new.

Source: upstream ``ReplicasInfoManager#applyEvent``, ``BrokerReplicaInfo``, ``SyncStateInfo``.
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


class Member(msgspec.Struct, array_like=True, frozen=True):
    """A broker: where it listens, and the code by which it knows its id for its own."""

    address: str
    check_code: str


class BrokerSet(msgspec.Struct, array_like=True, frozen=True):
    """All brokers of a name."""

    cluster: str
    members: dict[Id, Member] = {}
    next_id: Id = FIRST_ID
    master: Id | None = None
    master_epoch: Epoch = 0
    in_sync: frozenset[Id] = frozenset()
    in_sync_epoch: Epoch = 0

    def address_of(self, broker_id: int | None) -> str | None:
        """Where a broker listens; None for one that there is not."""
        member = None if broker_id is None else self.members.get(broker_id)
        return None if member is None else member.address


Sets = Mapping[str, BrokerSet]
NO_SETS: Final[Sets] = {}


class Event(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Base of the events; all are about one name."""

    broker: str


class IdApplied(Event, frozen=True, tag=True):
    """A broker has got an id."""

    cluster: str
    broker_id: Id
    address: str
    check_code: str


class AddressChanged(Event, frozen=True, tag=True):
    """A broker listens elsewhere."""

    broker_id: Id
    address: str


class MasterElected(Event, frozen=True, tag=True):
    """There is a new master, which alone is in sync; None: the last is lost, and none follows."""

    master: Id | None


class InSyncChanged(Event, frozen=True, tag=True):
    """The master has told who else has all its messages."""

    in_sync: frozenset[Id]


class Cleaned(Event, frozen=True, tag=True):
    """Brokers are forgotten; none named: all of the name."""

    broker_ids: frozenset[Id]


AnyEvent = IdApplied | AddressChanged | MasterElected | InSyncChanged | Cleaned
_encoder: Final = msgspec.msgpack.Encoder()
_events: Final = msgspec.msgpack.Decoder(list[AnyEvent])
_sets: Final = msgspec.msgpack.Decoder(dict[str, BrokerSet])


def after(sets: Sets, event: AnyEvent) -> Sets:
    """Give the state after an event; one about a name, or the election of a broker, that is not
    there changes nothing."""
    found = sets.get(event.broker)
    if found is None:
        if not isinstance(event, IdApplied):
            return sets
        found = BrokerSet(event.cluster)
    changed = _changed(found, event)
    others = {name: one for name, one in sets.items() if name != event.broker}
    return others if changed is None else {**others, event.broker: changed}


def after_all(sets: Sets, events: Iterable[AnyEvent]) -> Sets:
    """Give the state after several events."""
    return reduce(after, events, sets)


def _changed(found: BrokerSet, event: AnyEvent) -> BrokerSet | None:
    """The set after an event; None: there is none any more."""
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
    members = {**found.members, event.broker_id: Member(event.address, event.check_code)}
    # Java: BrokerReplicaInfo#addBroker adds one, also for an id beyond: its turn never passes then.
    next_id = min(max(found.next_id, event.broker_id) + 1, ID_MAX)
    return replace(found, members=members, next_id=next_id)


def _moved(found: BrokerSet, event: AddressChanged) -> BrokerSet:
    member = found.members.get(event.broker_id)
    if member is None:
        return found
    moved = Member(event.address, member.check_code)
    return replace(found, members={**found.members, event.broker_id: moved})


def _without(found: BrokerSet, broker_ids: frozenset[int]) -> BrokerSet | None:
    members = {one: member for one, member in found.members.items() if one not in broker_ids}
    if not broker_ids or not members:
        return None
    # Java: ReplicasInfoManager#handleCleanBrokerDataEvent keeps a master that is not there any
    # more, and forgets who is left if none of them is in sync: the name then begins at epoch 0.
    is_lost = found.master in broker_ids
    in_sync = found.in_sync - broker_ids
    found = replace(found, members=members)
    if in_sync != found.in_sync:
        found = _in_sync(found, in_sync)
    if is_lost:
        found = replace(found, master=None, master_epoch=found.master_epoch + 1)
    return found


def encode_events(events: list[AnyEvent]) -> bytes:
    """Give the bytes of events, for an entry of the log."""
    return _encoder.encode(events)


def decode_events(data: bytes) -> list[AnyEvent]:
    """Read the events of an entry, none in one that is empty; MessageError for other bytes."""
    return readable(_events.decode, data) if data else []


def encode_sets(sets: Sets) -> bytes:
    """Give the bytes of a whole state, for a snapshot."""
    return _encoder.encode(dict(sets))


def decode_sets(data: bytes) -> Sets:
    """Read a whole state; MessageError for other bytes."""
    return readable(_sets.decode, data) if data else {}


class ReplicaState:
    """The state machine of an `Agreement`: ``sets`` are what is agreed on."""

    def __init__(self) -> None:
        self.sets: Sets = NO_SETS

    def check(self, changes: Iterable[bytes], state: bytes) -> None:
        """Raise MessageError for what can't be applied, or restored."""
        for data in changes:
            decode_events(data)
        decode_sets(state)

    def apply(self, data: bytes) -> None:
        """Take the next entry that was agreed on."""
        self.sets = after_all(self.sets, decode_events(data))

    def restore(self, data: bytes) -> None:
        """Be as a snapshot says."""
        self.sets = decode_sets(data)

    def snapshot(self) -> bytes:
        """Give all of it."""
        return encode_sets(self.sets)
