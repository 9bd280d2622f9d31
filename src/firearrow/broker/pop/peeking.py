"""Look at messages without popping them: peeks (200052), notifications (200054), and the count of waiting pops
(200055).

A peek returns the messages that a group would pop next. A notification asks whether there is one.

Source: RocketMQ ``PeekMessageProcessor``, ``NotificationProcessor``, ``PollingInfoProcessor``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.lite.processor import LiteProcessor
from firearrow.broker.pop.books import Books
from firearrow.broker.pop.orderinfo import ConsumerOrderInfo
from firearrow.broker.pop.processor import PopChecks, wanted_of
from firearrow.broker.pop.waiting import HeldPops, HoldOutcome
from firearrow.broker.pulling.coldreads import ColdReads
from firearrow.message import names
from firearrow.net.server import Finished, Peer
from firearrow.store import Fetch, GetResult, GetStatus
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue, Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import Notification, PeekMessage, PollingInfo

RETRIED_FIRST: Final = 5  # one of this number of peeks looks at retried messages first
BYTES_MAX: Final = 4 * 1024 * 1024
"""After these bytes of messages no further queue gives any: a topic may have thousands of queues."""

_WRONG: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY)
_TopicQueue = tuple[TopicConfig, int]


class PeekProcessor:
    """Handler of peeks."""

    def __init__(self, context: BrokerContext, cold: ColdReads, books: Books) -> None:
        self._settings = context.settings
        self._store = context.store
        self._topics = context.topics
        self._stats = context.stats
        self._chance = context.chance
        self._cold = cold
        self._checks = PopChecks(context)
        self._books = books

    def peek(self, peer: Peer, request: AnyCommand) -> Finished:
        """200052: answer messages, or that there are none."""
        try:
            return self._peek(peer, request, aside=self._cold.are_aside)
        except Fetch as lacks:
            self._cold.hold(peer, request, lacks.stretches, self._peek_fetched)
            return None

    def _peek_fetched(self, peer: Peer, request: AnyCommand) -> Finished:
        """Run a peek again after its reads from the disk."""
        return self._peek(peer, request, aside=False)

    def _peek(self, peer: Peer, request: AnyCommand, *, aside: bool) -> Finished:
        header = fields_of(request, PeekMessage)
        self._checks.broker("peeking message")
        topic = self._checks.place(peer, header)
        self._store.catch_up()
        records: list[bytes] = []
        count = size = rest = 0
        for config, queue_id in self._places(header, topic):
            name = config.topic_name or ""
            queue_offset = self._offset(header.consumer_group, name, queue_id)
            rest += self._store.max_queue_offset(name, queue_id) - queue_offset
            missing = header.max_msg_nums - count
            if missing <= 0 or size >= BYTES_MAX:
                continue
            result = self._get(name, queue_id, queue_offset, missing, aside=aside and not count)
            records.append(result.records)
            count += result.count
            size += len(result.records)
        # Time and revive queue belong to pops, which have the same answer.
        fields: dict[str, FieldValue] = dict.fromkeys(("popTime", "invisibleTime", "reviveQid"), 0)
        fields["restNum"] = rest
        if not count:
            return Response(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", fields)
        self._stats.got(header.consumer_group, header.topic, count, size)
        return Response(ResponseCode.SUCCESS, "FOUND", fields, b"".join(records))

    def _places(self, header: PeekMessage, topic: TopicConfig) -> Iterator[_TopicQueue]:
        """Yield the queues to look at, in order."""
        chance = self._chance.random()
        v2 = self._settings.broker.has_retries_apart
        name = names.pop_retry_topic(header.topic, header.consumer_group, v2=v2)
        retried = list(_queues_of(self._topics.table.get(name), chance))
        own = [(topic, header.queue_id)]
        if header.queue_id < 0:
            own = list(_queues_of(topic, chance))
        retried_first = self._chance.random() * RETRIED_FIRST < 1
        yield from (retried + own) if retried_first else (own + retried)

    def _offset(self, group: str, topic: str, queue_id: int) -> int:
        queue_offset = self._books.offset(group, topic, queue_id)
        return self._store.min_queue_offset(topic, queue_id) if queue_offset < 0 else queue_offset

    def _get(self, topic: str, queue_id: int, queue_offset: int, count_max: int, *, aside: bool) -> GetResult:
        result = self._store.get(topic, queue_id, queue_offset, count_max, None, aside)
        if result.status in _WRONG:
            result = self._store.get(topic, queue_id, result.next_offset, count_max, None, aside)
        return result


def _queues_of(topic: TopicConfig | None, chance: float) -> Iterator[_TopicQueue]:
    """Yield all queues of a topic, from a random one on."""
    if topic is not None:
        count = topic.read_queue_nums
        first = int(chance * count)
        for number in range(count):
            yield topic, (first + number) % count


# --- notifications ---

LOOKED_AT_MAX: Final = 32  # messages of a queue, for their tags

_TagCodes = frozenset[int] | None


class NotificationProcessor:
    """Handler of notifications."""

    def __init__(
        self,
        context: BrokerContext,
        orders: ConsumerOrderInfo,
        held_notifications: HeldPops,
        held_pops: HeldPops,
        books: Books,
        lites: LiteProcessor,
    ) -> None:
        self._settings = context.settings
        self._store = context.store
        self._topics = context.topics
        self._offsets = context.offsets
        self._orders = orders
        self._clock = context.clock
        self._held = held_notifications
        self._held_pops = held_pops
        self._checks = PopChecks(context)
        self._books = books
        self._lites = lites

    def notify(self, peer: Peer, request: AnyCommand) -> Finished:
        """200054: answer whether there is a message, as soon as there is one."""
        header = fields_of(request, Notification)
        if not header.born_time:
            header.born_time = self._clock.now_ms()
        self._checks.broker("peeking message")
        topic = self._checks.place(peer, header)
        if header.is_lite_consumer:
            return self._notify_lite(peer, request, header)
        codes = self._codes_of(header)
        self._store.catch_up()
        if self._has_message(header, topic, codes):
            return _answer(has_message=True)
        return _waiting(self._held.hold(peer, request, header, self.notify, codes))

    def _notify_lite(self, peer: Peer, request: AnyCommand, header: Notification) -> Finished:
        if self._lites.has_message(header):
            return _answer(has_message=True)
        return _waiting(self._lites.hold(peer, request, header, self.notify))

    def waiting(self, peer: Peer, request: AnyCommand) -> Finished:
        """200055: answer with the count of pops that wait for exactly this queue."""
        header = fields_of(request, PollingInfo)
        self._checks.broker("peeking message")
        self._checks.place(peer, header)
        count = self._held_pops.count(header.topic, header.consumer_group, header.queue_id)
        return Response(fields={"pollingNum": count})

    def _codes_of(self, header: Notification) -> _TagCodes:
        """Return the requested tags, None for all.

        An expression of another kind must be valid, but messages are not compared with it.
        """
        filtered = self._settings.broker.use_message_filter_for_notification
        if not (filtered and header.exp and header.exp_type):
            return None
        wanted = wanted_of(header.exp, header.exp_type)
        return wanted if isinstance(wanted, frozenset) else None

    def _has_message(self, header: Notification, topic: TopicConfig, codes: _TagCodes) -> bool:
        if header.queue_id >= 0:
            name = topic.topic_name or ""
            found = self._queue_has_message(header, name, header.queue_id, codes)
        else:
            found = self._topic_has_message(header, topic, codes)
        if found:
            return True
        config = self._settings.broker
        forms = [config.has_retries_apart]
        if forms[0] and config.retrieve_message_from_pop_retry_topic_v1:
            forms.append(False)
        return any(
            self._topic_has_message(header, self._topics.table.get(name), None)
            for name in (names.pop_retry_topic(header.topic, header.consumer_group, v2=v2) for v2 in forms)
        )

    def _topic_has_message(self, header: Notification, topic: TopicConfig | None, codes: _TagCodes) -> bool:
        if topic is None:
            return False
        name = topic.topic_name or ""
        return any(self._queue_has_message(header, name, queue_id, codes) for queue_id in range(topic.read_queue_nums))

    def _queue_has_message(self, header: Notification, topic: str, queue_id: int, codes: _TagCodes) -> bool:
        queue = self._store.find_queue(topic, queue_id)
        if queue is None:
            return False
        group = header.consumer_group
        if header.order and self._orders.is_blocked(header.topic, group, queue_id, header.attempt_id):
            return False
        if self._offsets.is_reset(group, topic, queue_id):
            return True  # a pop must come, or the group never goes where it is reset to
        queue_offset = max(self._books.offset(group, topic, queue_id), queue.min_offset)
        rest = queue.max_offset - queue_offset
        if codes is None or rest >= self._settings.broker.max_message_filter_num_for_notification:
            return rest > 0
        end = min(queue_offset + LOOKED_AT_MAX, queue.max_offset)
        return rest > 0 and not codes.isdisjoint(self._store.tag_codes(topic, queue_id, queue_offset, end))


def _waiting(outcome: HoldOutcome) -> Finished:
    if outcome is HoldOutcome.HELD:
        return None
    return _answer(has_message=False, is_full=outcome is HoldOutcome.FULL)


def _answer(*, has_message: bool, is_full: bool = False) -> Response:
    return Response(fields={"hasMsg": has_message, "pollingFull": is_full})
