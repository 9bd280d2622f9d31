"""The JSON files below ``config/`` that hold a broker's state.

A file has one owner, which provides its content. Nothing in a file is lost: fields unknown to this release are written
back as they were read. A database may take the place of a file, see `rows`.

A change that must not be lost is stored at once (`StateFile.keep`), at a cost that does not depend on the size of the
state. A thread writes the file itself from time to time, and a stop writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from firearrow.errors import ConfigError, DiskFull
from firearrow.events import Event
from firearrow.files import GENERATIONS, replace_atomically
from firearrow.journal import Change, Journal
from firearrow.logs import Log
from firearrow.state import read_json
from firearrow.wire import fastjson

log: Final = Log(__name__)

T = TypeVar("T")

CONFIG_DIRECTORY: Final = "config"

Rest = Callable[[], object]
"""Called by a thread after each millisecond or two of its work, to let other threads run."""


def no_rest() -> None:
    """Continue at once: no other thread waits."""


class StateStorage(Protocol):
    """Storage of one state, in the form of the content of the state's JSON file."""

    lags: bool  # True if appended changes are not written yet

    def read(self) -> tuple[dict[str, Any], bool]:
        """Return the stored content, empty if there is none, and True if it is the last one written.

        Raises ConfigError when content exists and can't be read.
        """

    def append(self, change: Change, *, must: bool = True) -> None:
        """Store a change; it outlives the process from now on, and the machine after `sync`.

        Raises OSError when the disk fails, if it ``must`` be stored now.
        """

    def sync(self) -> None:
        """Return once the appended changes are durable, in any thread; OSError if the disk fails."""

    def cut(self) -> None:
        """Prepare to write the present state."""

    def write(self, content: Mapping[str, Any], rest: Rest = no_rest) -> None:
        """Write a state; in any thread, one at a time. Raises OSError when the disk fails."""

    def close(self, content: Mapping[str, Any] | None = None) -> None:
        """Close it; ``content`` is the state with all changes."""


class JsonFile:
    """State in a JSON file; ``generations`` of its contents are kept (`firearrow.files`).

    Changes are appended to a journal beside it; ``tables`` are the fields with entries.
    """

    lags = True

    def __init__(self, path: Path, generations: int = GENERATIONS, tables: Collection[str] = ()) -> None:
        self.path = path
        self._generations = generations
        self._journal = Journal(path)
        self._tables = tables
        self._text = fastjson.PrettyText()

    def read(self) -> tuple[dict[str, Any], bool]:
        """Return the content of the file, see `read_json`."""
        self._journal.resume()
        return read_json(self.path, self._tables)

    def append(self, change: Change, *, must: bool = True) -> None:
        """Append a change to the journal."""
        self._journal.append(change, must=must)

    def sync(self) -> None:
        """Make the journal durable."""
        self._journal.sync()

    def cut(self) -> None:
        """Begin a new journal."""
        self._journal.cut()

    def write(self, content: Mapping[str, Any], rest: Rest = no_rest) -> None:
        """Replace the file, and remove the journals that it makes obsolete."""
        pieces = []
        for piece in self._text.pieces(content):
            pieces.append(piece)
            rest()
        replace_atomically(self.path, *pieces, generations=self._generations)
        self._journal.drop()

    def close(self, content: Mapping[str, Any] | None = None) -> None:
        """Do nothing: nothing is open."""

    def __str__(self) -> str:
        """Path of the file."""
        return str(self.path)


