"""Upkeep of a growing archive: join small files, expire old days, remove leftovers.

Expiry is a commit that removes files from the table and writes none. It removes whole days, never today's, and raises
the first offset of each queue of the archive, so readers do not take expired messages for lost ones. ``firearrow
pipeline compact`` and ``expire`` do this once; `Upkeep` does it in an archive that follows its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow.parquet as pq

from firearrow.client.queues import Queue, Span
from firearrow.clock import Clock, SystemClock
from firearrow.logs import Log
from firearrow.spark.jobs.archive.compaction import GROUPS_OF_WORKER, compact
from firearrow.spark.jobs.archive.delta import KEPT_HOURS, Archive, Conflict, DataFile, QueueRows, State, TableChange
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.archive.parquet import ORDER, queues_in
from firearrow.spark.jobs.archive.progress import numbers_of_offsets
from firearrow.spark.jobs.workers import Workers

log: Final = Log(__name__)

PILED_UP: Final = 32  # small files of a topic and day: half an hour of steps, read in a second


@dataclass(frozen=True, slots=True)
class QueueLookup:
    """A file whose queues must be looked up."""

    place: FilePlace
    path: str


class Upkeep:
    """Join files as they pile up; once a day, join the files of all earlier days, expire and clean.

    ``keep_days`` is the number of days before today's that stay; None keeps all.
    """

    def __init__(
        self,
        workers: Workers,
        archive: Archive,
        keep_days: int | None = None,
        *,
        files_min: int = PILED_UP,
        kept_hours: int = KEPT_HOURS,
        clock: Clock | None = None,
    ) -> None:
        self._workers = workers
        self._archive = archive
        self._keep_days = keep_days
        self._files_min = files_min
        self._kept_hours = kept_hours
        self._clock = clock or SystemClock()
        self._done = ""

    def __call__(self) -> bool:
        """Do the work that is due; tell whether the table has changed.

        Joining is limited to some seconds, because messages wait meanwhile; the next call does the rest.
        """
        now_ms = self._clock.now_ms()
        today = day_of(now_ms)
        groups_max = self._workers.parallelism * GROUPS_OF_WORKER
        piled_up = compact(self._workers, self._archive, files_min=self._files_min, groups_max=groups_max)
        if today == self._done:
            return piled_up is not None
        expired: tuple[DataFile, ...] = ()
        if self._keep_days is not None:
            expired = expire(self._workers, self._archive, day_of(now_ms, self._keep_days))
        left = compact(self._workers, self._archive, before=today, groups_max=groups_max)
        if left is None or len(left.added) < groups_max:  # a full batch of groups leaves more to join
            removed = self._archive.clean(self._kept_hours)
            self._done = today
            log.info("archive is tidy", extra={"removed": removed})
        return any((piled_up, expired, left))


def day_of(now_ms: int, days_before: int = 0) -> str:
    """Return the day of a time, or a day before it, in UTC."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(days=days_before):%F}"


def expire(workers: Workers, archive: Archive, first_day: str) -> tuple[DataFile, ...]:
    """Remove the days before ``first_day`` from an archive; return the removed files.

    Running readers can still read them until ``Archive.clean`` removes them. If another process changes the same files
    at the same time, nothing is removed, and the call can be repeated.
    """
    state = archive.load()
    removed = tuple(file for file in state.files.values() if file.day < first_day)
    if not removed:
        return ()
    first = _first_left(workers, archive, state, removed)
    numbers = numbers_of_offsets("first", first)
    try:
        archive.commit(state, TableChange(what="expire", removed=removed, numbers=numbers))
    except Conflict:
        return ()
    return removed


def _first_left(workers: Workers, archive: Archive, state: State, removed: Sequence[DataFile]) -> dict[Queue, int]:
    """Return the first offsets of queues without some files.

    That is behind their last message in these files, unless a file that stays has earlier messages. The day of a
    message is that of its store time, and a clock may have been set back.
    """
    gone = {file.path for file in removed}
    ends: dict[Queue, int] = {}
    for rows in workers.run(_queues, [QueueLookup(archive.place, path) for path in gone]):
        for part in rows:
            ends[part.queue] = max(part.last + 1, ends.get(part.queue, 0))
    spans = {queue: Span(state.first.get(queue, 0), end) for queue, end in ends.items()}
    kept = [file for path, file in state.files.items() if path not in gone]
    earlier = [f for f in kept if any(f.may_hold(queue, span) for queue, span in spans.items())]
    for rows in workers.run(_queues, [QueueLookup(archive.place, file.path) for file in earlier]):
        for part in rows:
            if part.queue in ends:
                ends[part.queue] = min(part.first, ends[part.queue])
    return ends


def _queues(lookup: QueueLookup) -> list[QueueRows]:
    with lookup.place.open(lookup.path) as file:
        return queues_in(pq.ParquetFile(file).read(list(ORDER)))
