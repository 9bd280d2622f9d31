"""Verifies a store: every invariant of ``firearrow.store.offline.findings``, in one pass.

The log is read once, file by file and in several processes if that pays; queues, index and what
lies around them are looked at with what the log says. Beside a running broker the end is taken
once: what grew meanwhile, and what the broker has not written yet, is no finding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise
from multiprocessing import get_context
from typing import Final, NamedTuple

import msgspec

from firearrow.store.delays import DelayLevels
from firearrow.store.offline.around import check_checkpoint, check_config, check_state
from firearrow.store.offline.findings import Finding, Findings, Severity
from firearrow.store.offline.indexcheck import check_index
from firearrow.store.offline.logcheck import FileReport, GapReport, check_file
from firearrow.store.offline.queuecheck import check_queues
from firearrow.store.offline.timercheck import check_timer
from firearrow.store.offline.view import Layout, StoreView

OnProgress = Callable[[int, int], None]
_PARALLEL_FROM_BYTES: Final = 256 * 1024 * 1024  # below, a process costs more than it saves


class Verdict(msgspec.Struct, frozen=True):
    """What verification says of a store; ``sound`` if nothing is damaged.

    ``skipped`` names what could not be looked at, and why.
    """

    store: str
    sound: bool
    live: bool
    clean: bool
    log_start: int
    log_end: int
    log_files: int
    records: int
    keys: int
    queues: int
    index_files: int
    config_files: int
    findings: list[Finding]
    skipped: list[str]

    def by_severity(self, severity: Severity) -> list[Finding]:
        """The findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]


class LogState(msgspec.Struct, frozen=True):
    """Where the log ends, and its stretches without records: damaged ones, and those behind it."""

    end: int
    gaps: list[GapReport]
    tail: list[GapReport]


def verify(
    layout: Layout,
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    owned: bool = False,
) -> Verdict:
    """Look at a whole store. Raises StoreError where there is none.

    ``owned`` says that the caller holds the store's lock itself.
    """
    with StoreView(layout, owned=owned) as view:
        return examine(view, jobs=jobs, on_progress=on_progress)[0]


class Evidence(NamedTuple):
    """What a verdict rests on, for whoever repairs."""

    reports: list[FileReport]
    log: LogState


def examine(
    view: StoreView, *, jobs: int | None = None, on_progress: OnProgress | None = None
) -> tuple[Verdict, Evidence]:
    """Look at a whole store; give the verdict and what it rests on."""
    findings = Findings()
    reports = read_log(view, jobs, on_progress)
    state = log_state(reports)
    _log_findings(view, reports, state, findings)
    queues = check_queues(view, reports, state.end, [*state.gaps, *state.tail], findings)
    check_index(view, reports, findings)
    check_checkpoint(view, reports, state.end, findings)
    check_state(view, findings)
    topics = {topic for report in reports for topic, _ in report.queues}
    config = check_config(view, topics, findings)
    check_timer(view, state.end, findings)
    found = findings.all()
    verdict = Verdict(
        store=str(view.root),
        sound=not any(finding.severity is Severity.DAMAGE for finding in found),
        live=view.live,
        clean=view.clean,
        log_start=view.log_start,
        log_end=state.end,
        log_files=len(view.log.files),
        records=sum(report.records for report in reports),
        keys=sum(report.index.key_count for report in reports),
        queues=queues,
        index_files=len(view.index.files),
        config_files=config,
        findings=found,
        skipped=_skipped(view),
    )
    return verdict, Evidence(reports, state)


def _skipped(view: StoreView) -> list[str]:
    skipped: list[str] = []
    if view.rocksdb_queues:
        skipped.append("queues: they are kept in RocksDB")
    others = ("consumequeue_ext", "batchconsumequeue")
    skipped += [f"{name}: it is not looked at" for name in others if (view.root / name).is_dir()]
    if view.live:
        skipped.append(f"what process {view.holder} writes meanwhile")
    return skipped


