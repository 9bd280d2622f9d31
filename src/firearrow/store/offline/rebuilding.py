"""Rebuild ConsumeQueues and IndexFiles from the CommitLog alone.

The log is read in stretches (``pieces``), through the store's own ``Dispatcher``. Its entries and keys go, in the order
of the log, into files beside the old ones. At the end the new files replace the old ones: a crash in between leaves the
old files or the new, never a mixture within a queue. The replaced files are kept in a separate directory.

The bytes are the bytes that a broker writes, with two exceptions. The name of an IndexFile is the time of the rebuild.
And where the log's first records are deleted, the first file of a queue begins with pre-blank entries, as after any
start of a queue that is not at 0.

Records of a topic that is not configured and has no queues belong to a deleted topic: they are left out, and counted.
Where the log lacks queue offsets of a queue, entries of the next message stand in for them, as after a broker's own
start (in a queue of batches, none does). A queue whose offsets go back in the log is left as it is.

The configuration of the broker, or existing files, say how the broker makes files. Without either, RocketMQ's defaults
are assumed with a warning, unless something contradicts them: RocketMQ does not start with queue files of another size
than configured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import msgspec

from firearrow.clock import Clock
from firearrow.errors import CorruptStore, MessageError, StoreError, StoreLocked
from firearrow.files import free_path
from firearrow.message.names import fault_as_directory, is_lmq
from firearrow.store import inventory
from firearrow.store.batchqueue import DIRECTORY, UNIT_BYTES, messages_end
from firearrow.store.checkpoint import StoreGuard
from firearrow.store.config import StoreConfig
from firearrow.store.fs import OS_FILES
from firearrow.store.index import Index
from firearrow.store.laggingqueues import NAME as LEFT_OUT
from firearrow.store.laggingqueues import LaggingFile
from firearrow.store.offline.deriving import Derived, Deriving, derive
from firearrow.store.offline.metadata import configured_topics, is_deleted
from firearrow.store.offline.numbering import given
from firearrow.store.offline.pieces import (
    STRETCH_BYTES,
    OnProgress,
    Stretch,
    Workers,
    side_by_side,
    stretches,
    workers_for,
)
from firearrow.store.offline.restoring import proved
from firearrow.store.offline.view import Layout, StoreView, free_directory
from firearrow.store.queuefiles import FileConsumeQueues
from firearrow.store.queues import ENTRY_BYTES, ConsumeQueues, DispatchedEntries, Run
from firearrow.store.reading.entries import QueueKey
from firearrow.store.reading.index import geometry
from firearrow.store.reading.rocksqueues import DIRECTORIES as ROCKSDB_DIRECTORIES
from firearrow.store.reading.rocksqueues import RocksQueues
from firearrow.store.rocks import RocksConsumeQueues

_DEFAULTS: Final = StoreConfig()
_PURPOSE: Final = "rebuild"  # of the directory for unfinished files
QUEUE_DIRECTORIES: Final = ("consumequeue", DIRECTORY)


class Rebuilt(msgspec.Struct, frozen=True):
    """The new queues and files, their directory, and the queues that could not be made, with the reason.

    ``stand_ins`` are entries in place of messages that the log has lost. ``unconfigured`` are topics that were taken
    for deleted, with the number of entries that their queues would have. ``warnings`` are from the function
    ``warnings``.
    """

    where: str
    kept: str | None
    records: int
    queues: int
    index_files: int
    stand_ins: int
    left_out: dict[str, str]
    unconfigured: dict[str, int] = {}
    warnings: list[str] = []


class Planned(msgspec.Struct, frozen=True):
    """A directory that would be made: its name in a store, its content, its path, and the store's files that it
    replaces.
    """

    directory: str
    what: str
    where: str
    files_now: int


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of the files to make."""

    queue_file_bytes: int
    index_slots: int
    index_entries: int
    batch_file_bytes: int

    @property
    def of_index(self) -> list[str]:
        """Sizes of an IndexFile as a broker is configured."""
        return [f"maxHashSlotNum={self.index_slots}", f"maxIndexNum={self.index_entries}"]

    @staticmethod
    def of(view: StoreView, queue_file_bytes: int | None = None) -> Sizes:
        """The configured sizes of the broker, otherwise the existing files', otherwise RocketMQ's own."""
        made_as = view.layout.made_as or _DEFAULTS
        seen = _Seen.of(view) if view.layout.made_as is None else _Seen()
        slots, entries = seen.index or (made_as.max_hash_slot_num, made_as.max_index_num)
        if view.layout.index_slots and view.layout.index_slots != slots:
            slots, entries = view.layout.index_slots, 4 * view.layout.index_slots
        return Sizes(
            queue_file_bytes or seen.queue_file_bytes or made_as.consume_queue_file_bytes,
            slots,
            entries,
            seen.batch_file_bytes or made_as.batch_queue_file_bytes,
        )


