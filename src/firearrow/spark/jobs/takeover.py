"""An archive of the format before Delta tables, made one: its files stay where they are.

That format had manifests, ``_firearrow/manifests/<step>.json``, each of what a step had added and
removed; one with ``files`` names all that there was before. Files of the last step may still be in
``_firearrow/staging/<run>``. Some archives had also been published as a Delta table in the same
directory, up to some step; that table is gone on with.

What the manifests say is one commit, which also says that it was taken over. Only then they go. So
this can be repeated, and finishes what was begun.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from firearrow.client.queues import Queue
from firearrow.errors import CorruptStore, StoreLocked
from firearrow.files import sync_directory
from firearrow.spark.jobs.delta import OLD, Archive, Change, DataFile, QueueRows, State
from firearrow.spark.jobs.progress import ArchiveProgress, Gap, LogMark, numbers_of_gaps, numbers_of_offsets, taken
from firearrow.spark.offsets import OffsetJson, from_json

FORMAT: Final = 1
_HOME: Final = Path(OLD).parent
_TAKEN: Final = _HOME / "taken"


class _File(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    topic: str
    day: str
    rows: int
    size_bytes: int
    stored_min_ms: int
    stored_max_ms: int
    queues: tuple[QueueRows, ...]

    def as_now(self) -> DataFile:
        """Tell what it holds as the table does."""
        parts = self.queues
        return DataFile(
            path=self.path,
            topic=self.topic,
            day=self.day,
            rows=self.rows,
            size_bytes=self.size_bytes,
            broker_min=min(part.broker for part in parts),
            broker_max=max(part.broker for part in parts),
            queue_min=min(part.queue_id for part in parts),
            queue_max=max(part.queue_id for part in parts),
            offset_min=min(part.first for part in parts),
            offset_max=max(part.last for part in parts),
            stored_min_ms=self.stored_min_ms,
            stored_max_ms=self.stored_max_ms,
        )


class _Manifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    format: int
    archive: str
    sequence: int
    run: str
    offsets: OffsetJson
    added: tuple[_File, ...] = ()
    removed: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    files: tuple[_File, ...] | None = None
    marks: tuple[LogMark, ...] = ()


@dataclass
class _Old:
    """What the manifests say together; of each file also which step it is of."""

    last: _Manifest
    files: dict[str, tuple[_File, int]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)


def take_over(archive: Archive) -> int | None:
    """Make an archive of the old format a Delta table; give the number of its files.

    None where it is none of the old format. Raises StoreLocked where a process still writes it,
    CorruptStore where a manifest or a file is missing.
    """
    root = archive.place.directory
    if root is None or not (root / _HOME).exists():
        return None
    with _lock(root):
        count = None
        if archive.is_old():
            old = _read(root)
            _finish(archive, old)
            state = archive.load(old=True)
            if state.numbers.get(taken(old.last.archive)) != old.last.sequence:
                archive.commit(state, _change(old, state))
            (root / OLD).rename(root / _TAKEN)  # at once: half a chain of manifests would be damage
            sync_directory(root / _HOME)
            count = len(old.files)
        shutil.rmtree(root / _HOME)
    return count


@contextmanager
def _lock(root: Path) -> Iterator[None]:
    descriptor = os.open(root / _HOME / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StoreLocked(f"archive {root}: another process is changing it") from None
    finally:
        os.close(descriptor)


def _read(root: Path) -> _Old:
    chain = [_decoded(path) for path in sorted((root / OLD).glob("*.json"))]
    joined = [at for at, manifest in enumerate(chain) if manifest.files is not None]
    chain = chain[joined[-1] :] if joined else chain
    expected = chain[0].sequence if joined else 1
    old = None
    for manifest in chain:
        if manifest.sequence != expected:
            raise CorruptStore(f"archive {root}: manifest {expected} is missing, but there is {manifest.sequence}")
        old = _followed(old, manifest)
        expected += 1
    if old is None:
        raise CorruptStore(f"archive {root}: there is no manifest in {OLD}")
    return old


def _decoded(path: Path) -> _Manifest:
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except msgspec.DecodeError as error:
        raise CorruptStore(f"{path} is not the manifest of an archive: {error}") from None
    if manifest.format != FORMAT:
        raise CorruptStore(f"{path} has format {manifest.format}, but only format {FORMAT} can be taken over")
    return manifest


def _followed(old: _Old | None, manifest: _Manifest) -> _Old:
    before = _Old(manifest) if old is None or manifest.files is not None else old
    files = before.files | {f.path: (f, manifest.sequence) for f in manifest.files or ()}
    files = {path: found for path, found in files.items() if path not in manifest.removed}
    files |= {file.path: (file, manifest.sequence) for file in manifest.added}
    marks = manifest.marks or before.last.marks
    last = msgspec.structs.replace(manifest, marks=marks)
    return _Old(last, files, [*before.gaps, *manifest.gaps])


def _finish(archive: Archive, old: _Old) -> None:
    """Do what was left of the last step, and see that each file is there."""
    place = archive.place
    for path in old.last.removed:
        place.delete(path)
    for file in old.last.added:
        staged = f"{_HOME}/staging/{old.last.run}/{file.path}"
        if place.has(staged):
            (Path(archive.root) / file.path).parent.mkdir(parents=True, exist_ok=True)
            place.move(staged, file.path)
    for path in old.files:
        if not place.has(path):
            raise CorruptStore(f"archive {archive.root}: {path} is missing")


def _change(old: _Old, state: State) -> Change:
    archive = old.last.archive
    published = state.numbers.get(archive, 0)  # as a Delta table in the same directory
    added = tuple(
        file.as_now()
        for path, (file, step) in old.files.items()
        if step > published or path in state.files  # else it was joined with others there
    )
    first: dict[Queue, int] = {}
    for part in (part for file, _ in old.files.values() for part in file.queues):
        first[part.queue] = min(part.first, first.get(part.queue, part.first))
    offsets = from_json(old.last.offsets, f"manifest {old.last.sequence}")
    numbers = {taken(archive): old.last.sequence}
    numbers |= numbers_of_offsets("next", offsets) | numbers_of_offsets("first", first)
    numbers |= numbers_of_gaps(old.gaps)
    for step, mark in enumerate(old.last.marks, -len(old.last.marks)):  # before any of the table's
        numbers |= ArchiveProgress.of(numbers).numbers_of_marks([mark], step)
    return Change(what="take over", added=added, numbers=numbers)
