"""Files made from what executors read are those of a broker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from firearrow.errors import StoreLocked
from firearrow.spark.jobs.rebuild import rebuilt, written
from firearrow.store.offline import Layout, Order, verify
from tests.store.offline.damage import a_message, golden_store, in_record
from tests.store.stores import contents, opened


def test_the_bytes_are_those_of_the_original(spark: SparkSession, tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    order = Order(stretch_bytes=10_000)  # more pieces than one job takes
    rows = written(spark, root, to=tmp_path / "made", order=order).collect()
    assert contents(tmp_path / "made/consumequeue") == contents(root / "consumequeue")
    assert list(contents(tmp_path / "made/index").values()) == list(contents(root / "index").values())
    assert {(row.kind, row.file, row.bytes) for row in rows if row.kind == "queue"} == {
        ("queue", f"consumequeue/{name}", len(data)) for name, data in contents(root / "consumequeue").items()
    }
    assert [row.bytes for row in rows if row.kind == "index"] == [168_040]
    assert [row.remark for row in rows if row.remark] == []


def test_in_place(spark: SparkSession, tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    before = contents(root / "consumequeue")
    shutil.rmtree(root / "consumequeue/GoldenPlain")
    made = rebuilt(spark, str(root), order=Order(index=False))
    assert contents(root / "consumequeue") == before
    assert made.kept is not None
    assert verify(Layout(root)).findings == []


def test_what_is_left_out_is_named(spark: SparkSession, tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    message = a_message(root)
    in_record(root, message, 20, bytes(7) + b"\5")
    shutil.rmtree(root / f"consumequeue/{message.topic}")  # else its entry proves what was there
    rows = written(spark, root, order=Order(index=False)).collect()
    (left_out,) = [row for row in rows if row.kind == "left out"]
    assert left_out.file == f"{message.topic}-{message.queue_id}"
    assert "the log goes on with 5" in left_out.remark
    assert "index" not in {row.kind for row in rows}


def test_not_while_a_broker_runs(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path / "own"), pytest.raises(StoreLocked):
        rebuilt(spark, tmp_path / "own")