class _Seen(msgspec.Struct, frozen=True):
    """Sizes of the existing files; None without files."""

    queue_file_bytes: int | None = None
    batch_file_bytes: int | None = None
    index: tuple[int, int] | None = None

    @staticmethod
    def of(view: StoreView) -> _Seen:
        usual = [directory.file_size_bytes for directory in view.file_queues.values()]
        batch = [directory.file_size_bytes for directory in view.batch_queues.values()]
        slots = view.layout.index_slots
        found = [geometry(file.size_bytes, slots) for file in view.index.files[-1:]]
        index = found[0] if found and found[0][0] else None
        return _Seen(_common(usual, ENTRY_BYTES), _common(batch, UNIT_BYTES), index)


def _common(sizes: list[int], multiple_of: int) -> int | None:
    """The most frequent size, of the sizes that a file can have."""
    whole = [size for size in sizes if size and size % multiple_of == 0]
    return max(set(whole), key=whole.count, default=None)


def warnings(view: StoreView, order: Order) -> list[str]:
    """Sentences on assumed sizes, and on differences between the store and an order.

    Raises StoreError where an assumption can't be safe, and where the store does not fit the given configuration.
    """
    if order.queues:
        _refuse_contradiction(view)
    if order.sizes is not None:
        return []
    seen, sizes = _Seen.of(view), Sizes.of(view, order.queue_file_bytes)
    said = []
    if order.queues and seen.queue_file_bytes not in (None, sizes.queue_file_bytes):
        said.append(
            f"ConsumeQueue files have {seen.queue_file_bytes} bytes, and are made with {sizes.queue_file_bytes}"
        )
    if view.layout.made_as is None:
        said += _guesses(view, order, seen, sizes)
    return said


def _guesses(view: StoreView, order: Order, seen: _Seen, sizes: Sizes) -> list[str]:
    needed: list[str] = []
    perhaps: list[str] = []
    if order.queues and view.database is None:
        if seen.queue_file_bytes is None and order.queue_file_bytes is None:
            # Where there are queues of batches, there may never have been others.
            guessed = needed if seen.batch_file_bytes is None else perhaps
            guessed.append(f"mappedFileSizeConsumeQueue={sizes.queue_file_bytes}")
        if seen.batch_file_bytes is None and view.batch_topics:
            needed.append(f"mapperFileSizeBatchConsumeQueue={sizes.batch_file_bytes}")
    if order.index and _guesses_index(view, seen):
        perhaps += sizes.of_index
    if needed:
        _refuse_unsafe(view, seen, needed)
    text = "{} is guessed, RocketMQ's default: no file of the store tells"
    said = [text.format(one) for one in needed + perhaps]
    if order.queues and view.lost_database is not None:
        name = view.name_of(view.lost_database)
        said.insert(0, f"storeType=defaultRocksDB is guessed: the database {name} is lost")
    return said


def _guesses_index(view: StoreView, seen: _Seen) -> bool:
    known = seen.index is not None or view.layout.index_slots is not None
    return view.layout.made_as is None and not known


def _refuse_unsafe(view: StoreView, seen: _Seen, guessed: list[str]) -> None:
    unusual = _unusual(view, seen)
    if unusual is not None and view.log.files:
        raise StoreError(
            f"{view.root}: RocketMQ's defaults ({', '.join(guessed)}) can't be guessed for a broker"
            f" that has {unusual}: its properties file is needed (-c FILE)"
        )


