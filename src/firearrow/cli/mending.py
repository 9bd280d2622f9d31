"""`firearrow pipeline verify` and `rebuild`: what executors find in a store, and make anew."""

from __future__ import annotations

from pathlib import Path

from firearrow.cli.analyses import Run
from firearrow.cli.making import makes_index, makes_queues
from firearrow.cli.reports import Bars, Cell, Table
from firearrow.errors import ConfigError
from firearrow.spark.jobs.rebuild import MADE, rebuilt
from firearrow.spark.jobs.verify import verdict_of
from firearrow.store.offline import Order


def report_verify(run: Run) -> list[Table]:
    """Check every invariant of a store. What is found has the names of `firearrow store verify`."""
    verdict = verdict_of(run.spark, _store(run))
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
            "; ".join(f"not looked at: {reason}" for reason in verdict.skipped),
        ),
        Table("Findings", columns, found, chart=Bars(["invariant"], "times")),
    ]


def report_rebuild(run: Run) -> list[Table]:
    """Make queues and index anew from the CommitLog, in place or below another directory."""
    options = run.options
    order = Order(queues=makes_queues(options), index=makes_index(options))
    store = _store(run)
    if options.dry_run:
        return [_would_make(store, order, options.to)]
    made = rebuilt(run.spark, store, to=options.to, order=order)
    rows: list[list[Cell]] = [
        [made.records, made.queues, made.index_files, made.stand_ins, made.where, made.kept]
    ]
    left: list[list[Cell]] = [[queue, reason] for queue, reason in made.left_out.items()]
    columns = ["records", "queues", "indexFiles", "standIns", "where", "oldFiles"]
    return [Table("Made anew", columns, rows), Table("Left out", ["queue", "reason"], left)]


def _would_make(store: Path, order: Order, to: Path | None) -> Table:
    wanted = {"queue": order.queues, "index": order.index}
    in_database = (store / "consumequeue_rocksdb").is_dir()
    others = {"consumequeue" if in_database else "consumequeue_rocksdb"}
    if not (store / "batchconsumequeue").is_dir():
        others.add("batchconsumequeue")
    rows: list[list[Cell]] = [
        [name, sum(path.is_file() for path in (store / name).rglob("*")), str((to or store) / name)]
        for name, kind in MADE.items()
        if wanted[kind] and name not in others
    ]
    note = "A dry run: nothing was written."
    return Table("Would be made anew", ["directory", "filesNow", "where"], rows, note)


def _store(run: Run) -> Path:
    paths = run.options.path or []
    if len(paths) != 1 or "://" in paths[0]:
        raise ConfigError(f"{run.options.job} needs --path with the directory of one store")
    return Path(paths[0])
