"""Administration: the broker's configuration, its status, and manual cleaning."""

from __future__ import annotations

from firearrow.broker.administration.processor import BrokerAdminProcessor
from firearrow.broker.context import BrokerContext
from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.broker.feature import Feature, Handlers
from firearrow.broker.timing.counts import TimerCounts
from firearrow.store import TimerStore
from firearrow.wire.codes import RequestCode


class AdministrationFeature(Feature):
    """Requests of administrators about the broker as a whole."""

    def connect(
        self, context: BrokerContext, delay_offsets: DelayOffsets, timers: TimerStore, timer_counts: TimerCounts
    ) -> None:
        """Make the handlers."""
        self._handlers = administration_handlers(context, delay_offsets, timers, timer_counts)

    def saved_handlers(self) -> Handlers:
        """Handlers of configuration, status, cleaning, and of the progress that slaves request."""
        return self._handlers


def administration_handlers(
    context: BrokerContext, delay_offsets: DelayOffsets, timers: TimerStore, timer_counts: TimerCounts
) -> Handlers:
    """Make the handlers of an administrator's requests."""
    broker = BrokerAdminProcessor(context, delay_offsets, timers, timer_counts)
    return {
        RequestCode.UPDATE_BROKER_CONFIG: broker.update_config,
        RequestCode.GET_BROKER_CONFIG: broker.config,
        RequestCode.GET_BROKER_RUNTIME_INFO: broker.runtime_info,
        RequestCode.VIEW_BROKER_STATS_DATA: broker.counter,
        RequestCode.SET_COMMITLOG_READ_MODE: broker.read_log,
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: broker.check_queues,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: broker.clean_queues,
        RequestCode.CLEAN_UNUSED_TOPIC: broker.clean_topics,
        RequestCode.DELETE_EXPIRED_COMMITLOG: broker.clean_log,
        RequestCode.GET_TIMER_CHECK_POINT: broker.timer_progress,
        RequestCode.GET_TIMER_METRICS: broker.timer_counts,
        RequestCode.GET_BROKER_HA_STATUS: broker.ha_status,
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: broker.cold_limits,
        RequestCode.RESET_MASTER_FLUSH_OFFSET: broker.reset_master_flush,
        RequestCode.GET_ALL_DELAY_OFFSET: broker.delays,
    }
