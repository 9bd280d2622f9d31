"""The store's view of its ConsumeQueues, in files or in RocksDB.

``queuefiles`` keeps each queue in its files, ``rocks`` all queues in one database. The engine, dispatch, recovery and
the reader use only this interface.

Source: RocketMQ's ``ConsumeQueueStoreInterface``, ``ConsumeQueueInterface``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from firearrow.store.events import MessagesArrived
from firearrow.store.scan import Ints

ENTRY_BYTES: Final = 20
ENTRY: Final = struct.Struct(">qiq")
"""An entry as ``ConsumeQueue.read`` returns it: physical offset, size, tag code; see ``consumequeue``."""
ENTRIES: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
"""Such entries as an array."""
assert ENTRY.size == ENTRIES.itemsize == ENTRY_BYTES


class ManyNewQueues(Exception):
    """A round would make files for too many queues at once: the entries of ``arrived`` are written, and the caller must
    ask for the rest again.
    """

    def __init__(self, arrived: MessagesArrived) -> None:
        super().__init__(f"{len(arrived)} queues are written")
        self.arrived = arrived


class Run(NamedTuple):
    """Entries of one queue that follow each other: the rows ``start`` to ``end``."""

    topic: str
    queue_id: int
    queue_offset: int
    start: int
    end: int


class Runs(NamedTuple):
    """Runs as columns: with very many queues each entry is one.

    ``topic`` is the number of each run's topic in ``topics``.
    """

    topics: list[str]
    topic: Ints
    queue_id: Ints
    start: Ints
    end: Ints

    @staticmethod
    def of(group: Ints, queue_offset: Ints, topics: list[str], messages: Ints | None) -> Runs:
        """Find the runs of entries, at least one, in order of their queues.

        ``group`` is the queue of each: the number of its topic, and its queue id in the lower 32 bits. A run breaks
        where an entry doesn't begin at the end of the last.
        """
        assert len(group) == len(queue_offset) > 0
        step = 1 if messages is None else messages[:-1]
        new = (group[1:] != group[:-1]) | (queue_offset[1:] != queue_offset[:-1] + step)
        bounds = np.concatenate(([0], new.nonzero()[0] + 1, [len(group)]))
        key = group[bounds[:-1]]
        return Runs(topics, key >> 32, key & 0xFFFFFFFF, bounds[:-1], bounds[1:])

    @staticmethod
    def side_by_side(runs: Sequence[Run]) -> Runs:
        """Make columns of runs whose rows are put one after another, wherever they were."""
        end = np.cumsum([run.end - run.start for run in runs], dtype=np.int64)
        start = np.append(0, end[:-1])[: len(end)]
        numbers: dict[str, int] = {}
        topic = np.array([numbers.setdefault(run.topic, len(numbers)) for run in runs], np.int64)
        return Runs(list(numbers), topic, np.array([run.queue_id for run in runs], np.int64), start, end)


class DispatchedEntries(NamedTuple):
    """The entries of one round of dispatch: columns in the order of the queues, and the runs that make them up, one
    after another. A queue may have several runs.

    ``messages`` is the number of messages in each record in a queue of batches, from ``queue_offset`` on; None: one
    each.
    """

    physical_offset: Ints
    size: Ints
    tag_code: Ints
    store_ms: Ints
    queue_id: Ints
    queue_offset: Ints
    runs: Runs
    messages: Ints | None = None

    def run(self, number: int) -> Run:
        """One of the runs."""
        topics, topic, queue_id, starts, ends = self.runs
        start, end = int(starts[number]), int(ends[number])
        first = int(self.queue_offset[start])
        return Run(topics[int(topic[number])], int(queue_id[number]), first, start, end)

    def each_run(self) -> Iterator[Run]:
        """The runs one by one."""
        topics, number, queue_id, start, end = self.runs
        topic = map(topics.__getitem__, number.tolist())
        first = self.queue_offset[start].tolist()
        columns = topic, queue_id.tolist(), first, start.tolist(), end.tolist()
        return map(Run._make, zip(*columns, strict=True))

    def parts(self, runs: Sequence[Run]) -> DispatchedEntries:
        """Some of the runs, in their order."""
        if len(runs) == len(self.runs.start):
            return self
        rows = np.concatenate([np.arange(run.start, run.end) for run in runs])
        side_by_side = Runs.side_by_side(runs)
        assert len(rows) == side_by_side.end[-1], "the runs are all the rows"
        return DispatchedEntries(
            self.physical_offset[rows],
            self.size[rows],
            self.tag_code[rows],
            self.store_ms[rows],
            self.queue_id[rows],
            self.queue_offset[rows],
            side_by_side,
            None if self.messages is None else self.messages[rows],
        )


class QueuesLeft(NamedTuple):
    """Queues with messages whose topic is missing: the number of queues, the place of their last record, and whether
    they are queues of batches.
    """

    topic: str
    queue_nums: int
    last_physical_offset: int
    batches: bool


class QueueRange(NamedTuple):
    """The messages that a queue has: from ``min_offset`` to before ``max_offset``."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


