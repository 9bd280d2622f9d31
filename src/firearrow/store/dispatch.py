"""Follows the log and writes the data derived from it: ConsumeQueue entries and index keys.

The first message after a rest is dispatched at once. Under load, messages gather into batches, which cost less and
disturb fewer sends: for a short time while a consumer waits for messages, otherwise for longer. Readers do not wait for
the long interval (``Dispatching.catch_up``).

A batch of records is read as columns (``scan``). It becomes one array of queue entries sorted by queue, with runs for
each queue, and one array of index keys. Recovery calls the same function from an earlier offset: queues and index skip
the entries that they have.

Only records outside transactions and commit records have a queue entry. Some also have entries in LMQs (``lmq``). An
inner batch is several messages of its queue (``batchqueue``).

Source: RocketMQ's ``ReputMessageService``, ``CommitLogDispatcherBuildConsumeQueue``.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Final

import numpy as np

from firearrow.errors import CorruptStore, StoreError
from firearrow.events import Event
from firearrow.javanumbers import LONG_MAX
from firearrow.logs import Log
from firearrow.message import properties
from firearrow.message.names import SCHEDULE_TOPIC, java_hash, tag_code
from firearrow.message.record import Located, locate
from firearrow.message.sysflag import COMPRESSED, INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from firearrow.services import Scheduler, Service, Timer
from firearrow.store.batchqueue import inner_counts
from firearrow.store.commitlog import CommitLog
from firearrow.store.delays import DelayLevels
from firearrow.store.events import MessagesArrived
from firearrow.store.index import Index
from firearrow.store.lmq import LmqEntries, lmq_entries
from firearrow.store.queuefiles import FileConsumeQueues
from firearrow.store.queues import ENTRY, DispatchedEntries, ManyNewQueues, Runs, WritableQueues
from firearrow.store.recordchecks import last_undecodable
from firearrow.store.scan import RECORDS_MAX, ByTopic, Columns, Ints, Properties, Stop

log: Final = Log(__name__)

NO_LIMIT: Final = LONG_MAX
STEP_RECORDS: Final = 4096  # some 4 ms, the longest time that sends wait for one step
SLAVE_STEP_RECORDS: Final = 1024  # on a core that it shares with its master, these take 4 ms
# While a consumer waits: a batch costs some 0.2 ms beside its messages. That is little where few messages come. Where
# many come, more of them must share it.
WAITED_FOR_SECONDS: Final = 0.0004
WAITED_FOR_SECONDS_A_RECORD: Final = 25e-6
WAITED_FOR_SECONDS_MAX: Final = 0.002
# While none waits: at full rate some 3,000 records come meanwhile, compared with which 0.2 ms are nothing. Five times
# as long was no cheaper, and a broker as a slave fell behind because of its pauses.
UNWAITED_SECONDS: Final = 0.02
RETRY_SECONDS: Final = 1.0  # wait before a full disk is tried again

# Record limits of a step after one that met too many new queues, and of the rest of that step. Such a step makes files
# for 16 queues at most, so it need not read many more records than that.
_NEW_QUEUES_RECORDS: Final = 24
_NEW_QUEUES_RECORDS_LEAST: Final = 1

_SPECIAL: Final = TRANSACTION_MASK | INNER_BATCH | COMPRESSED
_SCHEDULE_TOPIC: Final = SCHEDULE_TOPIC.encode()
_NAMES: Final = ByTopic(lambda topic: topic.decode("utf-8", "replace"))


class Dispatcher:
    """Dispatches the log from ``offset`` on; with ``only``, to these queues only. ``arrived`` is the event that queues
    have new messages.

    With ``lmq``, LMQs get their entries too. With ``index_may_wait``, an index that can't be written is left out until
    it has caught up (``catchup``). ``one_by_one`` are the same queues, if they accept a few records one by one
    (`dispatched_alone`).
    """

    def __init__(
        self,
        log: CommitLog,
        delays: DelayLevels,
        arrived: Event[MessagesArrived],
        queues: WritableQueues,
        index: Index | None,
        only: AbstractSet[tuple[str, int]] | None = None,
        *,
        lmq: bool = False,
        index_may_wait: bool = False,
        one_by_one: FileConsumeQueues | None = None,
    ) -> None:
        self._one_by_one = one_by_one
        self._index_may_wait = index_may_wait
        self._only = only
        self._lmq = lmq
        self._log = log
        self.queues = queues
        self.index = index
        self.index_left_out: bool = False  # whether the index is left out because it could not be written
        self._delays = delays
        self._arrived = arrived
        self.offset: int = 0
        self.limit = NO_LIMIT  # nothing from this offset on is dispatched
        self.queues_offset = 0  # queues have all their entries of the records before
        self.shortened: bool = False  # whether the last step ended sooner because of new queues
        self.complete = False  # whether ``offset`` began at the start of the log
        self.lacks_rest: bool = False  # whether everything but the beginning of a last record is dispatched
        self.last_store_ms: int = 0
        self.last_physical_offset: int = 0

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log that may be dispatched and are not yet."""
        return max(min(self._log.end_offset, self.limit) - self.offset, 0)

    def run(self, records_max: int = RECORDS_MAX, end_offset: int | None = None) -> int:
        """Dispatch up to ``records_max`` records, none from ``end_offset`` on; return their number.

        It ends sooner where many queues are new. Raises OSError when the disk is full: the next call then continues at
        the same place.
        """
        if self.shortened:
            records_max = min(records_max, _NEW_QUEUES_RECORDS)
            self.shortened = False
        log_end = self._log.end_offset
        end = min(log_end if end_offset is None else end_offset, self.limit)
        few = 0
        files = self._one_by_one
        if files is not None and end_offset is None and end == log_end and records_max >= FEW_RECORDS_MAX:
            few = self._dispatch_few(files)
            if few and self.offset == end:
                return few
        while True:
            try:
                return self._run(records_max, end) + few
            except ManyNewQueues as some:  # each time, some of them are no longer new
                self._tell(some.arrived)
                self.shortened = True
                records_max = _NEW_QUEUES_RECORDS_LEAST

    def _dispatch_few(self, queues: FileConsumeQueues) -> int:
        """Dispatch the latest records one by one, if they are few and usual; return their number."""
        positions = self._log.noted(self.offset, FEW_RECORDS_MAX)
        if not positions or positions[0] < self.queues_offset:
            return 0
        arrived = MessagesArrived()
        for at, end in pairwise((*positions, self._log.end_offset)):
            segment = self._log.segments.find(at)
            if segment is None or end > segment.end:
                break
            try:
                found = dispatched_alone(
                    segment.map, at - segment.base, end - segment.base, queues, self.index, lmq=self._lmq
                )
            except OSError:
                break  # the dispatch by columns meets the error, too, and handles it
            if found is None:
                break
            topic, record = found
            first = record.queue_offset
            arrived.append((topic, record.queue_id, first, first + 1))
            self.last_store_ms = record.store_timestamp_ms
            self.last_physical_offset = at
            self.offset = end
        if arrived:
            self._tell(arrived)
        return len(arrived)

    def _run(self, records_max: int, end: int) -> int:
        self.lacks_rest = False
        if self.offset >= end:
            return 0
        columns = self._log.scan(self.offset, end, records_max)
        if columns is None:
            return 0
        count = len(columns)
        if count:
            self.dispatch(columns)
            self.last_store_ms = int(columns.store_ms[-1])
            self.last_physical_offset = int(columns.physical_offset[-1])
            if self._log.follows:
                self._log.saw(self.last_store_ms)
        after = self._log.after(self.offset, columns)
        may_be_cut = self._log.follows or end == self.limit
        if after == self.offset and may_be_cut and columns.stop is Stop.END:
            self.lacks_rest = True
            return 0
        if after == self.offset:
            raise CorruptStore(f"no record begins at {after} of the CommitLog: {columns.stop.value}")
        assert after > self.offset, "dispatch never goes back"
        self.offset = after
        return count

    def dispatch(self, columns: Columns) -> None:
        """Write the queue entries and index keys of some records."""
        topics, number = columns.topics()
        properties = Properties(columns)
        tag_codes = properties.tag_codes()
        if _SCHEDULE_TOPIC in topics:
            levels = properties.delay_levels()
            levels[number != topics.index(_SCHEDULE_TOPIC)] = 0
            for level in set(levels.tolist()) - {0}:
                at = (levels == level).nonzero()[0]
                tag_codes[at] = columns.store_ms[at] + self._delays.delay_ms(level)
        lmq = lmq_entries(columns, properties) if self._lmq else None
        self._put_entries(columns, topics, number, tag_codes, lmq)
        if self.index is not None:
            keys = properties.index_keys(topics, number)
            try:
                self.index.put(keys.hash, columns.physical_offset[keys.record], columns.store_ms[keys.record])
            except OSError as error:
                if not self._index_may_wait:
                    raise
                log.error("index gets no further keys for now: everything else goes on", extra={"error": error})
                self.index, self.index_left_out = None, True

    def _put_entries(
        self, columns: Columns, topics: list[bytes], topic_number: Ints, tag_codes: Ints, lmq: LmqEntries | None
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
        entries = DispatchedEntries(
            columns.physical_offset[record],
            columns.size[record],
            tag_codes[record],
            columns.store_ms[record],
            group & 0xFFFFFFFF,
            queue_offset,
            Runs.of(group, queue_offset, list(map(_NAMES.__getitem__, topics)), messages),
            messages,
        )
        self._tell(self.queues.put(entries, complete=self.complete))

    def _tell(self, arrived: MessagesArrived) -> None:
        if self._arrived.listeners:
            self._arrived(arrived)

    def _messages(self, columns: Columns, topics: list[bytes], topic_number: Ints) -> Ints | None:
        """Count the messages in records whose queues count them; None if each record counts as one."""
        counts = inner_counts(columns)
        if counts is None:
            return None
        names = map(_NAMES.__getitem__, topics)
        counted = np.array([self.queues.is_batch(name) for name in names])
        return np.where(counted[topic_number], counts, 1)

    def _keys_of(self, topics: list[bytes]) -> list[int]:
        """Group numbers of the queues that are dispatched."""
        numbers = {_NAMES[topic]: n for n, topic in enumerate(topics)}
        return [numbers[name] << 32 | q for name, q in self._only or () if name in numbers]


class Dispatching(Service):
    """Runs ``dispatcher`` over the log at the right times.

    Without a scheduler its owner calls ``step``. ``has_undispatched`` tells whether records wait to be dispatched.
    ``watchers`` is the number of clients that wait for messages at present. ``woken`` is called at the first message
    after a rest, and may be called at others.
    """

    def __init__(self, log: CommitLog, dispatcher: Dispatcher, scheduler: Scheduler | None) -> None:
        super().__init__("dispatch")
        self._log = log
        self._dispatcher = dispatcher
        self._scheduler = scheduler
        self._last = -math.inf
        self._last_count = 0  # records of the last batch
        self._step_records = STEP_RECORDS
        self._planned: Timer | None = None
        self._stuck = ""  # why nothing can be dispatched
        self.has_undispatched: bool = False
        self.watchers: int = 0
        self.woken: Callable[[], object] | None = None

    async def stop(self) -> None:
        """Dispatch nothing more."""
        self.cancel()

    @property
    def trouble(self) -> str | None:
        """Reason why nothing can be dispatched."""
        return self._stuck or None

    def follow(self, on: bool) -> None:
        """Dispatch the log of a slave from now on, or of a master.

        Entries that the queues of the master lack are missing in the slave's queues, too.
        """
        self._dispatcher.complete = on
        self._step_records = SLAVE_STEP_RECORDS if on else STEP_RECORDS

    def limit_to(self, physical_offset: int | None) -> None:
        """Dispatch nothing from an offset on, because other brokers may lack it; None ends that."""
        limit = NO_LIMIT if physical_offset is None else physical_offset
        before, self._dispatcher.limit = self._dispatcher.limit, limit
        if limit > before and self._dispatcher.behind_bytes and not self.has_undispatched:
            self.wake()

    def begin_at(self, physical_offset: int) -> None:
        """Begin to dispatch at the offset of an empty log's begin."""
        assert self._dispatcher.offset == 0, "nothing was dispatched before"
        self._dispatcher.offset = self._dispatcher.queues_offset = physical_offset

    def wake(self) -> None:
        """Dispatch the first new message: now if the last batch is long enough ago, otherwise at the end of the
        interval.
        """
        self.has_undispatched = True
        if self.woken is not None:
            self.woken()
        if self._planned is not None or self._scheduler is None:
            return
        self._plan(max(self._last + self._interval - self._scheduler.time(), 0.0))

    @property
    def _interval(self) -> float:
        """Time that messages gather, in seconds."""
        if not self.watchers:
            return UNWAITED_SECONDS
        longer = WAITED_FOR_SECONDS + self._last_count * WAITED_FOR_SECONDS_A_RECORD
        return min(longer, WAITED_FOR_SECONDS_MAX)

    def watch(self) -> None:
        """Note one more client that waits for messages: they are dispatched sooner under load."""
        self.watchers += 1
        if self.watchers == 1 and self._planned is not None:
            self.cancel()
            self.wake()

    def unwatch(self) -> None:
        """Note that a client no longer waits for messages."""
        assert self.watchers > 0, "it was noted that the client waits"
        self.watchers -= 1

    def cancel(self) -> None:
        """Dispatch nothing more until the next call of ``wake``."""
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None

    def _plan(self, seconds: float) -> None:
        assert self._scheduler is not None, "nothing is planned without a scheduler"
        self._planned = self._scheduler.call_later(seconds, self._run)

    def _run(self) -> None:
        self._planned = None
        before = self._dispatcher.behind_bytes
        more = True  # in case of an error, it will be tried again
        try:
            more = self.step()
        finally:
            assert self._scheduler is not None, "the scheduler has called this"
            self._last = self._scheduler.time()
            if more:
                stuck = self._dispatcher.behind_bytes >= before
                self._plan(RETRY_SECONDS if stuck else 0)

    def step(self) -> bool:
        """Dispatch a batch; return whether there is more.

        On a full disk it returns True and nothing is lost: messages stay in the log, invisible to consumers until there
        is room. The reason is logged once.
        """
        try:
            self._last_count = self._dispatcher.run(self._step_records)
        except (OSError, StoreError) as error:
            if self._stuck != str(error):
                log.error("messages can't be dispatched now", extra={"error": error})
            self._stuck = str(error)
            return True
        if self._stuck:
            log.info("messages are dispatched again")
            self._stuck = ""
        self._log.prepare_next()
        lacks_rest = self._dispatcher.lacks_rest  # then another step is useless before more bytes have come
        self.has_undispatched = self._dispatcher.behind_bytes > 0 and not lacks_rest
        return self.has_undispatched

    def catch_up(self) -> bool:
        """Dispatch the records that still wait for their batch, so that a reader sees all messages acknowledged before.
        Return whether there were any.

        If very many queues are new, only some of the records are dispatched. All of them would take too long for one
        turn, and most are of no use to the reader.
        """
        if not self.has_undispatched:
            return False
        dispatcher = self._dispatcher
        behind = 0 if self._stuck else dispatcher.behind_bytes
        many_new = dispatcher.shortened
        while behind and self.step():
            behind, before = dispatcher.behind_bytes, behind
            if behind >= before or many_new or dispatcher.shortened:
                break
        return True


# --- Dispatch of single records, when there are few ---
#
# Columns take 0.2 ms for a batch, however small it is: the price of forty operations on arrays. A single record
# takes 15 µs here, with the same result. So consumers get messages that come one at a time sooner, and the broker
# has less work. From a dozen records on columns are cheaper.
#
# Only usual records are dispatched here: outside of transactions, not delayed, in no LMQ, not compressed, and next
# in a queue that has files. All other records are left to the columns, the one place that knows all rules.

FEW_RECORDS_MAX: Final = 8

_LMQ: Final = properties.INNER_MULTI_DISPATCH.encode()
_unique_key_in: Final = properties.finder(properties.UNIQUE_KEY)
_keys_in: Final = properties.finder(properties.KEYS)
_tags_in: Final = properties.finder(properties.TAGS)


def dispatched_alone(
    buffer: mmap.mmap, at: int, end: int, queues: FileConsumeQueues, index: Index | None, *, lmq: bool
) -> tuple[str, Located] | None:
    """Dispatch the record from ``at`` to ``end``; return its topic and its fields.

    None if the record must be left to the columns: then nothing was done, or its queue has it and the index lacks its
    keys. The latter also happens in a step that a full disk ends. Raises OSError in the same state.
    """
    record = locate(buffer, at, end)
    if record is None or record.sys_flag & _SPECIAL:
        return None
    if lmq and record.properties.find(_LMQ) >= 0:
        return None
    topic = record.topic.decode("utf-8", "replace")
    if topic == SCHEDULE_TOPIC:
        return None
    tags = _text(_tags_in(record.properties))
    entry = ENTRY.pack(record.physical_offset, record.size, tag_code(tags))
    place = topic, record.queue_id, record.queue_offset
    if not queues.put_one(*place, record.physical_offset, entry):
        return None
    if index is not None:
        hashes = index_keys(topic, record.properties, tags)
        if not index.put_of_one(hashes, record.physical_offset, record.store_timestamp_ms):
            return None
    return topic, record


def index_keys(topic: str, stored: bytes, tags: str) -> list[int]:
    """Index keys of a record, in the order of their puts (``scan.Properties``)."""
    keys: list[str] = []
    unique_key = _text(_unique_key_in(stored))
    if unique_key:
        keys.append(unique_key)
    keys += [key for key in _text(_keys_in(stored)).split(" ") if key]
    if tags:
        keys.append(f"T#{tags}")
    hashes = [abs(java_hash(f"{topic}#{key}")) for key in keys]
    return [0 if key_hash == 1 << 31 else key_hash for key_hash in hashes]


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
