"""Copies of a lake's directory, as killed processes leave it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.jobs.inline import Mortal


def remains(place: Path, work: Callable[[], object]) -> list[Path]:
    """Do some work in a directory; return what a kill of its process at each change of a file would leave of it.

    Each item is a copy of the directory at that moment. SIGKILL leaves exactly this: all that the kernel has been
    given, nothing of buffers, and no handler of an exception has run. The work itself goes on, so one run shows all of
    its kills. Kills between which no file changes, such as those before and after a sync, leave the same, and are one
    item. The last item is the directory after the work.
    """
    with pytest.MonkeyPatch.context() as patch:
        copying = _Copying(patch, place)
        work()
    return [*copying.copies, place]


class _Copying(Mortal):
    """Copies the directory where the process would die."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
        super().__init__(monkeypatch)
        self._place = place
        self._held: dict[Path, bytes | None] | None = None
        self.copies: list[Path] = []

    def _count(self) -> None:
        held = {path: path.read_bytes() if path.is_file() else None for path in self._place.rglob("*")}
        if held == self._held:
            return
        self._held = held
        copy = self._place.with_name(f"{self._place.name}-{len(self.copies)}")
        if self._place.exists():
            shutil.copytree(self._place, copy)
        self.copies.append(copy)
