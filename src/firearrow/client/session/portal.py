"""Run asyncio clients for code without an event loop; `firearrow.client.blocking` is built on this module.

All open clients share one event loop in a separate thread, which ends when the last of them closes. A blocking method
is derived from the asyncio method, with its types.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from firearrow.errors import ClientError

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")

_THREAD: Final = "firearrow client"


class _SharedThread:
    """The shared thread, which runs while a client is open."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin, or begin again in a fork, which has none of its parent's threads."""
        self._lock = threading.Lock()
        self._portal: LoopThread | None = None
        self._users = 0

    def join(self) -> LoopThread:
        with self._lock:
            if self._portal is None:
                self._portal = LoopThread(_THREAD)
            self._users += 1
            return self._portal

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._portal is not None:
                self._portal.close()
                self._portal = None


_SHARED: Final = _SharedThread()
os.register_at_fork(after_in_child=_SHARED.begin)


class Blocking(Generic[A]):
    """Blocking form of an asyncio client of type ``kind``; open between ``start`` and ``close``."""

    kind: ClassVar[Callable[..., Any]]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        given = [it.inner if isinstance(it, Blocking) else it for it in arguments]
        self.inner: A = type(self).kind(*given, **{name: _in_thread(value) for name, value in options.items()})
        self._portal: LoopThread | None = None
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Tell whether the client is open."""
        return self._portal is not None

    @property
    def portal(self) -> LoopThread:
        """Loop thread of the client. Raises ClientError unless the client is open."""
        if self._portal is None:
            raise ClientError(f"this {type(self).__name__} is not open: use it in `with`")
        return self._portal

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Open the client."""
        if self._portal is not None:
            raise ClientError(f"this {type(self).__name__} is open already")
        self._portal = _SHARED.join()
        started = False
        try:
            self._portal.run(self._opened())
            started = True
        finally:
            if not started:
                self._portal = None
                _SHARED.leave()

    def close(self) -> None:
        """Close the client. A second call, or a call by a second thread, does nothing. In a fork it only forgets the
        client that the parent opened."""
        opened = self._portal
        if opened is not None and not opened.is_here:
            self._portal = None  # the fork copied the lock, and a thread of the parent may hold it
            return
        with self._lock:
            portal, self._portal = self._portal, None
        if portal is not None:
            try:
                portal.run(self._closed())
            finally:
                _SHARED.leave()

    async def _opened(self) -> None:
        inner: Any = self.inner
        await inner.__aenter__()

    async def _closed(self) -> None:
        inner: Any = self.inner
        await inner.__aexit__(None, None, None)


def waiting(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Blocking form of a coroutine method."""

    @wraps(method)
    def call(self: Blocking[A], /, *arguments: P.args, **options: P.kwargs) -> T:
        return self.portal.run(method(self.inner, *arguments, **options))

    return call


def at_once(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Blocking form of a plain method; while the client is open, the method runs on the loop's thread."""

    @wraps(method)
    def call(self: Blocking[A], /, *arguments: P.args, **options: P.kwargs) -> T:
        if not self.is_open:
            return method(self.inner, *arguments, **options)

        async def do() -> T:
            return method(self.inner, *arguments, **options)

        return self.portal.run(do())

    return call


def entered(
    method: Callable[Concatenate[A, P], AbstractAsyncContextManager[T]],
) -> Callable[Concatenate[Blocking[A], P], AbstractContextManager[T]]:
    """Blocking form of an async context manager: its block runs here, its entry and exit on the loop's thread."""

    @wraps(method)
    @contextmanager
    def block(self: Blocking[A], /, *arguments: P.args, **options: P.kwargs) -> Iterator[T]:
        context = method(self.inner, *arguments, **options)
        value = self.portal.run(_entering(context))
        try:
            yield value
        except BaseException as error:
            if self.portal.run(_leaving(context, error)):
                return
            raise
        else:
            self.portal.run(_leaving(context, None))

    return block


async def _entering(context: AbstractAsyncContextManager[T]) -> T:
    return await context.__aenter__()


async def _leaving(context: AbstractAsyncContextManager[Any], error: BaseException | None) -> bool | None:
    if error is None:
        return await context.__aexit__(None, None, None)
    try:
        return await context.__aexit__(type(error), error, error.__traceback__)
    except BaseException as raised:
        if raised is error:
            return False
        raise


def _in_thread(value: Any) -> Any:
    """Wrap a plain function in a coroutine that runs it in another thread."""
    if not inspect.isfunction(value) or inspect.iscoroutinefunction(value):
        return value
    function = leaving_signals(value)

    async def call(*arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)

    return call


# --- Event loop in a separate thread ---


_OF_FAULTS: Final = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
SIGNALS: Final = signal.valid_signals() - _OF_FAULTS - {signal.SIGKILL, signal.SIGSTOP}
"""Signals that the threads of a client leave to the program.

A program may block signals for a moment, as Celery's pool does while one of its processes holds a lock. If a thread
took such a signal, the process would end and never release the lock.
"""


def leave_signals() -> None:
    """Leave signals to other threads from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def leaving_signals(function: Callable[..., T]) -> Callable[..., T]:
    """Wrap a function of the application for a thread that leaves signals to others.

    The function itself runs with the signal mask of the program. A process inherits the mask of the thread that starts
    it, so signals could not end a process that the function starts.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if mask >= SIGNALS:  # this is the thread of a loop
        mask -= SIGNALS

    @wraps(function)
    def call(*arguments: Any) -> T:
        before = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            return function(*arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return call


SIGNAL_SECONDS: Final = 0.5
"""Longest time until the main thread, which waits for a result, runs the program's handler of a signal.

The system may give a signal to a thread that has just unblocked signals, to run a function of the application. That
does not wake the main thread, and only the main thread runs handlers.
"""


def _result_of(running: Future[T], seconds_max: float | None) -> T:
    """Wait for a result. Raises TimeoutError after ``seconds_max``."""
    if threading.current_thread() is not threading.main_thread():
        return running.result(seconds_max)
    left = math.inf if seconds_max is None else seconds_max
    while True:
        try:
            return running.result(min(left, SIGNAL_SECONDS))
        except TimeoutError:
            if running.done():
                return running.result()
            left -= SIGNAL_SECONDS
            if left <= 0:
                raise


class LoopThread:
    """Thread ``name`` with an event loop; `run` runs a coroutine on it from any other thread.

    No call, and not the end either, waits longer than ``seconds_max``.
    """

    def __init__(self, name: str, seconds_max: float | None = None) -> None:
        self._seconds_max = seconds_max
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the thread inherits it
        try:
            self._thread.start()
        except RuntimeError:  # the system allows no more threads
            self._loop.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def is_here(self) -> bool:
        """Tell whether the thread is in this process: a fork has only the thread that forked."""
        return self._process == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. An interrupt cancels it. After ``seconds_max`` it is
        cancelled and this raises TimeoutError."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("a blocking call on the event loop's own thread would wait forever")
        if not self.is_here:
            work.close()
            raise ClientError("a client that was opened before a fork can't be used in the fork: open another")
        running: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return _result_of(running, self._seconds_max)
        except TimeoutError:
            if running.done():
                raise  # the coroutine's own TimeoutError
            raise TimeoutError(f"no result after {self._seconds_max:g} s") from None
        finally:
            running.cancel()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run ``last``, then end the loop, its remaining tasks and the thread.

        A finalizer may call this from any thread. On the loop's own thread it does not wait. In a fork it does nothing.
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
        with asyncio.Runner(loop_factory=lambda: self._loop):  # its exit ends tasks and threads
            self._loop.run_forever()
