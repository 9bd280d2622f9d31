"""The table of an archive: who comes second, what is read where it is damaged, what may be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from firearrow.client.queues import Bound, Queue, Span
from firearrow.errors import ConfigError, CorruptStore, FirearrowError
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, Summary, archive
from firearrow.spark.jobs.archive.compaction import compact
from firearrow.spark.jobs.archive.delta import Archive, Conflict, TableChange
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.archive.progress import (
    ArchiveGap,
    ArchiveProgress,
    LogMark,
    numbers_of_gaps,
    numbers_of_offsets,
)
from tests.spark.jobs.archive.test_archiving import every, rows_of
from tests.spark.jobs.inline import Inline
from tests.spark.origins import MemoryOrigin

P = TypeVar("P")
R = TypeVar("R")

A, B, ODD = Queue("T", "a", 0), Queue("U", "a", 0), Queue("%RETRY%a:b", "b/1", 3)
LOG = "_delta_log"


class Meanwhile(Inline):
    """Has something else happen once, after files are written and before they are committed."""

    def __init__(self, other: Callable[[], object]) -> None:
        self._others = [other]

    def run(self, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
        done = super().run(work, pieces)
        for other in self._others:
            self._others = []
            other()
        return done


def fill(root: Path | str, origin: MemoryOrigin, rows: int | None = None) -> Summary:
    return archive(Inline(), lambda: origin, Archive(root), ArchiveSettings(step_rows_max=rows))


def race(root: Path | str, origin: MemoryOrigin, rows: int, racers: int) -> None:
    """Have several archivers run against each other."""
    threads = [Thread(target=fill, args=(root, origin, rows)) for _ in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def written(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("topic=*/*/*.parquet")}


def test_of_two_that_archive_the_same_one_counts(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 50)})
    late = Meanwhile(lambda: fill(tmp_path, origin))
    assert archive(late, lambda: origin, Archive(tmp_path)).rows == 0
    assert rows_of(tmp_path) == every(origin)
    assert written(tmp_path) == set(Archive(tmp_path).load().files)
    origin.held[A] = Bound(0, 80)
    late = Meanwhile(lambda: fill(tmp_path, MemoryOrigin({A: Bound(0, 60)})))
    assert archive(late, lambda: origin, Archive(tmp_path)).rows == 20
    assert sorted(rows_of(tmp_path)) == every(origin)


def test_two_that_archive_different_queues_both_count(tmp_path: Path) -> None:
    mine, others = MemoryOrigin({A: Bound(0, 50)}), MemoryOrigin({B: Bound(3, 9)})
    late = Meanwhile(lambda: fill(tmp_path, others))
    summary = archive(late, lambda: mine, Archive(tmp_path))
    assert (summary.steps, summary.rows) == (1, 50)
    both = MemoryOrigin({**mine.held, **others.held})
    assert sorted(rows_of(tmp_path)) == every(both)
    assert Archive(tmp_path).load().offsets == {A: 50, B: 9}


def test_archivers_that_run_against_each_other(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 300), B: Bound(0, 100)})
    race(tmp_path, origin, 70, racers=3)
    assert sorted(rows_of(tmp_path)) == every(origin)
    assert written(tmp_path) == set(Archive(tmp_path).load().files)


def test_a_table_that_another_process_has_just_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = DeltaTable.create

    def too_late(*args: Any, **options: Any) -> None:
        make(*args, **options)
        raise CommitFailedError("Protocol changed since last commit")

    monkeypatch.setattr(DeltaTable, "create", too_late)
    origin = MemoryOrigin({A: Bound(0, 50)})
    fill(tmp_path, origin)
    assert rows_of(tmp_path) == every(origin)


def test_archiving_goes_on_while_files_are_joined(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 50)})
    fill(tmp_path, origin, 10)
    origin.held[A] = Bound(0, 60)
    late = Meanwhile(lambda: compact(Inline(), Archive(tmp_path)))
    assert archive(late, lambda: origin, Archive(tmp_path)).rows == 10
    assert len(Archive(tmp_path).load().files) == 2
    assert sorted(rows_of(tmp_path)) == every(origin)


def test_of_two_that_join_files_one_counts(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 50)})
    fill(tmp_path, origin, 10)
    late = Meanwhile(lambda: compact(Inline(), Archive(tmp_path)))
    assert compact(late, Archive(tmp_path)) is None
    assert sorted(rows_of(tmp_path)) == every(origin)


def test_what_others_have_joined_is_not_joined_again(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 50)})
    fill(tmp_path, origin, 10)
    late = Meanwhile(lambda: DeltaTable(str(tmp_path)).optimize.compact())
    assert compact(late, Archive(tmp_path)) is None
    assert sorted(rows_of(tmp_path)) == every(origin)
    (file,) = Archive(tmp_path).load().files.values()
    assert file.may_hold(A, Span(49, 50))


def test_a_commit_whose_answer_is_lost_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = MemoryOrigin({A: Bound(0, 50)})
    commit = DeltaTable.create_write_transaction

    def unanswered(*args: Any, **named: Any) -> None:
        commit(*args, **named)
        raise CommitFailedError("the entry is there already")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", unanswered)
    assert archive(Inline(), lambda: origin, Archive(tmp_path)).rows == 50
    assert rows_of(tmp_path) == every(origin)


def test_numbers_outlive_checkpoints_and_what_others_commit(tmp_path: Path) -> None:
    held = Archive(tmp_path)
    state = held.load()
    for number in range(25):
        numbers = numbers_of_offsets("next", {ODD: number, Queue("T", "a", number): 7})
        state = held.commit(state, TableChange(what="test", numbers=numbers))
    assert (tmp_path / LOG / "_last_checkpoint").exists()
    table = DeltaTable(str(tmp_path))
    table.create_checkpoint()
    for entry in sorted((tmp_path / LOG).glob("*.json"))[:-1]:
        entry.unlink()  # as log clean-up does
    assert held.load().offsets == {ODD: 24} | {Queue("T", "a", n): 7 for n in range(25)}


def test_numbers_say_what_they_were_made_of() -> None:
    gap = ArchiveGap(*ODD, 3, 9, 4)
    numbers: dict[str, int] = {}
    for step in range(1, 12):
        marks = [LogMark("b/1", step * 10, 1), LogMark("c", step, 3)]
        numbers |= ArchiveProgress.of(numbers).numbers_of_marks(marks, step)
    numbers |= numbers_of_gaps([gap]) | numbers_of_offsets("first", {ODD: 5}) | {"another": 1}
    found = ArchiveProgress.of(numbers)
    assert (found.gaps, found.first, found.offsets) == ([gap], {ODD: 5}, {})
    of_one = [mark.commit_log_offset for mark in found.marks if mark.broker == "b/1"]
    assert of_one == [step * 10 for step in range(4, 12)]


def test_a_change_that_does_not_fit_any_more_is_refused(tmp_path: Path) -> None:
    held = Archive(tmp_path)
    state = held.load()
    first = TableChange(what="test", numbers=numbers_of_offsets("next", {A: 5}))
    held.commit(state, first)
    with pytest.raises(Conflict, match="another process has archived the same queues"):
        held.commit(state, TableChange(what="test", numbers=numbers_of_offsets("next", {A: 7})))
    assert held.load().offsets == {A: 5}


def test_a_log_that_is_damaged_is_told(tmp_path: Path) -> None:
    fill(tmp_path, MemoryOrigin({A: Bound(0, 30)}), 10)
    entry = tmp_path / LOG / f"{2:020}.json"
    whole = entry.read_bytes()
    entry.write_bytes(whole[:200])
    with pytest.raises(CorruptStore, match=f"^archive {tmp_path}: its log .* remove the newest"):
        Archive(tmp_path).load()
    entry.unlink()
    with pytest.raises(CorruptStore, match=f"^archive {tmp_path}: "):
        Archive(tmp_path).load()


def test_a_newest_entry_that_power_has_damaged_can_be_removed(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 30)})
    fill(tmp_path, origin, 10)
    entry = tmp_path / LOG / f"{3:020}.json"
    entry.write_bytes(entry.read_bytes()[:200])
    with pytest.raises(CorruptStore, match="remove the newest entry"):
        Archive(tmp_path).load()
    entry.unlink()
    fill(tmp_path, origin)
    assert sorted(rows_of(tmp_path)) == every(origin)


def test_what_counts_is_on_the_disk_before_anybody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync, commit = FilePlace.sync, DeltaTable.create_write_transaction

    def noted(self: FilePlace, paths: Iterable[str]) -> None:
        paths = list(paths)
        synced.extend(Path(path).stem for path in paths if path.endswith(".json"))
        synced.extend("file" for path in paths if path.startswith("topic="))
        sync(self, paths)

    def committed(*args: Any, **named: Any) -> None:
        synced.append("commit")
        commit(*args, **named)

    monkeypatch.setattr(FilePlace, "sync", noted)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", committed)
    origin = MemoryOrigin({A: Bound(0, 20)})
    archive(
        Inline(),
        lambda: origin,
        Archive(tmp_path),
        ArchiveSettings(step_rows_max=10),
        on_step=lambda _: synced.append("told"),
    )
    entries = [f"{number:020}" for number in range(3)]
    first = ["file", entries[0], "commit", *entries[:2], "told"]
    assert synced == [*first, "file", entries[1], "commit", *entries[1:], "told"]


def test_a_file_that_somebody_else_has_written_may_hold_anything(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 30)})
    fill(tmp_path, origin)
    (file,) = Archive(tmp_path).load().files.values()
    from deltalake.transaction import AddAction

    other = f"{file.path}.other"
    pq.write_table(pq.read_table(tmp_path / file.path, partitioning=None), tmp_path / other)
    table = DeltaTable(str(tmp_path))
    partition: dict[str, str | None] = {"topic": "T", "dt": file.day}
    size = (tmp_path / other).stat().st_size
    action = AddAction(other, size, partition, 1, True, '{"numRecords": 30}')
    table.create_write_transaction([action], "append", table.schema(), ["topic", "dt"])
    found = Archive(tmp_path).load().files[other]
    assert found.may_hold(Queue("T", "any", 77), Span(1 << 40, 1 << 41))
    assert not found.may_hold(B)
    assert found.rows == 30


def test_places_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^archive nothing://b/x: "):
        Archive("nothing://b/x").load()
    (tmp_path / "file").write_text("")
    with pytest.raises(FirearrowError, match=r"^archive .*file"):
        fill(tmp_path / "file", MemoryOrigin({A: Bound(0, 1)}))


def test_a_table_is_a_table_to_others(tmp_path: Path) -> None:
    fill(tmp_path, MemoryOrigin({A: Bound(0, 30), B: Bound(0, 7)}), 10)
    table = DeltaTable(str(tmp_path))
    assert table.metadata().partition_columns == ["topic", "dt"]
    chosen = table.to_pyarrow_table(filters=[("topic", "=", "U")])
    assert sorted(chosen["queueOffset"].to_pylist()) == list(range(7))
    seen = pa.table(table.get_add_actions(flatten=True))
    assert max(seen["max.queueOffset"].to_pylist()) == 29
