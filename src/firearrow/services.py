"""What a server does by time, without being asked.

A `Service` has a life: it is started, does something again and again, and is stopped; all that
while it can say how it is. When things happen is decided by the `Scheduler` that it is given: the
event loop of a server, a virtual one in a simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is planned."""

    def cancel(self) -> None:
        """Have the call not be made."""
        ...


class Scheduler(Protocol):
    """What services need of an event loop."""

    def time(self) -> float:
        """Give the seconds by which calls are planned."""
        ...

    def call_soon(self, call: Callable[[], object], /) -> Timer:
        """Have a call made after what is going on now."""
        ...

    def call_later(self, seconds: float, call: Callable[[], object], /) -> Timer:
        """Have a call made in so many seconds."""
        ...

    def call_soon_threadsafe(self, call: Callable[[], object], /) -> Timer:
        """Have a call made soon; any thread may ask for it."""
        ...


class Service:
    """Something with a life; ``name`` says in logs and reports what it is."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End; returns when nothing of it is under way any more."""

    @property
    def trouble(self) -> str | None:
        """What keeps it from its work at present, None while it is well."""
        return None


class Every(Service):
    """Makes a call every so many seconds, the first time after as many.

    What the call raises is for the scheduler to report; it is made again all the same. A call may
    give the seconds until the next one.
    """

    def __init__(
        self,
        name: str,
        seconds: float,
        call: Callable[[], float | None],
        scheduler: Scheduler,
    ) -> None:
        super().__init__(name)
        self._seconds = seconds
        self._call = call
        self._scheduler = scheduler
        self._timer: Timer | None = None
        self._trouble: str | None = None

    async def start(self) -> None:
        """Make the first call when the first interval is over."""
        self._plan(self._seconds)

    async def stop(self) -> None:
        """Make no further calls."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def trouble(self) -> str | None:
        """What the last call raised."""
        return self._trouble

    def _plan(self, seconds: float) -> None:
        self._timer = self._scheduler.call_later(seconds, self._run)

    def _run(self) -> None:
        seconds = self._seconds
        try:
            asked = self._call()
            self._trouble = None
            if asked is not None:
                seconds = asked
        except BaseException as error:
            self._trouble = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._plan(seconds)
