"""Several instances of the service share the tables of a lake.

Each instance writes a file in ``_instances`` every few seconds. The times of the files, which are all the store's, tell
which instances live. A table belongs to the live instance that has the highest hash with it, so that few tables move
when an instance comes or goes. This only saves work: if two instances write one table, one commit of each step counts.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final

import pyarrow.fs as pafs

from firearrow.errors import ConfigError
from firearrow.spark.jobs.archive.fileplace import FilePlace

_DIRECTORY: Final = "_instances"
LIFE_SECONDS: Final = 60.0  # without a sign of life
BEAT_SECONDS: Final = 15.0  # longest time between two


class Instances:
    """The instances of a lake, seen by one of them; ConfigError for a name that is no file's."""

    def __init__(self, place: FilePlace, name: str | None = None) -> None:
        if name is not None and not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
            raise ConfigError(f"instance {name!r}: a name consists of letters, digits and . _ -")
        self.name: str = name or uuid.uuid4().hex
        self._place = place
        self._live: list[str] = [self.name]

    def beat(self) -> None:
        """Give a sign of life, and look for the signs of the others."""
        with self._place.create(f"{_DIRECTORY}/{self.name}") as file:
            file.write(self.name.encode())
        found = self._place.files.get_file_info(pafs.FileSelector(_DIRECTORY))
        times = {info.base_name: info.mtime_ns / 1e9 for info in found if info.type == pafs.FileType.File}
        now = times[self.name]
        self._live = sorted(name for name, time in times.items() if now - time < LIFE_SECONDS)

    def has(self, table: str) -> bool:
        """Tell whether a table belongs to this instance."""
        return max(self._live, key=lambda name: _hash(name, table)) == self.name

    def leave(self) -> None:
        """Leave the tables to the others."""
        self._place.delete(f"{_DIRECTORY}/{self.name}")


def _hash(name: str, table: str) -> bytes:
    return hashlib.blake2b(f"{name}\0{table}".encode(), digest_size=8).digest()
