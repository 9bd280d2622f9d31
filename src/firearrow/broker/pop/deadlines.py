"""Deadlines: thousands of them share one timer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from firearrow.services import Alarm, Scheduler

TICK_SECONDS: Final = 0.02  # RocketMQ looks at the same interval
_EARLY: Final = 1e-3  # of a tick: a timer may be early by this, and floats are less inexact

Item = TypeVar("Item", bound=Hashable)


class Deadlines(Generic[Item]):
    """Call ``take`` with due items in the order of time, at most a tick late and never early.

    An item is due once for each tick that ``add`` has returned, unless it is discarded before.
    """

    def __init__(self, scheduler: Scheduler, take: Callable[[list[Item]], object]) -> None:
        self._scheduler = scheduler
        self._take = take
        self._alarm = Alarm(scheduler, self._ring)
        # Items by tick, in the order of arrival. A tick without items stays until it is over, so the heap has
        # each tick once.
        self._items: dict[int, dict[Item, None]] = {}
        self._ticks: list[int] = []

    def add(self, item: Item, seconds: float) -> int:
        """Call ``take`` with an item in ``seconds``; return the tick that discards it."""
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
        """Remove an item unless its time is over."""
        items = self._items.get(tick)
        if items is not None:
            items.pop(item, None)

    def clear(self) -> None:
        """Remove everything."""
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
