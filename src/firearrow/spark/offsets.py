"""Queue offsets: their JSON, the options that name them, the range of a step, and the messages of it that are lost.

Spark's checkpoints, ``startingOffsets`` and ``endingOffsets`` hold JSON. It has the next queue offset of each topic,
broker and queue id, which is the first offset that is not read yet::

    {"orders": {"broker-a": {"0": 17, "1": 4}}}

In a checkpoint, a queue that was read has a list: the next offset, and the mark of the message before it
(``firearrow.spark.source.marks``), which is its place in the log and its store time::

    {"orders": {"broker-a": {"0": [17, 73112, 1795000000000], "1": 0}}}

Spark compares offsets as text. So keys are sorted as text, and only integers are written. In options, -2 is the
earliest offset of a queue and -1 its latest. ``startingTimestamp`` and ``endingTimestamp`` take JSON of the same shape,
with times in ms since 1970 or ISO 8601.

The functions are pure: time, bounds and look-ups are arguments. Batch reads, streams and the archive use them to choose
the messages that they read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from firearrow.client.queues import Bound, Mark, Queue, Span
from firearrow.clock import LAST_MS, checked_ms, moment_ms
from firearrow.errors import ConfigError, DataLost

OffsetJson = dict[str, dict[str, dict[str, int | list[int]]]]
OffsetAt = Callable[[Queue, int], int | None]
OffsetsAt = Callable[[Mapping[Queue, Span], int], Mapping[Queue, int]]
"""Function to the first offset in each span that was stored at or after a time."""

EARLIEST: Final = -2
LATEST: Final = -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_SHOWN_MAX: Final = 5  # queues that an error names; the others are counted


# --- JSON ---


def to_json(offsets: Mapping[Queue, int], marks: Mapping[Queue, Mark] | None = None) -> OffsetJson:
    """Return offsets for ``json.dumps`` in the one order that counts as equal."""
    nested: OffsetJson = {}
    for queue in sorted(offsets, key=_text_order):
        brokers = nested.setdefault(queue.topic, {})
        offset, mark = int(offsets[queue]), marks.get(queue) if marks else None
        shown = offset if mark is None else [offset, *map(int, mark)]
        brokers.setdefault(queue.broker, {})[str(queue.queue_id)] = shown
    return nested


def _text_order(queue: Queue) -> tuple[str, str, str]:
    return queue.topic, queue.broker, str(queue.queue_id)


def from_json(value: object, what: str, *, symbolic: bool = False) -> dict[Queue, int]:
    """Read offsets from parsed JSON; ``what`` names the option or file in errors.

    ``symbolic`` allows -2 and -1. Raises ConfigError for JSON of another shape.
    """
    allowed = "an integer from 0 on" + (", -2 (earliest) or -1 (latest)" if symbolic else "")
    lowest = EARLIEST if symbolic else 0
    return _numbers(value, what, lowest, f"is not a queue offset: {allowed}")


def with_marks(value: object, what: str) -> tuple[dict[Queue, int], dict[Queue, Mark]]:
    """Read the offsets of a checkpoint and their marks from parsed JSON.

    Raises ConfigError for JSON of another shape.
    """
    offsets: dict[Queue, int] = {}
    marks: dict[Queue, Mark] = {}
    for queue, item, place in _items(value, what):
        parts = item if isinstance(item, list) else [item]
        if len(parts) not in {1, 3} or not all(type(part) is int and part >= 0 for part in parts):
            raise ConfigError(f"{place}: {item!r} is not a queue offset, with or without a mark")
        offsets[queue] = parts[0]
        if len(parts) == 3:
            marks[queue] = Mark(*parts[1:])
    return offsets, marks


def parse_checkpoint(text: str, what: str) -> dict[Queue, int]:
    """Read the offsets of a checkpoint from JSON text."""
    return with_marks(_loaded(text, what), what)[0]


def parse(text: str, what: str, *, symbolic: bool = False) -> dict[Queue, int]:
    """Read offsets from JSON text, as ``from_json`` does."""
    return from_json(_loaded(text, what), what, symbolic=symbolic)


def parse_times(text: str, what: str) -> dict[Queue, int]:
    """Read times from JSON text of the same shape; return them in ms since 1970."""
    times: dict[Queue, int] = {}
    for queue, time, place in _items(_loaded(text, what), what):
        try:
            times[queue] = checked_ms(time) if type(time) is int else moment_ms(str(time))
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from None
    return times


def _loaded(text: str, what: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what}={text!r} is not JSON: {error}") from None


def _numbers(value: object, what: str, lowest: int, otherwise: str) -> dict[Queue, int]:
    numbers: dict[Queue, int] = {}
    for queue, number, place in _items(value, what):
        if type(number) is not int or number < lowest:
            raise ConfigError(f"{place}: {number!r} {otherwise}")
        numbers[queue] = number
    return numbers


def _items(value: object, what: str) -> Iterator[tuple[Queue, Any, str]]:
    """Yield each queue of parsed JSON, its item there, and words for the place."""
    for topic, brokers in _members(value, what, "topics"):
        for broker, queues in _members(brokers, f"{what}, topic {topic!r}", "brokers"):
            place = f"{what}, topic {topic!r}, broker {broker!r}"
            for key, item in _members(queues, place, "queue ids"):
                yield Queue(topic, broker, _queue_id(key, place)), item, f"{place}, queue {key}"


def _members(value: object, what: str, of: str) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ConfigError(f"{what}: must be a JSON object of {of}, but is {value!r}")
    return list(value.items())


def _queue_id(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and str(int(text)) == text):
        raise ConfigError(f"{what}: {text!r} is not a queue id: an integer from 0 on")
    return int(text)


# --- begin and end of a read ---


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every queue, as options name it. ``option`` is the option that errors name.

    ``timestamp_ms`` is one time for all queues, or one for each named queue. It goes before ``offsets``. ``otherwise``
    (-2 or -1) is for queues that neither names.
    """

    option: str
    otherwise: int
    offsets: Mapping[Queue, int] | None = None
    timestamp_ms: int | Mapping[Queue, int] | None = None

    @property
    def timestamp_option(self) -> str:
        """Option that errors about times name."""
        return self.option.replace("Offsets", "Timestamp")

    @classmethod
    def of(cls, option: str, text: str, timestamp: int | str | None = None) -> Position:
        """Read ``earliest``, ``latest`` or JSON. Queues that the JSON lacks begin at the earliest offset
        (``starting...``) or end at the latest (``ending...``). ``timestamp`` may be JSON too."""
        timestamp_ms: int | Mapping[Queue, int] | None
        if isinstance(timestamp, str):
            timestamp_ms = parse_times(timestamp, f"option {option.replace('Offsets', 'Timestamp')}")
        else:
            timestamp_ms = timestamp
        word = _WORDS.get(text.strip().lower())
        if word is not None:
            return cls(option, word, None, timestamp_ms)
        if not text.lstrip().startswith("{"):
            raise ConfigError(
                f"option {option}={text!r}: must be earliest, latest or JSON of topic, broker, queue id and offset"
            )
        offsets = parse(text, f"option {option}", symbolic=True)
        otherwise = LATEST if option.lower().startswith("ending") else EARLIEST
        return cls(option, otherwise, offsets, timestamp_ms)


