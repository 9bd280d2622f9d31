"""Decides the times of flushes.

The log is flushed every ``flushIntervalCommitLog`` (500 ms), or after ``flushCommitLogThoroughInterval`` (10 s) if
fewer than ``flushCommitLogLeastPages`` (4) pages have come since. Queues also have their interval (1 s), their least
pages (2) and a thorough flush of all queues (60 s). Only the thorough flush moves the checkpoint. Under SYNC_FLUSH a
send is answered once its bytes are on the disk (``acknowledging``): one fdatasync answers all sends that came before it
(group commit).

In a running store two threads take the steps, one for the log and one for the rest, so that no send waits for the flush
of many queues. Without threads the event loop takes them, or ``step``: a simulation then decides the times of the
flushes.

Source: RocketMQ's ``FlushManager``, ``FlushRealTimeService``, ``FlushConsumeQueueService``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from firearrow.events import Event
from firearrow.logs import Log
from firearrow.services import Scheduler, Service, Timer
from firearrow.store.config import StoreConfig
from firearrow.store.events import FlushRefused
from firearrow.store.flush import DerivedFlush, LogFlush

log: Final = Log(__name__)

RETRY_SECONDS: Final = 0.5
FAULTS_MAX: Final = 100  # limit of logged causes: a flush that always fails in new ways needs no more lines


class FlushService(Service):
    """Takes the steps of a store's flushing at their times; a condition of acknowledgement.

    ``run_in_loop`` hands a callback from a thread to the event loop, where all methods must be called. ``worker`` makes
    the object that takes the steps. If senders wait, ``moved`` tells, in the event loop, that more of the log is on the
    disk, or that the disk has refused it. ``refused`` is called once in the latter case.
    """

    def __init__(
        self,
        log_flush: LogFlush,
        derived_flush: DerivedFlush,
        config: StoreConfig,
        monotonic: Callable[[], float],
        run_in_loop: Callable[[Callable[[], None]], object],
        worker: MakeWorker,
        is_waited_for: Callable[[], bool],
        refused: Event[FlushRefused],
    ) -> None:
        super().__init__("flush")
        self._log_flush = log_flush
        self._derived_flush = derived_flush
        self._config = config
        self._monotonic = monotonic
        self._run_in_loop = run_in_loop
        self._is_waited_for = is_waited_for
        self._refused = refused
        self._has_told = False
        self.moved: Event[int] = Event()
        self._asked = False
        now = monotonic()
        self._log_at = self._log_thorough_at = now  # time of the last such flush of the log
        self._derived_at = self._derived_thorough_at = now
        self._log_worker = worker("firearrow-flush-log", self._log_turn)
        self._derived_worker = worker("firearrow-flush-queues", self._derived_step)

    # --- in the event loop ---

    async def start(self) -> None:
        """Begin to take the steps."""
        self.begin()

    async def stop(self) -> None:
        """Take no further step."""
        self.end()

    def begin(self) -> None:
        """Begin to take the steps."""
        self._log_worker.start()
        self._derived_worker.start()

    def end(self) -> None:
        """Take no further step; returns when none is in progress."""
        self._log_worker.stop()
        self._derived_worker.stop()

    @property
    def trouble(self) -> str | None:
        """Reason why the disk has refused the log."""
        return None if self._log_flush.error is None else str(self._log_flush.error)

    @property
    def reached(self) -> int:
        """End of the flushed log, as a physical offset."""
        return self._log_flush.flushed_offset

    @property
    def is_broken(self) -> bool:
        """Tell whether the disk has refused the log."""
        return self._log_flush.is_broken

    def ask(self) -> None:
        """Flush the log without waiting for its interval."""
        if not self._asked:
            self._asked = True
            self._log_worker.wake()

    def _tell(self) -> None:
        """Tell that more of the log is on the disk, or will never be."""
        error = self._log_flush.error
        if error is not None and not self._has_told:
            self._has_told = True
            self._refused(FlushRefused(error))
        self.moved(self.reached)

    def step(self) -> None:
        """Flush everything that is due now, in this thread, and tell of it; OSError if the disk refuses.

        For a store without threads.
        """
        try:
            self._log_step()
        finally:
            self._tell()
        self._derived_step()

    def finish(self) -> None:
        """Flush everything, and then the checkpoint. OSError if the disk refuses."""
        try:
            self._log_flush.flush()
        finally:
            self._tell()
        self._derived_flush.flush_all(last=True)
        self._derived_flush.save_checkpoint()

    # --- in the threads, if there are any ---

    def _log_turn(self) -> float:
        try:
            seconds = self._log_step()
        except OSError:
            self._asked = True  # the next turn tries again, unless the log is broken
            if self._log_flush.is_broken:
                self._run_in_loop(self._tell)
            raise
        if self._is_waited_for():
            self._run_in_loop(self._tell)
        return seconds

    def _log_step(self) -> float:
        """Flush the log if it is due or requested; return the seconds until the next time."""
        config, now = self._config, self._monotonic()
        asked = self._asked
        if asked:  # a request from here on is for the next step
            self._asked = False
        assert now >= self._log_at, "its clock never goes back"
        interval = config.flush_interval_commit_log / 1000
        timely = now >= self._log_at + interval
        thorough = now >= self._log_thorough_at + config.flush_commit_log_thorough_interval / 1000
        if timely:
            self._log_at = now
        if thorough:
            self._log_thorough_at = now
        least_pages = config.flush_commit_log_least_pages
        if asked or thorough or (timely and self._log_flush.pages_behind() >= least_pages):
            self._log_flush.flush()
        return max(self._log_at + interval - self._monotonic(), 0.0)

    def _derived_step(self) -> float:
        """Flush queues and index if they are due; return the seconds until the next time."""
        config, now = self._config, self._monotonic()
        assert now >= self._derived_at, "its clock never goes back"
        interval = config.flush_interval_consume_queue / 1000
        thorough_interval = config.flush_consume_queue_thorough_interval / 1000
        if now >= self._derived_at + interval:
            self._derived_at = now
            if now >= self._derived_thorough_at + thorough_interval:
                self._derived_thorough_at = now
                self._derived_flush.flush_all(last=False)
            else:
                self._derived_flush.flush_queues(config.flush_consume_queue_least_pages)
            self._derived_flush.save_checkpoint()
        return max(self._derived_at + interval - self._monotonic(), 0.0)


class Worker:
    """Takes a step when it is woken, and after the number of seconds that the last step returned.

    Any error of a step is logged, once per cause, and the next step is taken all the same.
    """

    def __init__(self, step: Callable[[], float]) -> None:
        self._step = step
        self._faults: set[str] = set()

    def start(self) -> None:
        """Take the first step, and continue."""
        raise NotImplementedError

    def wake(self) -> None:
        """Take a step now, or after the step in progress."""
        raise NotImplementedError

    def stop(self) -> None:
        """Take no step after the one in progress."""
        raise NotImplementedError

    def _take_step(self) -> float:
        try:
            return self._step()
        except Exception as error:  # the boundary: without it nothing would ever be flushed again
            fault = f"{type(error).__name__}: {error}"
            if fault not in self._faults and len(self._faults) < FAULTS_MAX:
                self._faults.add(fault)
                expected = isinstance(error, OSError)
                log.error("flush failed", extra={"error": fault}, exc_info=None if expected else error)
            return RETRY_SECONDS


MakeWorker = Callable[[str, Callable[[], float]], Worker]


class ThreadWorker(Worker):
    """Takes the steps in a separate thread."""

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        super().__init__(step)
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: go on, False: end
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which takes a step at once."""
        self._thread.start()

    def wake(self) -> None:
        """Take a step now, or after the step in progress."""
        self._calls.put(True)

    def stop(self) -> None:
        """End the thread after the step in progress."""
        if self._thread.is_alive():
            self._calls.put(False)
            self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            seconds = self._take_step()
            try:
                going = self._calls.get(timeout=seconds)
            except queue.Empty:
                continue


class LoopWorker(Worker):
    """Takes the steps in the event loop."""

    def __init__(self, scheduler: Scheduler, step: Callable[[], float]) -> None:
        super().__init__(step)
        self._scheduler = scheduler
        self._timer: Timer | None = None

    def start(self) -> None:
        """Take a step soon."""
        assert self._timer is None, "it takes its steps one after another"
        self._timer = self._scheduler.call_soon(self._run)

    def wake(self) -> None:
        """Take a step soon."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._scheduler.call_soon(self._run)

    def stop(self) -> None:
        """Take no further step."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = self._scheduler.call_later(self._take_step(), self._run)
