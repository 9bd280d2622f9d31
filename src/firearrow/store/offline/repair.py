"""Repair a store: a plan of steps from the findings of verification, and its execution.

The plan is shown before anything happens. ``apply`` locks the store, so that no broker can run, and keeps everything
that it replaces in ``.repair-<UTC time>`` with a manifest. It works in this order: strays, the log, queues and index
from the log, configuration, checkpoint, timer. Each step leaves the store no worse if the next one fails. ``abort``
stays as it is: the next start checks everything once more.

A repair never loses bytes of the log. Covered or cut bytes are in the kept directory, under their name and position,
and ``salvage`` reads them.

A record that is whole but for its body or its CRC is served, so it is left as it is and named. Another CRC would pass
altered bytes for the original. Covering the record takes a message away that consumers can read, and is done only where
the caller asks for it (``cover_bodies``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from firearrow.clock import Clock
from firearrow.errors import StoreError, naming
from firearrow.message.model import MessageView
from firearrow.message.record import encode_blank
from firearrow.message.sysflag import COMPRESSED, INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_NONE
from firearrow.state import PARTS, object_of, read_json
from firearrow.store import inventory
from firearrow.store.checkpoint import Checkpoint, StoreGuard
from firearrow.store.fs import OS_FILES
from firearrow.store.offline.compare import QueueReport, add_queues
from firearrow.store.offline.findings import INVARIANTS, Repair, Severity
from firearrow.store.offline.healing import Healed, Replica, damaged, healed, joined
from firearrow.store.offline.keeping import Keeper, write_synced
from firearrow.store.offline.metadata import sound_copies
from firearrow.store.offline.numbering import Given, Lost, Stamp, cover, fits, fits_file, given, holding
from firearrow.store.offline.pieces import OnProgress, workers_for
from firearrow.store.offline.rebuilding import Order, Sizes, rebuild_in_place, warnings
from firearrow.store.offline.records import read
from firearrow.store.offline.restoring import proved
from firearrow.store.offline.verdict import Evidence, LogState, Verdict, examine, verify
from firearrow.store.offline.view import Layout, StoreView, free_directory
from firearrow.store.offline.walk import walk
from firearrow.store.reading.entries import PRE_BLANK_SIZE, QueueKey, StoredQueue, entry_at
from firearrow.store.reading.storage import Correction, StoreFile
from firearrow.store.reading.walk import RecordRun
from firearrow.store.segments import NAME_DIGITS
from firearrow.wire import fastjson

_STRAYS: Final = {"log-stray-file", "index-stray", "queue-stray", "queue-kind"}
_TIME_MS_MAX: Final = 1 << 42  # in the year 2109
_FILES_MADE_MAX: Final = 64  # if more seem to be missing, a name is wrong
_TIMER_FILES: Final = ("timerlog", "timerwheel", "config/timercheck")
_LOOPBACK: Final = bytes((127, 0, 0, 1, 0, 0, 0, 0))


class Action(Enum):
    """Kind of a step."""

    MOVE = "move away"
    EXTEND = "lengthen"
    WRITE = "write"
    CUT = "cut"
    REBUILD = "rebuild"
    RESTORE = "restore"
    CHECKPOINT = "write checkpoint"
    LEAVE = "leave"


class Step(msgspec.Struct, frozen=True):
    """One step: the change to bytes of a file, and its consequence for users.

    ``source`` is the file that replaces a restored one; ``queues`` are the queues to rebuild.
    """

    action: Action
    what: str
    consequence: str
    file: str | None = None
    position: int | None = None
    size: int | None = None
    source: str | None = None
    queues: list[str] = []


class Plan(msgspec.Struct, frozen=True):
    """The steps in order, none for a sound store.

    ``given_again`` has a sentence for each queue whose queue offsets would be assigned twice: the offsets, and the
    affected groups. ``apply`` must be told to go on then.
    """

    store: str
    verdict: Verdict
    steps: list[Step]
    given_again: list[str] = []

    @property
    def does_something(self) -> bool:
        """Tell whether any step changes the store."""
        return any(step.action is not Action.LEAVE for step in self.steps)


class Outcome(msgspec.Struct, frozen=True):
    """Result of a repair: the directory of the old bytes (None where there are none), and the verdict afterwards."""

    kept: str | None
    steps: list[Step]
    verdict: Verdict
    left_out: dict[str, str]


class _Patch(msgspec.Struct, frozen=True):
    """New bytes for a stretch of a log file."""

    path: Path
    position: int
    data: bytes


class _Work(msgspec.Struct):
    """The unfinished plan: steps, and the data for their execution."""

    steps: list[Step] = []
    patches: dict[int, _Patch] = {}
    rebuild: set[QueueKey] = set()
    index: bool = False
    database: bool = False
    held: dict[QueueKey, int] = {}
    given_again: list[str] = []


def plan(
    layout: Layout,
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    cover_bodies: bool = False,
    replica: Replica | None = None,
) -> Plan:
    """Verify a store and plan its repair; nothing is changed.

    Right bytes for a damaged part of the log come from a ``replica`` first, if there is one.
    """
    look = _Look(layout, jobs, on_progress, cover_bodies=cover_bodies, replica=replica)
    verdict, work = look.plan()
    return Plan(str(layout.root), verdict, work.steps, work.given_again)


def apply(
    layout: Layout,
    clock: Clock,
    *,
    jobs: int | None = None,
    on_progress: OnProgress | None = None,
    give_again: bool = False,
    cover_bodies: bool = False,
    replica: Replica | None = None,
) -> Outcome:
    """Verify, repair and verify again. Raises StoreLocked while a broker runs.

    Placeholders replace records that brokers serve with altered bytes only with ``cover_bodies``.

    Raises StoreError, having changed no message, where queue offsets would be assigned twice and ``give_again`` does
    not accept it. The same happens where neither configuration nor another file shows the size of queue files to make.
    """
    root = layout.root
    if not root.is_dir():
        raise StoreError(f"{root} is not a directory")
    guard = StoreGuard(root)
    guard.take()
    try:
        look = _Look(layout, jobs, on_progress, True, cover_bodies, replica)
        _, work = look.plan()
        extended = [step for step in work.steps if step.action is Action.EXTEND]
        with StoreView(layout, owned=True) as view:
            for step in extended:
                _extend(view.path_of(step.file or ""), view.log_file_bytes)
        if extended:  # only now the other steps can be planned
            look.extended = True
            _, work = look.plan()
        if work.given_again and not give_again:
            raise StoreError(f"{root}: {'; '.join(work.given_again)}: nothing was repaired")
        with StoreView(layout, owned=True) as view:
            warnings(view, _made(work))
        kept = free_directory(root, "repair", clock)
        with StoreView(layout, owned=True) as view:
            left_out = _carry_out(view, work, kept, clock, look.last_ms)
        after = verify(layout, jobs=jobs, owned=True)
    finally:
        guard.release(clean=False)
    steps = [*extended, *work.steps]
    return Outcome(str(kept) if kept.exists() else None, steps, after, left_out)


class _Look(msgspec.Struct):
    """Verifies a store and plans; ``last_ms`` is afterwards the store time of its last record.

    ``extended`` says that bytes of the log were missing, and are zero now.
    """

    layout: Layout
    jobs: int | None
    on_progress: OnProgress | None
    owned: bool = False
    cover_bodies: bool = False
    replica: Replica | None = None
    extended: bool = False
    last_ms: int = 0

    def plan(self) -> tuple[Verdict, _Work]:
        """The verdict, and the steps.

        Records that can be proved come first; the other steps are planned for the log after that.
        """
        with StoreView(self.layout, owned=self.owned) as view:
            verdict, evidence = self._examine(view)
            from_replica = self._healed(view, verdict, evidence)
            proofs = self._proved(view, verdict, evidence, from_replica)
            corrections = joined(from_replica.corrections, proofs)
            work = _Work()
            _plan_sizes(view, work)
            if work.steps:
                return verdict, work
            _plan_mends(view, from_replica.corrections, work, f"as {self._source} has them")
            _plan_mends(view, proofs, work, "which the rest of the store proves")
            _plan_refused(view, from_replica, work, self._source)
            if not corrections:
                self._plan_rest(view, verdict, evidence, work)
                return verdict, work
        with StoreView(self.layout._replace(corrections=corrections), owned=self.owned) as view:
            self._plan_rest(view, *self._examine(view), work)
        return verdict, work

    @property
    def _source(self) -> str:
        return "" if self.replica is None else f"the replica {self.replica.name}"

    def _healed(self, view: StoreView, verdict: Verdict, evidence: Evidence) -> Healed:
        """The replica's bytes for damaged parts."""
        if self.replica is None:
            return Healed()
        stretches = damaged(view, verdict, evidence)
        return healed(view, stretches, evidence.log.end, self.replica)

    def _proved(self, view: StoreView, verdict: Verdict, evidence: Evidence, known: Healed) -> tuple[Correction, ...]:
        """The right bytes of other damaged parts that the store itself proves."""
        if verdict.sound:
            return ()
        if not known.corrections:
            return proved(view, _gaps(evidence), _disordered(verdict))
        corrected = self.layout._replace(corrections=known.corrections)
        with StoreView(corrected, owned=self.owned) as after:
            verdict, evidence = self._examine(after)
            if verdict.sound:
                return ()
            return proved(after, _gaps(evidence), _disordered(verdict))

    def _examine(self, view: StoreView) -> tuple[Verdict, Evidence]:
        return examine(view, workers_for(view, self.jobs), self.on_progress)

    def _plan_rest(self, view: StoreView, verdict: Verdict, evidence: Evidence, work: _Work) -> None:
        self.last_ms = max((report.last_ms for report in evidence.reports), default=0)
        _plan_all(view, verdict, evidence, work, self)


