"""Options that each may be given, but not together; and proposals for a mistyped word.

$ firearrow serve --stroe data
usage: firearrow serve [options]
firearrow serve: error: unrecognized arguments: --stroe; did you mean --store?
"""

from __future__ import annotations

from collections.abc import Iterable


class WrongCommandLine(Exception):
    """Options that each may be given, but not together; the message is a sentence."""


def exclude(options: object, *names: str) -> bool:
    """Raise WrongCommandLine if more than one of these options is given; tell whether one is."""
    given = [_flag(name) for name in names if getattr(options, name)]
    if len(given) > 1:
        raise WrongCommandLine(f"argument {given[1]}: not allowed with argument {given[0]}")
    return bool(given)


def require_one(options: object, *names: str) -> None:
    """Raise WrongCommandLine unless one of these options is given, and no other."""
    if not exclude(options, *names):
        words = " ".join(map(_flag, names))
        raise WrongCommandLine(f"one of the arguments {words} is required")


def require_order(since: int | None, until: int | None, *, included: bool = True) -> None:
    """Raise WrongCommandLine where --until is before --since, or excludes it."""
    if since is None or until is None or since < until or (included and since == until):
        return
    raise WrongCommandLine("argument --until: it is not after --since, so nothing is between them")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def proposal(word: str, candidates: Iterable[str]) -> str:
    """Give the end of a sentence that proposes the nearest candidate; nothing if none is near."""
    import difflib  # only a slip pays for it

    found = difflib.get_close_matches(word, list(candidates), n=1)
    return f"; did you mean {found[0]}?" if found else ""
