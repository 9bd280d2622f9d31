"""Remoting client on asyncio: one connection for each address, any number of calls on it.

Clients call brokers through it, and servers call servers (a broker its name servers). Each call has a time limit. A
connection that breaks fails its pending calls, and the next call opens it again. A server that announces its departure
gets no further request on that connection. A request that it refused for this reason is sent once more on a new one.

Frames written in one turn of the event loop leave together: calls that begin side by side cost one write to the socket
for each 16 of them. One write for all would be less work, but then client and server take turns: each waits while the
other works on all of them. With 64 sends in flight, groups of 16 give one and a half times the throughput.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import msgspec

from firearrow.errors import BrokerError, ConfigError
from firearrow.logs import Log
from firearrow.net.access import OPEN, Access
from firearrow.net.address import host_and_port
from firearrow.net.futures import Answered, FutureCalls, Pending
from firearrow.net.tasks import Tasks
from firearrow.wire.calls import Answering, AnswerWaiter, ClientEnd
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import NO_FIELDS, FieldValue, Response, request
from firearrow.wire.frame import AnyCommand, encode_response

if TYPE_CHECKING:
    from firearrow.wire.signature import Credentials

CONNECT_SECONDS_MAX: Final = 3.0
CALL_SECONDS_MAX: Final = 5.0
CLOSE_SECONDS_MAX: Final = 1.0  # for the peer to take the written bytes
UNSENT_BYTES_MAX: Final = 8 << 20  # beyond it calls wait until the peer has taken some
SILENT_SECONDS: Final = 1.0  # of a server, until it may have died
LEAVING_FRAMES_MAX: Final = 16  # kept together until the turn ends
LARGE_FRAME_BYTES: Final = 64 << 10  # from here on a copy costs more than another write


class ServerRequest(msgspec.Struct, frozen=True):
    """Request of a server, with its sender's address and the function that answers it later."""

    address: str
    command: AnyCommand
    answer: Callable[[Response], None]


Handler = Callable[[ServerRequest], Response | None]
"""Answers a server's request at once, or returns None and calls ``answer`` later, or never."""

NO_ASKING: Final[Mapping[int, Handler]] = {}
NO_EXTRA: Final[Mapping[str, str]] = {}


def _ignore(_: object) -> None:
    """Listener of a caller that gives none."""


def _signer(credentials: Credentials) -> Callable[[dict[str, str], bytes], None]:
    """Give the function that signs a request: its ext fields and its body."""
    from firearrow.wire.signature import sign  # imports hashlib and hmac, which a client without a user does not need

    return partial(sign, credentials=credentials)