def require_order(start: Position, end: Position) -> None:
    """Raise ConfigError for a range that ends before it begins, as options name it."""
    times, ends = start.timestamp_ms, end.timestamp_ms
    names, pairs = (start.timestamp_option, end.timestamp_option), _pairs(times, ends)
    if times is None and ends is None:
        names, pairs = (start.option, end.option), _pairs(start.offsets, end.offsets)
        if (start.otherwise, end.otherwise) == (LATEST, EARLIEST):
            raise ConfigError(f"option {names[0]}=latest is behind {names[1]}=earliest")
    for queue, first, last in pairs:
        if first > last:
            where = "" if queue is None else f" in {_name(queue)}"
            raise ConfigError(
                f"options {names[0]}={first} and {names[1]}={last}{where}: the range ends before it begins"
            )


Named = int | Mapping[Queue, int] | None


def _pairs(start: Named, end: Named) -> Iterator[tuple[Queue | None, int, int]]:
    """Yield the pairs that both ends of a range name, for all queues or for one."""
    if isinstance(start, int) and isinstance(end, int):
        yield None, start, end
    elif start is not None and end is not None:
        queues = {queue for one in (start, end) if not isinstance(one, int) for queue in one}
        for queue in sorted(queues):
            first, last = (at if isinstance(at, int) else at.get(queue, LATEST) for at in (start, end))
            if first >= 0 and last >= 0:
                yield queue, first, last


