"""`firearrow store`: look at, verify and repair a store directory without a broker.

Exit codes: 0 done, and nothing is damaged or different; 1 something is; 2 it could not be done;
130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firearrow.cli.failures import CANNOT, carried_out
from firearrow.cli.interrupt import ending_at_once
from firearrow.cli.joboptions import add_progress, add_report, add_session
from firearrow.cli.layouts import add_layout, layout_of
from firearrow.cli.output import naming_output
from firearrow.cli.rebuildoptions import add_made, as_deleted, order_of
from firearrow.cli.reports import in_bytes
from firearrow.cli.summaries import as_sentence
from firearrow.cli.values import moment
from firearrow.clock import SystemClock
from firearrow.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firearrow.store.offline import (
        Comparison,
        Planned,
        RetentionReport,
        Step,
        StoreStat,
        Verdict,
    )

Subcommands = argparse._SubParsersAction  # argparse gives its type no public name
Run = Callable[[argparse.Namespace], int]


def add_store(commands: Subcommands[argparse.ArgumentParser]) -> None:
    """Declare `store` and its subcommands."""
    summary = "inspect, verify and repair a store without a broker"
    parser = commands.add_parser("store", help=summary, description=as_sentence(summary))
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_stat(actions)
    _add_cat(actions)
    _add_verify(actions)
    _add_repair(actions)
    _add_rebuild(actions)
    _add_salvage(actions)
    _add_diff(actions)
    _add_why_not_deleted(actions)


def run(options: argparse.Namespace) -> int:
    """Do what a command line asks; give the exit code."""

    def command() -> int:
        with ending_at_once() as options.ending:
            code: int = options.run(options)
        return code

    return carried_out(command, CANNOT, as_json=getattr(options, "json", False))


# --- what every subcommand takes ---


def _add(actions: Subcommands[argparse.ArgumentParser], name: str, summary: str, run: Run) -> Any:
    parser = actions.add_parser(name, help=summary, description=as_sentence(summary))
    parser.add_argument("directory", type=Path, metavar="DIR", help="store directory")
    parser.set_defaults(run=run)
    return parser


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="number of processes that read the log (default: depends on its size)",
    )


def _add_spark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--spark",
        dest="master",
        metavar="URL",
        help="have executors of this Spark master read the log; all must see DIR: local[N], "
        "spark://..., yarn, k8s://...",
    )
    add_session(parser)


def _check(options: argparse.Namespace) -> None:
    """Raise ConfigError for what is known to be wrong before a log is read, which takes a while."""
    from firearrow.cli.checks import check_places

    given = [name for name in ("conf", "spark-log") if getattr(options, name.replace("-", "_"))]
    if given and not options.master:
        raise ConfigError(f"--{given[0]} can only be used with --spark")
    check_places(options)


@contextmanager
def _spark(options: argparse.Namespace) -> Iterator[SparkSession]:
    """The Spark that a command line names."""
    from firearrow.cli.checks import check_spark, has_small_log
    from firearrow.cli.pipeline import require_pyspark, started
    from firearrow.cli.screen import progress

    require_pyspark()
    check_spark("--spark", options)
    is_small = has_small_log(options.directory)
    with (
        started(options, options.ending, is_small=is_small) as spark,
        progress(spark, options.action, wanted=options.progress),
    ):
        yield spark


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


class ProgressBar:
    """A bar on standard error, redrawn when it has moved by a hundredth."""

    def __init__(self, title: str, shown: bool | None) -> None:
        self._title = title
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._hundredths = -1

    def __call__(self, done: int, total: int) -> None:
        hundredths = 100 * done // total if total else 100
        if self._shown and hundredths != self._hundredths:
            self._hundredths = hundredths
            bar = "#" * (hundredths // 4)
            text = f"\r{self._title} [{bar:25}] {hundredths:3} % of {in_bytes(total)}"
            print(text, end="\n" if hundredths == 100 else "", file=sys.stderr, flush=True)


def _time(ms: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z" if ms > 0 else "-"


def _print_json(value: Any) -> None:
    import msgspec

    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


def _table(head: list[str], rows: list[list[str]]) -> None:
    """Print columns; all but the first are numbers and stand to the right."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


