"""Calls on an event loop: a waiter for each, and one timer for the deadlines of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

from firearrow.wire.calls import AnswerWaiter, PendingCalls
from firearrow.wire.codes import ResponseCode
from firearrow.wire.frame import AnyCommand

Answered = asyncio.Future[AnyCommand]


class Pending:
    """Request in flight; ``await`` returns its answer, with any code, or raises as the call ended.

    It costs less than a future: the loop has work with it only if a task awaits it before the answer arrives. It may
    stay without a waiter. ``on_go_away`` is called when the server announces its departure.
    """

    __slots__ = ("_answer", "_error", "_on_go_away", "_waiter")

    def __init__(self, on_go_away: Callable[[], None]) -> None:
        self._on_go_away = on_go_away
        self._answer: AnyCommand | None = None
        self._error: OSError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def done(self) -> bool:
        """Tell whether the call has ended."""
        return self._answer is not None or self._error is not None

    def set_result(self, answer: AnyCommand) -> None:
        """Note the answer."""
        self._answer = answer
        self._wake()
        if answer.code == ResponseCode.GO_AWAY:
            self._on_go_away()

    def set_exception(self, error: OSError) -> None:
        """Note that no answer will come."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __await__(self) -> Generator[object, None, AnyCommand]:
        if not self.done():
            self._waiter = asyncio.get_running_loop().create_future()
            yield from self._waiter
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer


class FutureCalls:
    """Calls on one connection; ``on_overdue`` gets a sentence when an answer is overdue."""

    def __init__(
        self,
        calls: PendingCalls[AnswerWaiter],
        loop: asyncio.AbstractEventLoop,
        on_overdue: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._calls = calls
        self._loop = loop
        self._on_overdue = on_overdue
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def begin(self, command: AnyCommand, now: float, seconds: float) -> tuple[bytes, Answered]:
        """Return the frame of a request and its pending answer; raises as ``PendingCalls.begin``."""
        future: Answered = self._loop.create_future()
        return self.begin_for(future, command, now, seconds), future

    def begin_for(self, waiting: AnswerWaiter, command: AnyCommand, now: float, seconds: float) -> bytes:
        """Return the frame of a request with the caller's own waiter; raises as ``PendingCalls.begin``."""
        frame = self._calls.begin(command, waiting, now, seconds)
        self._ring_at(now + seconds)
        return frame

    def take(self, answer: AnyCommand) -> None:
        """Hand an answer to its waiter."""
        self._calls.take(answer)

    def end(self, why: str) -> None:
        """End all calls: the connection is lost."""
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
