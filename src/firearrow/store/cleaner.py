"""Deletes what ``retention`` finds may go, and refuses sends while the disk is too full.

A round takes files out of the log, and with them what queues and index have of their records; from
then on nobody reads there. The files themselves are removed by a thread, one after the other in the
order of the log: a crash at any moment leaves a log without a gap.

Source: upstream ``DefaultMessageStore.CleanCommitLogService``, ``CleanConsumeQueueService``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from firearrow.clock import Clock
from firearrow.store.commitlog import CommitLog
from firearrow.store.config import StoreConfig
from firearrow.store.fs import FileSystem
from firearrow.store.index import Index
from firearrow.store.queues import ConsumeQueues
from firearrow.store.retention import (
    Circumstances,
    Consumed,
    Pressure,
    Unconsumed,
    Verdict,
    forced_percent,
    judge,
    pressure_of,
    told,
    unconsumed_in,
    warning_percent,
)
from firearrow.store.segments import Segment

log = logging.getLogger(__name__)

# Java: CleanCommitLogService.MAX_MANUAL_DELETE_FILE_TIMES
_ROUNDS_ON_REQUEST: Final = 20


class Cleaner:
    """One round is `clean`; it is called in the store's own thread.

    ``settled_offset`` gives where the log is on the disk and in the queues up to, ``progress``
    where the consumer groups are. ``config`` may be replaced.
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
        self.progress: Callable[[], Iterable[Consumed]] = tuple

    def ask(self) -> None:
        """Delete what may go at this hour too, in this round and the next nineteen."""
        self._rounds_on_request = _ROUNDS_ON_REQUEST

    def clean(self, *, aside: bool) -> None:
        """Take out of the store what may go; the files are removed ``aside``, or here and now."""
        if self._removing is not None and self._removing.is_alive():
            return
        circumstances = self._circumstances()
        self._heed(circumstances.used)
        going = self._going(circumstances)
        if not going:
            return
        gone = [self._log.segments.shift() for _ in going]
        start = self._log.start_offset
        log.info("the log begins at %d now: %d files are deleted", start, len(gone))
        derived = self._queues.delete_expired(start)
        if self._index is not None:
            derived += self._index.delete_expired(start)
        self._queues.correct_min(start)
        if not aside:
            self._remove(gone, derived)
            return
        self._removing = threading.Thread(
            target=self._remove, args=(gone, derived), name="firearrow-clean", daemon=True
        )
        self._removing.start()

    def stop(self) -> None:
        """Have a removal that is under way end without its pauses, and wait for that."""
        self._stopping.set()
        if self._removing is not None:
            self._removing.join()

    def _circumstances(self) -> Circumstances:
        on_request = self._rounds_on_request > 0
        self._rounds_on_request -= on_request
        return Circumstances(
            self._clock.now_ms(),
            self._fs.used_ratio(self._log.segments.directory),
            self._fs.used_ratio(self.config.root_path),
            self._settled_offset(),
            on_request,
        )

    def _heed(self, used: float) -> None:
        """Refuse sends on a disk that is too full, and take them again when it is well below."""
        pressure = pressure_of(self.config, used)
        full = self._log.refused_by_owner
        if pressure is Pressure.FULL and not full:
            reason = (
                f"the disk is full: {used:.0%} are used, above {warning_percent(self.config)} % "
                "(diskSpaceWarningLevelRatio) nothing is stored"
            )
            log.error("sends are refused: %s", reason)
            self._log.refuse(reason)
        elif full and pressure < Pressure.FORCED:
            log.info(
                "sends are taken again: %.0f %% of the disk are used, no more than %d %%",
                100 * used,
                forced_percent(self.config),
            )
            self._log.refuse(None)

    def _going(self, circumstances: Circumstances) -> list[Verdict]:
        """The oldest files that may all go now."""
        going: list[Verdict] = []
        verdicts = judge(self._log.segments.files, self.config, circumstances, self._unconsumed_in)
        for verdict in islice(verdicts, self.config.delete_file_batch_max):
            if verdict.reasons:
                break
            if verdict.unconsumed and self.config.unconsumed_policy == "warn":
                log.error(
                    "%s is deleted with messages that were not consumed: %s",
                    verdict.segment.path,
                    told(verdict.unconsumed),
                )
            going.append(verdict)
        return going

    def _unconsumed_in(self, segment: Segment) -> list[Unconsumed]:
        if self.config.unconsumed_policy == "delete":
            return []
        return unconsumed_in(segment, self.progress(), self._queues.find)

    def _remove(self, gone: list[Segment], derived: list[Path]) -> None:
        """Remove files of the log, then of queues and index, with pauses in between."""
        try:
            for segment in gone:
                self._fs.remove(segment.path)
                self._fs.sync_directory(segment.path.parent)
                self._stopping.wait(self.config.delete_commit_log_files_interval / 1000)
            for path in derived:
                self._fs.remove(path)
                self._stopping.wait(self.config.delete_consume_queue_files_interval / 1000)
        except OSError as error:
            # What stays is part of the store again after the next start, and goes then.
            log.error("a file whose time is over can't be removed: %s", error)
