"""Parts of proxies for tests: connections that pass data on to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

CHUNK_BYTES = 1 << 16

Through = Callable[[bytes], Awaitable[bytes]]
"""Returns the part of a piece to pass on, when it is time: a shorter part ends the connection. An empty piece is the
end of a side's data.
"""


class End(NamedTuple):
    """A proxy's end of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Passing:
    """All connections of a proxy."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()

    def join(self, here: End, there: Iterable[End], to: Through, back: Through) -> None:
        """Pass data from here on to all ends there, and the answers of the first of them back. When either direction
        has ended, all are closed.
        """
        ends = [here, *there]
        writers = [it.writer for it in ends]
        self._ends.update(writers)
        self._begin(here.reader, writers[1:], to, writers)
        self._begin(ends[1].reader, [here.writer], back, writers)
        for other in ends[2:]:
            self._begin(other.reader, [], back, [other.writer])

    def _begin(
        self,
        source: asyncio.StreamReader,
        targets: list[asyncio.StreamWriter],
        through: Through,
        ended: list[asyncio.StreamWriter],
    ) -> None:
        task = asyncio.create_task(self._pump(source, targets, through, ended))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        targets: list[asyncio.StreamWriter],
        through: Through,
        ended: list[asyncio.StreamWriter],
    ) -> None:
        try:
            while True:
                try:
                    data = await source.read(CHUNK_BYTES)
                except OSError:
                    data = b""  # the connection was reset
                passed = await through(data)
                for target in targets:
                    if not target.is_closing():  # otherwise the other end is gone
                        target.write(passed)
                if not data or len(passed) < len(data):
                    break
        finally:
            for writer in ended:
                writer.close()
            self._ends.difference_update(ended)

    def reset(self) -> None:
        """End all connections at once."""
        for writer in tuple(self._ends):
            writer.transport.abort()

    async def close(self) -> None:
        """End all connections, with their data in flight."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
