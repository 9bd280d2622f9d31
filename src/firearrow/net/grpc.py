"""A gRPC server on asyncio: connections, dispatch by method, back-pressure.

A connection comes from a `net.server.Server`, which recognises HTTP/2 by its first bytes. So remoting and gRPC share
ports, TLS, limits on connections, the budget of memory, and the turns for long work.

All calls of one read are handled in one pass, and their answers leave in one write at the end of the turn: there is no
task, future or lock for a call. A handler gets a `Call` and a message, and returns the answer's message, or None and
answers later (``Call.answer``, ``Call.send`` and ``Call.end``). The handler of a method with a stream of requests is
called for each message; ``Call.ended`` is called after the client's last one.

Back-pressure: while a client leaves more than ``WRITE_BUFFER_BYTES_HIGH`` of answers unread, nothing is read from it.
Data for which the client's HTTP/2 windows have no room counts as unread, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from firearrow.errors import RemoteProtocolError
from firearrow.net.outgoing import Outgoing
from firearrow.wire import grpc
from firearrow.wire.grpc import HEAD, TRAILERS_OK, CallFailed, MessageReader, Status, framed, path_of, timeout_ms
from firearrow.wire.http2 import PREFACE, ErrorCode, Http2, Stream

if TYPE_CHECKING:
    from firearrow.net.server import Server

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES_HIGH: Final = 4 * 1024 * 1024
HELLO_BYTES: Final = 4
HELLO: Final = PREFACE[:HELLO_BYTES]  # as a length of a remoting frame, 1.3 GB

MESSAGE_BYTES_MAX: Final = 130 * 1024 * 1024  # RocketMQ: grpcMaxInboundMessageSize, 32 messages of 4 MiB and 2 MiB


class Call:
    """One call of a client.

    ``fields`` are its header fields, lower case. ``cancelled`` is called once if the client gives the call up or its
    connection ends before the answer; ``ended`` when it has sent its last message.
    """

    __slots__ = ("_peer", "_stream", "cancelled", "ended", "has_begun", "is_over", "method", "reader", "received_ms")

    def __init__(self, peer: GrpcPeer, stream: Stream, method: Method, reader: MessageReader, received_ms: int) -> None:
        self._peer = peer
        self._stream = stream
        self.method = method
        self.reader = reader
        self.received_ms = received_ms
        self.cancelled: Callable[[], None] | None = None
        self.ended: Callable[[], None] | None = None
        self.has_begun = False
        self.is_over = False

    @property
    def peer(self) -> GrpcPeer:
        """The connection."""
        return self._peer

    @property
    def fields(self) -> dict[bytes, bytes]:
        """Header fields by name."""
        return self._stream.fields

    @property
    def timeout_ms(self) -> float | None:
        """Time that the client gives the call, from its arrival."""
        return timeout_ms(self._stream.fields.get(b"grpc-timeout"))

    @property
    def unread_bytes(self) -> int:
        """Bytes of the answer that the client's windows have no room for yet."""
        return self._stream.pending_bytes

    def answer(self, message: bytes) -> None:
        """Send the only message of the answer, and end the call."""
        if not self.is_over:
            self.is_over = True
            self._peer.write(self._peer.http2.answer(self._stream, HEAD, framed(message), TRAILERS_OK))

    def send(self, message: bytes) -> None:
        """Send a message of an answer of several."""
        if not self.is_over:
            self._peer.write(self._begun() + self._peer.http2.send_data(self._stream, framed(message)))

    def end(self) -> None:
        """End an answer of several messages."""
        if not self.is_over:
            self.is_over = True
            self._peer.write(self._begun() + self._peer.http2.end_answer(self._stream, TRAILERS_OK))

    def fail(self, status: Status, message: str) -> None:
        """End the call with another status than OK."""
        if self.is_over:
            return
        self.is_over = True
        http2 = self._peer.http2
        if self.has_begun:
            self._peer.write(http2.end_answer(self._stream, grpc.trailers(status, message)))
        else:
            self._peer.write(http2.refuse(self._stream, grpc.refusal(status, message)))

    def _begun(self) -> bytes:
        if self.has_begun:
            return b""
        self.has_begun = True
        return self._peer.http2.begin_answer(self._stream, HEAD)

    def cancel(self) -> None:
        """Note that the client does not wait for the answer any more (called by the connection)."""
        if not self.is_over:
            self.is_over = True
            if self.cancelled is not None:
                self.cancelled()


