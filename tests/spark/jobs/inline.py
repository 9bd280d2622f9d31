"""Workers that are this process, and an end of a process at any operation on files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer, TableMerger

from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.workers import SameProcess

P = TypeVar("P")
R = TypeVar("R")


Inline = SameProcess


class Elsewhere(Inline):
    """Workers of a host that has another directory at the path of the job's: ``field`` of a piece
    says where that is. ``spoil`` does something to what they have written."""

    def __init__(self, field: str, other: FilePlace | Path, spoil: Callable[[], object] = lambda: None) -> None:
        self._moved = {field: other}
        self._spoil = spoil

    def run(self, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
        moved: list[Any] = [replace(piece, **self._moved) for piece in pieces]  # type: ignore[type-var]
        done = super().run(work, moved)
        self._spoil()
        return done


class Killed(BaseException):
    """The process would be gone here."""


class Mortal:
    """Lets the process die before its n-th change of an archive, or after a commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for name in ("create", "sync", "sync_names", "delete", "make"):
            monkeypatch.setattr(FilePlace, name, self._counted(getattr(FilePlace, name)))
        create = DeltaTable.create
        monkeypatch.setattr(DeltaTable, "create", staticmethod(self._counted(create)))
        for kind, name in (
            (DeltaTable, "create_write_transaction"),
            (TableMerger, "execute"),
            (TableAlterer, "add_columns"),
            (TableAlterer, "set_table_properties"),
        ):
            monkeypatch.setattr(kind, name, self._committed(getattr(kind, name)))

    def _committed(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        commit = self._counted(operation)

        def committed(*args: Any, **named: Any) -> None:
            commit(*args, **named)
            self._count()

        return committed

    def _counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            self._count()
            return operation(*args, **named)

        return counted

    def _count(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1
