"""Joining of an archive's small files, in commits that count as a whole or not at all.

An archive that follows a store writes files each minute. Compaction joins the files of one topic and day, sorted by
broker, queue and queue offset like any other, with statistics and bloom filters. Delta's own compaction keeps no order,
so a queue could not be read back in order.

Readers of an earlier version of the table can go on, because replaced files stay until ``clean`` removes them.
Archiving goes on meanwhile. If two processes compact the same files, one commit counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from firearrow.config.kinds import MiB
from firearrow.errors import CorruptStore
from firearrow.spark.jobs.archive.archiving import file_stem
from firearrow.spark.jobs.archive.delta import Archive, Conflict, DataFile, State, TableChange, TableFile, WrittenFiles
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.archive.parquet import there, write_messages
from firearrow.spark.jobs.workers import Workers
from firearrow.spark.tables import MESSAGES

TARGET_BYTES: Final = 128 * MiB
GROUPS_OF_WORKER: Final = 4  # in a commit: the work that a killed process repeats


@dataclass(frozen=True, slots=True)
class CompactedFiles:
    """Files that were replaced, and the files in their places."""

    removed: tuple[DataFile, ...] = ()
    added: tuple[TableFile, ...] = ()

    def plus(self, more: CompactedFiles) -> CompactedFiles:
        """Count more."""
        return CompactedFiles(self.removed + more.removed, self.added + more.added)


@dataclass(frozen=True, slots=True)
class Merge:
    """Files that become one."""

    sources: tuple[DataFile, ...]
    place: FilePlace
    stem: str


def compact(
    workers: Workers,
    archive: Archive,
    *,
    target_bytes: int = TARGET_BYTES,
    files_min: int = 2,
    before: str | None = None,
    groups_max: int | None = None,
) -> CompactedFiles | None:
    """Join small files until each file of a topic and day has about ``target_bytes``, compressed.

    Groups of fewer than ``files_min`` files are left for later. So are the files of the day ``before`` and of later
    days, and all but the first ``groups_max`` groups. One commit covers several groups. Returns the replaced and the
    new files; None if there is nothing to do, or if another process has done it.
    """
    state = archive.load()
    groups = [
        group
        for group in _groups(state, target_bytes)
        if len(group) >= files_min and (before is None or group[0].day < before)
    ][:groups_max]
    done = CompactedFiles()
    at_once = workers.parallelism * GROUPS_OF_WORKER
    for at in range(0, len(groups), at_once):
        done = done.plus(_joined(workers, archive, state, groups[at : at + at_once]))
    return done if done.removed else None


def _joined(workers: Workers, archive: Archive, state: State, groups: Sequence[Sequence[DataFile]]) -> CompactedFiles:
    stem = file_stem(state.version + 1)
    merges = [Merge(tuple(g), archive.place, stem(number)) for number, g in enumerate(groups)]
    written = workers.run(_merge, merges)
    added = tuple(file for part in written for file in part.files)
    removed = tuple(file for group in groups for file in group)
    change = TableChange(what="compact", added=added, removed=removed, rewrites=True)
    try:
        with archive.uncommitted(added):
            there(archive.place, written)
            archive.commit(state, change)
    except Conflict:
        return CompactedFiles()
    return CompactedFiles(removed, added)


def _groups(state: State, target_bytes: int) -> Iterator[list[DataFile]]:
    """Yield groups of files to join: neighbours in their directory that are small together."""
    files = sorted(state.files.values(), key=lambda file: file.path)
    for _, in_directory in itertools.groupby(files, lambda file: (file.topic, file.day)):
        group: list[DataFile] = []
        size_bytes = 0
        for file in in_directory:
            if group and size_bytes + file.size_bytes > target_bytes:
                if len(group) > 1:
                    yield group
                group, size_bytes = [], 0
            group.append(file)
            size_bytes += file.size_bytes
        if len(group) > 1:
            yield group


def _merge(merge: Merge) -> WrittenFiles:
    """Join some files, in a worker."""
    written = write_messages(_batches(merge), merge.place, merge.stem, unique=False)
    rows, expected = (sum(f.rows for f in files) for files in (written.files, merge.sources))
    if rows != expected:
        names = ", ".join(file.path.rpartition("/")[2] for file in merge.sources)
        raise CorruptStore(f"{names}: have {rows} messages, but {expected} were written")
    return written


def _batches(merge: Merge) -> Iterator[pa.RecordBatch]:
    for source in merge.sources:
        with merge.place.open(source.path) as file:
            yield from pq.ParquetFile(file).read().cast(MESSAGES).to_batches()
