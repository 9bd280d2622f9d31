"""When what was appended is dispatched.

The first message after a rest is dispatched at once; under load they gather into batches, which
cost less and disturb fewer sends: shortly while somebody waits for messages, longer while nobody
does. Who reads or looks something up meanwhile doesn't wait for the long interval
(``MessageStore.catch_up``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from firearrow.services import Scheduler, Service, Timer

WAITED_FOR_SECONDS: Final = 0.002
UNWAITED_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 1.0  # how soon a full disk is tried again


class Dispatching(Service):
    """Calls ``dispatch``, which returns whether there is more. ``behind_bytes`` gives how much, and
    ``stuck`` why nothing can be dispatched.

    ``watchers`` is the number of those who wait for messages at present.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        dispatch: Callable[[], bool],
        behind_bytes: Callable[[], int],
        stuck: Callable[[], str],
    ) -> None:
        super().__init__("dispatch")
        self._scheduler = scheduler
        self._dispatch = dispatch
        self._behind_bytes = behind_bytes
        self._stuck = stuck
        self._last = -math.inf
        self._planned: Timer | None = None
        self.watchers = 0

    async def stop(self) -> None:
        """Dispatch nothing more."""
        self.cancel()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be dispatched."""
        return self._stuck() or None

    def wake(self) -> None:
        """Dispatch the first new message: now if the last batch is long enough ago, else when the
        interval is over."""
        if self._planned is not None:  # for what others have dispatched meanwhile
            return
        interval = WAITED_FOR_SECONDS if self.watchers else UNWAITED_SECONDS
        self._plan(max(self._last + interval - self._scheduler.time(), 0.0))

    def watch(self) -> None:
        """Somebody waits from now on: pending messages must not wait for the long interval."""
        self.watchers += 1
        if self.watchers == 1 and self._planned is not None:
            self.cancel()
            self.wake()

    def unwatch(self) -> None:
        """One of those who wait waits no longer."""
        self.watchers -= 1

    def cancel(self) -> None:
        """Dispatch nothing more unless it is woken again."""
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None

    def _plan(self, seconds: float) -> None:
        self._planned = self._scheduler.call_later(seconds, self._run)

    def _run(self) -> None:
        self._planned = None
        before = self._behind_bytes()
        more = True  # whatever happens, it will be tried again
        try:
            more = self._dispatch()
        finally:
            self._last = self._scheduler.time()
            if more:
                stuck = self._behind_bytes() >= before
                self._plan(RETRY_SECONDS if stuck else 0)
