"""Calls that wait for messages at a broker, until there are some, the client gives up, or the proxy stops.

A broker in the same process drops a wait that nobody wants any more. Otherwise a client that receives and cancels in a
loop would leave a waiting request for each of its calls, and each would make messages invisible. A broker elsewhere
drops the waits of a proxy that stops when their connection ends.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from firearrow.net.grpc import Call
from firearrow.net.replies import Reply
from firearrow.proxy.brokers import Link
from firearrow.proxy.calls import Context
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Command
from firearrow.wire.frame import AnyCommand

END_SECONDS: Final = 0.1  # for brokers to end the waits of a proxy that stops


class _Wait(NamedTuple):
    """A pending request and its answer to come."""

    link: Link
    request: AnyCommand
    answer: Reply[AnyCommand]


class Waits:
    """Pending requests for messages, by their calls."""

    def __init__(self) -> None:
        self._pending: dict[Call, _Wait] = {}

    def __len__(self) -> int:
        return len(self._pending)

    async def answer(self, context: Context, broker: str, request: AnyCommand, timeout_ms: float) -> AnyCommand:
        """Send a request and return its answer, which comes at once if the client cancels the call and the broker can
        end the wait.
        """
        call, link = context.call, context.link
        reply = link.call(broker, request, timeout_ms)
        if reply.done():
            return await reply
        self._pending[call] = _Wait(link, request, reply)
        call.cancelled = lambda: link.end_wait(request)
        try:
            return await reply
        finally:
            del self._pending[call]
            call.cancelled = None

    def end(self) -> None:
        """End all waits, since the proxy stops: those calls are answered without messages."""
        for wait in list(self._pending.values()):
            wait.link.end_wait(wait.request)
        if self._pending:
            asyncio.get_running_loop().call_later(END_SECONDS, self._answer)

    def _answer(self) -> None:
        for wait in list(self._pending.values()):
            wait.answer.replace(Command(ResponseCode.POLLING_TIMEOUT, {}))
