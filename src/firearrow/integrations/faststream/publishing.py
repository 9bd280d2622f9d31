"""Publish messages: FastStream's producer on RocketMQ's."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto

from firearrow.client.message import Message
from firearrow.client.producer.drafts import Receipt, SendOptions, properties_of
from firearrow.integrations.faststream.commands import RocketMQPublishCommand
from firearrow.integrations.faststream.connection import RocketMQConfig
from firearrow.integrations.faststream.messages import (
    CONTENT_LENGTH,
    CONTENT_TYPE,
    CORRELATION_ID,
    EMPTY_BODY,
    REPLY_TO,
    RocketMQParser,
)
from firearrow.message.model import NewMessage

REQUEST_SECONDS: Final = 30.0
SEND_SECONDS_MIN: Final = 1.0  # with no time left, a send fails by another error than TimeoutError


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """Producer of a broker, as long as the broker is connected."""

    def __init__(self, config: RocketMQConfig) -> None:
        self.config = config
        parser = RocketMQParser()
        self._parser = ParserComposition(config.broker_parser, parser.parse_message)
        self._decoder = ParserComposition(config.broker_decoder, parser.decode_message)
        self.codec: CodecProto = config.broker_codec or DefaultCodec()

    async def publish(self, cmd: RocketMQPublishCommand) -> Receipt:
        """Send a message or a reply; when this returns, a broker has it."""
        message = await self.message_of(cmd)
        producer = self.config.opened.producer
        if cmd.request is not None:
            return await producer.reply(cmd.request, message)
        return await producer.send(cmd.destination, message, sharding_key=cmd.sending.get("sharding_key"))

    async def request(self, cmd: RocketMQPublishCommand) -> Message:
        """Send a request; returns its reply. Raises NoReply, which is a TimeoutError, if none comes in time."""
        message = await self.message_of(cmd)
        seconds = REQUEST_SECONDS if cmd.timeout is None else cmd.timeout
        async with asyncio.timeout(seconds):
            return await self.config.opened.producer.request(
                cmd.destination,
                message,
                sharding_key=cmd.sending.get("sharding_key"),
                timeout_seconds=max(seconds, SEND_SECONDS_MIN),
            )

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> list[Receipt]:
        """Send several messages to one queue in one request: the broker takes all or none."""
        messages = await self.messages_of(cmd)
        producer = self.config.opened.producer
        return await producer.send_batch(cmd.destination, messages, sharding_key=cmd.sending.get("sharding_key"))

    async def message_of(self, cmd: RocketMQPublishCommand) -> NewMessage:
        """Message of a command. Raises MessageError for options that contradict each other, and for a header with a
        name of RocketMQ's own."""
        return self._message(cmd, await self.codec.encode(cmd.body, self._serializer))

    async def messages_of(self, cmd: RocketMQPublishCommand) -> list[NewMessage]:
        """Messages of a batch; raises as ``message_of``."""
        codec, bodies = self.codec, cmd.batch_bodies
        if isinstance(codec, BatchCodecProto):
            encoded = await codec.encode_batch(bodies, self._serializer)
        else:
            encoded = [await codec.encode(body, self._serializer) for body in bodies]
        return [self._message(cmd, one) for one in encoded]

    @property
    def _serializer(self) -> Any:
        return self.config.fd_config._serializer

    def _message(self, cmd: RocketMQPublishCommand, encoded: tuple[bytes, str | None]) -> NewMessage:
        body, content_type = encoded
        ours = {CONTENT_TYPE: content_type, CORRELATION_ID: cmd.correlation_id, REPLY_TO: cmd.reply_to or None}
        found = {name: str(value) for name, value in (ours | cmd.headers).items() if value is not None}
        found.pop(CONTENT_LENGTH, None)
        if not body:
            body, found[CONTENT_LENGTH] = EMPTY_BODY, "0"
        return NewMessage(cmd.destination, body, properties_of(SendOptions(properties=found, **cmd.sending)))
