"""Requests of administrators about the broker itself: configuration, state, statistics.

Source: RocketMQ's ``AdminBrokerProcessor``, ``Configuration``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.broker.groups.clients import ClientChannel
from firearrow.broker.metrics.stats import BrokerStats
from firearrow.broker.timing.counts import TimerCounts
from firearrow.config import changes
from firearrow.errors import BrokerError, ConfigError
from firearrow.logs import Log
from firearrow.message.names import TIMER_TOPIC
from firearrow.net.server import Steps
from firearrow.store import TimerStore
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import QueueCheckResult
from firearrow.wire.bodies import KVTable
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import CheckQueues, FlushOffset, ReadMode, ViewBrokerStats

log: Final = Log(__name__)

VERSION_TEXT: Final = "V5_5_0"  # the RocketMQ release with the same protocol
_READ_AHEAD: Final = 0  # RocketMQ: LibC.MADV_NORMAL
_READ_RANDOMLY: Final = 1  # MADV_RANDOM
_CHECKED: Final = 0  # Java: CheckRocksdbCqWriteResult.CheckStatus.CHECK_OK

_NO_COLD_LIMITS: Final[Mapping[str, Any]] = {
    "runtimeTable": {},
    "configTable": {},
    "cgColdReadThreshold": 3 * 1024 * 1024,
    "globalColdReadThreshold": 100 * 1024 * 1024,
    "globalAcc": 0,
}
_QUEUES: Final = (
    *("sendThreadPoolQueue", "pullThreadPoolQueue", "litePullThreadPoolQueue"),
    *("queryThreadPoolQueue", "ackThreadPoolQueue"),
)

_CAPACITIES: Final[Mapping[str, str]] = {
    "sendThreadPoolQueueCapacity": "send_thread_pool_queue_capacity",
    "pullThreadPoolQueueCapacity": "pull_thread_pool_queue_capacity",
    "litePullThreadPoolQueueCapacity": "lite_pull_thread_pool_queue_capacity",
    "queryThreadPoolQueueCapacity": "query_thread_pool_queue_capacity",
    "ackThreadPoolQueueCapacity": "admin_broker_thread_pool_queue_capacity",
    "EndTransactionThreadPoolQueueCapacity": "end_transaction_pool_queue_capacity",
}
"""Keys that limit the waiting requests of a kind (`broker.flowcontrol`)."""

_PUT_TIMES: Final = (
    *("[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]"),
    *("[500ms~1s]", "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]"),
)
"""Java: StoreStatsService#PUT_MESSAGE_ENTIRE_TIME_MAX_DESC."""

# Constant for a broker with one event loop: no requests wait for thread pools, nothing locks the page cache, and there
# is no pool of buffers (this is RocketMQ's value for that).
_ABSENT: Final[Mapping[str, str]] = {
    **{f"{queue}{fact}": "0" for queue in _QUEUES for fact in ("Size", "HeadWaitTimeMills")},
    "EndTransactionQueueSize": "0",
    "dispatchMaxBuffer": "0",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": "2147483647",
    "timerDequeueTps": "0.0",
    "timerEnqueueTps": "0.0",
}