def _gaps(evidence: Evidence) -> list[tuple[int, int]]:
    return [(gap.start, gap.end) for gap in (*evidence.log.gaps, *evidence.log.tail)]


def _disordered(verdict: Verdict) -> set[QueueKey]:
    """The queues whose offsets are not in order in the log."""
    return {
        (finding.topic, finding.queue_id or 0)
        for finding in verdict.findings
        if finding.invariant == "record-queue-order" and finding.topic is not None
    }


def _extend(path: Path, size_bytes: int) -> None:
    if path.exists():
        OS_FILES.resize(path, size_bytes)
    else:
        OS_FILES.create_file(path, size_bytes, 0)
    OS_FILES.sync_file(path)
    OS_FILES.sync_directory(path.parent)


# --- planning ---


def _plan_all(view: StoreView, verdict: Verdict, evidence: Evidence, work: _Work, look: _Look) -> None:
    for finding in verdict.findings:
        if finding.invariant in _STRAYS and finding.file:
            text = "move it into the kept directory"
            work.steps.append(Step(Action.MOVE, text, "none", finding.file))
    _plan_log(view, verdict, evidence, work)
    _plan_altered(view, evidence, work, look)
    _choose_derived(view, verdict, work)
    if not verdict.sound:
        _plan_numbers(view, verdict, evidence, work, extended=look.extended)
    _plan_derived(view, work)
    _plan_config(view, verdict, work)
    repairs = {INVARIANTS[finding.invariant].repair for finding in verdict.findings}
    if Repair.CHECKPOINT in repairs or evidence.log.tail:
        text = "write it again, without values that the log does not confirm"
        work.steps.append(Step(Action.CHECKPOINT, text, "none", "checkpoint", 0, 4096))
    if Repair.TIMER in repairs:
        _plan_timer(view, work)
    noted = view.root / inventory.NAME
    if noted.exists() and any(step.action is not Action.LEAVE for step in work.steps):
        text = "the notes of the last clean stop are no longer true: move the file away"
        work.steps.append(Step(Action.MOVE, text, "none", noted.name))
    _plan_rest(verdict, work)


