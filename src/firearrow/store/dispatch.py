"""Follows the log and writes what is derived from it: ConsumeQueue entries and index keys.

A batch of records is read as columns (``scan``), turned into one array of queue entries sorted by
queue, in which each queue has its runs, and into one array of index keys. Recovery feeds the same
function from an earlier offset: queues and index skip what they have.

Only records outside transactions and commit records have a queue entry; some have entries in LMQs
too (``lmq``); an inner batch is several messages of its queue (``batchqueue``).
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
from firearrow.message.properties import DELAY_LEVEL, finder
from firearrow.message.sysflag import (
    COMPRESSED,
    INNER_BATCH,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from firearrow.store.batchqueue import inner_counts
from firearrow.store.bytopic import ByTopic
from firearrow.store.commitlog import CommitLog
from firearrow.store.delays import DelayLevels
from firearrow.store.index import Index
from firearrow.store.keys import Properties
from firearrow.store.lmq import LmqEntries, lmq_entries
from firearrow.store.queues import Entries, ManyNewQueues, OnArrivals, Runs, WritableQueues
from firearrow.store.scan import RECORDS_MAX, Columns, Ints
from firearrow.store.soundness import last_undecodable

log = logging.getLogger(__name__)

# Records of a step after one that met too many new queues, and for what is left of that one. Such a
# step makes files for 16 queues at most, so it need not read many more records than that.
_NEW_QUEUES_RECORDS: Final = 24
_NEW_QUEUES_RECORDS_LEAST: Final = 1

_SPECIAL: Final = TRANSACTION_MASK | INNER_BATCH | COMPRESSED
_SCHEDULE_TOPIC: Final = SCHEDULE_TOPIC.encode()
_delay_level_in: Final = finder(DELAY_LEVEL)
_NAMES: Final = ByTopic(lambda topic: topic.decode("utf-8", "replace"))


class Dispatcher:
    """Dispatches the log from ``offset`` on; with ``only``, to these queues.

    With ``lmq``, LMQs get their entries too. With ``index_may_wait``, an index that can't be
    written is left out until it has caught up (``catchup``).
    """

    def __init__(
        self,
        log: CommitLog,
        queues: WritableQueues,
        index: Index | None,
        delays: DelayLevels,
        on_arrivals: OnArrivals,
        only: AbstractSet[tuple[str, int]] | None = None,
        *,
        lmq: bool = False,
        index_may_wait: bool = False,
    ) -> None:
        self._index_may_wait = index_may_wait
        self._only = only
        self._lmq = lmq
        self._log = log
        self.queues = queues
        self.index = index
        self.index_left_out = False  # whether it is gone because it could not be written
        self._delays = delays
        self._on_arrivals = on_arrivals
        self.offset = 0
        self.queues_offset = 0  # queues have what they are to have of the records before
        self.shortened = False  # whether the last step ended sooner because of new queues
        self.complete = False  # whether ``offset`` began at the start of the log
        self.last_store_ms = 0
        self.last_physical_offset = 0

    @property
    def behind_bytes(self) -> int:
        """How much of the log has not been dispatched yet."""
        return max(self._log.end_offset - self.offset, 0)

    def run(self, records_max: int = RECORDS_MAX, end_offset: int | None = None) -> int:
        """Dispatch up to ``records_max`` records, none from ``end_offset`` on; return how many
        there were.

        It ends sooner where many queues are new. Raises OSError when the disk is full: the next
        call goes on where this one could not.
        """
        if self.shortened:
            records_max = min(records_max, _NEW_QUEUES_RECORDS)
            self.shortened = False
        end = self._log.end_offset if end_offset is None else end_offset
        while True:
            try:
                return self._run(records_max, end)
            except ManyNewQueues:  # each time, some of them have become old
                self.shortened = True
                records_max = _NEW_QUEUES_RECORDS_LEAST

    def _run(self, records_max: int, end: int) -> int:
        if self.offset >= end:
            return 0
        columns = self._log.scan(self.offset, end, records_max)
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
        lmq = lmq_entries(columns, properties) if self._lmq else None
        self._put_entries(columns, topics, number, tag_codes, lmq)
        if self.index is not None:
            keys = properties.index_keys(topics, number)
            try:
                self.index.put(
                    keys.hash, columns.physical_offset[keys.record], columns.store_ms[keys.record]
                )
            except OSError as error:
                if not self._index_may_wait:
                    raise
                log.error(
                    "index gets no further keys for now: all else goes on",
                    extra={"error": error},
                )
                self.index, self.index_left_out = None, True

    def _due_times(self, columns: Columns, delayed: npt.NDArray[np.bool_], tag_codes: Ints) -> None:
        """Put due times in place of the tag codes of delayed messages."""
        strings = columns.slices(columns.properties_start, columns.properties_size)
        for at in np.flatnonzero(delayed).tolist():
            level = (_delay_level_in(strings[at]) or b"0").decode("utf-8", "replace")
            if level.isdecimal() and int(level) > 0:
                tag_codes[at] = self._delays.due_ms(int(level), int(columns.store_ms[at]))

    def _put_entries(
        self,
        columns: Columns,
        topics: list[bytes],
        topic_number: Ints,
        tag_codes: Ints,
        lmq: LmqEntries | None,
    ) -> None:
        special = columns.sys_flag & _SPECIAL
        is_special = np.count_nonzero(special)
        group = topic_number << 32 | columns.queue_id & 0xFFFFFFFF
        queue_offset = columns.queue_offset
        if lmq is None:
            record = order = group.argsort(kind="stable")
        else:
            numbers = {topic: number for number, topic in enumerate(topics)}
            named = np.array([numbers.setdefault(name, len(numbers)) for name in lmq.names])
            topics = list(numbers)
            group = np.concatenate((group, named[lmq.name] << 32))
            queue_offset = np.concatenate((queue_offset, lmq.queue_offset))
            record = np.concatenate((np.arange(len(columns)), lmq.record))
            order = np.lexsort((record, group))
            record = record[order]
        if is_special:
            self._log.doubt(last_undecodable(columns) + 1)
            kind = special[record] & TRANSACTION_MASK
            of_queues = (kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)
            order, record = order[of_queues], record[of_queues]
        if int(columns.physical_offset[0]) < self.queues_offset:
            lacking = columns.physical_offset[record] >= self.queues_offset
            order, record = order[lacking], record[lacking]
        if self._only is not None:
            wanted = np.isin(group[order], self._keys_of(topics))
            order, record = order[wanted], record[wanted]
        if not len(order):
            return
        queue_offset, group = queue_offset[order], group[order]
        messages = self._messages(columns, topics, topic_number) if is_special else None
        if messages is not None:  # in an LMQ, a record is one message
            messages = np.where(order < len(columns), messages[record], 1)
        entries = Entries(
            columns.physical_offset[record],
            columns.size[record],
            tag_codes[record],
            columns.store_ms[record],
            group & 0xFFFFFFFF,
            queue_offset,
            Runs.of(group, queue_offset, list(map(_NAMES.__getitem__, topics)), messages),
            messages,
        )
        self.queues.put(entries, self._on_arrivals, complete=self.complete)

    def _messages(self, columns: Columns, topics: list[bytes], topic_number: Ints) -> Ints | None:
        """How many messages records hold, as far as their queues count that; None: one each."""
        counts = inner_counts(columns)
        if counts is None:
            return None
        names = map(_NAMES.__getitem__, topics)
        counted = np.array([self.queues.is_batch(name) for name in names])
        return np.where(counted[topic_number], counts, 1)

    def _keys_of(self, topics: list[bytes]) -> list[int]:
        """The group numbers of the queues that are dispatched."""
        numbers = {_NAMES[topic]: n for n, topic in enumerate(topics)}
        return [numbers[name] << 32 | q for name, q in self._only or () if name in numbers]
