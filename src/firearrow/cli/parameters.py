"""Declarations of options: switches, options with a value, and classes of options.

A command is a function. The annotation of a parameter, or of a field of an options class, says how
it appears on the command line: ``Annotated[int, valued("N", "queues on each broker")]``.
`firearrow.cli.parser` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]
Completer = Callable[..., Iterable[str]]


class Parameter(NamedTuple):
    """An option, or an argument in its place.

    ``read`` makes the value of a word; without it, the type does. A parameter without a default is
    needed, also without ``needed``.
    """

    help: str
    metavar: str | None = None
    read: Callable[[str], Any] | None = None
    names: Sequence[str] = ()
    """By default the name in Python as an option: ``--undo-file`` of ``undo_file``."""
    off: str | None = None
    """The option that switches it off, of one that is on, off or not given."""
    needed: bool = False
    completer: Completer | None = None


NOT_ASKED: Final = Parameter("")
"""Marks a field that no option sets; a subclass may declare one for it."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(kind: type[T]) -> type[T]:
    """Make a class one whose fields are options of the commands that have it as a parameter."""
    return dataclass(frozen=True, kw_only=True)(kind)


def switch(text: str, *, name: str | None = None) -> Parameter:
    """Give an option without a value, which is off unless it is there."""
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
    completer: Completer | None = None,
) -> Parameter:
    """Give an option, or an argument, with a value.

    If its type is a tuple, the option may be repeated, or several arguments may be given.
    """
    return Parameter(text, value, read, _names(name), needed=needed, completer=completer)


repeated: Final = valued
"""An option whose type is a tuple."""


def _names(name: str | Sequence[str] | None) -> Sequence[str]:
    return (name,) if isinstance(name, str) else name or ()
