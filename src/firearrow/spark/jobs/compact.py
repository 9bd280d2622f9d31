"""Many small files of an archive made few: a step each, whole or not at all.

An archive that follows a store writes files each minute. Compaction joins those of one topic and
day, sorted by broker, queue and queue offset like any other, and cuts the chain of manifests: its
own names everything that the archive holds. A process that is killed leaves the archive as it was
or as it will be.

Whoever reads the directories alone, while files are replaced, may miss messages for that moment,
but sees none twice; ``read_archive`` goes by the manifests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from firearrow.clock import Clock, SystemClock
from firearrow.errors import ConfigError, CorruptStore
from firearrow.spark.jobs.manifest import Archive, DataFile, Manifest, State
from firearrow.spark.jobs.parquet import Written, write_messages
from firearrow.spark.jobs.workers import Workers
from firearrow.spark.offsets import to_json
from firearrow.spark.options import MiB
from firearrow.spark.tables import MESSAGES

TARGET_BYTES: Final = 128 * MiB
LAKES: Final = "lakes"


@dataclass(frozen=True, slots=True)
class Merge:
    """Files that become one."""

    sources: tuple[Path, ...]
    rows: int
    staging: Path
    run: str
    stem: str


def compact(
    workers: Workers,
    archive: Archive,
    *,
    target_bytes: int = TARGET_BYTES,
    clock: Clock | None = None,
) -> Manifest | None:
    """Join small files until those of a topic and day are about ``target_bytes``, compressed.

    Gives the step that did it, None where nothing is to be done. Raises ConfigError for an archive
    whose files a table of Iceberg or Delta holds: that has to be compacted there.
    """
    with archive.changing() as state:
        if (archive.home / LAKES).exists():
            raise ConfigError(
                f"archive {archive.root}: its files also belong to an Iceberg or Delta table;"
                " compact that table"
            )
        groups = list(_groups(state, target_bytes))
        if not groups:
            return None
        run = archive.new_run()
        try:
            written = workers.run(_merge, _merges(archive, state, groups, run))
        except BaseException:
            archive.drop_run(run)
            raise
        manifest = _manifest(state, groups, written, run, clock or SystemClock())
        archive.commit(state, manifest)
    return manifest


def _groups(state: State, target_bytes: int) -> Iterator[list[DataFile]]:
    """Give files to be joined: neighbours in their directory that are small together."""
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


def _merges(archive: Archive, state: State, groups: list[list[DataFile]], run: str) -> list[Merge]:
    return [
        Merge(
            tuple(archive.place(file) for file in group),
            sum(file.rows for file in group),
            archive.staging,
            run,
            f"{state.sequence + 1:012}-{number:05}",
        )
        for number, group in enumerate(groups)
    ]


def _merge(merge: Merge) -> Written:
    """Join some files, in a worker."""
    batches = _batches(merge.sources)
    written = write_messages(batches, merge.staging, merge.run, merge.stem, unique=False)
    rows = sum(file.rows for file in written.files)
    if rows != merge.rows:
        names = ", ".join(path.name for path in merge.sources)
        raise CorruptStore(f"{names}: have {rows} messages, but {merge.rows} were written")
    return written


def _batches(paths: tuple[Path, ...]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            yield from file.read().cast(MESSAGES).to_batches()


def _manifest(
    state: State, groups: list[list[DataFile]], written: list[Written], run: str, clock: Clock
) -> Manifest:
    removed = {file.path for group in groups for file in group}
    return Manifest(
        archive=state.archive,
        sequence=state.sequence + 1,
        run=run,
        created_ms=clock.now_ms(),
        offsets=to_json(state.offsets),
        added=tuple(file for part in written for file in part.files),
        removed=tuple(sorted(removed)),
        gaps=tuple(state.gaps),
        marks=state.marks,
        files=tuple(file for path, file in state.files.items() if path not in removed),
    )
