"""Keys that all servers have: the address to listen on, and the limits of connections.

Each server has another key for its port: a controller's is in ``controllerDLegerPeers``.

Source: RocketMQ's ``NettyServerConfig``.
"""

from __future__ import annotations

from typing import Annotated

from firearrow.config.table import CountLong, Host, PositiveInt
from firearrow.config.tls import TlsKeys


class ListeningKeys(TlsKeys, frozen=True):
    """Address to listen on, and limits of connections."""

    bind_address: Annotated[Host, "address to listen on"] = "0.0.0.0"
    server_channel_max_idle_time_seconds: Annotated[
        PositiveInt, "seconds of silence after which a connection is closed"
    ] = 120
    request_memory_bytes_max: Annotated[
        CountLong,
        "bytes that unfinished requests, unread answers and the kept parts of heartbeats and "
        "registrations may hold together, at least 64 MiB; 0: a quarter of the memory",
    ] = 0
