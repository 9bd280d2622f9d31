"""Calls that wait for messages at a broker, until there are some, the client gives up, or the proxy stops.

A broker in the same process drops a wait that nobody wants any more. Otherwise a client that receives and cancels in a
loop would leave a waiting request for each of its calls, and each would make messages invisible.
"""

from __future__ import annotations

from firearrow.net.grpc import Call
from firearrow.proxy.brokers import Link
from firearrow.proxy.calls import Context
from firearrow.wire.frame import AnyCommand


class Waits:
    """Pending requests for messages, by their calls."""

    def __init__(self) -> None:
        self._pending: dict[Call, tuple[Link, AnyCommand]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    async def answer(self, context: Context, broker: str, request: AnyCommand, timeout_ms: float) -> AnyCommand:
        """Send a request and return its answer, which comes at once if the client cancels the call."""
        call, link = context.call, context.link
        reply = link.call(broker, request, timeout_ms)
        if reply.done():
            return await reply
        self._pending[call] = link, request
        call.cancelled = lambda: link.end_wait(request)
        try:
            return await reply
        finally:
            del self._pending[call]
            call.cancelled = None

    def end(self) -> None:
        """End all waits: those calls are answered without messages."""
        for link, request in list(self._pending.values()):
            link.end_wait(request)
