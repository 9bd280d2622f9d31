"""Remoting server on asyncio: connections, dispatch by request code, back-pressure, idle peers.

One read of a socket may deliver many requests. They are handled in order in one pass, and all their answers leave in
one write at the end of the turn (``net.outgoing``): nothing on this path creates a task, a future or a lock. Requests
that cost little more in bulk than alone (``bulk_handlers``) are gathered from all sockets that one turn of the loop has
read, and handled at its end. A processor that can't answer yet returns None, keeps the peer and the request's opaque,
and calls ``Peer.reply`` when it can (long polling, synchronous flush).

A turn of the loop has some milliseconds for administrative requests. The rest of a read waits in ``_backlog``, and goes
on in later turns, one peer after another, with others' messages between. A handler that takes longer for one request
returns a generator: it runs until the turn is over, and goes on in the next. So each of its steps must be short, and
its data may have changed between two steps.

Back-pressure: once a peer leaves more than ``WRITE_BUFFER_BYTES_HIGH`` of answers unread, nothing more is read from it,
and its requests already read wait, too (at most one read's worth). The memory that all peers together may use is
limited too, see ``net.budget``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from types import NoneType
from typing import Final, NamedTuple, cast

from firearrow.clock import Clock
from firearrow.config.tls import TlsKeys
from firearrow.events import Events
from firearrow.logs import Log
from firearrow.net.address import remote_of
from firearrow.net.budget import KEPT_BYTES_MAX, Budget
from firearrow.net.connections import IDLE_SECONDS_MAX, ConnectionLimit, IdleSweep
from firearrow.net.futures import Answered, FutureCalls
from firearrow.net.gathering import Answers as BulkAnswers
from firearrow.net.gathering import Gathering, size_of_waiting
from firearrow.net.grpc import HELLO, GrpcLimits, GrpcPeer, Method
from firearrow.net.lateness import Lateness, Patience
from firearrow.net.listening import close_listeners, listen, port_of
from firearrow.net.meter import RpcMeter
from firearrow.net.outgoing import Departures, Outgoing
from firearrow.net.proxyheaders import HeaderReading, ProxyHeaders
from firearrow.net.refusals import Refusals
from firearrow.net.tls import TLS_HELLO, Door, Pipe
from firearrow.net.turns import TURN_CHECK_REPLIES, Turns
from firearrow.wire.calls import PendingCalls
from firearrow.wire.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from firearrow.wire.command import Response
from firearrow.wire.frame import (
    FRAME_BYTES_MAX,
    NO_HOT_DECODERS,
    PROXY_HEADERS,
    AnyCommand,
    Connection,
    encode_request,
    encode_response,
)
from firearrow.wire.hotheaders import hot_decoders

log: Final = Log(__name__)

Finished = Response | bytes | None
FINISHED: Final = (Response, bytes, NoneType)
"""Its types: an isinstance check for `Steps` takes five times as long."""
Steps = Generator[None, None, Finished]
"""An answer that is made in steps, each of which takes some milliseconds at most."""
Answer = Finished | Steps
Handler = Callable[["Peer", AnyCommand], Answer]
PeerRequest = tuple["Peer", AnyCommand]
# Answers several requests of one code and size, from any peers.
BulkHandler = Callable[[Sequence[PeerRequest]], BulkAnswers]
NO_BULK_HANDLERS: Final[Mapping[int, BulkHandler]] = {}
NO_REASONS: Final[Mapping[int, str]] = {}

WRITE_BUFFER_BYTES_HIGH: Final = 4 * 1024 * 1024  # beyond it a peer is a slow reader
REPLIES_BYTES_FLUSH: Final = 1024 * 1024  # hand over to the transport: it may pause us
CALLS_MAX: Final = 1024  # to one client; their memory is that of the frames
BUSY: Final = ResponseCode.SYSTEM_BUSY
CLOSE_SECONDS_MAX: Final = 3.0  # for answers to reach their peers, during a stop


class Peer(asyncio.Protocol):
    """One client connection.

    ``address`` is ``ip:port`` as RocketMQ prints it, ``ip`` is without brackets and port. ``host_bytes`` is the form
    that a message stores: 4 or 16 bytes of address and the port as i32. ``user`` is the user that the owner of a
    `Loopback` has proved; its requests carry no signatures. The owner ends a `Loopback`, whose silence means nothing.
    """

    __slots__ = (
        *("_backlog", "_backlog_bytes", "_backlog_since_ms", "_calls", "_door", "_has_ended", "_is_dropped"),
        *("_is_for_grpc", "_is_named", "_lateness", "_open_since", "_outgoing", "_paused", "_server", "_steps"),
        *("_transport", "_waits", "_wire", "address", "gathered_code", "heard", "heard_before", "host_bytes", "ip"),
        *("is_loopback", "is_planned", "is_slow", "kept_bytes", "owed", "received_ms", "takes_objects", "user"),
    )

    def __init__(self, server: Server, *, is_loopback: bool = False, is_for_grpc: bool = False) -> None:
        self._server, self._is_for_grpc = server, is_for_grpc
        self.is_loopback: bool = is_loopback
        self._door = (is_for_grpc and server.grpc_door) or server.door
        self.user: str | None = None
        self._lateness = server.lateness
        self._wire = self._first_wire()
        self._is_named = False  # True behind a PROXY header
        self._backlog: list[AnyCommand] = []
        self._backlog_bytes = self.kept_bytes = 0
        self._backlog_since_ms = 0  # arrival of the first request that waits
        self._steps: Steps | None = None  # of the first request of the backlog
        self.is_planned: bool = False  # True if the server has planned to let it go on in a later turn
        self._has_ended = False  # True if the peer sends nothing any more
        self.owed = 0  # pending answers, which keep the connection open then
        self._paused = self._waits = self._is_dropped = False
        self.is_slow = self.takes_objects = False  # a `Loopback`: does not read; takes an answer that is no frame
        self._calls: FutureCalls | None = None  # None until the first call
        self._open_since: dict[int, int] = {}  # by opaque, while times of requests are measured
        self.gathered_code = 0  # of requests that are answered soon, see ``net.gathering``
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None  # None without a transport
        self.address: str = "unknown"
        self.ip: str = ""
        self.host_bytes: bytes = bytes(8)
        self.heard: bool = True  # since the last sweep for idle peers
        self.heard_before: float = 0.0  # time of that sweep, or of the connection
        self.received_ms: int = 0

    @property
    def is_open(self) -> bool:
        """Tell whether answers can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def reads(self) -> bool:
        """Tell whether the peer takes its answers at present."""
        return not (self._paused or self.is_slow) and self.is_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the server (called by asyncio)."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        self._outgoing = Outgoing(self._transport, self._server.departures, self._server.budget)
        self._take_name(self._transport.get_extra_info("peername"))
        self.heard_before = self._server.loop.time()
        self._server.enter(self)
        self._server.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer and end its calls (called by asyncio)."""
        self._transport = self._outgoing = None
        self._take_backlog()
        if self._calls is not None:
            self._calls.end(str(exc or "it was closed"))
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        """Handle all requests that one read delivered (called by asyncio)."""
        self.heard = True
        self.received_ms = self._server.now_ms()
        requests = self._wire.receive(data)
        if self.received_ms > self._lateness.late_at_ms:
            requests = self._timely(requests)
        if requests:
            self._take_read(requests)
        if self._wire.held_bytes:
            self._server.budget.took(self, len(data))
        elif self._wire.violation is not None and not self._is_dropped:
            self._server.gathering.answer()
            if not self._backlog:
                self._refuse(self._wire.violation)

    def _take_read(self, requests: list[AnyCommand]) -> None:
        """Gather the requests of one read, or answer them now."""
        if self._backlog or not self._server.gathering.take(self, requests):
            if self.gathered_code:
                self._server.gathering.answer()  # the gathered requests of this peer came first
            self.take(requests)

    def requests_received(self, requests: list[AnyCommand]) -> None:
        """Handle requests that came without a socket, and deliver the ready answers (called by `Loopback`)."""
        self.heard = True
        self.received_ms = self._server.now_ms()
        self._take_read(requests)
        if self._outgoing is not None:
            self._outgoing.leave()

    def _refuse(self, violation: str) -> None:
        """Close the connection, unless its peer begins TLS or gRPC, or a balancer names it by a PROXY header."""
        hello, methods = self._wire.hello, self._server.grpc_methods
        takes_grpc = methods and (self._is_for_grpc or self._server.grpc_everywhere)
        if takes_grpc and hello.startswith(PROXY_HEADERS) and not self._is_named and self._transport is not None:
            HeaderReading(self._server.proxy_headers, self, self._transport).begin(hello)
            return
        if self._door.takes(self, self._transport, hello if hello[:1] == TLS_HELLO else b""):
            return
        if hello.startswith(HELLO) and takes_grpc and methods and self._transport is not None:
            self._become_grpc(self._transport, hello, methods)
        elif hello.startswith(HELLO) and methods is None:
            self.leave()
        else:
            self.close(violation)

    def _first_wire(self) -> Connection:
        return Connection(0 if self._door.is_closed else self._server.frame_bytes_max, self._server.hot_decoders)

    def _take_name(self, name: object) -> None:
        self.address, self.host_bytes = remote_of(name)
        self.ip = self.address.rpartition(":")[0].strip("[]")

    def begin_as(self, client: tuple[str, int] | None) -> None:
        """Begin again behind a PROXY header, as the client that it names (called by `HeaderReading`)."""
        self._is_named, self._wire = True, self._first_wire()
        if client is not None:
            self._take_name(client)

    def _become_grpc(self, transport: asyncio.Transport, hello: bytes, methods: Mapping[bytes, Method]) -> None:
        """Leave the connection to a `GrpcPeer`; for remoting, it has ended."""
        grpc = GrpcPeer(self._server, methods, self._server.grpc_limits, transport)
        grpc.address, grpc.host_bytes, grpc.heard_before = self.address, self.host_bytes, self.heard_before
        self._server.enter(grpc)
        self.connection_lost(None)
        transport.set_protocol(grpc)
        grpc.begin(hello)

    def encrypt(self, transport: Pipe) -> None:
        """Switch to a transport that encrypts (called by the server's door)."""
        self._transport = transport
        self._is_named = True  # a header comes first, if ever
        self._outgoing = Outgoing(transport, self._server.departures, self._server.budget)
        self._wire = Connection(self._server.frame_bytes_max, self._server.hot_decoders)

    def eof_received(self) -> bool:
        """Answer before the connection closes (called by asyncio)."""
        self._server.departures.leave()
        self._has_ended = True
        if self._calls is not None and not self._backlog:
            self._calls.end("it sends nothing more")
        return bool(self._backlog or self.owed)

    def take(self, requests: list[AnyCommand]) -> None:
        """Answer requests, each by the handler of its code, after the requests that wait."""
        if self._backlog:
            self._queue(requests, self.received_ms)
        else:
            self._handle(requests, self.received_ms, self.received_ms)

    def take_answered(self, requests: list[AnyCommand], answers: Sequence[bytes | None]) -> None:
        """Send the existing answers to requests of one code, and answer the other requests as `take` does."""
        left = answers.count(None)
        if (meter := self._server.meter) is not None and left < len(answers):
            meter.count(requests[0].code, len(answers) - left, self.received_ms)
        if not left:
            self._send_all(cast(Sequence[bytes], answers))
            return
        for is_left, some in groupby(zip(requests, answers, strict=True), lambda it: it[1] is None):
            if is_left:
                self.take([request for request, _ in some])
            else:
                self._send_all([answer for _, answer in some if answer is not None])

    def _timely(self, requests: list[AnyCommand]) -> list[AnyCommand]:
        """Refuse requests of a late read that have waited for too long; return the others."""
        waited_ms = self._lateness.waited_ms(self._transport) if self._transport else 0
        return self.without_late(requests, waited_ms) if waited_ms else requests

    def without_late(self, requests: list[AnyCommand], waited_ms: int) -> list[AnyCommand]:
        """Refuse requests that have waited for too long; return the others."""
        kept, refused = self._lateness.divided(requests, waited_ms)
        self._send_all([self._encoded(request, refusal) for request, refusal in refused])
        return kept

    def _queue(self, requests: Iterable[AnyCommand], since_ms: int) -> None:
        if not self._backlog:
            self._backlog_since_ms = since_ms
        refusals: list[bytes] = []
        for request in requests:
            if not request.flag & FLAG_RESPONSE:
                is_begun = self._steps is not None and not self._backlog
                refusal = self._lateness.patience.enter(request.code, must=is_begun)
                if refusal is not None:
                    refusals.append(self._encoded(request, refusal))
                    continue
            self._backlog.append(request)
            self._backlog_bytes += size_of_waiting(request)
        self._send_all(refusals)

    def _take_backlog(self) -> list[AnyCommand]:
        waiting, self._backlog = self._backlog, []
        for request in waiting:
            self._leave(request)
        self._backlog_bytes = 0
        self._steps = None
        return waiting

    def _leave(self, request: AnyCommand) -> None:
        if not request.flag & FLAG_RESPONSE:
            self._lateness.patience.leave(request.code)

    def _handle(self, requests: list[AnyCommand], began_ms: int, since_ms: int) -> None:
        handlers = self._server.handlers
        meter = self._server.meter
        counted = others = 0  # a code; all replies except ``others`` came from one bulk answer
        replies: list[bytes] = []
        size = 0
        waiting = iter(requests)
        rest: Iterator[AnyCommand] | None = None
        for request in waiting:
            flag = request.flag
            if flag and flag & FLAG_RESPONSE:
                if self._calls is not None:
                    self._calls.take(request)
                continue
            code = request.code
            try:
                answer = handlers[code](self, request)
            except Exception as error:  # the boundary: one bad request must not end a server
                answer = self._refusal(request, error)
            if type(answer) is not bytes or flag:
                if not isinstance(answer, FINISHED):
                    self._steps = answer
                    frame = None
                    if self._server.turns.begins_at_once(began_ms):
                        frame = self._advance(answer, request, began_ms)
                    if frame is None:
                        rest = chain((request,), waiting)
                        break
                    answer = frame
                else:
                    answer = self._encoded(request, answer)
                others += 1  # it was counted separately
                if self._server.turns.is_over(began_ms):
                    rest = waiting
            elif code != counted and meter is not None:
                if counted:
                    meter.count(counted, len(replies) - others, since_ms)
                counted, others = code, len(replies)
            replies.append(answer)
            size += len(answer)
            if not len(replies) % TURN_CHECK_REPLIES and self._server.turns.is_over(began_ms):
                rest = waiting
            if rest is not None:
                break
            if size > REPLIES_BYTES_FLUSH:
                self._send_all(replies)
                others -= len(replies)  # the others still count
                replies.clear()
                size = 0
                if self._paused:
                    rest = waiting
                    break
        self._send_all(replies)
        if meter is not None and counted:
            meter.count(counted, len(replies) - others, since_ms)
        if rest is not None:
            self._queue(rest, since_ms)
            self._plan()

    def _send_all(self, replies: Sequence[bytes]) -> None:
        if frames := b"".join(replies):
            self.send(frames)

    def _encoded(self, request: AnyCommand, answer: Finished) -> bytes:
        """Frame of an answer; empty for a one-way request, and if the answer follows later."""
        self.note(request, answer)
        if answer is None or request.flag & FLAG_ONEWAY:
            return b""
        if isinstance(answer, bytes):
            return answer
        try:
            return encode_response(answer, request.opaque, request.binary)
        except Exception as error:  # the boundary, as in _handle
            return encode_response(self._refusal(request, error), request.opaque, request.binary)

    def note(self, request: AnyCommand, answer: Finished) -> None:
        """Measure the time of a request that is answered separately, or left open (None). A caller that answers an open
        request by `send` must call it.
        """
        if self._server.meter is not None:
            self._server.meter.note(request, answer, self._open_since, self.received_ms)

    # --- work that does not fit into one turn ---

    def _plan(self) -> None:
        """Go on with the backlog in a later turn, and read nothing before."""
        if self._transport is None or not self._backlog or self._paused:
            return  # a peer that doesn't read goes on when it does
        self._transport.pause_reading()  # otherwise the backlog would grow with each read
        if not self.is_planned:
            self.is_planned = True
            self._server.turns.plan(self)

    def go_on(self, began_ms: int) -> None:
        """Handle waiting requests until the turn is over (called by the server)."""
        assert self.is_planned, "each turn was planned"
        self.is_planned = False
        if self._transport is None or self._transport.is_closing():
            self._take_backlog()
            return
        self.heard = True  # it could not be
        if self._steps is not None and not self._finish(self._steps, began_ms):
            self._plan()
        elif not self._paused:
            since_ms, requests = self._backlog_since_ms, self._take_backlog()
            waited_ms = began_ms - since_ms
            if waited_ms >= self._lateness.patience.least_ms:
                requests = self.without_late(requests, waited_ms)
            self._handle(requests, began_ms, since_ms)
            self._read_on()

    def _advance(self, steps: Steps, request: AnyCommand, began_ms: int) -> bytes | None:
        """Run steps of a request until the turn is over; return its answer, None if steps are left."""
        answer: Finished = None
        try:
            while not self._server.turns.is_over(began_ms):
                next(steps)
            return None
        except StopIteration as end:
            answer = end.value
        except Exception as error:  # the boundary, as in _handle
            answer = self._refusal(request, error)
        self._steps = None
        return self._encoded(request, answer)

    def _finish(self, steps: Steps, began_ms: int) -> bool:
        """Run steps of the first request that waits; return True if it is answered."""
        request = self._backlog[0]
        refusal = self.refusal_now(request)
        if refusal is None:
            frame = self._advance(steps, request, began_ms)
        else:
            self._steps = None
            frame = self._encoded(request, refusal)
        if frame is None:
            return False
        self._leave(self._backlog.pop(0))
        self._backlog_bytes -= size_of_waiting(request)
        assert self._backlog_bytes >= 0, "requests that wait are counted in and out alike"
        self._send_all([frame])
        return True

    def _refusal(self, request: AnyCommand, error: Exception) -> Response:
        return self._server.refusals.of(request, self.address, error)

    def reply(self, request: AnyCommand, answer: Response | bytes) -> None:
        """Answer a request that was left open."""
        self._send_all([self._encoded(request, answer)])
        if self._has_ended:
            self._read_on()

    def resume(self, request: AnyCommand, handler: Callable[[Peer, AnyCommand], Finished]) -> bool:
        """Handle a request that was left open, by ``handler``; a peer that doesn't read waits.

        False for a request that is refused instead, because its sender's rights have changed since it came.
        """
        if not self.is_open:
            return True
        if self._paused:
            self._queue([request], self._server.now_ms())
            return True
        refusal = None if request.admitted_by is None else self.refusal_now(request)
        answer: Finished = refusal
        if refusal is None:
            try:
                answer = handler(self, request)
            except Exception as error:  # the boundary, as in _handle
                answer = self._refusal(request, error)
        assert isinstance(answer, FINISHED), "an open request is answered at once"
        self._send_all([self._encoded(request, answer)])
        return refusal is None

    def refusal_now(self, request: AnyCommand) -> Response | None:
        """Return the refusal of a request that was admitted and would be refused now, otherwise None.

        A processor that answers an open request checks here, or calls `resume`.
        """
        return self._server.refusals.now(request, self.address)

    def push(self, command: AnyCommand) -> bool:
        """Send a one-way request to the peer, unless it doesn't read; tell whether it was sent."""
        if self._paused or not self.is_open:
            return False
        self.send(encode_request(command))
        return True

    def call(self, command: AnyCommand, timeout_seconds: float) -> Answered:
        """Send a request to the peer, and return its pending answer, with any code.

        The answer ends by TimeoutError when nothing comes in time (the connection stays: a client may be busy), and by
        ConnectionError when the connection ends. Raises ConnectionError when the connection has ended, when the peer
        does not read, or when too many of its answers are pending.
        """
        if not self.is_open or self._has_ended:
            raise ConnectionError(f"{self.address} is not connected any more")
        if self._paused:
            raise ConnectionError(f"{self.address} does not read its pending answers")
        loop = self._server.loop
        if self._calls is None:
            self._calls = FutureCalls(PendingCalls(self.address, CALLS_MAX), loop)
        frame, answer = self._calls.begin(command, loop.time(), timeout_seconds)
        self.send(frame)
        return answer

    def send(self, frames: bytes) -> None:
        """Write whole frames; nothing happens once the connection is gone."""
        if self._outgoing is not None:
            self._outgoing.write(frames)

    def close(self, reason: str) -> None:
        """Close after the written bytes have left; a second call closes at once."""
        if self._transport is None:
            return
        if self._transport.is_closing():
            self._transport.abort()
            return
        log.warning("connection is closed", extra={"address": self.address, "reason": reason})
        self.leave()

    def leave(self) -> None:
        """Close without a log line, after the written bytes have left."""
        if self._outgoing is not None:
            self._outgoing.close()

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """The peer doesn't read: stop reading from it (called by asyncio)."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer has caught up: handle the waiting requests, then read again (called by asyncio)."""
        self._paused = False
        self._plan()
        self._read_on()

    def _read_on(self) -> None:
        """Read again, or close, once no request waits."""
        if self._transport is None or self._backlog:
            return
        if self._wire.violation is not None and not self._is_dropped:
            self._refuse(self._wire.violation)
        elif self._has_ended:
            if not self.owed:
                self.leave()
        elif not (self._paused or self._waits):
            self._transport.resume_reading()

    # --- memory, for the budget ---

    @property
    def unfinished_bytes(self) -> int:
        """Bytes received of a request that is incomplete."""
        return self._wire.held_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes that this request still lacks."""
        return self._wire.missing_bytes

    @property
    def requests_begun(self) -> int:
        """Count of requests begun, which distinguishes an unfinished request from the next one."""
        return self._wire.frames_begun

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the peer has not taken yet, and of its requests that wait for that."""
        if self._outgoing is None or self._is_dropped:
            return 0
        return self._outgoing.unread_bytes + self._backlog_bytes

    @property
    def waits(self) -> bool:
        """Tell whether reading is paused because other peers use too much memory."""
        return self._waits

    def keep(self, size: int) -> None:
        """Count bytes that handlers keep of its requests, or release (below 0): see `Budget.keep`."""
        self._server.budget.keep(self, size)

    def hold(self, *, waits: bool) -> None:
        """Pause reading from the peer, or resume it."""
        self._waits = waits
        if not waits:
            self.heard = True  # it could not send while it was paused
            self._read_on()
        elif self._transport is not None:
            self._transport.pause_reading()

    def drop(self, reason: str) -> None:
        """Close the connection and release everything that it holds.

        A peer that has read its answers gets the reason, as the answer to its unfinished request.
        """
        if self._transport is None or self._outgoing is None:
            return
        log.warning("connection is closed", extra={"address": self.address, "reason": reason})
        self._outgoing.leave()
        reads = not self.unread_bytes
        request, self._is_dropped = self._wire.give_up(reason), True
        self._take_backlog()
        if not reads or request is None or request.flag & (FLAG_ONEWAY | FLAG_RESPONSE):
            self._transport.abort()
            return
        self.send(encode_response(Response(BUSY, reason), request.opaque, request.binary))
        self.leave()


class ConnectionClosed(NamedTuple):
    """A connection that has ended, from either side."""

    peer: Peer


class WaitEnded(NamedTuple):
    """The owner of a `Loopback` does not want to wait for an answer: one without messages may follow now."""

    peer: Peer
    request: AnyCommand


class Server:
    """Server that listens and hands each request to the handler of its code.

    ``bulk_handlers`` come first where reads have only requests of their code, and each wants an answer. ``unserved``
    has the reasons for codes without a handler. ``events`` get `ConnectionClosed` and `WaitEnded`. ``memory_bytes_max``
    limits the memory of all peers, 0 is a quarter of the memory, and ``kept_bytes_max`` the data that handlers keep for
    one. ``patience`` limits the waiting of requests. With ``measures``, a ``meter`` keeps their times. ``tls`` has the
    keys of encryption, None for plain text only. With ``plain_ext`` the ext fields of requests are text, as received.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        clock: Clock,
        *,
        bulk_handlers: Mapping[int, BulkHandler] = NO_BULK_HANDLERS,
        unserved: Mapping[int, str] = NO_REASONS,
        events: Events | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        idle_seconds_max: float = IDLE_SECONDS_MAX,
        memory_bytes_max: int = 0,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        patience: Patience | None = None,
        plain_ext: bool = False,
        measures: bool = False,
        tls: TlsKeys | None = None,
    ) -> None:
        self.door: Final = Door(tls, lambda: self.loop)
        self.handlers = handlers
        self.grpc_methods: Mapping[bytes, Method] | None = {}
        """gRPC methods by path; without methods, connections of gRPC are closed. None before a stop."""
        self.grpc_limits: GrpcLimits = GrpcLimits()
        self.grpc_door: Door | None = None  # of ports for gRPC, None for the door of all
        self.grpc_everywhere = True  # False: only ports for gRPC (``serve_also``) serve it
        self.proxy_headers: Final = ProxyHeaders(lambda: self.loop)
        self.hot_decoders: Final = NO_HOT_DECODERS if plain_ext else hot_decoders()
        self.now_ms: Callable[[], int] = clock.now_ms
        self.lateness: Final = Lateness(patience or Patience(), clock.now_ms, lambda: self.loop)
        self.frame_bytes_max = frame_bytes_max
        self.peers: set[Peer] = set()
        self.grpc_peers: set[GrpcPeer] = set()
        self._all: set[Peer | GrpcPeer] = set()
        self.connection_limit: Final = ConnectionLimit()
        self.refusals: Final = Refusals(handlers, unserved, lambda: self.loop.time())
        self.budget: Budget = Budget(
            memory_bytes_max,
            self._all,
            lambda: self.loop.time(),
            lambda seconds, call: self.loop.call_later(seconds, call),
            kept_bytes_max,
        )
        self._bulk_handlers = bulk_handlers
        self.gathering: Final = Gathering(
            bulk_handlers, self._answers_of_several, self.lateness, self.now_ms, lambda: self.departures.plan()
        )
        self.departures: Departures = Departures(lambda: self.loop, self.gathering.answer)
        self.meter: Final = RpcMeter(clock, self.departures) if measures else None
        self.turns: Turns = Turns(lambda: self.loop, clock.now_ms)
        events = events or Events()
        self._closed = events.of(ConnectionClosed)
        self.wait_ended: Final = events.of(WaitEnded)
        self._idle_sweep = IdleSweep(
            self._all, lambda: self.loop, idle_seconds_max, lambda: self.grpc_limits.idle_seconds_max
        )
        self._server = cast(asyncio.Server | None, None)
        self._others: list[asyncio.Server] = []  # at further ports
        self._loopbacks = 0
        self._all_gone: asyncio.Event | None = None
        self.loop: asyncio.AbstractEventLoop = cast(asyncio.AbstractEventLoop, None)

    async def bind(self, host: str, port: int, *, shares_port: bool = False, is_for_grpc: bool = False) -> int:
        """Listen on ``host:port`` (0: a free port) and return the port; CannotListen if that fails.

        Clients are not accepted before ``serve``: the parts that their requests need may not exist yet.
        """
        assert self._server is None, "a server is bound once, or again after its stop"
        self.loop = asyncio.get_running_loop()
        self._all_gone = None
        self._server = await listen(lambda: Peer(self, is_for_grpc=is_for_grpc), host, port, shares_port=shares_port)
        return port_of(self._server)

    async def serve(self) -> None:
        """Accept clients."""
        assert self._server is not None, "bind comes first"
        await self._server.start_serving()
        self._idle_sweep.plan()

    async def serve_also(self, host: str, port: int, *, is_for_grpc: bool = False, shares_port: bool = False) -> int:
        """Accept clients at a further port (0: a free one), too, and return it; CannotListen if that fails."""
        other = await listen(lambda: Peer(self, is_for_grpc=is_for_grpc), host, port, shares_port=shares_port)
        bound = port_of(other)
        if self._server is None or self.has_stopped:
            other.close()
        else:
            await other.start_serving()
            self._others.append(other)
        return bound

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; return the port."""
        bound = await self.bind(host, port)
        await self.serve()
        return bound

    @property
    def has_stopped(self) -> bool:
        """Tell whether it takes no connections any more."""
        return self._all_gone is not None

    def retire_grpc(self) -> None:
        """Take no more calls of gRPC; pending ones go on."""
        self.grpc_methods = None
        for peer in list(self.grpc_peers):
            peer.retire()

    async def stop(self) -> None:
        """Stop listening, let answers leave, close every connection."""
        if self._server is None:
            return
        self._idle_sweep.cancel()
        self._all_gone = asyncio.Event()
        await close_listeners((self._server, *self._others))
        self._others.clear()
        self.gathering.answer()
        for peer in list(self._all):
            peer.leave()
        if self._all:
            try:
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self._all_gone.wait()
            except TimeoutError:
                for peer in list(self._all):
                    peer.abort()
                await self._all_gone.wait()
        self._server = None

    def cut(self) -> None:
        """Close the port and, at once, all connections: unsent bytes are lost. `stop` follows."""
        for server in (self._server, *self._others):
            if server is not None:
                server.close()
        for peer in list(self._all):
            peer.abort()

    def admit(self, peer: Peer) -> None:
        """Close a new connection beyond the limit, and one that the listener had in its queue before a stop."""
        if self.has_stopped or not (peer.is_loopback or self.connection_limit.admits(len(self._all) - self._loopbacks)):
            peer.abort()

    def _answers_of_several(self, code: int, asked: Sequence[PeerRequest]) -> BulkAnswers:
        try:
            return self._bulk_handlers[code](asked)
        except Exception as error:  # the boundary, as in Peer._handle, which names the fault
            peers = list(dict.fromkeys(peer.address for peer, _ in asked))
            log.error("requests failed", extra={"code": code, "addresses": peers}, exc_info=error)
            return None

    def enter(self, peer: Peer | GrpcPeer) -> None:
        """Add the connection that calls this."""
        self._all.add(peer)
        if isinstance(peer, Peer):
            self.peers.add(peer)
            self._loopbacks += peer.is_loopback
        else:
            self.grpc_peers.add(peer)

    def forget(self, peer: Peer | GrpcPeer) -> None:
        """Remove the connection that calls this, since it has ended."""
        self._all.discard(peer)
        if isinstance(peer, Peer):
            self.peers.discard(peer)
            self._loopbacks -= peer.is_loopback
            self._closed(ConnectionClosed(peer))
        else:
            self.grpc_peers.discard(peer)
        if self._all_gone is not None and not self._all:
            self._all_gone.set()
