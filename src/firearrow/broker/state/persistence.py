"""The JSON files below ``config/`` that hold a broker's state.

A file has one owner, which says what its content is. Nothing that a file held is lost: fields that
this release does not know are written back as they were read. In place of a file may stand a
database, see `rows`.

A change that must not be lost is kept at once (`StateFile.keep`), at a cost that does not depend on
how much there is; the file itself is written now and then, by a thread, and at a stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from firearrow.errors import ConfigError, DiskFull
from firearrow.events import Event
from firearrow.files import GENERATIONS, replace_atomically
from firearrow.journal import Change, Journal
from firearrow.state import read_json
from firearrow.wire import fastjson

log = logging.getLogger(__name__)

T = TypeVar("T")

CONFIG_DIRECTORY: Final = "config"

Rest = Callable[[], object]
"""What a thread calls after each millisecond or two of its work, so that others get theirs done."""


def no_rest() -> None:
    """Go on at once: nobody waits."""


class Storage(Protocol):
    """Storage of one state; it takes and gives the content of the state's JSON file."""

    lags: bool  # whether what was appended is yet to be written

    def read(self) -> tuple[dict[str, Any], bool]:
        """Give what is kept, nothing if nothing was, and whether it is what was written last.

        Raises ConfigError when nothing can be read of what there is.
        """

    def append(self, change: Change, *, must: bool = True) -> None:
        """Keep a change; it outlives the process from now on, and the machine after `sync`.

        Raises OSError when the disk refuses, unless it ``must`` not be kept.
        """

    def sync(self) -> None:
        """Return once what was appended is on the disk, in any thread; OSError if it refuses."""

    def cut(self) -> None:
        """Note that the state as it is now is going to be written."""

    def write(self, content: Mapping[str, Any], rest: Rest = no_rest) -> None:
        """Keep a state; in any thread, one at a time. Raises OSError when the disk refuses."""

    def close(self, content: Mapping[str, Any] | None = None) -> None:
        """Let go of it; ``content`` is what was appended and written."""


class JsonFile:
    """A state in a JSON file; ``generations`` of its contents are kept (`firearrow.files`).

    What is appended goes to a journal beside it; ``tables`` are the fields that have entries.
    """

    lags = True

    def __init__(self, path: Path, generations: int = GENERATIONS, tables: Collection[str] = ()) -> None:
        self.path = path
        self._generations = generations
        self._journal = Journal(path)
        self._tables = tables
        self._text = fastjson.PrettyText()

    def read(self) -> tuple[dict[str, Any], bool]:
        """Give what the file holds, see `read_json`."""
        self._journal.resume()
        return read_json(self.path, self._tables)

    def append(self, change: Change, *, must: bool = True) -> None:
        """Note a change in the journal."""
        self._journal.append(change, must=must)

    def sync(self) -> None:
        """Bring the journal to the disk."""
        self._journal.sync()

    def cut(self) -> None:
        """Begin a new journal."""
        self._journal.cut()

    def write(self, content: Mapping[str, Any], rest: Rest = no_rest) -> None:
        """Replace the file, and remove the journal of what it has now."""
        pieces = []
        for piece in self._text.pieces(content):
            pieces.append(piece)
            rest()
        replace_atomically(self.path, *pieces, generations=self._generations)
        self._journal.drop()

    def close(self, content: Mapping[str, Any] | None = None) -> None:
        """Nothing is open."""

    def __str__(self) -> str:
        """Its path."""
        return str(self.path)


class StateFile:
    """The storage of one state, and whether it is behind its owner.

    ``storage`` None keeps the state in memory only. Where `prepare` is used, what ``content`` gives
    must not change any more. What can be made of that alone, ``complete`` makes: in the thread that
    writes, so that the event loop need not. That calls ``before_write`` first, which brings to the
    disk what the content rests on.
    """

    def __init__(
        self,
        storage: Storage | None,
        content: Callable[[], Mapping[str, Any]],
        complete: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda content: content,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        self._storage = storage
        self._content = content
        self._complete = complete
        self._before_write = before_write
        self.behind = False
        self._refused = False
        self.unsynced = False  # whether something was kept that is perhaps not on the disk
        self.on_kept: Callable[[], None] | None = None
        """Hears that a change was kept, which the file is perhaps behind now."""
        self.changed: Event[Change] = Event()
        """Told of each change when it is kept."""

    def read(self) -> dict[str, Any]:
        """Give what the storage holds, nothing if nothing was ever written.

        A storage that had to fall back on an earlier content is behind it. Raises ConfigError when
        it can't be read.
        """
        if self._storage is None:
            return {}
        found, current = self._storage.read()
        self.behind = self.behind or not current
        return found

    def keep(self, change: Change, *, must: bool = True) -> None:
        """Keep a change at once, which outlives the process then; the file will follow.

        Raises DiskFull when the disk refuses: then the change is not to be made. One that ``must``
        not be kept is made all the same, and kept when the disk takes it.
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
        """Return once what was kept is on the disk, in any thread; OSError if it refuses."""
        storage = self._storage
        if storage is not None and self.unsynced:
            self.unsynced = False
            try:
                storage.sync()
            except BaseException:
                self.unsynced = True
                raise

    def prepare(self) -> Callable[[Rest], None] | None:
        """Take the state as it is now; what is returned writes it, in any thread, before the next
        is prepared.

        None if the storage is not behind. A disk that refuses is logged and leaves it behind, so
        that it is tried again: the state itself is sound.
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
        """Write the state, here and now, if the file is behind it."""
        write = self.prepare()
        if write is not None:
            write(no_rest)

    def close(self) -> None:
        """Let go of the storage; nothing is written any more."""
        if self._storage is not None:
            self._storage.close(self._complete(self._content()))
            self._storage = None


def unknown_fields(raw: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Give the fields that are none of the known."""
    names = set(known)
    return {name: value for name, value in raw.items() if name not in names}


def typed(value: Any, type_: type[T], where: str) -> T:
    """Give a part of a file as a type; ConfigError says what does not fit, and where.

    A field that is null counts as absent, as Java takes it.
    """
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if item is not None}
    try:
        return msgspec.convert(value, type_, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None


def wire_names(struct_type: type[msgspec.Struct]) -> tuple[str, ...]:
    """Give the names of a struct's fields in JSON."""
    return struct_type.__struct_encode_fields__


def with_unknown(value: msgspec.Struct, unknown: Mapping[str, Any]) -> Any:
    """Give what to write for a struct that was read with unknown fields beside its own."""
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
    """Give what to write for a table, some entries of which were read with unknown fields.

    Of the two the shorter is gone through, besides a copy: a table is written as a whole, and one
    new entry of it at a time.
    """
    both = table.keys() & unknown_of.keys()
    return {**table, **{name: with_unknown(table[name], unknown_of[name]) for name in both}}