class RecordPlace(NamedTuple):
    """Place of a record, by an entry of a queue."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int


# Tell whether the log has exactly the record of an entry; None if the log begins after it.
HasRecord = Callable[[RecordPlace], bool | None]


SMALL_BYTES: Final = 1024  # of a record; all smaller ones are counted together


class PutCounters:
    """Messages, and bytes of their records, that were put into a topic.

    ``large`` counts messages of more than `SMALL_BYTES`, by the exponent of the least power of two that is not below
    their size.
    """

    __slots__ = ("large", "put_bytes", "put_count")

    def __init__(self) -> None:
        self.put_count: int = 0
        self.put_bytes: int = 0
        self.large: dict[int, int] | None = None  # until the first

    def add(self, size: int) -> None:
        """Count a message."""
        self.put_count += 1
        self.put_bytes += size
        if size > SMALL_BYTES:
            self.note_large(size)

    def note_large(self, size: int, count: int = 1) -> None:
        """Count messages of more than `SMALL_BYTES` by their size; the caller counts them otherwise."""
        if self.large is None:
            self.large = {}
        exponent = (size - 1).bit_length()
        self.large[exponent] = self.large.get(exponent, 0) + count


UNCOUNTED: Final = PutCounters()
"""Counters of queues that nobody puts messages into."""


class QueueEnd(Protocol):
    """The end of a queue, as an append needs it.

    ``next_offset`` is the offset of the next appended message. ``magic`` and ``topic_field`` are the fields of the
    queue's records that follow from the topic. ``counters`` are the topic's.
    """

    queue_id: int
    magic: int
    topic_field: bytes
    next_offset: int
    counters: PutCounters


class ConsumeQueue(QueueEnd, Protocol):
    """One queue of one topic.

    ``max_offset`` is the end of the entries that dispatch has written and consumers see. ``min_offset`` is the first
    message whose record the log still holds.
    """

    @property
    def max_offset(self) -> int:
        """Queue offset after the last dispatched message."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def min_offset(self) -> int:
        """The first message whose record the log still holds."""

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """Physical offset, size and tag code; IndexError where there can't be an entry."""

    def read(self, queue_offset: int, count: int) -> bytes:
        """Up to ``count`` entries (``ENTRY``) from an offset on; empty where there are none."""

    def extended_tag_code(self, address: int) -> int | None:
        """The tag code at an address that an entry has in place of one (``extension``); None if it is unknown."""

    def stored_ms(self, queue_offset: int) -> int | None:
        """Store time (ms) of a message; None if only its record has it."""

    def gap_end(self, queue_offset: int) -> int:
        """Offset of the next read when ``read`` has nothing at an offset."""

    def first_at_or_after(self, physical_offset: int) -> int:
        """Queue offset of the first entry whose record is at or after a physical offset."""


