"""Small files that are replaced as a whole and survive a crash at any point.

A file ``topics.json`` has its previous content beside it in ``topics.json.bak``, as RocketMQ keeps
it. Replacing goes in five steps:

1. write the new content to ``topics.json.tmp`` and sync it;
2. give the old content a second name, ``topics.json.bak.tmp``;
3. rename ``topics.json.tmp`` to ``topics.json``;
4. rename ``topics.json.bak.tmp`` to ``topics.json.bak``;
5. sync the directory.

After each of them ``topics.json`` is whole, old or new. The backup is renewed only after the new
content is in place: if the old file could not be read, its backup is the one good copy until then.

Source of the names and of the fallback: upstream ``MixAll#string2File``, ``ConfigManager``.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from firearrow.errors import ConfigError, FirearrowError

log = logging.getLogger(__name__)

T = TypeVar("T")


def replace_atomically(path: Path, data: bytes) -> None:
    """Make ``data`` the content of ``path``; what was there becomes ``<name>.bak``.

    When this returns, the new content is on disk. The directory is made if it is missing. Raises
    OSError if the disk refuses; then ``path`` is what it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = _beside(path, ".tmp")
    _write_synced(fresh, data)
    kept = _keep(path)
    fresh.replace(path)
    if kept is not None:
        kept.replace(_beside(path, ".bak"))
    _sync_directory(path.parent)


def read_with_backup(path: Path, parse: Callable[[bytes], T]) -> T | None:
    """Read and parse ``path``, or its backup where that is missing, empty or not to be parsed.

    ``parse`` says that it can't read something by a ValueError or a FirearrowError. Returns None
    when there is neither file. Raises ConfigError when there is something and nothing of it can be
    read: to go on with nothing, and to save that later, would lose what the file held.
    """
    faults: list[str] = []
    for candidate in (path, _beside(path, ".bak")):
        try:
            data = candidate.read_bytes()
            if data:
                value = parse(data)
                break
        except FileNotFoundError:
            continue
        except (OSError, ValueError, FirearrowError) as error:
            faults.append(f"{candidate}: {error}")
    else:
        if faults:
            raise ConfigError(f"can't be read, and no backup helps: {'; '.join(faults)}")
        return None
    if candidate != path:
        log.warning("read %s: %s", candidate, faults[0] if faults else f"{path} holds nothing")
    return value


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _keep(path: Path) -> Path | None:
    """Give the present content a second name; None when there is none."""
    if not path.exists():
        return None
    kept = _beside(path, ".bak.tmp")
    kept.unlink(missing_ok=True)
    try:
        kept.hardlink_to(path)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, kept)
    return kept


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