def _plan_mends(view: StoreView, corrections: Iterable[Correction], work: _Work, source: str) -> None:
    """Restore bytes of records that the rest of the store proves, or that a replica has."""
    for correction in corrections:
        file = view.log.find(correction.physical_offset)
        assert file is not None, "the record is in the log"
        at = correction.physical_offset - file.base
        assert at + len(correction.data) <= file.size_bytes, "a record lies in one file"
        stored = view.log_bytes(correction.physical_offset, len(correction.data))
        wrong = [i for i in range(len(stored)) if stored[i] != correction.data[i]]
        if not wrong:
            continue
        first, end = wrong[0], wrong[-1] + 1
        text = f"restore {end - first} bytes of the log, {source}"
        patch = _Patch(view.path_of(file.path), at + first, correction.data[first:end])
        work.patches[len(work.steps)] = patch
        name = file.path
        work.steps.append(Step(Action.WRITE, text, "none", name, at + first, end - first))


def _plan_refused(view: StoreView, known: Healed, work: _Work, source: str) -> None:
    """Report where a replica does not help; later steps repair that part."""
    for (start, end, _), why in known.refused:
        file = _file_of(view, start, end, work)
        if file is None:
            continue
        place = file.path, start - file.base, end - start
        text = f"{source} does not help: {why}"
        work.steps.append(Step(Action.LEAVE, text, "it is repaired without a replica", *place))


