"""A way from code without an event loop to clients of asyncio: what `firearrow.client.blocking` is
made of.

All that is open at one time shares one event loop in a thread of its own, which ends with the last
of it. Methods are made of those of asyncio, with their types.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from firearrow.client.loopthread import LoopThread, leaving_signals
from firearrow.errors import ClientError

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")

_THREAD: Final = "firearrow client"


class _Shared:
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


_SHARED: Final = _Shared()
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
