"""Disk space of a store and its topics, and the reasons why retention keeps files.

A shared log has no directory per topic. So the disk space of a topic comes from one pass over the log that reads the
sizes of all its records; the entries of its queues are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from firearrow.clock import Clock
from firearrow.errors import CorruptStore
from firearrow.message.names import is_lmq, offset_key
from firearrow.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from firearrow.state import DELAYS, GROUPS, OFFSETS, TOPICS, consumer_offsets, stored_state, table_of
from firearrow.store.batchqueue import DIRECTORY, inner_counts
from firearrow.store.config import StoreConfig
from firearrow.store.fs import FileSystem, ReadOnlyFiles
from firearrow.store.offline.pieces import OnProgress
from firearrow.store.offline.view import Layout, StoreView, stored_config, topics_with_batches
from firearrow.store.offline.walk import Gap, walk_file
from firearrow.store.queuefiles import FileConsumeQueues
from firearrow.store.reading.entries import QueueKey, queue_range
from firearrow.store.reading.rocksqueues import RocksQueues
from firearrow.store.reading.walk import RecordRun
from firearrow.store.retention import (
    Circumstances,
    Consumed,
    FileVerdict,
    FindQueue,
    committed_offsets,
    group_progress,
    pressure_of,
    retention_verdicts,
    unconsumed_in,
)
from firearrow.store.scan import Columns, Ints
from firearrow.store.segments import Segments


class QueueStat(msgspec.Struct, frozen=True):
    """One queue: its records in the log, their bytes there, and the messages that consumers can read.

    A record is a message, but in queues of batches it may hold several.
    """

    queue_id: int
    records: int
    log_bytes: int
    min_offset: int
    max_offset: int
    queue_bytes: int


class TopicStat(msgspec.Struct, frozen=True):
    """One topic; ``disk_bytes`` are the bytes of its records and its queues' entries together.

    Half messages and other records without a place in a queue count as records, too. The rate is over the topic's own
    time span, None where that is shorter than a second.
    """

    topic: str
    records: int
    log_bytes: int
    queue_bytes: int
    disk_bytes: int
    first_ms: int
    last_ms: int
    records_per_second: float | None
    queues: list[QueueStat]


class StoreStat(msgspec.Struct, frozen=True):
    """A whole store; sizes are in bytes, times in ms since 1970 (0: no record)."""

    store: str
    state: str
    lock_holder: int | None
    log_files: int
    log_file_bytes: int
    log_start: int
    log_end: int
    log_bytes: int
    damaged_bytes: int
    records: int
    first_ms: int
    last_ms: int
    records_per_second: float | None
    queues: int
    queue_files_bytes: int
    queues_kept: str
    index_files: int
    index_files_bytes: int
    configured: dict[str, int]
    topics: list[TopicStat]


@dataclass
class _Tally:
    records: int = 0
    log_bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    min_offset: int = -1
    max_offset: int = 0

    def add(self, columns: Columns, rows: Ints, messages: Ints | None = None) -> None:
        """Count some rows; ``messages`` are the message counts of the records of a topic with batches."""
        store_ms = columns.store_ms[rows]
        self.first_ms = self.first_ms or int(store_ms[0])
        self.last_ms = int(store_ms[-1])
        self.records += len(rows)
        self.log_bytes += int(columns.size[rows].sum())
        kind = columns.sys_flag[rows] & TRANSACTION_MASK
        visible = rows[(kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)]
        if len(visible):
            numbers = columns.queue_offset[visible]
            low = int(numbers.min())
            self.min_offset = low if self.min_offset < 0 else min(self.min_offset, low)
            held = 1 if messages is None else int(messages[visible[-1]])
            self.max_offset = int(numbers[-1]) + held


def stat(layout: Layout, on_progress: OnProgress | None = None) -> StoreStat:
    """Read all records of a store. Raises StoreError where the directory holds none."""
    with StoreView(layout) as view:
        tallies: dict[QueueKey, _Tally] = {}
        whole = _Tally()
        damaged = 0
        done = 0
        end = view.log_start
        for file in view.log.files:
            for piece in walk_file(view, file):
                if isinstance(piece, RecordRun):
                    _count(view, piece.columns, tallies, whole)
                    end = file.base + piece.columns.end
                elif isinstance(piece, Gap):
                    damaged += piece.end - piece.start
            done += file.size_bytes
            if on_progress is not None:
                on_progress(done, sum(file.size_bytes for file in view.log.files))
        return _store_stat(view, tallies, whole, damaged, end)


def _count(view: StoreView, columns: Columns, tallies: dict[QueueKey, _Tally], whole: _Tally) -> None:
    whole.add(columns, np.arange(len(columns)))
    topics, number = columns.topics()
    names = [topic.decode("utf-8", "replace") for topic in topics]
    of_batches = {topic for topic in names if topic in view.batch_topics}
    messages = inner_counts(columns) if of_batches else None
    group = number << 32 | columns.queue_id & 0xFFFFFFFF
    order = group.argsort(kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        key = int(group[rows[0]])
        topic, queue_id = names[key >> 32], key & 0xFFFFFFFF
        tally = tallies.setdefault((topic, queue_id), _Tally())
        tally.add(columns, rows, messages if topic in of_batches else None)


def _store_stat(view: StoreView, tallies: dict[QueueKey, _Tally], whole: _Tally, damaged: int, end: int) -> StoreStat:
    keys = {*tallies, *view.queues}
    topics = [
        _topic_stat(view, topic, {key[1]: tallies.get(key, _Tally()) for key in keys_of})
        for topic, keys_of in _by_topic(keys).items()
    ]
    assert whole.records == sum(topic.records for topic in topics), "each record is of one topic"
    assert whole.log_bytes == sum(topic.log_bytes for topic in topics), "each byte is of one topic"
    assert end >= view.log_start, "the log does not end before it begins"
    topics.sort(key=lambda topic: (-topic.disk_bytes, topic.topic))
    state = "clean" if view.clean else "not closed"
    return StoreStat(
        store=str(view.root),
        state="in use" if view.live else state,
        lock_holder=view.holder,
        log_files=len(view.log.files),
        log_file_bytes=view.log_file_bytes,
        log_start=view.log_start,
        log_end=end,
        log_bytes=end - view.log_start,
        damaged_bytes=damaged,
        records=whole.records,
        first_ms=whole.first_ms,
        last_ms=whole.last_ms,
        records_per_second=_rate(whole),
        queues=len(keys),
        queue_files_bytes=view.queue_files_bytes,
        queues_kept="RocksDB" if view.rocks_directory else "files",
        index_files=len(view.index.files),
        index_files_bytes=sum(file.size_bytes for file in view.index.files),
        configured=_configured(view),
        topics=topics,
    )


def _by_topic(keys: set[QueueKey]) -> dict[str, list[QueueKey]]:
    found: dict[str, list[QueueKey]] = {}
    for key in sorted(keys):
        found.setdefault(key[0], []).append(key)
    return found


def _topic_stat(view: StoreView, topic: str, tallies: dict[int, _Tally]) -> TopicStat:
    queues = [_queue_stat(view, topic, queue_id, tally) for queue_id, tally in tallies.items()]
    whole = _Tally(
        records=sum(tally.records for tally in tallies.values()),
        first_ms=min((tally.first_ms for tally in tallies.values() if tally.records), default=0),
        last_ms=max((tally.last_ms for tally in tallies.values()), default=0),
    )
    log_bytes = sum(queue.log_bytes for queue in queues)
    queue_bytes = sum(queue.queue_bytes for queue in queues)
    return TopicStat(
        topic,
        whole.records,
        log_bytes,
        queue_bytes,
        log_bytes + queue_bytes,
        whole.first_ms,
        whole.last_ms,
        _rate(whole),
        queues,
    )


def _queue_stat(view: StoreView, topic: str, queue_id: int, tally: _Tally) -> QueueStat:
    queue = view.queues.get((topic, queue_id))
    if queue is not None and queue.end:
        low, high = queue_range(queue, view.log_start)
        entry_bytes = queue.disk_bytes
    else:
        low, high, entry_bytes = max(tally.min_offset, 0), tally.max_offset, 0
    return QueueStat(queue_id, tally.records, tally.log_bytes, low, high, entry_bytes)


def _rate(tally: _Tally) -> float | None:
    span_ms = tally.last_ms - tally.first_ms
    return round(tally.records * 1000 / span_ms, 3) if span_ms >= 1000 else None


def _configured(view: StoreView) -> dict[str, int]:
    """Count the configured topics, groups and offsets."""
    tables = [
        (OFFSETS, "topics_consumed", "offsetTable"),
        (DELAYS, "delay_levels", "offsetTable"),
        (GROUPS, "groups", "subscriptionGroupTable"),
        (TOPICS, "topics", "topicConfigTable"),
    ]
    counts: dict[str, int] = {}
    for part, name, table in tables:
        value = stored_config(view.root / "config", part)
        if isinstance(value, dict) and table in value:
            counts[name] = len(table_of(value, table))
    return counts


# --- retention ---
#
# The store may be open or not; nothing is changed. The committed offsets of groups come from
# ``config/consumerOffset.json`` as it was last saved.


_HOUR_MS: Final = 3_600_000
_BLOCK_BYTES: Final = 512  # the unit of st_blocks on every system


class RetainedFile(msgspec.Struct, frozen=True, rename="camel"):
    """One CommitLog file in a report; times in ms, ``frees_bytes`` is its space on the disk."""

    file: str
    last_message_ms: int
    age_hours: float
    frees_bytes: int
    deletable: bool
    reasons: list[dict[str, str]]
    unconsumed: list[dict[str, str | int]]


class RetentionReport(msgspec.Struct, frozen=True, rename="camel"):
    """Reasons why the files of a store are kept."""

    commit_log: str
    now_ms: int
    disk_used_percent: int
    pressure: str
    unconsumed_policy: str
    deletable_bytes: int
    files: list[RetainedFile]


def why_not_deleted(config: StoreConfig, clock: Clock, fs: FileSystem | None = None) -> RetentionReport:
    """Report on each CommitLog file of a store.

    The sizes of files are the existing ones, whatever the configuration says. Raises CorruptStore when the log's files
    don't make a log, OSError when they can't be read.
    """
    fs = fs or ReadOnlyFiles()
    progress = list(_consumed(config.root_path))
    sizes = {path.stat().st_size for path in _files_in(config.commit_log_path)}
    if not sizes:
        raise CorruptStore(f"{config.commit_log_path} has no CommitLog file")
    segments = Segments(config.commit_log_path, max(sizes), fs=fs)
    queues = _queues(config, fs)
    try:
        segments.load()
        used = fs.used_ratio(config.commit_log_path), fs.used_ratio(config.root_path)
        circumstances = Circumstances(clock.now_ms(), *used, segments.end_offset)
        verdicts = retention_verdicts(
            segments.files, config, circumstances, lambda segment: unconsumed_in(segment, progress, _find_in(queues))
        )
        return _report(config, circumstances, [_row(v, circumstances) for v in verdicts])
    finally:
        queues.close()
        segments.close()


def _consumed(root: Path) -> Iterator[Consumed]:
    """The committed offsets of groups that can be read; without the file of groups all groups count."""
    committed: dict[str, dict[int, int]] = {}
    directory = root / "config"
    offsets = _known(consumer_offsets, directory)
    for group, topic, queue_id, queue_offset in committed_offsets(offsets):
        committed.setdefault(offset_key(topic, group), {})[queue_id] = queue_offset
    groups = _known(stored_state, directory, GROUPS).get("subscriptionGroupTable")
    topics = table_of(_known(stored_state, directory, TOPICS), "topicConfigTable")
    return group_progress(
        committed.items(),
        lambda group: groups is None or group in groups or is_lmq(group),
        lambda topic: int((topics.get(topic) or {}).get("readQueueNums", 0)),
    )


def _known(read: Callable[..., dict[str, Any]], *place: Any) -> dict[str, Any]:
    try:
        return read(*place)
    except CorruptStore:
        return {}


def _files_in(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("[0-9]*") if path.is_file())


def _queues(config: StoreConfig, fs: FileSystem) -> FileConsumeQueues | RocksQueues:
    """The queues of either kind.

    Raises ConfigError where they are in RocksDB, and its package is missing.
    """
    with StoreView(Layout(config.root_path, made_as=config), owned=True) as view:
        database = view.rocks_directory
    if database is not None:
        return RocksQueues.at(database)
    directory = config.consume_queue_path
    queues = FileConsumeQueues(
        directory,
        _file_bytes(directory) or config.consume_queue_file_bytes,
        fs,
        batch_file_bytes=_file_bytes(directory.parent / DIRECTORY) or config.batch_queue_file_bytes,
        wants_batches=topics_with_batches(config.root_path / "config").__contains__,
    )
    queues.load()
    return queues


def _file_bytes(directory: Path) -> int:
    """The size of a queue file, 0 without any."""
    return next((path.stat().st_size for path in directory.glob("*/*/[0-9]*")), 0)


def _find_in(queues: FileConsumeQueues | RocksQueues) -> FindQueue:
    if isinstance(queues, RocksQueues):
        return lambda topic, queue_id: queues.get((topic, queue_id))
    return queues.find


def _row(verdict: FileVerdict, circumstances: Circumstances) -> RetainedFile:
    path = verdict.segment.path
    return RetainedFile(
        path.name,
        verdict.last_ms,
        round((circumstances.now_ms - verdict.last_ms) / _HOUR_MS, 2),
        path.stat().st_blocks * _BLOCK_BYTES,
        not verdict.reasons,
        [{"obstacle": str(obstacle), "text": text} for obstacle, text in verdict.reasons],
        [
            {"group": group, "topic": topic, "queueId": queue_id, "messages": messages}
            for group, topic, queue_id, messages in verdict.unconsumed
        ],
    )


def _report(config: StoreConfig, circumstances: Circumstances, rows: list[RetainedFile]) -> RetentionReport:
    return RetentionReport(
        str(config.commit_log_path),
        circumstances.now_ms,
        round(circumstances.used * 100),
        pressure_of(config, circumstances.used).name.lower(),
        config.unconsumed_policy,
        sum(row.frees_bytes for row in rows if row.deletable),
        rows,
    )
