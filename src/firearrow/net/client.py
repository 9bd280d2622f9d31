"""A remoting client on asyncio: one connection an address, requests matched by opaque.

What servers need to talk to servers (a broker to its name servers). Each call has a time limit; a
connection that breaks fails the calls that wait on it and is opened again by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, cast

from firearrow.errors import BrokerError
from firearrow.net.address import host_and_port
from firearrow.wire.command import NO_FIELDS, FieldValue, request
from firearrow.wire.connection import Connection
from firearrow.wire.frame import AnyCommand, encode_request

CONNECT_SECONDS_MAX: Final = 3.0
CALL_SECONDS_MAX: Final = 5.0
OPAQUE_MAX: Final = (1 << 31) - 1  # the binary header has 32 signed bits for it


class _Line(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self) -> None:
        self._wire = Connection()
        self._waiting: dict[int, asyncio.Future[AnyCommand]] = {}
        self._opaque = 0
        self._lost = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        why = self._wire.violation or "the server closed the connection"
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(exc or ConnectionError(why))
        self._waiting.clear()
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        for command in self._wire.receive(data):
            future = self._waiting.get(command.opaque) if command.is_response else None
            if future is not None and not future.done():
                future.set_result(command)
        if self._wire.violation is not None and self.transport is not None:
            self.transport.close()

    def send(self, command: AnyCommand) -> None:
        """Write a request under the next opaque."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionError("the connection was just closed")
        self._opaque = self._opaque % OPAQUE_MAX + 1
        command.opaque = self._opaque
        self.transport.write(encode_request(command))

    async def call(self, command: AnyCommand) -> AnyCommand:
        """Write a request and wait for its answer."""
        self.send(command)
        future: asyncio.Future[AnyCommand] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = future
        try:
            return await future
        finally:
            self._waiting.pop(command.opaque, None)

    async def close(self) -> None:
        """Close and wait until that is done; answers that are still out are lost."""
        if self.transport is not None:
            self.transport.abort()
            await self._lost.wait()


class Client:
    """Calls servers by address (``host:port``)."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
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
        try:
            async with asyncio.timeout(timeout_seconds):
                line = await self._line(address)
                answer = await line.call(request(code, fields, body))
        except TimeoutError:
            await self._drop(address)
            raise TimeoutError(f"{address} did not answer in {timeout_seconds:g} s") from None
        if answer.code != 0:
            raise BrokerError.lookup(answer.code)(answer.code, answer.remark or "", address)
        return answer

    async def send(
        self,
        address: str,
        code: int,
        fields: Mapping[str, FieldValue] = NO_FIELDS,
        body: bytes = b"",
    ) -> None:
        """Send a one-way request: no answer comes, whatever the server makes of it.

        Raises ConnectionError when the server can't be reached, ConfigError when the address is
        none.
        """
        line = await self._line(address)
        line.send(request(code, fields, body, oneway=True))

    async def close(self) -> None:
        """Close all connections."""
        for address in list(self._lines):
            await self._drop(address)

    async def _drop(self, address: str) -> None:
        line = self._lines.pop(address, None)
        if line is not None:
            await line.close()

    async def _line(self, address: str) -> _Line:
        async with self._opening.setdefault(address, asyncio.Lock()):
            line = self._lines.get(address)
            if line is None or line.transport is None or line.transport.is_closing():
                line = await _connect(address)
                self._lines[address] = line
            return line


async def _connect(address: str) -> _Line:
    host, port = host_and_port(address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            _, line = await asyncio.get_running_loop().create_connection(_Line, host, port)
    except OSError as error:
        why = str(error) or f"no connection within {CONNECT_SECONDS_MAX:g} s"
        raise ConnectionError(f"{address} can't be reached: {why}") from error
    return line
