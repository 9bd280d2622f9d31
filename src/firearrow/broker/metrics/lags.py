"""Lag of consumer groups that have members, in the topics of their subscriptions.

    lag       messages that are not consumed: not committed, or popped and not acknowledged
    in hand   of these, the messages that members have in flight
    ready     the others

Messages that a subscription does not want count, too. Java: ConsumerLagCalculator#calculate estimates the wanted share
from some of them.

Source: RocketMQ's ``ConsumerLagCalculator``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.books import Books
from firearrow.broker.pop.inflight import InFlight
from firearrow.broker.state.attributes import LITE_BIND_TOPIC
from firearrow.message import names
from firearrow.wire.bodies import PERM_READ, PERM_WRITE
from firearrow.wire.client_bodies import CONSUME_POP


class Lag(NamedTuple):
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


class _Pops(NamedTuple):
    """Progress of groups that pop."""

    books: Books
    in_flight: InFlight


class _Place(NamedTuple):
    """Position of a group in a queue."""

    consumed: int
    given: int
    in_hand: int
    end: int


def lags_of(context: BrokerContext, books: Books, in_flight: InFlight) -> Iterator[Lag]:
    """Yield the lags of groups; some may change between two of them."""
    pops = _Pops(books, in_flight)
    for group, members in context.clients.consumer_groups():
        config = context.groups.get(group)
        if config is None or config.attributes.get(LITE_BIND_TOPIC):
            continue  # there are too many lite topics
        is_pop = members.consume_type == CONSUME_POP
        for topic in sorted(members.subscriptions):
            if names.is_retry(topic) or not _is_open(context, topic):
                continue
            yield _lag(context, pops, group, topic, topic, is_pop=is_pop, is_retry=False)
            if not is_pop:
                continue
            retries = (names.pop_retry_topic(topic, group, v2=v2) for v2 in (False, True))
            found = [retry for retry in retries if _is_open(context, retry)]
            if found:
                parts = [_lag(context, pops, group, topic, retry, is_pop=True, is_retry=True) for retry in found]
                yield parts[0] if len(parts) == 1 else _sum(parts)


def _is_open(context: BrokerContext, topic: str) -> bool:
    config = context.topics.get(topic)
    may = context.settings.broker.broker_permission & (PERM_READ | PERM_WRITE)
    return config is not None and bool(config.perm & may)


def _lag(
    context: BrokerContext, pops: _Pops, group: str, topic: str, source: str, *, is_pop: bool, is_retry: bool
) -> Lag:
    config = context.topics.get(source)
    count = 0 if config is None else config.write_queue_nums
    messages = in_hand = ready = 0
    firsts: list[int] = []
    nexts: list[int] = []
    for queue_id in range(count):
        end = max(0, context.store.max_queue_offset(source, queue_id))
        find = _popped_place if is_pop else _pulled_place
        place = find(context, pops, group, source, queue_id, end)
        messages += max(0, end - place.consumed)
        in_hand += max(0, place.in_hand)
        ready += max(0, end - place.given)
        firsts.append(_stored_ms(context, source, queue_id, place.consumed, end))
        nexts.append(_stored_ms(context, source, queue_id, place.given, end))
    return Lag(group, topic, is_retry, messages, in_hand, ready, _first(firsts), _first(nexts))


def _pulled_place(context: BrokerContext, _: _Pops, group: str, topic: str, queue_id: int, end: int) -> _Place:
    committed = context.offsets.query(group, topic, queue_id)
    consumed = committed if committed >= 0 else end
    given = max(consumed, context.offsets.query_pull(group, topic, queue_id))
    return _Place(consumed, given, given - consumed, end)


def _popped_place(context: BrokerContext, pops: _Pops, group: str, topic: str, queue_id: int, end: int) -> _Place:
    popped = pops.books.offset(group, topic, queue_id)
    given = popped if popped >= 0 else end
    in_hand = pops.in_flight.count(topic, group, queue_id)
    return _Place(given - in_hand, given, in_hand, end)


def _stored_ms(context: BrokerContext, topic: str, queue_id: int, queue_offset: int, end: int) -> int:
    if not 0 <= queue_offset < end:
        return 0
    return max(0, context.store.store_time_of(topic, queue_id, queue_offset))


def _first(times: list[int]) -> int:
    return min(filter(None, times), default=0)


def _sum(parts: list[Lag]) -> Lag:
    return parts[0]._replace(
        messages=sum(part.messages for part in parts),
        in_hand=sum(part.in_hand for part in parts),
        ready=sum(part.ready for part in parts),
        first_ms=_first([part.first_ms for part in parts]),
        next_ms=_first([part.next_ms for part in parts]),
    )