def resolve(
    position: Position, bounds: Mapping[Queue, Bound], offset_at: OffsetAt, *, fail_where_none: bool = False
) -> dict[Queue, int]:
    """Return the queue offset of a position in each queue.

    A timestamp is the first message stored at or after it. Without such a message it is the queue's latest offset, or a
    ConfigError with ``fail_where_none``. Raises ConfigError for offsets and times of topics, brokers or queues that are
    not read.
    """
    times = position.timestamp_ms
    if isinstance(times, int):
        times = dict.fromkeys(bounds, times)
    elif times is not None:
        _require_known(position.timestamp_option, times, bounds)
    times = times or {}
    option = position.timestamp_option
    named = {queue: at for queue, at in (position.offsets or {}).items() if queue not in times}
    _require_known(position.option, named, bounds)
    offsets = {}
    for queue, bound in bounds.items():
        timestamp_ms = times.get(queue)
        if timestamp_ms is None:
            offset = named.get(queue, position.otherwise)
            offsets[queue] = {EARLIEST: bound.earliest, LATEST: bound.latest}.get(offset, offset)
            continue
        found = offset_at(queue, timestamp_ms)
        if found is None and fail_where_none:
            raise ConfigError(
                f"option {option}={timestamp_ms}: {_name(queue)} has no message stored"
                " then or later (startingOffsetsByTimestampStrategy=latest begins at its end)"
            )
        offsets[queue] = bound.latest if found is None else found
    return offsets


def _require_known(option: str, named: Mapping[Queue, int], bounds: Mapping[Queue, Bound]) -> None:
    for queue in named:
        if queue in bounds:
            continue
        topics = sorted({known.topic for known in bounds})
        of_topic = sorted(known for known in bounds if known.topic == queue.topic)
        if not of_topic:
            shown = ", ".join(topics[:_SHOWN_MAX]) + (", ..." if len(topics) > _SHOWN_MAX else "")
            raise ConfigError(f"option {option}: topic {queue.topic!r} is not read; these are: {shown or 'none'}")
        shown = ", ".join(f"{q.broker}/{q.queue_id}" for q in of_topic[:_SHOWN_MAX])
        raise ConfigError(
            f"option {option}: topic {queue.topic!r} has no queue {queue.broker}/{queue.queue_id};"
            f" it has {shown}" + (", ..." if len(of_topic) > _SHOWN_MAX else "")
        )


# --- from offsets to spans ---


class Loss(NamedTuple):
    """Queue offsets that a read should cover, and that the origin does not hold."""

    queue: Queue
    span: Span
    reason: str


class StepPlan(NamedTuple):
    """The spans that a step reads, none of them empty, and ``losses``, the messages that it should read and cannot."""

    spans: dict[Queue, Span]
    losses: list[Loss]


def plan(start: Mapping[Queue, int], end: Mapping[Queue, int], bounds: Mapping[Queue, Bound]) -> StepPlan:
    """Return the spans from ``start`` to ``end`` without lost messages.

    A queue that ``start`` lacks is new and begins at its earliest offset. Messages are lost if retention has deleted
    them (below the earliest offset), if they are above the latest offset, or if their queue was deleted. A queue that
    begins again, with offsets below ``start``, is read from its beginning.
    """
    spans: dict[Queue, Span] = {}
    losses: list[Loss] = []
    for queue in sorted(end):
        last = end[queue]
        bound = bounds.get(queue)
        if bound is None:
            if start.get(queue, 0) < last:
                gone = Span(start.get(queue, 0), last)
                losses.append(Loss(queue, gone, "the queue is gone"))
            continue
        first = start.get(queue, bound.earliest)
        if first > last or first > bound.latest:
            losses.append(Loss(queue, Span(first, first), f"the queue now ends at {bound.latest}"))
            first = bound.earliest
        held = Span(max(first, bound.earliest), min(last, bound.latest))
        if first < min(held.start, last):
            deleted = Span(first, min(held.start, last))
            losses.append(Loss(queue, deleted, f"the queue now begins at {bound.earliest}"))
        if max(held.end, first) < last:
            above = Span(max(held.end, first), last)
            losses.append(Loss(queue, above, f"the queue now ends at {bound.latest}"))
        if held.start < held.end:
            spans[queue] = held
    return StepPlan(spans, losses)


