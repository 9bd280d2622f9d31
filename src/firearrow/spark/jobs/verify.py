"""Verification of a store: ``firearrow store verify`` with executors that do the reading.

Invariants, their names and findings are those of ``firearrow.store.offline``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from firearrow.spark.jobs.storework import Executors, layout_of
from firearrow.store.offline import Finding, Layout, Verdict, verify

FINDINGS: Final = (
    "severity string, invariant string, what string, file string, position long, "
    "commitLogOffset long, topic string, queueId int, queueOffset long, times long"
)


def verdict_of(spark: SparkSession, store: Path | str | Layout) -> Verdict:
    """Look at a whole store. Raises StoreError where there is none."""
    return verify(layout_of(store), workers=Executors(spark))


def findings(spark: SparkSession, store: Path | str | Layout) -> DataFrame:
    """Give what does not hold in a store: none, and it is sound.

    severity (damage, warning, note), invariant, what, file (relative to the store), position in it,
    commitLogOffset, topic, queueId, queueOffset, times (this one, and so many like it but one).
    Raises StoreError where there is no store.
    """
    rows = [_row(finding) for finding in verdict_of(spark, store).findings]
    return spark.createDataFrame(rows, FINDINGS)


def _row(finding: Finding) -> tuple[object, ...]:
    return (
        finding.severity.value,
        finding.invariant,
        finding.what,
        finding.file,
        finding.position,
        finding.physical_offset,
        finding.topic,
        finding.queue_id,
        finding.queue_offset,
        finding.times,
    )
