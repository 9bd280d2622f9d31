"""Parts of proxies for tests: connections that pass data on to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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


async def pass_on(here: End, there: Sequence[End], to: Through, back: Through) -> None:
    """Pass data from here on to all ends there, and the answers of the first of them back. When either direction
    has ended, close all; when that is cancelled, end all at once.
    """
    ends = [here, *there]
    both = [
        asyncio.create_task(_pump(here.reader, [it.writer for it in there], to)),
        asyncio.create_task(_pump(there[0].reader, [here.writer], back)),
    ]
    others = [asyncio.create_task(_drain(other, back)) for other in there[1:]]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.writer.close()
        await asyncio.gather(*(end.writer.wait_closed() for end in ends), return_exceptions=True)
    finally:
        for end in ends:
            end.writer.transport.abort()
        for task in (*both, *others):
            task.cancel()
        await asyncio.wait((*both, *others))


async def _pump(source: asyncio.StreamReader, targets: list[asyncio.StreamWriter], through: Through) -> None:
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


async def _drain(other: End, through: Through) -> None:
    await _pump(other.reader, [], through)
    other.writer.close()
