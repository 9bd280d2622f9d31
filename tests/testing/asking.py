"""Producers and consumers of an embedded cluster, as raw requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from firearrow.errors import NotFound
from firearrow.message.model import MessageView
from firearrow.message.record import iter_records
from firearrow.net.client import Client
from firearrow.testing.broker import EmbeddedBroker
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Command, FieldValue
from tests.broker.serving import pull_fields, send_fields
from tests.net.rawclient import RawClient

LEVEL_OF_TWO_HOURS = 18


def send(broker: EmbeddedBroker, topic: str = "T", body: bytes = b"body") -> None:
    """Send a message, without an event loop."""
    with closing(RawClient()) as client:
        client.call(broker.address, RequestCode.SEND_MESSAGE_V2, send_fields(topic), body)


def damage(store: Path) -> None:
    """Change a byte in the body of the first message, which is ``body``."""
    (file,) = (store / "commitlog").iterdir()
    data = bytearray(file.read_bytes())
    data[data.index(b"body")] ^= 1
    file.write_bytes(data)


class Asking:
    """A client of one broker; it is closed by ``async with``."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._address = broker.address
        self._client = Client()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def send(self, body: bytes = b"body", topic: str = "T", queue_id: int = 0) -> Command[Any]:
        """Send a message."""
        fields = send_fields(topic, queue_id)
        return await self._client.call(self._address, RequestCode.SEND_MESSAGE_V2, fields, body, timeout_seconds=60)

    async def send_all(self, bodies: Iterable[bytes], topic: str = "T") -> None:
        """Send messages at once."""
        await asyncio.gather(*(self.send(body, topic) for body in bodies))

    async def pull_all(self, topic: str = "T", group: str = "g") -> list[MessageView]:
        """All that is in queue 0."""
        found: list[MessageView] = []
        while True:
            fields = pull_fields(len(found), topic=topic, consumerGroup=group)
            try:
                answer = await self._client.call(self._address, RequestCode.PULL_MESSAGE, fields)
            except NotFound:  # nothing new, or no such topic
                return found
            found += iter_records(answer.body)

    async def wait(self, topic: str, queue_offset: int) -> None:
        """Wait for the next message of queue 0; half a minute at most."""
        fields = pull_fields(queue_offset, topic=topic, sysFlag=6, suspendTimeoutMillis=30_000)
        await self._client.call(self._address, RequestCode.PULL_MESSAGE, fields, timeout_seconds=60)

    async def send_back(self, view: MessageView, level: int, group: str = "g") -> None:
        """Say that a group failed to consume a message, and when it wants it again."""
        fields: dict[str, FieldValue] = {
            "offset": view.physical_offset, "group": group, "unitMode": False,
            "delayLevel": level, "originMsgId": view.offset_message_id,
            "originTopic": view.topic, "maxReconsumeTimes": 16,
        }  # fmt: skip
        await self._client.call(self._address, RequestCode.CONSUMER_SEND_MSG_BACK, fields, timeout_seconds=60)
