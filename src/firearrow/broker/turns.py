"""Services that work in turns of some milliseconds, so that requests never wait for longer.

A turn ends when its time is over, and returns the seconds until the next one: 0 if more work is pending, infinity if
only an event brings more. An event may begin the next turn earlier. Failed work is retried after a pause. Until it
succeeds the service has a trouble, which the broker's status shows.

`TurnService` is for work that starts from the service's own state in each turn. `RoundService` is for work with many
steps that need each other's variables: a round is a generator, and a turn runs it to its next yield. A stop cancels the
next turn. A service with a step in flight overrides `stop` and finishes that step.

Time and calls come from the scheduler and the clock, so turns are deterministic in virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import Final

from firearrow.errors import BrokerError, PutLater, StoreError
from firearrow.logs import Log
from firearrow.services import Alarm, Scheduler, Service

log: Final = Log(__name__)

TURN_SECONDS: Final = 0.002  # requests wait for no longer than this and one step
TURN_STEPS_MAX: Final = 128  # some milliseconds, for a clock that stands still during a turn
RETRY_SECONDS: Final = 1.0  # until failed work, for example by a full disk, is retried
LOOK_SECONDS_MAX: Final = 10.0  # until a change of the wall clock is noticed
PASSING: Final = (BrokerError, StoreError, OSError)
"""Errors that may pass: the same work may succeed later."""

Steps = Generator[float | Exception, None, None]
"""Steps of a round. Each yields the seconds until the next step, or the error after which the step is retried."""


def steps_of_turn(monotonic: Callable[[], float], count_max: int = TURN_STEPS_MAX) -> Iterator[None]:
    """Yield once for each step that a turn has time for, at least one and at most ``count_max``."""
    until = monotonic() + TURN_SECONDS
    for _ in range(count_max):
        yield
        if monotonic() >= until:
            return


class TurnService(Service):
    """Service that does its work in turns. A subclass defines `_work`."""

    def __init__(self, name: str, scheduler: Scheduler, retry_seconds: float = RETRY_SECONDS) -> None:
        super().__init__(name)
        self._retry_seconds = retry_seconds
        self._alarm = Alarm(scheduler, self._turn)
        self._is_running = False
        self._trouble: str | None = None

    async def start(self) -> None:
        """Take the first turn after the present call."""
        self._is_running = True
        self._alarm.set(0)

    async def stop(self) -> None:
        """Take no further turn."""
        self._is_running = False
        self._alarm.cancel()

    def go_on(self) -> None:
        """Take the next turn now: work that failed before may succeed."""
        if self._is_running:
            self._alarm.set(0)

    def _wake(self, seconds: float) -> None:
        """Take the next turn in ``seconds``, unless it is due earlier."""
        if self._is_running:
            self._alarm.set_earlier(seconds)

    @property
    def trouble(self) -> str | None:
        """Reason why the last turn failed."""
        return self._trouble

    def _work(self) -> float:
        """Work for one turn; return the seconds until the next one, `math.inf` if an event begins it.

        An error of `PASSING` brings the next turn after a pause. With PutLater the service has no trouble: a message
        is in flight to another broker.
        """
        raise NotImplementedError

    def _pause(self) -> float:
        """Seconds until the turn after one that failed."""
        return self._retry_seconds

    def _turn(self) -> None:
        seconds, trouble = None, None
        try:
            seconds = self._work()
        except PutLater:
            pass
        except PASSING as error:
            trouble = str(error)
        except BaseException as error:
            trouble = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._note_trouble(trouble)
            if seconds is None:
                seconds = self._pause()
            if self._is_running and seconds < math.inf:
                self._alarm.set(seconds)

    def _note_trouble(self, error: str | None) -> None:
        if error is not None and error != self._trouble:
            log.error("service can't do its work now, and retries", extra={"service": self.name, "error": error})
        elif error is None and self._trouble is not None:
            log.info("service works again", extra={"service": self.name})
        self._trouble = error


class RoundService(TurnService):
    """Service whose work is a round of steps, and after a pause the next round.

    A subclass defines `_round` and `_after_round`. A trouble is over when a round has ended well.
    """

    _steps: Steps | None = None  # the round in progress

    def _round(self) -> Steps:
        raise NotImplementedError

    def _after_round(self) -> float:
        """Seconds until the next round, `math.inf` if an event begins it."""
        raise NotImplementedError

    def _work(self) -> float:
        if self._steps is None:
            self._steps = self._round()
        try:
            step = next(self._steps, None)
        except BaseException:
            self._steps = None
            raise
        if step is None:
            self._steps = None
            return self._after_round()
        if isinstance(step, Exception):
            raise step
        return step

    def _note_trouble(self, error: str | None) -> None:
        if error is not None or self._steps is None:
            super()._note_trouble(error)
