"""Declarations of options: switches, options with a value, and groups of options.

A command is a function. The annotation of a parameter, or of a field of an options class, says how
it appears on the command line: ``Annotated[int, valued("N", "queues on each broker")]``.
`firearrow.cli.parser` reads it.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, dataclass_transform

from firearrow.cli.records import Record
from firearrow.clock import SystemClock, duration_ms, moment_ms
from firearrow.errors import naming

if TYPE_CHECKING:
    from pathlib import Path

Pairs = tuple[tuple[str, str], ...]
NamesOf = Literal["topics", "groups", "contexts", "keys"]
"""Names that a shell completes for a value."""


class Parameter:
    """An option, or an argument in its place.

    ``read`` makes the value of a word; without it, the type does. ``names`` are by default the name in Python as an
    option: ``--undo-file`` of ``undo_file``. ``off`` is the option that switches it off, where the value is on, off or
    not given. A parameter without a default is needed, also without ``needed``.
    """

    def __init__(
        self,
        help: str,  # noqa: A002 - argparse's word
        metavar: str | None = None,
        read: Callable[[str], Any] | None = None,
        names: Sequence[str] = (),
        off: str | None = None,
        *,
        needed: bool = False,
        names_of: NamesOf | None = None,
    ) -> None:
        self.help: Final = help
        self.metavar: Final = metavar
        self.read: Final = read
        self.names: Final = names
        self.off: Final = off
        self.needed: Final = needed
        self.names_of: Final = names_of


NOT_ASKED: Final = Parameter("")
"""Marks a field that no option sets; a subclass may declare one for it."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options(Record):
    """Group of options: each field of a subclass is an option of the commands with a parameter of that class."""


def switch(text: str, *, name: str | None = None) -> Parameter:
    """Give an option without a value, which is off unless it is given."""
    return Parameter(text, names=_names(name))


def either(text: str, *, off: str | None = None) -> Parameter:
    """Give an option that is on, off by ``off`` (``--no-NAME``), or not given."""
    return Parameter(text, off=off)


def valued(
    value: str | None,
    text: str,
    read: Callable[[str], Any] | None = None,
    *,
    name: str | Sequence[str] | None = None,
    needed: bool = False,
    names_of: NamesOf | None = None,
) -> Parameter:
    """Give an option, or an argument, with a value.

    If its type is a tuple, the option may be repeated, or several arguments may be given.
    """
    return Parameter(text, value, read, _names(name), needed=needed, names_of=names_of)


def _names(name: str | Sequence[str] | None) -> Sequence[str]:
    return (name,) if isinstance(name, str) else name or ()


# --- Values of options: functions that read one ---


TIMES: Final = "TIME is ISO 8601 (UTC), ms since 1970, or a duration before now such as 1h"
"""Text for the help of options that `moment` reads."""


class WrongValue(ArgumentTypeError):
    """A value that an option can't have; argparse prints the sentence."""


def pair(text: str) -> tuple[str, str]:
    """Read ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise WrongValue(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def count(text: str) -> int:
    """Read a whole number of 0 or more."""
    if not (text.isascii() and text.isdigit()):
        raise WrongValue(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def port(text: str) -> int:
    """Read a port; 0 is a free one."""
    number = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise WrongValue(f"{text!r} is not a port: allowed is 0 to 65535")
    return number


def positive(text: str) -> float:
    """Read a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise WrongValue(f"{text!r} is not a number above 0")
    return value


def seconds(text: str) -> float:
    """Read a number of seconds above 0, or a duration such as 15m."""
    return positive(in_seconds(text))


def whole_seconds(text: str) -> int:
    """Read a whole number of seconds, or a duration such as 15m."""
    return count(in_seconds(text))


def in_seconds(text: str) -> str:
    """Give a duration such as 15m as its number of seconds, and any other text unchanged."""
    try:
        whole, rest = divmod(duration_ms(text), 1000)
        return f"{whole}.{rest:03}" if rest else str(whole)
    except ValueError:
        return text


def moment(text: str) -> int:
    """Read a time, see `firearrow.clock.moment_ms`, or a duration before now: 1h, or -1h."""
    return _moment(text, -1)


def moment_ahead(text: str) -> int:
    """Read a time, or a duration from now on; one with a minus sign is before now."""
    return _moment(text, 1)


def _moment(text: str, sign: int) -> int:
    ahead, size = (-1, text[1:]) if text.startswith("-") else (sign, text)
    try:
        return max(0, SystemClock().now_ms() + ahead * duration_ms(size))
    except ValueError:
        pass
    try:
        return moment_ms(text)
    except ValueError as error:
        raise WrongValue(f"{error}, or a duration like 1h") from None


class StandardInput(str):
    """The word ``-`` on a command line; behind ``--`` it is a text as any other."""

    __slots__ = ()


STANDARD_INPUT: Final = StandardInput("-")


def text_or_input(text: str) -> str | None:
    """Give a text; None for standard input."""
    return None if isinstance(text, StandardInput) else text


def content_of(path: Path) -> bytes:
    """Read a file, or standard input for ``-``."""
    if str(path) == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    with naming(path):
        return path.read_bytes()


def own_files(text: str) -> str:
    """Give a directory or URI. It is a place of files: only who has the command line may name one, no browser."""
    return text


# --- Options that exclude or require each other ---


class WrongOptions(Exception):
    """Options that each may be given, but not together; the message is a sentence."""


def exclude(options: object, *names: str) -> bool:
    """Raise WrongOptions if more than one of these options is given; tell whether one is."""
    given = [_flag(name) for name in names if getattr(options, name)]
    if len(given) > 1:
        raise WrongOptions(f"argument {given[1]}: not allowed with argument {given[0]}")
    return bool(given)


def require_one(options: object, *names: str) -> None:
    """Raise WrongOptions unless one of these options is given, and no other."""
    if not exclude(options, *names):
        words = " ".join(map(_flag, names))
        raise WrongOptions(f"one of the arguments {words} is required")


def require_order(since: int | None, until: int | None, *, included: bool = True) -> None:
    """Raise WrongOptions where --until is before --since, or excludes it."""
    if since is None or until is None or since < until or (included and since == until):
        return
    raise WrongOptions("argument --until: it is not after --since, so nothing is between them")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