Handler = Callable[[Call, bytes], bytes | None]


class Method(NamedTuple):
    """A method that is served; ``takes_stream``: its requests are a stream of messages."""

    name: str
    handler: Handler
    takes_stream: bool = False


class GrpcPeer(asyncio.Protocol):
    """One client connection, a holder of memory for the server's budget."""

    def __init__(self, server: Server, methods: Mapping[bytes, Method], transport: asyncio.Transport) -> None:
        self._server = server
        self._methods = methods
        self._transport: asyncio.Transport | None = transport
        self._outgoing: Outgoing | None = Outgoing(transport, server.departures, server.budget)
        self.http2 = Http2(self.write)
        self.address = "unknown"
        self.host_bytes = bytes(8)
        self.kept_bytes = 0
        self.heard = True
        self.heard_before = 0.0
        self.is_planned = False
        self._paused = False
        self._waits = False
        self.received_ms = 0
        self.attached: Any = None
        """Object of the handlers for this connection; its ``close`` is called at the end."""

    def begin(self, hello: bytes) -> None:
        """Begin with the bytes by which the connection was recognised."""
        self.write(self.http2.begin())
        self.data_received(hello)

    # --- called by asyncio ---

    def data_received(self, data: bytes) -> None:
        """Handle all calls that one read delivered."""
        self.heard = True
        self.received_ms = self._server.now_ms()
        self._take(data)
        if self.http2.held_bytes:
            self._server.budget.took(self, len(data))

    def _take(self, data: bytes) -> None:
        for stream, piece, ends in self.http2.receive(data):
            if piece is None:
                if isinstance(stream.call, Call):
                    stream.call.cancel()
            else:
                self._take_data(stream, piece, ends=ends)
        if self.http2.violation is not None:
            self.close(self.http2.violation)
        elif self.http2.has_more:
            self._plan()

    def _take_data(self, stream: Stream, piece: bytes, *, ends: bool) -> None:
        call = stream.call
        if call is None:
            call = stream.call = self._begun(stream)
            if call is None:
                return
        assert isinstance(call, Call)
        if call.is_over:
            return
        try:
            self._hand_on(call, piece, ends=ends)
        except CallFailed as error:
            call.fail(error.status, str(error))
        except Exception as error:  # the boundary: one bad call must not end a server
            log.error("call failed", extra={"method": call.method.name, "address": self.address}, exc_info=error)
            call.fail(Status.INTERNAL, "the server failed at the call")

    def _hand_on(self, call: Call, piece: bytes, *, ends: bool) -> None:
        handler, takes_stream = call.method.handler, call.method.takes_stream
        messages = call.reader.take(piece, call.fields.get(b"grpc-encoding"))
        if takes_stream:
            for message in messages:
                answer = handler(call, message)
                assert answer is None, "a stream is answered by `send`"
            if ends and not call.is_over and call.ended is not None:
                call.ended()
            return
        if not ends:
            if messages:
                raise CallFailed(Status.INTERNAL, "the request goes on behind its message")
            return
        if len(messages) != 1 or call.reader.held_bytes:
            raise CallFailed(Status.INTERNAL, "the request is not one message")
        answer = handler(call, messages[0])
        if answer is not None:
            call.answer(answer)

    def _begun(self, stream: Stream) -> Call | None:
        try:
            path = path_of(stream.fields)
        except RemoteProtocolError as error:
            http2 = self.http2
            text = f"{error}\n".encode()
            self.write(http2.begin_answer(stream, grpc.NOT_GRPC) + http2.send_data(stream, text))
            self.write(http2.end_answer(stream, grpc.trailers(Status.UNIMPLEMENTED)))
            return None
        method = self._methods.get(path)
        if method is None:
            name = path.decode("ascii", "replace")
            self.write(self.http2.refuse(stream, grpc.refusal(Status.UNIMPLEMENTED, f"there is no method {name}")))
            return None
        return Call(self, stream, method, MessageReader(MESSAGE_BYTES_MAX), self.received_ms)

    def eof_received(self) -> bool:
        """Close: a client that has closed its side reads no answers."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and cancel its calls."""
        self._transport = self._outgoing = None
        for stream in list(self.http2.streams.values()):
            if isinstance(stream.call, Call):
                stream.call.cancel()
        attached, self.attached = self.attached, None
        if attached is not None:
            attached.close()
        self._server.forget(self)

    def detach(self, attached: object) -> None:
        """Forget the object of the handlers, which has ended."""
        if self.attached is attached:
            self.attached = None

    def pause_writing(self) -> None:
        """Read nothing while the client reads nothing."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on with what was read, then read again."""
        self._paused = False
        self._read_on()

    # --- turns ---

    def _plan(self) -> None:
        if self._transport is None or self._paused:
            return
        self._transport.pause_reading()
        if not self.is_planned:
            self.is_planned = True
            self._server.plan(self)

    def go_on(self, began_ms: int) -> None:
        """Handle frames that were left, in a later turn (called by the server)."""
        assert self.is_planned, "each turn was planned"
        self.is_planned = False
        if self._transport is not None and not self._transport.is_closing():
            self.received_ms = began_ms
            self.heard = True
            self._take(b"")
            self._read_on()

    def _read_on(self) -> None:
        if self._transport is None or self._paused or self.is_planned:
            return
        if self.http2.has_more:
            self._plan()
        elif not self._waits:
            self._transport.resume_reading()

    # --- answers ---

    def write(self, frames: bytes) -> None:
        """Write whole frames at the end of the turn; nothing happens once the connection is gone."""
        if frames and self._outgoing is not None:
            self._outgoing.write(frames)

    @property
    def is_open(self) -> bool:
        """Tell whether answers can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self, reason: str) -> None:
        """Close after the written frames have left."""
        if self._transport is not None and not self._transport.is_closing():
            log.warning("connection is closed", extra={"address": self.address, "reason": reason})
            self.leave()

    def leave(self) -> None:
        """Close after the written frames have left; calls that wait are told that the server stops."""
        if self._outgoing is not None:
            self.http2.leave()
            for stream in list(self.http2.streams.values()):
                if isinstance(stream.call, Call):
                    cancelled, stream.call.cancelled = stream.call.cancelled, None
                    stream.call.fail(Status.UNAVAILABLE, "the server stops")
                    if cancelled is not None:
                        cancelled()
        if self._outgoing is not None:
            self._outgoing.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- what it holds, for the budget of the server ---

    @property
    def waits(self) -> bool:
        """Tell whether nothing is read from it because others hold too much, or a call is open: it is not idle then."""
        return self._waits or bool(self.http2.streams)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of requests that are incomplete."""
        return self.http2.held_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes that the requests still lack; HTTP/2 does not tell."""
        return 0

    @property
    def requests_begun(self) -> int:
        """Distinguishes an unfinished request from the next one."""
        return self.http2.last_id

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return 0 if self._outgoing is None else self._outgoing.unread_bytes + self.http2.pending_bytes

    def keep(self, size: int) -> None:
        """Count bytes that handlers keep of its requests: see `Budget.keep`."""
        self._server.budget.keep(self, size)

    def hold(self, *, waits: bool) -> None:
        """Pause reading, or resume it."""
        self._waits = waits
        if not waits:
            self.heard = True
            self._read_on()
        elif self._transport is not None:
            self._transport.pause_reading()

    def drop(self, reason: str) -> None:
        """Close the connection and release everything that it holds."""
        if self._transport is None or self._outgoing is None:
            return
        log.warning("connection is closed", extra={"address": self.address, "reason": reason})
        self.http2.give_up(reason)
        self._outgoing.close()
        if self.unread_bytes:
            self._transport.abort()

    def reset(self, call: Call) -> None:
        """End a call without an answer."""
        self.http2.reset(call._stream, ErrorCode.CANCEL)
