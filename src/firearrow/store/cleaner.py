"""Deletes the files that ``retention`` allows, and refuses sends while the disk is too full.

A round takes files out of the log, and their records' entries out of queues and index; from then on nobody reads there.
A thread removes the files, one after the other in the order of the log: a crash at any moment leaves a log without a
gap. For the same reason a file that can't be removed is not overtaken. It is tried again in each round, and no later
file leaves the store before it.

Source: RocketMQ's ``DefaultMessageStore.CleanCommitLogService``, ``CleanConsumeQueueService``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from firearrow.clock import Clock
from firearrow.errors import CorruptStore
from firearrow.logs import Log
from firearrow.store.commitlog import CommitLog
from firearrow.store.config import StoreConfig, forced_percent, warning_percent
from firearrow.store.fs import FileSystem
from firearrow.store.index import Index
from firearrow.store.queues import ConsumeQueue, ConsumeQueues
from firearrow.store.retention import (
    Circumstances,
    Consumed,
    FileVerdict,
    Pressure,
    Unconsumed,
    pressure_of,
    retention_verdicts,
    unconsumed_in,
    unconsumed_text,
)
from firearrow.store.segments import Segment

log: Final = Log(__name__)

# Java: CleanCommitLogService.MAX_MANUAL_DELETE_FILE_TIMES
_ROUNDS_ON_REQUEST: Final = 20


class _Leaving(NamedTuple):
    """A file that no longer belongs to the store and must be removed.

    ``of_log``: its removal must be on the disk before the next file is removed.
    """

    path: Path
    of_log: bool


class Cleaner:
    """One round is `clean`; the store's own thread calls it.

    ``settled_offset`` returns the end of the log that is on the disk and in the queues. ``progress`` returns the
    progress of the consumer groups, ``kept_from`` the start of the log that is still needed (None: no part). ``config``
    may be replaced.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        config: StoreConfig,
        clock: Clock,
        fs: FileSystem,
        settled_offset: Callable[[], int],
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._index = index
        self.config = config
        self._clock = clock
        self._fs = fs
        self._settled_offset = settled_offset
        self._rounds_on_request = 0
        self._stopping = threading.Event()
        self._removing: threading.Thread | None = None
        self._leaving: deque[_Leaving] = deque()
        self._leaving_lock = threading.Lock()
        self._refused: Path | None = None  # the file that could not be removed
        self.progress: Callable[[], Iterable[Consumed]] = tuple
        self.kept_from: Callable[[], int | None] = lambda: None

    def ask(self) -> None:
        """Delete files whatever the hour, in this round and the next nineteen."""
        self._rounds_on_request = _ROUNDS_ON_REQUEST

    def clean(self, *, aside: bool) -> None:
        """Take deletable files out of the store; a thread removes them if ``aside``, otherwise this call."""
        if self._removing is not None and self._removing.is_alive():
            return
        circumstances = self._circumstances()
        self._heed(circumstances.used)
        if not self._leaving:
            self._take_out(self._going(circumstances))
        if not self._leaving:
            return
        if not aside:
            self._remove()
            return
        self._removing = threading.Thread(target=self._remove, name="firearrow-clean", daemon=True)
        self._removing.start()

    def _take_out(self, going: list[FileVerdict]) -> None:
        """Take files out of the log, and everything derived from them out of the store."""
        if not going:
            return
        files = self._log.segments.files
        assert not self._leaving, "the files of the last round are removed first"
        assert len(going) < len(files), "the last file stays"
        assert all(verdict.segment is file for verdict, file in zip(going, files, strict=False)), "the oldest files go"
        gone = [self._log.segments.shift().path for _ in going]
        start = self._log.start_offset
        log.info(
            "files of the CommitLog are deleted: it begins later", extra={"physical_offset": start, "count": len(gone)}
        )
        derived = self._queues.delete_expired(start)
        if self._index is not None:
            derived += self._index.delete_expired(start)
        self._queues.correct_min(start)
        self._leaving.extend(_Leaving(path, of_log=True) for path in gone)
        self._leaving.extend(_Leaving(path, of_log=False) for path in derived)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Remove nothing inside this context; files that are gone at its end are forgotten.

        For the deletion of whole queues: new queues may give their files the same names.
        """
        with self._leaving_lock:
            try:
                yield
            finally:
                self._leaving = deque(file for file in self._leaving if file.path.exists())

    def stop(self) -> None:
        """End a running removal without its pauses, and wait for that."""
        self._stopping.set()
        if self._removing is not None:
            self._removing.join()

    def _circumstances(self) -> Circumstances:
        on_request = self._rounds_on_request > 0
        self._rounds_on_request -= on_request
        settled, kept = self._settled_offset(), self.kept_from()
        return Circumstances(
            self._clock.now_ms(),
            self._fs.used_ratio(self._log.segments.directory),
            self._fs.used_ratio(self.config.root_path),
            settled if kept is None else min(settled, kept),
            on_request,
        )

    def _heed(self, used: float) -> None:
        """Refuse sends on a disk that is too full; accept them again when usage is well below."""
        pressure = pressure_of(self.config, used)
        full = self._log.refused_by_owner
        if pressure is Pressure.FULL and not full:
            reason = (
                f"the disk is full: {used:.0%} are used, above {warning_percent(self.config)} % "
                "(diskSpaceWarningLevelRatio) nothing is stored"
            )
            log.error(
                "sends are refused: the disk is fuller than diskSpaceWarningLevelRatio allows",
                extra={"used_percent": round(100 * used), "limit_percent": warning_percent(self.config)},
            )
            self._log.refuse(reason)
        elif full and pressure < Pressure.FORCED:
            log.info(
                "sends are taken again",
                extra={"used_percent": round(100 * used), "limit_percent": forced_percent(self.config)},
            )
            self._log.refuse(None)

    def _going(self, circumstances: Circumstances) -> list[FileVerdict]:
        """The oldest files that may all be deleted now."""
        going: list[FileVerdict] = []
        verdicts = retention_verdicts(self._log.segments.files, self.config, circumstances, self._unconsumed_in)
        for verdict in islice(verdicts, self.config.delete_file_batch_max):
            if verdict.reasons:
                break
            if verdict.unconsumed and self.config.unconsumed_policy == "warn":
                log.error(
                    "file is deleted with messages that were not consumed",
                    extra={"path": verdict.segment.path, "unconsumed": unconsumed_text(verdict.unconsumed)},
                )
            going.append(verdict)
        return going

    def _unconsumed_in(self, segment: Segment) -> list[Unconsumed]:
        if self.config.unconsumed_policy == "delete":
            return []
        return unconsumed_in(segment, self.progress(), self._find)

    def _find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        try:
            return self._queues.find(topic, queue_id)
        except CorruptStore:  # nobody can consume from it
            return None

    def _remove(self) -> None:
        """Remove the files, with pauses in between, until none is left or the disk refuses."""
        while (file := self._remove_next()) is not None:
            config = self.config
            pause_ms = (
                config.delete_commit_log_files_interval if file.of_log else config.delete_consume_queue_files_interval
            )
            self._stopping.wait(pause_ms / 1000)

    def _remove_next(self) -> _Leaving | None:
        """Remove a file and return it; None if there is none, or it can't be removed."""
        with self._leaving_lock:
            if not self._leaving:
                return None
            file = self._leaving[0]
            try:
                if file.path.exists():  # the last try may have failed after the removal
                    self._fs.remove(file.path)
                if file.of_log:
                    self._fs.sync_directory(file.path.parent)
            except OSError as error:
                if self._refused != file.path:
                    log.error("expired file can't be removed", extra={"path": file.path, "error": error})
                self._refused = file.path
                return None
            self._leaving.popleft()
            return file
