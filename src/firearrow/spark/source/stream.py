"""``spark.readStream.format("rocketmq")``: the log as a stream, from files or brokers.

A step reads of each queue the offsets between two checkpoints. Both are JSON, see ``firearrow.spark.offsets``, and
recognize their queues and stores (``firearrow.spark.source.marks``). A new query starts where the options say; later
starts follow its checkpoint. Queues and topics that appear later are read from their beginning. A limited step reads
the messages that were stored first, whatever their queue. So the steps of a query that catches up follow the order of
storing, and no message is late for a watermark.

The object that chooses offsets lives in one process on the driver while the query runs. ``read`` is called on copies of
it in the workers, which do not know those choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from firearrow.client.queues import Bound, Queue, Span
from firearrow.clock import Clock, SystemClock
from firearrow.errors import ConfigError
from firearrow.spark import offsets
from firearrow.spark.options import Options
from firearrow.spark.planning.losses import held_spans
from firearrow.spark.source.marks import Recognition
from firearrow.spark.source.opening import open_origin
from firearrow.spark.source.origin import Origin
from firearrow.spark.workererrors import end_quietly, with_short_errors

_CHECKPOINT = "checkpoint"


@runtime_checkable
class CommittingOrigin(Protocol):
    """Origin that can commit a consumer group's progress."""

    def commit_offsets(self, offsets: Mapping[Queue, int]) -> None:
        """Commit the progress of the options' group to the brokers."""


@runtime_checkable
class SearchingOrigin(Protocol):
    """Origin that finds a time in many queues at less cost than in one after the other."""

    def offsets_at(self, spans: Mapping[Queue, Span], timestamp_ms: int) -> Mapping[Queue, int]:
        """Return the approximate first offset in each span that was stored at or after a time."""


