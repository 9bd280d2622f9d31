"""Messages of handlers, from and to messages of RocketMQ.

A header is a property of the message. Three headers are FastStream's: ``content-type``, ``correlation_id`` and
``reply_to``. RocketMQ has no empty messages, so an empty body is one byte with the header ``content-length`` = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from faststream.message import StreamMessage, decode_message

from firearrow.client.consumer.handlers import DEAD_LETTER, Delivery
from firearrow.client.message import Message
from firearrow.message import properties as keys_of

CONTENT_TYPE: Final = "content-type"
CONTENT_LENGTH: Final = "content-length"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"
EMPTY_BODY: Final = b"\0"


class RocketMQMessage(StreamMessage[Any]):
    """Message of a handler; ``raw_message`` is the `Delivery`, or a sequence of them for a batch."""

    keeps_order = False

    @property
    def deliveries(self) -> list[Delivery]:
        """Deliveries that can be acknowledged; none for a response."""
        raw = self.raw_message
        return [one for one in (raw if isinstance(raw, Sequence) else [raw]) if isinstance(one, Delivery)]

    async def ack(self) -> None:
        """Mark the message as consumed."""
        if self.committed is None:
            for delivery in self.deliveries:
                delivery.ack()
        await super().ack()

    async def nack(self, level: int = 0) -> None:
        """Redeliver the message, after a delay level of RocketMQ (1 to 18), or by default later each time."""
        if self.committed is None:
            for delivery in self.deliveries:
                await delivery.retry(level=level)
        await super().nack()

    async def reject(self) -> None:
        """Make the message a dead letter of the group. A subscriber in order marks it as consumed, since a dead letter
        would be out of order."""
        if self.committed is None:
            for delivery in self.deliveries:
                if self.keeps_order:
                    delivery.ack()
                else:
                    await delivery.retry(level=DEAD_LETTER)
        await super().reject()


class RocketMQParser:
    """Parser and decoder of messages; ``keeps_order`` says that they come from a subscriber in order."""

    def __init__(self, *, keeps_order: bool = False) -> None:
        self._keeps_order = keeps_order

    async def parse_message(self, message: Message) -> RocketMQMessage:
        """Message of a handler."""
        return self._parsed(message, message, body_of(message))

    async def parse_batch(self, messages: Sequence[Message]) -> RocketMQMessage:
        """Batch of a handler, with ids and headers of its first message; ``batch_headers`` has the headers of all."""
        parsed = self._parsed(messages, messages[0], list(map(body_of, messages)))
        parsed.batch_headers = list(map(headers_of, messages))
        return parsed

    async def decode_message(self, msg: StreamMessage[Any]) -> Any:
        """Body as a value."""
        return decode_message(msg)

    async def decode_batch(self, msg: StreamMessage[Any]) -> list[Any]:
        """Bodies as values."""
        return [decode_message(await self.parse_message(one)) for one in msg.raw_message]

    def _parsed(self, raw: Any, first: Message, body: Any) -> RocketMQMessage:
        headers = headers_of(first)
        parsed = RocketMQMessage(
            raw,
            body,
            headers=headers,
            reply_to=first.properties.get(keys_of.REPLY_TO_CLIENT) or headers.get(REPLY_TO, ""),
            content_type=headers.get(CONTENT_TYPE),
            correlation_id=headers.get(CORRELATION_ID) or first.properties.get(keys_of.CORRELATION_ID),
            message_id=first.message_id,
        )
        parsed.keeps_order = self._keeps_order
        return parsed


def headers_of(message: Message) -> dict[str, str]:
    """Properties that are the application's."""
    return {name: value for name, value in message.properties.items() if name not in keys_of.RESERVED}


def body_of(message: Message) -> bytes:
    """Body as it was published, which may be empty."""
    return b"" if message.properties.get(CONTENT_LENGTH) == "0" else message.body
