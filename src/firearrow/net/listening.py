"""Listening on ports."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from firearrow.errors import CannotListen

ACCEPT_TURNS: Final = 2  # of asyncio's loop, until an accepted connection has its protocol


async def listen(
    connection: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    shares_port: bool = False,
) -> asyncio.Server:
    """Listen on ``host:port`` (0: a free port), with TLS if a context is given; CannotListen if that fails. No
    connection is accepted yet. The system divides the connections among the processes that share a port.
    """
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(
            connection,
            host,
            port,
            backlog=1024,
            reuse_address=True,
            reuse_port=shares_port or None,
            start_serving=False,
            ssl=tls,
        )
    except OSError as error:
        known = error.errno and not isinstance(error, socket.gaierror)
        reason = os.strerror(error.errno) if known and error.errno else str(error)
        raise CannotListen(error.errno, reason, f"{host}:{port}") from error


def port_of(server: asyncio.Server) -> int:
    """Return the port that a server listens on."""
    return int(server.sockets[0].getsockname()[1])


async def close_listeners(servers: Sequence[asyncio.Server]) -> None:
    """Stop listening; when this returns, each accepted connection has its protocol.

    A server of asyncio that is closed earlier drops such a connection, whose socket stays open.
    """
    loop = asyncio.get_running_loop()
    accepting = [loop.remove_reader(listener) for server in servers for listener in server.sockets]
    for _ in range(ACCEPT_TURNS if any(accepting) else 0):  # other loops are not in need of it
        await asyncio.sleep(0)
    for server in servers:
        server.close()