class _Connection(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self, client: Client, address: str, handlers: Mapping[int, Handler]) -> None:
        bound = {code: partial(self._asked, handler) for code, handler in handlers.items()}
        self.address = address
        self._client = client
        self._line: ClientEnd[AnswerWaiter] = ClientEnd(address, cast(Mapping[int, Answering], bound))
        self._loop = asyncio.get_running_loop()
        self._calls = FutureCalls(self._line.calls, self._loop, self._overdue)
        self._lost = asyncio.Event()
        self._why: str | None = None
        self._transport: asyncio.Transport | None = None
        self._room: asyncio.Future[None] | None = None  # pending while the peer takes no more bytes
        self._leaving: list[bytes] = []
        self._is_retired = False
        self._heard_at = 0.0  # by the loop's time; only for a client that spares servers at work

    @property
    def is_open(self) -> bool:
        """Tell whether requests can be sent. A broken connection may not be noticed yet."""
        return self._transport is not None and not self._is_retired and not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Tell whether no answer is pending."""
        return not self._line.calls

    @property
    def takes_more(self) -> bool:
        """Tell whether the connection is open and the peer takes bytes."""
        return self._room is None and self.is_open

    # --- the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._leaving.clear()
        why = self._why or str(exc or "the server closed the connection")
        self._calls.end(why)
        self.resume_writing()
        self._lost.set()
        self._client.forget(self)

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def data_received(self, data: bytes) -> None:
        if self._client.spares_working:
            self._heard_at = self._loop.time()
        replies = self._line.receive(data)
        if replies:
            self._write(replies)
        if self._line.violation is not None:
            self._close(self._line.violation)
        elif self._is_retired and not self._line.calls:
            self._close("the server is stopping")

    def _write(self, frames: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError(f"the connection to {self.address} was just closed")
        if len(frames) >= LARGE_FRAME_BYTES:
            self._leave()
            self._transport.write(frames)
            return
        if not self._leaving:
            self._loop.call_soon(self._leave)
        self._leaving.append(frames)
        if len(self._leaving) >= LEAVING_FRAMES_MAX:
            self._leave()

    def _leave(self) -> None:
        """Write the frames of this turn."""
        leaving, self._leaving = self._leaving, []
        if leaving and self._transport is not None:
            self._transport.write(leaving[0] if len(leaving) == 1 else b"".join(leaving))

    # --- calls ---

    def tell(self, command: AnyCommand) -> None:
        """Write a one-way request."""
        self._write(self._line.calls.one_way(command))

    async def has_room(self) -> None:
        """Wait until the peer takes bytes, or the connection is lost."""
        while self._room is not None:
            await asyncio.shield(self._room)

    def begin(self, command: AnyCommand, began: float, seconds: float) -> Answered:
        """Write a request and return its pending answer. A caller that gives up must `forget` it."""
        frame, answer = self._calls.begin(command, began, seconds)
        try:
            self._write(frame)
        except ConnectionError:
            self.forget(command)
            raise
        return answer

    def begin_pending(self, command: AnyCommand, began: float, seconds: float) -> Pending:
        """Write a request and return its `Pending`."""
        pending = Pending(self.go_away)
        self.begin_for(pending, command, began, seconds)
        return pending

    def begin_for(self, waiting: AnswerWaiter, command: AnyCommand, began: float, seconds: float) -> None:
        """Write a request with the caller's own waiter."""
        frame = self._calls.begin_for(waiting, command, began, seconds)
        try:
            self._write(frame)
        except ConnectionError:
            self.forget(command)
            raise

    def go_away(self) -> None:
        """Begin no further call here: the server has announced its departure."""
        self._client.retire(self)

    def forget(self, command: AnyCommand) -> None:
        """Drop the pending answer of a request."""
        self._line.calls.forget(command)

    def _asked(self, handler: Handler, command: AnyCommand) -> Response | None:
        return handler(ServerRequest(self.address, command, partial(self._answer, command)))

    def _answer(self, command: AnyCommand, response: Response) -> None:
        """Answer an earlier request of the server; without effect if the connection is closed meanwhile."""
        if not command.is_oneway and self._transport is not None:
            self._write(encode_response(response, command.opaque, command.binary))

    # --- close ---

    def _overdue(self, late: str) -> None:
        """Close the connection: the server may have died silently."""
        if self._client.spares_working and self._loop.time() - self._heard_at < SILENT_SECONDS:
            return
        self._close(f"closed, because {late}")

    def retire(self) -> None:
        """Begin no further call here; calls in flight may end."""
        self._is_retired = True
        if not self._line.calls:
            self._close("the server is stopping")

    def _close(self, why: str) -> None:
        """Close, and end the calls in flight."""
        if self._transport is not None:
            self._why = self._why or why
            self._transport.abort()

    async def close(self, why: str) -> None:
        """Close when the written bytes have left, and wait for that; pending answers are lost."""
        if self._transport is None:
            return
        self._leave()
        self._why = self._why or why
        self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._lost.wait()
        except TimeoutError:
            self._close(why)
            await self._lost.wait()


