"""Decides when the disk gets what, and answers the sends that wait for it.

The log is flushed every ``flushIntervalCommitLog`` (500 ms); where less than
``flushCommitLogLeastPages`` (4) has come since, after ``flushCommitLogThoroughInterval`` (10 s).
Queues likewise have their interval (1 s), their least pages (2) and a thorough flush of all (60 s),
which alone moves the checkpoint. Under SYNC_FLUSH a send is answered once its bytes are on the
disk: one fdatasync answers all that came before it (group commit). A send that the disk keeps
waiting for more than ``syncFlushTimeout`` (5 s) is told so; its message stays stored.

In a running store two threads take the steps, one for the log and one for the rest, so that no send
waits for the flush of many queues. ``step`` takes them without threads: a simulation decides
then when the disk gets what.

Waiting sends belong to the event loop alone. The first of them asks for a flush; once that is over,
the loop answers all whom it covers, in one call, and then asks for the next one if others have come
meanwhile. To ask for that one before the answers are out was slower with a request at a time on
each connection: the senders fell into two groups that waited for each other's flushes. Where many
wait (``MANY_WAITERS``), the loop has enough to do, and the next flush follows the last at once.

Source: upstream ``FlushManager``, ``GroupCommitService``, ``FlushRealTimeService``,
``FlushConsumeQueueService``, ``FlushDiskWatcher``.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from firearrow.store.config import StoreConfig
from firearrow.store.flush import DerivedFlush, LogFlush

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
MANY_WAITERS: Final = 32
FAULTS_MAX: Final = 100  # logged causes: what fails in ever new ways needs no more lines

# Called with True once a physical offset is on the disk, with False when that is not to be had.
OnFlushed = Callable[[bool], None]


class Flusher:
    """Takes the steps of a store's flushing in their time.

    ``run_in_loop`` hands a callback from a thread to the event loop, in which all methods are to be
    called.
    """

    def __init__(
        self,
        log_flush: LogFlush,
        derived_flush: DerivedFlush,
        config: StoreConfig,
        monotonic: Callable[[], float],
        run_in_loop: Callable[[Callable[[], None]], object],
    ) -> None:
        self._log_flush = log_flush
        self._derived_flush = derived_flush
        self._config = config
        self._monotonic = monotonic
        self._run_in_loop = run_in_loop
        self._waiters: deque[tuple[int, float, OnFlushed]] = deque()
        self._wait_seconds_max = config.sync_flush_timeout / 1000
        self._asked = False
        now = monotonic()
        self._log_at = self._log_thorough_at = now  # when the log was last flushed so
        self._derived_at = self._derived_thorough_at = now
        self._log_worker = Worker("firearrow-flush-log", self._log_turn)
        self._derived_worker = Worker("firearrow-flush-queues", self._derived_step)

    # --- in the event loop ---

    def start(self) -> None:
        """Have the steps taken by threads from here on."""
        self._log_worker.start()
        self._derived_worker.start()

    def stop(self) -> None:
        """End the threads; who still waits is answered by ``finish``."""
        self._log_worker.stop()
        self._derived_worker.stop()

    def wait_for(self, physical_offset: int, on_flushed: OnFlushed) -> None:
        """Have ``on_flushed`` called once the log is on the disk up to an offset."""
        waiting = len(self._waiters)
        self._waiters.append(
            (physical_offset, self._monotonic() + self._wait_seconds_max, on_flushed)
        )
        if not waiting or waiting >= MANY_WAITERS:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Have the log flushed without waiting for its interval."""
        if not self._asked:
            self._asked = True
            self._log_worker.wake()

    def answer(self) -> None:
        """Tell who waited that the disk has, or will not have, what they sent."""
        waiters, flushed = self._waiters, self._log_flush.flushed_offset
        while waiters and waiters[0][0] <= flushed:
            waiters.popleft()[2](True)
        if self._log_flush.is_broken:
            self.refuse()
        elif waiters:
            self.flush_soon()

    def expire(self) -> None:
        """Tell who has waited too long that the disk has not answered."""
        waiters, now = self._waiters, self._monotonic()
        while waiters and waiters[0][1] <= now:
            waiters.popleft()[2](False)

    def refuse(self) -> None:
        """Tell all who wait that the disk does not confirm what they sent."""
        while self._waiters:
            self._waiters.popleft()[2](False)

    def step(self) -> None:
        """Flush what is due now, here, and answer who waited for it; OSError if the disk refuses.

        For a store without threads.
        """
        try:
            self._log_step()
        finally:
            self.answer()
            self.expire()
        self._derived_step()

    def finish(self) -> None:
        """Flush everything there is; the checkpoint then says so. OSError if the disk refuses."""
        try:
            self._log_flush.flush()
        finally:
            self.answer()
            self.refuse()
        self._derived_flush.flush_all(last=True)
        self._derived_flush.save_checkpoint()

    # --- in the threads ---

    def _log_turn(self) -> float:
        try:
            seconds = self._log_step()
        except OSError:
            self._asked = True  # the next turn tries again, if that is of use
            if self._log_flush.is_broken:
                self._run_in_loop(self.answer)
            raise
        if self._waiters:
            self._run_in_loop(self.answer)
        return seconds

    def _log_step(self) -> float:
        """Flush the log if it is time or was asked for; return the seconds until the next time."""
        config, now = self._config, self._monotonic()
        asked = self._asked
        if asked:  # whoever asks from here on asks for the next step
            self._asked = False
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
        """Flush queues and index if it is time; return the seconds until the next time."""
        config, now = self._config, self._monotonic()
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
    """A thread that takes a step when it is woken, and when the seconds are over that the step
    before asked for.

    Whatever a step raises is logged, once per cause, and the next one is taken all the same.
    """

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        self._step = step
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: go on, False: end
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._faults: set[str] = set()

    def start(self) -> None:
        """Start the thread, with a step at once."""
        self._thread.start()

    def wake(self) -> None:
        """Have a step taken now, or after the one that is under way."""
        self._calls.put(True)

    def stop(self) -> None:
        """End the thread after the step that is under way."""
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

    def _take_step(self) -> float:
        try:
            return self._step()
        except Exception as error:  # the boundary: nobody else would ever flush again
            fault = f"{type(error).__name__}: {error}"
            if fault not in self._faults and len(self._faults) < FAULTS_MAX:
                self._faults.add(fault)
                expected = isinstance(error, OSError)
                log.error(
                    "flush failed",
                    extra={"error": fault},
                    exc_info=None if expected else error,
                )
            return RETRY_SECONDS
