"""The Iceberg table of a topic has the rows of its Delta table, whatever happens to the catalog and to processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from firearrow.client.queues import Bound, Queue
from firearrow.lake.catalogs import IcebergTables, LakeCatalog
from firearrow.lake.filling import fill, typed_table
from firearrow.lake.spec import TableSpec
from firearrow.lake.typedtable import TypedTable
from firearrow.spark.jobs.archive.archiving import ArchiveSettings
from tests.spark.jobs.inline import Inline
from tests.spark.origins import DAY_MS, MemoryOrigin

A = Queue("orders", "a", 0)


def properties(root: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}


@pytest.fixture
def lake(tmp_path: Path) -> LakeCatalog:
    (tmp_path / "warehouse").mkdir()
    return LakeCatalog.of({"namespace": "lake", **properties(tmp_path)})


@pytest.fixture
def catalog(lake: LakeCatalog, tmp_path: Path) -> Iterator[Catalog]:
    """The catalog as others see it."""
    found = load_catalog("firearrow", **properties(tmp_path))
    yield found
    found.close()
    lake.catalog.opened.close()


def run(origin: MemoryOrigin, root: Path, spec: TableSpec, *, rows: int | None = None) -> TypedTable:
    table = typed_table(str(root), "orders", spec)
    fill(Inline(), lambda: origin, table, ArchiveSettings(step_rows_max=rows))
    return table


def rows_of(found: pa.Table) -> list[dict[str, Any]]:
    rows = sorted(found.to_pylist(), key=lambda row: (row["_queue"], row["_offset"]))
    for row in rows:  # pyiceberg reads lists and maps of structures that are null as empty ones
        row |= {name: row.get(name) or None for name in ("lines", "more")}
    return [{key: it for key, it in row.items() if not key.endswith(("_day", "_hour", "_bucket"))} for row in rows]


def require_same(catalog: Catalog, root: Path, name: str = "orders") -> Table:
    """Compare both tables; return Iceberg's."""
    table = catalog.load_table(f"lake.{name}")
    assert rows_of(table.scan().to_arrow()) == rows_of(pa.table(DeltaTable(str(root / name)).to_pyarrow_table()))
    return table


def body(_: Queue, offset: int) -> bytes:
    customer = f"c {offset % 5}%/ü" if offset % 7 else None
    return json.dumps({"customer": customer, "cents": offset, "paid": f"1969-12-31T23:{offset:02}:00Z"}).encode()


def test_partitions_are_icebergs_own(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    by = ("day", "hour(paid)", "bucket(4, customer)", "bucket(3, cents)", "customer")
    spec = TableSpec(schema="customer string, cents long, paid timestamp", partition=by)
    origin = MemoryOrigin({A: Bound(0, 40)}, 20_000 * DAY_MS - 10_000, body=body)
    table = run(origin, tmp_path, spec, rows=15)
    both = IcebergTables(lake, table)
    assert both.publish() > 20
    assert both.publish() == 0
    found = require_same(catalog, tmp_path)
    files = {task.file.file_path for task in found.scan().plan_files()}
    scan = found.scan(EqualTo("customer", "c 3%/ü"))
    assert {row["cents"] % 5 for row in scan.to_arrow().to_pylist()} == {3}
    assert {task.file.file_path for task in scan.plan_files()} == {it for it in files if "/customer=c%203" in it}
    for cents in (8, 21):
        scan = found.scan(EqualTo("cents", cents))
        assert scan.to_arrow()["cents"].to_pylist() == [cents]
        assert len({task.file.partition[3] for task in scan.plan_files()}) == 1
    assert found.scan("paid < '1970-01-01T00:00:00+00:00'").to_arrow().num_rows == 40
    origin.held[A] = Bound(0, 45)
    run(origin, tmp_path, spec, rows=2)
    assert table.compact() > 0
    both.publish()
    assert len(list(require_same(catalog, tmp_path).scan().plan_files())) == len(table.load().paths)


def test_merged_rows_follow(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    spec = TableSpec(
        schema="customer string, cents long",
        mode="upsert",
        key="customer",
        partition=("bucket(4, customer)", "customer"),
    )
    origin = MemoryOrigin({A: Bound(0, 4)}, body=body)
    for end in (9, 20, 40):
        origin.held[A] = Bound(0, end)
        assert IcebergTables(lake, run(origin, tmp_path, spec, rows=6)).publish() > 1
        assert len(require_same(catalog, tmp_path).scan().to_arrow()) == 5
        require_same(catalog, tmp_path, "orders__undecoded")


def test_columns_follow_their_messages(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    schemas = (
        "cents int, rate float, to struct<city: string>, lines array<struct<sku: string>>",
        "cents long, rate double, to struct<city: string, at: struct<x: int>>, lines array<struct<sku string, n int>>",
        "note string, to struct<at: struct<x: long, y: int>>, price decimal(9, 2), more map<string, struct<a: int>>",
    )
    bodies = (
        {"cents": 5, "rate": 0.5, "to": {"city": "x"}, "lines": [{"sku": "a"}]},
        {"cents": 2**40, "rate": 0.1, "to": {"at": {"x": 7}}, "lines": [{"sku": "b", "n": 1}, {"n": 2}]},
        {"note": "n", "to": {"at": {"x": 2**40, "y": 1}}, "price": "1.25", "more": {"k": {"a": 1}}},
    )
    origin = MemoryOrigin({A: Bound(0, 0)}, body=lambda _, offset: json.dumps(bodies[offset // 3]).encode())
    for number, schema in enumerate(schemas):
        origin.held[A] = Bound(0, 3 * number + 3)
        IcebergTables(lake, run(origin, tmp_path, TableSpec(schema=schema))).publish()
        found = require_same(catalog, tmp_path)
    assert [field.name for field in found.schema().fields][-7:] == [
        "cents", "rate", "to", "lines", "note", "price", "more"
    ]  # fmt: skip
    assert str(found.schema().find_type("to.at.x")) == "long"


def test_undecoded_messages_leave_their_table_together(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    origin = MemoryOrigin({A: Bound(0, 10)}, body=lambda _, n: json.dumps({"cents": "x" if n % 4 == 1 else n}).encode())
    IcebergTables(lake, run(origin, tmp_path, TableSpec(schema="cents int"))).publish()
    assert len(require_same(catalog, tmp_path, "orders__undecoded").scan().to_arrow()) == 3
    IcebergTables(lake, run(origin, tmp_path, TableSpec(schema="note string"))).publish()
    assert len(require_same(catalog, tmp_path).scan().to_arrow()) == 10
    assert len(require_same(catalog, tmp_path, "orders__undecoded").scan().to_arrow()) == 0
