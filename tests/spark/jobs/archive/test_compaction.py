"""Compaction joins files, and changes nothing of what they hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from firearrow.client.queues import Bound, Queue
from firearrow.errors import ConfigError, CorruptStore
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, archive
from firearrow.spark.jobs.archive.compaction import compact
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.archive.fileplace import FilePlace
from tests.spark.jobs.archive.test_archiving import every, rows_of
from tests.spark.jobs.inline import Elsewhere, Inline, Killed, Mortal
from tests.spark.origins import DAY_MS, MemoryOrigin

A, B, U = Queue("T", "a", 0), Queue("T", "a", 1), Queue("U", "a", 0)


def filled(root: Path) -> MemoryOrigin:
    """An archive of two topics and two days, in many small files."""
    base_ms = MemoryOrigin().base_ms + DAY_MS - 30_000
    origin = MemoryOrigin({A: Bound(0, 60), B: Bound(0, 20), U: Bound(5, 9)}, base_ms)
    archive(Inline(), lambda: origin, Archive(root), ArchiveSettings(step_rows_max=9))
    return origin


def test_files_of_a_topic_and_day_become_one(tmp_path: Path) -> None:
    origin = filled(tmp_path)
    before = Archive(tmp_path).load()
    done = compact(Inline(), Archive(tmp_path))
    assert done is not None
    state = Archive(tmp_path).load()
    assert len(before.files) > 15
    assert [(file.topic, file.day, file.rows) for file in state.files.values()] == [
        ("T", "2024-10-04", 50),
        ("T", "2024-10-05", 30),
        ("U", "2024-10-04", 4),
    ]
    assert state.offsets == before.offsets
    assert sorted(rows_of(tmp_path)) == every(origin)
    assert compact(Inline(), Archive(tmp_path)) is None


def test_the_archive_goes_on_afterwards(tmp_path: Path) -> None:
    origin = filled(tmp_path)
    compact(Inline(), Archive(tmp_path))
    origin.held[A] = Bound(0, 70)
    assert archive(Inline(), lambda: origin, Archive(tmp_path)).rows == 10
    assert sorted(rows_of(tmp_path)) == every(origin)


def test_files_of_the_right_size_stay(tmp_path: Path) -> None:
    filled(tmp_path)
    sizes = [file.size_bytes for file in Archive(tmp_path).load().files.values()]
    assert compact(Inline(), Archive(tmp_path), target_bytes=min(sizes)) is None
    assert compact(Inline(), Archive(tmp_path), target_bytes=2 * max(sizes)) is not None
    assert 3 < len(Archive(tmp_path).load().files) < len(sizes)


def test_a_death_anywhere_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = filled(tmp_path)
    mortal = Mortal(monkeypatch)
    deaths = 0
    for operations in range(200):
        mortal.left = operations
        try:
            compact(Inline(), Archive(tmp_path))
        except Killed:
            deaths += 1
        else:
            break
        mortal.left = -1
        assert sorted(rows_of(tmp_path)) == every(origin)
    mortal.left = -1
    assert 10 < deaths < 199
    assert sorted(rows_of(tmp_path)) == every(origin)


def test_a_file_that_lacks_messages_is_not_replaced(tmp_path: Path) -> None:
    filled(tmp_path)
    state = Archive(tmp_path).load()
    path = tmp_path / next(iter(state.files))
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(CorruptStore, match="have 49 messages, but 50 were written"):
        compact(Inline(), Archive(tmp_path))
    assert Archive(tmp_path).load() == state


def test_a_worker_that_has_a_directory_of_its_own_replaces_nothing(tmp_path: Path) -> None:
    origin, root = filled(tmp_path / "archive"), tmp_path / "archive"
    shutil.copytree(root, tmp_path / "alone")
    with pytest.raises(ConfigError, match=r"has written \S+, but it can't be seen on"):
        compact(Elsewhere("place", FilePlace(tmp_path / "alone")), Archive(root))
    assert sorted(rows_of(root)) == every(origin)
