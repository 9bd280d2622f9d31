"""A client that speaks in raw frames, for tests that must misbehave."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from firearrow.testing.loop import VirtualLoop
from firearrow.wire.command import Command
from firearrow.wire.frame import FRAME_BYTES_MAX, LENGTHS, Connection, encode_request

# A busy machine needs a while; a test that gets here has failed.
WAIT_SECONDS_MAX = 20


def wait_seconds_max() -> float | None:
    """Return the limit of a wait for a server; none in virtual time."""
    virtual = isinstance(asyncio.get_running_loop(), VirtualLoop)
    return None if virtual else WAIT_SECONDS_MAX


class Talker:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def address(self) -> str:
        """Address of this end as ``ip:port``."""
        host, port = self._writer.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    def write(self, data: bytes) -> None:
        """Send bytes unchanged, in one write."""
        self._writer.write(data)

    def write_end(self) -> None:
        """Send the end of the data."""
        self._writer.write_eof()

    def ask(self, *commands: Command[dict[str, str]]) -> None:
        """Send requests in one write."""
        self.write(b"".join(map(encode_request, commands)))

    async def answer(self, seconds_max: float | None = None) -> Command[Any]:
        """Return the server's next command."""
        async with asyncio.timeout(seconds_max or wait_seconds_max()):
            lengths = await self._reader.readexactly(LENGTHS.size)
            rest = await self._reader.readexactly(LENGTHS.unpack(lengths)[0] - 4)
        [command] = Connection(FRAME_BYTES_MAX * 2).receive(lengths + rest)
        return command

    async def end(self) -> bytes:
        """Return the remaining data until the server closes the connection."""
        async with asyncio.timeout(wait_seconds_max()):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    def abort(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close this end."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return


@asynccontextmanager
async def talking(port: int, host: str = "127.0.0.1") -> AsyncIterator[Talker]:
    """Open a connection that is closed in the end."""
    talker = Talker(*await asyncio.open_connection(host, port))
    try:
        yield talker
    finally:
        await talker.close()


@asynccontextmanager
async def encrypted(port: int, context: ssl.SSLContext) -> AsyncIterator[Talker]:
    """Open an encrypted connection that is closed in the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield Talker(reader, writer)
    finally:
        writer.close()


def question(code: int, opaque: int = 1, **fields: str) -> Command[dict[str, str]]:
    """Make a request."""
    return Command(code, fields, opaque=opaque)
