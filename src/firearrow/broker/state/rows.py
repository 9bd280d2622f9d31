"""State in RocksDB: topics, groups and offsets of a broker with ``storeType=defaultRocksDB``.

Format: ``firearrow.state``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from firearrow.broker.state.persistence import CONFIG_DIRECTORY, JsonFile, Rest, StateStorage, no_rest
from firearrow.database import DEFAULT, Database, FamilyOptions, MiB, families_of
from firearrow.errors import ConfigError, CorruptStore
from firearrow.journal import Change
from firearrow.logs import Log
from firearrow.state import VERSION_FAMILY, VERSION_KEY, Row, StatePart, newest, rows_of
from firearrow.wire import fastjson

_BUFFER_BYTES: Final = 4 * MiB
_OPEN_FILES_MAX: Final = 64

log: Final = Log(__name__)


class Rows:
    """State in a database, in the form of its JSON file."""

    lags = False

    def __init__(self, json_file: JsonFile, part: StatePart) -> None:
        assert part.directory is not None
        self._json_file = json_file
        self._part = part
        self._path = json_file.path.parent / part.directory
        self._database: Database | None = None
        self._written: dict[Row, bytes] = {}
        self._last: Mapping[str, Any] | None = None
        self._appended = False
        self._pending: dict[Row, bytes | None] = {}  # of changes that were made nevertheless

    def read(self) -> tuple[dict[str, Any], bool]:
        """Open the database and return its content, or that of a newer JSON file; see `StateStorage`."""
        database = self._opened()
        try:
            self._written = rows_of(database.tables, self._part)
            in_json, _ = self._json_file.read()
            return newest(self._part, self._written, in_json)
        except (OSError, CorruptStore) as error:
            raise ConfigError(f"{self._path}: {error}") from None

    def _opened(self) -> Database:
        if self._database is None:
            needed = {DEFAULT, VERSION_FAMILY, *self._part.tables}
            try:
                others = sorted((needed | set(families_of(self._path))) - {DEFAULT})
                self._database = Database(
                    self._path,
                    [FamilyOptions(name, _BUFFER_BYTES) for name in (DEFAULT, *others)],
                    cache_bytes=_BUFFER_BYTES,
                    open_files_max=_OPEN_FILES_MAX,
                    log_ahead=True,
                )
            except (OSError, CorruptStore) as error:
                raise ConfigError(f"{self._path} can't be opened: {error}") from None
        return self._database

    def append(self, change: Change, *, must: bool = True) -> None:
        """Write the rows of a change."""
        families = {name: family for family, name in self._part.tables.items()}
        rows: dict[Row, bytes | None] = dict(self._rows(change.new))
        for name, keys in change.gone.items():
            rows.update(((families[name], key.encode()), None) for key in keys)
        self._appended = True
        pending = self._pending | rows
        try:
            self._put(pending)
        except OSError as error:
            if must:
                raise
            log.error("file can't be written: the write is retried", extra={"path": self, "error": error})
            self._pending = pending
        else:
            self._pending = {}

    def _put(self, rows: Mapping[Row, bytes | None]) -> None:
        database = self._opened()
        batch = database.batch()
        for (family, key), value in rows.items():
            if value is None:
                batch.delete(family, key)
            else:
                batch.put(family, key, value)
        database.write(batch, sync=False)

    def sync(self) -> None:
        """Make the rows durable."""
        self._opened().sync()

    def cut(self) -> None:
        """Write the rows that the disk has refused."""
        if self._pending:
            with suppress(OSError):
                self._put(self._pending)
                self._pending = {}

    def write(self, content: Mapping[str, Any], rest: Rest = no_rest) -> None:
        """Write the rows that have changed; appended changes are already written."""
        if self._pending:
            raise OSError(errno.ENOSPC, "the last changes could not be written", str(self))
        if self._appended:
            self._last = content
            return
        rows: dict[Row, bytes] = {}
        for number, (row, value) in enumerate(self._rows(content), 1):
            rows[row] = value
            if number % fastjson.STEP_ENTRIES == 0:
                rest()
        database = self._opened()
        batch = database.batch()
        for (family, key), value in rows.items():
            if self._written.get((family, key)) != value:
                batch.put(family, key, value)
        for family, key in self._written.keys() - rows.keys():
            batch.delete(family, key)
        database.write(batch)
        self._written, self._last = rows, content

    def __str__(self) -> str:
        """Directory of the database."""
        return str(self._path)

    def _rows(self, content: Mapping[str, Any]) -> Iterator[tuple[Row, bytes]]:
        wrapped = self._part.wrapped
        for family, name in self._part.tables.items():
            for key, value in content.get(name, {}).items():
                if wrapped is not None:
                    value = {wrapped: {str(part): number for part, number in value.items()}}
                yield (family, key.encode()), fastjson.dumps(value)
        yield (VERSION_FAMILY, VERSION_KEY), fastjson.dumps(content["dataVersion"])

    def close(self, content: Mapping[str, Any] | None = None) -> None:
        """Close the database, and leave a JSON file with the same content."""
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._last is not None:
            try:
                self._json_file.write(content or self._last)
            except OSError as error:
                log.error(
                    "file can't be written: it is older than its database",
                    extra={"path": self._json_file, "error": error},
                )


def storage_of(store_root: Path | None, part: StatePart, *, in_database: bool, generations: int) -> StateStorage | None:
    """Return the storage of a state below the root of a store; None without a store."""
    if store_root is None:
        return None
    path = store_root / CONFIG_DIRECTORY / part.file_name
    json_file = JsonFile(path, generations, part.tables.values())
    return Rows(json_file, part) if in_database else json_file
