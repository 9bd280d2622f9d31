"""Brings the timer's files to the disk, in every ``timerFlushIntervalMs`` with changes.

First the CommitLog: ``timercheck`` holds the times that are delivered. A loss of power must not keep ``timercheck`` and
lose messages that were put for these times. Java: TimerMessageStore does not flush the CommitLog, and may lose messages
that it has just delivered.

Source: RocketMQ's ``TimerMessageStore.TimerFlushService``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from firearrow.files import replace_atomically
from firearrow.logs import Log
from firearrow.services import Scheduler, Service
from firearrow.store.flush import PASSING, Failed
from firearrow.store.flushservice import LoopWorker, ThreadWorker, Worker
from firearrow.store.timers import TimerStore

log: Final = Log(__name__)

METRICS_SECONDS: Final = 10.0  # between writes of the counts, which a start makes again
_IDLE_SECONDS: Final = 3600.0


class TimerFlush(Service):
    """Takes the steps of the timer's flushing at their times; `moved` tells that there is something to flush.

    ``flush_log`` returns once the CommitLog is on the disk. ``metrics`` returns the bytes of ``timermetrics``. A thread
    takes the steps, or a ``scheduler``.
    """

    def __init__(
        self,
        timers: TimerStore,
        flush_log: Callable[[], None],
        metrics: Callable[[], bytes],
        interval_ms: int,
        monotonic: Callable[[], float],
        scheduler: Scheduler | None = None,
    ) -> None:
        super().__init__("timer flush")
        self._timers = timers
        self._flush_log = flush_log
        self._metrics = metrics
        self._interval = interval_ms / 1000
        self._monotonic = monotonic
        self._failed = Failed(PASSING)
        self._metrics_of = timers.progress
        self._asked = False
        self._turn = threading.Lock()  # held by code that changes the timer's files
        self._at = self._metrics_at = monotonic()
        self._worker: Worker = (
            ThreadWorker("firearrow-flush-timer", self._step)
            if scheduler is None
            else LoopWorker(scheduler, self._step)
        )

    async def start(self) -> None:
        """Begin to take the steps."""
        self._worker.start()

    async def stop(self) -> None:
        """Take the last step, in this call."""
        self._worker.stop()
        try:
            self.finish()
        except OSError as error:
            log.error(
                "timer can't be brought to the disk: messages that were delivered last may be delivered again",
                extra={"error": error},
            )

    @property
    def trouble(self) -> str | None:
        """Reason why the disk has refused the timer's files."""
        return None if self._failed.error is None else str(self._failed.error)

    def moved(self) -> None:
        """Flush the timer's files within the interval."""
        if not self._asked:
            self._asked = True
            self._worker.wake()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context that prevents flushes."""
        with self._turn:
            yield

    def finish(self) -> None:
        """Flush everything; OSError if the disk refuses."""
        self._flush()
        self._write_metrics()

    def _step(self) -> float:
        now = self._monotonic()
        assert now >= self._at, "its clock never goes back"
        if not self._asked:
            return _IDLE_SECONDS
        if now < self._at + self._interval:
            return self._at + self._interval - now
        self._at = now
        self._asked = False  # a change from here on is for the next step
        try:
            self._flush()
            if now >= self._metrics_at + METRICS_SECONDS:
                self._metrics_at = now
                self._write_metrics()
        except OSError:
            self._asked = True
            raise
        return self._interval

    def _flush(self) -> None:
        with self._turn:
            self._flush_progress()

    def _flush_progress(self) -> None:
        assert self._turn.locked(), "nobody changes the files meanwhile"
        progress, saved = self._timers.progress, self._timers.saved
        if progress == saved or not self._timers.wheel.is_there:
            return
        self._failed.check()
        try:
            self._flush_log()
            self._timers.flush(min(saved.end, progress.end), progress)
        except OSError as error:
            self._failed.note(error)
            raise
        self._timers.save(progress)

    def _write_metrics(self) -> None:
        if self._metrics_of != self._timers.saved and self._timers.wheel.is_there:
            self._metrics_of = self._timers.saved
            replace_atomically(self.metrics_path, self._metrics())

    @property
    def metrics_path(self) -> Path:
        """Path of the counts."""
        return self._timers.check_path.with_name("timermetrics")
