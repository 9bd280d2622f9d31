"""A gRPC connection without a socket or an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

from firearrow.net.budget import Budget
from firearrow.net.grpc import GrpcLimits, GrpcPeer, Method
from firearrow.net.outgoing import Departures
from firearrow.net.turns import Turns


class Line(asyncio.Transport):
    """Transport that keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_read = True
        self._is_closing = False

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self.sent += data

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def get_write_buffer_size(self) -> int:
        return 0


class FakeHost:
    """Server of one connection, with turns that a test takes. Its clock goes by a millisecond a look."""

    def __init__(self, methods: Mapping[bytes, Method]) -> None:
        self.peers: set[GrpcPeer] = set()
        self._soon: deque[Callable[[], object]] = deque()
        self._ms = 0
        self.budget = Budget(1, self.peers, lambda: 0.0, lambda _, call: None)
        self.departures = Departures(lambda: cast(asyncio.AbstractEventLoop, self))
        self.turns = Turns(lambda: cast(asyncio.AbstractEventLoop, self), self._look)
        self.now_ms = self._look
        self.line = Line()
        self.peer = GrpcPeer(self, methods, GrpcLimits(), self.line)
        self.peers.add(self.peer)

    def _look(self) -> int:
        self._ms += 1
        return self._ms

    def call_soon(self, call: Callable[[], object]) -> None:
        """Note a call for the next turn, as an event loop does."""
        self._soon.append(call)

    def forget(self, peer: GrpcPeer) -> None:
        """Remove the connection."""
        self.peers.discard(peer)

    def run(self) -> None:
        """Take turns until nothing is left to do."""
        while self._soon:
            self._soon.popleft()()
