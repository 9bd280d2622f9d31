"""Verify a store: every invariant of ``firearrow.store.offline.findings``, in one pass.

Stretches of the log, IndexFiles and the files of queues are separate pieces, in several processes if that pays
(``pieces``). The records of a stretch are compared with their entries in queues and index. Little is left for the
reports together: whether they fit, and entries without records. Beside a running broker the end of the log is read
once. Later growth, and parts that the broker has not written yet, are no finding.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from firearrow.store.batchqueue import DIRECTORY as BATCH_DIRECTORY
from firearrow.store.offline.compare import QueueReport, add_queues
from firearrow.store.offline.findings import Finding, Findings, Severity
from firearrow.store.offline.indexcheck import IndexLook, check_index, look_at_index
from firearrow.store.offline.logcheck import FileReport, GapReport, check_stretch, join_stretches
from firearrow.store.offline.metadata import check_checkpoint, check_config, check_state, check_timer
from firearrow.store.offline.pieces import STRETCH_BYTES, OnProgress, Stretch, Workers, stretches, workers_for
from firearrow.store.offline.queuecrosscheck import check_queues
from firearrow.store.offline.queuestructure import check_database, look_at_queues
from firearrow.store.offline.view import Layout, StoreView
from firearrow.store.reading.entries import QueueKey

_QUEUES_A_PIECE: Final = 32  # a queue's files have some MB, mostly with few entries


class IndexName(NamedTuple):
    """An IndexFile, as a piece of work."""

    name: str


class QueueKeys(NamedTuple):
    """Queues, as a piece of work."""

    keys: tuple[QueueKey, ...]


class Verdict(msgspec.Struct, frozen=True):
    """Result of a verification; ``sound`` if nothing is damaged.

    ``skipped`` names parts that could not be checked, with the reason. ``undispatched`` counts the messages that the
    log has and the ends of queues lack. This is expected: a running broker, or the next start, dispatches them.
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
    undispatched: int = 0

    @property
    def behind(self) -> str:
        """A sentence on the messages that the queues lack; empty if there are none."""
        if not self.undispatched:
            return ""
        text = f"{self.undispatched} messages of the log are after the ends of the queues: "
        return text + ("the broker writes them later" if self.live else "a start dispatches them")


class LogState(msgspec.Struct, frozen=True):
    """End of the log, and its stretches without records: damaged ones, and the ones after the end."""

    end: int
    gaps: list[GapReport]
    tail: list[GapReport]


def verify(
    layout: Layout,
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    owned: bool = False,
    workers: Workers | None = None,
    stretch_bytes: int = STRETCH_BYTES,
) -> Verdict:
    """Verify a whole store. Raises StoreError where the directory holds none.

    ``owned`` says that the caller holds the store's lock itself. The log is read in stretches, by ``workers`` or in
    ``jobs`` processes.
    """
    with StoreView(layout, owned=owned) as view:
        workers = workers or workers_for(view, jobs)
        return examine(view, workers, on_progress, stretch_bytes)[0]


class Evidence(NamedTuple):
    """Facts behind a verdict, for a repair."""

    reports: list[FileReport]
    log: LogState


def examine(
    view: StoreView, workers: Workers, on_progress: OnProgress | None = None, stretch_bytes: int = STRETCH_BYTES
) -> tuple[Verdict, Evidence]:
    """Verify a whole store; return the verdict and its evidence."""
    findings = Findings()
    looks = _look(view, workers, stretch_bytes, on_progress)
    reports = looks.reports
    state = log_state(reports)
    _log_findings(view, reports, state, findings)
    findings.extend(looks.queues)
    merged: dict[QueueKey, QueueReport] = {}
    for report in reports:
        add_queues(merged, report.queues)
    queues, behind = check_queues(view, merged, state.end, [*state.gaps, *state.tail], findings)
    check_database(view, state.end, findings)
    check_index(view, looks.index_files, reports, findings)
    check_checkpoint(view, reports, state.end, findings)
    check_state(view, findings)
    config = check_config(view, {topic for topic, _ in merged}, findings)
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
        undispatched=behind,
    )
    return verdict, Evidence(reports, state)


def _skipped(view: StoreView) -> list[str]:
    skipped: list[str] = []
    others = ["consumequeue_ext", *([BATCH_DIRECTORY] if view.rocks_directory else [])]
    skipped += [f"{name}: it is not checked" for name in others if (view.root / name).is_dir()]
    if view.live:
        skipped.append(f"later writes of process {view.holder}")
    return skipped