def _unusual(view: StoreView, seen: _Seen) -> str | None:
    """Differences between the broker's files and RocketMQ's defaults, which show that others may differ, too."""
    index = _DEFAULTS.max_hash_slot_num, _DEFAULTS.max_index_num
    for name, size, usual in (
        ("CommitLog files", view.log_file_bytes, _DEFAULTS.mapped_file_size_commit_log),
        ("ConsumeQueue files", seen.queue_file_bytes, _DEFAULTS.consume_queue_file_bytes),
        ("queue files of batches", seen.batch_file_bytes, _DEFAULTS.batch_queue_file_bytes),
    ):
        if size is not None and size != usual:
            return f"{name} of {size} bytes"
    if seen.index is not None and seen.index != index:
        return f"IndexFiles of {seen.index[0]} slots"
    return None


def _refuse_contradiction(view: StoreView) -> None:
    """Raise StoreError if queues would be of another kind than before: a broker would not see them."""
    made_as = view.layout.made_as
    if made_as is None:
        return
    database = view.database
    if made_as.store_type == "default" and database is not None:
        raise StoreError(
            f"{view.name_of(database)} in {view.root} is a database of RocksDB, and the properties"
            " file says storeType=default: it is not of this broker"
        )
    if made_as.store_type == "defaultRocksDB" and view.file_queues:
        raise StoreError(
            f"the queues in {view.root} are files, and the properties file says"
            " storeType=defaultRocksDB: it is not of this broker"
        )


class _Target:
    """Receiver of entries, in place of all queues: passes on the wanted ones, and notes the queues that failed."""

    def __init__(self, queues: ConsumeQueues, wanted: Callable[[QueueKey], bool]) -> None:
        self._queues = queues
        self._wanted = wanted
        self.ends: dict[QueueKey, int] = {}
        self.left_out: dict[QueueKey, str] = {}
        self.unwanted: dict[str, int] = {}
        self.stand_ins = 0

    def put(self, entries: DispatchedEntries) -> None:
        """Write the runs of the wanted queues that have not failed.

        Each run of a queue is put separately: a run that can't be put ends the queue.
        """
        rest = []
        for run in entries.each_run():
            if self._wanted((run.topic, run.queue_id)):
                rest.append(run)
            else:
                unwanted = self.unwanted.get(run.topic, 0)
                self.unwanted[run.topic] = unwanted + run.end - run.start
        while rest:
            now: dict[QueueKey, Run] = {}
            rest = [run for run in rest if now.setdefault(run[:2], run) is not run]
            runs = [run for key, run in now.items() if key not in self.left_out]
            if runs:
                self._queues.put(entries.parts(runs), complete=True)
                for run in runs:
                    self._note(run, messages_end(entries, run))

    def leave_out(self, reasons: dict[QueueKey, str]) -> None:
        """Note that queues were not made."""
        self.left_out = reasons | self.left_out

    def _note(self, run: Run, run_end: int) -> None:
        key = run.topic, run.queue_id
        end = self.ends.get(key, run.queue_offset)
        self.ends[key] = run_end
        try:
            queue = self._queues.open(*key)
        except (CorruptStore, MessageError) as error:  # the topic's name can't be a queue's
            self.left_out[key] = str(error)
            return
        if queue.max_offset != run_end:
            self.left_out[key] = f"after {end - 1} the log goes on with {run.queue_offset}"
        elif run.queue_offset > end and not self._queues.is_batch(run.topic):
            self.stand_ins += run.queue_offset - end


def _shortened(view: StoreView, target: _Target) -> dict[QueueKey, str]:
    """The queues that would assign queue offsets again, with the reason."""
    return {
        (one.topic, one.queue_id): (
            f"the log has lost its messages from {one.first} on: `firearrow store repair` keeps their queue offsets"
        )
        for one in given(view, target.ends, believe_groups=False)
        if (one.topic, one.queue_id) in target.ends
    }