def _plan_sizes(view: StoreView, work: _Work) -> None:
    """Restore the size of files that were cut short, and make missing files.

    The other steps are planned after that: a file of zeros reads as a file that ends before its first record.
    """
    for before, file in pairwise(view.log.files):
        bases = range(before.base + view.log_file_bytes, file.base, view.log_file_bytes)
        for base in bases if len(bases) <= _FILES_MADE_MAX else ():
            path = view.path_of(before.path).with_name(f"{base:0{NAME_DIGITS}d}")
            text = "make the missing file, without messages; a new plan shows the other steps then"
            harm = "its messages are lost; consumers get others in their place"
            size = view.log_file_bytes
            work.steps.append(Step(Action.EXTEND, text, harm, view.name_of(path), 0, size))
    for file in view.log.files:
        missing = view.log_file_bytes - file.size_bytes
        if 0 < missing < view.log_file_bytes:
            text = f"add {missing} bytes of zeros; a new plan shows the other steps after that"
            harm = "the messages in the missing part are lost"
            name = file.path
            work.steps.append(Step(Action.EXTEND, text, harm, name, file.size_bytes, missing))


def _plan_log(view: StoreView, verdict: Verdict, evidence: Evidence, work: _Work) -> None:
    """Cover damage before other records; cut damage without records after it."""
    covered: list[tuple[int, int]] = [(gap.start, gap.end) for gap in evidence.log.gaps]
    for report in evidence.reports:
        covered += [(at, at + size) for at, size in report.bad_records]
    for start, end in sorted(covered):
        _plan_cover(view, start, end, work)
    for finding in verdict.findings:
        at = finding.physical_offset if finding.invariant == "log-file-end" else None
        if at is not None and not any(start <= at < end for start, end in covered):
            _plan_blank(view, at, work)
    _plan_cut(view, evidence.log, work)


def _plan_cover(view: StoreView, start: int, end: int, work: _Work) -> None:
    file = _file_of(view, start, end, work)
    if file is None:
        return
    lost = _lost_in(view, start, end)
    name = file.path
    stamp = _stamp(view, start)
    data = cover(start, end, lost, stamp, file_end=end == file.end)
    place = start - file.base
    if data is None:
        text = "no records fit these bytes exactly: they stay as they are"
        harm = "an unclean start of a broker cuts the log off there"
        work.steps.append(Step(Action.LEAVE, text, harm, name, place, end - start))
        return
    text = f"set {end - start} bytes aside and cover them, {len(lost)} places of messages kept"
    harm = f"{len(lost)} messages are lost; their consumers get empty ones in their place"
    work.patches[len(work.steps)] = _Patch(view.path_of(file.path), place, data)
    work.steps.append(Step(Action.WRITE, text, harm, name, place, end - start))
    for message in lost:
        key = message.topic, message.queue_id
        work.held[key] = max(work.held.get(key, 0), message.queue_offset + 1)
    work.rebuild |= {(message.topic, message.queue_id) for message in lost}
    work.index = True


