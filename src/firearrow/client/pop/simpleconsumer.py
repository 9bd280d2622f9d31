"""Receive messages on request, and acknowledge each.

::

    async with SimpleConsumer("127.0.0.1:9876", group="billing", topics=["orders"]) as consumer:
        for message in await consumer.receive(32, invisible=timedelta(seconds=30)):
            ...
            await consumer.ack(message)

Messages are popped (POP): each consumer of the group gets any messages. There are no queues to divide, and a slow
consumer blocks no other. A message that is not acknowledged within its invisible time is redelivered.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, Unpack

from firearrow.client.arguments import Duration, ms_of
from firearrow.client.consumer.groupcalls import GroupCalls
from firearrow.client.consumer.lifecycle import ConsumerLife
from firearrow.client.consumer.subscription import StartFrom, subscription_to, wanted_of
from firearrow.client.message import Message
from firearrow.client.pop.popcalls import POP_MESSAGES_MAX, PopCalls, PopOptions, PopResult, handle_of
from firearrow.client.queues import Queue
from firearrow.client.routing.queues import subscribe_queues
from firearrow.client.session.session import Session, SessionOptions
from firearrow.errors import ConfigError
from firearrow.message import properties as keys_of
from firearrow.wire.client_bodies import CLUSTERING, SUBSCRIBE_ALL, ConsumerData, SubscriptionData
from firearrow.wire.pop import ANY_QUEUE

WAIT_SECONDS: Final = 15.0
INVISIBLE: Final = timedelta(seconds=60)
FULL_SECONDS: Final = 0.1  # before the next pop from a broker with too many waiting pops


class SimpleConsumer(ConsumerLife):
    """Member of a group that pops.

    ``cluster`` is the address of the name servers, or a `Session` to share. Without a session, the consumer creates one
    from the further arguments. ``topics`` are names, or a mapping of names to expressions (``A || B``). ``start`` is
    the first offset of a group without offsets: by default the first message, otherwise the end.
    """

    def __init__(
        self,
        cluster: Session | str | Sequence[str] | None = None,
        *,
        group: str,
        topics: Iterable[str] | Mapping[str, str],
        start: StartFrom = StartFrom.FIRST,
        **session: Unpack[SessionOptions],
    ) -> None:
        if start not in (StartFrom.FIRST, StartFrom.LAST):
            raise ConfigError(f"start: {start!r}: a consumer that pops starts at the first or after the last message")
        super().__init__(Session.of(cluster, **session))
        self._calls = GroupCalls(self.session, self.session.group(group))
        self._pops = PopCalls(self._calls)
        self._start_from = start
        self._subscriptions: dict[str, SubscriptionData] = {}
        for topic, tags in _expressions(topics).items():
            self._subscribe(topic, tags)
        if not self._subscriptions:
            raise ConfigError(f"group {group!r} subscribes to no topic")
        self._turn = 0

    @property
    def group(self) -> str:
        """Group as brokers call it."""
        return self._calls.group

    def consumer_data(self) -> ConsumerData:
        """Entry of the consumer in the heartbeat."""
        return ConsumerData(
            self.group, "CONSUME_POP", CLUSTERING, self._start_from.value, list(self._subscriptions.values())
        )

    # --- life ---

    async def _begin(self) -> None:
        self.session.add_consumer(self)
        for topic in self._subscriptions:
            await self.session.route(topic)
        await self.session.heartbeat(must_be_permitted=True)

    # --- subscriptions ---

    async def subscribe(self, topic: str, tags: str | Iterable[str] = SUBSCRIBE_ALL) -> None:
        """Subscribe to another topic, or by another expression."""
        name = self._subscribe(topic, tags)
        await self.session.route(name)
        await self.session.heartbeat(must_be_permitted=True)

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic; without a subscription, does nothing."""
        self._subscriptions.pop(self.session.topic(topic), None)
        await self.session.heartbeat()

    def _subscribe(self, topic: str, tags: str | Iterable[str]) -> str:
        name = self.session.topic(topic)
        now_ms = self.session.clock.now_ms()
        self._subscriptions[name] = subscription_to(name, now_ms, tags=tags)
        return name

    # --- messages ---

    async def receive(
        self,
        max_messages: int = POP_MESSAGES_MAX,
        invisible: Duration = INVISIBLE,
        *,
        wait: Duration = WAIT_SECONDS,
        place: Queue | None = None,
    ) -> list[Message]:
        """Receive messages, which no other consumer of the group gets during the invisible time.

        If the broker has no messages, waits up to ``wait`` seconds. Topics and brokers take turns, unless ``place`` is
        one of ``places``. Raises OSError or BrokerError, and ConfigError for an invalid ``max_messages``.
        """
        self._check_running()
        if not 1 <= max_messages <= POP_MESSAGES_MAX:
            raise ConfigError(f"group {self.group!r}: max_messages={max_messages}: allowed is 1 to {POP_MESSAGES_MAX}")
        queue = await self._next() if place is None else place
        subscription = self._subscriptions[queue.topic]
        popping = PopOptions(
            max_messages, ms_of(invisible, "invisible"), ms_of(wait, "wait"), self._start_from is StartFrom.FIRST
        )
        popped = await self._pops.pop(queue, subscription, popping)
        if popped.is_full:
            await asyncio.sleep(FULL_SECONDS)
        return await self._only_wanted(popped, subscription)

    async def places(self) -> list[Queue]:
        """Topics and brokers to receive from, each place for all of its queues."""
        topics = list(self._subscriptions)
        if not topics:
            raise ConfigError(f"group {self.group!r} subscribes to no topic")
        places = []
        for topic in topics:
            route = await self.session.route(topic)
            places += sorted({(queue.broker, topic) for queue in subscribe_queues(topic, route)})
        if not places:
            raise ConnectionError(f"no broker lets clients read topics {topics}")
        return [Queue(topic, broker, ANY_QUEUE) for broker, topic in places]

    async def _next(self) -> Queue:
        """Broker and topic in turn."""
        places = await self.places()
        self._turn += 1
        return places[self._turn % len(places)]

    async def _only_wanted(self, popped: PopResult, subscription: SubscriptionData) -> list[Message]:
        messages = wanted_of(popped.messages, subscription)
        if len(messages) != len(popped.messages):
            wanted = set(map(id, messages))
            others = [one for one in popped.messages if id(one) not in wanted]
            await self._pops.ack_all(subscription.topic, map(handle_of, others))
        return messages

    async def ack(self, message: Message) -> bool:
        """Acknowledge a message. Returns False if its invisible time was over: it may be redelivered."""
        self._check_running()
        return await self._pops.ack(self._topic_of(message), handle_of(message))

    async def ack_all(self, messages: Iterable[Message]) -> None:
        """Acknowledge messages, with one request for each broker and topic; a late one is redelivered."""
        self._check_running()
        by_topic: dict[str, list[Message]] = defaultdict(list)
        for message in messages:
            by_topic[self._topic_of(message)].append(message)
        for topic, some in by_topic.items():
            await self._pops.ack_all(topic, map(handle_of, some))

    async def change_invisible(self, message: Message, invisible: Duration) -> None:
        """Redeliver a message after a time from now; before that, it can be acknowledged.

        Raises BrokerError if its invisible time was over.
        """
        self._check_running()
        invisible_ms = ms_of(invisible, "invisible")
        topic = self._topic_of(message)
        handle = await self._pops.change(topic, handle_of(message), invisible_ms)
        message.properties[keys_of.POP_CHECKPOINT] = str(handle)

    def _topic_of(self, message: Message) -> str:
        return self.session.topic(message.topic)


def _expressions(topics: Iterable[str] | Mapping[str, str]) -> Mapping[str, str]:
    if isinstance(topics, str):
        return {topics: SUBSCRIBE_ALL}
    return topics if isinstance(topics, Mapping) else dict.fromkeys(topics, SUBSCRIBE_ALL)
