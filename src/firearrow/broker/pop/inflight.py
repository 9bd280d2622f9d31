"""Counts of messages that groups have popped and not acknowledged, by queue (``enablePopMessageThreshold``).

They are counted only while that is on, or for metrics, and no counter is right after a start, or a
kill of a consumer whose messages come again: so a limit by them protects a broker from a group that
pops and never acknowledges, and is no exact number.

Source: upstream ``PopInflightMessageCounter``.
"""

from __future__ import annotations

from firearrow.broker.events import GroupDeleted
from firearrow.broker.state.settings import Settings
from firearrow.message.names import offset_key, topic_and_group
from firearrow.store import QueuesDeleted


class InFlight:
    """Counts popped messages of queues, ``always`` or while there is a limit."""

    def __init__(self, settings: Settings, *, always: bool = False) -> None:
        self._settings = settings
        self._always = always
        self._counts: dict[str, dict[int, int]] = {}

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Give how many messages of a queue a group has in hand, as far as was counted."""
        return self._counts.get(offset_key(topic, group), {}).get(queue_id, 0)

    def is_full(self, topic: str, group: str, queue_id: int) -> bool:
        """Tell whether a group has more of a queue in hand than it may."""
        config = self._settings.broker
        if not config.enable_pop_message_threshold:
            return False
        return self.count(topic, group, queue_id) > config.pop_inflight_message_threshold

    def popped(self, topic: str, group: str, queue_id: int, count: int) -> None:
        """Note that a group has more messages in hand."""
        if self._always or self._settings.broker.enable_pop_message_threshold:
            queues = self._counts.setdefault(offset_key(topic, group), {})
            queues[queue_id] = queues.get(queue_id, 0) + count

    def done(self, topic: str, group: str, queue_id: int, count: int) -> None:
        """Note that it has fewer: they are acknowledged, or come again."""
        if not self._counts:
            return
        key = offset_key(topic, group)
        queues = self._counts.get(key, {})
        left = queues.get(queue_id, 0) - count
        if left > 0:
            queues[queue_id] = left
        else:
            self.clear(topic, group, queue_id)

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """Forget what was counted of a queue."""
        key = offset_key(topic, group)
        queues = self._counts.get(key)
        if queues is not None:
            queues.pop(queue_id, None)
            if not queues:
                del self._counts[key]

    def topic_gone(self, gone: QueuesDeleted) -> None:
        """Forget what was counted of queues that are deleted."""
        for key in [key for key in self._counts if topic_and_group(key)[0] == gone.topic]:
            queue_ids = list(self._counts[key]) if gone.queue_id is None else [gone.queue_id]
            for queue_id in queue_ids:
                self.clear(*topic_and_group(key), queue_id)

    def group_gone(self, gone: GroupDeleted) -> None:
        """Forget what was counted of a group that is deleted."""
        for key in [key for key in self._counts if topic_and_group(key)[1] == gone.group]:
            del self._counts[key]
