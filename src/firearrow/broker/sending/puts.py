"""Puts of all messages that are not plain sends.

A plain send goes straight to ``MessageStore.put``. Every other message is an `UnstoredMessage` first: a send whose
properties ask for something, a failed message that is sent back, a due message, a half, an answer. ``Puts.put`` applies
each redirection to it, in order, and then adds it to its queue. A redirection is a function that may give a draft
another topic and queue, to wait there. A message with a delay level waits in ``SCHEDULE_TOPIC_XXXX``, one with a
delivery time in the timer's topic, one of a transaction in the topic of halves. `wait_elsewhere` notes its final topic
in its properties. Messages of topics that clients can't send to wait already, and are not redirected again. A half may
have a delay, which begins at its commit.

Source: RocketMQ ``MessageExtBrokerInner``, ``PutMessageHook``, ``HookUtils``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

import msgspec

from firearrow.broker.events import WaitsElsewhere
from firearrow.broker.topics.table import TopicTable
from firearrow.clock import Clock
from firearrow.errors import BrokerError, CorruptStore, MessageError
from firearrow.events import Event, Events
from firearrow.message import names, properties
from firearrow.message.hosts import pack_host, unpack_host
from firearrow.message.ids import create_unique_id, month_start_ms, unique_id_prefix
from firearrow.message.model import MessageView
from firearrow.message.record import Content
from firearrow.message.sysflag import HOSTS_V6_MASK
from firearrow.store import ConsumeQueue, MessageStore, MultiDispatch, NewMessage, QueueEnd, lmq_names
from firearrow.wire.codes import ResponseCode


class UnstoredMessage(msgspec.Struct):
    """Message before its put.

    ``born_host`` is packed as in a record (``message.hosts``). ``prepared_transaction_offset`` is the physical offset
    of the half of a committed message. ``stored`` are encoded properties before the others that ask for nothing:
    neither a redirection nor `Puts` looks at them, by `asks_nothing`. To decode and encode them, too, would take half
    of the time of another put of a message.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    born_ms: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    stored: bytes = b""


class PutResult(NamedTuple):
    """Place of a message that was put; ``end_offset`` is the physical offset behind its record."""

    physical_offset: int
    queue_offset: int
    end_offset: int


# Names that redirections and `Puts` look at, without those of a transaction, which is over when its message is put
# again.
_ASKING: Final = (b"DELAY", b"TIMER_", b"INNER_MULTI_", b"REAL_", b"TRAN_PREPARED_", b"TRANSACTION_CHECK_")

Redirection = Callable[[UnstoredMessage, int], None]
"""Function that may change a draft before its put at a time in ms, by its properties; raises BrokerError to refuse
it."""


def asks_nothing(stored: bytes) -> bool:
    """Return whether encoded properties may be the ``stored`` of a draft. They may end a transaction."""
    return properties.lacks(stored, _ASKING)


def draft_of_content(content: Content, stored: bytes, found: dict[str, str]) -> UnstoredMessage:
    """Return a message of the store as a draft for another put, into the same queue.

    Its properties are those in ``stored``, if they ask for nothing, and those ``found``.
    """
    return UnstoredMessage(
        content.topic,
        content.queue_id,
        content.body,
        found,
        content.born_timestamp_ms,
        content.born_host,
        content.flag,
        content.sys_flag & ~HOSTS_V6_MASK,
        content.reconsume_times,
        0,
        stored,
    )


def draft_of(view: MessageView) -> UnstoredMessage:
    """Return a message of the store as a draft for another put, into the same queue."""
    return UnstoredMessage(
        view.topic,
        view.queue_id,
        view.body,
        view.properties,
        view.born_timestamp_ms,
        pack_host(view.born_host),
        view.flag,
        view.sys_flag & ~HOSTS_V6_MASK,
        view.reconsume_times,
    )


def again(
    queue: ConsumeQueue,
    content: Content,
    stored: bytes,
    sys_flag: int,
    reconsume_times: int,
    prepared_transaction_offset: int = 0,
) -> NewMessage:
    """Return a message of the store for a put into another queue, with properties ``stored``.

    `Puts.put` makes the same of a draft of it, if no redirection looks at the draft.
    """
    return (
        queue,
        content.body,
        stored,
        content.flag,
        sys_flag & ~HOSTS_V6_MASK,
        content.born_timestamp_ms,
        content.born_host,
        reconsume_times,
        prepared_transaction_offset,
    )


def wait_elsewhere(draft: UnstoredMessage, topic: str, queue_id: int) -> None:
    """Let a message wait in another topic, and note its destination."""
    draft.properties[properties.REAL_TOPIC] = draft.topic
    draft.properties[properties.REAL_QUEUE_ID] = str(draft.queue_id)
    draft.topic, draft.queue_id = topic, queue_id