def require_whole(losses: list[Loss]) -> None:
    """Raise DataLost unless there are no losses."""
    if not losses:
        return
    shown = "; ".join(
        f"{_name(loss.queue)}: offsets {loss.span.start} to {loss.span.end}, {loss.reason}"
        for loss in losses[:_SHOWN_MAX]
    )
    rest = f"; and {len(losses) - _SHOWN_MAX} more" if len(losses) > _SHOWN_MAX else ""
    raise DataLost(f"messages to read are missing: {shown}{rest} (failOnDataLoss=false skips them)")


def _name(queue: Queue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic!r} on {queue.broker}"


# --- size of a step ---


def new_end(start: Mapping[Queue, int], bounds: Mapping[Queue, Bound]) -> dict[Queue, int]:
    """Return the end of a step that begins at ``start`` and reads all messages.

    A queue that cannot be seen now stays at its offset. A new queue comes in with its first message.
    """
    end = dict(start)
    for queue, bound in bounds.items():
        if queue in end or bound.earliest < bound.latest:
            end[queue] = bound.latest
    return end


def with_idle(spans: Mapping[Queue, Span], ends: Mapping[Queue, int]) -> dict[Queue, Span]:
    """Return the spans together with empty spans of the other queues, for a limit."""
    return {**{queue: Span(end, end) for queue, end in ends.items()}, **spans}


def limit_rows(spans: Mapping[Queue, Span], rows_max: int) -> dict[Queue, Span]:
    """Shorten spans to ``rows_max`` messages together, each in proportion to its length.

    No queue starves. Each gets one message first. If there are more queues than messages, the queues take turns, and
    the turn follows from the sum of their offsets. Queues without messages to read keep their places in the row by
    empty spans. Otherwise turns would go to the wrong queues whenever a queue is read to its end. No span of the result
    is empty.
    """
    places = sorted(spans)
    turn = sum(span.start for span in spans.values()) % max(len(places), 1)
    places = places[turn:] + places[:turn]
    waiting = [queue for queue in places if spans[queue].start < spans[queue].end]
    lengths = {queue: spans[queue].end - spans[queue].start for queue in waiting}
    total = sum(lengths.values())
    if total <= rows_max:
        return {queue: spans[queue] for queue in sorted(waiting)}
    rows = dict.fromkeys(waiting[:rows_max], 1)
    spare, others = rows_max - len(rows), total - len(waiting)
    if spare:
        for queue in waiting:
            rows[queue] += spare * (lengths[queue] - 1) // others
        left = rows_max - sum(rows.values())
        for queue in [queue for queue in waiting if rows[queue] < lengths[queue]][:left]:
            rows[queue] += 1
    starts = {queue: spans[queue].start for queue in rows}
    return {queue: Span(starts[queue], starts[queue] + rows[queue]) for queue in sorted(rows)}


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Largest size of a step; ``row_bytes`` is the approximate size of a queue's messages."""

    rows_max: int | None = None
    bytes_max: int | None = None
    row_bytes: Mapping[Queue, float] = field(default_factory=dict)

    def hold(self, spans: Mapping[Queue, Span]) -> bool:
        """Tell whether spans are within the limits."""
        if self.rows_max is not None and row_count(spans) > self.rows_max:
            return False
        return self.bytes_max is None or self._bytes(spans) <= self.bytes_max

    def _bytes(self, spans: Mapping[Queue, Span]) -> float:
        sizes = self.row_bytes
        return sum((span.end - span.start) * sizes[queue] for queue, span in spans.items())

    def fill(self, spans: Mapping[Queue, Span], more: Mapping[Queue, Span]) -> dict[Queue, Span]:
        """Shorten ``more`` to the room that the limits leave beside ``spans``."""
        found = dict(more)
        if self.rows_max is not None:
            found = limit_rows(found, self.rows_max - row_count(spans))
        if self.bytes_max is not None:
            room = int(self.bytes_max - self._bytes(spans))
            if row_count(spans) and room < min(map(self.row_bytes.__getitem__, found), default=0):
                return {}  # one message is left of what there is, however large
            found = limit_bytes(found, room, self.row_bytes)
        return found


