"""Verifies queues of batches against the log, as ``queuecrosscheck`` does the others.

The units have been compared with the log stretch by stretch (``compare``); the reports of all come
together here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from firearrow.store.batchqueue import UNIT, Unit
from firearrow.store.offline.queuecrosscheck import QueueCheck
from firearrow.store.reading.batchqueues import BatchQueue

_POSITION: Final = "points to {}, but the record of this queue offset is at {}"
_TAG: Final = "has the tag code {}, the record's is {}"
_TIME: Final = "says that its record was stored at {}, it was at {}"
_MESSAGES: Final = "stands for {} messages, the record has {}"


class BatchQueueCheck(QueueCheck):
    """Looks at one queue of batches."""

    def _wrong_entries(self) -> None:
        """Say of each unit that is not as the log wants it in what it differs."""
        queue = self._units
        covered = [(queue.unit(first).queue_offset, queue.unit(end - 1).end) for first, end in self._report.covered]
        expected = {  # of two records with one queue offset the later counts
            wrong.first: wrong.entries
            for wrong in self._report.wrong
            if not any(first <= wrong.first < end for first, end in covered)
        }
        behind = [at for at in expected if at >= queue.end]
        for at in sorted(expected.keys() - set(behind)):
            self._unit_differs(queue, Unit._make(UNIT.unpack(expected[at])[:6]))
        if behind:
            messages = sum(Unit._make(UNIT.unpack(expected[at])[:6]).messages for at in behind)
            self._behind(min(behind), messages, expected[min(behind)])

    @property
    def _units(self) -> BatchQueue:
        assert isinstance(self._queue, BatchQueue)
        return self._queue

    def _unit_differs(self, queue: BatchQueue, want: Unit) -> None:
        at, physical = want.queue_offset, want.physical_offset
        have = queue.unit(queue.number_of(at))
        if have.queue_offset != at:
            text = f"there is no entry for the record at {physical}"
            self._found("queue-entry-missing", text, at, physical_offset=physical)
            return
        for invariant, mine, theirs, what in (
            ("queue-entry-position", have.physical_offset, physical, _POSITION),
            ("queue-entry-size", have.size, want.size, "says {} bytes, the record has {}"),
            ("queue-entry-tag", have.tag_code, want.tag_code, _TAG),
            ("queue-entry-time", have.store_ms, want.store_ms, _TIME),
            ("queue-entry-messages", have.messages, want.messages, _MESSAGES),
        ):
            if mine != theirs:
                text = what.format(mine, theirs)
                self._found(invariant, text, at, physical_offset=physical)
                return

    def _extra_entries(self) -> None:
        """Look at the units that no record of the log accounts for."""
        queue = self._units
        extra = np.ones(len(queue.numbers), np.bool_)
        for first, end in self._report.covered:
            extra[first - queue.numbers.start : end - queue.numbers.start] = False
        known = {wrong.first for wrong in self._report.wrong}
        for row in np.flatnonzero(extra).tolist():
            unit = queue.unit(queue.numbers[row])
            if unit.queue_offset not in known:
                self._orphan(unit.queue_offset, UNIT.pack(*unit, 0, 0), False)
