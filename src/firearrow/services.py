"""What a server does by time, without a request.

A `Service` is started, does something again and again, and is stopped; at any time it can say what
keeps it from its work. Its `Scheduler` decides when: the event loop of a server, or a virtual one
in a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is planned."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


class Scheduler(Protocol):
    """What services need of an event loop."""

    def time(self) -> float:
        """Give the time, in seconds, by which calls are planned."""
        ...

    def call_soon(self, call: Callable[[], object], /) -> Timer:
        """Plan a call for after the present one."""
        ...

    def call_later(self, seconds: float, call: Callable[[], object], /) -> Timer:
        """Plan a call in so many seconds."""
        ...

    def call_soon_threadsafe(self, call: Callable[[], object], /) -> Timer:
        """Plan a call for soon; any thread may do so."""
        ...


Soon = Callable[[Callable[[], None]], object]
"""The event loop's `call_soon`: it calls a function after the present step."""


class Alarm:
    """A call that is made once, at the time that was set last."""

    def __init__(self, scheduler: Scheduler, call: Callable[[], object]) -> None:
        self._scheduler = scheduler
        self._call = call
        self._timer: Timer | None = None
        self._at = math.inf

    @property
    def is_set(self) -> bool:
        """Tell whether the call is still to be made."""
        return self._timer is not None

    def set(self, seconds: float) -> None:
        """Have the call made in so many seconds, after the present one in any case."""
        self.cancel()
        self._at = self._scheduler.time() + seconds
        if seconds > 0:
            self._timer = self._scheduler.call_later(seconds, self._ring)
        else:
            self._timer = self._scheduler.call_soon(self._ring)

    def set_earlier(self, seconds: float) -> None:
        """Set it unless it is to ring before that anyway."""
        if self._scheduler.time() + seconds < self._at:
            self.set(seconds)

    def cancel(self) -> None:
        """Have no call made."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._at = None, math.inf

    def _ring(self) -> None:
        self._timer, self._at = None, math.inf
        self._call()


class Service:
    """A part of a server with a start and a stop; ``name`` is for logs and reports."""

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
    """Makes a call at a fixed interval, the first after one interval.

    The scheduler reports what a call raises; the next call is made all the same. A call may return
    the seconds until the next one.
    """

    def __init__(self, name: str, seconds: float, call: Callable[[], float | None], scheduler: Scheduler) -> None:
        super().__init__(name)
        self._seconds = seconds
        self._call = call
        self._alarm = Alarm(scheduler, self._run)
        self._trouble: str | None = None

    async def start(self) -> None:
        """Make the first call when the first interval is over."""
        assert not self._alarm.is_set, "a service is started once"
        self._alarm.set(self._seconds)

    async def stop(self) -> None:
        """Make no further calls."""
        self._alarm.cancel()

    @property
    def trouble(self) -> str | None:
        """What the last call raised."""
        return self._trouble

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
            self._alarm.set(seconds)