def _file_of(view: StoreView, start: int, end: int, work: _Work) -> StoreFile | None:
    """The file of a damaged stretch; None, with a step, where another file is named as if it had these bytes."""
    file = view.log.find(start)
    if file is not None and end <= file.end:
        return file
    text = f"the log's bytes {start} to {end - 1} are damaged, and two files are named as if they had them"
    harm = "nothing is repaired there before the wrong file is moved away"
    work.steps.append(Step(Action.LEAVE, text, harm))
    return None


def _plan_altered(view: StoreView, evidence: Evidence, work: _Work, look: _Look) -> None:
    """Leave records that are served though their bytes are altered, unless the caller wants them covered."""
    read_from = _rocketmq_reads_from(view, evidence, look.last_ms)
    for report in evidence.reports:
        for start, size in sorted(report.altered - report.bad_records):
            message = read(view, start)
            if look.cover_bodies or message is None or not _is_where_told(view, message):
                _plan_cover(view, start, start + size, work)
            else:
                _plan_leaving(view, message, work, is_read=start >= read_from)


def _is_where_told(view: StoreView, message: MessageView) -> bool:
    """Tell whether no queue's entry contradicts a record's own place."""
    place = message.physical_offset, message.store_size
    queue: StoredQueue | None = view.queues.get((message.topic, message.queue_id))
    if queue is not None and entry_at(queue, message.queue_offset)[:2] == place:
        return True
    return not _entries_in(view, place[0], sum(place))


def _rocketmq_reads_from(view: StoreView, evidence: Evidence, last_ms: int) -> int:
    """The offset where a start of RocketMQ begins to read the log.

    Java: CommitLog#isMappedFileMatchedRecover. After a clean stop that is the begin of the file where the queues end,
    otherwise of the file that the checkpoint, or the database of queues, vouches for. Without an offset in the
    checkpoint its time counts, which is not considered here. So a place may count as read that is not.
    """
    known = evidence.log.end - 1
    if not view.clean:
        known = _sane(view.checkpoint, last_ms, known + 1).queues_physical_offset
        if view.database is not None:
            known = min(known, view.dispatched_offset)
    return max((file.base for file in view.log.files if file.base <= known), default=0)


def _plan_leaving(view: StoreView, message: MessageView, work: _Work, *, is_read: bool) -> None:
    start = message.physical_offset
    file = view.log.find(start)
    assert file is not None, "the record is in the log"
    keys = f", keys {' '.join(message.keys)}" if message.keys else ""
    place = f"{message.topic}-{message.queue_id}, queue offset {message.queue_offset}{keys}"
    who = "RocketMQ serves" if message.sys_flag & (COMPRESSED | INNER_BATCH) else "brokers serve"
    text = f"{place}: its bytes are altered, and {who} it: --cover-damaged-bodies covers them"
    harm = "consumers get it as it is; "
    if is_read:
        harm += "the next start of RocketMQ cuts the log off there and loses all that follows"
    else:
        harm += "the next start of RocketMQ does not read it; one that does cuts the log off there"
    name = file.path
    work.steps.append(Step(Action.LEAVE, text, harm, name, start - file.base, message.store_size))


def _plan_blank(view: StoreView, start: int, work: _Work) -> None:
    file = view.log.find(start)
    if file is None or file.end - start < 8:
        return
    work.patches[len(work.steps)] = _Patch(view.path_of(file.path), start - file.base, encode_blank(file.end - start))
    name = file.path
    text = "write the blank that ends the file"
    step = Step(Action.WRITE, text, "none", name, start - file.base, 8)
    work.steps.append(step)


def _plan_cut(view: StoreView, log: LogState, work: _Work) -> None:
    for gap in log.tail:
        assert gap.start >= log.end, "only bytes after the end of the log are cut"
        file = _file_of(view, gap.start, gap.end, work)
        if file is None:
            continue
        name = file.path
        text = "set the bytes after the end of the log aside and make them zero"
        harm = "no whole record was written there: the bytes are lost"
        size = gap.end - gap.start
        step = Step(Action.CUT, text, harm, name, gap.start - file.base, size)
        work.steps.append(step)


