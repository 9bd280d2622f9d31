"""Wake pops of a queue that is popped in order, once the queue is free again.

A queue is free when the messages of its last batch are acknowledged or visible again (``broker.pop.orderinfo``).

Source: RocketMQ ``QueueLevelConsumerOrderInfoLockManager``, ``PopMessageProcessor#notifyLongPollingRequestIfNeed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.pop.deadlines import Deadlines
from firearrow.broker.pop.orderinfo import ConsumerOrderInfo
from firearrow.broker.pop.waiting import HeldPops, Key
from firearrow.broker.state.settings import Settings
from firearrow.clock import Clock
from firearrow.services import Scheduler, Service
from firearrow.store import MessageStore

LOOK_SECONDS_MAX: Final = 3600.0  # a later deadline is looked at again then


class Unblocking(Service):
    """Follow when queues are free again."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        orders: ConsumerOrderInfo,
        offsets: ConsumerOffsets,
        held: Sequence[HeldPops],
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        super().__init__("unblocking")
        self._settings = settings
        self._store = store
        self._orders = orders
        self._offsets = offsets
        self._held = held
        self._clock = clock
        self._due = Deadlines(scheduler, self._look)
        self._ticks: dict[Key, int] = {}

    async def start(self) -> None:
        """Look at the batches from before the start."""
        for topic, group, queue_id, _ in list(self._orders.blocked()):
            self.changed(topic, group, queue_id)

    async def stop(self) -> None:
        """Wake no pop any more."""
        self._ticks.clear()
        self._due.clear()

    def changed(self, topic: str, group: str, queue_id: int) -> None:
        """Wake pops of a queue if it is free now, otherwise when it will be.

        Call this when its messages are popped or acknowledged, or become visible at another time.
        """
        key = topic, group, queue_id
        tick = self._ticks.pop(key, None)
        if tick is not None:
            self._due.discard(key, tick)
        free_ms = self._orders.free_ms(topic, group, queue_id)
        if free_ms is None:
            self._wake(topic, group, queue_id)
        elif self._settings.broker.enable_notify_after_pop_order_lock_release:
            seconds = (free_ms - self._clock.now_ms()) / 1000
            self._ticks[key] = self._due.add(key, min(seconds, LOOK_SECONDS_MAX))

    def _look(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._ticks.pop(key, None)
            self.changed(*key)

    def _wake(self, topic: str, group: str, queue_id: int) -> None:
        if not any(self._held):
            return
        if self._offsets.query(group, topic, queue_id) < self._store.max_queue_offset(topic, queue_id):
            for held in self._held:
                held.unblocked(topic, group, queue_id)
