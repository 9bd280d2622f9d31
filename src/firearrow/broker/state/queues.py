"""What the state of a broker needs to know of its store."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from firearrow.store import Boundary, QueueRange


class QueueStore(Protocol):
    """The store as administrators see it. No method fails for a queue that does not exist."""

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """Give the offset of the first message, negative or 0 if there is none."""
        ...

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Give the offset after the last message, negative or 0 if there is none."""
        ...

    def search_offset(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        """Give the queue offset of a store time."""
        ...

    def store_time_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Give when a message was stored, in ms; -1 if there is no such message."""
        ...

    def head_in_memory(self, topic: str, queue_id: int) -> bool:
        """Whether the first message exists and is in the part of the log that memory holds."""
        ...

    @property
    def log_end_offset(self) -> int:
        """Where the log ends: all messages so far are before it."""
        ...

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic."""
        ...

    def admit_batches(self, topic: str) -> bool:
        """Whether a topic that is to be created can have queues of batches: nothing is left of an
        earlier one with others."""
        ...

    def delete_expired_queues(self) -> Iterator[QueueRange]:
        """Delete the queues of which no message is left, one for each that is taken."""
        ...

    def delete_unused_topics(self, kept: Collection[str]) -> Iterator[str]:
        """Delete the queues of all topics but these and the system's, of one for each that is
        taken."""
        ...

    def dispatch_in_steps(self) -> Iterator[None]:
        """Dispatch what the log has by now."""
        ...

    def clean_on_request(self) -> None:
        """Delete the log files whose time is over."""
        ...

    def runtime_facts(self) -> dict[str, str]:
        """Give what request 28 tells of the store, by the names that RocketMQ has for it."""
        ...
