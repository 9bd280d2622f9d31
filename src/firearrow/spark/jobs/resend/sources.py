"""Sources of messages that are sent again: an archive, or a store or cluster itself."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firearrow.client.queues import Queue, Span
from firearrow.errors import ConfigError
from firearrow.spark.jobs.archive.archiving import Source
from firearrow.spark.jobs.archive.delta import Archive, DataFile
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.options import Options, Range, parse, with_system_topics
from firearrow.spark.source.opening import open_origin
from firearrow.spark.tables import MESSAGES

_UNUSED: Final = {"storeHost", "bornHost", "offsetMsgId"}
SENT: Final = pa.schema([column for column in MESSAGES if column.name not in _UNUSED])
"""What is read of messages that are sent again."""
_PLACE: Final = pa.schema([MESSAGES.field(name) for name in ("broker", "queueId", "queueOffset")])

Spans = Mapping[Queue, Span]


class MessageSource(Protocol):
    """The messages of queues between offsets. Can be pickled."""

    @property
    def spans(self) -> Spans:
        """The queues, and the span of offsets of each."""

    @property
    def place(self) -> Mapping[str, Any]:
        """Place of the messages in values that can be compared."""

    def within(self, spans: Spans) -> MessageSource:
        """Return the same source with other offsets."""

    def read(self, queue: Queue, start: int) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a queue from an offset on, in order, with the columns ``SENT``."""


@dataclass(frozen=True, slots=True)
class ArchiveMessages:
    """Messages in the files of an archive."""

    files: tuple[DataFile, ...]
    spans: Spans
    place: Mapping[str, Any]
    _root: FilePlace

    @classmethod
    def of(cls, archive: Archive, topics: Sequence[str] = ()) -> ArchiveMessages:
        """Take the present messages of an archive, of some topics or of all.

        Raises ConfigError if there is no archive, and for topics that it lacks.
        """
        state = archive.load()
        _require_topics(archive, {file.topic for file in state.files.values()}, topics)
        files = tuple(f for f in state.files.values() if not topics or f.topic in topics)
        spans = {
            queue: Span(first, state.offsets[queue])
            for queue, first in state.first.items()
            if (not topics or queue.topic in topics) and first < state.offsets[queue]
        }
        place = {"archive": f"{archive.root} ({state.archive})"}
        return cls(files, spans, place, archive.place)

    def within(self, spans: Spans) -> ArchiveMessages:
        """Return the files that may be needed for other offsets."""
        held = spans.items()
        files = tuple(f for f in self.files if any(f.may_hold(*span) for span in held))
        return replace(self, files=files, spans=spans)

    def read(self, queue: Queue, start: int) -> Iterator[pa.RecordBatch]:
        """Read the row groups that hold a queue; the files are sorted by queue.

        The order of the files is looked up in them, because the table knows only the range of offsets of all their
        queues together.
        """
        span = self.spans[queue]
        span = Span(max(start, span.start), span.end)
        found: list[tuple[int, str]] = []
        for file in self.files:
            if file.may_hold(queue, span):
                first = next(self._read_file(file.path, queue, span, _PLACE), None)
                if first is not None:
                    found.append((first["queueOffset"][0].as_py(), file.path))
        for _, path in sorted(found):
            yield from self._read_file(path, queue, span, SENT)

    def _read_file(self, path: str, queue: Queue, span: Span, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        wanted = pq.filters_to_expression(
            [
                ("broker", "=", queue.broker),
                ("queueId", "=", queue.queue_id),
                ("queueOffset", ">=", span.start),
                ("queueOffset", "<", span.end),
            ]
        )
        with self._root.open(path) as opened:
            file = pq.ParquetFile(opened)
            for number in range(file.num_row_groups):
                if _may_hold(file.metadata.row_group(number), file.schema_arrow, queue, span):
                    table = file.read_row_group(number, columns.names)
                    found = table.cast(columns).filter(wanted)
                    yield from (batch for batch in found.to_batches() if batch.num_rows)


def _require_topics(archive: Archive, known: set[str], wanted: Sequence[str]) -> None:
    if not known:
        raise ConfigError(f"{archive.root}: there is no archive, or it is empty")
    for topic in wanted:
        if topic not in known:
            raise ConfigError(f"archive {archive.root} has no topic {topic!r}; it has {', '.join(sorted(known))}")


def _may_hold(group: pq.RowGroupMetaData, schema: pa.Schema, queue: Queue, span: Span) -> bool:
    ids = group.column(schema.get_field_index("queueId")).statistics
    offsets = group.column(schema.get_field_index("queueOffset")).statistics
    fits: bool = ids.min <= queue.queue_id <= ids.max
    return fits and offsets.max >= span.start and offsets.min < span.end


@dataclass(frozen=True, slots=True)
class OriginMessages:
    """Messages of a store or a cluster."""

    source: Source
    spans: Spans
    place: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def at(cls, options: Mapping[str, str]) -> OriginMessages:
        """Take the present messages of a read's options: the files of stores, or brokers.

        Bodies are read in their stored form, compressed or not. Raises ConfigError for options that choose messages by
        anything but their queues.
        """
        parsed = parse(with_system_topics(options))
        require_queues(parsed)
        reading = replace(parsed.reading, decompress=False)
        messages = cls.of(functools.partial(open_origin, replace(parsed, reading=reading)))
        return replace(messages, place=_place_of(parsed))

    @classmethod
    def of(cls, source: Source) -> OriginMessages:
        """Take the present messages of an origin."""
        bounds = source().bounds()
        held = {q: Span(b.earliest, b.latest) for q, b in bounds.items() if b.earliest < b.latest}
        return cls(source, held)

    def within(self, spans: Spans) -> OriginMessages:
        """Return the same place with other offsets."""
        return replace(self, spans=spans)

    def read(self, queue: Queue, start: int) -> Iterator[pa.RecordBatch]:
        """Read a queue, task by task; a task that is not in the order of the queue is sorted."""
        origin = self.source()
        span = Span(max(start, self.spans[queue].start), self.spans[queue].end)
        for partition in origin.partitions({queue: span}) if span.start < span.end else ():
            table = pa.Table.from_batches(origin.read(partition, SENT), SENT)
            offsets = table.column("queueOffset")
            if not pc.all(pc.less(offsets[:-1], offsets[1:])).as_py():
                table = table.sort_by("queueOffset")
            yield from table.to_batches()


def require_queues(options: Options) -> None:
    """Raise ConfigError for options that a `Selection` replaces, and for options without an equivalent."""
    choice = options.choice
    for name, is_given in (
        ("tags", choice.tags),
        ("keys", choice.keys),
        ("startingOffsets, endingOffsets or a timestamp", options.range != Range()),
    ):
        if is_given:
            raise ConfigError(f"option {name}: a replay chooses messages by tag, key and time")
    if options.reading.visibility != "consumer":
        raise ConfigError("option visibility: a replay sends the messages of ConsumeQueues")


def _place_of(options: Options) -> dict[str, Any]:
    place, choice = options.place, options.choice
    paths = [path if "://" in path else str(Path(path).resolve()) for path in place.paths]
    said = {
        "path": sorted(paths),
        "nameServer": sorted(place.name_servers),
        "brokerName": place.broker_name,
        "subscribe": sorted(choice.subscribe),
        "subscribePattern": choice.pattern,
        "assign": [[topic, broker, list(queues)] for topic, broker, queues in choice.assign],
    }
    return {name: value for name, value in said.items() if value}