class Client:
    """Client that calls servers by address (``host:port``).

    ``handlers`` answer the requests of servers, by request code. ``call_seconds`` is the default time limit of a call.
    All requests carry the fields ``extra``. ``on_connected`` gets each connection that was opened, ``on_lost`` each
    that has ended. With ``spares_working``, an overdue answer leaves the connection open if the server has sent
    something on it in the last second.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler] = NO_ASKING,
        access: Access = OPEN,
        *,
        call_seconds: float = CALL_SECONDS_MAX,
        extra: Mapping[str, str] = NO_EXTRA,
        on_connected: Callable[[str], None] = _ignore,
        on_lost: Callable[[str], None] = _ignore,
        spares_working: bool = False,
    ) -> None:
        self.spares_working: Final = spares_working
        self._handlers = handlers
        self._sign = None if access.credentials is None else _signer(access.credentials)
        self._tls: ssl.SSLContext | None = None if access.tls is None else access.tls.context()
        self._call_seconds = call_seconds
        self._extra = extra
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._connections: dict[str, _Connection] = {}
        self._retired: set[_Connection] = set()
        self._opening: dict[str, asyncio.Lock] = {}

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> AnyCommand:
        """Send a request and wait for its answer.

        Raises as ``answer``, and BrokerError (the class for its code) with the server's code and
        remark when the code is not 0.
        """
        answer = await self.answer(address, code, fields, body, timeout_seconds=timeout_seconds)
        if answer.code != 0:
            raise BrokerError.of(answer.code, answer.remark, address)
        return answer

    async def answer(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> AnyCommand:
        """Send a request and wait for its answer, with any code.

        Raises ConnectionError when the server can't be reached, TimeoutError when it does not answer in time, and
        ConfigError for a malformed address. A connection with an overdue answer is closed: its server may have died
        silently.
        """
        began = asyncio.get_running_loop().time()
        seconds = self._call_seconds if timeout_seconds is None else timeout_seconds
        command = self._request(code, fields, body)
        for _ in range(2):
            connection = self._connections.get(address)
            if connection is None or not connection.takes_more:
                connection = await self._ready(address, seconds)
            answered = connection.begin(command, began, seconds)
            try:
                answer = await answered
            except BaseException:
                connection.forget(command)
                raise
            if answer.code != ResponseCode.GO_AWAY:
                break
            self.retire(connection)
        return answer

    async def begin(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> Pending:
        """Send a request, whose answer the caller may await later.

        Many requests can be in flight in this way without a task for each. Raises as ``answer`` until the request has
        left; from then on the pending request raises. No request is sent twice: a caller that gets GO_AWAY may begin
        again, on another connection.
        """
        began = asyncio.get_running_loop().time()
        seconds = self._call_seconds if timeout_seconds is None else timeout_seconds
        command = self._request(code, fields, body)
        connection = self._connections.get(address)
        if connection is None or not connection.takes_more:
            connection = await self._ready(address, seconds)
        return connection.begin_pending(command, began, seconds)

    def begin_now(
        self, waiting: AnswerWaiter, address: str, command: AnyCommand, seconds: float
    ) -> Callable[[], None] | None:
        """Send a request on the open connection to a server, with the caller's own waiter.

        None, and nothing is sent, if no connection takes a request now: then `begin_for` opens one. Otherwise return
        the function that the caller must call when the answer is GO_AWAY. No request is sent twice: the caller may
        begin again, on another connection. Raises ConnectionError if too many calls are in flight.
        """
        connection = self._connections.get(address)
        if connection is None or not connection.takes_more:
            return None
        connection.begin_for(waiting, self._completed(command), asyncio.get_running_loop().time(), seconds)
        return connection.go_away

    async def begin_for(
        self, waiting: AnswerWaiter, address: str, command: AnyCommand, seconds: float
    ) -> Callable[[], None]:
        """Send a request as `begin_now`, on a new connection if there is none; raises as `answer` until it has left."""
        began = asyncio.get_running_loop().time()
        connection = await self._ready(address, seconds)
        connection.begin_for(waiting, self._completed(command), began, seconds)
        return connection.go_away

    async def send(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Send a one-way request: no answer comes, not even a refusal.

        Raises ConnectionError when the server can't be reached or takes nothing in time, ConfigError for a malformed
        address.
        """
        seconds = self._call_seconds if timeout_seconds is None else timeout_seconds
        connection = await self._ready(address, seconds)
        connection.tell(self._request(code, fields, body, oneway=True))

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the present connections."""
        return tuple(self._connections)

    def is_connected(self, address: str) -> bool:
        """Tell whether there is a connection to an address."""
        connection = self._connections.get(address)
        return connection is not None and connection.is_open

    def is_idle(self, address: str) -> bool:
        """Tell whether no call to a server is in flight."""
        connection = self._connections.get(address)
        return connection is None or connection.is_idle

    async def drop(self, address: str) -> None:
        """Close the connection to a server that is no longer needed."""
        connection = self._connections.pop(address, None)
        self._opening.pop(address, None)
        if connection is not None:
            await connection.close("this side closed it")

    async def close(self) -> None:
        """Close all connections."""
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.close("this side closed it")
        for connection in tuple(self._retired):
            await connection.close("this side closed it")
        self._opening.clear()  # a lock belongs to its loop, and the next loop may be another

    def forget(self, connection: _Connection) -> None:
        """Remove a connection that has ended."""
        self._retired.discard(connection)
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        self._on_lost(connection.address)

    def _request(self, code: int, fields: Mapping[str, FieldValue], body: bytes, *, oneway: bool = False) -> AnyCommand:
        return self._completed(request(code, fields, body, oneway=oneway))

    def _completed(self, command: AnyCommand) -> AnyCommand:
        """Add the fields that all requests carry, and the signature."""
        if self._extra:
            command.ext.update(self._extra)
        if self._sign is not None:
            self._sign(command.ext, command.body)
        return command

    def retire(self, connection: _Connection) -> None:
        """Begin no call on a connection any more: its server is leaving."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            self._retired.add(connection)
        connection.retire()

    async def _ready(self, address: str, seconds: float) -> _Connection:
        """Connection that takes a request; the wait for it counts."""
        connection = self._connections.get(address)
        if connection is not None and connection.takes_more:
            return connection
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connection(address)
                await connection.has_room()
        except TimeoutError:
            raise TimeoutError(f"{address} did not answer in {seconds:g} s") from None
        return connection

    async def _connection(self, address: str) -> _Connection:
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or not connection.is_open:
                connection = await self._connect(address)
                self._connections[address] = connection
                self._on_connected(address)
            return connection

    async def _connect(self, address: str) -> _Connection:
        host, port = host_and_port(address)
        connecting = asyncio.get_running_loop().create_connection(
            lambda: _Connection(self, address, self._handlers),
            host,
            port,
            ssl=self._tls,
            server_hostname=host if self._tls is not None else None,
        )
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                _, connection = await connecting
        except OSError as error:
            kind = "" if self._tls is None else " by TLS"
            why = str(error) or f"no connection within {CONNECT_SECONDS_MAX:g} s"
            raise ConnectionError(f"{address} can't be reached{kind}: {why}") from error
        return connection


# --- Notices ---
#
# They are sent once: a receiver that misses one asks, or registers, soon anyway.


log: Final = Log(__name__)

SECONDS_MAX: Final = 3.0


class Notices:
    """Sends one-way requests by a client, each in a separate task.

    ``what`` names the notices in the log.
    """

    def __init__(self, client: Client, what: str) -> None:
        self._client = client
        self._what = what
        self._tasks = Tasks()

    def send(self, address: str, code: int, fields: Mapping[str, str | int], body: bytes = b"") -> None:
        """Begin to send a notice."""
        self._tasks.begin(self._send(address, code, fields, body), "a notice")

    async def stop(self) -> None:
        """Cancel the notices in flight."""
        await self._tasks.close()

    async def _send(self, address: str, code: int, fields: Mapping[str, str | int], body: bytes) -> None:
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await self._client.send(address, code, fields, body)
        except (OSError, TimeoutError, ConfigError) as error:  # a client may register any address
            log.warning("notice can't be sent", extra={"what": self._what, "address": address, "error": error})