class Order(msgspec.Struct, frozen=True):
    """The wanted queues and index, their sizes, and the ``workers``, or the number of ``jobs``.

    ``only`` names the queues to make, by default all. ``sizes`` are the existing files' sizes, but for
    ``queue_file_bytes``. ``shortens`` says that queues may end earlier than before; otherwise a queue whose last
    messages the log has lost is left as it is. ``on_warning`` gets each of the ``warnings`` before anything is made.
    """

    queues: bool = True
    index: bool = True
    only: frozenset[QueueKey] | None = None
    shortens: bool = False
    queue_file_bytes: int | None = None
    sizes: Sizes | None = None
    jobs: int | None = None
    workers: Workers | None = None
    stretch_bytes: int = STRETCH_BYTES
    on_progress: OnProgress | None = None
    on_warning: Callable[[str], object] | None = None


ALL: Final = Order()
"""Queues and index, all of them."""


def rebuild(layout: Layout, clock: Clock, order: Order = ALL, *, to: Path | None = None) -> Rebuilt:
    """Rebuild queues, index or both, in place or below another directory.

    In place the store stays locked for that time. Raises StoreLocked while a broker runs, StoreError where ``to`` has
    such files, and the errors of ``warnings``.
    """
    with StoreView(layout) as view:
        corrected = layout._replace(corrections=proved(view)) if order.queues else layout
    with StoreView(corrected) as view:
        if to is not None:
            return build(view, clock, to, order)
        guard = StoreGuard(view.root)
        guard.take()
        try:
            return rebuild_in_place(view, clock, order)
        finally:
            guard.release(clean=False)


def planned(layout: Layout, order: Order = ALL, *, to: Path | None = None) -> list[Planned]:
    """The directories that ``rebuild`` would make; nothing is written, and the log is not read.

    Files and topics show the kinds of queues, not whether the log has messages of them. Raises the errors that
    ``rebuild`` raises before it reads.
    """
    with StoreView(layout) as view:
        if to is not None:
            _refuse_made(to)
        elif view.live:
            raise StoreLocked(f"store {view.root} is in use by process {view.holder}")
        _wanted(view, order.only)
        _tell_warnings(view, order)
        made = _queue_directories(view) if order.queues else {}
        if order.index:
            made["index"] = "IndexFiles"
        return [
            Planned(name, what, str((to or view.root) / name), _files_below(view.root / name))
            for name, what in made.items()
        ]


def _queue_directories(view: StoreView) -> dict[str, str]:
    """The directories where queues of this store are made, see ``_queues_in``, and their content."""
    if view.database is not None:
        return {view.database.name: "queues in RocksDB"}
    of_batches = {DIRECTORY: "queues of batches"} if view.batch_topics else {}
    return {"consumequeue": "queues in files", **of_batches}


def _files_below(directory: Path) -> int:
    return sum(path.is_file() for path in directory.rglob("*"))


def rebuild_in_place(view: StoreView, clock: Clock, order: Order, kept: Path | None = None) -> Rebuilt:
    """Make files beside the old ones and replace these; the caller has locked the store.

    Chosen queues without messages in the log are removed. A database is rebuilt as a whole: queues that were not
    chosen, and queues without messages in the log, are copied from the old one. The old files go to ``kept``. Leftovers
    of killed runs are removed: as the store is locked, no other run is active.
    """
    for left in view.root.glob(f".{_PURPOSE}-*"):
        if left.is_dir():
            OS_FILES.remove_tree(left)
    fresh = free_directory(view.root, _PURPOSE, clock)
    kept = kept or free_directory(view.root, "replaced", clock)
    try:
        made = build(view, clock, fresh, order)
    except BaseException:
        if fresh.exists():
            OS_FILES.remove_tree(fresh)
        raise
    swapped: set[QueueKey] = set()
    database = view.database
    if order.queues and database is not None:
        name = database.name
        _swap(view.root / name, fresh / name, kept / name)
    elif order.queues:
        swapped = _swap_queues(view.root, fresh, kept, made, order.only or frozenset())
    if order.index:
        _swap(view.root / "index", fresh / "index", kept / "index")
    forget_made(view.layout, kept, swapped, index=order.index)
    OS_FILES.remove_tree(fresh)
    OS_FILES.sync_directory(view.root)
    there = str(kept) if kept.exists() else None
    return msgspec.structs.replace(made, where=str(view.root), kept=there)


