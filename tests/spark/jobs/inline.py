"""Workers that are this process, and an end of a process at any operation on files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

P = TypeVar("P")
R = TypeVar("R")


class Inline:
    """Does the pieces of a job one after the other."""

    parallelism = 1

    def run(self, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
        return [work(piece) for piece in pieces]


class Killed(BaseException):
    """The process would be gone here."""


class Mortal:
    """Lets the process die before its n-th change of the file system; none comes after that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for owner, name in (
            (Path, "replace"),
            (Path, "hardlink_to"),
            (Path, "unlink"),
            (Path, "mkdir"),
            (shutil, "rmtree"),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            if self.left == 0:
                raise Killed
            self.left -= 1
            return operation(*args, **named)

        return counted
