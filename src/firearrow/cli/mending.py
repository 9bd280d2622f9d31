"""`firearrow pipeline verify` and `rebuild`: what executors find in a store, and rebuild."""

from __future__ import annotations

from firearrow.cli.analyses import Run
from firearrow.cli.layouts import layout_of
from firearrow.cli.making import as_deleted, order_of
from firearrow.cli.reports import Bars, Cell, Table
from firearrow.spark.jobs.rebuild import rebuilt
from firearrow.spark.jobs.verify import verdict_of
from firearrow.store.offline import Planned, planned


def report_verify(run: Run) -> list[Table]:
    """Check every invariant of a store. What is found has the names of `firearrow store verify`."""
    options = run.options
    verdict = verdict_of(run.spark, layout_of(options, options.store))
    notes = [verdict.behind] if verdict.behind else []
    notes += [f"not looked at: {reason}" for reason in verdict.skipped]
    looked_at: list[list[Cell]] = [
        [
            "sound" if verdict.sound else "damaged",
            verdict.records,
            verdict.log_files,
            verdict.queues,
            verdict.index_files,
            verdict.keys,
        ]
    ]
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
    return [
        Table(
            "Verdict",
            ["store", "records", "logFiles", "queues", "indexFiles", "keys"],
            looked_at,
            "; ".join(notes),
            damage=not verdict.sound,
        ),
        Table("Findings", columns, found, chart=Bars(["invariant"], "times")),
    ]


def report_rebuild(run: Run) -> list[Table]:
    """Rebuild queues and index from the CommitLog, in place or below another directory."""
    options = run.options
    layout, order = layout_of(options, options.store), order_of(options)
    if options.dry_run:
        return [_would_make(planned(layout, order, to=options.to))]
    made = rebuilt(run.spark, layout, to=options.to, order=order)
    rows: list[list[Cell]] = [
        [made.records, made.queues, made.index_files, made.stand_ins, made.where, made.kept]
    ]
    left: list[list[Cell]] = [[queue, reason] for queue, reason in made.left_out.items()]
    left += [
        [topic, f"not configured: {as_deleted(entries)}"]
        for topic, entries in made.unconfigured.items()
    ]
    columns = ["records", "queues", "indexFiles", "standIns", "where", "oldFiles"]
    note = "; ".join(made.warnings)
    return [
        Table("Rebuilt", columns, rows, note),
        Table("Left out", ["queue", "reason"], left, damage=bool(left)),
    ]


def _would_make(plan: list[Planned]) -> Table:
    rows: list[list[Cell]] = [
        [made.directory, made.what, made.files_now, made.where] for made in plan
    ]
    note = (
        "A dry run: nothing was written, and the log was not read: queues that it has no messages"
        " of are not made."
    )
    return Table("Would be rebuilt", ["directory", "what", "filesNow", "where"], rows, note)