def _lost_in(view: StoreView, start: int, end: int) -> list[Lost]:
    """The messages that queues have in a stretch of the log; otherwise the message of a record there."""
    lost = _entries_in(view, start, end)
    message = None if lost else read(view, start)
    if message is None or message.store_size != end - start:
        return fits(lost, start, end)
    if message.transaction_type in (TRANSACTION_NONE, TRANSACTION_COMMIT):
        place = start, message.store_size
        lost.append(Lost(*place, message.topic, message.queue_id, message.queue_offset))
    return fits(lost, start, end)


def _entries_in(view: StoreView, start: int, end: int) -> list[Lost]:
    """The messages that queues have in a stretch of the log."""
    found: list[Lost] = []
    for (topic, queue_id), queue in view.queues.items():
        for numbers, entries in queue.all():
            offsets = entries["physical_offset"]
            for row in np.flatnonzero((offsets >= start) & (offsets < end)).tolist():
                place = int(offsets[row]), int(entries["size"][row])
                if 0 < place[1] < PRE_BLANK_SIZE:
                    found.append(Lost(*place, topic, queue_id, int(numbers[row])))
    return found


def _stamp(view: StoreView, start: int) -> Stamp:
    """Store time of the record at a place, otherwise of the last one before it, otherwise of the next."""
    there = read(view, start)
    if there is not None:
        return Stamp(there.store_timestamp_ms, _LOOPBACK)
    stamp = Stamp(1, _LOOPBACK)
    file = view.log.find(start)
    assert file is not None, "the stretch is in the log"
    files = [other for other in view.log.files if other.base <= file.base][-2:]
    for piece in walk(view, files[0].base, file.end):
        if isinstance(piece, RecordRun):
            columns = piece.columns
            before = np.flatnonzero(columns.physical_offset < start)
            if len(before):
                stamp = Stamp(int(columns.store_ms[before[-1]]), _LOOPBACK)
            elif stamp.store_ms == 1:
                return Stamp(int(columns.store_ms[0]), _LOOPBACK)
    return stamp


def _choose_derived(view: StoreView, verdict: Verdict, work: _Work) -> None:
    """Note the queues to rebuild, and whether the index needs it."""
    for finding in verdict.findings:
        repair = INVARIANTS[finding.invariant].repair
        if repair is Repair.QUEUE and finding.severity is not Severity.NOTE:
            work.database = view.database is not None
            if finding.topic is not None:
                work.rebuild.add((finding.topic, finding.queue_id or 0))
        if repair is Repair.INDEX:
            work.index = True


def _plan_numbers(view: StoreView, verdict: Verdict, evidence: Evidence, work: _Work, *, extended: bool) -> None:
    """Hold the queue offsets that the end of the log has lost, so that none is assigned twice."""
    merged: dict[QueueKey, QueueReport] = {}
    for report in evidence.reports:
        add_queues(merged, report.queues)
    ends = {key: _end_made(view, key, report) for key, report in merged.items()}
    ends |= {key: max(end, ends.get(key, 0)) for key, end in work.held.items()}
    beyond = any(finding.invariant == "queue-beyond-log" for finding in verdict.findings)
    lost = bool(evidence.log.gaps or evidence.log.tail or extended or beyond)
    gone = frozenset() if view.rocks_directory else frozenset(work.rebuild)
    numbers = given(view, ends, gone=gone, believe_groups=lost)
    told = {(one.topic, one.queue_id) for one in numbers}
    for key in sorted(work.rebuild & merged.keys() - told):
        last = merged[key].numbers[-1][1]
        if ends[key] < last:  # the queue goes back in the log, and stays as it is
            numbers.append(Given(key[0], key[1], ends[key], last, (), alone=False))
    held: list[Given] = []
    for one in numbers:
        known = merged.get((one.topic, one.queue_id), QueueReport())
        can_follow = not _goes_back(known) and one.topic not in view.batch_topics
        if one.can_be_held and can_follow and fits_file(one.topic, view.log_file_bytes):
            held.append(one)
        else:
            work.given_again.append(str(one))
            text = f"{one}, and placeholders can't deal with that"
            harm = "groups that are further on never see the messages that get these numbers"
            work.steps.append(Step(Action.LEAVE, text, harm))
    if held:
        _plan_holding(view, evidence, held, work)


