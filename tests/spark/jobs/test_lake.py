"""Tables of Iceberg and Delta hold what the archive holds, once, wherever publishing was ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.table import Table, Transaction

from firearrow.client.queues import Bound, Queue
from firearrow.errors import ConfigError
from firearrow.spark.jobs.archive import Settings, archive
from firearrow.spark.jobs.compact import compact
from firearrow.spark.jobs.lake import Delta, Iceberg, additions, iceberg_table
from firearrow.spark.jobs.manifest import Archive
from tests.broker.fakes import HandClock
from tests.spark.jobs.inline import Inline, Killed
from tests.spark.jobs.test_archive import every
from tests.spark.origins import DAY_MS, MemoryOrigin

A, RETRY = Queue("T", "a", 0), Queue("%RETRY%g", "a", 0)


@pytest.fixture
def origin() -> MemoryOrigin:
    base_ms = MemoryOrigin().base_ms + DAY_MS - 30_000
    return MemoryOrigin({A: Bound(0, 60), RETRY: Bound(0, 7)}, base_ms)


def fill(origin: MemoryOrigin, root: Path) -> Archive:
    archive(Inline(), lambda: origin, Archive(root), Settings(step_rows_max=30), clock=HandClock())
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


def test_iceberg_gets_each_step_once(tmp_path: Path, origin: MemoryOrigin, table: Table) -> None:
    held = fill(origin, tmp_path / "archive")
    lake = Iceberg(held, table)
    assert (lake.publish(), lake.publish()) == (3, 0)
    origin.held[A] = Bound(0, 70)
    fill(origin, held.root)
    assert Iceberg(held, table).publish() == 1
    found = table.refresh().scan().to_arrow()
    assert places(found) == every(origin)
    wanted = "topic = 'T' and storeTimestamp >= '2024-10-05T00:00:00+00:00'"
    scan = table.scan(row_filter=wanted)
    assert all("/dt=2024-10-05/" in task.file.file_path for task in scan.plan_files())
    assert scan.to_arrow().num_rows == 40


def test_iceberg_goes_on_where_publishing_was_ended(
    tmp_path: Path, origin: MemoryOrigin, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = fill(origin, tmp_path / "archive")
    lake = Iceberg(held, table)
    commit = Transaction.commit_transaction
    commits = Counter[str]()

    def dies_with_the_second(self: Transaction) -> Any:
        commits["begun"] += 1
        if commits["begun"] == 2:
            raise Killed
        return commit(self)

    monkeypatch.setattr(Transaction, "commit_transaction", dies_with_the_second)
    with pytest.raises(Killed):
        lake.publish()
    assert lake.publish() == 2
    assert places(table.refresh().scan().to_arrow()) == every(origin)


def test_delta_gets_each_step_once(tmp_path: Path, origin: MemoryOrigin) -> None:
    held = fill(origin, tmp_path)
    lake = Delta(held)
    assert (lake.publish(), lake.publish()) == (3, 0)
    origin.held[A] = Bound(0, 70)
    archive(Inline(), lambda: origin, held, on_step=Delta(held).publish)
    table = DeltaTable(str(tmp_path))
    assert places(table.to_pyarrow_table()) == every(origin)
    days = table.to_pyarrow_table(filters=[("topic", "=", "T"), ("dt", "=", date(2024, 10, 5))])
    assert days.num_rows == 40


def test_a_table_of_another_archive_is_refused(
    tmp_path: Path, origin: MemoryOrigin, table: Table
) -> None:
    Iceberg(fill(origin, tmp_path / "one"), table).publish()
    with pytest.raises(ConfigError, match=r"^the table is of archive .*, but .*two is archive"):
        Iceberg(fill(origin, tmp_path / "two"), table).publish()


def test_a_published_archive_is_not_compacted_here(tmp_path: Path, origin: MemoryOrigin) -> None:
    held = fill(origin, tmp_path)
    Delta(held)
    with pytest.raises(ConfigError, match="also belong to an Iceberg or Delta table"):
        compact(Inline(), held)


def test_what_was_joined_before_comes_first_as_one(tmp_path: Path, origin: MemoryOrigin) -> None:
    held = fill(origin, tmp_path)
    assert [addition.sequence for addition in additions(held, 0)] == [1, 2, 3]
    compact(Inline(), held)
    origin.held[A] = Bound(0, 70)
    fill(origin, tmp_path)
    found = list(additions(held, 0))
    assert [addition.sequence for addition in found] == [4, 5]
    assert sum(file.rows for addition in found for file in addition.files) == 77
    assert [addition.sequence for addition in additions(held, 4)] == [5]
