"""A proxy between clients and a broker that cuts connections, delays bytes and corrupts frames.

What it does follows from a seed. Corrupted is how a frame begins: no receiver can know that a byte
in the middle was another one, as the protocol has no sum of it (and TCP has).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, NamedTuple

from tests.net.listener import HOST, listening
from tests.net.passing import End, pass_on

HEAD_BYTES = 8  # of a frame: its length, the kind and length of its header


class Faults(NamedTuple):
    """How likely something happens to what comes in one piece, and how long a delay may take."""

    cut: float = 0.0
    corrupt: float = 0.0
    delay: float = 0.0
    seconds_max: float = 5.0


CALM = Faults()


class Relay:
    """Passes on what clients and one port say to each other; ``done`` counts faults by kind."""

    def __init__(self, port: int, seed: int) -> None:
        self.faults = CALM
        self.done: Counter[str] = Counter()
        self._port = port
        self._chance = Random(seed)
        self._loop = asyncio.get_running_loop()
        self._connect: Callable[..., Any] = self._loop.create_connection
        self._own_port = 0

    @asynccontextmanager
    async def between(self) -> AsyncIterator[None]:
        """Have all who connect to the port from now on come to the relay."""
        async with listening(self._serve) as self._own_port:
            self._loop.create_connection = self._redirect  # type: ignore[method-assign,assignment]
            try:
                yield
            finally:
                self._loop.create_connection = self._connect  # type: ignore[method-assign]

    async def _redirect(self, factory: Any, host: str | None = None, port: int | None = None, **options: Any) -> Any:
        port = self._own_port if port == self._port else port
        return await self._connect(factory, host, port, **options)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(there_reader)
        try:
            transport, _ = await self._connect(lambda: protocol, HOST, self._port)
        except OSError:
            writer.transport.abort()
            return
        there = asyncio.StreamWriter(transport, protocol, there_reader, self._loop)
        await pass_on(End(reader, writer), [End(there_reader, there)], self._through, self._through)

    async def _through(self, data: bytes) -> bytes:
        """What is passed on of a piece; less than all if the connection is to be cut."""
        if not data:
            return data
        faults, chance = self.faults, self._chance
        drawn = chance.random()
        if drawn < faults.cut:
            self.done["cut"] += 1
            return data[: chance.randrange(len(data))]
        if drawn < faults.cut + faults.corrupt:
            self.done["corrupted"] += 1
            return chance.randbytes(len(data[:HEAD_BYTES])) + data[HEAD_BYTES:]
        if drawn < faults.cut + faults.corrupt + faults.delay:
            self.done["delayed"] += 1
            await asyncio.sleep(chance.uniform(0, faults.seconds_max))
        return data
