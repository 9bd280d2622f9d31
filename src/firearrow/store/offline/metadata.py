"""Verify the files around log, queues and index: checkpoint, abort, configuration, timer, strays.

Source: RocketMQ's ``TimerLog``, ``TimerWheel``, ``TimerCheckpoint``; ``firearrow.store.timerfiles`` has their formats.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.errors import CorruptStore
from firearrow.files import sound_contents
from firearrow.journal import Content
from firearrow.message.names import SCHEDULE_TOPIC, is_lmq, is_system_topic
from firearrow.state import (
    DELAYS,
    LMQ_OFFSETS,
    OFFSETS,
    PARTS,
    TOPICS,
    StatePart,
    has_database,
    is_database,
    object_of,
    state_in_rows,
    table_of,
)
from firearrow.store.batchqueue import DIRECTORY as BATCH_DIRECTORY
from firearrow.store.checkpoint import CHECKPOINT_BYTES
from firearrow.store.offline.findings import Findings, Severity
from firearrow.store.offline.logcheck import FileReport
from firearrow.store.offline.view import StoreView, parse_config, stored_config
from firearrow.store.reading.entries import QueueKey, queue_range
from firearrow.store.reading.storage import Directory, StoreFile, list_files
from firearrow.store.retention import committed_offsets
from firearrow.store.scan import Ints
from firearrow.store.timerfiles import BLANK_MAGIC, CHECK, CHECK_BYTES, SLOT, UNIT, WHEEL_SLOTS

_PLAIN_NAMES: Final = ("transactionMetrics", "timermetrics")
_CHECKPOINT_FIELDS_BYTES: Final = 48
_KNOWN: Final = {
    "abort", "batchconsumequeue", "brokerIdentity", "checkpoint", "closed.json", "commitlog",
    "compaction", "config", "consumequeue", "consumequeue_ext", "consumequeue_rocksdb",
    "epochFileCheckpoint", "index", "kvStore",
    "left-out-queues.tsv", "lock", "namesrv", "quarantine",
    "rocksdbstore", "salvage-map.csv", "settled", "timerlog", "timerwheel",
}  # fmt: skip


def check_checkpoint(view: StoreView, reports: list[FileReport], log_end: int, findings: Findings) -> None:
    """Compare the checkpoint with the log: it may vouch for less than the log holds, never for more."""
    path = view.root / "checkpoint"
    try:
        data = path.read_bytes()
    except OSError:
        if reports and any(report.records for report in reports):
            # A broker that runs for the first time writes a checkpoint within seconds, or is killed before.
            severity = None if view.clean else Severity.NOTE
            text = "there is no checkpoint"
            findings.add("checkpoint-size", text, file="checkpoint", severity=severity)
        return
    if len(data) != CHECKPOINT_BYTES or data[_CHECKPOINT_FIELDS_BYTES:].strip(b"\0"):
        text = f"has {len(data)} bytes, or bytes after its fields that are not zero"
        findings.add("checkpoint-size", text, file="checkpoint")
        return
    if not view.live:
        _check_checkpoint_fields(view, reports, log_end, findings)


def _check_checkpoint_fields(view: StoreView, reports: list[FileReport], log_end: int, findings: Findings) -> None:
    checkpoint = view.checkpoint
    last_ms = max((report.last_ms for report in reports), default=0)
    times = [
        (0, "the log's", checkpoint.log_ms),
        (8, "the queues'", checkpoint.queues_ms),
        (16, "the index's", checkpoint.index_ms),
    ]
    for position, whose, value in times:
        if not 0 <= value <= last_ms:
            text = f"{whose} time is {value}, the last record was stored at {last_ms}"
            findings.add("checkpoint-time", text, file="checkpoint", position=position)
    offsets = [
        (24, "the master's flushed offset", checkpoint.master_flushed_offset),
        (32, "the confirmed offset", checkpoint.confirmed_offset),
        (40, "the last flushed queue entry's record", checkpoint.queues_physical_offset),
    ]
    for position, name, value in offsets:
        if not -1 <= value <= log_end:
            text = f"{name} is {value}, the log ends at {log_end}"
            findings.add("checkpoint-offset", text, file="checkpoint", position=position)


def check_state(view: StoreView, findings: Findings) -> None:
    """Report how the store was left, and files that no broker puts there."""
    if view.live:
        findings.add("store-closed", f"process {view.holder} has the store open", file="lock")
    elif not view.clean:
        findings.add("store-closed", "the last broker did not end in good order", file="abort")
    for path in sorted(view.root.iterdir()):
        name = path.name
        bare = name.removesuffix(".bak").removesuffix(".tmp")
        if bare in _KNOWN or name.startswith((".", "timerwheel.")):
            continue
        if path not in view.log_directories:
            findings.add("root-stray", "no part of a store has this name", file=name)
    for stray in view.log.strays:
        findings.add("log-stray-file", "is no CommitLog file", file=stray)
    _check_queue_strays(view, findings)


def _check_queue_strays(view: StoreView, findings: Findings) -> None:
    if view.rocks_directory is not None:
        return
    for directory in ("consumequeue", BATCH_DIRECTORY):
        # A broker that has changed to files leaves its database, in case it changes back.
        left_database = is_database(view.root / directory)
        for topic in view.storage.entries(directory):
            name = f"{directory}/{topic.name}"
            if topic.is_file and not left_database:
                text = "a file where directories of topics are"
                findings.add("queue-stray", text, file=name)
            for queue in view.storage.entries(name):
                if queue.is_file or not (queue.name.isascii() and queue.name.isdecimal()):
                    text = "is no queue of the topic"
                    findings.add("queue-stray", text, file=f"{name}/{queue.name}")
    _check_kinds(view, findings)


def _check_kinds(view: StoreView, findings: Findings) -> None:
    """Check that each topic has queues of the kind in its attribute."""
    for topic in sorted({topic for topic, _ in view.file_queues} & view.batch_topics):
        text = "the topic has queues of batches; this directory is of the usual kind"
        findings.add("queue-kind", text, file=f"consumequeue/{topic}", topic=topic)
    for topic in sorted({topic for topic, _ in view.batch_queues} - view.topics_with_batches):
        if topic not in view.batch_topics:
            text = "has no files; RocketMQ does not start, as the topic has not queue.type=BatchCQ"
            findings.add("queue-stray", text, file=f"{BATCH_DIRECTORY}/{topic}", topic=topic)
            continue
        text = "the topic has queues of batches, and not the attribute queue.type=BatchCQ"
        findings.add("config-queue-type", text, file=f"config/{TOPICS.file_name}", topic=topic)


def config_files(directory: Path) -> list[Path]:
    """The configuration files that are JSON, without their copies."""
    if not directory.is_dir():
        return []
    files = (path for path in sorted(directory.iterdir()) if path.is_file())
    return [path for path in files if path.suffix == ".json" or path.name in _PLAIN_NAMES]


def check_config(view: StoreView, topics: Iterable[str], findings: Findings) -> int:
    """Verify files and databases, and the offsets in them; return their number."""
    directory = view.root / "config"
    files = config_files(directory)
    kept = [part for part in PARTS.values() if has_database(directory, part)]
    states = {part.file_name: stored_config(directory, part) for part in PARTS.values()}
    for part in kept:
        if isinstance(states[part.file_name], str):
            _check_rows(directory, part, findings)
    for path in files:
        value = parse_config(path)
        if isinstance(value, str):
            findings.add("config-readable", f"can't be read: {value}", file=f"config/{path.name}")
        backup = path.with_name(path.name + ".bak")
        fault = parse_config(backup) if backup.exists() else {}
        if isinstance(fault, str):
            text = f"can't be read: {fault}"
            findings.add("config-backup", text, file=f"config/{backup.name}")
    _check_topics(_topics_of(states[TOPICS.file_name]), topics, findings)
    if not view.live:
        for part in (OFFSETS, LMQ_OFFSETS):
            _check_offsets(view, part.file_name, states[part.file_name], findings)
        _check_delays(view, table_of(states[DELAYS.file_name], "offsetTable"), findings)
    return len(files) + len(kept)


def _check_rows(directory: Path, part: StatePart, findings: Findings) -> None:
    try:
        state_in_rows(directory, part, {})
    except CorruptStore as error:
        findings.add("config-readable", str(error), file=f"config/{part.directory}")


def _check_topics(known: frozenset[str] | None, topics: Iterable[str], findings: Findings) -> None:
    for topic in sorted(topics):
        if is_deleted(topic, known) and not is_lmq(topic):
            text = "has messages in the log and is not in topics.json"
            file = f"config/{TOPICS.file_name}"
            findings.add("config-topic", text, file=file, topic=topic)


def configured_topics(view: StoreView) -> frozenset[str] | None:
    """The configured topics, None where they are not known."""
    return _topics_of(stored_config(view.root / "config", TOPICS))


def _topics_of(state: Content | str) -> frozenset[str] | None:
    if isinstance(state, str) or not state:
        return None
    return frozenset(table_of(state, "topicConfigTable"))


def is_deleted(topic: str, configured: frozenset[str] | None) -> bool:
    """Tell whether a topic without queues was deleted: others are configured.

    This leaves out the system's topics, which a broker makes at its start and may keep in files only.
    """
    return configured is not None and topic not in configured and not is_system_topic(topic)


def _check_offsets(view: StoreView, name: str, state: Content | str, findings: Findings) -> None:
    if not isinstance(state, str):
        for group, topic, queue_id, offset in committed_offsets(state):
            _check_offset(view, (topic, queue_id), offset, group, name, findings)


def _check_offset(view: StoreView, key: QueueKey, offset: int, group: str, name: str, findings: Findings) -> None:
    queue = view.queues.get(key)
    low, high = queue_range(queue, view.log_start)
    if queue is None and offset == 0:
        return
    if not low <= offset <= high:
        text = f"group {group} is at {offset}, the queue has {low} to {high}"
        findings.add(
            "config-offset", text, file=f"config/{name}",
            topic=key[0], queue_id=key[1], queue_offset=offset,
        )  # fmt: skip


def _check_delays(view: StoreView, levels: Content, findings: Findings) -> None:
    for level, offset in levels.items():
        queue = view.queues.get((SCHEDULE_TOPIC, int(level) - 1))
        low, high = queue_range(queue, view.log_start)
        if not (low <= int(offset) <= high or int(offset) == 0):
            text = f"level {level} is at {offset}, its queue has {low} to {high}"
            findings.add(
                "config-delay-offset", text, file=f"config/{DELAYS.file_name}",
                topic=SCHEDULE_TOPIC, queue_id=int(level) - 1, queue_offset=int(offset),
            )  # fmt: skip


def sound_copies(path: Path) -> list[Path]:
    """The readable copies of a configuration file, newest first."""
    sound = (Path(str(found.path)) for found in sound_contents(path, object_of, []))
    return [copy for copy in sound if copy != path]


# --- the timer's files: ``config/timercheck``, ``timerwheel`` and ``timerlog`` ---

_MAGICS: Final = (1, 3, 5, 7)
_BLANK: Final = BLANK_MAGIC.to_bytes(4, "big", signed=True)


def check_timer(view: StoreView, log_end: int, findings: Findings) -> bool:
    """Verify the timer's files against each other and the log; return whether they exist."""
    directory = list_files(view.storage, "timerlog")
    wheel = view.root / "timerwheel"
    if not directory.files and not wheel.exists():
        return False
    positions, due_ms, end = _check_units(view, directory, log_end, findings)
    if not view.live:
        _check_wheel(view, positions, due_ms, directory, findings)
        _check_timercheck(view, end, findings)
    return True


