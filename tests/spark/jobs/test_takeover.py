"""Archives of the old format become Delta tables, wherever that was ended."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from firearrow.client.queues import Bound, Queue
from firearrow.errors import ConfigError, CorruptStore, StoreLocked
from firearrow.spark.jobs.archive import archive
from firearrow.spark.jobs.delta import OLD, Archive
from firearrow.spark.jobs.progress import Gap, LogMark
from firearrow.spark.jobs.takeover import take_over
from tests.archives import unpack
from tests.spark.jobs.inline import Inline, Killed, Mortal
from tests.spark.jobs.test_archive import every, rows_of
from tests.spark.origins import DAY_MS, MemoryOrigin

DATA = Path(__file__).parents[2] / "data" / "archives"
A, B, RETRY = Queue("T", "a", 0), Queue("T", "a", 1), Queue("%RETRY%g", "b", 0)
HELD = sorted(
    every(MemoryOrigin({A: Bound(5, 60), B: Bound(0, 25), RETRY: Bound(0, 3)}))
    + every(MemoryOrigin({A: Bound(70, 80)}))
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return unpacked("format1", tmp_path)


def unpacked(name: str, to: Path) -> Path:
    unpack(DATA / f"{name}.tar.gz", to)
    return to / name


def test_an_old_archive_is_not_read_but_tells_the_command(old: Path) -> None:
    with pytest.raises(ConfigError, match=f"firearrow pipeline take-over --archive {old} makes it"):
        Archive(old).load()


def test_it_becomes_a_table_with_all_that_it_knew(old: Path) -> None:
    held = Archive(old)
    assert take_over(held) == 6
    assert take_over(held) is None
    assert sorted(rows_of(old)) == HELD
    state = held.load()
    assert state.offsets == {A: 80, B: 25, RETRY: 3}
    assert state.first == {A: 5, B: 0, RETRY: 0}
    assert state.progress.gaps == [Gap(*A, 60, 70, 10)]
    base_ms = MemoryOrigin().base_ms + DAY_MS - 30_000
    stored_ms = base_ms + 79_000
    assert state.progress.marks[-1] == LogMark("a", 79_000, stored_ms)
    assert {p.name for p in old.iterdir()} == {"_delta_log", "topic=T", "topic=%25RETRY%25g"}
    origin = MemoryOrigin({A: Bound(70, 90)}, base_ms)
    assert archive(Inline(), lambda: origin, held).rows == 10


def test_a_death_anywhere_is_made_good_by_the_next(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mortal = Mortal(monkeypatch)
    deaths = 0
    for operations in range(60):
        root = tmp_path / "copy"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(old, root)
        mortal.left = operations
        try:
            take_over(Archive(root))
        except Killed:
            deaths += 1
        else:
            break
        mortal.left = -1
        take_over(Archive(root))
        assert sorted(rows_of(root)) == HELD
        assert not (root / OLD).parent.exists()
    assert 5 < deaths < 59


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_table_that_was_published_beside_is_gone_on_with(tmp_path: Path, is_joined: bool) -> None:
    root = unpacked("format1-delta", tmp_path)
    if is_joined:
        DeltaTable(str(root)).optimize.compact()
    take_over(Archive(root))
    assert sorted(rows_of(root)) == every(MemoryOrigin({A: Bound(5, 80)}))
    assert Archive(root).load().offsets == {A: 80}


def test_one_that_is_being_written_is_left_alone(old: Path) -> None:
    descriptor = os.open(old / "_firearrow" / "lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(StoreLocked, match="another process is changing it"):
            take_over(Archive(old))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"{", "is not the manifest of an archive"),
        (
            b'{"format":9,"archive":"","sequence":6,"run":"","offsets":{}}',
            "has format 9, but only format 1 can be taken over",
        ),
        (b'{"format":1,"archive":"","sequence":7,"run":"","offsets":{}}', "manifest 6 is missing, but there is 7"),
    ],
)
def test_damaged_manifests_are_refused(old: Path, text: bytes, complaint: str) -> None:
    (old / OLD / f"{6:020}.json").write_bytes(text)
    with pytest.raises(CorruptStore, match=complaint):
        take_over(Archive(old))


def test_a_file_that_is_gone_is_told(old: Path) -> None:
    next(old.glob("topic=T/*/*.parquet")).unlink()
    with pytest.raises(CorruptStore, match=r"\.parquet is missing"):
        take_over(Archive(old))
