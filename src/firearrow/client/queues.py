"""Queues, and what they hold: the values that all parts of a client speak of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple


class Queue(NamedTuple):
    """One queue of one broker."""

    topic: str
    broker: str
    queue_id: int

    @property
    def fields(self) -> dict[str, object]:
        """Give what names it in a line of the log."""
        return {"topic": self.topic, "broker_name": self.broker, "queue_id": self.queue_id}


class Span(NamedTuple):
    """Queue offsets from ``start`` up to, and without, ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Bound:
    """The content of a queue now: offsets from ``earliest`` up to, and without, ``latest``.

    ``last`` differs for another message at the last offset: its place in the log or its store time,
    whichever costs nothing to know; -1 where that is not known.
    """

    earliest: int
    latest: int
    last: int = field(default=-1, compare=False)


class Mark(NamedTuple):
    """The mark of a message among all at its queue offset: where in the log its record is, and
    when it was stored."""

    physical_offset: int
    store_ms: int


class RecordTimes(NamedTuple):
    """Store time and birth time of a record: with its place in the log, they tell it from the records of any other
    log."""

    store_ms: int
    born_ms: int


NOT_STORED: Final = RecordTimes(-1, -1)