class StateFile:
    """Storage of one state, which may be behind its owner.

    ``storage`` None keeps the state in memory only. With `prepare`, the result of ``content`` must not change later.
    ``complete`` adds the parts that depend on it alone, in the thread that writes, to spare the event loop. That thread
    calls ``before_write`` first, which makes the data behind the content durable.
    """

    def __init__(
        self,
        storage: StateStorage | None,
        content: Callable[[], Mapping[str, Any]],
        complete: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda content: content,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        self._storage = storage
        self._content = content
        self._complete = complete
        self._before_write = before_write
        self.behind: bool = False
        self._refused = False
        self.unsynced: bool = False  # True if a stored change may not be durable
        self.on_kept: Callable[[], None] | None = None
        """Called after a change was stored, when the file may be behind."""
        self.changed: Event[Change] = Event()
        """Event of each change, when it is stored."""

    def read(self) -> dict[str, Any]:
        """Return the content of the storage, empty if nothing was ever written.

        A storage that had to fall back on an earlier content is behind it. Raises ConfigError when it can't be read.
        """
        if self._storage is None:
            return {}
        found, current = self._storage.read()
        self.behind = self.behind or not current
        return found

    def keep(self, change: Change, *, must: bool = True) -> None:
        """Store a change at once, so that it outlives the process; the file follows.

        Raises DiskFull when the disk fails: then the caller must not make the change. Without ``must``, the caller
        makes the change nevertheless, and it is stored when the disk accepts it.
        """
        storage = self._storage
        if storage is None:
            return
        try:
            storage.append(change, must=must)
        except OSError as error:
            if not self._refused:
                self._refused = True
                log.error("file can't be written: changes are refused", extra={"path": storage, "error": error})
            raise DiskFull(f"{storage} can't be written: {error}") from error
        self._refused = False
        self.unsynced = True
        self.behind = self.behind or storage.lags or not must
        if self.on_kept is not None:
            self.on_kept()
        self.changed(change)

    def sync(self) -> None:
        """Return once the stored changes are durable, in any thread; OSError if the disk fails."""
        storage = self._storage
        if storage is not None and self.unsynced:
            self.unsynced = False
            try:
                storage.sync()
            except BaseException:
                self.unsynced = True
                raise

    def prepare(self) -> Callable[[Rest], None] | None:
        """Take the present state; the returned function writes it, in any thread, before the next call.

        None if the storage is up to date. A failing disk is logged and leaves the storage behind, so that the write is
        retried: the state itself is sound.
        """
        if not self.behind:
            return None
        self.behind = False
        storage = self._storage
        if storage is None:
            return None
        content = self._content()
        storage.cut()

        def write(rest: Rest) -> None:
            try:
                if self._before_write is not None:
                    self._before_write()
                storage.write(self._complete(content), rest)
            except OSError as error:
                log.error("file can't be written: the write is retried", extra={"path": storage, "error": error})
                self.behind = True
            except BaseException:
                self.behind = True
                raise

        return write

    def save(self) -> None:
        """Write the state now, in this thread, if the file is behind it."""
        write = self.prepare()
        if write is not None:
            write(no_rest)

    def close(self) -> None:
        """Close the storage; nothing is written any more."""
        if self._storage is not None:
            self._storage.close(self._complete(self._content()))
            self._storage = None


def unknown_fields(raw: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return the fields that are not among the known ones."""
    names = set(known)
    return {name: value for name, value in raw.items() if name not in names}


def typed(value: Any, type_: type[T], where: str) -> T:
    """Return a part of a file as a type; ConfigError names the fault and its place.

    A field that is null counts as absent, as in Java.
    """
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if item is not None}
    try:
        return msgspec.convert(value, type_, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None


def wire_names(struct_type: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of a struct's fields in JSON."""
    return struct_type.__struct_encode_fields__


def with_unknown(value: msgspec.Struct, unknown: Mapping[str, Any]) -> Any:
    """Return the form of a struct to write, with the unknown fields that were read with it."""
    if not unknown:
        return value
    own = {
        name: getattr(value, attribute)
        for name, attribute in zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    }
    return dict(sorted((own | dict(unknown)).items()))


def all_with_unknown(
    table: Mapping[str, msgspec.Struct], unknown_of: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the form of a table to write, with the unknown fields of some entries.

    The function iterates over the shorter of the two, apart from a copy: a table is written as a whole, or one new
    entry at a time.
    """
    both = table.keys() & unknown_of.keys()
    return {**table, **{name: with_unknown(table[name], unknown_of[name]) for name in both}}
