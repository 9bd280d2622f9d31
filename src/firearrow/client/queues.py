"""Queues and values about their contents, shared by all parts of a client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple


class Queue(NamedTuple):
    """One queue of one broker."""

    topic: str
    broker: str
    queue_id: int

    @property
    def words(self) -> str:
        """Name of the queue in a sentence."""
        return f"queue {self.queue_id} of {self.topic!r} on {self.broker}"

    @property
    def fields(self) -> dict[str, object]:
        """Names of the queue for a log line."""
        return {"topic": self.topic, "broker_name": self.broker, "queue_id": self.queue_id}


class Span(NamedTuple):
    """Queue offsets from ``start`` up to ``end``, without ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Bound:
    """Content of a queue now: offsets from ``earliest`` up to ``latest``, without ``latest``.

    ``last`` changes with the message at the last offset: its place in the log or its store time, whichever is known
    without a request; -1 without either.
    """

    earliest: int
    latest: int
    last: int = field(default=-1, compare=False)


class Mark(NamedTuple):
    """Mark of a message among all at its queue offset: its place in the log, and its store time."""

    physical_offset: int
    store_ms: int


class RecordTimes(NamedTuple):
    """Store time and birth time of a record. With its place in the log, they distinguish it from records of other
    logs."""

    store_ms: int
    born_ms: int


NOT_STORED: Final = RecordTimes(-1, -1)
