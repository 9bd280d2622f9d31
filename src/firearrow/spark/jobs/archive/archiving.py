"""Messages to Parquet, each exactly once, before retention deletes them.

::

    archive(SparkWorkers(spark), source({"path": "store"}), Archive("lake/messages"))

The driver chooses a range of queue offsets for each queue. Workers read their parts and write Parquet files. The driver
checks that each offset was written once, and commits files and offsets together to a Delta table
(``firearrow.spark.jobs.archive.delta``). No message passes through the JVM. The table holds the next offsets of
archiving, so a run that was killed at any point can simply be started again. If two processes archive the same queues
at the same time, one step counts, and the other process plans again.

The table also identifies the stores of the archive: places in a broker's log where some messages were, and their store
times. A store that has other messages there is refused, because its queue offsets mean other messages.

With ``consumerGroup`` and ``commitOffsets=true`` the brokers learn the archived offsets, so ``unconsumedPolicy=keep``
keeps messages from retention until they are archived.

The files are in ``topic=<name>/dt=<day stored, UTC>/``. Columns are the same as in the table ``messages``; bodies are
decompressed.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql.datasource import InputPartition

from firearrow.client.queues import Bound, Mark, Queue, Span
from firearrow.config.kinds import MiB
from firearrow.errors import ConfigError, CorruptStore, DataLost
from firearrow.logs import Log
from firearrow.spark import offsets
from firearrow.spark.jobs.archive.delta import (
    Archive,
    Conflict,
    MessageWriter,
    QueueRows,
    State,
    TableChange,
    TableFile,
    WrittenFiles,
)
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.archive.parquet import MessageFiles, there
from firearrow.spark.jobs.archive.progress import (
    ArchiveGap,
    LogMark,
    numbers_of_gaps,
    numbers_of_last,
    numbers_of_offsets,
)
from firearrow.spark.jobs.workers import Workers
from firearrow.spark.options import parse, with_system_topics
from firearrow.spark.planning.losses import lost_spans
from firearrow.spark.source.files import FileOrigin
from firearrow.spark.source.marks import ResumePoint
from firearrow.spark.source.opening import open_origin
from firearrow.spark.source.origin import Origin
from firearrow.spark.source.stream import CommittingOrigin, require_streamable
from firearrow.spark.tables import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log: Final = Log(__name__)

Source = Callable[[], Origin]
"""Function that opens an origin, on the driver and in each worker; must be picklable."""

STEP_BYTES: Final = 4096 * MiB  # the largest amount of work that a killed run repeats

RUN_DIGITS: Final = 16  # random hex digits: enough to tell runs apart

LARGE_ROW_BYTES: Final = 65_536  # sizes are looked up only if messages of this size would exceed the limit


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Settings of an archive. ``starting`` is the begin of queues that it does not hold yet."""

    step_rows_max: int | None = None
    step_bytes_max: int = STEP_BYTES
    fail_on_data_loss: bool = True
    commit_offsets: bool = False  # commit archived offsets to the brokers
    starting: offsets.Position = field(default_factory=lambda: offsets.Position.of("startingOffsets", "earliest"))


@dataclass(frozen=True, slots=True)
class ArchiveStep:
    """Files and gaps that a commit has added. ``version`` is the table's after it."""

    version: int
    added: tuple[TableFile, ...] = ()
    gaps: tuple[ArchiveGap, ...] = ()
    undecoded: int = 0
    """Messages of a typed table that do not decode."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of the steps of a run."""

    steps: int = 0
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    missing: int = 0
    undecoded: int = 0

    def plus(self, step: ArchiveStep) -> Summary:
        """Count a step."""
        return Summary(
            self.steps + 1,
            self.files + len(step.added),
            self.rows + sum(file.rows for file in step.added),
            self.size_bytes + sum(file.size_bytes for file in step.added),
            self.missing + sum(gap.missing for gap in step.gaps),
            self.undecoded + step.undecoded,
        )


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """Partition that one worker reads, and the place where it writes."""

    source: Source
    partition: InputPartition
    place: FilePlace
    stem: str
    writer: MessageWriter