def _check_units(view: StoreView, directory: Directory, log_end: int, findings: Findings) -> tuple[Ints, Ints, int]:
    """Positions of all sound units, their due times (ms), and the position after the last unit."""
    positions: list[Ints] = [np.empty(0, np.int64)]
    due_ms: list[Ints] = [np.empty(0, np.int64)]
    end = directory.files[0].base if directory.files else 0
    files = directory.files
    for before, file in zip([None, *files], files, strict=False):
        name = file.path
        if file.size_bytes != directory.file_size_bytes or file.size_bytes < UNIT.itemsize:
            text = f"the file has {file.size_bytes} bytes, others {directory.file_size_bytes}"
            findings.add("timer-file", text, file=name)
            continue
        if before is not None and before.end != file.base:
            text = f"the file before it ends at {before.end}"
            findings.add("timer-file", text, file=name)
        units = _units(view, file, name, findings)
        places = file.base + np.arange(len(units), dtype=np.int64) * UNIT.itemsize
        _check_links(view, file, units, places, files[0].base, log_end, findings)
        positions.append(places)
        due_ms.append(units["written_ms"].astype(np.int64) + units["delay_ms"])
        if len(units):
            end = int(places[-1]) + UNIT.itemsize
    return np.concatenate(positions), np.concatenate(due_ms), end


