"""Kinds of values that people write: for each kind, the reader of its texts, and the allowed texts in words.

Configuration keys and the options of Spark's tables share the kinds, so a size or a duration is written in one way:

    SIZE.read("128m")       ->  134217728
    POSITIVE.read("0")      ->  ValueError; POSITIVE.allowed is "a whole number above 0"
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from firearrow.clock import duration_ms
from firearrow.javanumbers import LONG_TEXT

KiB: Final = 1024
MiB: Final = 1024 * KiB
GiB: Final = 1024 * MiB

_TRUTH: Final = {"true": True, "false": False}
_SIZES: Final = {"": 1, "k": KiB, "m": MiB, "g": GiB}


class Kind(NamedTuple):
    """One kind of values."""

    read: Callable[[str], Any]
    """Return the value of a text, whose blanks at both ends do not count; raise ValueError for any other text."""
    allowed: str
    """The allowed texts in words, to follow "allowed is"."""


def whole_number(least: float | None = None, most: float | None = None) -> Kind:
    """Return the kind of the whole numbers between two bounds; None is no bound."""

    def read(text: str) -> int:
        if not re.fullmatch(LONG_TEXT, text.strip()):
            raise ValueError
        number = int(text)
        if (least is not None and number < least) or (most is not None and number > most):
            raise ValueError
        return number

    if most is not None:
        return Kind(read, f"a whole number from {least} to {most}")
    if least is None:
        return Kind(read, "a whole number")
    return Kind(read, "a whole number above 0" if least == 1 else f"a whole number of {least} or more")


def one_of(*words: str, any_case: bool = False) -> Kind:
    """Return the kind of some words; with ``any_case`` all words are lower case, and texts may be in any case."""

    def read(text: str) -> str:
        word = text.strip().lower() if any_case else text.strip()
        if word not in words:
            raise ValueError
        return word

    *others, last = (word or "nothing" for word in words)
    return Kind(read, f"{', '.join(others)} or {last}" if others else last)


def matching(pattern: str, allowed: str) -> Kind:
    """Return the kind of the texts that match a pattern as a whole."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text.strip()):
            raise ValueError
        return text.strip()

    return Kind(read, allowed)


def _flag(text: str) -> bool:
    try:
        return _TRUTH[text.strip().lower()]
    except KeyError:
        raise ValueError from None


def _size_bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise ValueError
    return int(found[1]) * _SIZES[found[2]]


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text.strip()


def _names(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in re.split("[,;]", text) if part.strip())
    if not parts:
        raise ValueError
    return parts


ANY_TEXT: Final = Kind(str.strip, "any text")
TEXT: Final = Kind(_text, "a text that is not empty")
NAMES: Final = Kind(_names, "names separated by commas")
FLAG: Final = Kind(_flag, "true or false")
COUNT: Final = whole_number(0)
POSITIVE: Final = whole_number(1)
SIZE: Final = Kind(_size_bytes, "a number of bytes, or with k, m or g behind it, such as 128m")
DURATION: Final = Kind(duration_ms, "a number with ms, s, m, h or d behind it, such as 15m")


def proposal(word: str, candidates: Iterable[str], likeness: float = 0.6) -> str:
    """Return the end of a sentence that proposes the nearest candidate, in any case; nothing if none is near.

    ``likeness`` is the lowest ratio of difflib that counts as near; 1 is the word itself.
    """
    import difflib  # only a misspelt word pays for it

    names = {name.lower(): name for name in candidates}
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=likeness)
    return f"; did you mean {names[near[0]]}?" if near else ""
