"""Follows the log and writes what is derived from it: ConsumeQueue entries and index keys.

A batch of records is read as columns (``scan``), turned into one array of queue entries sorted by
queue, in which each queue has its runs, and into one array of index keys. Recovery feeds the same
function from an earlier offset: queues and index skip what they have.

Only records outside transactions and commit records have a queue entry.
Source: upstream ``ReputMessageService``, ``CommitLogDispatcherBuildConsumeQueue``.
"""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from typing import Final

import numpy as np
import numpy.typing as npt

from firearrow.errors import CorruptStore
from firearrow.message.names import SCHEDULE_TOPIC
from firearrow.message.properties import DELAY_LEVEL, parse
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from firearrow.store.commitlog import CommitLog
from firearrow.store.delays import DelayLevels
from firearrow.store.index import Index
from firearrow.store.keys import Properties
from firearrow.store.queues import ConsumeQueues, Entries, OnArrivals, Runs
from firearrow.store.scan import RECORDS_MAX, Columns, Ints

log = logging.getLogger(__name__)

_SCHEDULE_TOPIC: Final = SCHEDULE_TOPIC.encode()


class Dispatcher:
    """``offset`` is how far the log has been dispatched; with ``only``, for these queues."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        delays: DelayLevels,
        on_arrivals: OnArrivals,
        only: AbstractSet[tuple[str, int]] | None = None,
    ) -> None:
        self._only = only
        self._log = log
        self._queues = queues
        self._index = index
        self._delays = delays
        self._on_arrivals = on_arrivals
        self.offset = 0
        self.queues_offset = 0  # queues have what they are to have of the records before
        self.complete = False  # whether ``offset`` began at the start of the log
        self.last_store_ms = 0
        self.last_physical_offset = 0

    @property
    def behind_bytes(self) -> int:
        """How much of the log has not been dispatched yet."""
        return max(self._log.end_offset - self.offset, 0)

    def run(self, records_max: int = RECORDS_MAX) -> int:
        """Dispatch up to ``records_max`` records; return how many there were.

        Raises OSError when the disk is full: the next call goes on where this one could not.
        """
        if self.offset >= self._log.end_offset:
            return 0
        columns = self._log.scan(self.offset, self._log.end_offset, records_max)
        if columns is None:
            return 0
        if len(columns):
            self.dispatch(columns)
            self.last_store_ms = int(columns.store_ms[-1])
            self.last_physical_offset = int(columns.physical_offset[-1])
        after = self._log.after(self.offset, columns)
        if after == self.offset:
            raise CorruptStore(
                f"no record begins at {after} of the CommitLog: {columns.stop.value}"
            )
        self.offset = after
        return len(columns)

    def dispatch(self, columns: Columns) -> None:
        """Write the queue entries and index keys of some records."""
        topics, number = columns.topics()
        properties = Properties(columns)
        tag_codes = properties.tag_codes()
        if _SCHEDULE_TOPIC in topics:
            self._due_times(columns, number == topics.index(_SCHEDULE_TOPIC), tag_codes)
        self._put_entries(columns, topics, number, tag_codes)
        if self._index is not None:
            keys = properties.index_keys(topics, number)
            self._index.put(
                keys.hash, columns.physical_offset[keys.record], columns.store_ms[keys.record]
            )

    def _due_times(self, columns: Columns, delayed: npt.NDArray[np.bool_], tag_codes: Ints) -> None:
        """Put due times in place of the tag codes of delayed messages."""
        strings = columns.slices(columns.properties_start, columns.properties_size)
        for at in np.flatnonzero(delayed).tolist():
            level = parse(strings[at]).get(DELAY_LEVEL, "0")
            if level.isdecimal() and int(level) > 0:
                tag_codes[at] = self._delays.due_ms(int(level), int(columns.store_ms[at]))

    def _put_entries(
        self, columns: Columns, topics: list[bytes], topic_number: Ints, tag_codes: Ints
    ) -> None:
        kind = columns.sys_flag & TRANSACTION_MASK
        queue_id = columns.queue_id & 0xFFFFFFFF
        group = topic_number << 32 | queue_id
        order = group.argsort(kind="stable")
        if np.count_nonzero(kind):
            order = order[(kind[order] == TRANSACTION_NONE) | (kind[order] == TRANSACTION_COMMIT)]
        if int(columns.physical_offset[0]) < self.queues_offset:
            order = order[columns.physical_offset[order] >= self.queues_offset]
        if self._only is not None:
            order = order[np.isin(group[order], self._keys_of(topics))]
        if not len(order):
            return
        queue_offset = columns.queue_offset[order]
        entries = Entries(
            columns.physical_offset[order],
            columns.size[order],
            tag_codes[order],
            columns.store_ms[order],
            queue_id[order],
            queue_offset,
            _runs(group[order], queue_offset, topics),
        )
        self._queues.put(entries, self._on_arrivals, complete=self.complete)

    def _keys_of(self, topics: list[bytes]) -> list[int]:
        """The group numbers of the queues that are dispatched."""
        numbers = {topic.decode("utf-8", "replace"): n for n, topic in enumerate(topics)}
        return [numbers[name] << 32 | q for name, q in self._only or () if name in numbers]


def _runs(group: Ints, queue_offset: Ints, topics: list[bytes]) -> Runs:
    """Each queue's runs of entries; a run breaks where queue offsets are not consecutive."""
    new = (group[1:] != group[:-1]) | (queue_offset[1:] != queue_offset[:-1] + 1)
    bounds = np.concatenate(([0], new.nonzero()[0] + 1, [len(group)]))
    key = group[bounds[:-1]]
    names = [topic.decode("utf-8", "replace") for topic in topics]
    topic = [names[number] for number in (key >> 32).tolist()]
    return Runs(topic, (key & 0xFFFFFFFF).tolist(), bounds[:-1], bounds[1:])
