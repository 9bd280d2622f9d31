"""Brings what was written to the disk, in an order that recovery can rely on.

First the log, then the files derived from it and the directories that name them, then the
checkpoint that says how far they are. When each is flushed: ``firearrow.store.flushservice``.

A flush that failed is not repeated: the kernel drops the pages that it could not write and says so
once. From there on nothing more is confirmed, and the next start looks at everything again.

Source: upstream ``MappedFileQueue#flush``, ``FlushConsumeQueueService``, ``StoreCheckpoint``.
"""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path
from typing import Final

from firearrow.store.checkpoint import Checkpoint
from firearrow.store.commitlog import CommitLog
from firearrow.store.config import FLUSH_PAGE_BYTES
from firearrow.store.dispatch import Dispatcher
from firearrow.store.fs import UNREACHABLE, FileSystem
from firearrow.store.index import Index
from firearrow.store.queues import ConsumeQueues

# What keeps a file from being opened says nothing of its pages; any other error does.
PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class LogFlush:
    """Progress of the log's flush; ``flush`` may be called in any thread."""

    def __init__(self, commit_log: CommitLog, checkpoint: Checkpoint, flushed_offset: int = 0) -> None:
        assert 0 <= flushed_offset <= commit_log.end_offset
        self._log = commit_log
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        self._failed = Failed(PASSING)
        self.flushed_offset = flushed_offset

    @property
    def error(self) -> OSError | None:
        """Error by which the disk has refused the log, None as long as it has not."""
        return self._failed.error

    @property
    def is_broken(self) -> bool:
        """Tell whether the disk has refused the log."""
        return self._failed.error is not None

    def pages_behind(self) -> int:
        """Number of page boundaries between the written end and the flushed end."""
        return self._log.end_offset // FLUSH_PAGE_BYTES - self.flushed_offset // FLUSH_PAGE_BYTES

    def flush(self) -> None:
        """Return once all that the log holds now is on the disk; OSError if it can't be."""
        with self._lock:
            self._failed.check()
            # In this order the time is at most that of the one append that is under way.
            stored_ms = self._log.last_store_ms
            end = self._log.end_offset
            if end <= self.flushed_offset:
                return
            try:
                self._log.segments.flush(self.flushed_offset, end)
            except OSError as error:
                self._failed.note(error)
                raise
            self.flushed_offset = end
            self._checkpoint.log_ms = stored_ms

    def go_back(self, now_ms: int) -> None:
        """Have log and checkpoint go on at an earlier time, while no flush is under way."""
        with self._lock:
            self._failed.check()
            known = self._checkpoint
            known.log_ms = min(known.log_ms, now_ms)
            known.queues_ms = min(known.queues_ms, now_ms)
            known.index_ms = min(known.index_ms, now_ms)
            self._log.last_store_ms = now_ms

    def not_after(self, stored_ms: int) -> int:
        """A store time, but none that the log has gone back from."""
        return min(stored_ms, self._log.last_store_ms)


class DerivedFlush:
    """Flushes queues and index, and moves the checkpoint; in one thread at a time."""

    def __init__(
        self,
        root: Path,
        log_flush: LogFlush,
        queues: ConsumeQueues,
        index: Index | None,
        dispatcher: Dispatcher,
        checkpoint: Checkpoint,
        fs: FileSystem,
    ) -> None:
        self._root = root
        self._log_flush = log_flush
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._fs = fs
        self._saved: Checkpoint | None = None
        self._index_counts: dict[Path, int] = {}  # entries that are on the disk
        self._failed = Failed(PASSING | UNREACHABLE)  # what is gone of a queue is rebuilt
        self._saving = threading.Lock()

    def flush_queues(self, least_pages: int) -> None:
        """Flush the queues that have so many pages to flush; OSError if the disk refuses."""
        self._failed.check()
        try:
            self._queues.flush(least_pages)
        except OSError as error:
            self._failed.note(error)
            raise

    def flush_all(self, *, last: bool) -> None:
        """Flush the log, all queues and all full IndexFiles, and let the checkpoint say so.

        ``last`` takes the IndexFile that is being filled as well. Raises OSError if the disk
        refuses; the checkpoint stays where it is, now and later.

        How far dispatch is, is noted first and said last. A record before what the checkpoint says
        of queues counts as one that was on the disk: a start that misses it stops
        (``Recovery._was_on_disk``) instead of cutting the log there. So the log comes before the
        queues, and both before the checkpoint. A database of queues says itself how far it is.
        """
        self._failed.check()
        stored_ms = self._dispatcher.last_store_ms
        physical_offset = self._dispatcher.last_physical_offset
        try:
            self._log_flush.flush()
            self._queues.flush(0)
            if stored_ms and self._queues.dispatched_offset is None:
                flushed_offset = self._log_flush.flushed_offset
                assert physical_offset < flushed_offset, "the log is there before the checkpoint"
                self._checkpoint.queues_ms = self._log_flush.not_after(stored_ms)
                self._checkpoint.queues_physical_offset = physical_offset
            self._flush_index(last=last)
        except OSError as error:
            self._failed.note(error)
            raise

    def save_checkpoint(self) -> None:
        """Write the checkpoint if it has moved; OSError if that fails, it may be tried again."""
        with self._saving:  # `go_back` comes from the event loop, all else from the thread
            current = replace(self._checkpoint)
            if current != self._saved and not self._log_flush.is_broken:
                current.save(self._root / "checkpoint", self._fs)
                self._saved = current

    def go_back(self, now_ms: int) -> None:
        """Have the log go on at an earlier time; OSError if the checkpoint can't be written.

        Recovery takes what was stored before the times of the checkpoint for flushed. So what is on
        the disk must not name one that records to come may be before: without this, simulated
        losses of power lost messages.
        """
        self._log_flush.go_back(now_ms)
        self.save_checkpoint()

    def _flush_index(self, *, last: bool) -> None:
        if self._index is None:
            return
        files = list(self._index.files)
        known = self._index_counts
        self._index_counts = {file.path: known.get(file.path, 0) for file in files}
        for file in files if last else files[:-1]:
            count, end_ms = file.count, file.end_ms
            if count > self._index_counts[file.path]:
                try:
                    self._fs.sync_file(file.path)
                except FileNotFoundError:
                    continue  # its time was over
                self._index_counts[file.path] = count
                end_ms = self._log_flush.not_after(end_ms)
                self._checkpoint.index_ms = max(self._checkpoint.index_ms, end_ms)


class Failed:
    """Failure of a flush that no later flush makes good: its error is not among the ``passing``."""

    def __init__(self, passing: frozenset[int]) -> None:
        self._passing = passing
        self.error: OSError | None = None

    def note(self, error: OSError) -> None:
        """Keep an error that means lost pages."""
        if error.errno not in self._passing:
            self.error = error

    def check(self) -> None:
        """Raise what happened before."""
        if self.error is not None:
            raise self.error
