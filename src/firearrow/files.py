"""Small files that are replaced as a whole and survive a crash at any point.

A file ``topics.json`` has its previous content beside it in ``topics.json.bak``, as RocketMQ keeps
it, and its latest contents in ``.history``, which RocketMQ does not look at. A content there is
named by when it was written and by its checksum: ``topics.json.TIME.CRC``, the modification time in
ns (decimal, never the same twice) and the CRC-32 (8 hexadecimal digits). These are copies, not
second names: RocketMQ writes its files in place.

Replacing goes in these steps:

1. write the new content to ``topics.json.tmp`` and sync it;
2. write it to ``.history`` in the same way, and name it there;
3. give the old content a second name, ``topics.json.bak.tmp``;
4. rename ``topics.json.tmp`` to ``topics.json``;
5. rename ``topics.json.bak.tmp`` to ``topics.json.bak``;
6. sync the directories;
7. remove the oldest contents of ``.history``.

After each of them ``topics.json`` is whole, old or new. The backup is renewed only after the new
content is in place: if the old file could not be read, its backup is the one good copy until then.

Reading takes ``topics.json`` if it can be parsed and, where it still has the modification time of
one of its contents, the checksum of that. A file that somebody else has written since, RocketMQ or
an editor, has another time, and no checksum to hold to. Where it can't be taken, the latest sound
one of the backup and the contents is.

Source of the names and of the fallback: upstream ``MixAll#string2File``, ``ConfigManager``.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote
from zlib import crc32

from firearrow.errors import ConfigError, FirearrowError

log = logging.getLogger(__name__)

T = TypeVar("T")

SECTOR_BYTES: Final = 512  # what a disk writes whole or not at all
GENERATIONS: Final = 5
DIRECTORY_MODE: Final = 0o750
FILE_MODE: Final = 0o640
HISTORY_DIRECTORY: Final = ".history"
_thrown_away: set[Path] = set()
_NAME_BYTES_MAX: Final = 200  # of the 255 that file systems take: suffixes follow
_STAMP: Final = re.compile(r"([0-9]{1,20})\.([0-9a-f]{8})")


class _Status(Protocol):
    """Of a file; its time in ns."""

    @property
    def st_mtime_ns(self) -> int: ...


class StoredPath(Protocol):
    """A file or directory to read, wherever it is: what is used of a ``Path``."""

    @property
    def name(self) -> str:
        """The last part of it."""

    @property
    def parent(self) -> StoredPath:
        """The directory that it is in."""

    def __truediv__(self, name: str, /) -> StoredPath:
        """Give the path of what is in a directory."""

    def glob(self, pattern: str, /) -> Iterable[StoredPath]:
        """Give what is in a directory, in any order; nothing where there is none."""

    def exists(self) -> bool:
        """Tell whether there is something."""

    def stat(self) -> _Status:
        """Give the time of its last change; OSError where there is nothing."""

    def read_bytes(self) -> bytes:
        """Give what a file holds; FileNotFoundError where there is none."""


class Found(NamedTuple, Generic[T]):
    """What was read, and from which file."""

    value: T
    path: StoredPath


class _Generation(NamedTuple):
    modified_ns: int
    crc: int
    path: StoredPath


def replace_atomically(path: Path, *pieces: bytes, generations: int = 0, backup: bool = True) -> None:
    """Make ``pieces`` the content of ``path``; what was there becomes ``<name>.bak``.

    When this returns, the new content is on disk, and ``generations`` contents, this one among
    them, are in ``.history``. Without a ``backup``, what was there is gone (a file that must not
    be used again). The directory is made if it is missing. Raises OSError if the disk
    refuses; then ``path`` is what it was.
    """
    make_directory(path.parent)
    fresh = _beside(path, ".tmp")
    earlier = _generations(path) if generations else []
    modified_ns = _write_synced(fresh, pieces, earlier[0].modified_ns + 1 if earlier else 0, path)
    if generations:
        _remember(path, pieces, modified_ns)
    kept = _keep(path) if backup else None
    fresh.replace(path)
    if kept is not None:
        kept.replace(_beside(path, ".bak"))
    sync_directory(path.parent)
    if generations:
        history = path.parent / HISTORY_DIRECTORY
        sync_directory(history)
        for old in earlier[generations - 1 :]:
            (history / old.path.name).unlink(missing_ok=True)


def read_newest(path: StoredPath, parse: Callable[[bytes], T]) -> Found[T] | None:
    """Read and parse ``path``, or the latest of its earlier contents that is sound.

    ``parse`` says that it can't read something by a ValueError or a FirearrowError. Returns None
    when there is no file at all. Raises ConfigError when there is something and nothing of it can
    be read: to go on with nothing, and to save that later, would lose what the file held.
    """
    faults: list[str] = []
    found = next(sound_contents(path, parse, faults), None)
    if found is None:
        if faults:
            raise ConfigError(f"can't be read, and no backup helps: {'; '.join(faults)}")
        return None
    if found.path != path:
        log.warning(
            "earlier content of a file is read",
            extra={"path": found.path, "reason": faults[0] if faults else f"{path} holds nothing"},
        )
    return found


def sound_contents(path: StoredPath, parse: Callable[[bytes], T], faults: list[str]) -> Iterator[Found[T]]:
    """Read and parse ``path``, and its earlier contents from the latest on; see `read_newest`.

    What is wrong with those that are left out is added to ``faults``. A disk that can't read a file
    is one of these reasons; where the file is on another machine, it may be the network: OSError.
    """
    generations = _generations(path)
    for candidate in (path, *_fallbacks(path, generations)):
        try:
            data = candidate.read_bytes()
            if data:
                _check_sum(candidate, data, generations)
                yield Found(parse(data), candidate)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, FirearrowError) as error:
            if isinstance(error, OSError) and not isinstance(candidate, Path):
                raise
            faults.append(f"{candidate}: {error}")


def make_directory(path: Path) -> None:
    """Make a directory and those above it that are missing; their names are on the disk then."""
    for place in make_directories(path):
        sync_directory(place.parent)


def make_directories(path: Path, mode: int = DIRECTORY_MODE) -> list[Path]:
    """Make a directory and those above it that are missing; return these, the outermost first.

    Others than the user and the group may not enter: bodies of messages are below.
    """
    missing = [place for place in (*reversed(path.parents), path) if not place.exists()]
    for place in missing:
        place.mkdir(mode=mode, exist_ok=True)
    return missing


@contextmanager
def thrown_away(root: Path) -> Iterator[None]:
    """Have nobody wait for the disk for what is below a directory, which is removed in the end.

    A process that is killed loses nothing there all the same, a machine without power does.
    """
    _thrown_away.add(root.absolute())
    try:
        yield
    finally:
        _thrown_away.discard(root.absolute())


def is_thrown_away(path: Path) -> bool:
    """Tell whether a file need not be on the disk, ever."""
    if not _thrown_away:
        return False
    place = path.absolute()
    return place in _thrown_away or not _thrown_away.isdisjoint(place.parents)


def sync_directory(path: Path) -> None:
    """Return once the names in a directory are on the disk."""
    if is_thrown_away(path):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Add the file's name to an OSError: calls on descriptors don't know it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _write_synced(path: Path, pieces: Sequence[bytes], modified_ns_min: int, like: Path) -> int:
    """Write a file and return its modification time, which is made no lower than that.

    It is for the eyes of those who may read ``like``, if that is there: it may have secrets.
    """
    with naming(path), path.open("wb") as file:
        with suppress(FileNotFoundError):
            os.fchmod(file.fileno(), stat.S_IMODE(like.stat().st_mode))
        file.writelines(pieces)
        file.flush()
        modified_ns = os.fstat(file.fileno()).st_mtime_ns
        if modified_ns < modified_ns_min:
            modified_ns = modified_ns_min
            os.utime(path, ns=(modified_ns, modified_ns))
        if not is_thrown_away(path):
            os.fsync(file.fileno())
    return modified_ns


def _generations(path: StoredPath) -> list[_Generation]:
    """What ``.history`` has of a file, the latest first."""
    found = []
    for place in (path.parent / HISTORY_DIRECTORY).glob(f"{path.name}.*"):
        stamp = _STAMP.fullmatch(place.name.removeprefix(f"{path.name}."))
        if stamp is not None:
            found.append(_Generation(int(stamp[1]), int(stamp[2], 16), place))
    return sorted(found, key=lambda generation: generation[:2], reverse=True)


def _remember(path: Path, pieces: Sequence[bytes], modified_ns: int) -> None:
    """Put new content into ``.history``."""
    history = path.parent / HISTORY_DIRECTORY
    make_directory(history)
    fresh = history / f"{path.name}.tmp"
    _write_synced(fresh, pieces, modified_ns, path)
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    fresh.replace(history / f"{path.name}.{modified_ns}.{crc:08x}")


def _keep(path: Path) -> Path | None:
    """Give the present content a second name; None when there is none."""
    if not path.exists():
        return None
    kept = _beside(path, ".bak.tmp")
    kept.unlink(missing_ok=True)
    try:
        kept.hardlink_to(path)
    except OSError:  # a file system without hard links
        shutil.copy2(path, kept)
    return kept


def _fallbacks(path: StoredPath, generations: list[_Generation]) -> list[StoredPath]:
    """What to read where a file can't be, the latest first."""
    aged = [(generation.modified_ns, generation.path) for generation in generations]
    backup = path.parent / f"{path.name}.bak"
    if backup.exists():
        aged.append((backup.stat().st_mtime_ns, backup))
    return [place for _, place in sorted(aged, key=lambda item: item[0], reverse=True)]


