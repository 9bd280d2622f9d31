"""Popped messages of another broker, that come again here.

A slave that acts for its master sends what is due in its timer to another master: checkpoints of
pops among it. So a revive queue may have one that names another broker. Its messages are read from
there, by a pull, and put into the retry topic here.

Who wants a message does not wait: `RemoteReads.content` begins to read it and raises `PutLater`;
when it is there, or can't be had, ``arrived`` is called, and who asks again gets it.

Source: upstream ``EscapeBridge#getMessageFromRemote``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from firearrow.broker.access.control import access_of
from firearrow.broker.context import BrokerContext
from firearrow.errors import FirearrowError, MessageError, PutLater
from firearrow.message.record import Content, decode_content
from firearrow.net.client import Client
from firearrow.net.tasks import Tasks
from firearrow.wire.codes import RequestCode, ResponseCode

PULL_SECONDS_MAX: Final = 10.0  # Java: EscapeBridge#DEFAULT_PULL_TIMEOUT_MILLIS
UNDER_WAY_MAX: Final = 64
"""Messages that are being read, or that nobody has asked for again."""
_SUBSCRIPTION: Final = 4


class Place(NamedTuple):
    """Place of a message."""

    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int


class RemoteReads:
    """Reads messages of other brokers."""

    def __init__(self, context: BrokerContext, arrived: Callable[[], object]) -> None:
        self._settings = context.settings
        self._routes = context.routes
        self._arrived = arrived
        self._client = Client(access=access_of(context.settings.broker))
        self._found: dict[Place, Content | MessageError | None] = {}
        self._under_way: set[Place] = set()
        self._tasks = Tasks()

    async def stop(self) -> None:
        """Read nothing more."""
        await self._tasks.close()
        await self._client.close()

    def content(self, place: Place) -> Content | None:
        """Give a message; None if it is gone. Raises PutLater as long as it is being read, and
        MessageError if it can't be had now."""
        if place not in self._found:
            if place not in self._under_way and len(self._under_way) < UNDER_WAY_MAX:
                self._under_way.add(place)
                self._tasks.begin(self._read(place), "a message of another broker")
            raise PutLater(f"the message is read from {place.broker_name}")
        found = self._found.pop(place)
        if isinstance(found, MessageError):
            raise found
        return found

    async def _read(self, place: Place) -> None:
        found: Content | MessageError | None = MessageError("it was not read", "broker")
        try:
            found = await self._pulled(place)
        except (OSError, FirearrowError) as error:
            found = MessageError(f"it can't be read from {place.broker_name}: {error}", "broker")
        finally:
            self._under_way.discard(place)
            if len(self._found) >= UNDER_WAY_MAX:
                del self._found[next(iter(self._found))]
            self._found[place] = found
        asyncio.get_running_loop().call_soon(self._arrived)

    async def _pulled(self, place: Place) -> Content | None:
        route = await self._routes.route(place.topic)
        brokers = [] if route is None else route.broker_datas
        addresses = [it.broker_addrs for it in brokers if it.broker_name == place.broker_name]
        if not addresses or 0 not in addresses[0]:
            raise MessageError(f"no name server knows where {place.topic} is there", "broker")
        broker = self._settings.broker
        answer = await self._client.answer(
            addresses[0][0],
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": f"InnerConsumerGroup_{broker.broker_name}_{broker.broker_id}",
                "topic": place.topic,
                "queueId": place.queue_id,
                "queueOffset": place.queue_offset,
                "maxMsgNums": 1,
                "sysFlag": _SUBSCRIPTION,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": "*",
                "subVersion": 0,
                "expressionType": "TAG",
            },
            timeout_seconds=PULL_SECONDS_MAX,
        )
        if answer.code == ResponseCode.SUCCESS:
            return decode_content(bytes(answer.body))
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            return None
        raise MessageError(f"it is answered with {answer.code}: {answer.remark}", "broker")
