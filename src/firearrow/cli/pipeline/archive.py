"""Reports of `firearrow pipeline archive`, `compact` and `expire`."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Final

from firearrow.cli.output.reports import Bars, Cell, Table
from firearrow.cli.pipeline.analyses import ReportRun
from firearrow.cli.pipeline.lakes import lake_beside_archive
from firearrow.cli.pipeline.options import ArchiveJob, Expire, OfArchive
from firearrow.cli.pipeline.tables import filled_tables
from firearrow.lake.filling import LakeFilling
from firearrow.spark.jobs.archive.archiving import ArchiveStep, archive, follow, source
from firearrow.spark.jobs.archive.compaction import CompactedFiles, compact
from firearrow.spark.jobs.archive.delta import KEPT_HOURS, Archive
from firearrow.spark.jobs.archive.upkeep import Upkeep, day_of, expire
from firearrow.spark.jobs.workers import SparkWorkers
from firearrow.spark.planning.losses import lost_spans

_LATER: Final = f"Files go {KEPT_HOURS // 24} days after they are no part of the table any more."


def report_archive(run: ReportRun[ArchiveJob]) -> list[Table]:
    """Archive the present messages (``--follow``: and new ones, until killed), and report them."""
    options = run.options
    place = Archive(options.to)
    if options.dry_run:
        return [_waiting(run, place)]
    workers = SparkWorkers(run.spark)
    filling = LakeFilling(workers, lake_beside_archive(options, options.tables)) if options.tables else None
    opener, settings = source(run.reader.options)
    steps: list[ArchiveStep] = []
    publish = _lake(run, place)

    def on_step(step: ArchiveStep) -> None:
        steps.append(step)
        publish()

    publish()  # the rest of an interrupted run
    if options.follow:
        tidy = Upkeep(workers, place, options.keep)

        def upkeep() -> None:
            if tidy():
                publish()
            if filling is not None:
                filling.round()
                filling.tidy()

        follow(workers, opener, place, settings, stop=Event(),
               interval_seconds=options.interval, on_step=on_step, upkeep=upkeep)  # fmt: skip
    else:
        archive(workers, opener, place, settings, on_step=on_step)
        if options.keep is not None:
            expire(workers, place, day_of(run.now_ms, options.keep))
    compacted = compact(workers, place) if options.compact else None
    publish()
    reported = [*_steps(steps), *([_compacted(compacted)] if compacted else [])]
    if filling is not None:
        filling.round()
        reported += filled_tables(filling)
    return reported


def report_compact(run: ReportRun[OfArchive]) -> list[Table]:
    """Join small files, remove files that no reader needs, and report both."""
    place = Archive(run.options.archive)
    compacted = compact(SparkWorkers(run.spark), place) or CompactedFiles()
    return [_compacted(compacted), Table("Removed", ["files"], [[place.clean()]], _LATER)]


def report_expire(run: ReportRun[Expire]) -> list[Table]:
    """Remove old days, and report them."""
    place = Archive(run.options.archive)
    first_day = day_of(run.now_ms, run.options.keep)
    days: dict[tuple[str, str], list[int]] = {}
    for file in expire(SparkWorkers(run.spark), place, first_day):
        count = days.setdefault((file.topic, file.day), [0, 0, 0])
        count[0] += file.rows
        count[1] += 1
        count[2] += file.size_bytes
    rows: list[list[Cell]] = [[*day, *count] for day, count in sorted(days.items())]
    removed: list[list[Cell]] = [[place.clean()]]
    return [
        Table("Expired", ["topic", "day", "messages", "files", "bytes"], rows),
        Table("Removed", ["files"], removed, _LATER),
    ]


def _lake(run: ReportRun[ArchiveJob], place: Archive) -> Callable[[], object]:
    """Function that adds the files of the archive to an Iceberg table."""
    if run.options.iceberg:
        from firearrow.spark.jobs.archive.catalogs import IcebergCatalog
        from firearrow.spark.jobs.archive.iceberg import Iceberg, iceberg_table

        given, _, name = run.options.iceberg.rpartition(":")
        catalog = IcebergCatalog(f"--iceberg {run.options.iceberg}", given or None)
        table = Iceberg(place, catalog.work(lambda: iceberg_table(catalog.opened, name)))
        return lambda: catalog.work(table.publish)
    return lambda: 0


def _waiting(run: ReportRun[ArchiveJob], place: Archive) -> Table:
    opener, settings = source(run.reader.options)
    origin, state = opener(), place.load()
    bounds, progress = origin.bounds(), state.progress
    known = place.recognition(origin, fail_on_data_loss=settings.fail_on_data_loss)
    again = known.resume(progress.offsets, progress.last, bounds, progress.logs)
    lost_spans(settings.fail_on_data_loss, again.losses)
    rows: list[list[Cell]] = []
    for queue, bound in sorted(bounds.items()):
        start = max(again.start.get(queue, bound.earliest), bound.earliest)
        if bound.latest > start:
            rows.append([*queue, start, bound.latest, bound.latest - start])
    columns = ["topic", "broker", "queueId", "fromOffset", "toOffset", "messages"]
    note = "A dry run: nothing was written."
    return Table("Would be archived", columns, rows, note, Bars(["topic", "queueId"], "messages"))


def _steps(steps: list[ArchiveStep]) -> list[Table]:
    counts: dict[str, list[int]] = {}
    for file in (file for step in steps for file in step.added):
        count = counts.setdefault(str(file.partition()["topic"]), [0, 0, 0])
        count[0] += file.rows
        count[1] += 1
        count[2] += file.size_bytes
    rows: list[list[Cell]] = [[topic, *count] for topic, count in sorted(counts.items(), key=lambda item: -item[1][0])]
    gaps: list[list[Cell]] = [
        [gap.topic, gap.broker, gap.queue_id, gap.start, gap.end, gap.missing] for step in steps for gap in step.gaps
    ]
    return [
        Table("Archived", ["topic", "messages", "files", "bytes"], rows,
              "Messages that the archive did not have before.", Bars(["topic"], "messages")),
        Table("Gone before it was archived",
              ["topic", "broker", "queueId", "fromOffset", "toOffset", "messages"], gaps),
    ]  # fmt: skip


def _compacted(done: CompactedFiles) -> Table:
    joined: list[list[Cell]] = [[len(done.removed), len(done.added)]]
    return Table("Compacted", ["filesBefore", "filesAfter"], joined)
