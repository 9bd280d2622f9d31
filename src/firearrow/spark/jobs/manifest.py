"""What an archive holds, and how it changes: step by step, each whole or not at all.

::

    <archive>/
      topic=orders/dt=2026-11-21/000000000017-00003.parquet     messages
      _firearrow/
        lock                                     held by whoever changes the archive
        manifests/00000000000000000017.json      what step 17 has added and removed
        staging/<run>/topic=orders/dt=.../...    files of a step that is not committed yet

A step is: write files under ``staging``, then give its manifest its name. That name is the commit:
the manifests are what counts, and no two processes can give the same one. Only then the files move
to their places. A process that is killed before the commit leaves files that nobody looks at; one
that is killed after it leaves moves that the next one finishes. So whoever reads the directories
alone, without the manifests, sees no message twice and none that is not committed, and misses
none for longer than until the next start.

Names that begin with ``_`` are not read by Spark, pyarrow and others that read directories.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from firearrow.client.queues import Queue
from firearrow.errors import ConfigError, CorruptStore, StoreLocked
from firearrow.files import make_directory, sync_directory
from firearrow.spark.offsets import OffsetJson, from_json

FORMAT: Final = 1
_HOME: Final = "_firearrow"


class QueueRows(msgspec.Struct, frozen=True, rename="camel"):
    """Messages of one queue: so many, from the first to the last queue offset, both included."""

    topic: str
    broker: str
    queue_id: int
    first: int
    last: int
    rows: int

    @property
    def queue(self) -> Queue:
        """The queue itself."""
        return Queue(self.topic, self.broker, self.queue_id)


class DataFile(msgspec.Struct, frozen=True, rename="camel"):
    """A Parquet file of one topic and day, sorted by broker, queue and queue offset.

    ``path`` is where it is in the archive, ``run`` the step that wrote it.
    """

    path: str
    run: str
    topic: str
    day: str
    rows: int
    size_bytes: int
    stored_min_ms: int
    stored_max_ms: int
    queues: tuple[QueueRows, ...]


class Gap(msgspec.Struct, frozen=True, rename="camel"):
    """Messages that were gone before they were archived: ``missing`` of ``start`` to ``end``."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    missing: int


class Mark(msgspec.Struct, frozen=True, rename="camel"):
    """A message that the log of a broker has, by which it is known again: where its record is, and
    when it was stored and born."""

    broker: str
    commit_log_offset: int
    store_ms: int
    born_ms: int


class Manifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One step. ``offsets`` are where each queue is to be read on; ``files``, where it is there,
    is all that the archive held before what is added (no earlier manifest is needed then, and
    ``gaps`` are those of all steps). ``marks`` tell which stores the archive is of, newest last."""

    format: int = FORMAT
    archive: str
    sequence: int
    run: str
    created_ms: int
    offsets: OffsetJson
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    files: tuple[DataFile, ...] | None = None
    marks: tuple[Mark, ...] = ()


@dataclass
class State:
    """What an archive holds after the step ``sequence`` (0: nothing yet)."""

    archive: str = ""
    sequence: int = 0
    offsets: dict[Queue, int] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    marks: tuple[Mark, ...] = ()
    last: Manifest | None = None

    def apply(self, manifest: Manifest) -> None:
        """Make a step that follows."""
        if manifest.files is not None:
            self.files = {file.path: file for file in manifest.files}
            self.gaps = []
        for path in manifest.removed:
            self.files.pop(path, None)
        self.files.update((file.path, file) for file in manifest.added)
        self.gaps += manifest.gaps
        self.offsets = from_json(manifest.offsets, f"manifest {manifest.sequence}")
        self.marks = manifest.marks or self.marks
        self.archive = manifest.archive
        self.sequence = manifest.sequence
        self.last = manifest


class Archive:
    """The directory of an archive. Reading needs no lock; ``changing`` takes it."""

    def __init__(self, root: Path | str) -> None:
        self.root = _local(root)
        self.home = self.root / _HOME
        self.staging = self.home / "staging"
        self._manifests = self.home / "manifests"

    # --- reading ---

    def load(self) -> State:
        """Read what the archive holds. Raises CorruptStore where a manifest is missing."""
        while True:
            try:
                return self._fold(self._chain())
            except FileNotFoundError:
                continue  # compaction has taken earlier manifests away: begin again with its own

    def manifests(self, after: int) -> list[Manifest]:
        """The steps after ``after``, oldest first, as far as they are kept."""
        return [self._read(path) for path in self._names() if int(path.stem) > after]

    def place(self, file: DataFile) -> Path:
        """Where a committed file is now: in its place, or not yet."""
        final = self.root / file.path
        return final if final.exists() else self.staging / file.run / file.path

    def _chain(self) -> list[Manifest]:
        """The manifests that the present state follows from, oldest first."""
        chain: list[Manifest] = []
        for path in reversed(self._names()):
            chain.append(self._read(path))
            if chain[-1].files is not None:
                break
        return chain[::-1]

    def _fold(self, chain: list[Manifest]) -> State:
        state = State()
        for manifest in chain:
            expected = state.sequence + 1
            begins = state.sequence == 0 and manifest.files is not None
            if manifest.sequence != expected and not begins:
                raise CorruptStore(
                    f"archive {self.root}: manifest {expected} is missing, but there is"
                    f" {manifest.sequence}"
                )
            state.apply(manifest)
        return state

    def _names(self) -> list[Path]:
        return sorted(path for path in self._manifests.glob("*.json") if path.stem.isdecimal())

    def _read(self, path: Path) -> Manifest:
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except msgspec.DecodeError as error:
            raise CorruptStore(f"{path} is not the manifest of an archive: {error}") from None
        if manifest.format != FORMAT:
            raise CorruptStore(
                f"{path} has format {manifest.format}, but only format {FORMAT} can be read"
            )
        return manifest

    # --- changing ---

    @contextmanager
    def changing(self) -> Iterator[State]:
        """Hold the archive for the time of a block, with what it holds.

        What an earlier process began and committed is finished, what it did not commit removed.
        Raises StoreLocked when another process changes the archive.
        """
        make_directory(self._manifests)
        make_directory(self.staging)
        descriptor = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreLocked(f"archive {self.root}: another process is changing it") from None
            state = self.load()
            if state.last is not None:
                self._publish(state.last)
            self._sweep()
            yield state
        finally:
            os.close(descriptor)

    def new_run(self) -> str:
        """A name for the files of a step, with a directory under ``staging``."""
        run = uuid.uuid4().hex
        make_directory(self.staging / run)
        return run

    def drop_run(self, run: str) -> None:
        """Remove what a step has written that will not be committed."""
        shutil.rmtree(self.staging / run, ignore_errors=True)

    def commit(self, state: State, manifest: Manifest) -> None:
        """Make a step count, for good, and move its files to their places.

        ``state`` is what ``changing`` gave, and is brought up to date. Raises StoreLocked if the
        step's number is taken: then the archive was changed without the lock.
        """
        assert manifest.sequence == state.sequence + 1
        self._sync_staged(manifest)
        fresh = self._manifests / f"{manifest.run}.tmp"
        with fresh.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            file.flush()
            os.fsync(file.fileno())
        name = self._manifests / f"{manifest.sequence:020}.json"
        try:
            name.hardlink_to(fresh)  # a rename would replace another's
        except FileExistsError:
            raise StoreLocked(f"{name}: another process has made this step") from None
        finally:
            fresh.unlink()
        sync_directory(self._manifests)
        state.apply(manifest)
        self._publish(manifest)
        self._sweep()

    def _sync_staged(self, manifest: Manifest) -> None:
        """Have the names of staged files on the disk; their contents are there already."""
        staged = self.staging / manifest.run
        for directory in {(staged / file.path).parent for file in manifest.added}:
            for place in (directory, *directory.parents):
                if place == self.staging:
                    break
                sync_directory(place)
        sync_directory(self.staging)

    def _publish(self, manifest: Manifest) -> None:
        """Move the files of a committed step to their places and remove those it has replaced.

        Can be repeated, and finishes what was begun.
        """
        for path in manifest.removed:
            (self.root / path).unlink(missing_ok=True)
        for file in manifest.added:
            staged, final = self.staging / manifest.run / file.path, self.root / file.path
            if staged.exists():
                final.parent.mkdir(parents=True, exist_ok=True)
                staged.replace(final)
            elif not final.exists():
                raise CorruptStore(f"archive {self.root}: {file.path} is missing")
        for directory in {(self.root / file.path).parent for file in manifest.added}:
            for place in (directory, directory.parent, self.root):
                sync_directory(place)
        if manifest.files is not None:
            for earlier in self._names():
                if int(earlier.stem) < manifest.sequence:
                    earlier.unlink()

    def _sweep(self) -> None:
        """Remove what nobody will commit; to be called while the lock is held and no step runs."""
        for left in self.staging.iterdir():
            shutil.rmtree(left, ignore_errors=True)
        for fresh in self._manifests.glob("*.tmp"):
            fresh.unlink()


def _local(root: Path | str) -> Path:
    text = str(root)
    if "://" in text and not text.startswith("file://"):
        raise ConfigError(
            f"archive {text!r}: must be a directory on a mounted file system, because a commit"
            " needs a file name that only one process can create"
        )
    return Path(text.removeprefix("file://")).absolute()
