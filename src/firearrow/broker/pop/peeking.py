"""Peeks (200052): what a group would pop next, which it does not pop by this.

Source: upstream ``PeekMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.books import Books
from firearrow.broker.pop.checks import PopChecks
from firearrow.broker.pulling.coldreads import ColdReads
from firearrow.message import names
from firearrow.net.server import Finished, Peer
from firearrow.store import Fetch, GetResult, GetStatus
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import FieldValue, Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import PeekMessage

RETRIED_FIRST: Final = 5  # of so many peeks one looks at retried messages first
BYTES_MAX: Final = 4 * 1024 * 1024
"""Of messages, after which no further queue gives any: a topic may have thousands of queues."""

_WRONG: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY)
_Place = tuple[TopicConfig, int]


class PeekProcessor:
    """Answers peeks."""

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
        """Run a peek again that waited for the disk."""
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
        # Times and revive queue are of pops, which have the same answer.
        fields: dict[str, FieldValue] = dict.fromkeys(("popTime", "invisibleTime", "reviveQid"), 0)
        fields["restNum"] = rest
        if not count:
            return Response(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", fields)
        self._stats.got(header.consumer_group, header.topic, count, size)
        return Response(ResponseCode.SUCCESS, "FOUND", fields, b"".join(records))

    def _places(self, header: PeekMessage, topic: TopicConfig) -> Iterator[_Place]:
        """The queues to look at, in their order."""
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


def _queues_of(topic: TopicConfig | None, chance: float) -> Iterator[_Place]:
    """All queues of a topic, from any one on."""
    if topic is not None:
        count = topic.read_queue_nums
        first = int(chance * count)
        for number in range(count):
            yield topic, (first + number) % count
