"""A gRPC server on asyncio: connections, dispatch by method, back-pressure.

A connection comes from a `net.server.Server`, which recognises HTTP/2 by its first bytes. So remoting and gRPC share
ports, TLS, limits on connections, the budget of memory, and the turns for long work.

All calls of one read are handled in one pass, and their answers leave in one write at the end of the turn: there is no
task, future or lock for a call. A handler gets a `Call` and a message, and returns the answer's message, or None and
answers later (``Call.answer``, ``Call.send`` and ``Call.end``). The handler of a method with a stream of requests is
called for each message; ``Call.ended`` is called after the client's last one.

A client that is silent for too long is closed, or asked by a PING first if calls are open: they may wait for days. One
that makes no calls for too long is told to leave by GOAWAY, then closed.

Back-pressure: while a client leaves more than ``UNREAD_BYTES_HIGH`` of answers in its socket unread, nothing is read
from it. Answers that find no room in the client's HTTP/2 windows are unread, too. With as many of them, frames are
read, since they may open the windows, but their calls wait, and the windows for the client's data stay as they are. A
turn of the loop has some milliseconds for one connection; other calls of a read wait for a later turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from firearrow.errors import RemoteProtocolError
from firearrow.logs import Log
from firearrow.net.budget import Budget
from firearrow.net.outgoing import Departures, Outgoing
from firearrow.net.turns import TURN_CHECK_REPLIES, Turns
from firearrow.wire import grpc
from firearrow.wire.grpc import (
    HEAD,
    TRAILERS_OK,
    CallFailed,
    MessageReader,
    Status,
    framed,
    path_of,
    timeout_ms,
    whole_message,
)
from firearrow.wire.http2 import CONNECTION_WINDOW_BYTES, PREFACE, STREAMS_MAX, Arrived, ErrorCode, Http2, Stream

log: Final = Log(__name__)

UNREAD_BYTES_HIGH: Final = 4 * 1024 * 1024
DRAIN_LOOK_SECONDS: Final = 0.02  # between two looks for pending calls
HELLO_BYTES: Final = 4
HELLO: Final = PREFACE[:HELLO_BYTES]  # as a length of a remoting frame, 1.3 GB
PIECE_BYTES: Final = 128  # of memory for a waiting piece of data, beside the data
# Of waiting data: the windows allow that much in frames of a usual size.
BACKLOG_BYTES_MAX: Final = 2 * CONNECTION_WINDOW_BYTES + STREAMS_MAX * PIECE_BYTES

MESSAGE_BYTES_MAX: Final = 130 * 1024 * 1024  # RocketMQ: grpcMaxInboundMessageSize, 32 messages of 4 MiB and 2 MiB


class GrpcLimits(NamedTuple):
    """Limits of a connection: the size of a message, the count of pending calls, the time without any call.

    Without ``idle_seconds_max`` the time is the server's.
    """

    message_bytes_max: int = MESSAGE_BYTES_MAX
    calls_max: int = STREAMS_MAX
    idle_seconds_max: float | None = None


class _Partial:
    """Data of a request that has not come whole."""

    __slots__ = ("counted_bytes", "reader", "request")

    def __init__(self, message_bytes_max: int) -> None:
        self.reader = MessageReader(message_bytes_max)
        self.request: bytes | None = None  # the only message, until the client ends its side
        self.counted_bytes = 0  # by the connection

    @property
    def held_bytes(self) -> int:
        """Bytes of all held data."""
        return self.reader.held_bytes + len(self.request or b"")


class Call:
    """One call of a client.

    ``fields`` are its header fields, lower case. ``cancelled`` is called once if the client gives the call up or its
    connection ends before the answer; ``ended`` when it has sent its last message; ``lost`` if the client goes after
    the answer has ended, but before it has opened its windows for the whole answer.
    """

    __slots__ = (
        *("_partial", "_peer", "_stream"),
        *("cancelled", "ended", "has_begun", "is_over", "lost", "method", "received_ms"),
    )

    def __init__(self, peer: GrpcPeer, stream: Stream, method: Method, received_ms: int) -> None:
        self._peer = peer
        self._stream = stream
        self._partial: _Partial | None = None  # None while no data but a whole message came
        self.method = method
        self.received_ms = received_ms
        self.cancelled: Callable[[], None] | None = None
        self.ended: Callable[[], None] | None = None
        self.lost: Callable[[], None] | None = None
        self.has_begun: bool = False
        self.is_over: bool = False

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
        self._answer(framed(message))

    def answer_all(self, messages: Iterable[bytes]) -> None:
        """Send all messages of an answer of several at once, before which none was sent, and end the call."""
        assert not self.has_begun, "the first message begins the answer"
        self._answer(b"".join(map(framed, messages)))

    def _answer(self, data: bytes) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self._partial is not None:
            self._forget_partial()
        peer, stream = self._peer, self._stream
        peer.write(peer.http2.answer(stream, HEAD, data, TRAILERS_OK))
        if stream.pending_bytes:
            peer.left_unread(len(data))

    def send(self, message: bytes) -> None:
        """Send a message of an answer of several."""
        if not self.is_over:
            self._peer.write(self._begun() + self._peer.http2.send_data(self._stream, framed(message)))
            if self._stream.pending_bytes:
                self._peer.left_unread(len(message))

    def end(self) -> None:
        """End an answer of several messages."""
        if not self.is_over:
            self._end()
            self._peer.write(self._begun() + self._peer.http2.end_answer(self._stream, TRAILERS_OK))

    def fail(self, status: Status, message: str) -> None:
        """End the call with another status than OK."""
        if self.is_over:
            return
        self._end()
        http2 = self._peer.http2
        if self.has_begun:
            self._peer.write(http2.end_answer(self._stream, grpc.trailers(status, message)))
        else:
            self._peer.write(http2.refuse(self._stream, grpc.refusal(status, message)))

    def reset(self) -> None:
        """End the call without an answer."""
        if not self.is_over:
            self._end()
            self._peer.reset(self._stream)

    def _begun(self) -> bytes:
        if self.has_begun:
            return b""
        self.has_begun = True
        return self._peer.http2.begin_answer(self._stream, HEAD)

    def _end(self) -> None:
        self.is_over = True
        if self._partial is not None:
            self._forget_partial()

    def _forget_partial(self) -> None:
        assert self._partial is not None
        self._peer.partial_bytes -= self._partial.counted_bytes
        self._partial = None

    def cancel(self) -> None:
        """Note that the client does not wait for the answer any more (called by the connection)."""
        if self.is_over:  # but the client has not taken all of it
            lost, self.lost = self.lost, None
            self._notify(lost)
            return
        self._end()
        self._notify(self.cancelled)

    def leave(self) -> None:
        """End the call since the server stops (called by the connection)."""
        if self.is_over:
            return
        self.fail(Status.UNAVAILABLE, "the server stops")
        self._notify(self.cancelled)

    def _notify(self, listener: Callable[[], None] | None) -> None:
        if listener is None:
            return
        try:
            listener()
        except Exception as error:  # the boundary: other calls of the connection end, too
            log.error("call failed", extra={"method": self.method.name, "address": self._peer.address}, exc_info=error)

    def take(self, piece: bytes, *, ends: bool) -> None:
        """Hand the messages in a piece of data to the handler; CallFailed if the request is wrong."""
        method = self.method
        if ends and self._partial is None and not method.takes_stream:
            message = whole_message(piece)
            if message is not None:
                answer = method.handler(self, message)
                if answer is not None:
                    self.answer(answer)
                return
        partial = self._partial
        if partial is None:
            partial = self._partial = _Partial(self._peer.message_bytes_max)
        messages = partial.reader.take(piece, self.fields.get(b"grpc-encoding"))
        if method.takes_stream:
            self._count(partial)
            self._hand_on(messages, is_partial=partial.held_bytes > 0, ends=ends)
            return
        if messages and partial.request is None:
            partial.request = messages.pop(0)
        self._count(partial)
        if messages or (partial.request is not None and partial.reader.held_bytes):
            raise CallFailed(Status.INTERNAL, "the request goes on behind its message")
        if ends:
            if partial.request is None:
                raise CallFailed(Status.INTERNAL, "the request ends before its message")
            answer = method.handler(self, partial.request)
            if answer is not None:
                self.answer(answer)

    def _hand_on(self, messages: list[bytes], *, is_partial: bool, ends: bool) -> None:
        """Hand messages of a stream of requests to the handler, and the end of the stream."""
        for message in messages:
            answer = self.method.handler(self, message)
            assert answer is None, "a stream is answered by `send`"
            if self.is_over:
                return
        if ends and is_partial:
            raise CallFailed(Status.INTERNAL, "the request ends within a message")
        if ends and self.ended is not None:
            self.ended()

    def _count(self, partial: _Partial) -> None:
        """Count the bytes of the request that the connection holds."""
        held_bytes = partial.held_bytes
        self._peer.partial_bytes += held_bytes - partial.counted_bytes
        partial.counted_bytes = held_bytes


Handler = Callable[[Call, bytes], bytes | None]


class Method(NamedTuple):
    """A method that is served; ``takes_stream``: its requests are a stream of messages."""

    name: str
    handler: Handler
    takes_stream: bool = False


class Host(Protocol):
    """The server as its connections see it (``net.server.Server`` is one)."""

    budget: Budget
    departures: Departures
    turns: Turns
    now_ms: Callable[[], int]

    def forget(self, peer: GrpcPeer) -> None:
        """Remove a connection that has ended."""
        ...


async def drain(peers: Collection[GrpcPeer], seconds: float) -> None:
    """Wait until retired connections have no pending calls, at most for a time."""
    for _ in range(int(seconds / DRAIN_LOOK_SECONDS)):
        if not any(peer.is_busy for peer in peers):
            break
        await asyncio.sleep(DRAIN_LOOK_SECONDS)


_REFUSED: Final = object()
"""In place of the call of a stream that no handler gets."""


class GrpcPeer(asyncio.Protocol):
    """One client connection, a holder of memory for the server's budget."""

    __slots__ = (
        *("_backlog", "_backlog_bytes", "_called_before", "_host", "_idle_since", "_is_dropped", "_is_leaving"),
        *("_methods", "_outgoing", "_own_bytes", "_paused", "_probed_before", "_transport", "_waits", "_was_full"),
        *("address", "attached", "heard", "heard_before", "host_bytes", "http2", "is_planned", "message_bytes_max"),
        *("named", "partial_bytes", "received_ms"),
    )

    def __init__(
        self, host: Host, methods: Mapping[bytes, Method], limits: GrpcLimits, transport: asyncio.Transport
    ) -> None:
        self._host = host
        self._methods = methods
        self._transport: asyncio.Transport | None = transport
        self._outgoing: Outgoing | None = Outgoing(transport, host.departures, host.budget)
        self.http2: Final = Http2(self.write, limits.calls_max)
        self.message_bytes_max: Final = limits.message_bytes_max
        self.address = "unknown"
        self.host_bytes: bytes = bytes(8)
        self.heard: bool = True
        self.heard_before: float = 0.0
        self._probed_before = -1.0  # ``heard_before`` at the last probe
        self._called_before = 0  # number of the last call at the last sweep for idle connections
        self._idle_since = 0.0
        self.partial_bytes = 0
        """Bytes of unfinished messages; calls change it."""
        self._own_bytes = 0
        self._backlog: list[Arrived] = []  # data of calls that wait
        self._backlog_bytes = 0
        self.is_planned: bool = False
        self._paused = False
        self._waits = False
        self._is_leaving = False
        self._is_dropped = False
        self.received_ms: int = 0
        self.attached: Any = None
        """Object of the handlers for this connection. Its ``pause`` is called when the client leaves too much unread,
        ``resume`` when it has caught up, ``close`` at the end.
        """
        self.named: tuple[bytes, str] | None = None
        """Name of the client by the handlers, with the header field that has named it."""
        self._was_full = False

    def begin(self, hello: bytes) -> None:
        """Begin with the connection's first bytes, which have shown that it is HTTP/2."""
        self.write(self.http2.begin())
        self.data_received(hello)

    # --- called by asyncio ---

    def data_received(self, data: bytes) -> None:
        """Handle all calls that one read delivered."""
        self.heard = True
        self.received_ms = self._host.now_ms()
        self._take(data)
        if self.http2.streams or self.http2.held_bytes:
            self._host.budget.took(self, len(data))

    def _take(self, data: bytes) -> None:
        http2 = self.http2
        arrived = http2.receive(data)
        if arrived or self._backlog:
            self._handle(arrived)
        if http2.violation is not None:
            self.close(http2.violation)
            return
        if self._was_full:
            self._note_reading()
        if self._is_leaving:
            self._leave_if_done()
        if http2.has_more:
            self._plan()

    @property
    def _is_full(self) -> bool:
        return self._paused or self.http2.pending_bytes > UNREAD_BYTES_HIGH

    def _handle(self, arrived: list[Arrived]) -> None:
        if self._backlog or self._is_full:
            self._queue(arrived)
            if self._is_full:
                self.http2.hold(waits=bool(self._backlog))
                return
            arrived, self._backlog = self._backlog, []
            self._backlog_bytes = 0
        http2, turns = self.http2, self._host.turns
        streams = http2.streams
        for count, (stream, piece, ends) in enumerate(arrived, 1):
            if piece is None:
                if isinstance(stream.call, Call):
                    stream.call.cancel()
            elif streams.get(stream.id) is stream:  # otherwise it is cancelled, or answered already
                self._take_data(stream, piece, ends=ends)
                if (
                    self._paused
                    or http2.pending_bytes > UNREAD_BYTES_HIGH
                    or (not count % TURN_CHECK_REPLIES and turns.is_over(self.received_ms))
                ):
                    self._queue(arrived[count:])
                    break
        http2.hold(waits=bool(self._backlog))
        if self._backlog and not self._is_full:
            self._plan()

    def _queue(self, arrived: list[Arrived]) -> None:
        for it in arrived:
            stream, piece, _ = it
            if piece is not None:
                self._backlog.append(it)
                self._backlog_bytes += len(piece) + PIECE_BYTES
            elif isinstance(stream.call, Call):
                stream.call.cancel()
        if self._backlog_bytes > BACKLOG_BYTES_MAX:
            self.http2.give_up(f"more than {BACKLOG_BYTES_MAX} bytes wait until it reads its answers")

    def _take_data(self, stream: Stream, piece: bytes, *, ends: bool) -> None:
        call = stream.call
        if call is None:
            call = stream.call = self._begun(stream) or _REFUSED
        if not isinstance(call, Call) or call.is_over:
            return
        try:
            call.take(piece, ends=ends)
        except CallFailed as error:
            call.fail(error.status, str(error))
        except Exception as error:  # the boundary: one bad call must not end a server
            log.error("call failed", extra={"method": call.method.name, "address": self.address}, exc_info=error)
            call.fail(Status.INTERNAL, "the server failed at the call")

    def _begun(self, stream: Stream) -> Call | None:
        first = stream.head.first or stream.head
        method = first.meaning  # of header fields that came before, see `hpack.Decoder`
        if not isinstance(method, Method):
            method = first.meaning = self._method(stream)
            if method is None:
                return None
        stream.ends_itself = method.takes_stream
        return Call(self, stream, method, self.received_ms)

    def _method(self, stream: Stream) -> Method | None:
        """Find the method of a call, or refuse the call."""
        http2 = self.http2
        try:
            path = path_of(stream.fields)
        except RemoteProtocolError as error:
            text = f"{error}\n".encode()
            self.write(http2.begin_answer(stream, grpc.NOT_GRPC) + http2.send_data(stream, text))
            self.write(http2.end_answer(stream, grpc.trailers(Status.UNIMPLEMENTED)))
            return None
        method = self._methods.get(path)
        if method is None:
            name = path.decode("ascii", "replace")
            self.write(http2.refuse(stream, grpc.refusal(Status.UNIMPLEMENTED, f"there is no method {name}")))
        return method

    def eof_received(self) -> bool:
        """Close after the answers of this turn: a client that has closed its side waits for no other."""
        self._host.departures.leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and cancel its calls."""
        self._transport = self._outgoing = None
        self._host.forget(self)
        self._cancel_all()

    def _cancel_all(self) -> None:
        self._backlog.clear()
        self._backlog_bytes = 0
        for stream in list(self.http2.streams.values()):
            if isinstance(stream.call, Call):
                stream.call.cancel()
        attached, self.attached = self.attached, None
        if attached is not None:
            attached.close()

    def detach(self, attached: object) -> None:
        """Forget the object of the handlers, which has ended."""
        if self.attached is attached:
            self.attached = None

    @property
    def reads(self) -> bool:
        """Tell whether the client takes its answers at present."""
        return not self._is_full and self.is_open

    def _note_reading(self) -> None:
        """Tell the handlers' object of a client that stops reading, or begins again."""
        is_full = self._is_full
        if is_full != self._was_full:
            self._was_full = is_full
            if self.attached is not None:
                if is_full:
                    self.attached.pause()
                else:
                    self.attached.resume()

    def pause_writing(self) -> None:
        """Read nothing while the client reads nothing."""
        self._paused = True
        self._note_reading()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on with the bytes already read, then read again."""
        self._paused = False
        self._note_reading()
        self._read_on()

    # --- turns ---

    def _plan(self) -> None:
        if self._transport is None or self._transport.is_closing() or self._paused:
            return
        self._transport.pause_reading()
        if not self.is_planned:
            self.is_planned = True
            self._host.turns.plan(self)

    def go_on(self, began_ms: int) -> None:
        """Handle frames and calls that were left, in a later turn (called by the server)."""
        assert self.is_planned, "each turn was planned"
        self.is_planned = False
        if self.is_open and not self._paused:
            self.received_ms = began_ms
            self.heard = True
            self._take(b"")
            self._read_on()

    def _read_on(self) -> None:
        if self._transport is None or self._paused or self.is_planned:
            return
        if self.http2.has_more or (self._backlog and not self._is_full):
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

    def left_unread(self, size: int) -> None:
        """Count bytes of an answer that find no room in the client's windows."""
        self._host.budget.gave(size)
        self._note_reading()

    def close(self, reason: str) -> None:
        """Close after the written frames have left; a second call closes at once."""
        if self._transport is None or self._outgoing is None:
            return
        if self._transport.is_closing():
            self._transport.abort()
            return
        log.warning("connection is closed", extra={"address": self.address, "reason": reason})
        self._cancel_all()
        self.http2.leave()
        self._outgoing.close()

    def retire(self) -> None:
        """Tell the client to make its further calls elsewhere; those that came are answered. The client closes then.

        Streams of requests stay open: Node.js's client may crash when one fails while it shuts down.
        """
        self.http2.leave()

    @property
    def is_busy(self) -> bool:
        """Tell whether a whole request still waits for its answer. A stream of requests is none."""
        calls = [it.call for it in self.http2.streams.values() if it.has_ended and isinstance(it.call, Call)]
        return not all(call.is_over or call.method.takes_stream for call in calls)

    def sweep(self, now: float, idle_seconds_max: float) -> None:
        """Retire the connection if it has had no call for a time; the next sweep closes it, the one after cuts it."""
        if not self._idle_since or self.http2.streams or self._waits or self._called_before != self.http2.last_id:
            self._called_before, self._idle_since = self.http2.last_id, now
        elif self._idle_since + idle_seconds_max <= now:
            self._close_idle()

    def _close_idle(self) -> None:
        if self._transport is not None and self._transport.is_closing():
            self._transport.abort()
        elif self.http2.is_leaving:
            self.leave()
        else:
            self.retire()

    def leave(self) -> None:
        """Refuse the calls that wait, since the server stops, and close after all frames have left.

        The server itself limits the time that a client has to take them.
        """
        if self._outgoing is None or self._is_leaving:
            return
        self._is_leaving = True
        self.http2.leave()
        streams = list(self.http2.streams.values())
        for stream in streams:
            if isinstance(stream.call, Call):
                stream.call.leave()
            elif stream.call is None:
                stream.call = _REFUSED
                self.write(self.http2.refuse(stream, grpc.refusal(Status.UNAVAILABLE, "the server stops")))
        self._backlog.clear()
        self._backlog_bytes = 0
        if any(stream.ends_itself and not stream.has_ended for stream in streams):
            self.write(self.http2.ping())  # a client that has read no end takes that of the connection for it
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self._outgoing is not None and not self.http2.streams and not self.http2.is_asked:
            self._outgoing.close()

    def probe(self) -> bool:
        """Ask a silent client with open calls for a sign of life, once; False if there is nothing to wait for."""
        if not self.http2.streams or self._probed_before == self.heard_before:
            return False
        self._probed_before = self.heard_before
        self.write(self.http2.ping())
        return True

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self, stream: Stream) -> None:
        """End a stream at once (called by its call)."""
        self.http2.reset(stream, ErrorCode.CANCEL)
        if self._backlog and not self._is_full:
            self._plan()

    # --- memory, for the budget of the server ---

    @property
    def waits(self) -> bool:
        """Tell whether reading is paused because other peers use too much memory."""
        return self._waits

    @property
    def kept_bytes(self) -> int:
        """Bytes that handlers keep of its requests, and of its open calls; `Budget.keep` changes the former."""
        return 0 if self._is_dropped else self._own_bytes + self.http2.streams_bytes

    @kept_bytes.setter
    def kept_bytes(self, size: int) -> None:
        self._own_bytes = size - (0 if self._is_dropped else self.http2.streams_bytes)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of requests that are incomplete."""
        return 0 if self._is_dropped else self.http2.held_bytes + self.partial_bytes

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
        """Bytes of answers that the client has not taken yet, and of its requests that wait for that."""
        if self._outgoing is None or self._is_dropped:
            return 0
        return self._outgoing.unread_bytes + self.http2.pending_bytes + self._backlog_bytes

    def keep(self, size: int) -> None:
        """Count bytes that handlers keep of its requests: see `Budget.keep`."""
        self._host.budget.keep(self, size)

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
        if self._transport is None or self._outgoing is None or self._is_dropped:
            return
        log.warning("connection is closed", extra={"address": self.address, "reason": reason})
        reads = not self.unread_bytes
        self.http2.give_up(reason)
        self._is_dropped = True
        self._cancel_all()
        if reads:
            self._outgoing.close()
        else:
            self._transport.abort()
