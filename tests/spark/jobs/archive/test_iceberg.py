"""An Iceberg table holds what the archive holds, once, wherever publishing was ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.table import Table, Transaction

from firearrow.client.queues import Bound, Queue
from firearrow.errors import ConfigError
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, archive
from firearrow.spark.jobs.archive.compaction import compact
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.archive.iceberg import Iceberg, IcebergLayout, IcebergPartition, iceberg_table
from firearrow.spark.jobs.archive.upkeep import expire
from firearrow.spark.tables import MESSAGES
from tests.spark.jobs.archive.test_archiving import every
from tests.spark.jobs.inline import Inline, Killed
from tests.spark.origins import DAY_MS, MemoryOrigin

A, RETRY = Queue("T", "a", 0), Queue("%RETRY%g", "a", 0)


@pytest.fixture
def origin() -> MemoryOrigin:
    base_ms = MemoryOrigin().base_ms + DAY_MS - 30_000
    return MemoryOrigin({A: Bound(0, 60), RETRY: Bound(0, 7)}, base_ms)


def fill(origin: MemoryOrigin, root: Path) -> Archive:
    archive(Inline(), lambda: origin, Archive(root), ArchiveSettings(step_rows_max=30))
    return Archive(root)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    catalog = InMemoryCatalog("test", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("logs")
    yield iceberg_table(catalog, "logs.messages")
    catalog.close()


def places(table: pa.Table) -> list[tuple[Queue, int]]:
    names = ("topic", "broker", "queueId", "queueOffset")
    columns = (table.column(name).to_pylist() for name in names)
    return sorted((Queue(t, b, q), offset) for t, b, q, offset in zip(*columns, strict=True))


def test_iceberg_gets_each_file_once(tmp_path: Path, origin: MemoryOrigin, table: Table) -> None:
    held = fill(origin, tmp_path / "archive")
    lake = Iceberg(held, table)
    assert (lake.publish(), lake.publish()) == (len(held.load().files), 0)
    origin.held[A] = Bound(0, 70)
    fill(origin, tmp_path / "archive")
    assert Iceberg(held, table).publish() == 1
    found = table.refresh().scan().to_arrow()
    assert places(found) == every(origin)
    wanted = "topic = 'T' and storeTimestamp >= '2024-10-05T00:00:00+00:00'"
    scan = table.scan(row_filter=wanted)
    assert all("/dt=2024-10-05/" in task.file.file_path for task in scan.plan_files())
    assert scan.to_arrow().num_rows == 40


def test_what_is_compacted_or_expires_is_replaced_in_one_snapshot(
    tmp_path: Path, origin: MemoryOrigin, table: Table
) -> None:
    held = fill(origin, tmp_path / "archive")
    lake = Iceberg(held, table)
    lake.publish()
    done = compact(Inline(), held)
    assert done is not None
    before = len(table.refresh().snapshots())
    assert lake.publish() == len(done.removed) + len(done.added)
    assert len(table.refresh().snapshots()) == before + 1
    state = held.load()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["firearrow.archive"] == f"{state.archive}/{state.version}"
    assert len(list(table.scan().plan_files())) == len(state.files)
    assert held.clean(kept_hours=0) == len(done.removed)
    assert places(table.scan().to_arrow()) == every(origin)
    expire(Inline(), held, "2024-10-05")
    lake.publish()
    assert places(table.refresh().scan().to_arrow()) == every(MemoryOrigin({A: Bound(30, 60)}))


def test_iceberg_goes_on_where_publishing_was_ended(
    tmp_path: Path, origin: MemoryOrigin, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = fill(origin, tmp_path / "archive")
    lake = Iceberg(held, table)
    commit = Transaction.commit_transaction
    commits = Counter[str]()

    def dies_with_the_first(self: Transaction) -> Any:
        commits["begun"] += 1
        if commits["begun"] == 1:
            raise Killed
        return commit(self)

    monkeypatch.setattr(Transaction, "commit_transaction", dies_with_the_first)
    with pytest.raises(Killed):
        lake.publish()
    assert lake.publish() == len(held.load().files)
    assert places(table.refresh().scan().to_arrow()) == every(origin)


@pytest.mark.parametrize("compacts", [False, True])
def test_two_processes_publish_each_file_once(
    tmp_path: Path, origin: MemoryOrigin, table: Table, monkeypatch: pytest.MonkeyPatch, compacts: bool
) -> None:
    held = fill(origin, tmp_path / "archive")
    lake, other = Iceberg(held, table), Iceberg(held, table.catalog.load_table("logs.messages"))
    if compacts:
        lake.publish()
        compact(Inline(), held)
    commit = Transaction.commit_transaction
    commits = Counter[str]()

    def is_second(self: Transaction) -> Any:
        commits["begun"] += 1
        if commits["begun"] == 2 - compacts:  # the first one sets the properties of a new table
            origin.held[A] = Bound(0, 70)
            fill(origin, tmp_path / "archive")
            assert other.publish() > 0
        return commit(self)

    monkeypatch.setattr(Transaction, "commit_transaction", is_second)
    assert lake.publish() == 0
    assert commits["begun"] > 1
    assert places(table.refresh().scan().to_arrow()) == every(origin)
    assert len(list(table.scan().plan_files())) == len(held.load().files)


def test_other_rows_stay(tmp_path: Path, origin: MemoryOrigin, table: Table) -> None:
    Iceberg(fill(origin, tmp_path / "one"), table).publish()
    with pytest.raises(ConfigError, match=r"^the table is of archive .*, but .*two is archive"):
        Iceberg(fill(origin, tmp_path / "two"), table).publish()
    catalog = table.catalog
    rows = pa.table({"a": [1]})
    catalog.create_table("logs.others", rows.schema).append(rows)
    with pytest.raises(ConfigError, match=r"^the Iceberg table logs\.others has rows, but not those of an archive$"):
        Iceberg(Archive(tmp_path / "one"), iceberg_table(catalog, "logs.others")).publish()
    layout = IcebergLayout(MESSAGES, [IcebergPartition("topic", "topic")])
    with pytest.raises(ConfigError, match=r"logs\.topics is partitioned by topic, but .*one by topic, dt$"):
        Iceberg(Archive(tmp_path / "one"), iceberg_table(catalog, "logs.topics", layout)).publish()


def test_old_snapshots_go_before_their_files(tmp_path: Path, origin: MemoryOrigin, table: Table) -> None:
    held = fill(origin, tmp_path / "archive")
    lake = Iceberg(held, table)
    lake.publish()
    compact(Inline(), held)
    lake.publish()
    first, last = table.refresh().snapshots()
    assert lake.expire_snapshots(kept_hours=1) == 1
    assert [each.snapshot_id for each in table.refresh().snapshots()] == [last.snapshot_id]
    assert lake.expire_snapshots(kept_hours=0) == 0
    assert held.clean(kept_hours=0) > 0
    assert first.snapshot_id != last.snapshot_id
    assert places(table.scan().to_arrow()) == every(origin)


def test_many_commits_leave_few_manifests_and_snapshots(
    tmp_path: Path, origin: MemoryOrigin, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.transaction().set_properties({"commit.manifest.min-count-to-merge": "5"}).commit_transaction()
    for end in range(61, 75):
        origin.held[A] = Bound(0, end)
        Iceberg(fill(origin, tmp_path / "archive"), table).publish()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) < 6
    monkeypatch.setattr("firearrow.spark.jobs.archive.iceberg._SNAPSHOTS_MAX", 3)
    assert Iceberg(Archive(tmp_path / "archive"), table).expire_snapshots() == 11
    assert places(table.refresh().scan().to_arrow()) == every(origin)
