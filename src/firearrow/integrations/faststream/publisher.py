"""Publishers: a topic with options, as a decorator of handlers or as an object to publish with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Unpack, cast

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.types import PublisherMiddleware
from faststream.message import StreamMessage
from faststream.response import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from firearrow.client.message import Message
from firearrow.integrations.faststream.commands import RequestOptions, RocketMQPublishCommand, SendingOptions
from firearrow.integrations.faststream.connection import RocketMQConfig
from firearrow.integrations.faststream.messages import RocketMQMessage
from firearrow.message import properties as keys_of


@dataclass(kw_only=True)
class RocketMQPublisherConfig(PublisherUsecaseConfig):
    """Options of a publisher."""

    _outer_config: RocketMQConfig
    topic: str
    headers: dict[str, Any]
    reply_to: str
    batch: bool
    sending: SendingOptions


class RocketMQPublisherSpecification(PublisherSpecification[RocketMQConfig, PublisherSpecificationConfig]):
    """Entry of a publisher in the AsyncAPI document."""

    def __init__(self, outer: RocketMQConfig, config: PublisherSpecificationConfig, topic: str) -> None:
        super().__init__(outer, config)
        self._topic = topic

    @property
    def topic(self) -> str:
        """Topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def name(self) -> str:
        """Title, or the topic."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Channel of the topic."""
        message = MessageSpec(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads(), "Publisher"))
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketMQPublisher(PublisherUsecase):
    """Publisher to a topic."""

    _outer_config: RocketMQConfig

    def __init__(self, config: RocketMQPublisherConfig, specification: PublisherSpecification[Any, Any]) -> None:
        super().__init__(config, specification)
        self._config = config

    @property
    def topic(self) -> str:
        """Topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    def _with_own(self, sending: RequestOptions) -> SendingOptions:
        merged = self._config.sending.copy()
        merged.update(cast("SendingOptions", sending))
        return merged

    def _fields(self, topic: str, headers: dict[str, Any] | None, sending: RequestOptions) -> dict[str, Any]:
        """Fields of a command, with the publisher's where none are given."""
        return {
            "topic": topic or self.topic,
            "headers": self._config.headers | (headers or {}),
            "sending": self._with_own(sending),
        }

    async def start(self) -> None:
        """Create the topic unless it exists."""
        await super().start()
        await self._outer_config.opened.declare(self.topic)

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **sending: Unpack[SendingOptions],
    ) -> Any:
        """Publish a message, or with ``batch`` a sequence of them; returns the receipt, or the receipts."""
        body, rest = RocketMQPublishCommand._parse_bodies(message, batch=self._config.batch)
        cmd = self._outer_config.command(
            body,
            *rest,
            correlation_id=correlation_id,
            reply_to=reply_to or self._config.reply_to,
            **self._fields(topic, headers, sending),
        )
        return await self._send(cmd, ())

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
        **sending: Unpack[RequestOptions],
    ) -> RocketMQMessage:
        """Send a request; returns its response. Raises TimeoutError if none comes in time."""
        cmd = self._outer_config.command(
            message,
            correlation_id=correlation_id,
            kind=PublishType.REQUEST,
            timeout=timeout,
            **self._fields(topic, headers, sending),
        )
        response: RocketMQMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return response

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        ours = RocketMQPublishCommand.from_cmd(cmd, batch=self._config.batch)
        ours.destination = self.topic
        ours.add_headers(self._config.headers, override=False)
        ours.reply_to = ours.reply_to or self._config.reply_to
        ours.sending = self._with_own(ours.sending)
        await self._send(ours, _extra_middlewares)

    async def _send(self, cmd: RocketMQPublishCommand, middlewares: Iterable[PublisherMiddleware]) -> Any:
        send = self._basic_publish_batch if self._config.batch else self._basic_publish
        return await send(cmd, producer=self._outer_config.producer, _extra_middlewares=middlewares)


class ReplyPublisher(FakePublisher):
    """Publisher of the response to a message with ``reply_to``: a reply to a request, or a message to a topic."""

    def __init__(self, config: RocketMQConfig, message: StreamMessage[Any]) -> None:
        super().__init__(producer=config.producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Command of the response."""
        ours = RocketMQPublishCommand.from_cmd(super().patch_command(cmd))
        ours.destination = self._message.reply_to
        raw = self._message.raw_message
        if isinstance(raw, Message) and keys_of.REPLY_TO_CLIENT in raw.properties:
            ours.request = raw
        return ours
