"""What was meant, where a word on the command line is nearly another."""

from __future__ import annotations

from collections.abc import Iterable


def proposal(word: str, candidates: Iterable[str]) -> str:
    """Give the end of a sentence that proposes the nearest candidate; nothing if none is near."""
    import difflib  # only a slip pays for it

    found = difflib.get_close_matches(word, list(candidates), n=1)
    return f"; did you mean {found[0]}?" if found else ""
