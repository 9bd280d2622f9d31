"""Makes ConsumeQueues and IndexFiles anew from the CommitLog alone.

The records go through the store's own ``Dispatcher`` into files beside the old ones, which change
places with them at the end: a crash in between leaves the old files or the new, never a mixture
within a queue. What was there is kept in a directory of its own.

The bytes are those that a broker writes, with two exceptions. The name of an IndexFile is the time
at which it was made. And where the log's first records are deleted, the first file of a queue
begins with pre-blank entries, as after any start of a queue that is not at 0.

Records of a topic that is not configured and has no queues belong to a deleted topic: they are left
out. Where the log lacks queue offsets of a queue, entries of the next message stand in for them, as
after a broker's own start. A queue whose offsets go back in the log is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import msgspec

from firearrow.clock import Clock
from firearrow.errors import StoreError
from firearrow.message.names import is_lmq
from firearrow.store.checkpoint import StoreGuard
from firearrow.store.commitlog import CommitLog
from firearrow.store.config import StoreConfig
from firearrow.store.delays import DelayLevels
from firearrow.store.dispatch import Dispatcher
from firearrow.store.fs import OS_FILES
from firearrow.store.index import Index
from firearrow.store.offline.around import configured_topics
from firearrow.store.offline.compare import index_geometry
from firearrow.store.offline.view import Layout, QueueKey, StoreView, free_directory
from firearrow.store.offline.walk import Run, walk_file
from firearrow.store.queuefiles import FileConsumeQueues
from firearrow.store.queues import ConsumeQueues, Entries, OnArrivals

OnProgress = Callable[[int, int], None]
_DEFAULTS: Final = StoreConfig()


class Rebuilt(msgspec.Struct, frozen=True):
    """What was made, where it is, and what could not be made: queue to reason.

    ``stand_ins`` are entries in place of messages that the log has lost.
    """

    where: str
    kept: str | None
    records: int
    queues: int
    index_files: int
    stand_ins: int
    left_out: dict[str, str]


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of the files to make."""

    queue_file_bytes: int
    index_slots: int
    index_entries: int

    @staticmethod
    def of(view: StoreView, queue_file_bytes: int | None = None) -> Sizes:
        """Those of the files that are there, else RocketMQ's own."""
        usual = [directory.file_size_bytes for directory in view.queues.values()]
        slots, entries = _DEFAULTS.max_hash_slot_num, _DEFAULTS.max_index_num
        for file in view.index.files[-1:]:
            found = index_geometry(view, file)
            slots, entries = found if found[0] else (slots, entries)
        if view.layout.index_slots:
            slots, entries = view.layout.index_slots, 4 * view.layout.index_slots
        whole = [size for size in usual if size and size % 20 == 0]
        common = max(set(whole), key=whole.count, default=_DEFAULTS.consume_queue_file_bytes)
        return Sizes(queue_file_bytes or common, slots, entries)


class _Target:
    """Takes the place of all queues: hands on what is wanted, and notes what could not be put."""

    def __init__(self, queues: FileConsumeQueues, wanted: Callable[[QueueKey], bool]) -> None:
        self._queues = queues
        self._wanted = wanted
        self.ends: dict[QueueKey, int] = {}
        self.left_out: dict[QueueKey, str] = {}
        self.stand_ins = 0

    def put(self, entries: Entries, on_arrivals: OnArrivals, *, complete: bool = False) -> None:
        """Write the runs of the queues that are wanted and could be made so far."""
        runs = [run for run in entries.each_run() if self._wanted((run.topic, run.queue_id))]
        for run in runs:
            key = run.topic, run.queue_id
            if key in self.left_out:
                continue
            end = self.ends.get(key, run.queue_offset)
            self._queues.put(entries.part(run), on_arrivals, complete=complete)
            self.ends[key] = run.queue_offset + run.end - run.start
            if self._queues.open(*key).max_offset != self.ends[key]:
                self.left_out[key] = f"after {end - 1} the log goes on with {run.queue_offset}"
            elif run.queue_offset > end:
                self.stand_ins += run.queue_offset - end


