"""From places in the log to batches: find the records, check and choose them, make columns.

A batch comes from a few megabytes of records, so that records that are read several times stay in the processor's
cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firearrow.client.queues import Queue, Span
from firearrow.errors import CorruptStore
from firearrow.message.names import is_lmq
from firearrow.message.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from firearrow.spark.columns.choosing import chosen_rows
from firearrow.spark.columns.innerbatches import has_inner, unwrapped
from firearrow.spark.columns.messages import BatchTooLarge, MessageColumns, UndecodableRows
from firearrow.spark.columns.textcolumns import Texts
from firearrow.spark.options import Choice, Options
from firearrow.spark.planning.commitlogorder import EntriesInOrder, Wanted
from firearrow.spark.planning.shortqueues import Part
from firearrow.spark.planning.stores import Store
from firearrow.spark.source.filters import PushedFilters
from firearrow.store.reading.storage import StoreFile
from firearrow.store.scan import Buffer, Columns, Ints, gather

Mask = npt.NDArray[np.bool_]

_WORD: Final = np.dtype("<u8")
_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_ROWS_MAX: Final = 32_768
_LOG_PIECES: Final = 4  # largest scan, in batches' bytes
_LEAN_ROW_BYTES: Final = 128  # assumed size of a row without a body
_OTHER_CRC: Final = "its body has another CRC"


class PartTopics:
    """Topics of the parts of a task, by number, to compare with records' topics."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = Texts(names)
        self.is_lmq: Mask = np.array([is_lmq(name) for name in names], np.bool_)
        self.has_lmqs: Final = bool(self.is_lmq.any())
        texts = [name.encode() for name in names]
        self._sizes = np.array([len(text) for text in texts], np.int64)
        longest = max(map(len, texts), default=0)
        width = max(-(-longest // 8), 1)
        padded = b"".join([text.ljust(8 * width, b"\0") for text in texts])
        words = np.frombuffer(padded, np.uint64).reshape(len(texts), width)
        left = self._sizes[:, None] - 8 * np.arange(width)  # bytes of the topic that are left
        self._words = np.ascontiguousarray(words.T)
        self._masks = np.ascontiguousarray(_MASKS[np.clip(left, 0, 8)].T)

    def name(self, number: int) -> str:
        """Return a topic."""
        name: str = self._names.array[number].as_py()
        return name

    def column(self, number: Ints) -> pa.Array:
        """Return the topics of these numbers."""
        return self._names.take(number)

    def are(self, columns: Columns, number: Ints) -> Mask:
        """Tell for each record whether its topic is that of a number; eight bytes are compared at a time."""
        same: Mask = columns.topic_size == self._sizes[number]
        edge = len(columns.buffer) - 8
        at = columns.topic_start
        for some_words, some_masks in zip(self._words, self._masks, strict=True):
            if edge < 0:
                break
            masks = some_masks[number]
            same &= _words(columns.buffer, at, edge) & masks == some_words[number]
            at = at + 8
        return same


class Parts:
    """Parts of a task, by number. ``batches`` marks the parts of queues of batches."""

    def __init__(self, parts: Sequence[Part], batches: Sequence[bool]) -> None:
        self.topics: Final = PartTopics([part[0] for part in parts])
        self.queue_ids: Final = np.array([part[1] for part in parts], np.int64)
        self._start = np.array([part[2] for part in parts], np.int64)
        self._end = np.array([part[3] for part in parts], np.int64)
        # In other queues every record that an entry leads to is wanted, whatever its offset.
        self._start[~np.array(batches, np.bool_)] = 0
        self._end[~np.array(batches, np.bool_)] = 1 << 62

    def span_of(self, number: Ints) -> tuple[Ints, Ints]:
        """Return the first queue offset of each part, and the offset behind its last."""
        return self._start[number], self._end[number]


def _words(buffer: Buffer, at: Ints, edge: int) -> npt.NDArray[np.uint64]:
    """Return eight bytes from each place on; words that would exceed the buffer are shifted."""
    if not len(at) or int(at.max()) <= edge:
        words: npt.NDArray[np.uint64] = gather(buffer, _WORD, at)
        return words
    over = np.maximum(at - edge, 0)
    words = gather(buffer, _WORD, at - over)
    shifted: npt.NDArray[np.uint64] = words >> (8 * np.minimum(over, 7)).astype(np.uint64)
    return shifted


class RecordSource(Protocol):
    """Source of records, as errors and the column ``broker`` name it."""

    @property
    def broker(self) -> str:
        """The broker's name."""

    @property
    def root(self) -> str:
        """The store's path, or the broker's address."""


class Batches:
    """Maker of the batches of a task: columns of exactly ``schema``, only chosen messages."""

    def __init__(self, options: Options, narrow: PushedFilters, schema: pa.Schema, source: RecordSource) -> None:
        self._choice = options.choice
        self._reading = options.reading
        self._narrow = narrow
        self._schema = schema
        self._source = source
        self._has_body = "body" in schema.names
        wanted = replace(options.choice, system_topics=False)  # that topics are left out is a matter of planning
        self._is_choosing = narrow != PushedFilters() or wanted != Choice()

    # --- records of the log ---

    def of_log(self, columns: Columns, base: int) -> Iterator[pa.RecordBatch]:
        """Yield batches of the records of a scan, whose positions are relative to ``base`` in the log."""
        if self._is_choosing:
            chosen = self._chosen_of_log(columns)
            if np.count_nonzero(chosen) < len(chosen):
                columns = _some(columns, chosen)
        if int(columns.size.sum()) <= _LOG_PIECES * self._reading.batch_bytes:
            yield from self._batches(columns)
            return
        at = 0
        for stop in self._steps(columns.size):
            part = columns if stop - at == len(columns) else _some(columns, slice(at, stop))
            yield from self._batches(part)
            at = stop

    def _chosen_of_log(self, columns: Columns) -> Mask:
        narrow, choice = self._narrow, self._choice
        texts, number = columns.topics()
        names = [text.decode("utf-8", "replace") for text in texts]
        wanted = [name in narrow.topic and choice.wants(name) for name in names]
        chosen: Mask = np.array(wanted, np.bool_)[number] if names else np.ones(0, np.bool_)
        for numbers, column in (
            (narrow.queue_id, columns.queue_id),
            (narrow.queue_offset, columns.queue_offset),
            (narrow.physical_offset, columns.physical_offset),
            (narrow.store_ms, columns.store_ms),
        ):
            if not numbers.is_all:
                chosen &= numbers.mask(column)
        if choice.assign:
            broker, wants = self._source.broker, choice.wants_queue()
            pairs = zip(number.tolist(), columns.queue_id.tolist(), strict=True)
            chosen &= np.array([wants(names[topic], broker, queue) for topic, queue in pairs])
        return chosen

    def of_queue(self, columns: Columns, queue: Queue, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield batches of the records of one queue that hold the messages of a span of offsets.

        Inner batches are split into their messages; messages outside of the span are left out.
        """
        if not is_lmq(queue.topic):
            columns.queue_id[:] = queue.queue_id
        if has_inner(columns):
            start, end = (np.full(len(columns), offset) for offset in span)
            columns = self._unwrapped(columns, start, end)
        yield from self.of_log(columns, 0)

    # --- records of log and queues ---

    def _unwrapped(self, columns: Columns, start: Ints, end: Ints) -> Columns:
        """See ``innerbatches.unwrapped``."""
        bad, reason = np.zeros(len(columns), np.bool_), _OTHER_CRC
        if self._reading.verify_crc:
            bad = ~columns.body_crc_holds()
        while True:
            columns, start, end = self._without(columns, bad, reason), start[~bad], end[~bad]
            try:
                return unwrapped(columns, start, end)
            except UndecodableRows as error:
                bad, reason = error.among(len(columns)), error.reason

    def _steps(self, sizes: Ints) -> Iterator[int]:
        """Yield the end of each batch."""
        cost = sizes if self._has_body else np.minimum(sizes, _LEAN_ROW_BYTES)
        sums = cost.cumsum()
        at = 0
        while at < len(sizes):
            done = int(sums[at - 1]) if at else 0
            end = int(sums.searchsorted(done + self._reading.batch_bytes, side="right"))
            at = min(max(end, at + 1), at + _ROWS_MAX)
            yield at

    def _messages(self, columns: Columns, topic: pa.Array | None = None) -> MessageColumns:
        unpack = self._reading.decompress
        return MessageColumns(columns, self._source.broker, decompress=unpack, topic=topic)

    def _batches(self, columns: Columns, topic: pa.Array | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the batch of some records; several batches if bodies are too large for one.

        ``topic`` has the topics of the records if they are known.
        """
        messages = self._messages(columns, topic)
        if self._reading.verify_crc and len(columns):
            bad = ~columns.body_crc_holds()
            if np.count_nonzero(bad):
                messages = self._messages(self._without(columns, bad, _OTHER_CRC))
        if self._choice.tags or self._choice.keys:
            chosen = self._chosen(messages)
            if np.count_nonzero(chosen) < len(chosen):
                messages = self._messages(_some(columns, chosen))
        while len(messages.columns):
            try:
                yield messages.batch(self._schema)
                return
            except UndecodableRows as error:
                bad = error.among(len(messages.columns))
                messages = self._messages(self._without(messages.columns, bad, error.reason))
            except BatchTooLarge:
                half = len(messages.columns) // 2
                for rows in (slice(0, half), slice(half, None)):
                    yield from self._batches(_some(messages.columns, rows))
                return

    def _fail(self, text: str) -> None:
        if self._reading.on_corrupt == "fail":
            raise CorruptStore(f"{text} (onCorrupt=skip skips it)")

    def _without(self, columns: Columns, bad: Mask, reason: str) -> Columns:
        """Return the records that are not bad; raise CorruptStore if some are, unless ``onCorrupt`` skips them."""
        if not np.count_nonzero(bad):
            return columns
        at = int(columns.physical_offset[int(bad.argmax())])
        self._fail(f"{self._source.root}: the message at {at} of the log is damaged: {reason}")
        return _some(columns, ~bad)

    def _chosen(self, messages: MessageColumns) -> Mask:
        """Return a mask of the messages with one of the tags and one of the keys that the options name."""
        ids = partial(messages.column, "msgId", pa.string())
        return chosen_rows(self._choice, messages.tags, messages.keys, ids)


class Window(NamedTuple):
    """Bytes of the log from ``first`` on, and the entries whose records are in them."""

    buffer: memoryview
    first: int
    wanted: Wanted


class QueueBatches(Batches):
    """Maker of the batches of a task from entries of ConsumeQueues: the messages that consumers see."""

    def __init__(self, options: Options, narrow: PushedFilters, schema: pa.Schema, store: Store) -> None:
        super().__init__(options, narrow, schema, store)
        self._store = store

    def of_queues(self, file: StoreFile, wanted: EntriesInOrder, parts: Parts) -> Iterator[pa.RecordBatch]:
        """Yield batches of the records of a file that entries refer to.

        Raises CorruptStore if a record does not fit its entry, unless ``onCorrupt`` skips it.
        """
        first, end = wanted.first, min(wanted.last + wanted.size_max, file.end)
        storage = self._store.storage
        held = None  # an open file stays readable, so it is opened once if possible
        if end - first <= storage.window_bytes_max:
            held = storage.window(file.path, first - file.base, end - file.base), first
        for some in wanted.pieces():
            for window in self._windows(file, some, held):
                yield from self._of_window(file, window, parts)

    def _of_window(self, file: StoreFile, window: Window, parts: Parts) -> Iterator[pa.RecordBatch]:
        buffer, first, wanted = window
        at = 0
        for stop in self._steps(wanted.size):
            some = wanted.take(slice(at, stop))
            columns = Columns(buffer, some.physical_offset - first, len(buffer))
            meant, some = self._meant(file, columns, some, parts, first)
            if has_inner(meant):
                yield from self._batches(self._unwrapped(meant, *parts.span_of(some.part)))
            else:
                yield from self._batches(meant, self._names(some, parts.topics))
            at = stop

    def _inside(self, file: StoreFile, wanted: Wanted) -> Wanted:
        """Return the entries that can be right: their size is that of a record, and the record ends in the file."""
        places, sizes = wanted.physical_offset, wanted.size
        good = (sizes >= RECORD_BYTES_MIN) & (places + sizes <= file.end)
        if np.count_nonzero(good) == len(good):
            return wanted
        row = int(good.argmin())
        self._fail(
            f"{self._store.root}/{file.path}: an entry says that its record is at {places[row]} "
            f"and has {sizes[row]} bytes, which it can't"
        )
        return wanted.take(good)

    def _windows(self, file: StoreFile, wanted: Wanted, held: tuple[memoryview, int] | None) -> Iterator[Window]:
        """Yield entries with the bytes of their records: the open window, or the bytes that one call reads."""
        wanted = self._inside(file, wanted)
        places = wanted.physical_offset
        if np.count_nonzero(again := places[1:] == places[:-1]):  # the message is also in an LMQ
            repeated = np.append(False, again)
            yield from self._windows(file, wanted.take(repeated), held)
            wanted = wanted.take(~repeated)
        if held is not None:
            yield Window(*held, wanted)
            return
        ends = wanted.physical_offset + wanted.size
        storage = self._store.storage
        at = 0
        while at < len(ends):
            first = int(wanted.physical_offset[at])
            stop = int(ends.searchsorted(first + storage.window_bytes_max, side="right"))
            some = wanted.take(slice(at, max(stop, at + 1)))
            end = int((some.physical_offset + some.size).max())
            yield Window(storage.window(file.path, first - file.base, end - file.base), first, some)
            at += len(some.size)

    def _meant(
        self, file: StoreFile, columns: Columns, wanted: Wanted, parts: Parts, first: int
    ) -> tuple[Columns, Wanted]:
        """Return the records that fit their entries: the messages that a broker hands out.

        A message of an LMQ is a message of another queue, so only its place counts. For other messages the queue id is
        that of their queue, as clients take it, whatever the record says. Source: RocketMQ
        ``PullAPIWrapper#processPullResult``.
        """
        topics = parts.topics
        good: Mask = columns.valid & (columns.size == wanted.size)
        magic = columns.magic
        good &= (magic == MAGIC_V1) | (magic == MAGIC_V2)
        good &= columns.physical_offset == columns.position + first
        good &= columns.ports_fit
        if np.count_nonzero(good) < len(good):
            self._corrupt(file, wanted, topics, good)
            columns, wanted = _some(columns, good), wanted.take(good)
        own = columns.queue_offset == wanted.queue_offset
        own &= topics.are(columns, wanted.part)
        if np.count_nonzero(own) < len(own):
            own |= topics.is_lmq[wanted.part]
        # records inside of others: at most one of them is genuine
        own[1:] &= columns.position[1:] >= columns.position[:-1] + columns.size[:-1]
        if np.count_nonzero(own) < len(own):
            self._corrupt(file, wanted, topics, own)
            columns, wanted = _some(columns, own), wanted.take(own)
        queue_id = parts.queue_ids[wanted.part]
        if topics.has_lmqs:
            queue_id = np.where(topics.is_lmq[wanted.part], columns.queue_id, queue_id)
        columns.queue_id = queue_id
        return columns, wanted

    def _names(self, wanted: Wanted, topics: PartTopics) -> pa.Array | None:
        """Return the topics of checked records; None if only the records have them."""
        return None if topics.has_lmqs else topics.column(wanted.part)

    def _corrupt(self, file: StoreFile, wanted: Wanted, topics: PartTopics, good: Mask) -> None:
        row = int(good.argmin())
        topic = topics.name(int(wanted.part[row]))
        self._fail(
            f"{self._store.root}/{file.path}: at {wanted.physical_offset[row]} of the log "
            f"is not the message {wanted.queue_offset[row]} of topic {topic!r} that its "
            "ConsumeQueue means"
        )


def _some(columns: Columns, rows: Mask | slice) -> Columns:
    found = Columns(columns.buffer, columns.position[rows], len(columns.buffer))
    found.queue_id = columns.queue_id[rows]  # it may differ from the topic in the records
    return found
