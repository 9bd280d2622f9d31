"""A way from code without an event loop to clients of asyncio: what `firearrow.client.blocking` is
made of.

All that is open at one time shares one event loop in a thread of its own, which ends with the last
of it. Methods are made of those of asyncio, with their types.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from firearrow.errors import ClientError

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")

_THREAD: Final = "firearrow client"


class _SharedThread:
    """The thread that all share, for as long as somebody needs it."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin, maybe anew: a fork has none of its parent's threads."""
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
    """A client of asyncio, ``kind``, behind the portal; it is open from ``start`` to ``close``."""

    kind: ClassVar[Callable[..., Any]]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        given = [it.inner if isinstance(it, Blocking) else it for it in arguments]
        self.inner: A = type(self).kind(*given, **{name: _in_thread(value) for name, value in options.items()})
        self._portal: LoopThread | None = None
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Tell whether it has been started and not closed."""
        return self._portal is not None

    @property
    def portal(self) -> LoopThread:
        """Loop on which it runs. Raises ClientError unless it is open."""
        if self._portal is None:
            raise ClientError(f"this {type(self).__name__} is not open: use it in `with`")
        return self._portal

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Open it."""
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
        """Close it; twice does no harm, nor do two threads that do so. In a fork, what its parent
        has opened is forgotten."""
        opened = self._portal
        if opened is not None and not opened.is_here:
            self._portal = None  # the lock is of the parent, too: a thread may hold it for ever
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
    """The method that waits for one of asyncio."""

    @wraps(method)
    def call(self: Blocking[A], /, *arguments: P.args, **options: P.kwargs) -> T:
        return self.portal.run(method(self.inner, *arguments, **options))

    return call


def at_once(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Blocking[A], P], T]:
    """The method that does what one without ``await`` does: once it is open, on the loop's
    thread."""

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
    """The method whose block is run here, and whose beginning and end on the loop's thread."""

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
    """A plain function as one of asyncio, which runs it in another thread."""
    if not inspect.isfunction(value) or inspect.iscoroutinefunction(value):
        return value
    function = leaving_signals(value)

    async def call(*arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)

    return call


# --- An event loop in a thread of its own, for code that has none ---


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