def _goes_back(report: QueueReport) -> bool:
    """Tell whether queue offsets go back in the log: then the queue can't be rebuilt."""
    return any(first < end for (_, end), (first, _) in pairwise(report.numbers))


def _end_made(view: StoreView, key: QueueKey, report: QueueReport) -> int:
    """End of a queue after a rebuild."""
    queue = view.queues.get(key)
    if _goes_back(report):
        return 0 if queue is None else queue.end
    return max(end for _, end in report.numbers)


def _plan_holding(view: StoreView, evidence: Evidence, held: list[Given], work: _Work) -> None:
    last_ms = max((report.last_ms for report in evidence.reports), default=0)
    told_ms = view.checkpoint.log_ms if 0 < view.checkpoint.log_ms < _TIME_MS_MAX else 1
    stamp = Stamp(last_ms or told_ms, _LOOPBACK)
    base, directory = view.log.files[-1].base, view.path_of(view.log.files[-1].path).parent
    for piece in holding(held, evidence.log.end, view.log_file_bytes, base, stamp):
        assert piece.base + piece.position >= evidence.log.end, "placeholders follow the log"
        file = view.log_file(piece.base)
        path = view.path_of(file.path) if file else directory / f"{piece.base:0{NAME_DIGITS}d}"
        work.patches[len(work.steps)] = _Patch(path, piece.position, piece.data)
        text = "hold queue offsets that were given to lost messages, by placeholders: "
        text += ", ".join(map(str, held))
        harm = "consumers get an empty message for each"
        name = view.name_of(path)
        step = Step(Action.WRITE, text, harm, name, piece.position, len(piece.data))
        work.steps.append(step)
    work.rebuild |= {(one.topic, one.queue_id) for one in held}
    work.index = True


def _plan_derived(view: StoreView, work: _Work) -> None:
    try:
        said = warnings(view, _made(work))
    except StoreError as error:
        said = [str(error)]
    harm = "; ".join(["queue offsets stay as they are; the old files are kept", *said])
    if view.database is not None and (work.database or work.rebuild):
        text = "build the database of all queues again from the log"
        work.steps.append(Step(Action.REBUILD, text, harm, view.name_of(view.database)))
    elif work.rebuild:
        names = sorted(f"{topic}-{queue_id}" for topic, queue_id in work.rebuild)
        text = f"build {len(names)} queues again from the log: {', '.join(names)}"
        work.steps.append(Step(Action.REBUILD, text, harm, "consumequeue", queues=names))
    if work.index:
        text = "build the index again from the log"
        work.steps.append(Step(Action.REBUILD, text, "none; the old files are kept", "index"))


def _made(work: _Work) -> Order:
    """The order for parts whose size a broker checks: it starts with any index."""
    return Order(queues=work.database or bool(work.rebuild), index=False)


def _plan_config(view: StoreView, verdict: Verdict, work: _Work) -> None:
    for finding in verdict.findings:
        if finding.invariant != "config-readable" or finding.file is None:
            continue
        copies = sound_copies(view.root / finding.file)
        if copies:
            name = view.name_of(copies[0])
            text = f"put {name} in its place"
            harm = "changes since that copy are lost"
            step = Step(Action.RESTORE, text, harm, finding.file, source=name)
        else:
            text = "no copy of it can be read: move it into the kept directory"
            harm = "a broker starts without its content"
            step = Step(Action.MOVE, text, harm, finding.file)
        work.steps.append(step)


def _plan_timer(view: StoreView, work: _Work) -> None:
    harm = "timed messages that the log still holds are delivered again, also delivered ones"
    work.steps += [
        Step(Action.MOVE, "set the timer's file aside: a broker rebuilds it", harm, name)
        for name in _TIMER_FILES
        if (view.root / name).exists()
    ]


def _plan_rest(verdict: Verdict, work: _Work) -> None:
    """Name the findings without a repair."""
    for finding in verdict.findings:
        row = INVARIANTS[finding.invariant]
        if row.repair in (Repair.NONE, Repair.OFFSET) and row.id != "root-stray":
            text = f"{row.id}: {finding.what}: {row.repair.value}"
            place = finding.file, finding.position
            work.steps.append(Step(Action.LEAVE, text, row.affects, *place))


