"""Limits on the connections of a server: their count, and the time that one may be idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol

from firearrow.logs import Log
from firearrow.machine import descriptors_max
from firearrow.net.grpc import GrpcPeer

log: Final = Log(__name__)

# share of the file descriptors for connections; the others are for files: a log that can't be opened is worse
DESCRIPTOR_PARTS: Final = 4
IDLE_SECONDS_MAX: Final = 120.0  # Java: serverChannelMaxIdleTimeSeconds
SWEEP_SECONDS: Final = 10.0


class RemotingPeer(Protocol):
    """Connection of remoting as this module sees it."""

    heard: bool
    """True if something came since the last sweep."""
    heard_before: float
    """Time of that sweep, or of the connection."""
    is_loopback: bool

    @property
    def waits(self) -> bool:
        """Tell whether reading is paused because other peers use too much memory."""
        ...

    def close(self, reason: str) -> None:
        """Close; a second call closes at once."""
        ...


class ConnectionLimit:
    """Limit on the count of connections, which leaves file descriptors to files."""

    def __init__(self) -> None:
        self.connections_max: int = descriptors_max() // DESCRIPTOR_PARTS * (DESCRIPTOR_PARTS - 1)
        self._is_full = False

    def admits(self, count: int) -> bool:
        """Tell whether a count of connections is within the limit of the server; log the first refusal."""
        if count <= self.connections_max:
            self._is_full = False
            return True
        if not self._is_full:
            self._is_full = True
            log.error(
                "too many connections are open: others are closed at once, ulimit -n allows more",
                extra={"connections_max": self.connections_max},
            )
        return False


class IdleSweep:
    """Closes idle connections of a server; ``peers`` are all its connections.

    A connection is idle while nothing comes. One of gRPC is also idle without any call, though it sends PINGs;
    ``grpc_seconds_max`` returns the limit for that, None for the general one. The owner of a connection in the same
    process ends it.
    """

    def __init__(
        self,
        peers: Collection[RemotingPeer | GrpcPeer],
        loop: Callable[[], asyncio.AbstractEventLoop],
        seconds_max: float,
        grpc_seconds_max: Callable[[], float | None],
    ) -> None:
        self._peers = peers
        self._loop = loop
        self._seconds_max = seconds_max
        self._grpc_seconds_max = grpc_seconds_max
        self._timer: asyncio.TimerHandle | None = None

    def plan(self) -> None:
        """Sweep from now on."""
        seconds = min(SWEEP_SECONDS, self._seconds_max, self._grpc_seconds_max() or SWEEP_SECONDS)
        self._timer = self._loop().call_later(seconds, self._sweep)

    def cancel(self) -> None:
        """Sweep no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        now = self._loop().time()
        silent = now - self._seconds_max
        grpc_seconds_max = self._grpc_seconds_max() or self._seconds_max
        for peer in list(self._peers):
            if isinstance(peer, GrpcPeer):
                peer.sweep(now, grpc_seconds_max)
            elif peer.is_loopback:
                continue
            if peer.heard:
                peer.heard = False
                peer.heard_before = now
            elif not peer.waits and peer.heard_before <= silent and not (isinstance(peer, GrpcPeer) and peer.probe()):
                peer.close(f"nothing heard for {self._seconds_max:g} s")
        self.plan()
