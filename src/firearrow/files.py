"""Small files that are replaced as a whole and survive a crash at any point.

A file ``topics.json`` has its previous content beside it in ``topics.json.bak``, as with RocketMQ. Its latest contents
are in ``.history``, which RocketMQ does not look at. The name of a content there has its time and its checksum:
``topics.json.TIME.CRC``, the modification time in ns (decimal, never the same twice) and the CRC-32 (8 hexadecimal
digits). These are copies, not second names: RocketMQ writes its files in place.

A replacement has these steps:

1. write the new content to ``topics.json.tmp`` and sync it;
2. write it to ``.history`` in the same way, and name it there;
3. give the old content a second name, ``topics.json.bak.tmp``;
4. rename ``topics.json.tmp`` to ``topics.json``;
5. rename ``topics.json.bak.tmp`` to ``topics.json.bak``;
6. sync the directories;
7. remove the oldest contents of ``.history``.

After each of them ``topics.json`` is whole, old or new. The backup is renewed only after the new content is in place:
if the old file was unreadable, its backup has been the one good copy.

Reading takes ``topics.json`` if it can be parsed and its checksum matches. The checksum is that of the content in
``.history`` with the same modification time. A file that RocketMQ or an editor has written since has another time, and
no checksum. If ``topics.json`` can't be used, the latest sound file of the backup and the contents is.

Source of the names and of the fallback: RocketMQ's ``MixAll#string2File``, ``ConfigManager``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote
from zlib import crc32

from firearrow.errors import ConfigError, FirearrowError, naming
from firearrow.logs import Log

log: Final = Log(__name__)

T = TypeVar("T")

SECTOR_BYTES: Final = 512  # a disk writes a sector whole or not at all
GENERATIONS: Final = 5
DIRECTORY_MODE: Final = 0o750
FILE_MODE: Final = 0o640
HISTORY_DIRECTORY: Final = ".history"
_thrown_away: set[Path] = set()
_NAME_BYTES_MAX: Final = 200  # of the 255 that file systems allow: suffixes follow
_STAMP: Final = re.compile(r"([0-9]{1,20})\.([0-9a-f]{8})")


class _Status(Protocol):
    """Status of a file; its time in ns."""

    @property
    def st_mtime_ns(self) -> int: ...


class StoredPath(Protocol):
    """File or directory to read, local or not: the used part of ``Path``."""

    @property
    def name(self) -> str:
        """Last part of the path."""

    @property
    def parent(self) -> StoredPath:
        """Directory of the path."""

    def __truediv__(self, name: str, /) -> StoredPath:
        """Return the path of an entry of a directory."""

    def glob(self, pattern: str, /) -> Iterable[StoredPath]:
        """Return the matching entries of a directory, in any order; empty if there is no directory."""

    def exists(self) -> bool:
        """Tell whether it exists."""

    def stat(self) -> _Status:
        """Return the time of its last change; OSError if it does not exist."""

    def read_bytes(self) -> bytes:
        """Return the content of a file; FileNotFoundError if there is none."""


class ParsedFile(NamedTuple, Generic[T]):
    """Parsed content, and the file that it was read from."""

    value: T
    path: StoredPath


class _Generation(NamedTuple):
    modified_ns: int
    crc: int
    path: StoredPath


def replace_atomically(path: Path, *pieces: bytes, generations: int = 0, backup: bool = True) -> None:
    """Make ``pieces`` the content of ``path``; the previous content becomes ``<name>.bak``.

    When this returns, the new content is on disk, and ``generations`` contents, with this one, are in ``.history``.
    Without a ``backup``, the previous content is gone (for a file that must not be used again). The directory is made
    if it is missing. Raises OSError if the disk fails; then ``path`` is unchanged.
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


def read_newest(path: StoredPath, parse: Callable[[bytes], T]) -> ParsedFile[T] | None:
    """Read and parse ``path``, or the latest of its earlier contents that is sound.

    ``parse`` raises a ValueError or a FirearrowError for content that it can't read. Returns None when there is no file
    at all. Raises ConfigError when files exist and none can be read: going on with nothing, and saving that later,
    would lose the content of the file.
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
            extra={"path": found.path, "reason": faults[0] if faults else f"{path} is empty"},
        )
    return found


def sound_contents(path: StoredPath, parse: Callable[[bytes], T], faults: list[str]) -> Iterator[ParsedFile[T]]:
    """Read and parse ``path``, and its earlier contents from the latest on; see `read_newest`.

    The faults of unusable contents are added to ``faults``. A read error of a disk is such a fault. On another machine
    it may be one of the network: then OSError.
    """
    generations = _generations(path)
    for candidate in (path, *_fallbacks(path, generations)):
        try:
            data = candidate.read_bytes()
            if data:
                _check_sum(candidate, data, generations)
                yield ParsedFile(parse(data), candidate)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, FirearrowError) as error:
            if isinstance(error, OSError) and not isinstance(candidate, Path):
                raise
            faults.append(f"{candidate}: {error}")


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents; their names are durable on return."""
    for place in make_directories(path):
        sync_directory(place.parent)


