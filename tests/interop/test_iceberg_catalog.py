"""Typed tables are Iceberg tables in Iceberg's own REST catalog, which the others that speak REST follow."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.table import Transaction

from firearrow.client.queues import Bound
from firearrow.lake.catalogs import IcebergTables, LakeCatalog
from firearrow.lake.spec import TableSpec
from tests.interop.toolchain import iceberg_catalog_command
from tests.lake.test_catalogs import A, body, require_same, run
from tests.spark.origins import DAY_MS, MemoryOrigin

NAMESPACE = "lake.orders"
SPEC = TableSpec(
    schema="customer string, cents long, paid timestamp",
    partition=("day", "hour(paid)", "bucket(4, customer)", "customer"),
)


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    command = iceberg_catalog_command(tmp_path / "warehouse")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def catalog_at(uri: str) -> LakeCatalog:
    return LakeCatalog.of({"namespace": NAMESPACE, "type": "rest", "uri": uri})


def test_a_rest_catalog_has_what_delta_has(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = catalog_at(uri)
    catalog = lake.catalog.opened
    origin = MemoryOrigin({A: Bound(0, 40)}, 20_000 * DAY_MS - 10_000, body=body)
    assert IcebergTables(lake, run(origin, tmp_path, SPEC, rows=15)).publish() > 20
    table = require_same(catalog, tmp_path, namespace=NAMESPACE)
    assert table.scan("customer = 'c 3%/ü'").to_arrow().num_rows == 7
    origin.held[A] = Bound(0, 50)
    origin.body = lambda _, offset: json.dumps({"customer": "x", "cents": offset, "new": {"a": 1}}).encode()
    spec = msgspec.structs.replace(SPEC, schema=f"{SPEC.schema}, new struct<a: int>")
    typed = run(origin, tmp_path, spec)
    both = IcebergTables(lake, typed)
    both.publish()
    typed.compact()
    both.publish()
    require_same(catalog, tmp_path, namespace=NAMESPACE)
    commit = Transaction.commit_transaction
    begun: list[int] = []

    def is_second(self: Transaction) -> Any:
        begun.append(0)
        if len(begun) == 1:
            origin.held[A] = Bound(0, 70)
            assert IcebergTables(catalog_at(uri), run(origin, tmp_path, spec, rows=10)).publish() > 0
        return commit(self)

    monkeypatch.setattr(Transaction, "commit_transaction", is_second)
    origin.held[A] = Bound(0, 60)
    run(origin, tmp_path, spec)
    assert both.publish() == 0
    assert len(begun) > 1
    files = list(require_same(catalog, tmp_path, namespace=NAMESPACE).scan().plan_files())
    assert len(files) == len(typed.load().paths)
    assert both.expire_snapshots() == 0
