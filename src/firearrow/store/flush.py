"""Brings written data to the disk, in an order that recovery can rely on.

First the log, then the files derived from it and the directories that name them, then the checkpoint, which holds their
progress. For the times of the flushes see ``firearrow.store.flushservice``.

A failed flush is not repeated: the kernel drops the pages that it could not write and reports that once. From then on
nothing more is confirmed, and the next start checks everything again.

Source: RocketMQ's ``MappedFileQueue#flush``, ``FlushConsumeQueueService``, ``StoreCheckpoint``.
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

# These errors keep a file from being opened and tell nothing about its pages; any other error does.
PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class LogFlush:
    """Progress of the log's flush; ``flush`` may be called in any thread."""

    def __init__(self, commit_log: CommitLog, checkpoint: Checkpoint, flushed_offset: int = 0) -> None:
        assert 0 <= flushed_offset <= commit_log.end_offset
        self._log = commit_log
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        self._failed = Failed(PASSING)
        self.flushed_offset: int = flushed_offset

    @property
    def error(self) -> OSError | None:
        """Error of the disk when it refused the log, None if it has not."""
        return self._failed.error

    @property
    def is_broken(self) -> bool:
        """Tell whether the disk has refused the log."""
        return self._failed.error is not None

    def pages_behind(self) -> int:
        """Number of page boundaries between the written end and the flushed end."""
        return self._log.end_offset // FLUSH_PAGE_BYTES - self.flushed_offset // FLUSH_PAGE_BYTES

    def flush(self) -> None:
        """Return once everything that the log holds now is on the disk; OSError if that is impossible."""
        with self._lock:
            self._failed.check()
            # In this order the time is not later than that of the one append in progress.
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
        """Continue log and checkpoint at an earlier time, while no flush is in progress."""
        with self._lock:
            self._failed.check()
            assert now_ms <= self._log.last_store_ms
            known = self._checkpoint
            known.log_ms = min(known.log_ms, now_ms)
            known.queues_ms = min(known.queues_ms, now_ms)
            known.index_ms = min(known.index_ms, now_ms)
            self._log.last_store_ms = now_ms

    def not_after(self, stored_ms: int) -> int:
        """A store time, limited to the log's last store time, as the log may have gone back from later ones."""
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
        self._index_counts: dict[Path, int] = {}  # number of entries that are on the disk
        self._failed = Failed(PASSING | UNREACHABLE)  # a queue without its files is rebuilt
        self._saving = threading.Lock()

    def flush_queues(self, least_pages: int) -> None:
        """Flush the queues that have at least ``least_pages`` pages to flush; OSError if the disk refuses."""
        self._failed.check()
        try:
            self._queues.flush(least_pages)
        except OSError as error:
            self._failed.note(error)
            raise

    def flush_all(self, *, last: bool) -> None:
        """Flush the log, all queues and all full IndexFiles, and advance the checkpoint.

        ``last`` also flushes the IndexFile that is being filled. Raises OSError if the disk refuses; the checkpoint
        stays where it is, now and later.

        The progress of dispatch is noted before the flushes and written after them. A record before the checkpoint's
        place of queues counts as one that was on the disk: a start that misses it stops (``Recovery._was_on_disk``)
        instead of cutting the log there. So the log comes before the queues, and both before the checkpoint. A database
        of queues holds its own progress.
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
        """Write the checkpoint if it has moved; OSError if that fails. It may be tried again."""
        with self._saving:  # `go_back` comes from the event loop, all other calls from the thread
            current = replace(self._checkpoint)
            if current != self._saved and not self._log_flush.is_broken:
                current.save(self._root / "checkpoint", self._fs)
                self._saved = current

    def go_back(self, now_ms: int) -> None:
        """Continue the log at an earlier time; OSError if the checkpoint can't be written.

        Recovery takes records that were stored before the times of the checkpoint for flushed. So the checkpoint on the
        disk must not hold a time later than that of a record to come. Without this rule, simulated losses of power lost
        messages.
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
    """Failure of a flush that no later flush repairs: its error is not among the ``passing`` ones."""

    def __init__(self, passing: frozenset[int]) -> None:
        self._passing = passing
        self.error: OSError | None = None

    def note(self, error: OSError) -> None:
        """Keep an error that means lost pages."""
        if error.errno not in self._passing:
            self.error = error

    def check(self) -> None:
        """Raise the error of an earlier flush."""
        if self.error is not None:
            raise self.error