def rebuild(
    layout: Layout,
    clock: Clock,
    *,
    queues: bool = True,
    index: bool = True,
    to: Path | None = None,
    queue_file_bytes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Rebuilt:
    """Make queues, index or both anew, in place or below another directory.

    In place the store is locked meanwhile. Raises StoreLocked while a broker runs, StoreError where
    ``to`` has such files or queues are kept in RocksDB.
    """
    with StoreView(layout) as view:
        if queues and view.rocksdb_queues:
            raise StoreError(
                f"the queues of {view.root} are kept in RocksDB: they can't be rebuilt"
            )
        if to is not None:
            return build(view, clock, to, queues, index, queue_file_bytes, on_progress)
        guard = StoreGuard(view.root)
        guard.take()
        try:
            return rebuild_in_place(view, clock, queues, index, queue_file_bytes, on_progress)
        finally:
            guard.release(clean=False)


def rebuild_in_place(
    view: StoreView,
    clock: Clock,
    queues: bool,
    index: bool,
    queue_file_bytes: int | None = None,
    on_progress: OnProgress | None = None,
    only: frozenset[QueueKey] | None = None,
    kept: Path | None = None,
) -> Rebuilt:
    """Make files beside the old ones and change their places; the caller has locked the store.

    ``only`` names the queues to make, by default all: such of them as the log has nothing of go.
    ``kept`` is where the old files go.
    """
    fresh = free_directory(view.root, "rebuild", clock)
    kept = kept or free_directory(view.root, "replaced", clock)
    made = build(view, clock, fresh, queues, index, queue_file_bytes, on_progress, only)
    made_keys = {
        (path.parent.name, int(path.name)) for path in (fresh / "consumequeue").glob("*/*")
    }
    if queues:
        for path in sorted((fresh / "consumequeue").glob("*/*")):
            place = f"consumequeue/{path.parent.name}/{path.name}"
            _swap(view.root / place, path, kept / place)
        for topic, queue_id in (only or frozenset()) - made_keys:
            old = view.root / "consumequeue" / topic / str(queue_id)
            if f"{topic}-{queue_id}" not in made.left_out and old.exists():
                OS_FILES.rename(old, kept / "consumequeue" / topic / str(queue_id))
    if index:
        _swap(view.root / "index", fresh / "index", kept / "index")
    OS_FILES.remove_tree(fresh)
    OS_FILES.sync_directory(view.root)
    there = str(kept) if kept.exists() else None
    return msgspec.structs.replace(made, where=str(view.root), kept=there)


def _swap(place: Path, fresh: Path, kept: Path) -> None:
    if place.exists():
        OS_FILES.rename(place, kept)
    OS_FILES.rename(fresh, place)
    OS_FILES.sync_directory(place.parent)


def build(
    view: StoreView,
    clock: Clock,
    to: Path,
    queues: bool,
    index: bool,
    queue_file_bytes: int | None = None,
    on_progress: OnProgress | None = None,
    only: frozenset[QueueKey] | None = None,
    sizes: Sizes | None = None,
) -> Rebuilt:
    """Make the files below a directory that has none of them; durable on return."""
    for name in ("consumequeue", "index"):
        if (to / name).exists():
            raise StoreError(f"{to / name} exists already")
    to.mkdir(parents=True, exist_ok=True)
    sizes = sizes or Sizes.of(view, queue_file_bytes)
    files = FileConsumeQueues(to / "consumequeue", sizes.queue_file_bytes)
    target = _Target(files, _wanted(view, only) if queues else lambda key: False)
    keys = Index(to / "index", sizes.index_slots, sizes.index_entries, clock.now_ms)
    dispatcher = Dispatcher(
        CommitLog(to, 1, b""),  # records are handed over, never read from it
        cast(ConsumeQueues, target),
        keys if index else None,
        DelayLevels(view.layout.delay_levels),
        lambda arrived: None,
        light=True,
    )
    dispatcher.complete = True  # the log is read from its start
    try:
        records = _feed(view, dispatcher, on_progress)
        files.flush(0)
        for file in keys.files:
            OS_FILES.sync_file(file.path)
    finally:
        files.close()
        index_files = len(keys.files)
        keys.close()
    if index:
        (to / "index").mkdir(exist_ok=True)
    for topic, queue_id in target.left_out:
        part = to / "consumequeue" / topic / str(queue_id)
        if part.exists():
            OS_FILES.remove_tree(part)
    made = len(target.ends.keys() - target.left_out.keys())
    reasons = {f"{key[0]}-{key[1]}": why for key, why in sorted(target.left_out.items())}
    return Rebuilt(str(to), None, records, made, index_files, target.stand_ins, reasons)


def _wanted(view: StoreView, only: frozenset[QueueKey] | None) -> Callable[[QueueKey], bool]:
    """Whether a queue is to be made: chosen, or its topic not deleted."""
    configured = configured_topics(view)
    there = {topic for topic, _ in view.queues}

    def wanted(key: QueueKey) -> bool:
        if only is not None:
            return key in only
        return configured is None or key[0] in configured or key[0] in there or is_lmq(key[0])

    return wanted


def _feed(view: StoreView, dispatcher: Dispatcher, on_progress: OnProgress | None) -> int:
    """Dispatch all records of the log; return how many there were."""
    records = done = 0
    total = sum(file.size_bytes for file in view.log.files)
    for file in view.log.files:
        for piece in walk_file(view, file):
            if isinstance(piece, Run) and len(piece.columns):
                dispatcher.dispatch(piece.columns)
                records += len(piece.columns)
                if on_progress is not None:
                    on_progress(done + piece.columns.end, total)
        done += file.size_bytes
    if on_progress is not None:
        on_progress(total, total)
    return records
