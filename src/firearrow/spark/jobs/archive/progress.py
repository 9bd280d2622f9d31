"""State of an archive beside its files: numbers in the log of its table.

A table of Delta Lake stores a number under any name for its writers: the version of an application transaction. The
commit that adds files also sets numbers. They are part of each checkpoint and survive log clean-up, unlike the rest of
a commit's metadata. So all lasting state is such a number::

    firearrow:next:<queue id>:<broker>:<topic>         the queue offset to be archived next
    firearrow:first:<queue id>:<broker>:<topic>        the lowest that the table has or had to get;
                                                       expiry raises it
    firearrow:last:<queue id>:<broker>:<topic>:<what>  the message before ``next``, which identifies
                                                       its queue: ``place`` in the log
                                                       and store time (``stored``); -1 if not known
    firearrow:gap:<queue id>:<broker>:<topic>:<start>:<end>   number of these messages that were
                                                       lost; 0 if the queue begins again at start
    firearrow:mark:<broker>:<slot>:<what>              a message that identifies a log
    firearrow:files                                    the last commit that removed files

Parts of a name are quoted as in URLs. The library returns a number by its name but does not list the names. So this
module reads the log for these numbers, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Final
from urllib.parse import quote, unquote

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firearrow.client.queues import Mark, Queue
from firearrow.spark.jobs.archive.fileplace import FilePlace

LOG: Final = "_delta_log"
MARKS_MAX: Final = 8  # for each broker: messages of its last steps
_OWN: Final = "firearrow"
FILES: Final = f"{_OWN}:files"
_NO_MARK: Final = Mark(-1, -1)

Numbers = Mapping[str, int]


class OfQueue(msgspec.Struct, frozen=True, rename="camel"):
    """A record about one queue; further fields follow the three of the queue."""

    topic: str
    broker: str
    queue_id: int

    @property
    def queue(self) -> Queue:
        """The queue of the record."""
        return Queue(self.topic, self.broker, self.queue_id)


class ArchiveGap(OfQueue, frozen=True, rename="camel"):
    """Messages that were deleted before they were archived: ``missing`` messages between ``start`` and ``end``."""

    start: int
    end: int
    missing: int


class LogMark(msgspec.Struct, frozen=True, rename="camel"):
    """A message that identifies a broker's log: the place of its record, and its store time."""

    broker: str
    commit_log_offset: int
    store_ms: int


@dataclass(frozen=True)
class ArchiveProgress:
    """The numbers by their meaning. ``marks`` holds the marks of each broker, newest last."""

    offsets: dict[Queue, int] = field(default_factory=dict)
    first: dict[Queue, int] = field(default_factory=dict)
    gaps: list[ArchiveGap] = field(default_factory=list)
    last: dict[Queue, Mark] = field(default_factory=dict)
    marks: tuple[LogMark, ...] = ()
    _slots: dict[str, list[int]] = field(default_factory=dict)  # oldest first

    @classmethod
    def of(cls, numbers: Numbers) -> ArchiveProgress:
        """Read Firearrow's numbers among a table's."""
        progress = cls()
        last: dict[Queue, dict[str, int]] = {}
        marks: dict[tuple[str, int], dict[str, int]] = {}
        for name, number in numbers.items():
            own, _, rest = name.partition(":")
            if own != _OWN:
                continue
            kind, *parts = (unquote(part) for part in rest.split(":"))
            if kind == "next":
                progress.offsets[_queue(parts)] = number
            elif kind == "first":
                progress.first[_queue(parts)] = number
            elif kind == "last":
                last.setdefault(_queue(parts), {})[parts[3]] = number
            elif kind == "gap":
                gap = ArchiveGap(*_queue(parts), int(parts[3]), int(parts[4]), number)
                progress.gaps.append(gap)
            elif kind == "mark":
                broker, slot, what = parts
                marks.setdefault((broker, int(slot)), {})[what] = number
        progress.gaps.sort(key=lambda gap: (gap.queue, gap.start))
        found = {queue: Mark(m["place"], m["stored"]) for queue, m in last.items()}
        progress.last.update((queue, mark) for queue, mark in found.items() if mark != _NO_MARK)
        return progress._with_marks(marks)

    def _with_marks(self, marks: Mapping[tuple[str, int], Mapping[str, int]]) -> ArchiveProgress:
        ordered = sorted(marks.items(), key=lambda item: item[1]["step"])
        slots: dict[str, list[int]] = {}
        for (broker, slot), _ in ordered:
            slots.setdefault(broker, []).append(slot)
        found = [LogMark(b, m["offset"], m["stored"]) for (b, _), m in ordered]
        return replace(self, marks=tuple(found), _slots=slots)

    @property
    def logs(self) -> dict[str, list[Mark]]:
        """Messages that identify the log of each broker, newest first."""
        found: dict[str, list[Mark]] = {}
        for mark in reversed(self.marks):
            of_broker = found.setdefault(mark.broker, [])
            of_broker.append(Mark(mark.commit_log_offset, mark.store_ms))
        return found

    def numbers_of_marks(self, marks: Iterable[LogMark], step: int) -> dict[str, int]:
        """Return the numbers that replace the oldest marks by new ones."""
        found: dict[str, int] = {}
        for mark in marks:
            slots = self._slots.get(mark.broker, [])
            slot = len(slots) if len(slots) < MARKS_MAX else slots[0]
            values = {"step": step, "offset": mark.commit_log_offset, "stored": mark.store_ms}
            for what, value in values.items():
                found[_name("mark", mark.broker, slot, what)] = value
        return found


