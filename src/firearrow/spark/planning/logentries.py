"""Entries of many short queues, as the log itself has them.

To open a queue takes as long as to look through 64 KiB of the log. So a task of very many short queues opens none of
them. It looks through its stretch of the log, and takes each record of its queues' offsets as that entry. The plan has
read the entries of these queues. It gives the task a checksum over all of them, with their places and sizes. If the
records have the same one, they are the same entries.

Otherwise the task opens the queues, and reads or reports the same as ever. That happens where the log has other records
of the same queue and offset, because a topic was deleted and made again, and where records or entries are damaged or
gone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from firearrow.spark.planning.commitlogorder import NOTHING_WANTED, Wanted
from firearrow.spark.planning.stretches import look_at
from firearrow.store.reading.storage import Storage, StoreFile
from firearrow.store.reading.walk import runs
from firearrow.store.scan import Columns, Ints, Stop

Part = tuple[str, int, int, int]
"""Topic, queue id, first queue offset, and the queue offset after the last."""

Words = npt.NDArray[np.uint64]

_FACTORS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_MIXERS: Final = ((32, 0xBF58476D1CE4E5B9), (29, 0x94D049BB133111EB))  # shifts and factors, as in SplitMix64


class LogEntries(NamedTuple):
    """The stretch of the log with all entries of the first ``parts`` of a task, and the checksum of these entries."""

    start: int
    end: int
    parts: int
    checksum: int


def checksums(wanted: Wanted) -> Words:
    """A number for each entry; the sum over some entries is their checksum."""
    words = np.zeros(len(wanted.size), np.uint64)
    for column, factor in zip(wanted, _FACTORS, strict=True):
        words += column.astype(np.uint64) * np.uint64(factor)
    for shift, factor in _MIXERS:
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    return words ^ (words >> np.uint64(32))


def entries_in_log(
    storage: Storage, files: Sequence[StoreFile], log: LogEntries, parts: Sequence[Part]
) -> Wanted | None:
    """The entries of the first parts of a task, in the order of the log; None if the log does not show just these."""
    finder = _Finder(parts[: log.parts])
    try:
        found = [finder.found(columns) for columns in _records(storage, files, log.start, log.end)]
    except FileNotFoundError:  # retention has deleted it since it was listed: the reader of the queues reports it
        return None
    wanted = NOTHING_WANTED.and_then(*found)
    return wanted if int(checksums(wanted).sum(dtype=np.uint64)) == log.checksum else None


def _records(storage: Storage, files: Sequence[StoreFile], start: int, end: int) -> Iterator[Columns]:
    """The records of a stretch of the log, of each file up to the first bytes that are no record."""
    for file in files:
        begin, stop = max(start, file.base), min(end, file.end)
        if begin < stop:
            for columns, _ in runs(look_at(storage, file), begin, stop, _end_there):
                yield columns


def _end_there(_: int, __: Stop) -> Generator[tuple[Columns, int], None, None]:
    yield from ()


class _Finder:
    """Finds the part of each record by its topic, queue id and queue offset."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._topics: dict[bytes, int] = {}
        number = [self._topics.setdefault(topic.encode(), len(self._topics)) for topic, *_ in parts]
        _, queue_id, start, end = zip(*parts, strict=True)
        keys = _keys(np.array(number, np.int64), np.array(queue_id, np.int64))
        self._part = keys.argsort()
        self._keys = keys[self._part]
        assert (self._keys[1:] > self._keys[:-1]).all(), "each part is of another queue"
        self._start, self._end = (np.array(bound, np.int64)[self._part] for bound in (start, end))

    def found(self, columns: Columns) -> Wanted:
        """The entries of the records that belong to a part. Half messages and decisions are in no queue."""
        topics, number = columns.topics()
        known = np.array([self._topics.get(topic, -1) for topic in topics], np.int64)[number]
        keys = _keys(known, columns.queue_id)
        row = np.minimum(self._keys.searchsorted(keys), len(self._keys) - 1)
        offset, kind = columns.queue_offset, columns.sys_flag & TRANSACTION_MASK
        good = (self._keys[row] == keys) & (offset >= self._start[row]) & (offset < self._end[row])
        good &= (kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)
        return Wanted(offset, columns.physical_offset, columns.size, self._part[row]).take(good)


def _keys(topic: Ints, queue_id: Ints) -> Ints:
    return topic << 32 | queue_id & 0xFFFFFFFF
