"""A typed table with its newest messages in Spark is the same as without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import firearrow.lake
from firearrow.lake.spec import TableSpec
from tests.lake.test_evolution import registered
from tests.lake.test_filling import configure, framed
from tests.lake.test_reading import SPEC, UPSERTS, change, fill
from tests.spark.registries import serving_schemas
from tests.store.stores import append, opened, settle


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


def test_spark_reads_columns_by_the_names_that_they_will_have(spark: SparkSession, tmp_path: Path) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    schemas, subjects = {1: registered({1: ("a", "int"), 2: ("b", "int")})}, {"orders-value": 1}
    more = {"schemaType": "PROTOBUF"}
    with opened(root) as store, serving_schemas(schemas, subjects, more=more) as (url, _):
        configure(root, {"orders": {}})
        spec = TableSpec(topics="orders", bodies="protobuf", registry=url, subject="orders-value")
        append(store, framed(1, b"\0\x08\x01\x10\x02"), "orders")
        settle(store)
        fill(root, lake, spec)
        schemas[2] = registered({1: ("b", "long"), 2: ("c", "int"), 3: ("a", "int")})
        subjects["orders-value"] = 2
        append(store, framed(2, b"\0\x08\x03\x10\x04\x18\x05"), "orders")
        settle(store)
        for _ in range(2):  # the second time, the table has the names
            rows = firearrow.lake.frame(spark, "orders", lake, {"path": str(root)}).select("a", "b", "c").collect()
            assert sorted(map(tuple, rows), key=str) == [(5, 3, 4), (None, 1, 2)]
            fill(root, lake, spec)
