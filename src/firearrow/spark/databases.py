"""RocksDB databases of a store, read without touching them: through a copy that is mostly links.

RocksDB writes a log beside what it only reads, and a broker may be using the database. The files
with the rows never change, so that links to them do; the few that say which of them count are
copied. What a broker has not flushed is not seen; of queues, ``undispatched`` makes up for it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from firearrow.database import ReadDatabase, Table
from firearrow.errors import CorruptStore
from firearrow.spark.storage import LocalStorage, Storage

_MARK: Final = "CURRENT"
_LEFT_OUT: Final = ("LOCK", "LOG")
_ATTEMPTS: Final = 5  # a compaction may take a file away before it is linked


class CopiedDatabase:
    """A copy of a database; it is gone with the object."""

    def __init__(self, storage: Storage, directory: str) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                self._open(storage, directory)
                return
            except (OSError, CorruptStore):
                self.close()
                if attempt == _ATTEMPTS - 1:
                    raise

    def _open(self, storage: Storage, directory: str) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="firearrow-")
        home = Path(self._home.name)
        names = [entry.name for entry in storage.entries(directory) if entry.is_file]
        for name in sorted(names, key=lambda name: name.endswith(".sst")):
            if name in _LEFT_OUT or name.startswith("LOG."):
                continue
            if name.endswith(".sst") and isinstance(storage, LocalStorage):
                (home / name).symlink_to((Path(storage.root) / directory / name).absolute())
            else:
                (home / name).write_bytes(storage.read(f"{directory}/{name}"))
        self._database: ReadDatabase | None = None
        self._database = ReadDatabase(home)

    @property
    def tables(self) -> dict[str, Table]:
        """The column families."""
        assert self._database is not None
        return self._database.tables

    def close(self) -> None:
        """Remove the copy."""
        database, self._database = getattr(self, "_database", None), None
        if database is not None:
            database.close()
        home: Any = getattr(self, "_home", None)
        if home is not None:
            shutil.rmtree(home.name, ignore_errors=True)
            home.cleanup()

    def __del__(self) -> None:
        self.close()


def is_database(storage: Storage, directory: str) -> bool:
    """Whether a directory holds a database."""
    return any(entry.name == _MARK for entry in storage.entries(directory))
