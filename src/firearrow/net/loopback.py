"""Connection to a server in the same process, without a socket.

A `Loopback` is a client's end. Its requests are commands, not bytes. The server sees a `Peer` like any other: with an
address, turns, limits and a place in the tables of clients. So whatever a server decides about connections holds here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from firearrow.net.replies import Reply
from firearrow.net.server import FINISHED, Peer, Server, WaitEnded
from firearrow.wire.calls import OPAQUE_MAX
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Command, Placed, Response, with_text
from firearrow.wire.frame import NO_HOT_DECODERS, AnyCommand, Connection, encode_response

CLOSED: Final = "the server has closed the connection"
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)


class _LocalPeer(Peer):
    """The server's end."""

    __slots__ = ()

    def ask(self, request: AnyCommand) -> Placed | None:
        """Handle a request, and return the place of a message that is stored. Other answers follow by the transport.

        A frame for each answer, and its reader, took a fifth of the time of a send.
        """
        if request.code != _SEND or self._backlog or self.gathered_code:
            self.requests_received([request])
            return None
        self.heard = True
        self.received_ms = self._server.now_ms()
        self.takes_objects = True
        try:
            answer = self._server.handlers[_SEND](self, request)
        except Exception as error:  # the boundary, as in `Peer`
            answer = self._refusal(request, error)
        finally:
            self.takes_objects = False
        assert isinstance(answer, FINISHED), "no send is answered in steps"
        if type(answer) is Placed:
            if self._server.meter is not None:
                self._server.meter.count(_SEND, 1, self.received_ms)
            return answer
        self._send_all([self._encoded(request, answer)])
        if self._outgoing is not None:
            self._outgoing.leave()
        return None


class Loopback(asyncio.Transport):
    """The client's end, and the transport of the server's `Peer`.

    ``address`` is that of the client for whom the requests are made. ``asked`` gets the requests of the server; it
    answers by `answer`. ``lost`` is called once, when the connection has ended. Frames of the server may have any
    length: it is the same process.
    """

    __slots__ = (
        *("_asked", "_is_closing", "_loop", "_lost", "_opaque", "_replies", "_wait_ended", "_wants_text", "_wire"),
        *("peer",),
    )

    def __init__(
        self, server: Server, address: tuple[str, int], asked: Callable[[AnyCommand], None], lost: Callable[[], None]
    ) -> None:
        super().__init__({"peername": address})
        self._loop = server.loop
        self._wants_text = not server.hot_decoders
        self._wait_ended = server.wait_ended
        self._wire = Connection(2**31, NO_HOT_DECODERS)
        self._asked = asked
        self._lost = lost
        self._replies: dict[int, Reply[AnyCommand]] = {}
        self._opaque = 0
        self._is_closing = False
        self.peer: Final = _LocalPeer(server, is_loopback=True)
        self.peer.connection_made(self)

    # --- the client's side ---

    def call(self, request: AnyCommand) -> Reply[AnyCommand]:
        """Send a request; the reply is the answer, with any code, or a ConnectionError.

        The ``ext`` of the answer is a `Placed` if a message is stored at once.
        """
        reply: Reply[AnyCommand] = Reply()
        if self._is_closing:
            reply.set_exception(ConnectionError(CLOSED))
            return reply
        opaque = self._opaque % OPAQUE_MAX + 1
        self._opaque = request.opaque = opaque
        self._replies[opaque] = reply
        if self._wants_text:
            with_text(request)
        placed = self.peer.ask(request)
        if placed is not None:
            del self._replies[opaque]
            reply.set_result(Command(0, placed))
        return reply

    def end_wait(self, request: AnyCommand) -> None:
        """Let a request that waits for messages be answered now, without any. Another request is answered as before."""
        if request.opaque in self._replies:
            self._wait_ended(WaitEnded(self.peer, request))

    def pause(self) -> None:
        """Note that the client does not read: the server wakes requests of others first."""
        self.peer.is_slow = True

    def resume(self) -> None:
        """Note that the client reads again."""
        self.peer.is_slow = False

    def tell(self, request: AnyCommand) -> None:
        """Send a one-way request."""
        if not self._is_closing:
            self.peer.requests_received([request])

    def answer(self, request: AnyCommand, response: Response) -> None:
        """Answer a request of the server."""
        if not self._is_closing:
            self.peer.data_received(encode_response(response, request.opaque, request.binary))

    # --- the transport, called by the server ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Deliver answers and requests of the server."""
        for command in self._wire.receive(bytes(data)):
            if not command.is_response:
                self._asked(command)
                continue
            reply = self._replies.pop(command.opaque, None)
            if reply is not None:
                reply.set_result(command)
        assert self._wire.violation is None, "the server is this process"

    def is_closing(self) -> bool:
        """Tell whether the connection is closed."""
        return self._is_closing

    def close(self) -> None:
        """Close, from either side."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._end)

    def abort(self) -> None:
        """Close."""
        self.close()

    def _end(self) -> None:
        self.peer.connection_lost(None)
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply.set_exception(ConnectionError(CLOSED))
        self._lost()

    def pause_reading(self) -> None:
        """Do nothing: the server keeps the requests that it can't handle yet."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def get_write_buffer_size(self) -> int:
        """Bytes that the client has not taken: none."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no buffer."""

    def get_protocol(self) -> Any:
        """The server's end."""
        return self.peer
