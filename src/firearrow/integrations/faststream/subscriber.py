"""Subscribers: a topic in a consumer group, with handlers or to take messages from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream._internal.types import AsyncCallable
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec

from firearrow.integrations.faststream.connection import Membership, RocketMQConfig, Selection
from firearrow.integrations.faststream.messages import RocketMQMessage, RocketMQParser
from firearrow.integrations.faststream.publisher import ReplyPublisher


@dataclass(kw_only=True)
class RocketMQSubscriberConfig(SubscriberUsecaseConfig):
    """Options of a subscriber."""

    _outer_config: RocketMQConfig
    topic: str
    group: str
    membership: Membership
    selection: Selection

    def __post_init__(self) -> None:
        parser = RocketMQParser(keeps_order=self.membership.ordered)
        is_batch = bool(self.selection.batch)
        self.parser: AsyncCallable = parser.parse_batch if is_batch else parser.parse_message
        self.decoder: AsyncCallable = parser.decode_batch if is_batch else parser.decode_message

    @property
    def ack_policy(self) -> AckPolicy:
        """Policy of the subscriber or else of its broker; by default, failed messages are redelivered."""
        given = (self._ack_policy, self._outer_config.ack_policy, AckPolicy.NACK_ON_ERROR)
        return next(policy for policy in given if policy is not EMPTY)


class RocketMQSubscriberSpecification(SubscriberSpecification[RocketMQConfig, SubscriberSpecificationConfig]):
    """Entry of a subscriber in the AsyncAPI document."""

    def __init__(
        self, outer: RocketMQConfig, config: SubscriberSpecificationConfig, calls: CallsCollection[Any], topic: str
    ) -> None:
        super().__init__(outer, config, calls)
        self._topic = topic

    @property
    def topic(self) -> str:
        """Topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The topic."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Channel of the topic."""
        message = MessageSpec(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketMQSubscriber(SubscriberUsecase[Any]):
    """Subscriber of a topic."""

    _outer_config: RocketMQConfig

    def __init__(
        self,
        config: RocketMQSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
    ) -> None:
        super().__init__(config, specification, calls)
        self._config = config
        self._is_subscribed = False
        self._handling: set[asyncio.Task[Any] | None] = set()
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()

    @property
    def topic(self) -> str:
        """Topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    @property
    def group(self) -> str:
        """Group of the subscriber; by default the group of its broker and the topic."""
        return self._config.group or f"{self._outer_config.group}-{self.topic}"

    @property
    def selection(self) -> Selection:
        """Messages that it wants."""
        return self._config.selection

    # --- life ---

    async def start(self) -> None:
        """Subscribe, unless that is done already; the consumer of the group starts with the broker."""
        if not self._is_subscribed:
            await super().start()
            self._post_start()
            await self._outer_config.opened.subscribe(
                self.group, self._config.membership, self.topic, self._receive, self.selection
            )
            self._is_subscribed = True

    async def stop(self) -> None:
        """Let handlers finish for the broker's ``graceful_timeout``; then leave the group. The messages that are not
        acknowledged are redelivered."""
        await super().stop()
        if self._is_subscribed:
            self._is_subscribed = False
            in_handler = asyncio.current_task() in self._handling
            await self._outer_config.opened.unsubscribe(self.group, self.topic, in_handler=in_handler)
            self._arrived = asyncio.Queue()

    async def _receive(self, received: Any) -> None:
        if not self.calls:
            self._arrived.put_nowait(received)
            return
        task = asyncio.current_task()
        self._handling.add(task)
        try:
            await self.consume(received)
        finally:
            self._handling.discard(task)

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Iterable[PublisherProto]:
        return (ReplyPublisher(self._outer_config, message),)

    # --- without handlers ---

    async def get_one(self, *, timeout: float | None = 5.0) -> RocketMQMessage | None:
        """Next message; None if none arrives in time. It is acknowledged now, unless the policy is MANUAL. For a
        subscriber without handlers."""
        # FastStream's tests expect an AssertionError.
        assert not self.calls, "get_one() and iteration are for subscribers without handlers"
        try:
            async with asyncio.timeout(timeout):
                raw = await self._arrived.get()
        except TimeoutError:
            return None
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        message: Any = await process_msg(
            raw,
            middlewares=(made(raw, context=context) for made in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        if self.ack_policy is not AckPolicy.MANUAL:
            await message.ack()
        found: RocketMQMessage = message
        return found

    async def __aiter__(self) -> AsyncIterator[RocketMQMessage]:
        """Yield messages for ever, as from ``get_one``."""
        while True:
            message = await self.get_one(timeout=None)
            if message is not None:
                yield message

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Fields of log lines."""
        return {"topic": self.topic, "group": self.group, "message_id": getattr(message, "message_id", "")}
