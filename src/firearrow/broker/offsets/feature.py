"""Progress of consumer groups: committed offsets, resets, lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from firearrow.broker.administration.takeover import warn_of_waiting
from firearrow.broker.context import BrokerContext
from firearrow.broker.feature import Base, Feature, Handlers
from firearrow.broker.groups.table import GroupTable
from firearrow.broker.offsets.processor import OffsetProcessor
from firearrow.broker.offsets.progress import InFlightCount, ProgressProcessor
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.pop.waiting import HeldPops
from firearrow.broker.pulling.longpoll import HeldPulls
from firearrow.broker.storage.reconciling import place_groups
from firearrow.broker.storage.saving import Saving
from firearrow.services import Service
from firearrow.store import Consumed
from firearrow.wire.codes import RequestCode


class OffsetFeature(Feature):
    """Offsets of groups; ``flush_pops`` makes pops durable before the offsets are written."""

    def __init__(self, base: Base, groups: GroupTable, flush_pops: Callable[[], None]) -> None:
        self._base = base
        self._groups = groups
        config, keys = base.settings.broker, base.settings.store
        self.table: Final = ConsumerOffsets(
            base.clock,
            base.root,
            commits_per_version=config.consumer_offset_update_version_step,
            generations=config.config_generations,
            in_database=base.in_database,
            lmq=keys.enable_lmq,
            before_write=flush_pops,
        )
        self._seconds = config.flush_consumer_offset_interval / 1000

    def load(self) -> None:
        """Read the offsets. In a master, no group stays behind the end of a queue."""
        self.table.load()
        if not self._base.replicas.is_slave:  # a slave has the offsets of its master
            place_groups(self._base.store, self.table, self._seconds)

    def connect(
        self,
        context: BrokerContext,
        saving: Saving,
        pulls: HeldPulls,
        pops: HeldPops,
        notifications: HeldPops,
        in_flight: InFlightCount,
    ) -> None:
        """Make the handlers, and give the store access to the groups' progress."""
        self._saving = saving
        self._handlers = offset_handlers(context, pulls, pops, notifications, in_flight)
        warn_of_waiting(self._base.store, self._base.topics, self.table)
        self._base.store.know_progress(self._consumed)

    def _consumed(self) -> Iterable[Consumed]:
        """Progress of all groups."""
        return self.table.progress(self._groups.has, lambda topic: self._base.topics.read_queues(topic) or 0)

    def saved_handlers(self) -> Handlers:
        """Handlers of commits, resets, and requests for progress."""
        return self._handlers

    def services(self) -> Sequence[Service]:
        """Periodic writes of the offsets."""
        return (self._base.every("offsets", self._seconds, partial(self._saving.write, self.table.file)),)

    def save(self) -> None:
        """Write the offsets; a slave first takes groups back to the end of its queues.

        The broker may start as a master next time.
        """
        if self._base.replicas.is_slave:
            self.table.go_back(self._base.store.max_queue_offset)
        self.table.save()

    def close(self) -> None:
        """Close the offsets."""
        self.table.close()


def offset_handlers(
    context: BrokerContext, pulls: HeldPulls, pops: HeldPops, notifications: HeldPops, in_flight: InFlightCount
) -> Handlers:
    """Make the handlers of commits, resets, and requests for progress."""
    offsets, progress = OffsetProcessor(context, pulls, pops, notifications), ProgressProcessor(context, in_flight)
    return {
        RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
        RequestCode.UPDATE_CONSUMER_OFFSET: offsets.commit,
        RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.all,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offsets.reset,
        RequestCode.GET_CONSUME_STATS: progress.progress,
        RequestCode.GET_BROKER_CONSUME_STATS: progress.all_progress,
        RequestCode.QUERY_CONSUME_TIME_SPAN: progress.time_spans,
        RequestCode.QUERY_CORRECTION_OFFSET: progress.correction,
        RequestCode.CLONE_GROUP_OFFSET: progress.clone,
        RequestCode.QUERY_TOPICS_BY_CONSUMER: progress.topics,
        RequestCode.DELETE_SUBSCRIPTION: progress.delete,
    }
