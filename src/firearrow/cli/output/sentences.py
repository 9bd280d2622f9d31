"""Sentences about exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_ERRNO: Final = r"\[Errno -?\d+\] (?:(.+): '(.+)'$)?"


def without_number(text: str) -> str:
    """Give ``[Errno 2] No such file: 'x'`` as ``x: No such file``."""
    return re.sub(_ERRNO, lambda found: f"{found[2]}: {found[1]}" if found[1] else "", text, count=1)


def unforeseen(name: str, what: str, places: Iterable[tuple[str, int | None]]) -> str:
    """Give an exception that nobody expected, with its place in Firearrow."""
    said = f"{name}: {what}" if what else name
    ours = [
        f" (at line {line} of firearrow/{path.rpartition('/firearrow/')[2]})"
        for path, line in places
        if "/firearrow/" in path
    ]
    return said + (ours[-1] if ours else "")


def first_line(text: str) -> str:
    """Give the first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
