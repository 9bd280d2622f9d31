"""Lite topics that nobody sends to any more are deleted, after the time that their parent says.

A lite topic is as old as its last message; whether that was consumed does not count. Those of all
parents with a time (``lite.topic.expiration``, minutes) are gone through every two minutes, some in
each turn of the event loop. What is deleted are the queue, its groups' offsets and subscriptions;
the messages stay in the parent's queues.

Source: upstream ``AbstractLiteLifecycleManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import product
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.lite import facts
from firearrow.errors import DiskFull
from firearrow.message.names import lite_queue

log = logging.getLogger(__name__)

STEP_QUEUES: Final = 100  # that are looked at in one turn; a millisecond
STEP_SECONDS: Final = 0.005
_MINUTE_MS: Final = 60_000


class LiteExpiry:
    """Deletes lite topics whose time is over."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._clock = context.clock
        self._round: Iterator[int] | None = None

    def step(self) -> float:
        """Look at some lite topics; gives the seconds until there is more to do."""
        if self._round is None:
            self._round = self._go_round()
        for deleted in self._round:
            if deleted:
                log.info("lite topics are deleted: their time is over", extra={"count": deleted})
            return STEP_SECONDS
        self._round = None
        return self._settings.broker.lite_ttl_check_interval / 1000

    def _go_round(self) -> Iterator[int]:
        """Go through all lite topics; gives after each step how many it has deleted."""
        parents = {
            name: facts.expiration_minutes(topic)
            for name, topic in self._topics.table.items()
            if facts.is_parent(topic)
        }
        for parent, minutes in parents.items():
            if minutes <= 0:
                continue
            age_ms = max(minutes * _MINUTE_MS, self._settings.broker.min_lite_ttl)
            old: list[str] = []
            for number, queue in enumerate(self._store.topics_from(lite_queue(parent, "")), 1):
                if queue is not None and self._is_over(queue, age_ms):
                    old.append(queue)
                if number % STEP_QUEUES == 0 or queue is None:
                    yield self._delete(parent, old)
                    old = []
            yield self._delete(parent, old)

    def _is_over(self, queue: str, age_ms: int) -> bool:
        end = self._store.max_queue_offset(queue, 0)
        last_ms = self._store.store_time_of(queue, 0, end - 1) if end > 0 else 0
        return end > 0 and self._clock.now_ms() - last_ms > age_ms

    def _delete(self, parent: str, queues: list[str]) -> int:
        """Delete lite topics; gives how many, none if the disk is too full for that."""
        try:
            self._store.delete_lmqs(queues)
        except DiskFull:
            return 0
        if queues:
            groups = facts.groups_of(self._groups.table, parent)
            for group, queue in product(groups, queues):
                self._offsets.forget(group, queue)
        return len(queues)
