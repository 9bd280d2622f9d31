"""Pieces of work for Spark's workers, in a module that takes them no time to import."""

from __future__ import annotations

import os

from firearrow.errors import CorruptStore
from firearrow.store.offline import StoreView


def where(piece: object) -> tuple[object, int]:
    """The piece, and the process that does it."""
    return piece, os.getpid()


def fail(_: int) -> int:
    """Fail as a damaged store lets a piece fail."""
    raise CorruptStore("a file is damaged")


def number_and_holder(view: StoreView, number: int) -> tuple[int, int | None]:
    """A number, and what the worker knows of the store."""
    return number, view.holder