class WritableQueues(Protocol):
    """The part of the queues that dispatch uses."""

    def is_batch(self, topic: str) -> bool:
        """Tell whether the queues of a topic have one entry for all messages of a record (``batchqueue``)."""

    def put(self, entries: DispatchedEntries, *, complete: bool = False) -> MessagesArrived:
        """Write the entries of a round of dispatch; return the queues that got some. Entries that a queue already has
        are skipped.

        A queue is left out, with the reason logged, if it would get a hole, or can't be written for a reason that
        concerns only this queue. ``complete`` tells that the log is dispatched from its start: then missing messages,
        before the first of a queue or between two, are really gone. The queue goes on after them. Raises OSError when
        the disk is full: then a part may be written, and the caller must repeat the call. Raises ManyNewQueues in the
        same way, when other work has waited long enough.
        """


class ConsumeQueues(WritableQueues, Protocol):
    """All queues of a store, by topic and queue id.

    One thread uses it, except for ``flush``, which the flusher's thread calls. A queue is made when it is first opened,
    and kept once it has its first message.
    """

    @property
    def dispatched_offset(self) -> int | None:
        """Log offset before which the queues surely have all their entries, after any kind of end. None if only the
        entries themselves can show it.
        """

    def load(self, *, on_disk: bool = False) -> None:
        """Load the existing queues; ``on_disk`` tells that a clean end has brought them to the disk."""

    def admit_batches(self, topic: str) -> bool:
        """Tell whether a new topic can have ``queue.type=BatchCQ``. It can't if queues of another kind, of an earlier
        topic of that name, have messages. Such queues without messages are deleted.
        """

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it was ever opened; CorruptStore if it is unreadable at present."""

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; CorruptStore if its data is unusable."""

    @property
    def max_physical_offset(self) -> int:
        """Highest record that any queue knows, -1 for none."""

    def last_before(self, physical_offset: int) -> int:
        """Find the last record that has an entry and begins before a physical offset; -1 if none is known. The result
        may be an earlier one, by the length of a scan of the log at most.
        """

    def ranges(self, *, lmqs: bool = True) -> Iterator[QueueRange]:
        """The range of each queue; without ``lmqs``, of each that is no LMQ."""

    def topics_from(self, prefix: str) -> Iterator[str | None]:
        """The topics with messages whose names begin with a prefix. Between them the iterator returns None now and then
        while it passes over others, so that other work can be done.
        """

    def lmq_count(self) -> int:
        """Number of LMQs."""

    def correct_min(self, log_start_offset: int) -> None:
        """Move each ``min_offset`` to the first message that the log still holds."""

    def cut(self, log_end_offset: int, has_record: HasRecord | None = None) -> None:
        """Forget the entries of records at or after a physical offset.

        After a loss of power ``has_record`` distinguishes the rest of an entry from a whole one; the entries of records
        before the offset were on the disk.
        """

    def delete_expired(self, log_start_offset: int) -> list[Path]:
        """Forget entries of records that the log no longer holds, where that frees space; return the files that must be
        removed for it.
        """

    def delete_queues(self, keys: set[tuple[str, int]]) -> None:
        """Forget single queues and delete their data on the disk."""

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues and delete their data on the disk."""

    def set_aside(self, directory: Path) -> set[tuple[str, int]]:
        """Move the files of queues that are left out below ``directory``; return these queues.

        They are empty then, and can be rebuilt from the log.
        """

    def clear(self) -> int:
        """Delete all queues, as ``delete_topic`` does; return the number of queues with messages."""

    def flush(self, least_pages: int) -> None:
        """Bring all entries that were put before the call to the disk, with 0 pages.

        With a higher number, queues with fewer pages (``FLUSH_PAGE_BYTES``) to flush may be left out.
        """

    def close(self) -> None:
        """Release files and memory; nothing is flushed."""