def read_log(view: StoreView, jobs: int | None, on_progress: OnProgress | None) -> list[FileReport]:
    """The reports of all log files, in order."""
    total = sum(file.size_bytes for file in view.log.files)
    if jobs is None:
        jobs = min(os.cpu_count() or 1, len(view.log.files)) if total > _PARALLEL_FROM_BYTES else 1
    done = 0
    reports: list[FileReport] = []
    read = _read_parallel(view, jobs) if jobs > 1 else _read(view)
    for report in read:
        reports.append(report)
        done += report.size_bytes
        if on_progress is not None:
            on_progress(done, total)
    return sorted(reports, key=lambda report: report.base)


def _read(view: StoreView) -> Iterator[FileReport]:
    delays = DelayLevels(view.layout.delay_levels)
    for file in view.log.files:
        yield check_file(view, file, delays)


def _read_parallel(view: StoreView, jobs: int) -> Iterator[FileReport]:
    bases = [file.base for file in view.log.files]
    # A forked process would inherit the threads' locks of a program that embeds this.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(_read_one, view.layout, base) for base in bases]
        for task in as_completed(tasks):
            report = task.result()
            if report is not None:
                yield report


def _read_one(layout: Layout, base: int) -> FileReport | None:
    """In another process: the report of one file; None if it is gone by now."""
    with StoreView(layout) as view:
        file = view.log.find(base)
        return None if file is None else check_file(view, file, DelayLevels(layout.delay_levels))


def log_state(reports: list[FileReport]) -> LogState:
    """Settle where the log ends: behind the last record that stands where it belongs."""
    full = [number for number, report in enumerate(reports) if report.records]
    if not full:
        start = reports[0].base if reports else 0
        return LogState(start, [], [gap for report in reports for gap in report.gaps])
    last = reports[full[-1]]
    end = last.base + last.size_bytes if last.blank else last.end_offset
    gaps = [gap for report in reports for gap in report.gaps]
    return LogState(
        end,
        [gap for gap in gaps if gap.start < end],
        [gap for gap in gaps if gap.start >= end],
    )


def _log_findings(
    view: StoreView, reports: list[FileReport], state: LogState, findings: Findings
) -> None:
    _file_findings(view, findings)
    for report in reports:
        findings.extend(report.findings)
    for gap in state.gaps:
        _gap(view, gap, gap.invariant, f"{gap.end - gap.start} bytes are lost: {gap.why}", findings)
    if not view.live:
        for gap in state.tail:
            text = f"the log ends there, and something is written behind it: {gap.why}"
            _gap(view, gap, "log-tail", text, findings)
    _seams(view, reports, state.end, findings)


def _file_findings(view: StoreView, findings: Findings) -> None:
    usual = view.log_file_bytes
    files = view.log.files
    for before, file in zip([None, *files], files, strict=False):
        name = view.name_of(file.path)
        if file.size_bytes != usual:
            empty = not file.size_bytes and file is files[-1]
            text = f"the file has {file.size_bytes} bytes, others {usual}"
            severity = Severity.NOTE if empty else None
            findings.add("log-file-size", text, file=name, severity=severity)
        if before is not None and file.base != before.base + usual:
            text = f"the file before it starts at {before.base}: one is missing between them"
            findings.add("log-file-missing", text, file=name, physical_offset=before.base + usual)


def _gap(view: StoreView, gap: GapReport, invariant: str, text: str, findings: Findings) -> None:
    file = view.log.find(gap.start)
    findings.add(
        invariant,
        text,
        file=view.name_of(file.path) if file else None,
        position=gap.start - file.base if file else None,
        physical_offset=gap.start,
    )


def _seams(view: StoreView, reports: list[FileReport], end: int, findings: Findings) -> None:
    """Look at what goes from one file to the next: blanks, and store times."""
    for report, after in pairwise(reports):
        reached = max([report.end_offset, *(gap.end for gap in report.gaps)])
        file = view.log.find(report.base)
        name = view.name_of(file.path) if file else None
        if after.base < end and not report.blank and reached < report.base + report.size_bytes:
            text = "the file ends without a blank, though another follows"
            position = reached - report.base
            findings.add(
                "log-file-end", text, file=name, position=position, physical_offset=reached
            )
        if after.records and report.records and after.first_ms < report.last_ms:
            text = f"begins at {after.first_ms}, the file before ends at {report.last_ms}"
            findings.add("record-store-time", text, physical_offset=after.base)
