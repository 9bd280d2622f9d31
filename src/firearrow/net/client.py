"""A remoting client on asyncio: one connection an address, any number of calls on it.

What servers need to talk to servers (a broker to its name servers). Each call has a time limit; a
connection that breaks fails the calls that wait on it and is opened again by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, cast

from firearrow.errors import BrokerError
from firearrow.net.address import host_and_port
from firearrow.net.futures import Answered, FutureCalls
from firearrow.wire.calls import NO_HANDLERS, Answering, Line
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import NO_FIELDS, FieldValue, request
from firearrow.wire.frame import AnyCommand

CONNECT_SECONDS_MAX: Final = 3.0
CALL_SECONDS_MAX: Final = 5.0


class _Connection(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self, address: str, handlers: Mapping[int, Answering]) -> None:
        self._line: Line[Answered] = Line(address, handlers)
        self._calls = FutureCalls(self._line.calls, asyncio.get_running_loop(), self._overdue)
        self._lost = asyncio.Event()
        self._why: str | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent, as far as one can know."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._calls.end(self._why or str(exc or "the server closed the connection"))
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        replies = self._line.receive(data)
        if replies:
            self._write(replies)
        if self._line.violation is not None:
            self._close(self._line.violation)

    def _write(self, frames: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection was just closed")
        self._transport.write(frames)

    def tell(self, command: AnyCommand) -> None:
        """Write a one-way request."""
        self._write(self._line.calls.one_way(command))

    async def call(self, command: AnyCommand, began: float, seconds: float) -> AnyCommand:
        """Write a request and wait for its answer."""
        frame, answer = self._calls.begin(command, began, seconds)
        try:
            self._write(frame)
            return await answer
        finally:
            self._line.calls.forget(command)

    def _overdue(self, late: str) -> None:
        """Close: the server may be gone without a word."""
        self._close(f"closed, because {late}")

    def _close(self, why: str) -> None:
        """Close, and end what is under way."""
        if self._transport is not None:
            self._why = self._why or why
            self._transport.abort()

    async def close(self, why: str) -> None:
        """Close and wait until that is done; answers that are still out are lost."""
        if self._transport is not None:
            self._close(why)
            await self._lost.wait()


class Client:
    """Calls servers by address (``host:port``).

    ``handlers`` answer what servers ask of it, by the code of the request.
    """

    def __init__(self, handlers: Mapping[int, Answering] = NO_HANDLERS) -> None:
        self._handlers = handlers
        self._connections: dict[str, _Connection] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_seconds: float = CALL_SECONDS_MAX,
    ) -> AnyCommand:
        """Send a request and wait for its answer.

        Raises ConnectionError when the server can't be reached, TimeoutError when it does not
        answer in time, ConfigError when the address is none, and BrokerError (the class for its
        code) with the server's code and remark when the code is not 0. A connection on which an
        answer is overdue is closed: its server may be gone without a word.
        """
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_seconds):
                connection = await self._connection(address)
        except TimeoutError:
            raise TimeoutError(f"{address} did not answer in {timeout_seconds:g} s") from None
        command = request(code, fields, body)
        answer = await connection.call(command, began, timeout_seconds)
        if answer.code == ResponseCode.GO_AWAY:
            await connection.close("the server is stopping")
        if answer.code != 0:
            raise BrokerError.of(answer.code, answer.remark, address)
        return answer

    async def send(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
    ) -> None:
        """Send a one-way request: no answer comes, not even a refusal.

        Raises ConnectionError when the server can't be reached, ConfigError when the address is
        none.
        """
        connection = await self._connection(address)
        connection.tell(request(code, fields, body, oneway=True))

    async def close(self) -> None:
        """Close all connections."""
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.close("this side closed it")

    async def _connection(self, address: str) -> _Connection:
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or not connection.is_open:
                connection = await _connect(address, self._handlers)
                self._connections[address] = connection
            return connection


async def _connect(address: str, handlers: Mapping[int, Answering]) -> _Connection:
    host, port = host_and_port(address)
    connecting = asyncio.get_running_loop().create_connection(
        lambda: _Connection(address, handlers), host, port
    )
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            _, connection = await connecting
    except OSError as error:
        why = str(error) or f"no connection within {CONNECT_SECONDS_MAX:g} s"
        raise ConnectionError(f"{address} can't be reached: {why}") from error
    return connection