def _units(view: StoreView, file: StoreFile, name: str, findings: Findings) -> npt.NDArray[Any]:
    """The units of a file up to its end; any other end of the units is a finding."""
    buffer = view.maps.of(file)
    units: npt.NDArray[Any] = np.frombuffer(buffer, UNIT, len(buffer) // UNIT.itemsize)
    sound = (units["size"] == UNIT.itemsize) & np.isin(units["magic"], _MAGICS)
    count = len(units) if sound.all() else int(np.argmin(sound))
    at = count * UNIT.itemsize
    head = bytes(buffer[at : at + 16])
    blank = head[12:16] == _BLANK and int.from_bytes(head[:4], "big") == len(buffer) - at
    if head.strip(b"\0") and not blank and not view.live:
        text = "the bytes there are no unit, and the bytes after them are not read"
        findings.add("timer-unit", text, file=name, position=at)
    return units[:count]


def _check_links(
    view: StoreView,
    file: StoreFile,
    units: npt.NDArray[Any],
    places: Ints,
    start: int,
    log_end: int,
    findings: Findings,
) -> None:
    assert file.size_bytes >= UNIT.itemsize, "the file has room for a unit"
    name = file.path
    offsets = units["physical_offset"].astype(np.int64)
    if not view.live:
        for number in np.flatnonzero((offsets < 0) | (offsets >= log_end)).tolist():
            text = f"its record is noted at {offsets[number]}, the log ends at {log_end}"
            position = int(places[number]) - file.base
            findings.add("timer-unit", text, file=name, position=position)
    previous = units["previous"].astype(np.int64)
    odd = (previous != -1) & ((previous >= places) | (previous < 0))
    within = (previous >= start) & ~odd
    odd |= within & (previous % file.size_bytes % UNIT.itemsize != 0)
    for number in np.flatnonzero(odd).tolist():
        text = f"the unit before it is said to be at {previous[number]}"
        findings.add("timer-chain", text, file=name, position=int(places[number]) - file.base)


def _check_wheel(view: StoreView, positions: Ints, due_ms: Ints, directory: Directory, findings: Findings) -> None:
    path = view.root / "timerwheel"
    try:
        size = path.stat().st_size
    except OSError:
        findings.add("timer-wheel-size", "there is no wheel", file="timerwheel")
        return
    if size != WHEEL_SLOTS * SLOT.itemsize:
        text = f"has {size} bytes, not {WHEEL_SLOTS * SLOT.itemsize}"
        findings.add("timer-wheel-size", text, file="timerwheel")
        return
    wheel: npt.NDArray[Any] = np.frombuffer(view.maps.of(StoreFile("timerwheel", 0, size)), SLOT)
    used = np.flatnonzero(wheel["time"])  # nearly all of a million slots are blank
    slots = wheel[used]
    of_units = (slots["time"] > 0) & (slots["last"] >= 0) & (slots["number"] > 0)
    used, slots = used[of_units], slots[of_units]
    start = directory.files[0].base if directory.files else 0
    last = slots["last"].astype(np.int64)
    first = slots["first"].astype(np.int64)
    row = positions.searchsorted(last)
    row_in = np.minimum(row, max(len(positions) - 1, 0))
    there = np.zeros(len(used), np.bool_)
    if len(positions):
        same_second = due_ms[row_in] // 1000 == slots["time"].astype(np.int64)
        there = (positions[row_in] == last) & same_second
    there |= last < start  # the units of that time were deleted
    for number in np.flatnonzero(~there | (first > last)).tolist():
        text = f"its last unit is said to be at {last[number]}, where none of its second is"
        position = int(used[number]) * SLOT.itemsize
        findings.add("timer-wheel-slot", text, file="timerwheel", position=position)


def _check_timercheck(view: StoreView, end: int, findings: Findings) -> None:
    path = view.root / "config" / "timercheck"
    try:
        data = path.read_bytes()
    except OSError:
        findings.add("timer-check", "there is no timercheck", file="config/timercheck")
        return
    if len(data) != CHECK_BYTES:
        text = f"has {len(data)} bytes, not {CHECK_BYTES}"
        findings.add("timer-check", text, file="config/timercheck")
        return
    read_ms, flushed, queue_offset, *_ = CHECK.unpack_from(data)
    if min(read_ms, flushed, queue_offset) < 0 or flushed > end:
        text = f"says that the timer log is on the disk up to {flushed}, it ends at {end}"
        findings.add("timer-check", text, file="config/timercheck", position=8)
