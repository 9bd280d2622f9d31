"""Test applications without a server: published messages go to the handlers at once.

A delay is ignored, and a failed message is not redelivered: its error is raised by ``publish``. Subscribers get the
messages of their topic, tags and SQL expression; of the subscribers in one group, only one gets a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, overload
from unittest.mock import AsyncMock, patch
from uuid import uuid4

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from firearrow.client.consumer.handlers import Delivery, Failure
from firearrow.client.message import Message
from firearrow.client.producer.drafts import check_topic
from firearrow.filter.sql import compile_sql
from firearrow.integrations.faststream.broker import RocketMQBroker
from firearrow.integrations.faststream.commands import RocketMQPublishCommand
from firearrow.integrations.faststream.connection import OpenConnection, Selection
from firearrow.integrations.faststream.publisher import RocketMQPublisher
from firearrow.integrations.faststream.publishing import RocketMQProducer
from firearrow.integrations.faststream.subscriber import RocketMQSubscriber
from firearrow.message import properties as keys_of
from firearrow.message.hosts import Host
from firearrow.message.model import MessageView, NewMessage
from firearrow.wire.client_bodies import tags_in

_HERE: Final = Host("127.0.0.1", 0)


class TestRocketMQBroker(TestBroker[RocketMQBroker, EnterType], broker=RocketMQBroker):
    """Brokers without a server, as a context manager; with ``with_real`` they have one, and only record calls."""

    @overload
    def __init__(
        self: TestRocketMQBroker[RocketMQBroker],
        broker: RocketMQBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: TestRocketMQBroker[tuple[RocketMQBroker, ...]],
        *brokers: RocketMQBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(self, *brokers: RocketMQBroker, with_real: bool = False, connect_only: bool | None = None) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: RocketMQBroker, publisher: RocketMQPublisher
    ) -> tuple[RocketMQSubscriber, bool]:
        """Subscriber of a publisher's topic, and whether the application has it."""
        for subscriber in _subscribers_of(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        return broker.subscriber(publisher.topic, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Iterator[None]:
        config = broker.config.broker_config
        with (
            change_producer(config, FakeProducer(broker, self.brokers)),
            patch.object(config, "connection", AsyncMock(OpenConnection)),
        ):
            yield

    async def _fake_connect(self, broker: RocketMQBroker, *_: Any, **__: Any) -> OpenConnection:  # type: ignore[override]
        return broker.config.broker_config.opened


class FakeProducer(RocketMQProducer):
    """Producer that calls the handlers."""

    def __init__(self, broker: RocketMQBroker, brokers: Sequence[RocketMQBroker]) -> None:
        super().__init__(broker.config.broker_config)
        self._brokers = brokers

    async def publish(self, cmd: RocketMQPublishCommand) -> None:  # type: ignore[override]  # no receipt
        """Call the handlers with a message."""
        await self._deliver([_delivery(await self.message_of(cmd))])

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> None:  # type: ignore[override]  # no receipts
        """Call the handlers with messages."""
        await self._deliver([_delivery(message) for message in await self.messages_of(cmd)])

    async def request(self, cmd: RocketMQPublishCommand) -> Message:
        """Call one handler, and make a message of its response. Raises SubscriberNotFound if there is none."""
        message = _delivery(await self.message_of(cmd))
        for subscriber in self._interested(message):
            async with asyncio.timeout(cmd.timeout):
                response = await subscriber.process_message([message] if subscriber.selection.batch else message)
            reply = RocketMQPublishCommand.from_cmd(response.as_publish_command())
            reply.destination = message.topic
            return _delivery(await self.message_of(reply))
        raise SubscriberNotFound(f"no subscriber takes messages of topic {message.topic!r}")

    async def _deliver(self, messages: list[Delivery]) -> None:
        by_subscriber: dict[RocketMQSubscriber, list[Delivery]] = {}
        for message in messages:
            for subscriber in self._interested(message):
                by_subscriber.setdefault(subscriber, []).append(message)
        for subscriber, some in by_subscriber.items():
            for one in [some] if subscriber.selection.batch else some:
                await subscriber.process_message(one)

    def _interested(self, message: Message) -> Iterator[RocketMQSubscriber]:
        groups = set()
        for subscriber in _subscribers_of(self._brokers):
            if (
                subscriber.topic == message.topic
                and subscriber.group not in groups
                and _is_wanted(message, subscriber.selection)
            ):
                groups.add(subscriber.group)
                yield subscriber


class _NoSource:
    """Source whose messages are not acknowledged."""

    keeps_order = False

    def may_begin(self, _: Message) -> bool:
        return True

    def done(self, _: Sequence[Message]) -> None:
        pass

    async def failed(self, _: Sequence[Message], __: Failure) -> None:
        pass


def _subscribers_of(brokers: Sequence[RocketMQBroker]) -> Iterator[RocketMQSubscriber]:
    for broker in brokers:
        for subscriber in broker.subscribers:
            assert isinstance(subscriber, RocketMQSubscriber)
            yield subscriber


def _is_wanted(message: Message, selection: Selection) -> bool:
    if selection.sql:
        return compile_sql(selection.sql).wants(keys_of.encode(message.properties))
    tags = tags_in(selection.tags)
    return tags is None or message.tag in tags


def _delivery(sent: NewMessage) -> Delivery:
    check_topic(sent.topic)
    view = MessageView(
        topic=sent.topic,
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        store_size=0,
        body_crc=0,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=0,
        born_host=_HERE,
        store_timestamp_ms=0,
        store_host=_HERE,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=sent.body,
        properties={**sent.properties, keys_of.UNIQUE_KEY: uuid4().hex.upper()},
    )
    return Delivery.of(Message.received(view, "test"), _NoSource())
