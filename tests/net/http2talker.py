"""A client of HTTP/2 that sends frames by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from firearrow.net.server import Server
from firearrow.wire.grpc import MessageReader
from firearrow.wire.http2 import DATA, END_STREAM, HEADERS, RST_STREAM
from tests.net.conftest import Run
from tests.net.grpcservice import Service, grpc_serving
from tests.net.talker import Talker, talking, wait_seconds_max
from tests.wire import http2frames as h2
from tests.wire.http2frames import HELLO, Frame


class Http2Talker:
    """A client that says what a test wants, and reads frames."""

    def __init__(self, talker: Talker) -> None:
        self._talker = talker
        self._rest = b""

    def write(self, *frames: bytes) -> None:
        """Send frames in one write."""
        self._talker.write(b"".join(frames))

    async def frame(self, *kinds: int) -> Frame:
        """Return the next frame of these kinds."""
        while True:
            async with asyncio.timeout(wait_seconds_max()):
                head = await self._talker._reader.readexactly(9)
                payload = await self._talker._reader.readexactly(int.from_bytes(head[:3]))
            if not kinds or head[3] in kinds:
                return Frame(head[3], head[4], int.from_bytes(head[5:]), payload)

    async def answer(self, stream_id: int) -> list[bytes]:
        """Return the messages of an answer, up to the end of its stream."""
        reader, messages = MessageReader(2**31), list[bytes]()
        while True:
            frame = await self.frame(DATA, HEADERS, RST_STREAM)
            if frame.stream_id != stream_id:
                continue
            assert frame.kind != RST_STREAM
            if frame.kind == DATA:
                messages += reader.take(frame.payload, None)
            elif frame.flags & END_STREAM:
                return messages

    async def end(self) -> list[Frame]:
        """Return the frames until the server closes."""
        return h2.frames_of(await self._talker.end())


def path(name: str) -> bytes:
    """Header fields of a call."""
    return h2.block_of([*h2.CALL[:2], (b":path", f"/test.Service/{name}".encode()), *h2.CALL[3:]])


def speaking(
    run: Run, main: Callable[[Http2Talker, Server, Service], Any], hello: bytes = HELLO, **options: Any
) -> Service:
    """Run a conversation in frames."""
    service = Service()

    async def talk() -> None:
        async with grpc_serving(service, **options) as (server, port), talking(port) as talker:
            talker.write(hello)
            await main(Http2Talker(talker), server, service)

    run(talk())
    return service
