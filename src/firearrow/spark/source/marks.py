"""Marks, which identify queues and stores to a reader: the last message that was read of each queue.

A queue offset does not identify its queue: a recreated topic counts from 0, and another store has other messages at the
same offsets. So streams and archives store a ``Mark`` beside each offset: the place in the log of the message before
the offset, and its store time. A reader that goes on compares:

- The queue has that message before the offset: reading goes on there.
- The queue has another message or none, and the log still has the message: the topic was deleted and created again. The
  queue is read from its beginning. This is reported as a loss, because the deleted queue may have had further messages.
- The log lacks the message, but has other messages that were read: it has lost its end, and unread messages may have
  got these offsets.
- The log has none of the messages: the store is another one.

Messages that retention has deleted cannot be compared, and count as recognized.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from firearrow.client.queues import Bound, Mark, Queue, Span
from firearrow.errors import ConfigError, DataLost
from firearrow.logs import Log
from firearrow.spark.offsets import Loss
from firearrow.spark.source.origin import LoggedOrigin, Origin

log: Final = Log(__name__)

LOOKS_MAX: Final = 8  # at messages of one log, before it counts as another log

LogMarks = Mapping[str, Sequence[Mark]]
"""Messages that the log of each broker had, newest first."""


class ResumePoint(NamedTuple):
    """Offsets where reading goes on.

    ``start`` lacks the queues that are read from their beginning; ``recreated`` holds the queues of recreated topics.
    """

    start: dict[Queue, int]
    recreated: frozenset[Queue]
    losses: list[Loss]


@dataclass
class Recognition:
    """Comparison of the marks of a reader with an origin.

    ``reader`` names the reader in errors. ``otherwise`` ends the error about another store with the way out.
    """

    origin: Origin
    reader: str
    otherwise: str
    fail_on_data_loss: bool = True
    allow_new_store: bool = False
    _same: set[str] = field(default_factory=set)  # brokers whose stores are recognized
    _others: dict[str, Sequence[Mark]] = field(default_factory=dict)  # marks that showed another store
    _sure: dict[Queue, tuple[int, Mark, int, int]] = field(default_factory=dict)

    def resume(
        self,
        start: Mapping[Queue, int],
        marks: Mapping[Queue, Mark],
        bounds: Mapping[Queue, Bound],
        logs: LogMarks | None = None,
    ) -> ResumePoint:
        """Return the offsets where a reader goes on after ``start``, and the losses.

        ``logs`` holds messages that identify stores; by default the messages of ``marks``. Raises ConfigError for
        another store unless it is allowed, and DataLost for a log that has lost its end if a loss is an error.
        """
        if not isinstance(self.origin, LoggedOrigin):
            return ResumePoint(dict(start), frozenset(), [])
        origin = self.origin
        differing = self.differing(start, marks, bounds)
        brokers = {queue.broker for queue in bounds}
        asked = (brokers - self._same) | {queue.broker for queue in differing}
        others = self.others(asked, newest_of_logs(marks) if logs is None else logs)
        recreated = frozenset(
            queue
            for queue in differing
            if queue.broker not in others and _agrees(origin, queue.broker, marks[queue]) is not False
        )
        losses = [
            Loss(queue, Span(start[queue], start[queue]), "the topic was deleted and created again")
            for queue in sorted(recreated)
        ]
        for queue in sorted(differing - recreated):
            if queue.broker not in others and start[queue] <= bounds[queue].latest:
                span = Span(start[queue], start[queue])
                losses.append(Loss(queue, span, "the log has lost the message before"))
        kept = {q: at for q, at in start.items() if q.broker not in others and q not in recreated}
        return ResumePoint(kept, recreated, losses)

    def others(self, brokers: Iterable[str], logs: LogMarks) -> Collection[str]:
        """Return the brokers that have another store than before, if that is allowed.

        Raises the same errors as ``resume``.
        """
        found: set[str] = set()
        if not isinstance(self.origin, LoggedOrigin):
            return found
        for broker in sorted(brokers):
            marks = logs.get(broker, ())
            if marks and self._others.get(broker) == marks:
                found.add(broker)
                continue
            told = (_agrees(self.origin, broker, mark) for mark in marks)
            if not marks or next(told) is not False:
                self._same.add(broker)
                continue
            moment = datetime.fromtimestamp(marks[0].store_ms / 1000, UTC)
            place = marks[0].physical_offset
            there = f"at {place} of its log there is no message stored {moment:%F %T}Z"
            if any(told):
                self._lost_end(broker, there)
            elif self.allow_new_store:
                found.add(broker)
                self._others[broker] = marks
                log.warning("store is another one", extra={"broker_name": broker, "reason": there})
            else:
                raise ConfigError(f"{self.reader} is of another store of broker {broker!r}: {there}; {self.otherwise}")
        return found

    def _lost_end(self, broker: str, there: str) -> None:
        if self.fail_on_data_loss:
            raise DataLost(
                f"the store of broker {broker!r} has lost messages that {self.reader} has read:"
                f" {there} (failOnDataLoss=false goes on with what follows)"
            )

    def differing(
        self, offsets: Mapping[Queue, int], marks: Mapping[Queue, Mark], bounds: Mapping[Queue, Bound]
    ) -> set[Queue]:
        """Return the queues that end before an offset, or have another message before it than that of the mark.

        A queue that has not changed since it was compared is not compared again.
        """
        found: set[Queue] = set()
        unsure: dict[Queue, int] = {}
        if not isinstance(self.origin, LoggedOrigin):
            return found
        for queue, at in offsets.items():
            bound, mark = bounds.get(queue), marks.get(queue)
            if bound is None or mark is None or at <= bound.earliest < bound.latest:
                continue  # retention has deleted that message, or the queue can't be seen now
            if bound.latest < at:
                found.add(queue)
            elif self._sure.get(queue) != (at, mark, bound.latest, bound.last):
                unsure[queue] = at - 1
        there = self.origin.marks(unsure) if unsure else {}
        for queue in unsure:
            mark, bound = marks[queue], bounds[queue]
            if there.get(queue, mark) != mark:
                found.add(queue)
            else:
                self._sure[queue] = offsets[queue], mark, bound.latest, bound.last
        return found

    def marks(self, ends: Mapping[Queue, int], bounds: Mapping[Queue, Bound]) -> dict[Queue, Mark]:
        """Return the marks of the messages before some offsets, if the messages still exist."""
        if not isinstance(self.origin, LoggedOrigin):
            return {}
        places = {
            queue: end - 1
            for queue, end in ends.items()
            if queue in bounds and bounds[queue].earliest < end <= bounds[queue].latest
        }
        found = dict(self.origin.marks(places)) if places else {}
        for queue, mark in found.items():
            bound = bounds[queue]
            self._sure[queue] = ends[queue], mark, bound.latest, bound.last
        return found


def newest_of_logs(marks: Mapping[Queue, Mark]) -> dict[str, list[Mark]]:
    """Return the newest mark of each broker, and some other marks from all over its log."""
    found: dict[str, list[Mark]] = {}
    for queue, mark in marks.items():
        found.setdefault(queue.broker, []).append(mark)
    for broker, several in found.items():
        several.sort(reverse=True)
        found[broker] = several[:: max(len(several) // LOOKS_MAX, 1)][:LOOKS_MAX]
    return found


def _agrees(origin: LoggedOrigin, broker: str, mark: Mark) -> bool | None:
    """Tell whether a log has the message of a mark; None if it cannot be known."""
    found = origin.stored_at(broker, mark.physical_offset)
    return None if found is None else found.store_ms == mark.store_ms
