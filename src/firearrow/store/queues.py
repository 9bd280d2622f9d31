"""The store's view of its ConsumeQueues, in files or in RocksDB.

``queuefiles`` keeps each in files of its own, ``rocks`` all in one database. The engine, dispatch,
recovery and the reader know only what is here.

Source: upstream ``ConsumeQueueStoreInterface``, ``ConsumeQueueInterface``.
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
"""An entry as ``ConsumeQueue.read`` gives it: physical offset, size, tag code; see
``consumequeue``."""
ENTRIES: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
"""Such entries as an array."""
assert ENTRY.size == ENTRIES.itemsize == ENTRY_BYTES


class ManyNewQueues(Exception):
    """A round would make files for too many queues at once: what ``arrived`` names is written, and
    the caller asks for the rest again."""

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
        """Find the runs of entries, of which there must be some, in order of their queues.
        ``group`` is the queue of each: the number of its topic, and its queue id in the lower 32
        bits.

        A run breaks where an entry doesn't begin where the last ended.
        """
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


class Entries(NamedTuple):
    """The entries of one round of dispatch: columns in the order of the queues, and the runs that
    make them up, one after another. A queue may have several runs.

    ``messages`` is how many messages each record holds in a queue of batches, from ``queue_offset``
    on; None: one each.
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

    def parts(self, runs: Sequence[Run]) -> Entries:
        """Some of the runs, in their order."""
        if len(runs) == len(self.runs.start):
            return self
        rows = np.concatenate([np.arange(run.start, run.end) for run in runs])
        return Entries(
            self.physical_offset[rows],
            self.size[rows],
            self.tag_code[rows],
            self.store_ms[rows],
            self.queue_id[rows],
            self.queue_offset[rows],
            Runs.side_by_side(runs),
            None if self.messages is None else self.messages[rows],
        )


class QueuesLeft(NamedTuple):
    """Queues with messages whose topic is missing: the number of queues, the place of their last
    record, and whether they are queues of batches."""

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


class Place(NamedTuple):
    """Place of a record, by an entry of a queue."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int


# Whether the log has the very record that an entry means; None where the log begins behind it.
HasRecord = Callable[[Place], bool | None]


SMALL_BYTES: Final = 1024  # of a record; the sizes of smaller ones are told apart by nobody


class PutCounters:
    """Messages, and bytes of their records, that were put into a topic.

    ``large`` are those of more than `SMALL_BYTES`, by the exponent of the power of two that their
    size does not exceed.
    """

    __slots__ = ("large", "put_bytes", "put_count")

    def __init__(self) -> None:
        self.put_count = 0
        self.put_bytes = 0
        self.large: dict[int, int] | None = None  # until the first

    def add(self, size: int) -> None:
        """Count a message."""
        self.put_count += 1
        self.put_bytes += size
        if size > SMALL_BYTES:
            self.note_large(size)

    def note_large(self, size: int, count: int = 1) -> None:
        """Count messages of more than `SMALL_BYTES`, which are counted otherwise, by their size."""
        if self.large is None:
            self.large = {}
        exponent = (size - 1).bit_length()
        self.large[exponent] = self.large.get(exponent, 0) + count


UNCOUNTED: Final = PutCounters()
"""Of queues that nobody puts messages into."""


class QueueEnd(Protocol):
    """The end of a queue, as an append needs it.

    ``next_offset`` is what the next appended message gets; ``magic`` and ``topic_field`` are what
    the queue's records hold of its topic; ``counters`` are those of the topic.
    """

    queue_id: int
    magic: int
    topic_field: bytes
    next_offset: int
    counters: PutCounters


class ConsumeQueue(QueueEnd, Protocol):
    """One queue of one topic.

    ``max_offset`` is what dispatch has written up to and consumers see; ``min_offset`` is the first
    whose record the log still holds.
    """

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last dispatched message."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def min_offset(self) -> int:
        """The first message whose record the log still holds."""

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """Physical offset, size and tag code; IndexError where there can't be an entry."""

    def read(self, queue_offset: int, count: int) -> bytes:
        """Up to ``count`` entries (``ENTRY``) from an offset on; empty where none are."""

    def extended_tag_code(self, address: int) -> int | None:
        """The tag code behind an address that an entry has in its place (``extension``); None if it
        is not known."""

    def stored_ms(self, queue_offset: int) -> int | None:
        """Store time (ms) of a message; None where only its record has it."""

    def gap_end(self, queue_offset: int) -> int:
        """Give the offset at which to go on when ``read`` has nothing at an offset."""

    def first_at_or_after(self, physical_offset: int) -> int:
        """The queue offset of the first entry whose record is at or after a physical offset."""


