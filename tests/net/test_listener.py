"""A server, and the tests' own listeners, leave nothing behind, in whatever state their connections are."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from firearrow.clock import SystemClock
from firearrow.net.server import Server
from tests.crash.wires import INSIDE, OUTSIDE, Wires
from tests.net.listener import Listener

TURNS = range(12)  # of the loop, after which a connection is accepted, served and passed on


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(1))


Made = tuple[tuple[str, int], Callable[[], Coroutine[Any, Any, None]]]
"""An address, and what ends all that is there."""


async def of_listener() -> Made:
    listener = Listener()
    return (INSIDE, await listener.listen(echo)), listener.close


async def of_wires() -> Made:
    inside, wires = Listener(), Wires(Random(0))
    port = await inside.listen(echo)
    await wires.serve("server", port)

    async def close() -> None:
        await wires.close()
        await inside.close()

    return (OUTSIDE, port), close


async def of_server() -> Made:
    server = Server({}, SystemClock())
    return (INSIDE, await server.start(INSIDE, 0)), server.stop


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("made", [of_listener, of_wires, of_server])
def test_an_end_at_any_moment_leaves_no_socket(
    made: Callable[[], Coroutine[Any, Any, Made]], turns: int, recwarn: pytest.WarningsRecorder
) -> None:
    async def main() -> None:
        address, close = await made()
        with socket.create_connection(address) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await close()
            client.settimeout(1)
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""

    asyncio.run(main())
    gc.collect()
    assert [str(it.message) for it in recwarn] == []