def limit_in_order(spans: Mapping[Queue, Span], limits: StepLimits, offsets_at: OffsetsAt) -> dict[Queue, Span]:
    """Shorten spans to the messages that were stored first, across all queues and brokers.

    So consecutive steps are in the order of the log, and no watermark passes messages that are still to read. The
    search finds the millisecond before which the limits allow all stored messages; some messages of that millisecond
    are added.
    """
    if limits.hold(spans):
        return dict(spans)
    waiting = {queue: span for queue, span in spans.items() if span.start < span.end}
    if len(waiting) == 1:
        return limits.fill({}, waiting)  # a queue is in the order of the log
    low_ms, high_ms = 0, LAST_MS
    low = {queue: span.start for queue, span in spans.items()}
    high = {queue: span.end for queue, span in spans.items()}
    while high_ms - low_ms > 1:
        middle_ms = (low_ms + high_ms) // 2
        between = {queue: Span(low[queue], high[queue]) for queue in spans}
        unknown = {queue: span for queue, span in between.items() if span.start < span.end}
        found = dict(low)
        for queue, offset in offsets_at(unknown, middle_ms).items():
            found[queue] = min(max(offset, low[queue]), high[queue])
        if limits.hold({queue: Span(spans[queue].start, found[queue]) for queue in spans}):
            low, low_ms = found, middle_ms
        else:
            high, high_ms = found, middle_ms
    taken = {queue: Span(spans[queue].start, low[queue]) for queue in spans}
    more = limits.fill(taken, {queue: Span(low[queue], high[queue]) for queue in spans})
    ends = {**low, **{queue: span.end for queue, span in more.items()}}
    return {queue: Span(span.start, ends[queue]) for queue, span in sorted(spans.items()) if span.start < ends[queue]}


def limit_bytes(spans: Mapping[Queue, Span], bytes_max: int, row_bytes: Mapping[Queue, float]) -> dict[Queue, Span]:
    """Shorten spans to about ``bytes_max``, as ``limit_rows`` does. ``row_bytes`` is the size of a queue's messages.

    At least one message stays, however large.
    """
    waiting = {queue: span for queue, span in spans.items() if span.start < span.end}
    rows = {queue: span.end - span.start for queue, span in waiting.items()}
    total_bytes = sum(count * row_bytes[queue] for queue, count in rows.items())
    if total_bytes <= bytes_max:
        return waiting
    return limit_rows(spans, max(int(sum(rows.values()) * bytes_max / total_bytes), 1))


def is_due(rows: int, rows_min: int, waited_ms: float, delay_max_ms: int) -> bool:
    """Tell whether a step is worth it: it has enough messages, or some messages have waited long enough."""
    return rows >= rows_min or (rows > 0 and waited_ms >= delay_max_ms)


def ends(start: Mapping[Queue, int], spans: Mapping[Queue, Span]) -> dict[Queue, int]:
    """Return ``start`` after these spans are read."""
    return {**start, **{queue: span.end for queue, span in spans.items()}}


def begins(start: Mapping[Queue, int], spans: Mapping[Queue, Span]) -> dict[Queue, int]:
    """Return ``start`` with the new queues: messages that they lose from now on are a loss."""
    return {**{queue: span.start for queue, span in spans.items()}, **start}


def row_count(spans: Mapping[Queue, Span]) -> int:
    """Return the number of messages of some spans."""
    return sum(span.end - span.start for span in spans.values())


def lag(end: Mapping[Queue, int], latest: Mapping[Queue, int]) -> dict[Queue, int]:
    """Return the number of messages that each queue holds behind ``end``; all of its messages if ``end`` lacks it."""
    return {queue: max(offset - end.get(queue, 0), 0) for queue, offset in latest.items()}
