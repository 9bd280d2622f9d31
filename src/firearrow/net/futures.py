"""Calls of an event loop: a future for each, and one timer for the deadlines of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firearrow.wire.calls import Calls
from firearrow.wire.frame import AnyCommand

Answered = asyncio.Future[AnyCommand]


class FutureCalls:
    """The calls on one connection; ``on_overdue`` gets a sentence when one was overdue."""

    def __init__(
        self,
        calls: Calls[Answered],
        loop: asyncio.AbstractEventLoop,
        on_overdue: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._calls = calls
        self._loop = loop
        self._on_overdue = on_overdue
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def begin(self, command: AnyCommand, now: float, seconds: float) -> tuple[bytes, Answered]:
        """Give the frame of a request and what will be its answer; raises as ``Calls.begin``."""
        future: Answered = self._loop.create_future()
        frame = self._calls.begin(command, future, now, seconds)
        self._ring_at(now + seconds)
        return frame, future

    def take(self, answer: AnyCommand) -> None:
        """Give an answer to its waiter."""
        self._calls.take(answer)

    def end(self, why: str) -> None:
        """End all: the connection is lost."""
        self._calls.end(why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring_at(self, when: float) -> None:
        if self._timer is not None:
            if self._rings_at <= when:
                return
            self._timer.cancel()
        self._rings_at = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        why = self._calls.expire(max(self._rings_at, self._loop.time()))
        if why is not None:
            self._on_overdue(why)
        deadline = self._calls.next_deadline
        if deadline is not None:
            self._ring_at(deadline)
