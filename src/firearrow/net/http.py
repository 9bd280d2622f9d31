"""Small HTTP server for people and their monitoring, which serves GET and nothing else.

    GET /metrics HTTP/1.1        ->  HTTP/1.1 200 OK
    Host: 127.0.0.1:5557             Content-Type: text/plain; charset=utf-8
                                     Transfer-Encoding: chunked
                                     Connection: close

                                     ...

A connection has one request, and is closed behind its answer. So there is no state between requests, and the body of a
request is never read. An answer is in chunks, so that a truncated one does not look complete (HTTP/1.0 has no chunks).
It is made piece by piece, one in a turn of the event loop, and only as fast as the peer reads: neither a long answer
nor a slow peer delays messages. A peer has a limit of bytes and of time, and the server has one of connections. Beyond
it, the oldest idle connection is closed for a new one, so idle connections can't block a health check.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qsl, urlsplit

from firearrow.logs import Log
from firearrow.net.listening import listen, port_of

log: Final = Log(__name__)

HEAD_BYTES_MAX: Final = 8192  # of the request line and the headers; as most servers
CONNECTIONS_MAX: Final = 32  # a scrape every few seconds needs one
HEAD_SECONDS_MAX: Final = 5.0  # for a whole request: a client sends it at once
SECONDS_MAX: Final = 30.0  # for a whole request and its answer; Prometheus gives up after 10
WRITE_BYTES_HIGH: Final = 256 * 1024  # unread by the peer; then no further piece is made
QUERY_FIELDS_MAX: Final = 16
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


class Answer(NamedTuple):
    """Answer to a request; one of its ``pieces`` is made in a turn of the event loop."""

    status: HTTPStatus
    pieces: Iterable[bytes]
    content_type: str = TEXT


class Request(NamedTuple):
    """GET of a path; of a query field that occurs twice, the last counts."""

    path: str
    query: dict[str, str]


Responding = Callable[[Request], Answer]


def plain(status: HTTPStatus, text: str) -> Answer:
    """Return an answer of one line of text."""
    return Answer(status, [text.encode() + b"\n"])


class HttpServer:
    """HTTP server that answers each GET by ``respond``."""

    def __init__(self, respond: Responding) -> None:
        self._respond = respond
        self._server: asyncio.Server | None = None
        self.peers: dict[_Peer, None] = {}  # in the order of arrival

    async def bind(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (0: a free port) and return the port; CannotListen if that fails.

        No request is answered before ``serve``.
        """
        loop = asyncio.get_running_loop()
        self._server = await listen(lambda: _Peer(self, loop), host, port)
        return port_of(self._server)

    async def serve(self) -> None:
        """Answer requests from now on."""
        assert self._server is not None, "bind comes first"
        await self._server.start_serving()

    def close(self) -> None:
        """Stop listening, and close every connection at once."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in list(self.peers):
            peer.abort()

    def answer_to(self, request: Request) -> Answer:
        """Return the answer to a request; an unexpected error becomes an answer and a line in the log."""
        try:
            return self._respond(request)
        except Exception as error:  # the boundary: one bad request must not end a server
            log.error("request failed", extra={"path": request.path}, exc_info=error)
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


class _Peer(asyncio.Protocol):
    """One connection: reads a request head, and writes one answer."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._time_is_over: asyncio.TimerHandle | None = None
        self._pieces: Iterator[bytes] | None = None
        self._in_chunks = False
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        peers = self._server.peers
        if len(peers) >= CONNECTIONS_MAX:
            idle = next((peer for peer in peers if not peer.has_asked), None)
            if idle is None:
                self._transport.abort()
                return
            idle.abort()
            del peers[idle]
        peers[self] = None
        self._time_is_over = self._loop.call_later(HEAD_SECONDS_MAX, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._pieces = None
        self._server.peers.pop(self, None)
        if self._time_is_over is not None:
            self._time_is_over.cancel()

    def data_received(self, data: bytes) -> None:
        if self._pieces is not None:
            return  # bytes behind the request are ignored
        self._head += data[: HEAD_BYTES_MAX + 1]
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if len(head) > HEAD_BYTES_MAX:
            self._answer(plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too much"))
        elif end:
            self._answer(self._answer_to(head))

    @property
    def has_asked(self) -> bool:
        """Tell whether the request is complete, and the answer has begun."""
        return self._pieces is not None

    def eof_received(self) -> bool:
        return self.has_asked  # it may still read

    def _answer_to(self, head: bytes) -> Answer:
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return plain(HTTPStatus.BAD_REQUEST, "this is not a request by HTTP/1")
        if words[0] not in ("GET", "HEAD"):
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, f"{words[0][:20]!r} is not served, only GET")
        try:
            target = urlsplit(words[1])
            query = dict(parse_qsl(target.query, max_num_fields=QUERY_FIELDS_MAX))
        except ValueError:
            return plain(HTTPStatus.BAD_REQUEST, "the address can't be read")
        answer = self._server.answer_to(Request(target.path, query))
        if words[0] == "HEAD":
            return answer._replace(pieces=())
        self._in_chunks = words[2] != "HTTP/1.0"
        return answer

    def _answer(self, answer: Answer) -> None:
        """Write the head of an answer, and begin with its pieces."""
        assert self._transport is not None, "data came"
        status = answer.status
        lines = [
            f"HTTP/1.1 {int(status)} {status.phrase}",
            f"Content-Type: {answer.content_type}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self._in_chunks:
            lines.append("Transfer-Encoding: chunked")
        self._head = b""
        if self._time_is_over is not None:
            self._time_is_over.cancel()
        self._time_is_over = self._loop.call_later(SECONDS_MAX, self.abort)
        self._transport.write("\r\n".join((*lines, "", "")).encode("latin-1"))
        self._pieces = iter(answer.pieces)
        self._go_on()

    def _go_on(self) -> None:
        """Write the next piece, unless the peer does not read."""
        if self._is_paused or self._pieces is None or self._transport is None:
            return
        try:
            piece = next(self._pieces, None)
        except Exception as error:  # the boundary, as in `HttpServer.answer_to`
            log.error("answer is truncated", exc_info=error)
            self._transport.abort()  # a part of the answer must not look like the whole
            return
        if piece is None:
            self._transport.write(b"0\r\n\r\n" if self._in_chunks else b"")
            self._transport.close()
            return
        if piece and self._in_chunks:
            self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            self._transport.write(piece)
        self._loop.call_soon(self._go_on)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._go_on)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


# --- Client for one request ---
#
# The connection ends with the answer, and by HTTP/1.0 the answer with the connection. A truncated answer looks
# complete, so its content must tell: JSON without its end can't be read.


READ_BYTES: Final = 64 * 1024
_PORTS: Final = {"http": 80, "https": 443}


class HttpAnswer(NamedTuple):
    """Status line of an answer, and the body behind its headers."""

    status: str
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Tell whether the status is 200."""
        return self.status.split()[1:2] == ["200"]


async def ask(
    url: str,
    *,
    bytes_max: int,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> HttpAnswer:
    """GET an address, or POST a body to it, and return the answer with any status.

    Raises OSError without an answer, or for one of more than ``bytes_max``. There is no time limit.
    """
    place = urlsplit(url)
    target = place.path + (f"?{place.query}" if place.query else "")
    lines = [f"{'GET' if body is None else 'POST'} {target} HTTP/1.0", f"Host: {place.netloc}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    port = place.port or _PORTS[place.scheme]
    reader, writer = await asyncio.open_connection(place.hostname, port, ssl=context)
    try:
        writer.write("\r\n".join((*lines, "", "")).encode() + (body or b""))
        head, _, found = (await _all_of(reader, bytes_max)).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()  # with TLS, a close takes as long as a silent peer likes
    return HttpAnswer(head.partition(b"\r\n")[0].decode(errors="replace"), found)


async def _all_of(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await reader.read(READ_BYTES):
        size += len(piece)
        if size > bytes_max:
            raise ConnectionError(f"the answer has more than {bytes_max} bytes")
        pieces.append(piece)
    return b"".join(pieces)