def source(options: Mapping[str, str]) -> tuple[Source, ArchiveSettings]:
    """Return the source and settings of an archive, from the options of a read.

    The CRCs of bodies are checked unless ``verifyCrc=false``, because archived messages cannot be compared with their
    log for ever. Raises ConfigError for options that would leave messages out of queues.
    """
    parsed = parse({"verifyCrc": "true", **with_system_topics(options)})
    require_streamable(parsed)
    for name, value in (("tags", parsed.choice.tags), ("keys", parsed.choice.keys)):
        if value:
            raise ConfigError(f"option {name}: an archive contains whole queues")
    if parsed.reading.allow_new_store:
        raise ConfigError("option allowNewStore: another store needs a separate archive")
    if parsed.place.archive is not None:
        raise ConfigError("option archive: archived messages can't be archived again")
    if parsed.reading.visibility != "consumer":
        raise ConfigError("option visibility: an archive contains the messages that consumers see")
    settings = ArchiveSettings(
        step_rows_max=parsed.trigger.offsets_max,
        step_bytes_max=parsed.trigger.bytes_max or STEP_BYTES,
        fail_on_data_loss=parsed.reading.fail_on_data_loss,
        commit_offsets=parsed.access.commit_offsets,
        starting=parsed.range.positions("earliest")[0],
    )
    return functools.partial(open_origin, parsed), settings


def archive(
    workers: Workers,
    source: Source,
    archive: Archive,
    settings: ArchiveSettings | None = None,
    *,
    on_step: Callable[[ArchiveStep], object] | None = None,
) -> Summary:
    """Archive all messages that exist now and are not archived yet; return their counts.

    ``on_step`` is called with each committed step. Raises DataLost if messages are lost that the archive lacks; with
    ``fail_on_data_loss=False`` they are recorded as gaps. Raises ConfigError if the archive is of other stores or
    within one.
    """
    summary = Summary()
    job = Archiver(workers, source, archive, settings or ArchiveSettings())
    target = job.origin.bounds()
    while (step := job.step(target)) is not None:
        summary = summary.plus(step)
        if on_step is not None:
            on_step(step)
    return summary


def follow(
    workers: Workers,
    source: Source,
    archive: Archive,
    settings: ArchiveSettings | None = None,
    *,
    stop: Event,
    interval_seconds: float = 60.0,
    on_step: Callable[[ArchiveStep], object] | None = None,
    upkeep: Callable[[], object] | None = None,
) -> Summary:
    """Archive new messages until ``stop`` is set, at most one step each ``interval_seconds``.

    While more messages wait than one step takes, steps follow each other at once. ``upkeep`` is called after each look
    (``firearrow.spark.jobs.archive.upkeep.Upkeep``). Raises the same errors as ``archive``; the call can be repeated
    after one.
    """
    summary = Summary()
    job = Archiver(workers, source, archive, settings or ArchiveSettings())
    while not stop.is_set():
        step = job.step(job.origin.bounds())
        if step is not None:
            summary = summary.plus(step)
            if on_step is not None:
                on_step(step)
        if upkeep is not None:
            upkeep()
        if step is None or not job.was_limited:
            stop.wait(interval_seconds)
    return summary