# --- carrying out ---


def _restored(path: Path, copy: Path) -> bytes:
    """The content of a copy of a configuration file, with the changes from a journal that does not follow on the
    copy.
    """
    data, part = copy.read_bytes(), PARTS.get(path.name)
    if part is None:
        return data
    state, _ = read_json(path, part.tables.values())
    return data if state == object_of(data) else fastjson.dumps(state, pretty=True)


def _write_at(path: Path, position: int, data: bytes) -> None:
    with naming(path), path.open("r+b") as file:
        file.seek(position)
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())


def _carry_out(view: StoreView, work: _Work, kept: Path, clock: Clock, last_ms: int) -> dict[str, str]:
    """Do all steps; return the queues that could not be rebuilt, with the reason."""
    if all(step.action is Action.LEAVE for step in work.steps):
        return {}
    assert all(work.steps[number].action is Action.WRITE for number in work.patches), "only writing has bytes"
    left_out: dict[str, str] = {}
    keeper = Keeper(view.root, kept, work.steps)
    for number, step in enumerate(work.steps):
        if step.action is Action.REBUILD:
            left_out |= _rebuild(view.layout, work, step, kept, clock)
        elif step.action is not Action.LEAVE:
            _do(view, step, work.patches.get(number), keeper, last_ms)
    return left_out


def _do(view: StoreView, step: Step, patch: _Patch | None, keeper: Keeper, last_ms: int) -> None:
    assert step.file is not None, "a step that does something names its file"
    path = view.path_of(step.file)
    match step.action:
        case Action.MOVE:
            keeper.move(path)
        case Action.WRITE:
            assert patch is not None, "writing has bytes"
            assert (patch.position, len(patch.data)) == (step.position, step.size), "the plan shows the written bytes"
            if not path.exists() or path.stat().st_size < patch.position + len(patch.data):  # empty: it was just made
                _extend(path, view.log_file_bytes)
            keeper.bytes_of(path, patch.position, len(patch.data))
            _write_at(path, patch.position, patch.data)
        case Action.CUT:
            position, size = step.position or 0, step.size or 0
            keeper.bytes_of(path, position, size)
            _write_at(path, position, bytes(size))
        case Action.RESTORE:
            assert step.source is not None, "the plan shows the copy"
            keeper.copy(path)
            write_synced(path, _restored(path, view.path_of(step.source)))
        case _:
            assert step.action is Action.CHECKPOINT, "files get their size before all other steps"
            fresh = _sane(view.checkpoint, last_ms, view.log.end)
            for file in view.log.files:  # the checkpoint says that all of them are on the disk
                OS_FILES.sync_file(view.path_of(file.path))
            if path.exists():
                keeper.copy(path)
                path.unlink()
            fresh.save(path)


def _rebuild(layout: Layout, work: _Work, step: Step, kept: Path, clock: Clock) -> dict[str, str]:
    with StoreView(layout, owned=True) as view:  # the log as it is now
        index = step.file == "index"
        only = frozenset(work.rebuild) if step.queues else None
        order = Order(not index, index, only, shortens=True, sizes=Sizes.of(view))
        made = rebuild_in_place(view, clock, order, kept)
    return made.left_out


def _sane(old: Checkpoint, last_ms: int, log_end: int) -> Checkpoint:
    """The checkpoint without impossible values: zero vouches for nothing, so more is checked.

    It still says that the log was on the disk. Without such a checkpoint, an unclean start takes the first altered body
    for the torn end of the log.
    """

    def time(value: int) -> int:
        return value if 0 <= value <= last_ms else 0

    def offset(value: int) -> int:
        return value if 0 <= value <= log_end else 0

    return Checkpoint(
        time(old.log_ms) or (last_ms if old.log_ms else 0),
        time(old.queues_ms),
        time(old.index_ms),
        offset(old.master_flushed_offset),
        offset(old.confirmed_offset),
        offset(old.queues_physical_offset),
    )
