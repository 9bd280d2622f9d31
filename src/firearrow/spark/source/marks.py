"""Knows queues and stores again, by the last message that was read of each queue.

A queue offset says nothing of its queue: a topic that was deleted and made again counts from 0, and
another store has other messages at the same offsets. So streams and archives keep a ``Mark`` beside
each offset: where in the log the message before it is, and when it was stored. Whoever goes on
compares:

- The queue has that message before the offset: it goes on there.
- It has another one or none, and the log still has the message: the topic was deleted and made
  again. The queue is read from its beginning, and that is told as a loss, as nobody knows what the
  deleted queue had besides.
- The log lacks the message, but has others that were read: it has lost its end, and messages that
  nobody has read may have got these offsets.
- The log has none of them: the store is another one.

What retention has deleted can't be compared, and counts as known.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from firearrow.client.queues import Bound, Mark, Queue, Span
from firearrow.errors import ConfigError, DataLost
from firearrow.spark.offsets import Loss
from firearrow.spark.source.origin import Logged, Origin

log = logging.getLogger(__name__)

LOOKS_MAX: Final = 8  # at messages of one log, until it counts as another

LogMarks = Mapping[str, Sequence[Mark]]
"""Messages that the logs of brokers had, newest first."""


class Again(NamedTuple):
    """The offsets at which reading goes on.

    ``start`` lacks the queues that are read from their beginning; those whose topic was made again
    are in ``anew``.
    """

    start: dict[Queue, int]
    anew: frozenset[Queue]
    losses: list[Loss]


@dataclass
class Recognition:
    """Compares what was read with what there is. ``reader`` is who has read it, for errors, and
    ``otherwise`` what can be done where a store is another one."""

    origin: Origin
    reader: str
    otherwise: str
    fail_on_data_loss: bool = True
    allow_new_store: bool = False
    _same: set[str] = field(default_factory=set)  # brokers whose stores are known again
    _others: dict[str, Sequence[Mark]] = field(default_factory=dict)  # and by which some are not
    _sure: dict[Queue, tuple[int, Mark, int, int]] = field(default_factory=dict)

    def again(
        self,
        start: Mapping[Queue, int],
        marks: Mapping[Queue, Mark],
        bounds: Mapping[Queue, Bound],
        logs: LogMarks | None = None,
    ) -> Again:
        """Give where to go on that has read up to ``start``, and what is lost.

        ``logs`` are messages by which stores are known; by default those of ``marks``. Raises
        ConfigError for another store unless it is allowed, DataLost for a log that has lost its end
        if a loss is an error.
        """
        if not isinstance(self.origin, Logged):
            return Again(dict(start), frozenset(), [])
        origin = self.origin
        differing = self.differing(start, marks, bounds)
        brokers = {queue.broker for queue in bounds}
        asked = (brokers - self._same) | {queue.broker for queue in differing}
        others = self.others(asked, newest_of_logs(marks) if logs is None else logs)
        anew = frozenset(
            queue
            for queue in differing
            if queue.broker not in others and _agrees(origin, queue.broker, marks[queue]) is not False
        )
        losses = [_made_again(queue, start[queue]) for queue in sorted(anew)]
        for queue in sorted(differing - anew):
            if queue.broker not in others and start[queue] <= bounds[queue].latest:
                span = Span(start[queue], start[queue])
                losses.append(Loss(queue, span, "the log has lost the message before"))
        kept = {q: at for q, at in start.items() if q.broker not in others and q not in anew}
        return Again(kept, anew, losses)

    def others(self, brokers: Iterable[str], logs: LogMarks) -> Collection[str]:
        """Give the brokers that have another store than before, if that is allowed.

        Errors are those of ``again``.
        """
        found: set[str] = set()
        if not isinstance(self.origin, Logged):
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
        """Give the queues that have another message before an offset than that of the mark, or end
        before it.

        A queue that has not changed since it was compared is not asked for again.
        """
        found: set[Queue] = set()
        unsure: dict[Queue, int] = {}
        if not isinstance(self.origin, Logged):
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
        """Give the marks of the messages before some offsets, where they are there."""
        if not isinstance(self.origin, Logged):
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
    """Give of each broker the newest mark, and some others from all over its log."""
    found: dict[str, list[Mark]] = {}
    for queue, mark in marks.items():
        found.setdefault(queue.broker, []).append(mark)
    for broker, several in found.items():
        several.sort(reverse=True)
        found[broker] = several[:: max(len(several) // LOOKS_MAX, 1)][:LOOKS_MAX]
    return found


def _made_again(queue: Queue, at: int) -> Loss:
    return Loss(queue, Span(at, at), "the topic was deleted and made again")


def _agrees(origin: Logged, broker: str, mark: Mark) -> bool | None:
    """Tell whether a log has the message of a mark; None where that can't be told."""
    found = origin.stored_at(broker, mark.physical_offset)
    return None if found is None else found.store_ms == mark.store_ms
