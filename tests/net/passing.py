"""What proxies of tests are made of: connections of which one gets what the other one says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

CHUNK_BYTES = 1 << 16

Through = Callable[[bytes], Awaitable[bytes]]
"""Gives what is passed on of a piece, when it is time: less ends the connection. The end of what a
side says is an empty piece."""


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
        """Pass on what comes from here to all of those there, and what the first of them answers.
        When either way has come to its end, all are closed."""
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
                    data = b""  # it was reset
                passed = await through(data)
                for target in targets:
                    if not target.is_closing():  # else whoever was there is gone, unheard
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
        """End all connections, whatever is under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