def _swap_queues(root: Path, fresh: Path, kept: Path, made: Rebuilt, only: frozenset[QueueKey]) -> set[QueueKey]:
    """Give queues their new files; return these queues, and the queues that no longer have any."""
    paths = [path for name in QUEUE_DIRECTORIES for path in sorted((fresh / name).glob("*/*"))]
    for path in paths:
        place = path.relative_to(fresh)
        _swap(root / place, path, kept / place)
    swapped = {(path.parent.name, int(path.name)) for path in paths}
    gone = {
        key
        for key in only - swapped
        if f"{key[0]}-{key[1]}" not in made.left_out and fault_as_directory(key[0]) is None
    }
    for topic, queue_id in gone:
        for name in QUEUE_DIRECTORIES:
            place = Path(name, topic, str(queue_id))
            if (root / place).exists():
                OS_FILES.rename(root / place, free_path(kept / place))
    return swapped | gone


def _swap(place: Path, fresh: Path, kept: Path) -> None:
    if place.exists():
        OS_FILES.rename(place, free_path(kept))  # a repair may have moved a stray of that directory there
    OS_FILES.rename(fresh, place)
    OS_FILES.sync_directory(place.parent)


def build(view: StoreView, clock: Clock, to: Path, order: Order) -> Rebuilt:
    """Make the files below a directory without such files; durable on return."""
    _refuse_made(to)
    warned = _tell_warnings(view, order)
    to.mkdir(parents=True, exist_ok=True)
    sizes = order.sizes or Sizes.of(view, order.queue_file_bytes)
    queues = _queues_in(view, to, sizes)
    target = _Target(queues, _wanted(view, order.only))
    index = Index(to / "index", sizes.index_slots, sizes.index_entries, clock.now_ms)
    try:
        if order.queues:
            queues.load()
        records = _feed(view, order, target, index)
        for file in index.files:
            OS_FILES.sync_file(file.path)
        if order.queues:
            if not order.shortens:
                target.leave_out(_shortened(view, target))
            queues.delete_queues(set(target.left_out))
            if isinstance(queues, RocksConsumeQueues) and view.rocks_directory is not None:
                _take_rest(view, queues, target, order.only)
            queues.flush(0)
            if isinstance(queues, FileConsumeQueues):
                for (topic, queue_id), left in queues.left_out.items():
                    raise StoreError(f"queue {topic}-{queue_id} can't be made: {left.reason}")
    finally:
        queues.close()
        index_files = len(index.files)
        index.close()
    assert order.queues or not target.ends, "only ordered queues are made"
    assert order.index or not index_files, "only an ordered index is made"
    if order.index:
        (to / "index").mkdir(exist_ok=True)
    made = len(target.ends.keys() - target.left_out.keys())
    reasons = {f"{key[0]}-{key[1]}": why for key, why in sorted(target.left_out.items())}
    return Rebuilt(
        str(to),
        None,
        records,
        made,
        index_files,
        target.stand_ins,
        reasons,
        dict(sorted(target.unwanted.items())) if order.only is None else {},
        warned,
    )


def _tell_warnings(view: StoreView, order: Order) -> list[str]:
    found = warnings(view, order)
    if order.on_warning is not None:
        for warning in found:
            order.on_warning(warning)
    return found


def _refuse_made(to: Path) -> None:
    for name in (*ROCKSDB_DIRECTORIES, DIRECTORY, "index"):
        if (to / name).exists():
            raise StoreError(f"{to / name} exists already")


def _queues_in(view: StoreView, to: Path, sizes: Sizes) -> FileConsumeQueues | RocksConsumeQueues:
    """Queues of the store's kind, below another directory."""
    database = view.database
    if database is None:
        return FileConsumeQueues(
            to / "consumequeue",
            sizes.queue_file_bytes,
            batch_file_bytes=sizes.batch_file_bytes,
            wants_batches=view.batch_topics.__contains__,
            new_queues_max=math.inf,  # no client waits for a round of these
        )
    compression = _DEFAULTS.rocksdb_compression_type
    return RocksConsumeQueues(to / database.name, to / "elsewhere", compression)