class Puts:
    """Put drafts into the store, where their redirections send them.

    ``events`` announce each message that waits elsewhere, except for a delay level. A caller that puts such a message
    without a redirection announces it by ``waits``.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        clock: Clock,
        chance: Random,
        redirections: Sequence[Redirection] = (),
        events: Events | None = None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._clock = clock
        self._redirections = tuple(redirections)
        self.waits: Final = (events or Events()).of(WaitsElsewhere)
        host = unpack_host(store.store_host)
        self._unique_prefix = unique_id_prefix(host.ip, host.port & 0x7FFF, chance.getrandbits(31))
        self._unique_counter = 0
        self.moved: Event[None] = Event()
        """Event: messages that were in flight have a result."""

    async def settled(self) -> bool:
        """Wait until no message is in flight; return False if none was.

        Here each put ends at once. In a slave that acts for its master it does not.
        """
        return False

    def put(self, draft: UnstoredMessage, now_ms: int | None = None) -> PutResult:
        """Redirect a draft and add it.

        Raise BrokerError if a redirection refuses it or its topic has no such queue, MessageError if it is too large or
        malformed, DiskFull without room; in each case nothing is added.
        """
        if now_ms is None:
            now_ms = self._clock.now_ms()
        wanted = draft.topic
        asks = bool(draft.properties)
        if asks:
            self._check_lmqs(draft)
        if asks and names.is_sendable(wanted):
            for redirect in self._redirections:
                redirect(draft, now_ms)
                if draft.topic != wanted and not names.is_sendable(draft.topic):
                    break
        placed = self._add(draft, self.queue(draft.topic, draft.queue_id), now_ms)
        if draft.topic not in (wanted, names.SCHEDULE_TOPIC):
            self.waits(WaitsElsewhere(draft.topic, wanted))
        return placed

    def deliver(self, draft: UnstoredMessage, now_ms: int) -> PutResult:
        """Add a draft that has waited to its destination, even if its topic no longer exists.

        Raise the same as `put` except for the topic, and MessageError for a name that no topic can have.
        Java: ScheduleMessageService#messageTimeUp removes the properties that redirect it.
        """
        try:
            queue = self._store.queue(draft.topic, draft.queue_id)
        except CorruptStore:
            if (fault := names.fault_as_directory(draft.topic)) is None:
                raise
            raise MessageError(fault, properties.REAL_TOPIC) from None
        return self._add(draft, queue, now_ms)

    def put_waiting(
        self, queue: ConsumeQueue, body: bytes, stored: bytes, waits: WaitsElsewhere | None, now_ms: int
    ) -> int:
        """Add a message of the broker with formatted properties to its present queue; ``waits`` says that it waits
        there.

        Return its queue offset. Raise MessageError or DiskFull with nothing added. This is for messages that the broker
        puts for each message that clients handle: a draft takes twice as long.
        """
        store, queue_offset = self._store, queue.next_offset
        host = store.store_host
        store.put(queue, body, stored, 0, 0, now_ms, host, now_ms, 0)
        if waits is not None:
            self.waits(waits)
        return queue_offset

    def put_again(self, message: NewMessage, now_ms: int) -> None:
        """Add one message that ``again`` has made of a message of the store.

        Raise MessageError or DiskFull with nothing added.
        """
        queue, body, stored, flag, sys_flag, born_ms, born_host, times, prepared = message
        self._store.put(queue, body, stored, flag, sys_flag, born_ms, born_host, now_ms, times, prepared)

    def _add(self, draft: UnstoredMessage, queue: ConsumeQueue, now_ms: int) -> PutResult:
        store, stored = self._store, draft.stored
        end: QueueEnd = queue
        if draft.properties:
            end = self._end(draft, queue)
            stored += properties.encode(draft.properties)
        queue_offset = queue.next_offset
        if len(stored) > properties.PROPERTIES_BYTES_MAX:
            most = properties.PROPERTIES_BYTES_MAX
            raise MessageError(f"{len(stored)} bytes exceed the limit of {most}", "properties")
        physical_offset = store.put(
            end,
            draft.body,
            stored,
            draft.flag,
            draft.sys_flag,
            draft.born_ms,
            draft.born_host,
            now_ms,
            draft.reconsume_times,
            draft.prepared_transaction_offset,
        )
        return PutResult(physical_offset, queue_offset, store.log_end_offset)

    def new_unique_id(self, now_ms: int) -> str:
        """Make an id like a client, for a message that came without one."""
        self._unique_counter = (self._unique_counter + 1) & 0xFFFF
        since = now_ms - month_start_ms(now_ms)
        return create_unique_id(self._unique_prefix, since, self._unique_counter)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue of a topic; BrokerError if topic or queue does not exist."""
        config = self._topics.get(topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        count = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < count:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"queueId[{queue_id}] is illegal, topic {topic} has {count} queues"
            )
        return self._store.queue(topic, queue_id)

    def _end(self, draft: UnstoredMessage, queue: ConsumeQueue) -> QueueEnd:
        """Return the queue to append to, with the LMQs that the message asks for.

        Java: CommitLog#putMessage puts halves into LMQs, too, where any consumer reads them at once.
        """
        lmq = draft.properties.get(properties.INNER_MULTI_DISPATCH, "")
        takes = names.takes_lmqs(draft.topic) and names.is_sendable(draft.topic)
        if not lmq or not takes or not self._store.takes_lmqs:
            return queue
        together = self._together(queue, lmq)
        draft.properties[properties.INNER_MULTI_QUEUE_OFFSET] = together.lmq_offsets
        return together

    def _check_lmqs(self, draft: UnstoredMessage) -> None:
        """Refuse a message for LMQs that can't exist, also if it waits elsewhere before."""
        wants = draft.properties.get(properties.INNER_MULTI_DISPATCH)
        if wants and names.takes_lmqs(draft.topic) and not self._store.takes_lmqs:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is for LMQs too (property {properties.INNER_MULTI_DISPATCH}),"
                " which needs enableLmq=true and enableMultiDispatch=true",
            )

    def _together(self, queue: ConsumeQueue, lmq: str) -> MultiDispatch:
        together = self._store.together(queue, lmq_names(lmq))
        if together is None:
            most = self._store.config.max_lmq_consume_queue_num
            raise BrokerError(
                ResponseCode.LMQ_QUOTA_EXCEEDED, f"there are {most} LMQs already (maxLmqConsumeQueueNum): {lmq}"
            )
        return together
