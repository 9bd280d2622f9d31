"""Count of messages in flight: popped by a group and not acknowledged, by queue (``enablePopMessageThreshold``).

Messages are counted only while that key is on, or for metrics. No count is right after a start, or if a consumer is
killed and its messages are redelivered. So the limit is not exact: it protects a broker from a group that pops and
never acknowledges.

Source: RocketMQ ``PopInflightMessageCounter``.
"""

from __future__ import annotations

from firearrow.broker.events import GroupDeleted
from firearrow.broker.state.settings import Settings
from firearrow.message.names import offset_key, topic_and_group
from firearrow.store import QueuesDeleted


class InFlight:
    """Count messages in flight, ``always`` or while there is a limit."""

    def __init__(self, settings: Settings, *, always: bool = False) -> None:
        self._settings = settings
        self._always = always
        self._counts: dict[str, dict[int, int]] = {}

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return the count of messages of a queue that a group has in flight."""
        return self._counts.get(offset_key(topic, group), {}).get(queue_id, 0)

    def is_full(self, topic: str, group: str, queue_id: int) -> bool:
        """Return whether a group has more messages of a queue in flight than it may."""
        config = self._settings.broker
        if not config.enable_pop_message_threshold:
            return False
        return self.count(topic, group, queue_id) > config.pop_inflight_message_threshold

    def popped(self, topic: str, group: str, queue_id: int, count: int) -> None:
        """Add popped messages."""
        if self._always or self._settings.broker.enable_pop_message_threshold:
            queues = self._counts.setdefault(offset_key(topic, group), {})
            queues[queue_id] = queues.get(queue_id, 0) + count

    def done(self, topic: str, group: str, queue_id: int, count: int) -> None:
        """Subtract messages that are acknowledged or redelivered."""
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
        """Forget the count of a queue."""
        key = offset_key(topic, group)
        queues = self._counts.get(key)
        if queues is not None:
            queues.pop(queue_id, None)
            if not queues:
                del self._counts[key]

    def topic_gone(self, gone: QueuesDeleted) -> None:
        """Forget the counts of deleted queues."""
        for key in [key for key in self._counts if topic_and_group(key)[0] == gone.topic]:
            queue_ids = list(self._counts[key]) if gone.queue_id is None else [gone.queue_id]
            for queue_id in queue_ids:
                self.clear(*topic_and_group(key), queue_id)

    def group_gone(self, gone: GroupDeleted) -> None:
        """Forget the counts of a deleted group."""
        for key in [key for key in self._counts if topic_and_group(key)[1] == gone.group]:
            del self._counts[key]
