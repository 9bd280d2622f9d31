"""An archive and its live source as one table: the ``Origin`` behind the option ``archive``.

No message is read twice. Offsets of a queue below the archive's next one come from the archive, others from the store
or the brokers. That offset and the list of files come from one version of the archive's table. The archive is loaded
after the live bounds, so messages that retention deletes meanwhile are in the archive. A queue begins at the archive's
first offset, which rises when days expire.

The table knows only the range of values of a file, so a task may open a file in vain. Files that a compaction has
replaced stay readable for a while.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from firearrow.client.queues import Bound, Mark, Queue, RecordTimes, Span
from firearrow.errors import ConfigError, DataLost
from firearrow.spark.columns.choosing import chosen_rows
from firearrow.spark.columns.propertytext import PropertyText
from firearrow.spark.jobs.archive.delta import Archive, DataFile, State
from firearrow.spark.offsets import Loss
from firearrow.spark.options import Options
from firearrow.spark.planning.losses import lost_spans
from firearrow.spark.source.origin import LoggedOrigin, Origin

_LOOKS_MAX: Final = 5  # while the archive grows beyond the bounds of the source
_TIMES_MAX: Final = 4  # files whose store times are cached for one search
_CHOSEN_BY: Final = ("tags", "keys", "msgId")

Ints = npt.NDArray[np.int64]


class Clip(NamedTuple):
    """Wanted messages of a queue in a file."""

    queue: Queue
    span: Span


@dataclass
class ArchivePartition(InputPartition):
    """Files of an archive that a task reads, each with all or some of its messages."""

    wanted: list[tuple[DataFile, list[Clip]]]


class ArchivedOrigin:
    """``Origin`` of ``live``, a store or brokers, together with an archive of it."""

    def __init__(self, options: Options, live: Origin) -> None:
        self.options = options
        self.live = live
        self.archive: Final = Archive(options.place.archive or "")
        self._known_times: dict[str, pa.Table] = {}
        fail = options.reading.fail_on_data_loss
        self._recognition = self.archive.recognition(live, fail_on_data_loss=fail)

    def bounds(self) -> Mapping[Queue, Bound]:
        """Return every chosen queue, with its bounds in archive and source together.

        Raises ConfigError for a topic that neither has. Raises DataLost for a queue that was deleted and created again
        after it was archived: its offsets mean other messages now.
        """
        for _ in range(_LOOKS_MAX):
            live, state = self._look()
            begun_again = sorted(self._begun_again(live, state))
            if not begun_again:
                break  # otherwise the archive may have grown since the source's bounds were read
        else:
            queue = begun_again[0]
            raise DataLost(
                f"queue {queue.queue_id} of topic {queue.topic!r} on {queue.broker} ends at "
                f"{live[queue].latest}, and has other messages before {state.offsets[queue]} than "
                f"archive {self.archive.root}: it was deleted and created again"
            )
        found = dict(live)
        for queue, first in self._first.items():
            end = state.offsets[queue]
            bound = live.get(queue, Bound(end, end))
            found[queue] = Bound(first, max(bound.latest, end))
        self._require_topics({queue.topic for queue in found})
        return found

    def _begun_again(self, live: Mapping[Queue, Bound], state: State) -> set[Queue]:
        """Return the queues that were deleted and created again after they were archived."""
        progress = state.progress
        shorter = {q for q, bound in live.items() if bound.latest < state.offsets.get(q, 0)}
        resumed = self._recognition.resume(progress.offsets, progress.last, live, progress.logs)
        return shorter | resumed.recreated

    def marks(self, places: Mapping[Queue, int]) -> Mapping[Queue, Mark]:
        """Return the marks of messages, see ``LoggedOrigin.marks``: the source's, and the marks of the archive's last
        messages."""
        if not isinstance(self.live, LoggedOrigin):
            return {}
        archived, ends = self._state.progress.last, self._state.offsets
        found = {q: archived[q] for q, at in places.items() if q in archived and at + 1 == ends[q]}
        live = {
            queue: at
            for queue, at in places.items()
            if (bound := self._live.get(queue)) and bound.earliest <= at < bound.latest
        }
        return found | dict(self.live.marks(live))

    def stored_at(self, broker: str, physical_offset: int) -> RecordTimes | None:
        """Return the record at a place of the source's log, see ``LoggedOrigin.stored_at``."""
        if not isinstance(self.live, LoggedOrigin):
            return None
        return self.live.stored_at(broker, physical_offset)

    def _look(self) -> tuple[Mapping[Queue, Bound], State]:
        live = self.live.bounds()
        self._live, self._state = live, self.archive.load()
        if not self._state.numbers:
            raise ConfigError(f"option archive: {self.archive.root} is no archive, or an empty one")
        for name in ("_first", "_files"):
            self.__dict__.pop(name, None)
        self._known_times.clear()
        return live, self._state

    def _require_topics(self, known: set[str]) -> None:
        for topic in self.options.choice.subscribe:
            if topic not in known:
                raise ConfigError(
                    f"option subscribe: topic {topic!r} is neither in the source nor in archive {self.archive.root}"
                )

    @cached_property
    def _live(self) -> Mapping[Queue, Bound]:
        return self._look()[0]

    @cached_property
    def _state(self) -> State:
        return self._look()[1]

    @cached_property
    def _first(self) -> dict[Queue, int]:
        """Lowest offset that the archive has of each chosen queue."""
        wants, place = self.options.choice.wants_queue(), self.options.place
        only = place.broker_name if place.name_servers else None
        return {
            queue: first
            for queue, first in self._state.first.items()
            if wants(*queue) and (only is None or queue.broker == only)
        }

    @cached_property
    def _files(self) -> dict[str, list[DataFile]]:
        """The archive's files, by topic."""
        found: dict[str, list[DataFile]] = {}
        for file in self._state.files.values():
            found.setdefault(file.topic, []).append(file)
        return found

    def _of_queue(self, queue: Queue, span: Span | None = None) -> list[DataFile]:
        """Return the files that may have messages of a queue."""
        if queue not in self._first:
            return []
        return [file for file in self._files.get(queue.topic, ()) if file.may_hold(queue, span)]

    def offset_at(self, queue: Queue, timestamp_ms: int) -> int | None:
        """Return the first offset of a message stored at or after a time; None if there is none."""
        files = [file for file in self._of_queue(queue) if file.stored_max_ms >= timestamp_ms]
        found: int | None = None
        found_ms = 0
        for file in sorted(files, key=lambda file: (file.stored_min_ms, file.path)):
            if found is not None and file.stored_min_ms > found_ms:
                break  # later files hold messages that were stored later
            offsets, stored_ms = self._times(file.path, queue)
            late = (stored_ms >= timestamp_ms) & (offsets >= self._first[queue])
            if late.any() and (found is None or offsets[late].min() < found):
                at = int(np.argmin(np.where(late, offsets, np.iinfo(np.int64).max)))
                found, found_ms = int(offsets[at]), int(stored_ms[at])
        if found is not None:
            return found
        return self.live.offset_at(queue, timestamp_ms) if queue in self._live else None

    def _times(self, path: str, queue: Queue) -> tuple[Ints, Ints]:
        """Return queue offsets and store times (ms) of a queue in a file; the last few files are cached."""
        columns = ["broker", "queueId", "queueOffset", "storeTimestamp"]
        table = self._known_times.get(path)
        if table is None:
            with self.archive.place.open(path) as opened:
                table = pq.ParquetFile(opened).read(columns)
            if len(self._known_times) >= _TIMES_MAX:
                del self._known_times[next(iter(self._known_times))]
            self._known_times[path] = table
        of_queue = pc.and_(pc.equal(table["queueId"], queue.queue_id), pc.equal(table["broker"], queue.broker))
        found = table.filter(of_queue)
        stored_ms = found["storeTimestamp"].cast(pa.int64()).to_numpy() // 1000
        return found["queueOffset"].to_numpy(), stored_ms

    def row_bytes(self, spans: Mapping[Queue, Span]) -> dict[Queue, float]:
        """Return the approximate size of a message of each span, in stored records or in the files of the archive."""
        sizes = {queue: self._archived_bytes(queue) for queue in spans}
        live = self._live_spans(spans)
        return {**sizes, **(self.live.row_bytes(live) if live else {})}

    def _archived_bytes(self, queue: Queue) -> float:
        files = self._of_queue(queue)
        rows = sum(file.rows for file in files)
        return max(sum(file.size_bytes for file in files) / rows, 1.0) if rows else 1.0

    # --- tasks ---

    def partitions(self, spans: Mapping[Queue, Span]) -> list[InputPartition]:
        """Cut the spans into tasks, see ``Origin.partitions``.

        Raises DataLost for messages that the source deleted before they were archived.
        """
        self._tell_lost(spans)
        live = self._live_spans(spans)
        tasks = self._archive_tasks(spans)
        return tasks + (self.live.partitions(live) if live else [])

    def _live_spans(self, spans: Mapping[Queue, Span]) -> dict[Queue, Span]:
        found: dict[Queue, Span] = {}
        for queue, span in spans.items():
            bound = self._live.get(queue)
            start = max(span.start, self._state.offsets.get(queue, 0))
            if bound is not None:
                found[queue] = Span(max(start, bound.earliest), min(span.end, bound.latest))
        return {queue: span for queue, span in found.items() if span.start < span.end}

    def _tell_lost(self, spans: Mapping[Queue, Span]) -> None:
        losses: list[Loss] = []
        for queue, span in spans.items():
            end = self._state.offsets.get(queue, 0)
            bound = self._live.get(queue, Bound(end, end))
            lost = Span(max(span.start, end), min(span.end, bound.earliest))
            if queue in self._first and lost.start < lost.end:
                reason = f"deleted, and the archive ends at {end}"
                losses.append(Loss(queue, lost, reason))
        lost_spans(self.options.reading.fail_on_data_loss, losses)

    def _archive_tasks(self, spans: Mapping[Queue, Span]) -> list[InputPartition]:
        clips: dict[str, list[Clip]] = {}
        for queue, span in spans.items():
            start = max(span.start, self._first.get(queue, 0))
            span = Span(start, min(span.end, self._state.offsets.get(queue, 0)))
            for file in self._of_queue(queue, span):
                clips.setdefault(file.path, []).append(Clip(queue, span))
        tasks: list[InputPartition] = []
        room = 0
        for path in sorted(clips):
            file = self._state.files[path]
            if not tasks or room < file.size_bytes:
                tasks.append(ArchivePartition([]))
                room = self.options.reading.split_bytes
            task = tasks[-1]
            assert isinstance(task, ArchivePartition)
            task.wanted.append((file, clips[path]))
            room -= file.size_bytes
        return tasks

    # --- reading ---

    def read(self, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task, see ``Origin.read``."""
        if not isinstance(partition, ArchivePartition):
            return self.live.read(partition, schema)
        return self._read(partition, schema)

    def _read(self, task: ArchivePartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for file, clips in task.wanted:
            try:
                opened = self.archive.place.open(file.path)
            except FileNotFoundError:
                raise DataLost(
                    f"archive {self.archive.root}: {file.path} is gone since the query was planned: run it again"
                ) from None
            with opened:
                yield from self._of_file(pq.ParquetFile(opened), file, clips, schema)

    def _of_file(
        self, parquet: pq.ParquetFile, file: DataFile, clips: list[Clip], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        choice = self.options.choice
        is_whole = _take_all(clips, file)
        columns = list(schema.names)
        if not is_whole:
            columns += [name for name in ("broker", "queueId", "queueOffset") if name not in columns]
        if choice.tags or choice.keys:
            columns += [name for name in _CHOSEN_BY if name not in columns]
        size = sum(parquet.metadata.row_group(n).total_byte_size for n in range(parquet.metadata.num_row_groups))
        rows = max(int(self.options.reading.batch_bytes * file.rows / max(size, 1)), 1)
        for batch in parquet.iter_batches(min(rows, file.rows), columns=columns):
            if not is_whole:
                batch = batch.filter(_within(batch, clips))
            if choice.tags or choice.keys:
                chosen = chosen_rows(choice, batch["tags"], batch["keys"], partial(batch.column, "msgId"))
                batch = batch.filter(pa.array(chosen))
            if batch.num_rows:
                yield _shaped(batch, schema)

    def commit_offsets(self, offsets: Mapping[Queue, int]) -> None:
        """Commit a group's progress to the brokers (``stream.CommittingOrigin``)."""
        self.live.commit_offsets(offsets)  # type: ignore[attr-defined]


def _take_all(clips: Sequence[Clip], file: DataFile) -> bool:
    """Tell whether all messages that a file may hold are wanted."""
    if file.broker_min != file.broker_max or len(clips) <= file.queue_max - file.queue_min:
        return False
    return all(c.span.start <= file.offset_min and file.offset_max < c.span.end for c in clips)


def _within(batch: pa.RecordBatch, clips: Sequence[Clip]) -> pa.Array:
    offset, queue_id, broker = (batch[name] for name in ("queueOffset", "queueId", "broker"))
    masks = [
        pc.and_(
            pc.and_(pc.equal(queue_id, clip.queue.queue_id), pc.equal(broker, clip.queue.broker)),
            pc.and_(pc.greater_equal(offset, clip.span.start), pc.less(offset, clip.span.end)),
        )
        for clip in clips
    ]
    return reduce(pc.or_, masks)


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        array = batch[field.name]
        if pa.types.is_map(field.type) and not pa.types.is_map(array.type):
            array = PropertyText.of(array).as_map()
        arrays.append(array.cast(field.type))
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def live_options(options: Options) -> Options:
    """Return the options for the source, where a topic that only the archive has is no error."""
    choice = options.choice
    if choice.subscribe:
        pattern = "|".join(re.escape(topic) for topic in choice.subscribe)
        choice = replace(choice, subscribe=(), pattern=pattern, system_topics=True)
    return replace(options, choice=choice, place=replace(options.place, archive=None))
