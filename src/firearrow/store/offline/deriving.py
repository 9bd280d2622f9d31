"""What a stretch of the log leads to: queue entries and index keys, as one piece of a rebuild.

The store's own ``Dispatcher`` makes them; here they are collected, those of each queue together, so
that whoever writes the files has few large pieces to put. Results are bytes and can be pickled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.store.batchqueue import messages_end
from firearrow.store.offline.pieces import Stretch
from firearrow.store.offline.view import StoreView
from firearrow.store.offline.walk import FileEnd, Gap, RecordRun, first_record, walk_file
from firearrow.store.queues import Entries, Runs
from firearrow.store.queues import Run as QueueRun
from firearrow.store.scan import Ints
from firearrow.store.snapshot.dispatching import dispatch_to
from firearrow.store.snapshot.entries import QueueKey
from firearrow.store.snapshot.rocksrows import ROW

_KEY: Any = np.dtype([("hash", "<i8"), ("physical_offset", "<i8"), ("store_ms", "<i8")])


class Derived(NamedTuple):
    """What the records of a stretch lead to; ``begin``, ``reached`` and ``over`` as in
    ``logcheck.FileReport``.

    ``rows`` are entries (``storedrows.ROW``) in the order of ``runs``, ``keys`` those of the index.
    ``messages`` has how many messages each row stands for (i2), nothing where all stand for one.
    """

    base: int
    end: int
    begin: int | None
    reached: int = 0
    over: bool = False
    records: int = 0
    rows: bytes = b""
    runs: tuple[QueueRun, ...] = ()
    keys: bytes = b""
    messages: bytes = b""

    @property
    def entries(self) -> Entries:
        """The queue entries, as dispatch has them."""
        rows = np.frombuffer(self.rows, ROW)
        messages = np.frombuffer(self.messages, "<i2").astype(np.int64) if self.messages else None
        steps = np.ones(len(rows), np.int64) if messages is None else messages
        numbers = [
            run.queue_offset + np.append(0, steps[run.start : run.end - 1].cumsum())
            for run in self.runs
        ]
        sizes = [run.end - run.start for run in self.runs]
        return Entries(
            rows["physical_offset"].astype(np.int64),
            rows["size"].astype(np.int64),
            rows["tag_code"].astype(np.int64),
            rows["store_ms"].astype(np.int64),
            np.repeat(np.array([run.queue_id for run in self.runs], np.int64), sizes),
            np.concatenate(numbers) if numbers else np.empty(0, np.int64),
            Runs.side_by_side(self.runs),
            messages,
        )

    @property
    def index_keys(self) -> tuple[Ints, Ints, Ints]:
        """Hash, physical offset and store time of the index keys."""
        keys = np.frombuffer(self.keys, _KEY)
        return keys["hash"], keys["physical_offset"], keys["store_ms"]


class _Part(NamedTuple):
    """A run of one queue: its first queue offset, the one behind it, entries, messages in each."""

    first: int
    end: int
    rows: npt.NDArray[Any]
    messages: npt.NDArray[Any]


class _Collected:
    """Takes the place of queues and index, and keeps what is put."""

    def __init__(self, queues: bool) -> None:
        self._queues = queues
        self._parts: dict[QueueKey, list[_Part]] = {}
        self._counts = False  # whether some row stands for more than one message
        self.keys: list[bytes] = []

    def put_entries(self, entries: Entries) -> None:
        """Keep queue entries, those of each queue together."""
        rows: npt.NDArray[Any] = np.empty(len(entries.size), ROW)
        rows["physical_offset"] = entries.physical_offset
        rows["size"] = entries.size
        rows["tag_code"] = entries.tag_code
        rows["store_ms"] = entries.store_ms
        messages = np.ones(len(rows), "<i2")
        if entries.messages is not None:
            self._counts = True
            messages[:] = entries.messages
        for run in entries.each_run() if self._queues else ():
            part = _Part(
                run.queue_offset,
                messages_end(entries, run),
                rows[run.start : run.end],
                messages[run.start : run.end],
            )
            self._parts.setdefault((run.topic, run.queue_id), []).append(part)

    def put(self, hashes: Ints, physical_offsets: Ints, store_ms: Ints) -> None:
        """Keep index keys."""
        keys: npt.NDArray[Any] = np.empty(len(hashes), _KEY)
        keys["hash"], keys["physical_offset"], keys["store_ms"] = hashes, physical_offsets, store_ms
        self.keys.append(keys.tobytes())

    def rows(self) -> tuple[bytes, tuple[QueueRun, ...]]:
        """All entries, and each queue's runs; those that follow each other are one."""
        rows: list[bytes] = []
        runs: list[QueueRun] = []
        at = 0
        for key, parts in self._parts.items():
            reached = None
            for part in parts:
                rows.append(part.rows.tobytes())
                after = at + len(part.rows)
                if part.first == reached:
                    runs[-1] = runs[-1]._replace(end=after)
                else:
                    runs.append(QueueRun(*key, part.first, at, after))
                at, reached = after, part.end
        return b"".join(rows), tuple(runs)

    def messages(self) -> bytes:
        """How many messages the entries stand for, in the same order."""
        if not self._counts:
            return b""
        return b"".join(part.messages.tobytes() for parts in self._parts.values() for part in parts)


class Deriving(NamedTuple):
    """A stretch as a piece of work, and what is wanted of it."""

    stretch: Stretch
    queues: bool
    keys: bool


def derive(view: StoreView, piece: Deriving) -> Derived | None:
    """Read the records that begin in a stretch of the log; None if its file is gone by now."""
    stretch = piece.stretch
    file = view.log_file(stretch.base)
    if file is None:
        return None
    start: int | None = stretch.start
    if not stretch.known:
        start = first_record(view, file, stretch.start, stretch.end)
    if start is None:
        return Derived(stretch.base, stretch.end, None)
    collected = _Collected(piece.queues)
    index = collected if piece.keys else None
    levels = view.layout.delay_levels
    dispatch = dispatch_to(collected.put_entries, view.batch_topics, levels, index)
    records, reached, over = 0, start, False
    for part in walk_file(view, file, start, stretch.end):
        match part:
            case RecordRun():
                dispatch(part.columns)
                records += len(part.columns)
                reached = part.columns.end
            case Gap():
                reached = part.end
            case FileEnd():
                over = True
    place = stretch.base, stretch.end, start, reached, over
    keys = b"".join(collected.keys)
    return Derived(*place, records, *collected.rows(), keys, collected.messages())
