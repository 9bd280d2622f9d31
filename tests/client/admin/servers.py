"""A server that is a name server and a broker at once, and answers administrators by a table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from firearrow.client.admin import Admin
from firearrow.clock import SystemClock
from firearrow.net.server import Answer, Handler, Peer, Server
from firearrow.wire import fastjson
from firearrow.wire.bodies import BrokerData, QueueData, Route
from firearrow.wire.command import Response
from firearrow.wire.frame import AnyCommand
from firearrow.wire.signature import Credentials

Reply = msgspec.Struct | Response | None
"""A body, a whole answer, or none at all."""


class Answers:
    """Answers to each code, as a body or as a whole, and the requests so far."""

    def __init__(self, replies: Mapping[int, Reply]) -> None:
        self.replies = dict(replies)
        self.next_reply: Callable[[int], Reply] = lambda code: self.replies[code]
        self.asked: list[AnyCommand] = []
        self.address = ""

    def handlers(self) -> dict[int, Handler]:
        return dict.fromkeys(self.replies, self._answer)

    def _answer(self, peer: Peer, request: AnyCommand) -> Answer:
        self.asked.append(request)
        reply = self.next_reply(request.code)
        if reply is None or isinstance(reply, Response):
            return reply
        return Response(body=fastjson.dumps(reply))


def route_to(address: str) -> Route:
    """The route of a topic with two queues on one broker."""
    return Route([QueueData("a", 2, 2, 6)], [BrokerData("C", "a", {0: address})])


@asynccontextmanager
async def administering(
    replies: Mapping[int, Reply], credentials: Credentials | None = None
) -> AsyncIterator[tuple[Admin, Answers]]:
    """Serve the replies for a block; a request for a route gets a route to this server."""
    answers = Answers(replies)
    server = Server(answers.handlers(), SystemClock())
    answers.address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        async with Admin.of([answers.address], credentials) as admin:
            yield admin, answers
    finally:
        await server.stop()


def run(scene: Callable[[], Awaitable[Any]]) -> None:
    """Run a coroutine to its end."""

    async def main() -> None:
        async with asyncio.timeout(10):
            await scene()

    asyncio.run(main())
