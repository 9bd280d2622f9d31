"""Why the CommitLog files of a store are still there: what retention decides, as a report.

The store may be open or not; nothing is changed. Where consumer groups are comes from
``config/consumerOffset.json``, as it was last saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from firearrow.clock import Clock
from firearrow.errors import CorruptStore
from firearrow.message.names import is_lmq, offset_key
from firearrow.state import GROUPS, TOPICS, consumer_offsets, stored_state, table_of
from firearrow.store.batchqueue import DIRECTORY
from firearrow.store.config import StoreConfig
from firearrow.store.fs import FileSystem, ReadOnlyFiles
from firearrow.store.offline.settings import topics_with_batches
from firearrow.store.offline.view import Layout, StoreView
from firearrow.store.queuefiles import FileConsumeQueues
from firearrow.store.reading.rocksqueues import RocksQueues
from firearrow.store.retention import (
    Circumstances,
    Consumed,
    FindQueue,
    Verdict,
    committed_offsets,
    group_progress,
    pressure_of,
    retention_verdicts,
    unconsumed_in,
)
from firearrow.store.segments import Segments

_HOUR_MS: Final = 3_600_000
_BLOCK_BYTES: Final = 512  # the unit of st_blocks on every system


class FileReport(msgspec.Struct, frozen=True, rename="camel"):
    """One CommitLog file in a report; times in ms, ``frees_bytes`` is what it holds on the disk."""

    file: str
    last_message_ms: int
    age_hours: float
    frees_bytes: int
    deletable: bool
    reasons: list[dict[str, str]]
    unconsumed: list[dict[str, str | int]]


class RetentionReport(msgspec.Struct, frozen=True, rename="camel"):
    """Why the files of a store are still there."""

    commit_log: str
    now_ms: int
    disk_used_percent: int
    pressure: str
    unconsumed_policy: str
    deletable_bytes: int
    files: list[FileReport]


def why_not_deleted(config: StoreConfig, clock: Clock, fs: FileSystem | None = None) -> RetentionReport:
    """Report on each CommitLog file of a store.

    File sizes are those that are found, whatever the configuration says.
    Raises CorruptStore when the log's files don't make a log, OSError when they can't be read.
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
    """How far groups are, as far as the files can be read; without theirs all groups count."""
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
    """The queues of either kind, as they are. Raises ConfigError where they are in RocksDB,
    and its package is missing."""
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
    """How large the files of queues are, 0 without any."""
    return next((path.stat().st_size for path in directory.glob("*/*/[0-9]*")), 0)


def _find_in(queues: FileConsumeQueues | RocksQueues) -> FindQueue:
    if isinstance(queues, RocksQueues):
        return lambda topic, queue_id: queues.get((topic, queue_id))
    return queues.find


def _row(verdict: Verdict, circumstances: Circumstances) -> FileReport:
    path = verdict.segment.path
    return FileReport(
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


def _report(config: StoreConfig, circumstances: Circumstances, rows: list[FileReport]) -> RetentionReport:
    return RetentionReport(
        str(config.commit_log_path),
        circumstances.now_ms,
        round(circumstances.used * 100),
        pressure_of(config, circumstances.used).name.lower(),
        config.unconsumed_policy,
        sum(row.frees_bytes for row in rows if row.deletable),
        rows,
    )
