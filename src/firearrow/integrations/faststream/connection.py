"""Connection of a broker: its session, its producer, and a consumer for each group of its subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Self

from faststream._internal.configs import BrokerConfig
from faststream.exceptions import IncorrectState, SetupError
from faststream.response import PublishType

from firearrow.client.consumer.subscription import StartFrom
from firearrow.client.producer.producer import Producer
from firearrow.client.push.pushconsumer import PushConsumer
from firearrow.client.session.session import Session, SessionOptions
from firearrow.errors import FirearrowError
from firearrow.integrations.faststream.commands import RocketMQPublishCommand
from firearrow.integrations.topics import admin_of, declare_topic
from firearrow.wire.client_bodies import SUBSCRIBE_ALL


class Membership(NamedTuple):
    """Options of a consumer group's members, which are the same for all of its topics."""

    ordered: bool = False
    broadcasting: bool = False
    start: StartFrom | datetime = StartFrom.FIRST
    max_reconsume_times: int | None = None


class Selection(NamedTuple):
    """Messages that a subscriber wants, and how many at once."""

    tags: str = SUBSCRIBE_ALL
    sql: str = ""
    concurrency: int = 1
    batch: int = 0


class GroupConsumer:
    """Consumer of a group, for all topics that subscribers of this broker take in the group."""

    def __init__(self, session: Session, group: str, membership: Membership) -> None:
        self.membership = membership
        self._consumer = PushConsumer(session, group=group, drain=0.0, **membership._asdict())
        self._topics: set[str] = set()
        self._is_started = False

    def subscribe(self, topic: str, handler: Callable[[Any], Awaitable[None]], selection: Selection) -> None:
        """Add a topic, before the start."""
        self._consumer.subscribe(topic, handler, manual=True, **selection._asdict())
        self._topics.add(topic)

    async def start(self) -> None:
        """Consume, unless started already."""
        if not self._is_started:
            self._is_started = True
            await self._consumer.start()

    def unsubscribe(self, topic: str) -> bool:
        """Forget a topic; returns whether it was the last one, so that the consumer must stop."""
        self._topics.discard(topic)
        return not self._topics

    async def stop(self) -> None:
        """Commit and leave the group."""
        await self._consumer.close()


class OpenConnection:
    """Connection between ``connect`` and ``stop``."""

    def __init__(self, session: Session, producer: Producer, queues: int, stack: AsyncExitStack) -> None:
        self.session = session
        self.producer = producer
        self._queues = queues
        self._stack = stack
        self._consumers: dict[str, GroupConsumer] = {}
        self._gathers = False

    @classmethod
    async def of(cls, cluster: str | Sequence[str] | None, group: str, queues: int, options: SessionOptions) -> Self:
        """Open a connection; no server is asked yet."""
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(Session(cluster, **options))
            producer = await stack.enter_async_context(Producer(session, group=group))
            return cls(session, producer, queues, stack.pop_all())

    async def declare(self, topic: str) -> None:
        """Create a topic unless it exists."""
        await declare_topic(self.session, topic, self._queues)

    async def subscribe(
        self,
        group: str,
        membership: Membership,
        topic: str,
        handler: Callable[[Any], Awaitable[None]],
        selection: Selection,
    ) -> None:
        """Subscribe; the consumer of the group starts now, unless ``gather`` was called.

        Raises SetupError if another subscriber joined the group with other options, ClientError if its consumer is
        started already, ConfigError if it has the topic already.
        """
        await self.declare(topic)
        consumer = self._consumers.get(group)
        if consumer is None:
            consumer = self._consumers[group] = GroupConsumer(self.session, group, membership)
        if consumer.membership != membership:
            raise SetupError(
                f"subscribers of group {group!r} have different options: {consumer.membership}, {membership}"
            )
        consumer.subscribe(topic, handler, selection)
        if not self._gathers:
            await consumer.start()

    async def unsubscribe(self, group: str, topic: str, *, in_handler: bool) -> None:
        """Stop the consumer of a group with its last topic; if a handler calls this, after the handler."""
        consumer = self._consumers[group]
        if consumer.unsubscribe(topic):
            del self._consumers[group]
            if in_handler:
                self.session.tasks.start(consumer.stop(), f"end of {group}")
            else:
                await consumer.stop()

    def gather(self) -> None:
        """Let consumers wait for ``start``, since a consumer takes no topics after its start."""
        self._gathers = True

    async def start(self) -> None:
        """Consume in all groups."""
        self._gathers = False
        await asyncio.gather(*(consumer.start() for consumer in self._consumers.values()))

    async def answers(self, seconds: float | None) -> bool:
        """Tell whether a name server answers in time."""
        try:
            async with asyncio.timeout(seconds):
                await admin_of(self.session).cluster()
        except (OSError, FirearrowError):
            return False
        return True

    async def close(self) -> None:
        """Send the pending messages and close all connections."""
        await self._stack.aclose()


@dataclass(kw_only=True)
class RocketMQConfig(BrokerConfig):
    """Configuration of a broker or a router."""

    group: str = ""
    connection: OpenConnection | None = field(default=None, repr=False)

    @property
    def opened(self) -> OpenConnection:
        """Open connection. Raises IncorrectState before ``connect``."""
        if self.connection is None:
            raise IncorrectState("the broker is not connected: call connect() or start() first")
        return self.connection

    def command(
        self, *bodies: Any, correlation_id: str | None, kind: PublishType = PublishType.PUBLISH, **fields: Any
    ) -> RocketMQPublishCommand:
        """Command with these fields, and with a new correlation id unless one is given."""
        given = correlation_id or self.id_generator()
        return RocketMQPublishCommand(*bodies, _publish_type=kind, correlation_id=given, **fields)
