"""Work in steps, between which other work gets its turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def result_of(steps: Generator[None, None, T]) -> T:
    """Do all steps at once; return the result of the last one."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
