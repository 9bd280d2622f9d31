"""A directory, with a manifest, that holds everything that a repair replaces."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path

import msgspec

from firearrow.errors import naming
from firearrow.files import free_path
from firearrow.store.fs import OS_FILES


class Keeper:
    """The directory of replaced files; its manifest has the steps, and the origin of each piece.

    Files that a rebuild replaces are there under their own names.
    """

    def __init__(self, root: Path, directory: Path, steps: Iterable[msgspec.Struct]) -> None:
        self._root = root
        self._directory = directory
        self._steps = msgspec.to_builtins(list(steps))
        self._entries: list[dict[str, object]] = []
        directory.mkdir()
        self._save()

    def bytes_of(self, path: Path, position: int, size: int) -> None:
        """Keep a stretch of a file."""
        name = self._free_name(f"{path.parent.name}-{path.name}-{position}")
        with path.open("rb") as source:
            source.seek(position)
            data = source.read(size)
        assert len(data) == size, "all replaced bytes are kept"
        write_synced(self._directory / name, data)
        self._note(name, path, position=position, size=len(data))

    def _free_name(self, name: str) -> str:
        """A free name for bytes: two steps may replace the bytes of one position."""
        names = chain((f"{name}.bytes",), (f"{name}.{number}.bytes" for number in count(2)))
        return next(name for name in names if not (self._directory / name).exists())

    def move(self, path: Path) -> None:
        """Move a file or directory there as a whole."""
        name = path.relative_to(self._root) if path.is_relative_to(self._root) else path.name
        place = free_path(self._directory / name)
        OS_FILES.rename(path, place)
        self._note(str(place.relative_to(self._directory)), path)

    def copy(self, path: Path) -> None:
        """Copy a file there that will be replaced."""
        name = path.relative_to(self._root)
        assert not (self._directory / name).exists(), "no kept file is overwritten"
        (self._directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, self._directory / name)
        self._note(str(name), path)

    def _note(self, kept_as: str, path: Path, **more: int) -> None:
        self._entries.append({"kept_as": kept_as, "was": str(path), **more})
        self._save()

    def _save(self) -> None:
        manifest = {"steps": self._steps, "kept": self._entries}
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        write_synced(self._directory / "manifest.json", text.encode())
        OS_FILES.sync_directory(self._directory)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file, and return when it is on the disk."""
    with naming(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
