"""Search a CommitLog for the first record that was stored at a time or later."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from firearrow.message.record import RECORD_BYTES_MAX
from firearrow.spark.stores import Store
from firearrow.store.reading.walk import next_of_log
from firearrow.store.scan import RECORDS_MAX, Columns, scan

_BEFORE_ALL: Final = -1
_NEAR_BYTES: Final = 128 * 1024  # of the log, whose times are all read at once


class StoredTimes:
    """Finds times in the log of a store whose records end at ``end``, or before.

    Store times rise along a log, so this is a binary search over its bytes. It keeps the times that it has read: a step
    of a limited stream searches for forty times, each nearer to the last. Otherwise each of them would take some twenty
    reads of the log.
    """

    def __init__(self, store: Store, end: int) -> None:
        self._store = store
        self._end = end
        self._places: list[int] = []  # of the records that were read, in order
        self._times: list[int] = []

    def first_at(self, timestamp_ms: int) -> int:
        """The physical offset of the first record of a time or later; the end without one."""
        row = bisect_left(self._times, timestamp_ms)
        begin = self._places[row - 1] + 1 if row else self._store.log_start
        stop = found = self._places[row] if row < len(self._places) else self._end
        while stop - begin > _NEAR_BYTES:
            middle = (begin + stop) // 2
            at = self._next(middle, stop)
            if at is None:
                if stop == found == self._end:
                    self._end = found = middle
                stop = middle
                continue
            _, [stored_ms] = self._read(at, at + 1)
            if stored_ms >= timestamp_ms:
                stop, found = middle, at
            else:
                begin = at + 1
        at = self._next(begin, stop)
        while at is not None:
            places, times = self._read(at, stop)
            row = bisect_left(times, timestamp_ms)
            if row < len(times):
                return places[row]
            at = self._next(places[-1] + 1, stop)
        return found

    def _next(self, physical_offset: int, stop: int) -> int | None:
        """The physical offset of the first record that begins between two places of the log."""
        return next_of_log(self._store.storage, self._store.log.files, physical_offset, stop)

    def _read(self, at: int, stop: int) -> tuple[list[int], list[int]]:
        """Places and store times of the records from one on up to a place, of at least that one."""
        file = self._store.log.find(at)
        assert file is not None
        start = at - file.base
        window = self._store.storage.window
        try:
            columns = _scan(window(file.path, start, stop - file.base))
            if not len(columns):
                columns = _scan(window(file.path, start, start + RECORD_BYTES_MAX), 1)
        except FileNotFoundError:  # as above: the wanted record is after it
            return [file.end - 1], [_BEFORE_ALL]
        places, times = columns.physical_offset.tolist(), columns.store_ms.tolist()
        known = slice(bisect_left(self._places, at), bisect_right(self._places, places[-1]))
        self._places[known], self._times[known] = places, times
        return places, times


def _scan(window: memoryview, records_max: int = RECORDS_MAX) -> Columns:
    return scan(window, 0, len(window), records_max)