class BrokerAdminProcessor:
    """25, 26, 28, 60, 61, 306, 315, 316, 329, 354, 2004."""

    def __init__(
        self, context: BrokerContext, delay_offsets: DelayOffsets, timers: TimerStore, timer_counts: TimerCounts
    ) -> None:
        self._settings = context.settings
        self._topics = context.topics
        self._store = context.store
        self._stats = context.stats
        self._clock = context.clock
        self._timers = timers
        self._timer_counts = timer_counts
        self._replicas = context.replicas
        self._delay_offsets = delay_offsets

    def update_config(self, _: ClientChannel, request: AnyCommand) -> Response:
        """25: change keys of the configuration, all or none."""
        pairs = _pairs_of(request.body)
        if any(map(self._settings.is_fixed, pairs)):
            raise BrokerError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        if not pairs:
            return Response()
        try:
            self._settings.change(pairs)
        except ConfigError as error:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        except OSError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"not changed, the file can't be written: {error}") from None
        if "brokerPermission" in pairs:
            self._topics.touch()  # name servers hold it as a part of each topic
        return Response()

    def config(self, _: ClientChannel, __: AnyCommand) -> Response:
        """26: the whole configuration."""
        version = fastjson.dumps(self._settings.version).decode()
        return Response(fields={"version": version}, body=self._settings.text().encode())

    def runtime_info(self, _: ClientChannel, __: AnyCommand) -> Response:
        """28: activity of the broker and state of its store."""
        facts = {**_ABSENT, **self._facts(), **traffic_of(self._stats), **self._store.runtime_facts()}
        return Response(body=fastjson.dumps(KVTable(dict(sorted(facts.items())))))

    def _facts(self) -> dict[str, str]:
        broker = self._settings.broker
        running_ms = max(0, self._clock.now_ms() - self._stats.boot_ms)
        return {
            "bootTimestamp": str(self._stats.boot_ms),
            "brokerActive": "true",
            "brokerVersionDesc": VERSION_TEXT,
            "runtime": _duration(running_ms // 1000),
            "startAcceptSendRequestTimeStamp": str(broker.start_accept_send_request_time_stamp),
            **{name: str(getattr(broker, field)) for name, field in _CAPACITIES.items()},
            **self._timer_facts(),
        }

    def _timer_facts(self) -> dict[str, str]:
        timers = self._timers
        behind = self._store.max_queue_offset(TIMER_TOPIC, 0) - timers.progress.queue_offset
        return {
            "timerCongestNum": str(sum(timers.pending.values())),
            "timerOffsetBehind": str(max(behind, 0)),
            "timerReadBehind": str(timers.late_ms(self._clock.now_ms()) // 1000),
        }

    def timer_progress(self, _: ClientChannel, __: AnyCommand) -> Response:
        """60: progress of the timer, as in ``timercheck``.

        A time before which nothing waits counts as read, as in RocketMQ: so a slave knows that messages are delivered,
        also while no other arrives.
        """
        timers, progress = self._timers, self._timers.progress
        if progress.read_ms and not self._replicas.is_slave:
            read_ms = timers.delivered_before_ms(self._clock.now_ms())
            progress = progress._replace(read_ms=read_ms)
        return Response(body=timers.content(progress))

    def timer_counts(self, _: ClientChannel, __: AnyCommand) -> Response:
        """61: count of messages of each topic that wait for their time."""
        return Response(body=fastjson.dumps(self._timer_counts.metrics()))

    def cold_limits(self, _: ClientChannel, __: AnyCommand) -> Response:
        """2003: limits for reads of old messages; there are none.

        The thresholds are RocketMQ's defaults, where limits are off.
        """
        return Response(body=fastjson.dumps(_NO_COLD_LIMITS))

    def ha_status(self, _: ClientChannel, __: AnyCommand) -> Response:
        """907: progress of the slaves or, on a slave, of this broker."""
        return Response(body=fastjson.dumps(self._replicas.status()))

    def reset_master_flush(self, _: ClientChannel, request: AnyCommand) -> Response:
        """908: set the flush offset of the master, as a slave sees it; a master ignores it."""
        physical_offset = fields_of(request, FlushOffset).master_flush_offset
        if physical_offset is not None and self._replicas.is_slave:
            self._store.checkpoint.master_flushed_offset = physical_offset
        return Response()

    def delays(self, _: ClientChannel, __: AnyCommand) -> Response:
        """45: progress of the deliveries by delay level, for slaves."""
        self._delay_offsets.settle(self._store.flushed_offset)
        return Response(body=fastjson.dumps(self._delay_offsets.settled()))

    def counter(self, _: ClientChannel, request: AnyCommand) -> Response:
        """315: one counter over the last minute, hour and day."""
        header = fields_of(request, ViewBrokerStats)
        found = self._stats.view(header.stats_name, header.stats_key)
        if found is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        return Response(body=fastjson.dumps(found))

    def read_log(self, _: ClientChannel, request: AnyCommand) -> Response:
        """2004: turn read-ahead of the log by the system on or off, until the broker stops."""
        mode = fields_of(request, ReadMode).mode
        if mode not in (_READ_AHEAD, _READ_RANDOMLY):
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"set commitlog readahead mode param value error: {mode}")
        self._store.advise(read_ahead=mode == _READ_AHEAD)
        return Response(remark=f"set commitlog readahead mode success, mode: {mode}")

    def check_queues(self, _: ClientChannel, request: AnyCommand) -> Response:
        """354: compare queues in files with their copies in RocksDB; here there are no copies.

        Java: AdminBrokerProcessor#checkRocksdbCqWriteProgress writes the outcome only to its log.
        """
        fields_of(request, CheckQueues)
        found = QueueCheckResult("queues are stored in one form only, no need to check", _CHECKED)
        return Response(body=fastjson.dumps(found))

    def clean_queues(self, _: ClientChannel, __: AnyCommand) -> Steps:
        """306: delete the queues whose messages are no longer in the log."""
        for queue in self._store.delete_expired_queues():
            log.warning(
                "queue is deleted: it has no messages left", extra={"topic": queue.topic, "queue_id": queue.queue_id}
            )
            yield
        return Response()

    def clean_topics(self, _: ClientChannel, __: AnyCommand) -> Steps:
        """316: delete the queues of topics that are not configured."""
        yield from self._store.dispatch_in_steps()
        for topic in self._store.delete_unused_topics(self._topics.table):
            log.warning("queues are deleted: there is no such topic", extra={"topic": topic})
            yield
        return Response()

    def clean_log(self, _: ClientChannel, __: AnyCommand) -> Response:
        """329: delete expired CommitLog files, at any hour."""
        self._store.clean_on_request()
        return Response()


def _pairs_of(body: bytes) -> dict[str, str]:
    try:
        return changes.read(body)
    except (UnicodeDecodeError, ConfigError) as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from None


def traffic_of(stats: BrokerStats) -> dict[str, str]:
    """Return the traffic of a broker, by the names of request 28."""
    put, got = stats.put_totals(), stats.get_totals()
    count, size = stats.put_sum()
    found, missed = stats.found.rates(), stats.missed.rates()
    return {
        "msgPutTotalYesterdayMorning": str(put.yesterday_morning),
        "msgPutTotalTodayMorning": str(put.today_morning),
        "msgPutTotalTodayNow": str(put.now),
        "msgGetTotalYesterdayMorning": str(got.yesterday_morning),
        "msgGetTotalTodayMorning": str(got.today_morning),
        "msgGetTotalTodayNow": str(got.now),
        "putMessageTimesTotal": str(count),
        "putMessageSizeTotal": str(size),
        "putMessageDistributeTime": " ".join(
            f"{name}:{number}" for name, number in zip(_PUT_TIMES, stats.stalls.put_times(count), strict=True)
        ),
        "putMessageEntireTimeMax": str(stats.stalls.put_ms_max),
        "getMessageEntireTimeMax": str(stats.stalls.other_ms_max),
        "putLatency99": f"{stats.stalls.put_percentile_ms(count, 0.99):.2f}",
        "putLatency999": f"{stats.stalls.put_percentile_ms(count, 0.999):.2f}",
        "putMessageAverageSize": fastjson.java_double(size / count if count else 0.0),
        "putTps": _three(stats.puts.rates()),
        "getFoundTps": _three(found),
        "getMissTps": _three(missed),
        "getTotalTps": _three(tuple(map(sum, zip(found, missed, strict=True)))),
        "getTransferredTps": _three(stats.gets.rates()),
    }


def _three(rates: tuple[float, ...]) -> str:
    return " ".join(map(fastjson.java_double, rates))


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