class WritableQueues(Protocol):
    """Queues as far as dispatch knows them."""

    def is_batch(self, topic: str) -> bool:
        """Tell whether the queues of a topic have one entry for all messages of a record
        (``batchqueue``)."""

    def put(self, entries: Entries, *, complete: bool = False) -> MessagesArrived:
        """Write the entries of a round of dispatch; return which queues got some. Entries that a
        queue has already are skipped.

        A queue that would get a hole, or can't be written for a reason of its own, is left out,
        with the reason logged. ``complete`` says that the log is being dispatched from its start:
        what is missing before the first message of a queue, or between two, is really gone, and the
        queue goes on behind it. Raises OSError when the disk is full: then a part may be written,
        and the call is to be repeated. Raises ManyNewQueues likewise, when others have waited long
        enough.
        """


class ConsumeQueues(WritableQueues, Protocol):
    """All queues of a store, by topic and queue id.

    One thread uses it, but for ``flush``, which is called in the flusher's. A queue comes into
    being when it is first opened, and is kept once it has its first message.
    """

    @property
    def dispatched_offset(self) -> int | None:
        """The log offset before which the queues have all that they are to have, whichever way the
        store was left; None where only the entries themselves can tell."""

    def load(self, *, on_disk: bool = False) -> None:
        """Take up what there is; ``on_disk`` says that a clean end has brought it to the disk."""

    def admit_batches(self, topic: str) -> bool:
        """Tell whether a topic that is to be created can have ``queue.type=BatchCQ``: not where there
        are messages in queues of another kind, of an earlier topic of its name. Such queues without
        messages are deleted."""

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it was ever opened; CorruptStore if nothing can be read of it now."""

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; CorruptStore if its data can't be used."""

    @property
    def max_physical_offset(self) -> int:
        """The highest record that any queue knows, -1 for none."""

    def last_before(self, physical_offset: int) -> int:
        """Find the last record that has an entry and begins before a physical offset, or one a
        scan of the log before it; -1 if that is not known."""

    def ranges(self, *, lmqs: bool = True) -> Iterator[QueueRange]:
        """Give the range of each queue; without ``lmqs``, of each that is no LMQ."""

    def topics_from(self, prefix: str) -> Iterator[str | None]:
        """The topics with messages whose names begin so, and None now and then while others are
        passed over; other things may be done between two."""

    def lmq_count(self) -> int:
        """Number of LMQs."""

    def correct_min(self, log_start_offset: int) -> None:
        """Move each ``min_offset`` to the first message that the log still holds."""

    def cut(self, log_end_offset: int, has_record: HasRecord | None = None) -> None:
        """Forget the entries of records at or after a physical offset.

        After a loss of power ``has_record`` tells what is left of an entry from a whole one; the
        entries of records before the offset were on the disk.
        """

    def delete_expired(self, log_start_offset: int) -> list[Path]:
        """Forget entries of records that the log no longer holds, as far as that frees anything;
        return the files that are to be removed for it."""

    def delete_queues(self, keys: set[tuple[str, int]]) -> None:
        """Forget single queues and all that the disk has of them."""

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues and all that the disk has of them."""

    def set_aside(self, directory: Path) -> set[tuple[str, int]]:
        """Move the files of queues that are left out below ``directory``; return which queues.

        These are empty then, and can be rebuilt from the log.
        """

    def clear(self) -> int:
        """Delete all queues, as ``delete_topic`` does; return how many had messages."""

    def flush(self, least_pages: int) -> None:
        """Bring to the disk what was put before the call, 0 pages: all of it.

        With more, queues may be left out that have fewer pages (``FLUSH_PAGE_BYTES``) to flush.
        """

    def close(self) -> None:
        """Let go of files and memory; nothing is flushed."""
