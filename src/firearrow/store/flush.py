"""Brings what was written to the disk, in a thread of its own, and answers who waits for that.

The order is what makes recovery safe: first the log, then the files derived from it, then the
checkpoint that says how far they are. The event loop never waits for the disk: a thread calls
fdatasync, which covers writes through maps, and lets the loop run meanwhile.

Under ASYNC_FLUSH the log is flushed every ``flushIntervalCommitLog`` (500 ms): that is the window
in which a loss of the machine, not of the process, loses messages. Under SYNC_FLUSH a send is
answered once its bytes are on the disk; one fdatasync answers all sends that came before it (group
commit).

Source: upstream ``FlushManager``, ``GroupCommitService``, ``FlushConsumeQueueService``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from firearrow.store.fs import FileSystem
from firearrow.store.segments import Segment

log = logging.getLogger(__name__)

_STEP_SECONDS: Final = 0.1

# Called with True once a physical offset is on the disk, with False when the disk refused.
OnFlushed = Callable[[bool], None]


def flush_segments(fs: FileSystem, segments: Iterable[Segment], start: int, end: int) -> None:
    """Return once the bytes ``start`` to ``end`` of an address space are on the disk."""
    for segment in segments:
        if segment.base < end and segment.end > start:
            fs.sync_file(segment.path)


class Flusher:
    """A thread that calls ``flush_log`` and ``flush_derived`` in their intervals.

    ``flush_log`` returns the physical offset up to which the log is now on the disk. ``complete``
    is called in the flusher's thread with the waiters that are done: it hands them to the event
    loop.
    """

    def __init__(
        self,
        flush_log: Callable[[], int],
        flush_derived: Callable[[], None],
        complete: Callable[[list[OnFlushed], bool], None],
        *,
        log_interval_seconds: float,
        derived_interval_seconds: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._flush_log = flush_log
        self._flush_derived = flush_derived
        self._complete = complete
        self._log_interval_seconds = log_interval_seconds
        self._derived_interval_seconds = derived_interval_seconds
        self._monotonic = monotonic
        self._waiters: deque[tuple[int, OnFlushed]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="firearrow-flush", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waiters that are left are completed by a last flush."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def wait_for(self, physical_offset: int, on_flushed: OnFlushed) -> None:
        """Have ``on_flushed`` called once the log is on the disk up to an offset."""
        self._waiters.append((physical_offset, on_flushed))
        self._wake.set()

    def _run(self) -> None:
        log_due = self._monotonic() + self._log_interval_seconds
        derived_due = self._monotonic() + self._derived_interval_seconds
        while not self._stopping:
            timeout = max(min(log_due, derived_due) - self._monotonic(), 0.0)
            self._wake.wait(timeout)
            self._wake.clear()
            now = self._monotonic()
            if self._waiters or now >= log_due:
                self._log_step()
                log_due = now + self._log_interval_seconds
            if now >= derived_due:
                self._derived_step()
                derived_due = now + self._derived_interval_seconds
        if self._waiters:
            self._log_step()

    def _log_step(self) -> None:
        waiting = len(self._waiters)
        try:
            flushed = self._flush_log()
        except OSError as error:
            log.error("the CommitLog can't be flushed: %s", error)
            self._complete([self._waiters.popleft()[1] for _ in range(waiting)], False)
            return
        done: list[OnFlushed] = []
        while self._waiters and self._waiters[0][0] <= flushed:
            done.append(self._waiters.popleft()[1])
        if done:
            self._complete(done, True)

    def _derived_step(self) -> None:
        try:
            self._flush_derived()
        except OSError as error:
            log.error("queues or index can't be flushed: %s", error)
