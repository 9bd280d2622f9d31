"""Services: work of a server that time triggers, without a request.

A `Service` is started, works periodically, and is stopped. At any time it can report the trouble that keeps it from its
work. Its `Scheduler` decides the time: the event loop of a server, or a virtual one in a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Planned call."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


class Scheduler(Protocol):
    """Event loop as services see it."""

    def time(self) -> float:
        """Return the present time in seconds, as for planned calls."""
        ...

    def call_soon(self, call: Callable[[], object], /) -> Timer:
        """Plan a call for after the present one."""
        ...

    def call_later(self, seconds: float, call: Callable[[], object], /) -> Timer:
        """Plan a call in ``seconds``."""
        ...

    def call_soon_threadsafe(self, call: Callable[[], object], /) -> Timer:
        """Plan a call for soon, from any thread."""
        ...


Soon = Callable[[Callable[[], None]], object]
"""The event loop's `call_soon`: it calls a function after the present step."""
Later = Callable[[float, Callable[[], None]], object]
"""The event loop's `call_later`: it calls a function after some seconds."""


class Alarm:
    """Single call, at the time that was set last."""

    def __init__(self, scheduler: Scheduler, call: Callable[[], object]) -> None:
        self._scheduler = scheduler
        self._call = call
        self._timer: Timer | None = None
        self._at = math.inf

    @property
    def is_set(self) -> bool:
        """Tell whether the call is pending."""
        return self._timer is not None

    def set(self, seconds: float) -> None:
        """Plan the call in ``seconds``, after the present call in any case."""
        self.cancel()
        self._at = self._scheduler.time() + seconds
        if seconds > 0:
            self._timer = self._scheduler.call_later(seconds, self._ring)
        else:
            self._timer = self._scheduler.call_soon(self._ring)

    def set_earlier(self, seconds: float) -> None:
        """Plan the call unless it is due earlier anyway."""
        if self._scheduler.time() + seconds < self._at:
            self.set(seconds)

    def cancel(self) -> None:
        """Cancel the call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._at = None, math.inf

    def _ring(self) -> None:
        self._timer, self._at = None, math.inf
        self._call()


class Service:
    """Part of a server with a start and a stop; ``name`` is for logs and reports."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End; no work of the service is in progress on return."""

    @property
    def trouble(self) -> str | None:
        """Reason why it can't work at present, None if it can."""
        return None


class Every(Service):
    """Calls a function at a fixed interval, the first time after one interval.

    The scheduler reports an error of the call; the next call follows nevertheless. A call may return the seconds until
    the next one.
    """

    def __init__(self, name: str, seconds: float, call: Callable[[], float | None], scheduler: Scheduler) -> None:
        super().__init__(name)
        self._seconds = seconds
        self._call = call
        self._alarm = Alarm(scheduler, self._run)
        self._trouble: str | None = None

    async def start(self) -> None:
        """Plan the first call for the end of the first interval."""
        assert not self._alarm.is_set, "a service starts once"
        self._alarm.set(self._seconds)

    async def stop(self) -> None:
        """Make no further calls."""
        self._alarm.cancel()

    @property
    def trouble(self) -> str | None:
        """Error of the last call."""
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
