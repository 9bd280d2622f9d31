"""Bodies that controllers exchange with brokers and tools: the master of a name, and the replicas in sync with it.

Source: RocketMQ's ``org.apache.rocketmq.remoting.protocol.body``: ``SyncStateSet``,
``ElectMasterResponseBody``, ``BrokerReplicasInfo``, ``EpochEntryCache``.
"""

from __future__ import annotations

from msgspec import field

from firearrow.wire.bodies import Body, MemberGroup


class SyncStateSet(Body, frozen=True):
    """1001, 1003, 1004, 1008: the ids of the brokers that have all messages, and the number (epoch) of this set."""

    sync_state_set: list[int] = field(default_factory=list)
    sync_state_set_epoch: int = 0


class ElectedBody(Body, frozen=True):
    """1002: the brokers that have all messages, and all brokers of that name."""

    sync_state_set: list[int]
    broker_member_group: MemberGroup | None = None


class ReplicaIdentity(Body, frozen=True):
    """One broker of a name."""

    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool


class ReplicasInfo(Body, frozen=True):
    """All brokers of a name, in sync and not."""

    master_epoch: int
    sync_state_set_epoch: int
    in_sync_replicas: list[ReplicaIdentity]
    not_in_sync_replicas: list[ReplicaIdentity]
    master_broker_id: int | None = None
    master_address: str | None = None


class ReplicasTable(Body, frozen=True):
    """1006: the brokers of several names."""

    replicas_info_table: dict[str, ReplicasInfo]


class EpochOfLog(Body, frozen=True):
    """An epoch of a log, and the physical offsets where it begins and ends."""

    epoch: int
    start_offset: int
    end_offset: int


class EpochsOfBroker(Body, frozen=True):
    """1007: the epochs of a broker's log, and the end of that log."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epoch_list: list[EpochOfLog]
    max_offset: int
