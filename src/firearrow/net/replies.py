"""Coroutines without a task: they run at once, and go on in the call that delivers the answer they wait for.

A handler that asks another server reads best as a coroutine. A task for each call of a client would cost more than its
work: a task, a future and two turns of the event loop. `run` costs a microsecond instead. A coroutine that it runs may
wait for a `Reply` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Running = Coroutine["Reply[Any]", None, T]


class Reply(Generic[T]):
    """Value that comes later; one coroutine may await it."""

    __slots__ = ("_error", "_is_done", "_is_replaced", "_value", "wake")

    def __init__(self) -> None:
        self._is_done = self._is_replaced = False
        self._value: T | None = None
        self._error: Exception | None = None
        self.wake: Callable[[], None] | None = None
        """Called once when the value has come."""

    def done(self) -> bool:
        """Tell whether the value, or an error in its place, has come."""
        return self._is_done

    @property
    def value(self) -> T | None:
        """The value; None until it has come, or if an error has come instead."""
        return self._value

    def set_result(self, value: T) -> None:
        """Take the value."""
        if not self._is_replaced:
            assert not self._is_done, "a reply comes once"
            self._value = value
            self._finish()

    def set_exception(self, error: Exception) -> None:
        """Take the error that came instead of a value."""
        if not self._is_replaced:
            assert not self._is_done, "a reply comes once"
            self._error = error
            self._finish()

    def replace(self, value: T) -> None:
        """Take a value in place of the reply, which is dropped when it comes."""
        self.set_result(value)
        self._is_replaced = True

    def _finish(self) -> None:
        self._is_done = True
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()

    def __await__(self) -> Generator[Reply[T], None, T]:
        if not self._is_done:
            yield self
        assert self._is_done, "a coroutine goes on when its reply has come"
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Run(Generic[T]):
    """A coroutine that is running; ``done`` gets its result, ``failed`` its error."""

    __slots__ = ("_coroutine", "_done", "_failed", "_waits_for")

    def __init__(
        self, coroutine: Running[T], done: Callable[[T], object], failed: Callable[[Exception], object]
    ) -> None:
        self._coroutine = coroutine
        self._done = done
        self._failed = failed
        self._waits_for: Reply[Any] | None = None

    def go_on(self) -> None:
        """Run until the next reply that has not come yet, or to the end."""
        self._waits_for = None
        try:
            reply = self._coroutine.send(None)
        except StopIteration as end:
            self._done(end.value)
            return
        except Exception as error:  # its owner decides
            self._failed(error)
            return
        self._waits_for = reply
        reply.wake = self.go_on

    def cancel(self) -> None:
        """End the coroutine where it waits; its result and its error are lost."""
        if self._waits_for is not None:
            self._waits_for.wake = None
        self._coroutine.close()


def run(coroutine: Running[T], done: Callable[[T], object], failed: Callable[[Exception], object]) -> Run[T]:
    """Run a coroutine until it waits; ``done`` or ``failed`` is called at its end, maybe before this returns."""
    running = Run(coroutine, done, failed)
    running.go_on()
    return running


async def in_task(coroutine: Running[T]) -> T:
    """Await such a coroutine in a task, where a `Reply` can't be awaited."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(value: T) -> None:
        if not future.done():  # the task may be cancelled
            future.set_result(value)

    def failed(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    run(coroutine, done, failed)
    return await future
