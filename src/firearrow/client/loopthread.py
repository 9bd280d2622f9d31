"""An event loop in a thread of its own, for code that has none."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from typing import Any, Final, TypeVar

from firearrow.errors import ClientError

T = TypeVar("T")

_OF_FAULTS: Final = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
SIGNALS: Final = signal.valid_signals() - _OF_FAULTS - {signal.SIGKILL, signal.SIGSTOP}
"""The signals that threads of a client leave to the program's own.

A program may block a signal for a moment, as Celery's pool does while a process of it holds a lock.
In a thread that does not, the signal would end that process, and the lock would be held for good.
"""


def leave_signals() -> None:
    """Leave signals to other threads from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def leaving_signals(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function of the application, for a thread that leaves signals to others.

    It runs with the mask of the program all the same: processes inherit the mask of the thread that
    starts them, and one that the function starts could not be told to end otherwise.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if mask >= SIGNALS:  # on the thread of a loop
        mask -= SIGNALS

    @wraps(function)
    def call(*arguments: Any) -> T:
        before = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            return function(*arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return call


class LoopThread:
    """The thread ``name`` and its loop; `run` has coroutines run there, from any other thread.

    None of them, nor the end, is waited for longer than ``seconds_max``.
    """

    def __init__(self, name: str, seconds_max: float | None = None) -> None:
        self._seconds_max = seconds_max
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the thread inherits it
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads
            self._loop.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def is_here(self) -> bool:
        """Tell whether the thread is in this process: a fork has no threads but the one that forked."""
        return self._process == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and give its result; an interrupt cancels it, and so does the end
        of the time that it may take, by TimeoutError."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("a blocking call on the event loop's own thread would wait for ever")
        if not self.is_here:
            work.close()
            raise ClientError("what was opened before a fork can't be used after it: open another")
        running: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(self._seconds_max)
        except TimeoutError:
            if running.done():
                raise  # its own
            raise TimeoutError(f"nothing came of it in {self._seconds_max:g} s") from None
        finally:
            running.cancel()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run ``last`` there, and end the loop and its thread, with the tasks that still run there.

        A finalizer may call it from any thread, the loop's own included, which is not waited for. In
        a fork it does nothing.
        """
        if not self.is_here:
            return
        self._loop.call_soon_threadsafe(self._end, last)
        if threading.current_thread() is not self._thread:
            self._thread.join(self._seconds_max)

    def _end(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        if last is None:
            self._loop.stop()
        else:
            self._last = self._loop.create_task(last())
            self._last.add_done_callback(lambda _: self._loop.stop())

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop):  # closing it ends tasks and threads
            self._loop.run_forever()
