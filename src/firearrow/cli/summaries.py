"""What a command's help says of it."""

from __future__ import annotations


def as_sentence(summary: str) -> str:
    """A summary with a capital at its begin and a full stop; names in it stay as they are."""
    return f"{summary[0].upper()}{summary[1:]}."