def _check_sum(path: StoredPath, data: bytes, generations: list[_Generation]) -> None:
    """Raise ValueError for data that differ from what was written at that time."""
    modified_ns = path.stat().st_mtime_ns if generations else 0
    for generation in generations:
        if path == generation.path or modified_ns == generation.modified_ns:
            if crc32(data) != generation.crc:
                raise ValueError(f"its CRC is {crc32(data):08x}, {generation.crc:08x} was written")
            return


def name_of_file(text: str) -> str:
    """Return a name for one file that stands for ``text``, whoever has chosen that.

    Every character that could lead elsewhere is written as ``%2F`` is in a URL. A text that is too
    long for a name is cut, and ends in its CRC-32.
    """
    name = quote(text, safe="!#$*+,:;=@|~ ()", errors="surrogatepass")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _NAME_BYTES_MAX:
        name = f"{name[:_NAME_BYTES_MAX]}-{crc32(text.encode(errors='surrogatepass')):08x}"
    return name or "%"


def make_own_directory(path: Path) -> None:
    """Make a directory for this user alone, with those above it that are missing.

    Raises ConfigError if somebody else could put a link there: below ``/tmp``, any local user may
    make the directory first.
    """
    last = path.absolute()
    for place in (*reversed(last.parents), last):
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        status = place.lstat()
        if status.st_uid not in (0, os.geteuid()):
            raise ConfigError(f"{place} belongs to another user, who could alter what is written")
        if (
            status.st_mode & stat.S_IWOTH
            and not stat.S_ISLNK(status.st_mode)
            and (place == last or not status.st_mode & stat.S_ISVTX)
        ):
            raise ConfigError(f"{place} may be written by everybody: chmod o-w {place}")


def for_the_user_alone(path: str, flags: int) -> int:
    """Open a file as `open` does; a new one is for the user alone, a link is refused."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def free_path(path: Path) -> Path:
    """The path if there is nothing yet, else the first that is free of ``NAME.2``, ``NAME.3``."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found