# --- stat ---


def _add_stat(actions: Subcommands[argparse.ArgumentParser]) -> None:
    parser = _add(
        actions,
        "stat",
        "show what a store contains, and how much disk space each topic takes",
        _stat,
    )
    add_layout(parser)
    parser.add_argument("--queues", action="store_true", help="list each topic's queues too")
    _add_json(parser)
    add_progress(parser)


def _stat(options: argparse.Namespace) -> int:
    from firearrow.store.offline import stat

    found = stat(layout_of(options), ProgressBar("reading", options.progress))
    if options.json:
        _print_json(found)
    else:
        _print_stat(found, queues=options.queues)
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
        f"records     {found.records}, {_time(found.first_ms)} to {_time(found.last_ms)}"
        + (f", {rate:g}/s" if rate is not None else "")
    )
    print(f"queues      {found.queues} in {found.queues_kept}, {in_bytes(found.queue_files_bytes)}")
    print(f"index       {found.index_files} files, {in_bytes(found.index_files_bytes)}")
    print(
        "configured  "
        + ", ".join(f"{n} {k.replace('_', ' ')}" for k, n in found.configured.items())
    )
    print()
    head = ["topic", "records", "log", "queues", "disk", "rate/s", "first", "last"]
    rows: list[list[str]] = []
    for topic in found.topics:
        rate = topic.records_per_second
        rows.append(
            [
                topic.topic,
                str(topic.records),
                in_bytes(topic.log_bytes),
                in_bytes(topic.queue_bytes),
                in_bytes(topic.disk_bytes),
                f"{rate:g}" if rate is not None else "-",
                _time(topic.first_ms),
                _time(topic.last_ms),
            ]
        )
        if queues:
            rows += [
                [
                    f"  {queue.queue_id}: {queue.min_offset} to {queue.max_offset}",
                    str(queue.records),
                    in_bytes(queue.log_bytes),
                    in_bytes(queue.queue_bytes),
                    in_bytes(queue.log_bytes + queue.queue_bytes),
                    *["", "", ""],
                ]
                for queue in topic.queues
            ]
    _table(head, rows)


# --- cat ---


def _add_cat(actions: Subcommands[argparse.ArgumentParser]) -> None:
    parser = _add(actions, "cat", "print records, as JSON lines or as an Arrow stream", _cat)
    add_layout(parser)
    parser.add_argument("--topic", metavar="NAME", help="records of this topic")
    parser.add_argument("--queue", type=int, metavar="ID", help="records of this queue")
    parser.add_argument(
        "--queue-offset",
        type=_span,
        metavar="FROM..TO",
        help="queue offsets, TO not included; either may be left out; one number is one offset",
    )
    parser.add_argument("--offset", type=int, metavar="N", help="the record at a physical offset")
    parser.add_argument(
        "--from",
        dest="physical_from",
        type=int,
        metavar="N",
        help="records from this physical offset on",
    )
    parser.add_argument(
        "--to",
        dest="physical_to",
        type=int,
        metavar="N",
        help="records before this physical offset",
    )
    parser.add_argument("--key", metavar="WORD", help="records with this word in KEYS")
    parser.add_argument(
        "--unique-key", metavar="ID", help="the record with this id from its client"
    )
    parser.add_argument("--tag", metavar="TAG", help="records with this tag")
    parser.add_argument(
        "--since", type=_moment, metavar="TIME", help="stored at this time or later"
    )
    parser.add_argument(
        "--until",
        type=_moment,
        metavar="TIME",
        help="stored at this time or before; TIME is ms since 1970 or ISO 8601 (default: UTC)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="largest number of records")
    parser.add_argument(
        "--stored-body", action="store_true", help="leave compressed bodies as they are"
    )
    parser.add_argument(
        "--format", choices=["json", "arrow"], default="json", help="JSON lines (default) or Arrow"
    )
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="print JSON lines"
    )


