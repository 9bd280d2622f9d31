"""The ways into a store: all messages are added here.

``put`` is the usual way. There are others for many messages at once (``put_several``, and ``put_batch`` for messages of
batches), for several as one record (``put_inner``), and for the bytes of another log (``put_raw``). After each the same
is true: the messages are in the log, which outlives the process. They have their queue offsets, in LMQs too, and are
counted. ``dispatch`` will dispatch them at a time that it chooses. ``MessageStore.when_safe`` tells when they are safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from firearrow.errors import StoreError
from firearrow.message.names import LMQ_PREFIX, is_lmq
from firearrow.store.batch import BatchPart, MemberPlaces, Members, append_batch
from firearrow.store.commitlog import CommitLog, NewMessage
from firearrow.store.dispatch import Dispatching
from firearrow.store.lmq import Lmqs, MultiDispatch
from firearrow.store.queues import SMALL_BYTES, UNCOUNTED, ConsumeQueue, ConsumeQueues, PutCounters, QueueEnd


class Writer:
    """State and methods that add messages to a log.

    ``counters`` returns the counters of a topic; with ``has_lmqs`` all LMQs count as one topic.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        lmq: Lmqs | None,
        dispatching: Dispatching,
        counters: Callable[[str], PutCounters],
        *,
        has_lmqs: bool,
    ) -> None:
        self.log = log
        self.queues = queues
        self.lmq = lmq
        self.dispatching = dispatching
        self._counters = counters
        self._has_lmqs = has_lmqs

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue to put messages into."""
        queue = self.queues.open(topic, queue_id)
        if queue.counters is UNCOUNTED:
            lmq = self._has_lmqs and is_lmq(topic)
            queue.counters = self._counters(LMQ_PREFIX if lmq else topic)
        return queue

    def together(self, queue: ConsumeQueue, lmq: Sequence[str]) -> MultiDispatch | None:
        """A queue and LMQs as one to put a message into, for the next ``put`` alone; None if there would be too many
        LMQs.
        """
        assert self.lmq is not None, "see takes_lmqs"
        return self.lmq.join(queue, lmq)

    @property
    def takes_lmqs(self) -> bool:
        """Tell whether a message may be put into LMQs, too."""
        return self.lmq is not None

    def is_batch(self, topic: str) -> bool:
        """Tell whether the queues of a topic take several messages as one record."""
        return self.queues.is_batch(topic)

    @property
    def refused(self) -> str | None:
        """Reason why nothing can be put at present, None if puts are possible."""
        return self.log.refused

    @property
    def without_room(self) -> str | None:
        """Reason why the store has no room for messages, in a slave's store as well, or None."""
        return self.log.without_room

    @property
    def last_store_ms(self) -> int:
        """Store time (ms) of the log's last record."""
        return self.log.last_store_ms

    def put(
        self,
        queue: QueueEnd,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        now_ms: int,
        reconsume_times: int,
        prepared_transaction_offset: int = 0,
    ) -> int:
        """Add a message to a queue and return its physical offset, see ``CommitLog.append``.

        Its queue offset is ``queue.next_offset`` as before the call. Raises DiskFull or MessageError, having added
        nothing.
        """
        log = self.log
        physical_offset = log.append(
            queue,
            body,
            properties,
            flag,
            sys_flag,
            born_ms,
            born_host,
            now_ms,
            reconsume_times,
            prepared_transaction_offset,
        )
        dispatching = self.dispatching
        if not dispatching.has_undispatched:
            dispatching.wake()
        counters = queue.counters
        size = log.end_offset - physical_offset
        counters.put_count += 1
        counters.put_bytes += size
        if size > SMALL_BYTES:
            counters.note_large(size)
        return physical_offset

    def put_several(self, messages: Sequence[NewMessage], now_ms: int) -> list[int] | None:
        """Add messages, as ``put`` does one by one, and return their physical offsets.

        None, having added nothing, if they must be added one by one (``append_several``).
        """
        places = self.log.append_several(messages, now_ms)
        if places is None:
            return None
        if not self.dispatching.has_undispatched:
            self.dispatching.wake()
        at = places[0]
        for message, end in zip(messages, islice(places, 1, None), strict=True):
            counters, size = message[0].counters, end - at
            counters.put_count += 1
            counters.put_bytes += size
            if size > SMALL_BYTES:
                counters.note_large(size)
            at = end
        places.pop()
        return places

    def put_inner(
        self,
        queue: ConsumeQueue,
        count: int,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        now_ms: int,
        reconsume_times: int,
    ) -> int:
        """Add ``count`` messages as one record, which takes that number of queue offsets; otherwise like ``put``."""
        assert count > 0
        physical_offset = self.put(queue, body, properties, flag, sys_flag, born_ms, born_host, now_ms, reconsume_times)
        queue.next_offset += count - 1
        queue.counters.put_count += count - 1
        return physical_offset

    def put_batch(self, members: Members, parts: Sequence[BatchPart], now_ms: int) -> MemberPlaces:
        """Add messages side by side, see ``append_batch``."""
        appended = append_batch(self.log, members, parts, now_ms)
        if not self.dispatching.has_undispatched:
            self.dispatching.wake()
        offsets = appended.physical_offsets
        counters = parts[0].queue.counters
        size = self.log.end_offset - int(offsets[0])
        counters.put_count += len(offsets)
        counters.put_bytes += size
        if (each := size // len(offsets)) > SMALL_BYTES:
            counters.note_large(each, len(offsets))
        return appended

    # --- the bytes of another log ---

    def follow(self, on: bool) -> None:
        """Become the store of a slave, or of a master again.

        A slave's store takes only the bytes of its master's log (``put_raw``), which may end within a record.
        """
        self.log.follow(on)
        self.dispatching.follow(on)

    def put_raw(self, physical_offset: int, data: bytes | memoryview) -> None:
        """Add bytes of another log, which must be the same up to their offset.

        An empty log begins there. Raises StoreError if this log ends elsewhere or can't begin there, DiskFull without
        room for all bytes; nothing is counted.
        """
        log = self.log
        if data and physical_offset and not log.segments.files and not log.end_offset:
            file_size = log.segments.file_size_bytes
            if physical_offset % file_size:
                raise StoreError(
                    f"an empty CommitLog can't begin at {physical_offset}: no file of {file_size} "
                    "bytes (mappedFileSizeCommitLog) starts there"
                )
            log.begin_at(physical_offset)
            self.dispatching.begin_at(physical_offset)
        log.append_raw(physical_offset, data)
        if data and not self.dispatching.has_undispatched:
            self.dispatching.wake()

    def log_bytes(self, physical_offset: int, bytes_max: int) -> bytes:
        """The bytes of the log from an offset on, within one file; empty where it has none."""
        return self.log.stretch(physical_offset, bytes_max)
