"""`firearrow store rebuild`: queues and index, made of the CommitLog."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from firearrow.cli.parameters import switch, valued
from firearrow.cli.sparkoptions import Progress
from firearrow.cli.store.options import HERE, USUAL, Directory, Jobs, Json, LayoutOptions, OnSpark
from firearrow.cli.store.shown import ProgressBar, print_json, print_left_out
from firearrow.clock import SystemClock

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
        int | None, valued("N", "size of a queue's files (default: by the broker's file, else as they are)")
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
