"""An archive that grows stays tidy: its files few, its old days gone, its readers undisturbed."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from firearrow.client.queues import Bound, Queue, Span
from firearrow.spark.jobs.archive.archivedorigin import ArchivedOrigin
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, archive, follow
from firearrow.spark.jobs.archive.compaction import compact
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.archive.upkeep import Upkeep, day_of, expire
from firearrow.spark.jobs.resend.sources import ArchiveMessages
from firearrow.spark.options import parse
from tests.broker.fakes import NOW_MS, HandClock
from tests.spark.jobs.archive.test_archivedorigin import PLACE, read
from tests.spark.jobs.archive.test_archiving import Growing, every, rows_of
from tests.spark.jobs.inline import Inline
from tests.spark.origins import DAY_MS, MemoryOrigin

A, B = Queue("T", "a", 0), Queue("U", "a", 0)
MIDNIGHT_MS = MemoryOrigin().base_ms + DAY_MS
DAYS = ("2024-10-04", "2024-10-05")


def at(clock: HandClock, now_ms: int) -> None:
    clock.seconds = 1000.0 + (now_ms - NOW_MS) / 1000


def filled(root: Path) -> MemoryOrigin:
    """An archive whose offsets from 30 on are of the second day."""
    bounds = {A: Bound(3, 60), B: Bound(0, 20)}
    origin = MemoryOrigin(bounds, MIDNIGHT_MS - 30_000)
    archive(Inline(), lambda: origin, Archive(root), ArchiveSettings(step_rows_max=25))
    return origin


def test_a_day_that_expires_is_gone_and_no_loss(tmp_path: Path) -> None:
    origin = filled(tmp_path)
    held = Archive(tmp_path)
    assert expire(Inline(), held, DAYS[0]) == ()
    gone = expire(Inline(), held, DAYS[1])
    assert {(file.topic, file.day) for file in gone} == {("T", DAYS[0]), ("U", DAYS[0])}
    assert sorted(rows_of(tmp_path)) == every(MemoryOrigin({A: Bound(30, 60)}))
    state = held.load()
    assert (state.first, state.offsets) == ({A: 30, B: 20}, {A: 60, B: 20})
    assert dict(ArchiveMessages.of(held).spans) == {A: Span(30, 60)}
    origin.held = {A: Bound(50, 70), B: Bound(20, 20)}
    table = ArchivedOrigin(parse({"path": "unused", "archive": str(tmp_path)}), origin)
    assert table.bounds() == {A: Bound(30, 70), B: Bound(20, 20)}
    assert read(table) == every(MemoryOrigin({A: Bound(30, 70)}))
    assert archive(Inline(), lambda: origin, held).rows == 10


def test_a_query_that_has_begun_reads_what_has_expired(tmp_path: Path) -> None:
    origin = filled(tmp_path)
    table = ArchivedOrigin(parse({"path": "unused", "archive": str(tmp_path)}), origin)
    tasks = table.partitions({A: Span(3, 60)})
    expire(Inline(), Archive(tmp_path), DAYS[1])
    Archive(tmp_path).clean()
    rows = sum(batch.num_rows for task in tasks for batch in table.read(task, PLACE))
    assert rows == 57


def test_a_clock_that_was_set_back_leaves_what_is_of_a_later_day(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 10)}, MIDNIGHT_MS)
    archive(Inline(), lambda: origin, Archive(tmp_path))
    origin.base_ms -= DAY_MS
    origin.held[A] = Bound(0, 20)
    archive(Inline(), lambda: origin, Archive(tmp_path))
    assert expire(Inline(), Archive(tmp_path), DAYS[1]) != ()
    assert Archive(tmp_path).load().first == {A: 0}
    assert sorted(rows_of(tmp_path)) == every(MemoryOrigin({A: Bound(0, 10)}))


def test_following_keeps_files_few_and_days_as_many_as_asked_for(tmp_path: Path) -> None:
    stop, clock = Event(), HandClock()
    origin = Growing({A: Bound(0, 0)}, MIDNIGHT_MS - 30_000).grow_until(stop)
    at(clock, MIDNIGHT_MS + 1000)
    held = Archive(tmp_path)
    files: list[int] = []

    def on_step(_: object) -> None:
        files.append(len(held.load().files))

    upkeep = Upkeep(Inline(), held, 1, files_min=3, kept_hours=0, clock=clock)
    follow(Inline(), lambda: origin, held, stop=stop, interval_seconds=0.001, on_step=on_step, upkeep=upkeep)
    assert sorted(rows_of(tmp_path)) == every(MemoryOrigin({A: Bound(0, 50)}))
    assert (files, len(held.load().files)) == ([1, 2, 3, 2, 3], 3)
    assert upkeep() is False
    at(clock, MIDNIGHT_MS + DAY_MS)
    assert (upkeep(), upkeep()) == (True, False)
    assert sorted(rows_of(tmp_path)) == every(MemoryOrigin({A: Bound(30, 50)}))
    paths = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("topic=*/*/*.parquet")}
    assert paths == set(held.load().files)


def test_much_that_has_piled_up_is_joined_in_several_commits(tmp_path: Path) -> None:
    origin = MemoryOrigin({Queue(f"T{n}", "a", 0): Bound(0, 2) for n in range(10)}, split_rows=1)
    archive(Inline(), lambda: origin, Archive(tmp_path))
    held = Archive(tmp_path)
    upkeep = Upkeep(Inline(), held, files_min=5)
    counts = [(upkeep(), len(held.load().files)) for _ in range(4)]
    assert counts == [(True, 20 - 4), (True, 20 - 8), (True, 10), (False, 10)]
    assert sorted(rows_of(tmp_path)) == every(origin)
    fresh = MemoryOrigin({queue: Bound(2, 4) for queue in origin.held}, split_rows=1)
    archive(Inline(), lambda: fresh, held)
    before = held.load().version
    done = compact(Inline(), held)
    assert done is not None
    assert (len(done.removed), len(done.added), held.load().version - before) == (30, 10, 3)


@pytest.mark.parametrize(("before", "day"), [(0, "2024-10-05"), (2, "2024-10-03")])
def test_days_are_those_of_utc(before: int, day: str) -> None:
    assert day_of(MIDNIGHT_MS, before) == day