def numbers_of_offsets(kind: str, offsets: Mapping[Queue, int]) -> dict[str, int]:
    """Return the numbers of queues: ``next`` or ``first``."""
    return {_name(kind, *_parts(queue)): offset for queue, offset in offsets.items()}


def numbers_of_last(queues: Iterable[Queue], marks: Mapping[Queue, Mark]) -> dict[str, int]:
    """Return the numbers of the messages before the ``next`` ones of queues."""
    found: dict[str, int] = {}
    for queue in queues:
        mark = marks.get(queue, _NO_MARK)
        found[_name("last", *_parts(queue), "place")] = mark.physical_offset
        found[_name("last", *_parts(queue), "stored")] = mark.store_ms
    return found


def numbers_of_gaps(gaps: Iterable[ArchiveGap]) -> dict[str, int]:
    """Return the numbers that record gaps."""
    return {_name("gap", *_parts(gap.queue), gap.start, gap.end): gap.missing for gap in gaps}


def _name(*parts: object) -> str:
    return ":".join((_OWN, *(quote(str(part), safe="") for part in parts)))


def _parts(queue: Queue) -> tuple[int, str, str]:
    return queue.queue_id, queue.broker, queue.topic


def _queue(parts: list[str]) -> Queue:
    return Queue(parts[2], parts[1], int(parts[0]))


# --- the log ---


class _Txn(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _Line(msgspec.Struct):
    txn: _Txn | None = None


class _LastCheckpoint(msgspec.Struct):
    version: int
    parts: int | None = None


def read_numbers(place: FilePlace, version: int) -> dict[str, int] | None:
    """Return the numbers of a table at a version; None if its log has gone on since.

    Raises FileNotFoundError if the log is incomplete, msgspec.DecodeError if it is no log.
    """
    found: dict[str, int] = {}
    start = 0
    try:
        text = place.read(f"{LOG}/_last_checkpoint")
    except FileNotFoundError:
        pass
    else:
        last = msgspec.json.decode(text, type=_LastCheckpoint)
        if last.version > version:
            return None
        start = last.version + 1
        for name in _checkpoint_names(last):
            found |= _in_checkpoint(place, f"{LOG}/{name}")
    decoder = msgspec.json.Decoder(_Line)
    for number in range(start, version + 1):
        for line in BytesIO(place.read(f"{LOG}/{number:020}.json")):
            if b'"txn"' in line and (txn := decoder.decode(line).txn) is not None:
                found[txn.app_id] = txn.version
    return found


def _checkpoint_names(last: _LastCheckpoint) -> list[str]:
    stem = f"{last.version:020}.checkpoint"
    if last.parts is None:
        return [f"{stem}.parquet"]
    return [f"{stem}.{n:010}.{last.parts:010}.parquet" for n in range(1, last.parts + 1)]


def _in_checkpoint(place: FilePlace, path: str) -> dict[str, int]:
    with place.open(path) as file:
        column = pq.ParquetFile(file).read(["txn"])["txn"].combine_chunks().drop_null()
    names, versions = (pc.struct_field(column, name) for name in ("appId", "version"))
    return dict(zip(names.to_pylist(), versions.to_pylist(), strict=True))
