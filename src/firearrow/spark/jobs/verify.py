"""Verification of a store: ``firearrow store verify`` with executors that read.

The invariants, their names and findings come from ``firearrow.store.offline``.
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
    """Verify a whole store. Raises StoreError if there is none."""
    return verify(layout_of(store), workers=Executors(spark))


def findings(spark: SparkSession, store: Path | str | Layout) -> DataFrame:
    """Return the findings about a store; a sound store has none.

    severity (damage, warning, note), invariant, what, file (relative to the store), position in it, commitLogOffset,
    topic, queueId, queueOffset, times (the number of findings of this kind, this one included). Raises StoreError if
    there is no store.
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
