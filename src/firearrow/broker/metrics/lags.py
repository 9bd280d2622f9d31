"""Lag of consumer groups that have members, in the topics of their subscriptions.

    lag       messages that are not consumed: not committed, or popped and not acknowledged
    in hand   of these, the messages that members have in flight
    ready     the others

Messages that a subscription does not want count, too. Java: ConsumerLagCalculator#calculate estimates the wanted share
from some of them.

Source: RocketMQ's ``ConsumerLagCalculator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from firearrow.broker.context import BrokerContext
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.pop.books import Books
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.state.attributes import LITE_BIND_TOPIC
from firearrow.message import names
from firearrow.wire.bodies import PERM_READ, PERM_WRITE
from firearrow.wire.client_bodies import CONSUME_POP


class GroupLag(NamedTuple):
    """Lag of a group in a topic, or (``is_retry``) in the messages of the topic that it failed to consume by POP.

    ``first_ms`` is the store time of the first message that is not consumed, ``next_ms`` of the first that was not
    given; 0 if there is none.
    """

    group: str
    topic: str
    is_retry: bool
    messages: int
    in_hand: int
    ready: int
    first_ms: int
    next_ms: int


class _Place(NamedTuple):
    """Position of a group in a queue."""

    consumed: int
    given: int
    in_hand: int


_Find = Callable[[str, str, int, int], _Place]  # of the group, topic, queue id and end of a queue


def lags_of(context: BrokerContext, books: Books, in_flight: InFlight) -> Iterator[GroupLag]:
    """Yield the lags of groups; some may change between two of them."""
    pulled, popped = partial(_pulled, context.offsets), partial(_popped, books, in_flight)
    for group, members in context.clients.consumer_groups():
        config = context.groups.get(group)
        if config is None or config.attributes.get(LITE_BIND_TOPIC):
            continue  # there are too many lite topics
        is_pop = members.consume_type == CONSUME_POP
        for topic in sorted(members.subscriptions):
            if names.is_retry(topic) or not _is_open(context, topic):
                continue
            yield _lag(context, popped if is_pop else pulled, group, topic, [topic])
            retries = (names.pop_retry_topic(topic, group, v2=v2) for v2 in (False, True)) if is_pop else ()
            if found := [retry for retry in retries if _is_open(context, retry)]:
                yield _lag(context, popped, group, topic, found, is_retry=True)


def _is_open(context: BrokerContext, topic: str) -> bool:
    config = context.topics.get(topic)
    may = context.settings.broker.broker_permission & (PERM_READ | PERM_WRITE)
    return config is not None and bool(config.perm & may)


def _lag(
    context: BrokerContext, find: _Find, group: str, topic: str, sources: Sequence[str], *, is_retry: bool = False
) -> GroupLag:
    """Sum up the queues of ``sources``."""
    messages = in_hand = ready = 0
    firsts: list[int] = []
    nexts: list[int] = []
    for source in sources:
        config = context.topics.get(source)
        for queue_id in range(config.write_queue_nums if config else 0):
            end = max(0, context.store.max_queue_offset(source, queue_id))
            place = find(group, source, queue_id, end)
            messages += max(0, end - place.consumed)
            in_hand += max(0, place.in_hand)
            ready += max(0, end - place.given)
            for at, times in (place.consumed, firsts), (place.given, nexts):
                if at < end:
                    times.append(context.store.store_time_of(source, queue_id, at))
    first_ms, next_ms = (min((ms for ms in times if ms > 0), default=0) for times in (firsts, nexts))
    return GroupLag(group, topic, is_retry, messages, in_hand, ready, first_ms, next_ms)


def _pulled(offsets: ConsumerOffsets, group: str, topic: str, queue_id: int, end: int) -> _Place:
    committed = offsets.query(group, topic, queue_id)
    consumed = committed if committed >= 0 else end
    given = max(consumed, offsets.query_pull(group, topic, queue_id))
    return _Place(consumed, given, given - consumed)


def _popped(books: Books, in_flight: InFlight, group: str, topic: str, queue_id: int, end: int) -> _Place:
    popped = books.offset(group, topic, queue_id)
    given = popped if popped >= 0 else end
    in_hand = in_flight.count(topic, group, queue_id)
    return _Place(given - in_hand, given, in_hand)
