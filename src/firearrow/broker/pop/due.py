"""Things that are to be done at a time of their own, thousands of which share one timer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from firearrow.services import Alarm, Scheduler

TICK_SECONDS: Final = 0.02  # upstream looks as often
_EARLY: Final = 1e-3  # of a tick: what a timer may be early by, and more than floats are inexact

Item = TypeVar("Item", bound=Hashable)


class Due(Generic[Item]):
    """Calls ``take`` with what is due, in the order of time, at most a tick late and never early.

    An item is in it once for each tick that ``add`` has given, until that is over or it is
    discarded.
    """

    def __init__(self, scheduler: Scheduler, take: Callable[[list[Item]], object]) -> None:
        self._scheduler = scheduler
        self._take = take
        self._alarm = Alarm(scheduler, self._ring)
        # Of each tick its items, in the order in which they came. One that has lost all stays until
        # it is over: so the heap has each tick once.
        self._items: dict[int, dict[Item, None]] = {}
        self._ticks: list[int] = []

    def add(self, item: Item, seconds: float) -> int:
        """Have an item taken in so many seconds; give the tick that it is discarded by."""
        now = self._scheduler.time()
        tick = int((now + seconds) / TICK_SECONDS) + 1
        items = self._items.get(tick)
        if items is None:
            items = self._items[tick] = {}
            heappush(self._ticks, tick)
            if self._ticks[0] == tick:
                self._alarm.set_earlier(tick * TICK_SECONDS - now)
        items[item] = None
        return tick

    def discard(self, item: Item, tick: int) -> None:
        """Take an item out unless its time is over."""
        items = self._items.get(tick)
        if items is not None:
            items.pop(item, None)

    def clear(self) -> None:
        """Take everything out."""
        self._alarm.cancel()
        self._items.clear()
        self._ticks.clear()

    def _ring(self) -> None:
        now = self._scheduler.time()
        present = int(now / TICK_SECONDS + _EARLY)
        due: list[Item] = []
        while self._ticks and self._ticks[0] <= present:
            due += self._items.pop(heappop(self._ticks))
        if self._ticks:
            self._alarm.set(self._ticks[0] * TICK_SECONDS - now)
        if due:
            self._take(due)