def _span(text: str) -> tuple[int, int]:
    first, dots, end = text.partition("..")
    try:
        low = int(first) if first else 0
        high = int(end) if end else (1 << 62 if dots else low + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM..TO") from None
    return low, high


def _moment(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else moment(text)


def _cat(options: argparse.Namespace) -> int:
    from itertools import islice

    from firearrow.store.offline import StoreView, as_row, find, write_stream

    with StoreView(layout_of(options)) as view:
        found = islice(find(view, _selection(options)), options.limit)
        rows = (as_row(message, stored_body=options.stored_body) for message in found)
        with naming_output():
            if options.format == "arrow":
                write_stream(rows, sys.stdout.buffer)
            else:
                sys.stdout.writelines(_lines(rows))
    return 0


def _selection(options: argparse.Namespace) -> Any:
    import msgspec

    from firearrow.store.offline import Selection

    low, high = options.queue_offset or (None, None)
    physical_from, physical_to = options.physical_from, options.physical_to
    if options.offset is not None:
        physical_from, physical_to = options.offset, options.offset + 1
    given = {
        "topic": options.topic,
        "queue_id": options.queue,
        "queue_from": low,
        "queue_to": high,
        "physical_from": physical_from,
        "physical_to": physical_to,
        "since_ms": options.since,
        "until_ms": options.until,
        "key": options.key,
        "unique_key": options.unique_key,
        "tag": options.tag,
    }
    return msgspec.convert({k: v for k, v in given.items() if v is not None}, Selection)


def _lines(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    """JSON lines; a body that is no text is given as base64 under ``bodyBase64``."""
    from base64 import b64encode

    for row in rows:
        body = row.pop("body")
        try:
            row["body"] = body.decode()
        except UnicodeDecodeError:
            row["bodyBase64"] = b64encode(body).decode()
        yield json.dumps(row, ensure_ascii=False) + "\n"


# --- verify ---


def _add_verify(actions: Subcommands[argparse.ArgumentParser]) -> None:
    parser = _add(actions, "verify", "check every invariant of a store", _verify)
    add_layout(parser)
    _add_jobs(parser)
    _add_spark(parser)
    _add_json(parser)
    add_report(parser)
    add_progress(parser)


def _verify(options: argparse.Namespace) -> int:
    from firearrow.store.offline import verify

    _check(options)
    progress = ProgressBar("verifying", options.progress)
    if options.master:
        from firearrow.spark.jobs.verify import verdict_of

        with _spark(options) as spark:
            verdict = verdict_of(spark, layout_of(options))
    else:
        verdict = verify(layout_of(options), jobs=options.jobs, on_progress=progress)
    if options.report:
        from firearrow.cli.page import write_page
        from firearrow.cli.verdicts import report_of

        write_page(report_of(verdict, SystemClock().now_ms()), options.report)
    if options.json:
        _print_json(verdict)
    else:
        _print_verdict(verdict)
    return 0 if verdict.sound else 1


def _print_verdict(verdict: Verdict) -> None:
    from firearrow.store.offline import INVARIANTS

    state = "sound" if verdict.sound else "damaged"
    print(
        f"{verdict.store} is {state}: {verdict.records} records from {verdict.log_start} to "
        f"{verdict.log_end}, {verdict.queues} queues, {verdict.keys} keys"
    )
    before = None
    for finding in verdict.findings:
        row = INVARIANTS[finding.invariant]
        if finding.invariant != before:
            print(f"\n{finding.severity.value}: {row.id}: {row.broken}")
            print(f"  for whom  {row.affects}")
            print(f"  repair    {row.repair.value}")
        before = finding.invariant
        print(f"  {finding.place()}{finding.what}{finding.others()}")
    if verdict.behind:
        print(f"\n{verdict.behind}")
    for what in verdict.skipped:
        print(f"\nnot looked at: {what}")


# --- repair ---


def _add_repair(actions: Subcommands[argparse.ArgumentParser]) -> None:
    parser = _add(
        actions, "repair", "show a plan to repair a store; with --apply, carry it out", _repair
    )
    add_layout(parser)
    parser.add_argument(
        "--apply", action="store_true", help="carry out the plan; the broker must be stopped"
    )
    parser.add_argument(
        "--give-again",
        action="store_true",
        help="accept that queues give queue offsets twice, where the plan says so",
    )
    parser.add_argument(
        "--cover-damaged-bodies",
        action="store_true",
        help="replace also messages that can be read, but whose bytes do not match their CRC",
    )
    _add_jobs(parser)
    _add_json(parser)
    add_progress(parser)


def _repair(options: argparse.Namespace) -> int:
    from firearrow.store.offline import apply, plan

    progress = ProgressBar("verifying", options.progress)
    if not options.apply:
        planned = plan(
            layout_of(options),
            jobs=options.jobs,
            on_progress=progress,
            cover_bodies=options.cover_damaged_bodies,
        )
        if options.json:
            _print_json(planned)
        else:
            _print_steps(planned.steps)
            flags = "--apply --give-again" if planned.given_again else "--apply"
            flags += " --cover-damaged-bodies" if options.cover_damaged_bodies else ""
            if planned.does_something:
                print(f"\nnothing has been changed: {flags} carries this plan out")
        return 0 if planned.verdict.sound else 1
    outcome = apply(
        layout_of(options),
        SystemClock(),
        jobs=options.jobs,
        on_progress=progress,
        give_again=options.give_again,
        cover_bodies=options.cover_damaged_bodies,
    )
    if options.json:
        _print_json(outcome)
    else:
        _print_steps(outcome.steps)
        for queue, reason in outcome.left_out.items():
            print(f"queue {queue} could not be built again: {reason}")
        if outcome.kept:
            print(f"\nwhat was replaced is kept in {outcome.kept}")
        print()
        _print_verdict(outcome.verdict)
    return 0 if outcome.verdict.sound else 1


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


# --- rebuild ---


def _add_rebuild(actions: Subcommands[argparse.ArgumentParser]) -> None:
    parser = _add(actions, "rebuild", "rebuild queues and index from the CommitLog", _rebuild)
    add_layout(parser)
    add_made(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show what would be rebuilt")
    _add_jobs(parser)
    _add_spark(parser)
    _add_json(parser)
    add_progress(parser)


def _rebuild(options: argparse.Namespace) -> int:
    from firearrow.store.offline import planned, rebuild

    _check(options)
    layout = layout_of(options)
    order = order_of(options, ProgressBar("rebuilding", options.progress))
    if options.dry_run:
        _show_planned(planned(layout, order, to=options.to), as_json=options.json)
        return 0
    if options.master:
        from firearrow.spark.jobs.rebuild import rebuilt

        with _spark(options) as spark:
            made = rebuilt(spark, layout, to=options.to, order=order)
    else:
        made = rebuild(layout, SystemClock(), order, to=options.to)
    if options.json:
        _print_json(made)
    else:
        print(f"{made.where}: {made.queues} queues and {made.index_files} index files")
        print(f"from {made.records} records" + (f"; old ones in {made.kept}" if made.kept else ""))
        if made.stand_ins:
            print(f"{made.stand_ins} entries stand in for messages that the log has lost")
        for queue, reason in made.left_out.items():
            print(f"queue {queue} could not be made: {reason}")
        for topic, entries in made.unconfigured.items():
            print(f"topic {topic} is not configured: {as_deleted(entries)}")
    return 1 if made.left_out else 0


def _show_planned(plan: list[Planned], *, as_json: bool) -> None:
    if as_json:
        _print_json({"wouldRebuild": plan})
        return
    for made in plan:
        print(f"{made.where}: {made.what}, in place of {made.files_now} files")
    print(
        "\nnothing was written, and the log was not read: queues that it has no messages of are not"
        " made"
    )


# --- salvage ---


def _add_salvage(actions: Subcommands[argparse.ArgumentParser]) -> None:
    summary = "recover messages from damaged stores, log files or disk images"
    parser = actions.add_parser("salvage", help=summary, description=as_sentence(summary))
    parser.set_defaults(run=_salvage)
    parser.add_argument(
        "sources",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="store directory, log file or disk image",
    )
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="make a store in this directory (default: print JSON lines)",
    )
    parser.add_argument(
        "--file-bytes",
        type=int,
        metavar="N",
        help="size of the new log's files (default: as they were)",
    )
    parser.add_argument(
        "--queue-file-bytes",
        type=int,
        metavar="N",
        help="size of a queue's files (default: as they were)",
    )
    parser.add_argument(
        "--stored-body", action="store_true", help="print compressed bodies as they are"
    )
    _add_json(parser)
    add_progress(parser)


def _salvage(options: argparse.Namespace) -> int:
    from firearrow.store.offline import as_row, carved_messages, salvage

    progress = ProgressBar("carving", options.progress)
    for source in options.sources:
        if not source.exists():
            raise ConfigError(f"{source} does not exist")
    if options.to is None:
        found = carved_messages(options.sources, progress)
        rows = (as_row(message, stored_body=options.stored_body) for message in found)
        with naming_output():
            sys.stdout.writelines(_lines(rows))
        return 0
    made = salvage(
        options.sources,
        options.to,
        SystemClock(),
        file_bytes=options.file_bytes,
        queue_file_bytes=options.queue_file_bytes,
        on_progress=progress,
    )
    if options.json:
        _print_json(made)
        return 0
    print(f"{made.to}: {made.records} records from {made.sources} files")
    print(f"found twice: {made.duplicates}, with contradictions: {made.contradictions}")
    print(f"placeholders of lost messages: {made.placeholders}")
    print(f"messages with another queue offset: {made.renumbered}")
    for text in made.given_again:
        print(text)
    for queue, reason in made.left_out.items():
        print(f"queue {queue} could not be made: {reason}")
    return 0


# --- diff ---


def _add_diff(actions: Subcommands[argparse.ArgumentParser]) -> None:
    parser = _add(actions, "diff", "compare two stores", _diff)
    parser.add_argument("second", type=Path, metavar="OTHER", help="the other store directory")
    parser.add_argument(
        "--logical", action="store_true", help="compare messages, wherever they are in the log"
    )
    _add_json(parser)
    add_progress(parser)


def _diff(options: argparse.Namespace) -> int:
    from firearrow.store.offline import Layout, diff

    found = diff(
        Layout.of(options.directory),
        Layout.of(options.second),
        logical=options.logical,
        on_progress=ProgressBar("comparing", options.progress),
    )
    if options.json:
        _print_json(found)
    else:
        _print_diff(found)
    return 0 if found.same else 1


def _print_diff(found: Comparison) -> None:
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
        numbers = [
            (q.topic, q.queue_id, q.only_first, q.only_second, q.different) for q in found.queues
        ]
        _table(head, [[f"{row[0]}-{row[1]}", *map(str, row[2:])] for row in numbers])


# --- why-not-deleted ---


def _add_why_not_deleted(actions: Subcommands[argparse.ArgumentParser]) -> None:
    summary = "show for each CommitLog file why it is still there"
    parser = _add(actions, "why-not-deleted", summary, _why_not_deleted)
    parser.add_argument(
        "-c",
        dest="file",
        type=Path,
        metavar="FILE",
        help="the broker's properties file: retention, place of the log",
    )
    _add_json(parser)


def _why_not_deleted(options: argparse.Namespace) -> int:
    from firearrow.config import properties
    from firearrow.config.table import keys, update
    from firearrow.store.config import StoreConfig
    from firearrow.store.offline import why_not_deleted

    if not options.directory.is_dir():
        raise ConfigError(f"{options.directory} is not a directory")
    found = properties.load(options.file) if options.file else {}
    found["storePathRootDir"] = str(options.directory)
    known = keys(StoreConfig)
    config = update(StoreConfig(), {key: text for key, text in found.items() if key in known})
    report = why_not_deleted(config, SystemClock())
    if options.json:
        _print_json(report)
    else:
        _print_retention(report)
    return 0


def _print_retention(report: RetentionReport) -> None:
    print(f"log         {report.commit_log}")
    print(f"disk        {report.disk_used_percent} % used ({report.pressure})")
    print(f"unconsumed  {report.unconsumed_policy}")
    print(f"deletable   {in_bytes(report.deletable_bytes)} at the next look")
    for file in report.files:
        print(
            f"\n{file.file}  last message {_time(file.last_message_ms)}, "
            f"{in_bytes(file.frees_bytes)} on the disk"
        )
        for reason in file.reasons:
            print(f"  stays: {reason['text']}")
        if file.deletable:
            print("  goes at the next look")