Piece = Stretch | IndexName | QueueKeys
Look = FileReport | IndexLook | list[Finding] | None


class _Looks(NamedTuple):
    """Results of the pieces: files of the log, IndexFiles, files of queues."""

    reports: list[FileReport]
    index_files: list[IndexLook]
    queues: list[Finding]


def pieces_of(view: StoreView, stretch_bytes: int) -> list[Piece]:
    """The pieces of a store; the longest work comes first."""
    keys = list(view.queues)
    return [
        *(IndexName(file.name) for file in view.index.files),
        *stretches(view, stretch_bytes),
        *(QueueKeys(tuple(keys[start : start + _QUEUES_A_PIECE])) for start in range(0, len(keys), _QUEUES_A_PIECE)),
    ]


def look_at(view: StoreView, piece: Piece) -> Look:
    """Verify one piece; None if its file has been deleted."""
    match piece:
        case Stretch():
            return check_stretch(view, piece)
        case IndexName():
            return look_at_index(view, piece.name)
        case QueueKeys():
            return look_at_queues(view, piece.keys)


def _look(view: StoreView, workers: Workers, stretch_bytes: int, on_progress: OnProgress | None) -> _Looks:
    """Verify all pieces, and join the stretches of each file of the log."""
    pieces = pieces_of(view, stretch_bytes)
    total = sum(file.size_bytes for file in view.log.files)
    done = 0
    stretches_of: dict[int, list[FileReport | None]] = {}
    looks = _Looks([], [], [])
    for piece, found in zip(pieces, workers.work(view, look_at, pieces), strict=True):
        if isinstance(found, IndexLook):
            looks.index_files.append(found)
        elif isinstance(found, list):
            looks.queues.extend(found)
        if isinstance(piece, Stretch):
            assert not isinstance(found, IndexLook | list), "a stretch gives a report"
            stretches_of.setdefault(piece.base, []).append(found)
            done += piece.end - piece.start
            if on_progress is not None:
                on_progress(done, total)
    assert done == total, "the stretches are the whole log"
    for parts in stretches_of.values():
        whole = [part for part in parts if part is not None]
        if len(whole) == len(parts):  # otherwise the file has been deleted
            looks.reports.append(join_stretches(view, whole))
    return looks


def log_state(reports: list[FileReport]) -> LogState:
    """Find the end of the log: after the last record that is in its place."""
    full = [number for number, report in enumerate(reports) if report.records]
    if not full:
        start = reports[0].base if reports else 0
        return LogState(start, [], [gap for report in reports for gap in report.gaps])
    last = reports[full[-1]]
    end = last.base + last.size_bytes if last.blank else last.end_offset
    assert end >= reports[0].base, "the log does not end before it begins"
    gaps = [gap for report in reports for gap in report.gaps]
    return LogState(end, [gap for gap in gaps if gap.start < end], [gap for gap in gaps if gap.start >= end])


def _log_findings(view: StoreView, reports: list[FileReport], state: LogState, findings: Findings) -> None:
    _file_findings(view, findings)
    for report in reports:
        findings.extend(report.findings)
    for gap in state.gaps:
        _gap(view, gap, gap.invariant, f"{gap.end - gap.start} bytes are lost: {gap.why}", findings)
    if not view.live:
        for gap in state.tail:
            text = f"the log ends there, and something is written after it: {gap.why}"
            _gap(view, gap, "log-tail", text, findings)
    _seams(view, reports, state.end, findings)


def _file_findings(view: StoreView, findings: Findings) -> None:
    usual = view.log_file_bytes
    files = view.log.files
    for before, file in zip([None, *files], files, strict=False):
        name = file.path
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
        file=file.path if file else None,
        position=gap.start - file.base if file else None,
        physical_offset=gap.start,
    )


def _seams(view: StoreView, reports: list[FileReport], end: int, findings: Findings) -> None:
    """Verify the transitions between files: blanks, and store times."""
    for report, after in pairwise(reports):
        reached = max([report.end_offset, *(gap.end for gap in report.gaps)])
        file = view.log.find(report.base)
        name = file.path if file else None
        if after.base < end and not report.blank and reached < report.base + report.size_bytes:
            text = "the file ends without a blank, though another follows"
            position = reached - report.base
            findings.add("log-file-end", text, file=name, position=position, physical_offset=reached)
        if after.records and report.records and after.first_ms < report.last_ms:
            text = f"begins at {after.first_ms}, the file before ends at {report.last_ms}"
            findings.add("record-store-time", text, physical_offset=after.base)