@with_short_errors
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of an origin, step by step. ``origin`` and ``clock`` are for tests."""

    def __init__(
        self, options: Options, schema: pa.Schema, origin: Origin | None = None, clock: Clock | None = None
    ) -> None:
        require_streamable(options)
        self.options = options
        self.schema = schema
        self._given = self._opened = origin
        self._clock = clock or SystemClock()
        self._target: Mapping[Queue, Bound] | None = None  # the end of "available now"
        self._seen: Mapping[Queue, Bound] | None = None
        self._recognition: Recognition | None = None
        self._stepped_at = self._clock.monotonic()
        self._is_told = False

    @property
    def origin(self) -> Origin:
        """Origin of the messages; opened on first use."""
        if self._opened is None:
            self._opened = open_origin(self.options)
        return self._opened

    @property
    def recognition(self) -> Recognition:
        """The part that recognizes queues and stores."""
        if self._recognition is None:
            reading = self.options.reading
            self._recognition = Recognition(
                self.origin,
                f"the {_CHECKPOINT}",
                "allowNewStore=true reads this one from its beginning",
                reading.fail_on_data_loss,
                reading.allow_new_store,
            )
        return self._recognition

    # --- offsets ---

    def initialOffset(self) -> offsets.OffsetJson:
        """Return the begin of a query without a checkpoint."""
        limits = self.options.range
        position, _ = limits.positions("latest")
        fail = limits.by_timestamp == "error"
        bounds, offset_at = self._look(), self.origin.offset_at
        start = offsets.resolve(position, bounds, offset_at, fail_where_none=fail)
        return offsets.to_json(start, self.recognition.marks(start, bounds))

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the present bounds as the end of the stream."""
        self._target = self._look()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the first of the limits that the options name; ``latestOffset`` obeys the others too."""
        trigger = self.options.trigger
        if trigger.offsets_max is not None:
            return ReadMaxRows(trigger.offsets_max)
        if trigger.bytes_max is not None:
            return ReadMaxBytes(trigger.bytes_max)
        if trigger.offsets_min is not None:
            return ReadMinRows(trigger.offsets_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next step: ``start`` itself if there are no new messages, or not enough."""
        known, marks = offsets.with_marks(start, _CHECKPOINT)
        if not self._is_told:  # Spark says what the last step has read only when another follows
            self.commit(start)
        bounds = self._within_target(self._look())
        resumed = self.recognition.resume(known, marks, bounds)
        known = resumed.start
        end = offsets.new_end(known, bounds)
        if end == known and not resumed.losses:
            return start
        spans = offsets.plan(known, end, bounds).spans
        if not isinstance(limit, ReadAllAvailable):
            if not self._is_due(spans):
                return start
            limited = self._limit(spans)
            if limited != spans:
                end = offsets.ends(offsets.begins(known, spans), limited)
        self._stepped_at = self._clock.monotonic()
        lost = {loss.queue for loss in resumed.losses}
        moved = {queue: at for queue, at in end.items() if queue in lost or known.get(queue) != at}
        kept = {queue: marks[queue] for queue in end.keys() & marks.keys() - moved.keys()}
        return offsets.to_json(end, {**kept, **self.recognition.marks(moved, bounds)})

    def reportLatestOffset(self) -> offsets.OffsetJson | None:
        """Return the ends of the last look; messages behind a step's end are the query's lag."""
        bounds = self._seen
        if bounds is None:
            return None
        return offsets.to_json({queue: bound.latest for queue, bound in bounds.items()})

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the group's progress to the brokers, if ``commitOffsets`` asks for it."""
        self._is_told = True
        if not self.options.access.commit_offsets:
            return
        origin = self.origin
        assert isinstance(origin, CommittingOrigin)
        origin.commit_offsets(offsets.with_marks(end, _CHECKPOINT)[0])

    def _look(self) -> Mapping[Queue, Bound]:
        self._seen = self.origin.bounds()
        return self._seen

    def _within_target(self, bounds: Mapping[Queue, Bound]) -> Mapping[Queue, Bound]:
        """Return the bounds up to the target of "available now"."""
        if self._target is None:
            return bounds
        return {
            queue: Bound(bound.earliest, min(bound.latest, self._target[queue].latest))
            for queue, bound in bounds.items()
            if queue in self._target
        }

    def _is_due(self, spans: Mapping[Queue, Span]) -> bool:
        """Tell whether there is enough to read; always true if the stream gets no more messages."""
        trigger = self.options.trigger
        if trigger.offsets_min is None or self._target is not None:
            return True
        waited_ms = (self._clock.monotonic() - self._stepped_at) * 1000
        rows = offsets.row_count(spans)
        return offsets.is_due(rows, trigger.offsets_min, waited_ms, trigger.delay_max_ms)

    def _limit(self, spans: Mapping[Queue, Span]) -> Mapping[Queue, Span]:
        trigger = self.options.trigger
        sizes = {} if trigger.bytes_max is None else self.origin.row_bytes(spans)
        limits = offsets.StepLimits(trigger.offsets_max, trigger.bytes_max, sizes)
        return offsets.limit_in_order(spans, limits, self._offsets_at)

    def _offsets_at(self, spans: Mapping[Queue, Span], timestamp_ms: int) -> Mapping[Queue, int]:
        origin = self.origin
        if isinstance(origin, SearchingOrigin):
            return origin.offsets_at(spans, timestamp_ms)
        found = {queue: origin.offset_at(queue, timestamp_ms) for queue in spans}
        return {q: spans[q].end if offset is None else offset for q, offset in found.items()}

    # --- messages ---

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a step.

        Raises DataLost if some of its messages are lost. With ``failOnDataLoss=false`` they are left out and logged.
        """
        first, first_marks = offsets.with_marks(start, _CHECKPOINT)
        last, last_marks = offsets.with_marks(end, _CHECKPOINT)
        bounds = self.origin.bounds()
        resumed = self.recognition.resume(first, first_marks, bounds)
        moved = {
            queue: at
            for queue, at in last.items()
            if (at, last_marks.get(queue)) != (first.get(queue), first_marks.get(queue))
        }
        if begun_again := first.keys() - resumed.start.keys() & moved.keys():
            ends = {queue: moved[queue] for queue in begun_again}
            for queue in self.recognition.differing(ends, last_marks, bounds):
                del moved[queue]  # the queue has begun again since the end was chosen
        told = [it for it in resumed.losses if it.queue in moved or it.queue not in last]
        spans = held_spans(self.options.reading, resumed.start, moved, bounds, told)
        return self.origin.partitions(spans) if spans else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task."""
        if type(partition) is InputPartition:
            return iter(())  # Spark's own partition, made if there are no tasks
        return iter(self.origin.read(partition, self.schema))

    def stop(self) -> None:
        """End quietly: the query is over, and so is the process that chooses its offsets."""
        end_quietly()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for the workers, which open the origin themselves and choose nothing."""
        return self.__dict__ | {"_opened": self._given, "_target": None, "_seen": None, "_recognition": None}


def require_streamable(options: Options) -> None:
    """Raise ConfigError for options that make no sense for a stream."""
    if options.place.table != "messages":
        raise ConfigError(f"option table={options.place.table!r}: a stream reads messages only")
    for name, value in (("endingOffsets", options.range.ending_offsets), ("endingTimestamp", options.range.ending_ms)):
        if value is not None:
            raise ConfigError(f"option {name}={value!r}: a stream has no end")
    if options.access.commit_offsets and not options.place.name_servers:
        raise ConfigError("option commitOffsets: only brokers keep offsets, but path names files")
    if options.access.commit_offsets and options.access.consumer_group is None:
        raise ConfigError("option commitOffsets: option consumerGroup is missing")
