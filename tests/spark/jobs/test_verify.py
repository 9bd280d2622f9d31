"""Verification by executors finds what the command finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from firearrow.errors import StoreError
from firearrow.spark.jobs.verify import findings, verdict_of
from firearrow.store.offline import INVARIANTS, Layout, verify
from tests.store.offline.damage import IN_DATABASE, ROWS, Damage, database_store, golden_store, prepared

SOME = ("record-body-crc", "log-file-end", "queue-entry-tag", "index-chain", "config-offset")
BROKEN = [damage for damage in ROWS if damage.invariant in SOME]


@pytest.mark.parametrize("database", [False, True], ids=["files", "database"])
def test_a_sound_store_has_no_findings(spark: SparkSession, database: bool, tmp_path: Path) -> None:
    root = database_store(tmp_path) if database else golden_store(tmp_path)
    assert findings(spark, root).collect() == []
    assert verdict_of(spark, root) == verify(Layout(root))


@pytest.mark.parametrize("damage", [*BROKEN, IN_DATABASE[0]], ids=lambda row: row.invariant)
def test_findings_are_those_of_the_command(spark: SparkSession, damage: Damage, tmp_path: Path) -> None:
    root = prepared(damage, tmp_path)
    expected = verify(Layout(root)).findings
    rows = findings(spark, str(root)).collect()
    assert damage.invariant in {row.invariant for row in rows}
    assert [(row.invariant, row.what, row.file, row.position, row.commitLogOffset, row.topic) for row in rows] == [
        (found.invariant, found.what, found.file, found.position, found.physical_offset, found.topic)
        for found in expected
    ]
    assert [row.severity for row in rows] == [found.severity.value for found in expected]
    assert {row.invariant for row in rows} <= INVARIANTS.keys()


def test_what_is_no_store_is_one_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a store"):
        findings(spark, tmp_path)
