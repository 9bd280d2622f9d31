"""Administration of servers: brokers and controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from firearrow.client.admin.calls import Part
from firearrow.client.session.answers import read_number
from firearrow.errors import BrokerFailed, NotFound
from firearrow.wire import fastjson, headers
from firearrow.wire.admin_bodies import HaStatus, QueueCheckResult, QueueEntries
from firearrow.wire.bodies import KVTable
from firearrow.wire.client_bodies import BrokerStatsData, DelayProgress, TimingCounts
from firearrow.wire.codes import RequestCode as Code
from firearrow.wire.codes import ResponseCode
from firearrow.wire.controller_bodies import EpochsOfBroker, ReplicasTable

ROLLBACK_SECONDS: Final = 30.0
EARLY_SECONDS: Final = 1.5  # after the start of RocketMQ's broker, which has no samples of its counters yet
_EARLY_TRIES: Final = 6


class Brokers(Part):
    """Brokers by their addresses."""

    async def config(self, address: str) -> dict[str, str]:
        """Give the configuration in effect."""
        return await self._calls.config(address, Code.GET_BROKER_CONFIG)

    async def update_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change keys of the configuration."""
        await self._calls.update_config(address, Code.UPDATE_BROKER_CONFIG, changes)

    async def runtime(self, address: str) -> dict[str, str]:
        """Give the counters of a broker, by name.

        RocketMQ's broker fails in the second after its start, while it has no sample (``StoreStatsService``). Then
        the request is repeated.
        """
        for _ in range(_EARLY_TRIES):
            try:
                return (await self._calls.read(address, Code.GET_BROKER_RUNTIME_INFO, KVTable)).table
            except BrokerFailed as error:
                if "NoSuchElementException" not in error.remark:
                    raise
                await asyncio.sleep(EARLY_SECONDS / _EARLY_TRIES)
        return (await self._calls.read(address, Code.GET_BROKER_RUNTIME_INFO, KVTable)).table

    async def timer_counts(self, address: str) -> dict[str, int]:
        """Give the count of messages of each topic that wait for their time."""
        found = await self._calls.read(address, Code.GET_TIMER_METRICS, TimingCounts)
        return {topic: at.count for topic, at in found.timing_count.items()}

    async def delay_offsets(self, address: str) -> dict[int, int]:
        """Give the queue offset of the next message of each delay level."""
        return (await self._calls.read(address, Code.GET_ALL_DELAY_OFFSET, DelayProgress)).offset_table

    async def counter(self, address: str, name: str, key: str) -> BrokerStatsData:
        """Give one counter over the last minute, hour and day."""
        header = headers.ViewBrokerStats(name, key)
        return await self._calls.read(address, Code.VIEW_BROKER_STATS_DATA, BrokerStatsData, header)

    async def clean_queues(self, address: str) -> None:
        """Delete queue files whose messages are deleted."""
        await self._calls.call(address, Code.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_log(self, address: str) -> None:
        """Delete expired log files now."""
        await self._calls.call(address, Code.DELETE_EXPIRED_COMMITLOG)

    async def clean_topics(self, address: str) -> None:
        """Delete queues of deleted topics."""
        await self._calls.call(address, Code.CLEAN_UNUSED_TOPIC)

    async def entries(
        self, address: str, topic: str, queue_id: int, index: int, count: int, group: str | None = None
    ) -> QueueEntries:
        """Give the stored entries of a queue, and a group's subscription to the topic."""
        header = headers.QueryConsumeQueue(topic, queue_id, index, count, group)
        return await self._calls.read(address, Code.QUERY_CONSUME_QUEUE, QueueEntries, header)

    async def ha_status(self, address: str) -> HaStatus:
        """Give the progress of replication."""
        return await self._calls.read(address, Code.GET_BROKER_HA_STATUS, HaStatus)

    async def set_flush_offset(self, address: str, offset: int) -> None:
        """Tell a slave its master's flushed offset, a physical one."""
        await self._calls.call(address, Code.RESET_MASTER_FLUSH_OFFSET, headers.FlushOffset(offset))

    async def set_timer_engine(self, address: str, engine: str) -> None:
        """Store timed messages in RocksDB (``R``) or in files (``F``)."""
        await self._calls.call(address, Code.SWITCH_TIMER_ENGINE, headers.TimerEngine(engine))

    async def check_queues(self, address: str, topic: str, since_ms: int) -> QueueCheckResult:
        """Compare queues in RocksDB with queues in files, of one topic or (blank) of all."""
        header = headers.CheckQueues(topic, since_ms)
        return await self._calls.read(address, Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, QueueCheckResult, header)

    async def export_configs(self, address: str, kinds: Iterable[str]) -> None:
        """Make the broker write its tables in RocksDB as JSON."""
        header = headers.ExportConfig("".join(f"{kind};" for kind in kinds))
        await self._calls.call(address, Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, header)

    async def export_pops(self, address: str) -> None:
        """Move the records of popped messages from RocksDB into the log."""
        await self._calls.call(address, Code.POP_ROLLBACK, seconds=ROLLBACK_SECONDS)


class ControllerGroup(NamedTuple):
    """A group of controllers as one of them knows it; without a leader two fields are None."""

    name: str
    leader: str | None
    leader_address: str | None
    peers: list[str]


class Elected(NamedTuple):
    """The elected master, its epoch, and the epoch of the set of replicas in sync."""

    address: str
    epoch: int
    in_sync_epoch: int


class Controllers(Part):
    """Controllers; an address is that of any controller of a group, and the group's leader gets the request."""

    async def group(self, address: str) -> ControllerGroup:
        """Give the leader and the members of the group."""
        found = (await self._calls.call(address, Code.CONTROLLER_GET_METADATA_INFO)).ext
        return ControllerGroup(
            found.get("group", ""),
            found.get("controllerLeaderId"),
            found.get("controllerLeaderAddress"),
            [peer for peer in found.get("peers", "").split(";") if peer],
        )

    async def _leader(self, address: str) -> str:
        leader = (await self.group(address)).leader_address
        if leader is None:
            why = f"controller {address} knows of no leader of its group"
            raise NotFound(ResponseCode.CONTROLLER_NOT_LEADER, why)
        return leader

    async def replicas(self, address: str, brokers: Sequence[str]) -> ReplicasTable:
        """Give the master, the epochs and the replicas in sync of some broker names."""
        code, about = Code.CONTROLLER_GET_SYNC_STATE_DATA, f"brokers {', '.join(brokers)}"
        body = fastjson.dumps(list(brokers))
        return await self._calls.read(await self._leader(address), code, ReplicasTable, body=body, about=about)

    async def elect(self, address: str, cluster: str, broker: str, broker_id: int) -> Elected:
        """Make a broker the master of its name; BrokerError if the controllers refuse."""
        leader = await self._leader(address)
        header = headers.ElectMaster(broker, cluster, broker_id, designate_elect=True)
        answer = await self._calls.call(leader, Code.CONTROLLER_ELECT_MASTER, header)
        return Elected(
            answer.ext.get("masterAddress", ""),
            read_number(answer, "masterEpoch", leader),
            read_number(answer, "syncStateSetEpoch", leader),
        )

    async def forget(
        self, address: str, cluster: str | None, broker: str, broker_ids: str | None, *, living: bool = False
    ) -> None:
        """Forget brokers of a name, by ids joined by ``;`` or all; ``living`` includes the brokers that are alive."""
        header = headers.CleanBrokerData(broker, cluster, broker_ids, clean_living_broker=living)
        await self._calls.call(await self._leader(address), Code.CLEAN_BROKER_DATA, header)

    async def config(self, address: str) -> dict[str, str]:
        """Give the configuration of this controller that is in effect."""
        return await self._calls.config(address, Code.GET_CONTROLLER_CONFIG)

    async def update_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change keys of the configuration of this controller."""
        await self._calls.update_config(address, Code.UPDATE_CONTROLLER_CONFIG, changes)

    async def epochs(self, broker_address: str) -> EpochsOfBroker:
        """Give the ranges of a broker's log by the masters that wrote them."""
        return await self._calls.read(broker_address, Code.GET_BROKER_EPOCH_CACHE, EpochsOfBroker)
