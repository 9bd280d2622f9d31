"""The JSON files below ``config/`` that hold a broker's state.

A file has one owner, which says what its content is. Nothing that a file held is lost: fields that
this release does not know are written back as they were read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from firearrow.errors import ConfigError, MessageError
from firearrow.files import GENERATIONS, read_newest, replace_atomically
from firearrow.wire import fastjson

log = logging.getLogger(__name__)

T = TypeVar("T")

CONFIG_DIRECTORY: Final = "config"


class StateFile:
    """One file and whether it is behind its owner's state.

    ``path`` None keeps the state in memory only. Where `prepare` is used, what ``content`` gives
    must not change any more. ``generations`` says how many contents are kept, see
    `firearrow.files`.
    """

    def __init__(
        self,
        path: Path | None,
        content: Callable[[], Mapping[str, Any]],
        *,
        generations: int = GENERATIONS,
    ) -> None:
        self._path = path
        self._content = content
        self._generations = generations
        self.behind = False
        self._deferring = False

    def read(self) -> dict[str, Any]:
        """Give what the file holds, nothing if there is none.

        A file that can't be read is behind what its backup held. Raises ConfigError when none of
        its contents can be read.
        """
        found = None if self._path is None else read_newest(self._path, _object_of)
        if found is None:
            return {}
        self.behind = self.behind or found.path != self._path
        return found.value

    def prepare(self) -> Callable[[], None] | None:
        """Take the state as it is now; what is returned writes it, in any thread.

        None if the file is not behind. A disk that refuses is logged and leaves the file behind, so
        that it is tried again: the state itself is sound.
        """
        if not self.behind:
            return None
        self.behind = False
        path = self._path
        if path is None:
            return None
        content = self._content()

        def write() -> None:
            data = fastjson.dumps(content, pretty=True)
            try:
                replace_atomically(path, data, generations=self._generations)
            except OSError as error:
                log.error("%s can't be written, will be tried again: %s", path, error)
                self.behind = True

        return write

    def save(self) -> None:
        """Write the state, here and now, if the file is behind it and nobody defers that."""
        write = None if self._deferring else self.prepare()
        if write is not None:
            write()

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Let every `save` within be one, at the end; also where the end is an error."""
        outermost, self._deferring = not self._deferring, True
        try:
            yield
        finally:
            if outermost:
                self._deferring = False
                self.save()


def state_path(store_root: Path | None, name: str) -> Path | None:
    """Give the place of a state file below the root of a store; None without a store."""
    return None if store_root is None else store_root / CONFIG_DIRECTORY / name


def _object_of(data: bytes) -> dict[str, Any]:
    value = fastjson.loads(data)
    if not isinstance(value, dict):
        raise MessageError("it is not an object", "JSON")
    return value


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
        for name, attribute in zip(
            value.__struct_encode_fields__, value.__struct_fields__, strict=True
        )
    }
    return dict(sorted((own | dict(unknown)).items()))