def _take_rest(view: StoreView, queues: RocksConsumeQueues, target: _Target, only: frozenset[QueueKey] | None) -> None:
    """Copy the queues that were not made from the old database, as files stay where they are."""
    old = view.queues
    assert isinstance(old, RocksQueues), "the old queues are in a database"
    made = target.ends.keys() - target.left_out.keys()
    for key in old:
        if key not in made and (only is None or key not in only or key in target.left_out):
            queues.adopt(old.rows_of(key))


def _wanted(view: StoreView, only: frozenset[QueueKey] | None) -> Callable[[QueueKey], bool]:
    """Make a test whether a queue should be made: it is chosen, or its topic is not deleted."""
    configured = configured_topics(view)
    there = {topic for topic, _ in view.queues}

    def wanted(key: QueueKey) -> bool:
        if only is not None:
            return key in only
        return not is_deleted(key[0], configured) or key[0] in there or is_lmq(key[0])

    return wanted


def _feed(view: StoreView, order: Order, target: _Target, index: Index) -> int:
    """Put the entries and keys of all records of the log, in their order; return the number of records."""
    records = done = 0
    total = sum(file.size_bytes for file in view.log.files)
    seen = _Seen.of(view)
    unsafe = order.sizes is None and _guesses_index(view, seen)
    pieces = [Deriving(stretch, order.queues, order.index) for stretch in stretches(view, order.stretch_bytes)]
    workers = order.workers or workers_for(view, order.jobs)
    parts = (part for part in workers.work(view, derive, pieces) if part is not None)

    def again(stretch: Stretch) -> Derived | None:
        return derive(view, Deriving(stretch, order.queues, order.index))

    for part in side_by_side(parts, again):
        if len(part.entries.size):
            target.put(part.entries)
        if part.keys:
            if unsafe:  # only now a key has been found
                _refuse_unsafe(view, seen, Sizes.of(view).of_index)
            index.put(*part.index_keys)
        assert part.reached >= (part.begin or 0), "a part does not end before it begins"
        records += part.records
        done += part.reached - (part.begin or 0)
        if order.on_progress is not None:
            order.on_progress(done, total)
    if order.on_progress is not None:
        order.on_progress(total, total)
    return records


# --- notes for the next start ---
#
# ``closed.json`` (``inventory``) lists the content of a closed store, ``left-out-queues.tsv`` (``laggingqueues``) the
# queues that lack messages. A start rebuilds queues that contradict them, and must not do so with rebuilt ones. The
# other notes still hold, for example that the log ended later.


def forget_made(layout: Layout, kept: Path, made: AbstractSet[QueueKey], *, index: bool) -> None:
    """Remove rebuilt queues, and perhaps the index, from the notes.

    A queue that ends before its noted end stays noted as left out, for the next start. The earlier notes go to
    ``kept``.
    """
    _forget_in_inventory(layout.root, kept, made, index=index)
    noted = LaggingFile(layout.root, OS_FILES)
    noted.load()
    with StoreView(layout, owned=True) as view:
        whole = {
            key
            for key, end in noted.noted.items()
            if key in made and key in view.queues and view.queues[key].end >= end
        }
    if whole:
        _keep(layout.root / LEFT_OUT, kept)
        noted.renew(whole)


def _forget_in_inventory(root: Path, kept: Path, made: AbstractSet[QueueKey], *, index: bool) -> None:
    noted = inventory.load(root)
    if noted is None:
        return
    queues = {
        topic: {number: place for number, place in of_topic.items() if (topic, number) not in made}
        for topic, of_topic in noted.queues.items()
    }
    names = [] if index else noted.index
    left = msgspec.structs.replace(noted, queues=queues, index=names)
    if left != noted:
        _keep(root / inventory.NAME, kept)
        inventory.save(root, left, OS_FILES)


def _keep(path: Path, kept: Path) -> None:
    if not (kept / path.name).exists():
        OS_FILES.write_file(kept / path.name, [path.read_bytes()])
