"""`firearrow store stat`, `diff` and `why-not-deleted`: contents of a store, and retention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from firearrow.cli.output.reports import in_bytes
from firearrow.cli.parameters import switch, valued
from firearrow.cli.pipeline.options import Progress
from firearrow.cli.store.options import USUAL, Directory, Json, LayoutOptions
from firearrow.cli.store.shown import ProgressBar, as_time, print_json, print_table
from firearrow.clock import SystemClock
from firearrow.errors import ConfigError

if TYPE_CHECKING:
    from firearrow.store.offline import RetentionReport, StoreComparison, StoreStat, TopicStat


def stat(
    directory: Directory,
    /,
    *,
    layout: LayoutOptions = USUAL,
    queues: Annotated[bool, switch("also list the queues of each topic")] = False,
    json: Json = False,
    progress: Progress = None,
) -> int:
    """Show the contents of a store, and the disk space of each topic."""
    from firearrow.store.offline import stat

    found = stat(layout.of(directory), ProgressBar("reading", progress))
    if json:
        print_json(found)
    else:
        _print_stat(found, queues=queues)
    return 0


def _print_stat(found: StoreStat, *, queues: bool) -> None:
    holder = f" by process {found.lock_holder}" if found.lock_holder else ""
    rate = found.records_per_second
    print(f"store       {found.store}")
    print(f"state       {found.state}{holder}")
    print(
        f"log         {found.log_start} to {found.log_end}, {in_bytes(found.log_bytes)} in "
        f"{found.log_files} files of {in_bytes(found.log_file_bytes)}"
    )
    if found.damaged_bytes:
        print(f"damaged     {in_bytes(found.damaged_bytes)}: see `firearrow store verify`")
    print(
        f"records     {found.records}, {as_time(found.first_ms)} to {as_time(found.last_ms)}"
        + (f", {rate:g}/s" if rate is not None else "")
    )
    print(f"queues      {found.queues} in {found.queues_kept}, {in_bytes(found.queue_files_bytes)}")
    print(f"index       {found.index_files} files, {in_bytes(found.index_files_bytes)}")
    kept = ", ".join(f"{n} {k.replace('_', ' ')}" for k, n in found.configured.items())
    print(f"configured  {kept}\n")
    head = ["topic", "records", "log", "queues", "disk", "rate/s", "first", "last"]
    print_table(head, [row for topic in found.topics for row in _rows(topic, queues=queues)])


def _rows(topic: TopicStat, *, queues: bool) -> list[list[str]]:
    rate = topic.records_per_second
    return [
        [
            topic.topic,
            str(topic.records),
            in_bytes(topic.log_bytes),
            in_bytes(topic.queue_bytes),
            in_bytes(topic.disk_bytes),
            f"{rate:g}" if rate is not None else "-",
            as_time(topic.first_ms),
            as_time(topic.last_ms),
        ],
        *(
            [
                f"  {queue.queue_id}: {queue.min_offset} to {queue.max_offset}",
                str(queue.records),
                in_bytes(queue.log_bytes),
                in_bytes(queue.queue_bytes),
                in_bytes(queue.log_bytes + queue.queue_bytes),
                *["", "", ""],
            ]
            for queue in (topic.queues if queues else ())
        ),
    ]


def diff(
    directory: Directory,
    second: Annotated[Path, valued("OTHER", "the other store directory")],
    /,
    *,
    logical: Annotated[bool, switch("compare messages, at any place in the log")] = False,
    json: Json = False,
    progress: Progress = None,
) -> int:
    """Compare two stores."""
    from firearrow.store.offline import Layout, diff

    found = diff(
        Layout.of(directory), Layout.of(second), logical=logical, on_progress=ProgressBar("comparing", progress)
    )
    if json:
        print_json(found)
    else:
        _print_diff(found)
    return 0 if found.same else 1


def _print_diff(found: StoreComparison) -> None:
    if found.same:
        print(f"{found.first} and {found.second} are the same")
        return
    for item in found.differences:
        words = [item.part, item.file or ""]
        if item.topic is not None:
            words.append(f"{item.topic}-{item.queue_id} at {item.queue_offset}")
        print(f"{' '.join(word for word in words if word)}: {item.kind}: {item.what}")
    if found.queues:
        print()
        head = ["queue", "only first", "only second", "different"]
        numbers = [(q.topic, q.queue_id, q.only_first, q.only_second, q.different) for q in found.queues]
        print_table(head, [[f"{row[0]}-{row[1]}", *map(str, row[2:])] for row in numbers])


def why_not_deleted(
    directory: Directory,
    /,
    *,
    file: Annotated[
        Path | None, valued("FILE", "the broker's properties file: retention, place of the log", name="-c")
    ] = None,
    json: Json = False,
) -> int:
    """Show the reasons why each CommitLog file still exists."""
    from firearrow.config import properties
    from firearrow.config.table import keys, update
    from firearrow.store.config import StoreConfig
    from firearrow.store.offline import why_not_deleted

    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory")
    found = properties.load(file) if file else {}
    found["storePathRootDir"] = str(directory)
    known = keys(StoreConfig)
    config = update(StoreConfig(), {key: text for key, text in found.items() if key in known})
    report = why_not_deleted(config, SystemClock())
    if json:
        print_json(report)
    else:
        _print_retention(report)
    return 0


def _print_retention(report: RetentionReport) -> None:
    print(f"log         {report.commit_log}")
    print(f"disk        {report.disk_used_percent} % used ({report.pressure})")
    print(f"unconsumed  {report.unconsumed_policy}")
    print(f"deletable   {in_bytes(report.deletable_bytes)} at the next look")
    for file in report.files:
        print(f"\n{file.file}  last message {as_time(file.last_message_ms)}, {in_bytes(file.frees_bytes)} on the disk")
        for reason in file.reasons:
            print(f"  stays: {reason['text']}")
        if file.deletable:
            print("  goes at the next look")
