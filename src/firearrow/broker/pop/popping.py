"""Pops: choose queues and offsets, and take messages for a group.

A topic with the attribute ``message.type=PRIORITY`` has a queue for each priority. A pop of any of its queues takes all
messages of the queue of the highest priority before it looks at the next. Each pop does so, or the percentage of pops
in the group's attribute ``priority.factor``.

Source: RocketMQ ``PopMessageProcessor#popMsgFromQueue``, ``PopMessageProcessor#getPopOffset``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.filters import OwnRetries
from firearrow.broker.pop.books import Books
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.pop.orderinfo import ConsumerOrderInfo
from firearrow.broker.pop.unblocking import Unblocking
from firearrow.broker.state.attributes import PRIORITY_FACTOR, has_priorities
from firearrow.errors import BrokerError, CorruptStore, MessageError
from firearrow.message import names, properties
from firearrow.message.record import readdress
from firearrow.store import ConsumeQueue, DiskFull, Fetch, GetResult, GetStatus, Wanted
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.headers import PopMessage
from firearrow.wire.pop import ORDER_REVIVE_QUEUE, TOPIC, Handle, order_count_infos, origin_of
from firearrow.wire.poprecords import PopCheckpoint

INIT_AT_FIRST: Final = 0  # initMode of a group that begins at the first message; any other: at the last one

_WRONG: Final = frozenset({GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL})
_PASSED: Final = frozenset(
    {
        GetStatus.NO_MATCHED_MESSAGE,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
    }
)


class PoppedMessages(NamedTuple):
    """Popped messages of a queue: the first offset of their batch, their own offsets, and their records, one by one or
    in one piece.

    ``origin`` is the one of ``wire.pop``.
    """

    origin: int
    queue_id: int
    start_offset: int
    offsets: Sequence[int]
    records: list[bytes]


class Pop(msgspec.Struct):
    """A pop, and its messages until now.

    ``missing`` is the count of messages that it may still get, ``rest`` the count of messages left in the visited
    queues. ``has_passed`` says that the group goes on behind messages that its filter excludes. ``order_counts`` are
    items of the answer (``wire.pop``).
    """

    header: PopMessage
    wanted: Wanted
    pop_ms: int
    revive_queue_id: int
    missing: int
    only_resident: bool = False
    is_by_priority: bool = False
    taken: list[PoppedMessages] = []
    count: int = 0
    rest: int = 0
    has_passed: bool = False
    order_counts: list[str] = []


class _Source:
    """A topic to pop from."""

    __slots__ = ("batches", "config", "has_priorities", "name", "origin", "queues")

    def __init__(self, config: TopicConfig, *, batches: bool) -> None:
        self.config = config
        self.name = config.topic_name or ""
        self.origin = origin_of(self.name)
        self.batches = batches
        self.has_priorities = has_priorities(config)
        self.queues: list[ConsumeQueue | None] = [None] * config.read_queue_nums


class Popping:
    """Find messages for pops, and note that they are popped."""

    def __init__(
        self,
        context: BrokerContext,
        in_flight: InFlight,
        orders: ConsumerOrderInfo,
        unblocking: Unblocking,
        books: Books,
    ) -> None:
        self._settings = context.settings
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._stats = context.stats
        self._chance = context.chance
        self._orders = orders
        self._in_flight = in_flight
        self._unblocking = unblocking
        self._broker_name = context.settings.broker.broker_name
        self._books = books
        self._sources: dict[str, _Source] = {}

    def forget_queues(self) -> None:
        """Look every queue up again: some were deleted."""
        self._sources.clear()

    def pop(self, header: PopMessage, wanted: Wanted, now_ms: int, *, only_resident: bool = False) -> Pop:
        """Take messages of an existing topic, up to the number that a pop asks for.

        Raise `Fetch` if nothing is found yet and the next messages are not in memory; DiskFull or BrokerError if a pop
        can't be noted, and so no message can be given.
        """
        revive_queue_id = ORDER_REVIVE_QUEUE if header.order else self._books.next_queue_id()
        pop = Pop(header, wanted, now_ms, revive_queue_id, header.max_msg_nums, only_resident)
        try:
            self._pop(pop)
        except (Fetch, DiskFull, BrokerError):
            if not pop.taken:
                raise
        return pop

    def _pop(self, pop: Pop) -> None:
        header = pop.header
        config = self._topics.get(header.topic)
        assert config is not None, "the processor checks it"
        source = self._source(config)
        pop.is_by_priority = source.has_priorities and self._is_by_priority(header)
        if pop.is_by_priority:
            self._store.catch_up()  # otherwise a message that was just sent would come behind lower ones
        retry_first = self._is_retry_first(pop)
        if retry_first and not header.order:
            self._pop_retry(pop)
        if header.queue_id < 0:
            self._pop_all(pop, source)
        else:
            self._pop_queue(pop, source, header.queue_id)
        if not retry_first and pop.missing > 0 and not header.order:
            self._pop_retry(pop)

    def _is_by_priority(self, header: PopMessage) -> bool:
        """Return whether a pop of a topic with priorities visits the queues in the order of priority."""
        group = self._groups.get(header.consumer_group)
        percent = None if group is None else group.attributes.get(PRIORITY_FACTOR)
        if header.order or percent is None or not percent.isdecimal():
            return not header.order
        return self._chance.random() * 100 < int(percent)

    def _is_retry_first(self, pop: Pop) -> bool:
        """Return whether a pop looks at retried messages first, not last."""
        config = self._settings.broker
        if pop.is_by_priority:
            return self._chance.random() * 100 < config.pop_from_retry_probability_for_priority
        return self._chance.random() * 100 < config.pop_from_retry_probability

    def _pop_retry(self, pop: Pop) -> None:
        """Pop messages of the topic that the group failed to consume before.

        Java: PopMessageProcessor looks at one of both retry topics, by chance, and a pop that was woken for a message
        of the other goes on waiting.
        """
        config = self._settings.broker
        forms = [config.has_retries_apart]
        if forms[0] and config.retrieve_message_from_pop_retry_topic_v1:
            forms = [True, False] if self._chance.random() < 0.5 else [False, True]
        for v2 in forms:
            name = names.pop_retry_topic(pop.header.topic, pop.header.consumer_group, v2=v2)
            topic = self._topics.table.get(name)
            if topic is None or pop.missing <= 0:
                continue
            wanted = pop.wanted
            if config.authorization_enabled and not v2 and self._is_shared(name, pop.header):
                pop.wanted = OwnRetries(pop.header.consumer_group, wanted)
            try:
                self._pop_all(pop, self._source(topic))
            finally:
                pop.wanted = wanted

    def _is_shared(self, retry_topic: str, header: PopMessage) -> bool:
        """Return whether the retry topic of this name may have messages of others.

        Others are a group of that name, or another group for another topic.
        """
        joined = retry_topic.removeprefix(names.RETRY_PREFIX)
        if self._groups.has(joined):
            return True
        at = joined.find("_")
        while at >= 0:
            group, topic = joined[:at], joined[at + 1 :]
            is_other = group != header.consumer_group
            if is_other and self._groups.has(group) and topic in self._topics.table:
                return True
            at = joined.find("_", at + 1)
        return False

    def _pop_all(self, pop: Pop, source: _Source) -> None:
        """Pop from all queues of a topic: downwards from a random one, as in RocketMQ, or from the highest priority
        on."""
        count = len(source.queues)
        step = -1 if self._settings.broker.priority_order_asc else 1
        if pop.is_by_priority:
            first = 0 if step > 0 else count - 1
        else:
            first = int(self._chance.random() * count)
        queues = source.queues
        by_offset_alone = not self._offsets.resets and not pop.header.order
        known = self._books.offsets(pop.header.consumer_group, source.name)
        for number in range(count):
            queue_id = (first + step * number) % count
            queue = queues[queue_id]
            if queue is not None and by_offset_alone and queue_id in known:
                left = queue.max_offset - known[queue_id]
                if left == 0 or (left > 0 and pop.missing <= 0):
                    pop.rest += left
                    continue
            try:
                self._pop_queue(pop, source, queue_id)
            except CorruptStore:  # a start has logged it
                if count == 1:
                    raise

    def _pop_queue(self, pop: Pop, source: _Source, queue_id: int) -> None:
        """Pop the missing messages from one queue, and count the messages left in it."""
        queue = source.queues[queue_id]
        if queue is None:
            queue = source.queues[queue_id] = self._store.find_queue(source.name, queue_id)
        queue_offset = self._offset(pop, source.name, queue_id)
        highest = 0 if queue is None else queue.max_offset
        if pop.header.order and self._is_blocked(pop.header, source.name, queue_id):
            return  # the rest wakes no pop: an acknowledgement will
        group = pop.header.consumer_group
        if pop.missing <= 0 or self._in_flight.is_full(source.name, group, queue_id):
            pop.rest += highest - queue_offset
            return
        result = self._get(pop, source.name, queue_id, queue_offset)
        if result.status in _WRONG:
            queue_offset = result.next_offset
            self._books.skip(group, source.name, queue_id, queue_offset)
            result = self._get(pop, source.name, queue_id, queue_offset)
        if result.count:
            self._take(pop, source, queue_id, queue_offset, result)
        elif result.status in _PASSED and result.next_offset != queue_offset:
            self._books.skip(group, source.name, queue_id, result.next_offset)
            pop.has_passed = True
        pop.rest += result.max_offset - result.next_offset
        if pop.is_by_priority and queue_offset < result.next_offset < result.max_offset:
            # One read ends where a file does, and an answer has a queue once.
            # Java: PopMessageProcessor goes on with queues of lower priorities.
            pop.missing = 0

    def _get(self, pop: Pop, topic: str, queue_id: int, queue_offset: int) -> GetResult:
        return self._store.get(topic, queue_id, queue_offset, pop.missing, pop.wanted, pop.only_resident)

    def _take(self, pop: Pop, source: _Source, queue_id: int, queue_offset: int, result: GetResult) -> None:
        """Note that messages of a queue are popped, then give them."""
        next_offset = result.next_offset
        offsets: Sequence[int] = range(queue_offset, next_offset)
        records = [result.records]
        if source.batches or result.count != next_offset - queue_offset or source.origin:
            records = split_records(result.records)
            offsets = [int.from_bytes(record[20:28], "big") for record in records]
        note = self._note_order if pop.header.order else self._note
        try:
            note(pop, source.name, queue_id, queue_offset, offsets, next_offset)
        except (DiskFull, BrokerError):
            pop.rest += result.count
            raise
        pop.count += len(offsets)
        pop.missing -= len(offsets)
        self._in_flight.popped(source.name, pop.header.consumer_group, queue_id, len(offsets))
        self._stats.got(pop.header.consumer_group, source.name, result.count, len(result.records))
        if source.origin:
            records = self._as_of_topic(pop, source, queue_id, queue_offset, records, offsets)
        pop.taken.append(PoppedMessages(source.origin, queue_id, queue_offset, offsets, records))

    def _note(
        self, pop: Pop, topic: str, queue_id: int, queue_offset: int, offsets: Sequence[int], next_offset: int
    ) -> None:
        """Note popped messages by a checkpoint, which redelivers them."""
        header = pop.header
        checkpoint = PopCheckpoint(
            broker_name=self._broker_name,
            group=header.consumer_group,
            deltas=[offset - queue_offset for offset in offsets],
            invisible_ms=header.invisible_time,
            count=len(offsets),
            pop_ms=pop.pop_ms,
            queue_id=queue_id,
            visible_ms=pop.pop_ms + header.invisible_time,
            start_offset=queue_offset,
            topic=topic,
        )
        self._books.note_pop(checkpoint, pop.revive_queue_id, next_offset, pop.pop_ms)

    # --- in order ---

    def _is_blocked(self, header: PopMessage, topic: str, queue_id: int) -> bool:
        return self._orders.is_blocked(topic, header.consumer_group, queue_id, header.attempt_id, header.invisible_time)

    def _note_order(
        self, pop: Pop, topic: str, queue_id: int, queue_offset: int, offsets: Sequence[int], next_offset: int
    ) -> None:
        """Note popped messages as the queue's last batch, which blocks it.

        The group's offset stays before the batch, or goes back there if it is within a message that has several
        offsets.
        """
        header = pop.header
        counts = self._orders.take(
            topic,
            header.consumer_group,
            queue_id,
            offsets,
            pop_ms=pop.pop_ms,
            invisible_ms=header.invisible_time,
            attempt_id=header.attempt_id,
            end=next_offset if self._store.is_batch(topic) else None,
        )
        start = min(queue_offset, offsets[0])
        self._books.skip(header.consumer_group, topic, queue_id, start)
        self._unblocking.changed(topic, header.consumer_group, queue_id)
        pop.order_counts += order_count_infos(TOPIC, queue_id, offsets, counts)

    # --- retried messages ---

    def _as_of_topic(
        self, pop: Pop, source: _Source, queue_id: int, queue_offset: int, records: list[bytes], offsets: Sequence[int]
    ) -> list[bytes]:
        """Return retried messages in the form for clients: with the topic that they popped, and a handle that says
        where the messages are."""
        if self._settings.broker.pop_response_return_actual_retry_topic:
            return records
        place = Handle(
            queue_offset,
            pop.pop_ms,
            pop.header.invisible_time,
            pop.revive_queue_id,
            source.origin,
            self._broker_name,
            queue_id,
            0,
        )
        topic, name = pop.header.topic, properties.POP_CHECKPOINT
        return [
            readdress(record, topic, name, str(place._replace(queue_offset=offset)))
            for record, offset in zip(records, offsets, strict=True)
        ]

    # --- offsets of groups ---

    def _offset(self, pop: Pop, topic: str, queue_id: int) -> int:
        """Return the offset that a group pops from; set it if the group has none yet."""
        group = pop.header.consumer_group
        if self._offsets.resets:
            moved = self._offsets.take_reset(group, topic, queue_id)
            if moved is not None:
                self._orders.forget(topic, group, queue_id)
                self._books.reset(group, topic, queue_id, moved)
                return moved
        queue_offset = self._books.offset(group, topic, queue_id)
        if queue_offset < 0:
            queue_offset = self._first_offset(topic, queue_id, pop.header.init_mode)
            self._books.skip(group, topic, queue_id, queue_offset)
        return queue_offset

    def _first_offset(self, topic: str, queue_id: int, init_mode: int) -> int:
        """Return the first offset of a group."""
        store = self._store
        lowest = store.min_queue_offset(topic, queue_id)
        if init_mode == INIT_AT_FIRST or names.is_retry(topic):
            return max(lowest, 0)
        by_memory = self._settings.broker.init_pop_offset_by_check_msg_in_mem
        if by_memory and lowest <= 0 and store.head_in_memory(topic, queue_id):
            return 0
        return max(store.max_queue_offset(topic, queue_id) - 1, 0)

    def _source(self, config: TopicConfig) -> _Source:
        name = config.topic_name or ""
        source = self._sources.get(name)
        if source is None or source.config is not config:
            source = self._sources[name] = _Source(config, batches=self._store.is_batch(name))
        return source


def split_records(records: bytes) -> list[bytes]:
    """Split consecutive records."""
    found = []
    at, end = 0, len(records)
    while at < end:
        size = int.from_bytes(records[at : at + 4], "big")
        if size <= 0:
            raise MessageError(f"a record of {size} bytes", "totalSize", at)
        found.append(records[at : at + size])
        at += size
    return found
