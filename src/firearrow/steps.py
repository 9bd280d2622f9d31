"""Work that is done in steps, so that others get their turn between two."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def result_of(steps: Generator[None, None, T]) -> T:
    """Do all steps at once; give what the last one returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
