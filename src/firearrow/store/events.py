"""The events of a store (``firearrow.events``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from firearrow.store.queues import ConsumeQueue


class MessagesArrived:
    """Queues have new messages: gives topic, queue id, first new offset and max offset of each."""

    __slots__ = ("_queues",)

    def __init__(self, queues: Iterable[tuple[ConsumeQueue, int]]) -> None:
        self._queues = queues

    def __iter__(self) -> Iterator[tuple[str, int, int, int]]:
        return (
            (queue.topic, queue.queue_id, first_offset, queue.max_offset)
            for queue, first_offset in self._queues
        )

    def of_topic(self, topic: str) -> Iterator[int]:
        """The ids of a topic's queues that have new messages: for who wants one topic of many."""
        return (queue.queue_id for queue, _ in self._queues if queue.topic == topic)


class QueuesDeleted(NamedTuple):
    """Queues are deleted, all of a topic or (``queue_id``) one: whoever keeps one has to ask the
    store for it again."""

    topic: str
    queue_id: int | None = None


class FlushRefused(NamedTuple):
    """The disk has refused the log: from now on nothing more is confirmed."""

    error: OSError
