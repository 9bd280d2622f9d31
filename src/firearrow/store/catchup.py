"""Catch-up of queues and index that were left out, in small steps between other work.

A queue is left out when it can't be written (``laggingqueues``), and so is the index. Both are tried again after a
second, then after longer and longer waits, up to a minute. If the files are unchanged, dispatch is repeated from the
first missing record. Otherwise the queue's files go to the quarantine, and the queue is rebuilt from the start of the
log. Readers keep the old files meanwhile. The queue takes over the new files once they have everything that dispatch
has passed.

Java has no such thing: ConsumeQueue#putMessagePositionInfoWrapper retries for 150 s. No queue gets entries in that
time. Then it gives up the queue until the store is opened again.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from firearrow.errors import CorruptStore, StoreError
from firearrow.events import Event
from firearrow.logs import Log
from firearrow.store.commitlog import CommitLog
from firearrow.store.dispatch import STEP_RECORDS, Dispatcher
from firearrow.store.events import MessagesArrived
from firearrow.store.index import Index
from firearrow.store.laggingqueues import Key, concerns_all
from firearrow.store.queuefiles import AnyQueue, FileConsumeQueues, put_run, rows_of
from firearrow.store.queues import DispatchedEntries, WritableQueues

log: Final = Log(__name__)

_PAUSE_SECONDS: Final = 0.01  # between steps: the event loop has other work
_RETRY_SECONDS: Final = 1.0
_RETRY_SECONDS_MAX: Final = 60.0


class Targets:
    """Queues that are catching up, as the queues of a ``Dispatcher``.

    ``queues`` are still catching up; ``failed`` has the errors of the others.
    """

    def __init__(self, queues: dict[Key, AnyQueue], is_batch: Callable[[str], bool]) -> None:
        self.queues = queues
        self.is_batch = is_batch
        self.failed: dict[Key, OSError | CorruptStore] = {}

    def put(self, entries: DispatchedEntries, *, complete: bool = False) -> MessagesArrived:
        """Write each run to its queue, and give up a queue that can't be written. No message counts as arrived before a
        queue is complete.
        """
        data = rows_of(entries)
        for run in entries.each_run():
            key = run.topic, run.queue_id
            queue = self.queues.get(key)
            if queue is None:
                continue
            try:
                put_run(queue, entries, data, run, complete=complete)
            except (OSError, CorruptStore) as error:
                if isinstance(error, OSError) and concerns_all(error):
                    raise
                self.failed[key] = error
                self.queues.pop(key).close()
        return MessagesArrived()


class CatchUp:
    """Takes the steps, until all queues and the index have caught up with ``main``.

    ``dispatcher`` makes another dispatcher, for some queues and perhaps the index.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: FileConsumeQueues | None,
        index: Index | None,
        main: Dispatcher,
        dispatcher: Callable[[WritableQueues, Index | None, AbstractSet[Key]], Dispatcher],
        arrived: Event[MessagesArrived],
        monotonic: Callable[[], float],
        quarantine: Path,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._quarantine = quarantine
        self._index = index
        self._main = main
        self._dispatcher = dispatcher
        self._arrived = arrived
        self._monotonic = monotonic
        self._targets: Targets | None = None
        self._run: Dispatcher | None = None
        self._retry_at = 0.0
        self._wait_seconds = 0.0

    def step(self) -> float | None:
        """Take a step; return the seconds until the next one, None if nothing is left out."""
        if self._run is None:
            if not self._is_wanted:
                self._wait_seconds = 0.0
                return None
            if self._wait_seconds == 0.0:
                self._put_off()
            if self._monotonic() < self._retry_at:
                return self._retry_at - self._monotonic()
        try:
            if self._run is None:
                self._begin()
            elif self._run_on():
                return _PAUSE_SECONDS
            else:
                self._finish()
        except (OSError, StoreError) as error:
            log.warning("queues or index that were left out can't catch up now", extra={"error": error})
            if isinstance(error, StoreError) or not concerns_all(error):
                self.stop()
            self._put_off()
            return self._retry_at - self._monotonic()
        return _PAUSE_SECONDS

    @property
    def _is_wanted(self) -> bool:
        lacking = self._queues is not None and self._queues.can_catch_up
        return lacking or self._main.index_left_out

    def _put_off(self) -> None:
        """Wait longer than the last time."""
        self._wait_seconds = min(max(2 * self._wait_seconds, _RETRY_SECONDS), _RETRY_SECONDS_MAX)
        self._retry_at = self._monotonic() + self._wait_seconds

    def _begin(self) -> None:
        start = self._log.start_offset
        targets: dict[Key, AnyQueue] = {}
        begins: list[int] = []
        if self._queues is not None:
            for key in list(self._queues.left_out):
                found = self._queues.try_again(key, self._quarantine)
                if found is not None:
                    targets[key], since = found
                    begins.append(max(since, start))
        index = self._index if self._main.index_left_out else None
        if index is not None:
            index.forget_missing()
            begins.append(max(index.end_physical_offset, start))
        self._put_off()  # time of the next try, if this one fails
        if not begins:
            return
        assert self._run is None, "one try at a time"
        self._targets = Targets(targets, self._main.queues.is_batch)
        self._run = self._dispatcher(self._targets, index, targets.keys() | ())
        self._run.offset = min(begins)
        self._run.complete = self._run.offset == start

    def _run_on(self) -> bool:
        """Dispatch a step; return False once everything is dispatched that ``main`` has dispatched."""
        run = self._run
        assert run is not None
        if run.offset < self._log.start_offset:  # retention was faster
            run.offset = self._log.start_offset
            run.complete = True
        if run.offset >= self._main.offset or not (self._targets_left or run.index):
            return False
        run.run(STEP_RECORDS, self._main.offset)
        return True

    def _finish(self) -> None:
        run, targets = self._run, self._targets
        assert run is not None
        assert targets is not None
        if self._queues is not None:
            for key, error in targets.failed.items():
                self._queues.fail_again(key, error)
            self._arrived(
                MessagesArrived(self._queues.take_over(key, targets.queues.pop(key)) for key in list(targets.queues))
            )
        left = bool(targets.queues or run.index)
        assert not left or run.offset >= self._main.offset, "the remaining targets have everything"
        if run.index is not None:
            self._main.index, self._main.index_left_out = run.index, False
            log.info("index has all keys again")
        self._run = self._targets = None

    @property
    def _targets_left(self) -> bool:
        return self._targets is not None and bool(self._targets.queues)

    def stop(self) -> None:
        """Give up the catch-up in progress; it begins again later."""
        if self._targets is not None:
            for queue in self._targets.queues.values():
                queue.close()
        self._run = self._targets = None
