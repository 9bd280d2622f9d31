"""`firearrow store verify`, `repair`, `rebuild` and `salvage`: damage, and its repair."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from firearrow.cli.cluster.options import ANY
from firearrow.cli.output.reports import Bars, Cell, Report, Table, in_bytes
from firearrow.cli.parameters import switch, valued
from firearrow.cli.pipeline.options import Page, Progress
from firearrow.cli.store.options import HERE, USUAL, Directory, Jobs, Json, LayoutOptions, OnSpark
from firearrow.cli.store.shown import ProgressBar, print_json, print_left_out, print_messages, print_verdict
from firearrow.clock import SystemClock
from firearrow.errors import ConfigError

if TYPE_CHECKING:
    from firearrow.store.offline import Layout, Outcome, Plan, Replica, Salvaged, Step, Verdict


def verify(
    directory: Directory,
    /,
    *,
    layout: LayoutOptions = USUAL,
    jobs: Jobs = None,
    spark: OnSpark = HERE,
    json: Json = False,
    report: Page = None,
    progress: Progress = None,
) -> int:
    """Check every invariant of a store."""
    from firearrow.store.offline import verify

    spark.check(report=report)
    if spark.master:
        from firearrow.spark.jobs.verify import verdict_of

        with spark.session("verify", directory, progress=progress) as session:
            verdict = verdict_of(session, layout.of(directory))
    else:
        bar = ProgressBar("verifying", progress)
        verdict = verify(layout.of(directory), jobs=jobs, on_progress=bar)
    if report:
        from firearrow.cli.output.page import write_page

        write_page(report_of(verdict, SystemClock().now_ms()), report)
    if json:
        print_json(verdict)
    else:
        print_verdict(verdict)
    return 0 if verdict.sound else 1


def repair(
    directory: Directory,
    /,
    *,
    layout: LayoutOptions = USUAL,
    apply: Annotated[bool, switch("carry out the plan; the broker must be stopped")] = False,
    give_again: Annotated[bool, switch("accept repeated queue offsets, where the plan says so")] = False,
    cover_damaged_bodies: Annotated[
        bool, switch("also replace readable messages whose bytes do not match their CRC")
    ] = False,
    replica: Annotated[
        str | None,
        valued(
            "HOST:PORT",
            "copy damaged parts of the log from this broker with the same log: its master "
            "or a slave, by its haListenPort",
            name="--from",
        ),
    ] = None,
    jobs: Jobs = None,
    json: Json = False,
    progress: Progress = None,
) -> int:
    """Show a plan to repair a store; with --apply, carry it out."""
    from firearrow.store import offline

    where, bar = layout.of(directory), ProgressBar("verifying", progress)
    source = None if replica is None else _replica_at(replica, where)
    found: Plan | Outcome
    if apply:
        found = offline.apply(
            where,
            SystemClock(),
            jobs=jobs,
            on_progress=bar,
            give_again=give_again,
            cover_bodies=cover_damaged_bodies,
            replica=source,
        )
    else:
        found = offline.plan(where, jobs=jobs, on_progress=bar, cover_bodies=cover_damaged_bodies, replica=source)
    if json:
        print_json(found)
    elif isinstance(found, offline.Outcome):
        _print_outcome(found)
    else:
        more = [f"--from {replica}"] if replica else []
        _print_plan(found, [*more, *(["--cover-damaged-bodies"] if cover_damaged_bodies else [])])
    return 0 if found.verdict.sound else 1


def _replica_at(address: str, where: Layout) -> Replica:
    """Replica at an address, asked with the user of the cluster in use."""
    from msgspec.structs import replace

    from firearrow.net.address import host_and_port
    from firearrow.replication.epochs import END_OF_TIME, Epochs
    from firearrow.replication.fetching import History, LogSource, NoReplica
    from firearrow.replication.proof import NOT_ASKED, HaAccess
    from firearrow.store.config import StoreConfig
    from firearrow.store.offline import Replica

    host_and_port(address)  # a wrong address is reported before the log is read
    keys = replace(where.made_as or StoreConfig(), store_path_root_dir=str(where.root))
    epochs = Epochs.load(keys.epoch_path)
    history = History(epochs, END_OF_TIME) if epochs.entries else None
    target = ANY.target()
    context = None if target.tls is None else target.tls.context()
    access = HaAccess(target.credentials is not None, target.credentials, tls=context)

    def fetched(physical_offset: int, size: int) -> bytes:
        try:
            return LogSource(address, history, access).fetch(physical_offset, size)
        except NoReplica as error:
            if NOT_ASKED not in str(error):
                raise
        return LogSource(address, history, HaAccess(tls=context)).fetch(physical_offset, size)

    return Replica(address, fetched)


def _print_plan(plan: Plan, more: list[str]) -> None:
    _print_steps(plan.steps)
    if plan.does_something:
        flags = ["--apply", "--give-again" if plan.given_again else "", *more]
        print(f"\nnothing has been changed: {' '.join(filter(None, flags))} carries this plan out")


def _print_outcome(outcome: Outcome) -> None:
    _print_steps(outcome.steps)
    print_left_out(outcome.left_out, "built again")
    if outcome.kept:
        print(f"\nwhat was replaced is kept in {outcome.kept}")
    print()
    print_verdict(outcome.verdict)


def _print_steps(steps: list[Step]) -> None:
    if not steps:
        print("there is nothing to repair")
    for number, step in enumerate(steps, 1):
        place = step.file or ""
        if step.position is not None:
            place += f", byte {step.position}"
        if step.size is not None:
            place += f", {in_bytes(step.size)}"
        print(f"{number:3}. {step.action.value} {place}")
        print(f"     {step.what}")
        print(f"     consequence: {step.consequence}")


def salvage(
    sources: Annotated[tuple[Path, ...], valued("PATH", "store directory, log file or disk image")],
    /,
    *,
    to: Annotated[Path | None, valued("DIR", "make a store in this directory (default: print JSON lines)")] = None,
    file_bytes: Annotated[int | None, valued("N", "size of the new log's files (default: as they were)")] = None,
    queue_file_bytes: Annotated[int | None, valued("N", "size of a queue's files (default: as they were)")] = None,
    stored_body: Annotated[bool, switch("print compressed bodies as they are")] = False,
    json: Json = False,
    progress: Progress = None,
) -> int:
    """Recover messages from damaged stores, log files or disk images."""
    from firearrow.store.offline import carved_messages, salvage

    bar = ProgressBar("carving", progress)
    for source in sources:
        if not source.exists():
            raise ConfigError(f"{source} does not exist")
    if to is None:
        found = carved_messages(list(sources), bar)
        print_messages(found, stored_body=stored_body)
        return 0
    made = salvage(
        list(sources), to, SystemClock(), file_bytes=file_bytes, queue_file_bytes=queue_file_bytes, on_progress=bar
    )
    if json:
        print_json(made)
    else:
        _print_salvaged(made)
    return 0


def _print_salvaged(made: Salvaged) -> None:
    print(f"{made.to}: {made.records} records from {made.sources} files")
    print(f"found twice: {made.duplicates}, with contradictions: {made.contradictions}")
    print(f"placeholders of lost messages: {made.placeholders}")
    print(f"messages with another queue offset: {made.renumbered}")
    for text in made.given_again:
        print(text)
    print_left_out(made.left_out, "made")


# --- The report of `firearrow store verify` ---


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


# --- `firearrow store rebuild`: queues and index from the CommitLog ---


if TYPE_CHECKING:
    from firearrow.store.offline import Planned, Rebuilt


def rebuild(
    directory: Directory,
    /,
    *,
    layout: LayoutOptions = USUAL,
    only: Annotated[Literal["queues", "index"] | None, valued(None, "rebuild only these (default: both)")] = None,
    to: Annotated[Path | None, valued("DIR", "write to this directory and leave the store unchanged")] = None,
    queue_file_bytes: Annotated[
        int | None, valued("N", "size of a queue's files (default: from the broker's file, or their present size)")
    ] = None,
    dry_run: Annotated[bool, switch("only show what would be rebuilt")] = False,
    jobs: Jobs = None,
    spark: OnSpark = HERE,
    json: Json = False,
    progress: Progress = None,
) -> int:
    """Rebuild queues and index from the CommitLog."""
    from firearrow.store.offline import Order, planned, rebuild

    spark.check(to=to)
    where = layout.of(directory)
    order = Order(
        queues=only != "index",
        index=only != "queues",
        queue_file_bytes=queue_file_bytes,
        jobs=jobs,
        on_progress=ProgressBar("rebuilding", progress),
        on_warning=_warn,
    )
    if dry_run:
        _show_planned(planned(where, order, to=to), as_json=json)
        return 0
    if spark.master:
        from firearrow.spark.jobs.rebuild import rebuilt

        with spark.session("rebuild", directory, progress=progress) as session:
            made = rebuilt(session, where, to=to, order=order)
    else:
        made = rebuild(where, SystemClock(), order, to=to)
    if json:
        print_json(made)
    else:
        _print_made(made)
    return 1 if made.left_out else 0


def _warn(text: str) -> None:
    print(f"firearrow: {text}", file=sys.stderr)


def _show_planned(plan: list[Planned], *, as_json: bool) -> None:
    if as_json:
        print_json({"wouldRebuild": plan})
        return
    for made in plan:
        print(f"{made.where}: {made.what}, in place of {made.files_now} files")
    print("\nnothing was written, and the log was not read: queues that it has no messages of are not made")


def _print_made(made: Rebuilt) -> None:
    print(f"{made.where}: {made.queues} queues and {made.index_files} index files")
    print(f"from {made.records} records" + (f"; old ones in {made.kept}" if made.kept else ""))
    if made.stand_ins:
        print(f"{made.stand_ins} entries stand in for messages that the log has lost")
    print_left_out(made.left_out, "made")
    for topic, entries in made.unconfigured.items():
        print(f"topic {topic} is not configured: taken for deleted, its queues are not made ({entries} entries)")
