"""Administration of a broker as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from firearrow.client.admin.calls import Calls
from firearrow.config import properties
from firearrow.errors import BrokerFailed
from firearrow.wire import headers
from firearrow.wire.admin_bodies import HaStatus, QueueCheck, QueueEntries
from firearrow.wire.bodies import KVTable
from firearrow.wire.client_bodies import BrokerStatsData
from firearrow.wire.codes import RequestCode as Code

ROLLBACK_SECONDS: Final = 30.0
EARLY_SECONDS: Final = 1.5  # after its start, when RocketMQ's broker has counted nothing yet
_EARLY_TRIES: Final = 6


class Brokers:
    """Brokers by their addresses."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def config(self, address: str) -> dict[str, str]:
        """The configuration as it is in effect."""
        answer = await self._calls.call(address, Code.GET_BROKER_CONFIG)
        return properties.loads(answer.body.decode())

    async def update_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change keys of the configuration."""
        body = properties.dumps(changes).encode()
        about = f"keys {', '.join(changes)}"
        await self._calls.call(address, Code.UPDATE_BROKER_CONFIG, body=body, about=about)

    async def runtime(self, address: str) -> dict[str, str]:
        """Give the counters of a broker, by name.

        RocketMQ's fails in the second after its start (``StoreStatsService``: the last of its
        samples, of which there is none before): then it is asked again.
        """
        for _ in range(_EARLY_TRIES):
            try:
                found = await self._calls.read(address, Code.GET_BROKER_RUNTIME_INFO, KVTable)
            except BrokerFailed as error:
                if "NoSuchElementException" not in error.remark:
                    raise
                await asyncio.sleep(EARLY_SECONDS / _EARLY_TRIES)
            else:
                return found.table
        found = await self._calls.read(address, Code.GET_BROKER_RUNTIME_INFO, KVTable)
        return found.table

    async def counter(self, address: str, name: str, key: str) -> BrokerStatsData:
        """One counter over the last minute, hour and day."""
        header = headers.ViewBrokerStats(name, key)
        about = f"counter {name} of {key!r}"
        return await self._calls.read(address, Code.VIEW_BROKER_STATS_DATA, BrokerStatsData, header, about=about)

    async def clean_queues(self, address: str) -> None:
        """Delete queue files whose messages are gone."""
        await self._calls.call(address, Code.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_log(self, address: str) -> None:
        """Delete log files that are past their time, now."""
        await self._calls.call(address, Code.DELETE_EXPIRED_COMMITLOG)

    async def clean_topics(self, address: str) -> None:
        """Delete queues of topics that are no more."""
        await self._calls.call(address, Code.CLEAN_UNUSED_TOPIC)

    async def entries(
        self, address: str, topic: str, queue_id: int, index: int, count: int, group: str | None = None
    ) -> QueueEntries:
        """Entries of a queue as they are stored, and what a group wants of its topic."""
        header = headers.QueryConsumeQueue(topic, queue_id, index, count, group)
        about = f"queue {queue_id} of topic {topic!r}"
        return await self._calls.read(address, Code.QUERY_CONSUME_QUEUE, QueueEntries, header, about=about)

    async def ha_status(self, address: str) -> HaStatus:
        """Give the progress of replication."""
        return await self._calls.read(address, Code.GET_BROKER_HA_STATUS, HaStatus)

    async def set_flush_offset(self, address: str, offset: int) -> None:
        """Have a slave take its master to have flushed so far."""
        header = headers.FlushOffset(offset)
        await self._calls.call(address, Code.RESET_MASTER_FLUSH_OFFSET, header)

    async def set_timer_engine(self, address: str, engine: str) -> None:
        """Have timed messages kept in RocksDB (``R``) or in files (``F``)."""
        await self._calls.call(address, Code.SWITCH_TIMER_ENGINE, headers.TimerEngine(engine))

    async def check_queues(self, address: str, topic: str, since_ms: int) -> QueueCheck:
        """Compare queues in RocksDB with those in files, of one topic or (blank) of all."""
        header = headers.CheckQueues(topic, since_ms)
        code = Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS
        return await self._calls.read(address, code, QueueCheck, header, about=f"topic {topic!r}")

    async def export_configs(self, address: str, kinds: Iterable[str]) -> None:
        """Have tables that are kept in RocksDB written as JSON."""
        header = headers.ExportConfig("".join(f"{kind};" for kind in kinds))
        await self._calls.call(address, Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, header)

    async def export_pops(self, address: str) -> None:
        """Have the books of popped messages moved from RocksDB into the log."""
        await self._calls.call(address, Code.POP_ROLLBACK, seconds=ROLLBACK_SECONDS)
