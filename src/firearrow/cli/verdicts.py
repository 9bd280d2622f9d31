"""What `firearrow store verify` finds, as a report for people who were not there."""

from __future__ import annotations

from firearrow.cli.reports import Bars, Cell, Report, Table
from firearrow.store.offline import Verdict


def report_of(verdict: Verdict, now_ms: int) -> Report:
    """Give a verdict as tables, with a chart of the invariants that do not hold."""
    notes = [verdict.behind] if verdict.behind else []
    notes += [f"not looked at: {reason}" for reason in verdict.skipped]
    looked_at: dict[str, Cell] = {
        "store": "sound" if verdict.sound else "damaged",
        "records": verdict.records,
        "logFiles": verdict.log_files,
        "queues": verdict.queues,
        "indexFiles": verdict.index_files,
        "keys": verdict.keys,
    }
    found: list[list[Cell]] = [
        [
            finding.severity.value,
            finding.invariant,
            finding.what,
            finding.file,
            finding.physical_offset,
            finding.topic,
            finding.queue_id,
            finding.queue_offset,
            finding.times,
        ]
        for finding in verdict.findings
    ]
    columns = ["severity", "invariant", "what", "file", "commitLogOffset"]
    columns += ["topic", "queueId", "queueOffset", "times"]
    tables = [
        Table("Verdict", list(looked_at), [list(looked_at.values())], "; ".join(notes)),
        Table("Findings", columns, found, chart=Bars(["invariant"], "times")),
    ]
    return Report.of("verify", verdict.store, now_ms, tables)