def read_archive(spark: SparkSession, archive: Archive, *, properties: Literal["raw", "map"] = "raw") -> DataFrame:
    """Return the messages of an archive as the table ``messages``.

    Spark reads the files that the table names, without Delta's connector. An object store needs Spark's usual settings
    and jars. ``properties`` is the stored string, or a map, which costs only the queries that use it.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from firearrow.spark.properties import as_map

    schema = from_arrow_schema(MESSAGES)
    paths = [archive.place.full(path) for path in archive.load().files]
    if paths:
        frame = spark.read.schema(schema).parquet(*paths).select(*MESSAGES.names)
    else:
        frame = spark.createDataFrame([], schema)
    return frame if properties == "raw" else frame.withColumn("properties", as_map(frame))


def require_apart(paths: Iterable[str], place: FilePlace) -> None:
    """Raise ConfigError if an archive is within a store, or a store within it."""
    if place.directory is None:
        return
    root = place.directory.resolve()
    for path in paths:
        if "://" in path and not path.startswith("file://"):
            continue
        store = Path(path.removeprefix("file://")).resolve()
        if root.is_relative_to(store) or store.is_relative_to(root):
            raise ConfigError(
                f"archive {place} and store {path}: one is within the other, but the files of both must not mix"
            )


class Archiver:
    """One process that archives. Its knowledge of the archive is that of its start.

    ``origin`` is what ``source`` opens, if it is open already, and ``state`` that of the archive, if it is known.
    """

    def __init__(
        self,
        workers: Workers,
        source: Source,
        archive: Archive,
        settings: ArchiveSettings,
        origin: Origin | None = None,
        state: State | None = None,
    ) -> None:
        self.origin: Final = source() if origin is None else origin
        if isinstance(self.origin, FileOrigin):
            require_apart(self.origin.options.place.paths, archive.place)
        self.was_limited: bool = False
        self._recognition = archive.recognition(self.origin, fail_on_data_loss=settings.fail_on_data_loss)
        self._first: dict[Queue, int] | None = None
        self._workers = workers
        self._source = source
        self._archive = archive
        self._state = archive.load() if state is None else state
        self._settings = settings

    def step(self, bounds: Mapping[Queue, Bound]) -> ArchiveStep | None:
        """Archive up to the bounds, or as much as one step takes; None if there is nothing to do."""
        while True:
            resumed, spans, gaps = self._planned(bounds)
            if not spans and not gaps:
                return None
            written = self._workers.run(_write, self._tasks(spans)) if spans else []
            files = tuple(file for part in written for file in part.files)
            try:
                with self._archive.uncommitted(files):
                    there(self._archive.place, written)
                    gaps += self._missing(spans, written)
                    ends = self._ends(resumed, bounds, spans, gaps)
                    step = self._committed(files, gaps, ends, written, bounds)
            except Conflict as conflict:  # two processes do the same: the other one's step counts
                log.info("step is planned again", extra={"reason": str(conflict)})
                self._state = self._archive.load()
                continue
            self._told(step)
            return step

    def unread(self, bounds: Mapping[Queue, Bound]) -> Mapping[Queue, Span]:
        """Return the offsets up to the bounds that the archive lacks, or as many as one step takes."""
        return self._planned(bounds)[1]

    def _planned(self, bounds: Mapping[Queue, Bound]) -> tuple[ResumePoint, Mapping[Queue, Span], list[ArchiveGap]]:
        progress = self._state.progress
        resumed = self._recognition.resume(self._start(bounds), progress.last, bounds, progress.logs)
        return resumed, *self._spans(resumed, bounds)

    def _committed(
        self,
        files: tuple[TableFile, ...],
        gaps: Sequence[ArchiveGap],
        ends: Mapping[Queue, int],
        written: Sequence[WrittenFiles],
        bounds: Mapping[Queue, Bound],
    ) -> ArchiveStep:
        state = self._state
        first: dict[Queue, int] = {}
        parts = [part for one in written for part in one.queues]
        for part in parts:
            lowest = first.get(part.queue, state.first.get(part.queue))
            if lowest is None or part.first < lowest:  # lower than known: the queue began again
                first[part.queue] = part.first
        last = {part.queue: Mark(part.last_place, part.last_ms) for part in parts if part.last + 1 == ends[part.queue]}
        known = {*last, *(gap.queue for gap in gaps)}
        moved = {queue: end for queue, end in ends.items() if queue in known or state.offsets.get(queue) != end}
        unread = {queue: end for queue, end in moved.items() if queue not in last}
        last |= self._recognition.marks(unread, bounds)
        marks = _furthest(mark for one in written for mark in one.marks)
        numbers = numbers_of_offsets("next", moved) | numbers_of_offsets("first", first)
        numbers |= numbers_of_last(moved, last) | numbers_of_gaps(gaps)
        numbers |= state.progress.numbers_of_marks(marks, state.version + 1)
        change = TableChange(what="archive", added=files, numbers=numbers)
        self._state = self._archive.commit_step(state, change, written)
        undecoded = sum(file.rows for one in written for file in one.undecoded)
        return ArchiveStep(self._state.version, files, tuple(gaps), undecoded)

    def _told(self, step: ArchiveStep) -> None:
        """Commit the offsets to the brokers, and log a step that counts."""
        if self._settings.commit_offsets and isinstance(self.origin, CommittingOrigin):
            self.origin.commit_offsets(self._state.offsets)
        log.info(
            "step is archived",
            extra={
                "step": step.version,
                "files": len(step.added),
                "rows": sum(file.rows for file in step.added),
                "missing": sum(gap.missing for gap in step.gaps),
            },
        )

    def _start(self, bounds: Mapping[Queue, Bound]) -> Mapping[Queue, int]:
        """Return the offset where each queue must be read."""
        if self._state.numbers:
            return self._state.offsets
        if self._first is None:
            starting, offset_at = self._settings.starting, self.origin.offset_at
            self._first = offsets.resolve(starting, bounds, offset_at)
        return self._first

    def _spans(
        self, resumed: ResumePoint, bounds: Mapping[Queue, Bound]
    ) -> tuple[Mapping[Queue, Span], list[ArchiveGap]]:
        """Return the spans to read, and the gaps of lost messages."""
        end = offsets.new_end(resumed.start, bounds)
        plan = offsets.plan(resumed.start, end, bounds)
        lost_spans(self._settings.fail_on_data_loss, [*resumed.losses, *plan.losses])
        losses = [loss for loss in plan.losses if loss.span.start < loss.span.end]
        gaps = [
            ArchiveGap(*loss.queue, *loss.span, loss.span.end - loss.span.start) for loss in [*resumed.losses, *losses]
        ]
        spans: Mapping[Queue, Span] = plan.spans
        if self._settings.step_rows_max is not None:
            spans = offsets.with_idle(spans, end)
            spans = offsets.limit_rows(spans, self._settings.step_rows_max)
        bytes_max = self._settings.step_bytes_max
        if offsets.row_count(spans) * LARGE_ROW_BYTES > bytes_max:
            sizes = self.origin.row_bytes(spans)
            spans = offsets.limit_bytes(offsets.with_idle(spans, end), bytes_max, sizes)
        self.was_limited = spans != plan.spans
        return spans, gaps

    def _tasks(self, spans: Mapping[Queue, Span]) -> list[ArchiveTask]:
        stem = file_stem(self._state.version + 1)
        place, writer = self._archive.place, self._archive.writer or MessageFiles()
        return [
            ArchiveTask(self._source, partition, place, stem(number), writer)
            for number, partition in enumerate(self.origin.partitions(spans))
        ]

    def _missing(self, spans: Mapping[Queue, Span], written: Iterable[WrittenFiles]) -> list[ArchiveGap]:
        """Compare the written messages with the planned spans."""
        gaps = missing(spans, [part for one in written for part in one.queues])
        if gaps and self._settings.fail_on_data_loss:
            shown = "; ".join(
                f"queue {gap.queue_id} of topic {gap.topic!r} on {gap.broker}: {gap.missing} of"
                f" offsets {gap.start} to {gap.end}"
                for gap in gaps[:5]
            )
            raise DataLost(f"messages to archive are missing: {shown} (failOnDataLoss=false records gaps)")
        return gaps

    def _ends(
        self,
        resumed: ResumePoint,
        bounds: Mapping[Queue, Bound],
        spans: Mapping[Queue, Span],
        gaps: Iterable[ArchiveGap],
    ) -> dict[Queue, int]:
        """Return the offsets where reading goes on after this step: behind messages that were read or are lost."""
        found = {queue: offset for queue, offset in resumed.start.items() if queue in bounds}
        found |= {queue: bounds[queue].earliest for queue in resumed.recreated}
        for gap in gaps:
            if gap.missing:
                found[gap.queue] = max(found.get(gap.queue, 0), gap.end)
        return found | {queue: span.end for queue, span in spans.items()}


def _write(task: ArchiveTask) -> WrittenFiles:
    """Do one task, in a worker."""
    batches = iter(task.source().read(task.partition, task.writer.columns))
    return task.writer.write(batches, task.place, task.stem)


def file_stem(version: int) -> Callable[[int], str]:
    """Return a function that names the files of a run by their numbers: in the order of commits, and unique to the
    run."""
    run = uuid.uuid4().hex[:RUN_DIGITS]
    return lambda number: f"{version:012}-{number:05}-{run}"


def _furthest(marks: Iterable[LogMark]) -> list[LogMark]:
    """Return the mark of each broker that is furthest on in its log."""
    furthest: dict[str, LogMark] = {}
    for mark in marks:
        known = furthest.setdefault(mark.broker, mark)
        if mark.commit_log_offset > known.commit_log_offset:
            furthest[mark.broker] = mark
    return list(furthest.values())


def missing(spans: Mapping[Queue, Span], written: Iterable[QueueRows]) -> list[ArchiveGap]:
    """Return the parts of the spans that were not written. Each item of ``written`` is one task's part of a queue.

    A task has no offset twice. So if the parts do not overlap, lie within their spans and have the right number of
    rows, each offset was written exactly once. Raises CorruptStore for parts that overlap or lie elsewhere.
    """
    parts: dict[Queue, list[QueueRows]] = {queue: [] for queue in spans}
    for part in written:
        parts[part.queue].append(part)
    gaps = []
    for queue, span in spans.items():
        found = sorted(parts[queue], key=lambda part: part.first)
        for before, after in itertools.pairwise(found):
            if before.last >= after.first:
                raise CorruptStore(f"two tasks have read the same messages: {before} and {after}")
        if found and not span.start <= found[0].first <= found[-1].last < span.end:
            raise CorruptStore(f"tasks have read {found[0]} to {found[-1]} instead of {span}")
        lacking = span.end - span.start - sum(part.rows for part in found)
        if lacking:
            gaps.append(ArchiveGap(*queue, span.start, span.end, lacking))
    return gaps
