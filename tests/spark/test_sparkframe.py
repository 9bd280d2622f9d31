"""A typed table with its newest messages in Spark is the same as without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import firearrow.lake
from firearrow.lake.spec import TableSpec
from tests.lake.test_filling import configure
from tests.lake.test_reading import SPEC, UPSERTS, change, fill
from tests.store.stores import opened


@pytest.mark.parametrize("spec", [SPEC, UPSERTS], ids=["append", "upsert"])
def test_spark_reads_the_same_rows(spark: SparkSession, tmp_path: Path, spec: TableSpec) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    with opened(root) as store:
        configure(root, {"orders": {}})
        for number, order in enumerate("abcd"):
            change(store, order, number, 1000 + number)
        fill(root, lake, spec)
        live = {"path": str(root)}
        for _ in range(2):
            rows = firearrow.lake.table("orders", lake, live, columns=["_offset", "number"]).read_all().to_pylist()
            found = [row.asDict() for row in firearrow.lake.frame(spark, "orders", lake, live).collect()]
            assert sorted((row["_offset"], row["number"]) for row in found) == sorted(
                (row["_offset"], row["number"]) for row in rows
            )
            assert len(rows) >= 4
            change(store, "a", 10, 2000)
            change(store, "b", None, 2001)
            change(store, "e", 11, 2002)
            change(store, "f", 12, 2003)
