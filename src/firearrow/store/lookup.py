"""Look-ups of messages other than by pulling: by time, by key, one queue entry after another.

Store times rise along a queue, so bisection finds the place of a time, with some 24 reads among ten million messages.
After messages that were stored while the clock was ahead, a place may be too early, which leaves nothing out. After
messages that were stored while it was behind, a place may be too late, as in RocketMQ. The hash of a key leads to
candidates, newest first, which are compared with the key itself. If a look-up finds nothing, ``explain_query`` and
``explain_offset`` give the reason.

A body may hold bytes that are a record in every respect, its place included: a sender can foresee their place. So a
place that a client names counts only if something refers to it that no sender can write. That is the entry of the
record's queue, or a key in the index (``named_at``).

Source: RocketMQ's ``ConsumeQueue#getOffsetInQueueByTime``, ``ConsumeQueueStore``, ``DefaultMessageStore#queryMessage``,
``ConsumeQueueInterface#iterateFrom``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple

from firearrow.clock import Clock
from firearrow.errors import CorruptStore, MessageError
from firearrow.javanumbers import INT_MAX
from firearrow.message.model import MessageView
from firearrow.message.names import java_hash
from firearrow.message.record import Content, decode_content, decode_record
from firearrow.store.batchqueue import FileBatchQueue
from firearrow.store.commitlog import CommitLog
from firearrow.store.extension import ADDRESS_MAX, tag_code_behind
from firearrow.store.index import Index
from firearrow.store.queues import ENTRY, ConsumeQueue, ConsumeQueues
from firearrow.store.recordchecks import Damaged, Fault, fault_of

_QUERY_BYTES_MAX: Final = 8 * 1024 * 1024  # clients refuse frames above 16 MiB
_CANDIDATES_MAX: Final = 4096  # bounds the work of one query for a key that many share
_ITERATE_STEP: Final = 1024
_ALWAYS_MS: Final = (0, 1 << 62)


class Boundary(Enum):
    """The message that a time search finds."""

    LOWER = "first at or after the time"
    UPPER = "last at or before the time"


class QueueEntry(NamedTuple):
    """Place of the message at a queue offset; ``tag_code`` is the hash of its tag."""

    queue_offset: int
    physical_offset: int
    size: int
    tag_code: int


class Lookup:
    """Finds messages of a store. ``store_ms`` returns the store time of a place in a queue, ``catch_up`` dispatches
    pending records.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        store_ms: Callable[[ConsumeQueue, int], int],
        clock: Clock,
        damaged: Damaged,
        *,
        check_crc: bool,
        catch_up: Callable[[], bool],
    ) -> None:
        self._log = commit_log
        self._catch_up = catch_up
        self._queues = queues
        self._index = index
        self._store_ms = store_ms
        self._clock = clock
        self._damaged = damaged
        self._check_crc = check_crc

    # --- by place and time ---

    def iterate_from(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int | None = None
    ) -> Iterator[QueueEntry]:
        """The entries of a queue from an offset on, up to its end at the time of each read.

        Nothing comes from an offset that the queue doesn't have, as in RocketMQ.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue_offset < queue.min_offset:
            return
        left = count_max if count_max is not None else _ALWAYS_MS[1]
        while left > 0 and queue_offset < queue.max_offset:
            entries = queue.read(queue_offset, min(left, _ITERATE_STEP))
            if not entries:
                queue_offset = queue.gap_end(queue_offset)
                continue
            for physical_offset, size, code in ENTRY.iter_unpack(entries):
                if code <= ADDRESS_MAX:
                    behind = tag_code_behind(queue, self._log, code, physical_offset)
                    code = code if behind is None else behind
                yield QueueEntry(queue_offset, physical_offset, size, code)
                queue_offset += 1
                left -= 1

    def time_span(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Store times (ms) of a queue's first and last message, -1 and -1 if it has none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.max_offset <= queue.min_offset:
            return -1, -1
        first, last = queue.min_offset, queue.max_offset - 1
        return self._store_ms(queue, first), self._store_ms(queue, last)

    def search(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        """Queue offset of a time.

        LOWER is the first message at or after it, or the queue's end if all are older. UPPER is the last one at or
        before it, or the queue's first if all are younger. For a queue without messages the result is its end; for a
        missing queue, 0. Queues of batches use ``FileBatchQueue.at_time``.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        if isinstance(queue, FileBatchQueue):
            return queue.at_time(time_ms, last=boundary is Boundary.UPPER)
        low, high = queue.min_offset, queue.max_offset
        upper = boundary is Boundary.UPPER
        while low < high:
            middle = (low + high) // 2
            stored_ms = self._store_ms(queue, middle)
            if stored_ms < time_ms or (upper and stored_ms == time_ms):
                low = middle + 1
            else:
                high = middle
        # Java: ConsumeQueueStore#getOffsetInQueueByTime also limits the result to the queue's range.
        return max(low - 1, queue.min_offset) if upper and queue.min_offset < low else low

    # --- by place in the log ---

    def record_at(self, physical_offset: int) -> bytes | None:
        """The record that begins at an offset; None if none does, or if it is damaged."""
        record = self._log.record_at(physical_offset)
        if record is None:
            return None
        fault = self._fault(physical_offset, record)
        return record if fault is None or fault.frames else None

    def view_at(self, physical_offset: int) -> MessageView:
        """The message that begins at an offset, checked to the last byte of its body; otherwise MessageError with the
        reason.
        """
        record = self._record(physical_offset)
        try:
            return decode_record(record, check_body_crc=True)
        except MessageError:
            self._fault(physical_offset, record)
            raise

    def content_at(self, physical_offset: int) -> Content:
        """The parts of the message at an offset that another message is made of. Errors as in `view_at`."""
        found = self._log.contents_at((physical_offset,))
        if found:
            return found[0]
        record = self._record(physical_offset)
        try:
            return decode_content(record)
        except MessageError:
            self._fault(physical_offset, record)
            raise

    def _record(self, physical_offset: int) -> bytes:
        record = self._log.record_at(physical_offset)
        if record is None:
            raise MessageError(self.explain_offset(physical_offset), "record")
        return record

    def _fault(self, physical_offset: int, record: bytes) -> Fault | None:
        fault = fault_of(record, physical_offset, check_crc=self._check_crc)
        if fault is not None:
            self._damaged.note(physical_offset, "met by a look-up", fault, len(record))
        return fault

    # --- by a place that a client names ---

    def named_at(self, physical_offset: int) -> Content:
        """Result of `content_at` for a place that a client names. MessageError also for bytes within a message that
        look like one.
        """
        found = self._log.contents_at((physical_offset,))
        if found and self._was_put(found[0]):
            return found[0]
        if self._holds_message(physical_offset):
            return self.content_at(physical_offset)
        raise MessageError(self.explain_offset(physical_offset), "record")

    def all_named_at(self, physical_offsets: Sequence[int]) -> list[Content]:
        """Results of `named_at` for some places, up to the first without a message; a third faster if
        there are many.
        """
        found: list[Content] = []
        while len(found) < len(physical_offsets):
            more = self._log.contents_at(physical_offsets[len(found) :])
            for content in more:
                if not self._was_put(content):
                    return found
                found.append(content)
            if len(found) < len(physical_offsets):  # a record of an unusual kind, or none
                try:
                    found.append(self.named_at(physical_offsets[len(found)]))
                except MessageError:
                    break
        return found

    def record_named_at(self, physical_offset: int) -> bytes | None:
        """Result of `record_at` for a place that a client names; None also for bytes within a message."""
        is_message = self._holds_message(physical_offset)
        return self.record_at(physical_offset) if is_message else None

    def _holds_message(self, physical_offset: int) -> bool:
        """Tell whether a message was put at a place, even if it is damaged by now.

        Other bytes must not count as a damaged record: a replica would be asked for it.
        """
        record = self._log.record_at(physical_offset)
        if record is None:
            return False
        try:
            return self._was_put(decode_record(record))
        except MessageError:  # its queue can't be read
            return self._log.has_noted(physical_offset) or self._has_key(physical_offset)

    def _was_put(self, found: Content | MessageView) -> bool:
        """Tell whether a message was put at its place, and is not a part of another message's body."""
        if self._log.has_noted(found.physical_offset) or self._is_entered(found):
            return True
        # When a topic is deleted, queues lose their entries before the log does; keys stay.
        is_entered = self._catch_up() and self._is_entered(found)
        return is_entered or self._has_key(found.physical_offset)

    def _is_entered(self, found: Content | MessageView) -> bool:
        """Tell whether the queue of a message has an entry with its place."""
        try:
            queue = self._queues.find(found.topic, found.queue_id)
        except CorruptStore:
            return False
        if queue is None:
            return False
        place = queue.read(found.queue_offset, 1)[:8]
        return place == found.physical_offset.to_bytes(8, "big")

    def _has_key(self, physical_offset: int) -> bool:
        return self._index is not None and self._index.has_record(physical_offset)

    # --- by key ---

    def query(self, topic: str, key: str, kind: str, begin_ms: int, end_ms: int, count_max: int) -> list[bytes]:
        """Records of a topic by key, newest first.

        ``kind`` is ``K`` (a word of KEYS, or the unique key), ``U`` (the unique key) or ``T`` (tag).
        """
        found: list[bytes] = []
        total = 0
        seen: set[int] = set()
        for physical_offset in self._candidates(topic, key, kind, begin_ms, end_ms):
            if len(found) >= count_max:
                break
            record = None if physical_offset in seen else self.record_at(physical_offset)
            seen.add(physical_offset)
            if record is None:
                continue
            view = _view_with_key(record, topic, key, kind)
            if view is not None and begin_ms <= view.store_timestamp_ms <= end_ms:
                total += len(record)
                if found and total > _QUERY_BYTES_MAX:
                    break
                found.append(record)
        return found

    def _candidates(self, topic: str, key: str, kind: str, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets under the hash of a key, newest first."""
        if self._index is None:
            return []
        mark = "T#" if kind == "T" else ""
        key_hash = abs(java_hash(f"{topic}#{mark}{key}"))
        if key_hash == 1 << 31:
            key_hash = 0
        assert 0 <= key_hash <= INT_MAX, "the index has no other hashes"
        return self._index.find(key_hash, begin_ms, end_ms, _CANDIDATES_MAX)

    # --- reasons for empty results ---

    def explain_query(self, topic: str, key: str, kind: str, begin_ms: int, end_ms: int) -> str:
        """Explain, in one clause, why ``query`` returned nothing for these arguments."""
        index = self._index
        if index is None:
            return "keys are not indexed by this broker (messageIndexEnable=false)"
        if begin_ms > end_ms:
            return "the time window ends before it begins"
        if not index.files:
            return "nothing is indexed yet"
        elsewhere = self._outside(topic, key, kind, begin_ms, end_ms)
        if elsewhere:
            return elsewhere
        if begin_ms > self._clock.now_ms():
            return f"by this broker's clock ({_moment(self._clock.now_ms())}) the window is in the future"
        if begin_ms > index.end_ms:
            return f"the window begins after the last indexed message ({_moment(index.end_ms)})"
        if end_ms < index.begin_ms:
            return f"the window ends before the first indexed message ({_moment(index.begin_ms)})"
        if begin_ms < index.begin_ms:
            return f"no message of topic {topic} has it, and none is indexed from before {_moment(index.begin_ms)}"
        return f"no message of topic {topic} has it"

    def _outside(self, topic: str, key: str, kind: str, begin_ms: int, end_ms: int) -> str:
        """Describe, in one clause, a message of a key outside a window; empty if none is known."""
        candidates = self._candidates(topic, key, kind, *_ALWAYS_MS)
        for physical_offset in candidates:
            record = self.record_at(physical_offset)
            if record is None and physical_offset >= self._log.start_offset:
                return f"the record at {physical_offset}, which may have it, is damaged"
            view = None if record is None else _view_with_key(record, topic, key, kind)
            stored_ms = begin_ms if view is None else view.store_timestamp_ms
            if not begin_ms <= stored_ms <= end_ms:
                far = (
                    f"{begin_ms - stored_ms} ms before the window begins"
                    if stored_ms < begin_ms
                    else f"{stored_ms - end_ms} ms after the window ends"
                )
                return f"a message has it, but was stored at {_moment(stored_ms)}, {far}"
        if len(candidates) >= _CANDIDATES_MAX:
            return f"more than {_CANDIDATES_MAX} newer messages share its hash: narrow the window"
        if candidates and candidates[0] < self._log.start_offset:
            return (
                "its message seems to have expired: it lay before the CommitLog's first byte "
                f"({self._log.start_offset})"
            )
        return ""

    def explain_offset(self, physical_offset: int) -> str:
        """Explain, in one clause, why no message begins at a physical offset."""
        start, end = self._log.start_offset, self._log.end_offset
        if physical_offset < start:
            return f"it has expired: the CommitLog begins at {start}"
        if physical_offset >= end:
            return f"the CommitLog ends at {end}"
        record = self._log.record_at(physical_offset)
        if record is not None and self._holds_message(physical_offset):
            fault = self._fault(physical_offset, record)
            if fault is not None:
                return f"the record there is damaged: {fault.why}"
        return "no message begins there"


def _view_with_key(record: bytes, topic: str, key: str, kind: str) -> MessageView | None:
    """A candidate that really has the key, otherwise None: the index compares hashes only."""
    try:
        view = decode_record(record)
    except MessageError:
        return None
    if view.topic != topic:
        return None
    if kind == "T":
        return view if view.tags == key else None
    return view if view.unique_key == key or (kind != "U" and key in view.keys) else None


def _moment(time_ms: int) -> str:
    """A time for people, in UTC."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"
