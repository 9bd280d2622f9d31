"""Named queues with bindings, as in AMQP, on RocketMQ's topics.

A queue is a topic. All its consumers are one group of the same name, which pops. A binding (exchange, routing key,
queue) is a key of the name servers' KV configuration, so all processes know it. Names are escaped, since RocketMQ
allows fewer characters.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final, NamedTuple, Self, Unpack

import msgspec

from firearrow.client.pop.popcalls import POP_MESSAGES_MAX
from firearrow.client.pop.renewal import LeasedMessage, LeaseHolder, give_back
from firearrow.client.pop.simpleconsumer import SimpleConsumer
from firearrow.client.producer.producer import Producer
from firearrow.client.session.session import Session, SessionOptions
from firearrow.errors import BrokerError, NotFound, TopicNotFound
from firearrow.integrations.topics import admin_of, declare_topic
from firearrow.wire.bodies import MASTER_ID
from firearrow.wire.codes import ResponseCode

PRODUCERS: Final = "kombu"
BINDINGS: Final = "KOMBU_BINDINGS"
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")


class Binding(NamedTuple):
    """Rule of an exchange that forwards messages to a queue."""

    exchange: str
    routing_key: str
    pattern: str | None
    queue: str


class Queues:
    """Queues of an application; open it on the event loop that uses it.

    ``prefix`` is a prefix of all topics. ``queues`` is the count of RocketMQ queues in a new topic, on each broker.
    ``invisible`` is the time until another process gets the messages of a dead one.
    """

    def __init__(
        self,
        cluster: str | Sequence[str],
        *,
        invisible: timedelta,
        prefix: str = "",
        queues: int = 1,
        **session: Unpack[SessionOptions],
    ) -> None:
        self._session = Session(cluster, **session)
        self._prefix = prefix
        self._queues = queues
        self._invisible = invisible
        self._stack = AsyncExitStack()
        self._consumers: dict[str, SimpleConsumer] = {}
        self._names: dict[str, str] = {}
        self._priorities: dict[str, int] = {}
        self._joining = asyncio.Lock()

    # --- life ---

    async def __aenter__(self) -> Self:
        """Connect. Raises OSError if no name server answers."""
        async with self._stack as stack:
            await stack.enter_async_context(self._session)
            self._admin = admin_of(self._session)
            await self._admin.cluster()
            self._producer = await stack.enter_async_context(Producer(self._session, group=PRODUCERS))
            self._holder = LeaseHolder(self._invisible)
            stack.push_async_callback(self._holder.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # --- queues ---

    async def declare(self, queue: str, priority_max: int | None = None) -> None:
        """Create a queue unless it exists, with priorities from 0 to ``priority_max``."""
        topic = self.topic(queue)
        if priority_max is None:
            await declare_topic(self._session, topic, self._queues)
        else:
            self._priorities[queue] = priority_max
            await declare_topic(self._session, topic, priority_max + 1, "PRIORITY")

    async def exists(self, queue: str) -> bool:
        """Tell whether a queue exists."""
        try:
            await self._session.refresh(self._session.topic(self.topic(queue)))
        except TopicNotFound:
            return False
        return True

    async def size(self, queue: str) -> int:
        """Count of waiting messages, without messages in work and delayed ones."""
        name = self.topic(queue)
        topic, group = self._session.topic(name), self._session.group(name)
        addresses = await self._masters(queue)
        return sum([await self._waiting_at(it, group, topic) for it in addresses])

    async def purge(self, queue: str) -> int:
        """Consume all waiting messages; returns their count."""
        consumer = await self._consumer(queue)
        purged = 0
        for place in await consumer.places():
            while some := await consumer.receive(wait=0, place=place):
                await consumer.ack_all(some)
                purged += len(some)
        return purged

    async def delete(self, queue: str, *, if_unused: bool = False) -> None:
        """Delete a queue with its messages and bindings; with ``if_unused``, only if no other process consumes it."""
        name = self.topic(queue)
        topic, group = self._session.topic(name), self._session.group(name)
        addresses = await self._masters(queue)
        if if_unused and any([await self._has_others(it, group) for it in addresses]):
            return
        consumer = self._consumers.pop(queue, None)
        if consumer is not None:
            await consumer.close()
        for binding in await self.bindings():
            if binding.queue == queue:
                await self.unbind(binding)
        for address in addresses:
            await self._admin.topics.delete_from_broker(address, topic)
            await self._admin.groups.delete(address, group, clean_offset=True)
        for address in self._session.name_servers.addresses:
            await self._admin.topics.delete_from_name_server(address, topic)
        self._session.routes.forget(topic)

    def topic(self, queue: str) -> str:
        """Topic of a queue, and its group."""
        return self._prefix + _OTHER.sub(_escaped, queue)

    async def _masters(self, queue: str) -> list[str]:
        try:
            route = await self._session.route(self._session.topic(self.topic(queue)))
        except TopicNotFound:
            return []
        brokers = (broker.broker_addrs for broker in route.broker_datas)
        return [addresses[MASTER_ID] for addresses in brokers if MASTER_ID in addresses]

    async def _waiting_at(self, address: str, group: str, topic: str) -> int:
        try:
            table = (await self._admin.offsets.progress(address, group)).offset_table
        except BrokerError as error:
            if error.code not in _NO_GROUP:
                raise
            table = {}
        if not any(queue.topic == topic for queue in table):  # no group has consumed yet
            ends = (await self._admin.topics.stats(address, topic)).offset_table.values()
            return sum(end.max_offset - end.min_offset for end in ends)
        return sum(it.lag for it in table.values())

    async def _has_others(self, address: str, group: str) -> bool:
        try:
            ids = await self._admin.groups.client_ids(address, group)
        except BrokerError:
            return False  # Java: an error without connections
        return any(it != self._session.client_id for it in ids)

    # --- messages ---

    async def put(self, queue: str, body: bytes, priority: int, key: str | None, tag: str | None) -> None:
        """Send a message to a queue, which is created if necessary."""
        if self._session.routes.known(self._session.topic(self.topic(queue))) is None:
            await self.declare(queue)
        priority_max = self._priorities.get(queue)
        given = None if priority_max is None else min(priority, priority_max)
        await self._producer.send(self.topic(queue), body, key=key, tag=tag, priority=given)

    async def join(self, queue: str) -> None:
        """Become a consumer of a queue."""
        await self._consumer(queue)

    async def get(self, queue: str) -> LeasedMessage | None:
        """One waiting message, or None."""
        consumer = await self._consumer(queue)
        return await self._holder.look(consumer)

    async def receive(self, wanted: Mapping[str, int], wait: float | None) -> list[tuple[str, LeasedMessage]]:
        """Wait for messages of queues, each with a maximum count. The result may be empty, or contain messages
        of a queue from an earlier request."""
        for queue, count in wanted.items():
            consumer = await self._consumer(queue)
            await self._holder.ask(consumer, min(count, POP_MESSAGES_MAX))
        try:
            async with asyncio.timeout(wait):
                await self._holder.answered()
        except TimeoutError:
            return []
        return [(self._names[held.consumer.group], held) for held in self._holder.take()]

    async def ack(self, held: LeasedMessage) -> bool:
        """Acknowledge a message, and wake a thread that waits for room. Returns False if the message may be
        redelivered."""
        self._holder.wake()
        return await held.ack()

    async def give_back(self, some: Sequence[LeasedMessage]) -> None:
        """Redeliver messages soon."""
        await give_back(some)

    async def _consumer(self, queue: str) -> SimpleConsumer:
        async with self._joining:
            consumer = self._consumers.get(queue)
            if consumer is None:
                await self.declare(queue, self._priorities.get(queue))
                name = self.topic(queue)
                consumer = SimpleConsumer(self._session, group=name, topics=[name])
                await consumer.start()
                self._stack.push_async_callback(consumer.close)
                self._consumers[queue] = consumer
                self._names[consumer.group] = queue
            return consumer

    # --- bindings ---

    async def bind(self, binding: Binding) -> None:
        """Bind a queue to an exchange."""
        if binding not in await self.bindings():
            await self._admin.name_servers.put(self._namespace, _key_of(binding), binding.queue)

    async def unbind(self, binding: Binding) -> None:
        """Remove a binding."""
        await self._admin.name_servers.delete(self._namespace, _key_of(binding))

    async def bindings(self) -> list[Binding]:
        """Bindings of all exchanges."""
        try:
            pairs = await self._admin.name_servers.pairs(self._namespace)
        except NotFound:
            return []
        return [msgspec.json.decode(key, type=Binding) for key in pairs]

    @property
    def _namespace(self) -> str:
        return self._session.topic(self._prefix + BINDINGS)


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


def _key_of(binding: Binding) -> str:
    return msgspec.json.encode(binding).decode()


_NO_GROUP: Final = frozenset({ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.CONSUMER_NOT_ONLINE})