def make_directories(path: Path, mode: int = DIRECTORY_MODE) -> list[Path]:
    """Make a directory and its missing parents; return the new directories, the outermost first.

    Only the user and the group may enter: bodies of messages are below.
    """
    missing = [place for place in (*reversed(path.parents), path) if not place.exists()]
    for place in missing:
        place.mkdir(mode=mode, exist_ok=True)
    return missing


@contextmanager
def thrown_away(root: Path) -> Iterator[None]:
    """Skip all syncs below a directory that is removed in the end.

    A killed process loses nothing there; only a power failure does.
    """
    _thrown_away.add(root.absolute())
    try:
        yield
    finally:
        _thrown_away.discard(root.absolute())


def is_thrown_away(path: Path) -> bool:
    """Tell whether a file never needs to be durable."""
    if not _thrown_away:
        return False
    place = path.absolute()
    return place in _thrown_away or not _thrown_away.isdisjoint(place.parents)


def sync_directory(path: Path) -> None:
    """Return once the names in a directory are durable."""
    if is_thrown_away(path):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _write_synced(path: Path, pieces: Sequence[bytes], modified_ns_min: int, like: Path) -> int:
    """Write a file and return its modification time, which is at least ``modified_ns_min``.

    The users who may read ``like``, if it exists, may read the file: it may have secrets.
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
    """Contents of a file in ``.history``, the latest first."""
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
        import shutil  # few processes copy a file

        shutil.copy2(path, kept)
    return kept


def _fallbacks(path: StoredPath, generations: list[_Generation]) -> list[StoredPath]:
    """Files to read in place of an unusable one, the latest first."""
    aged = [(generation.modified_ns, generation.path) for generation in generations]
    backup = path.parent / f"{path.name}.bak"
    if backup.exists():
        aged.append((backup.stat().st_mtime_ns, backup))
    return [place for _, place in sorted(aged, key=lambda item: item[0], reverse=True)]


def _check_sum(path: StoredPath, data: bytes, generations: list[_Generation]) -> None:
    """Raise ValueError for data that differ from the content with the file's modification time."""
    modified_ns = path.stat().st_mtime_ns if generations else 0
    for generation in generations:
        if path == generation.path or modified_ns == generation.modified_ns:
            if crc32(data) != generation.crc:
                raise ValueError(f"its CRC is {crc32(data):08x}, {generation.crc:08x} was written")
            return


def name_of_file(text: str) -> str:
    """Return a name for one file that stands for ``text``, which may be any user's choice.

    Every character that could lead to another directory is written as in a URL, for example ``%2F``. A text that is too
    long for a name is cut, and ends in its CRC-32.
    """
    name = quote(text, safe="!#$*+,:;=@|~ ()", errors="surrogatepass")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _NAME_BYTES_MAX:
        name = f"{name[:_NAME_BYTES_MAX]}-{crc32(text.encode(errors='surrogatepass')):08x}"
    return name or "%"


def make_own_directory(path: Path) -> None:
    """Make a directory for this user alone, with its missing parents.

    Raises ConfigError if another user could put a link there: below ``/tmp``, any local user may make the directory
    first.
    """
    last = path.absolute()
    for place in (*reversed(last.parents), last):
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        status = place.lstat()
        if status.st_uid not in (0, os.geteuid()):
            raise ConfigError(f"{place} belongs to another user, who could alter its files")
        if (
            status.st_mode & stat.S_IWOTH
            and not stat.S_ISLNK(status.st_mode)
            and (place == last or not status.st_mode & stat.S_ISVTX)
        ):
            raise ConfigError(f"{place} may be written by everybody: chmod o-w {place}")


def for_the_user_alone(path: str, flags: int) -> int:
    """Open a file as `open` does; a new file is for the user alone, a link is refused."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def free_path(path: Path) -> Path:
    """Return the path if it is free, otherwise the first free one of ``NAME.2``, ``NAME.3``."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found
