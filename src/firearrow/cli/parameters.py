"""How options are declared to cyclopts: switches, options with a value, and classes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, Final, TypeVar, dataclass_transform

from cyclopts import Parameter, Token

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]

NOT_ASKED: Final = Parameter(parse=False)
"""Marks a field that no option sets; a subclass may declare one for it."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(kind: type[T]) -> type[T]:
    """Make a class one whose fields are options of the commands that have it as a parameter."""
    # cyclopts would look names up where a class is, and those of its base may be of another module
    kind.__annotations__ = get_annotations(kind, eval_str=True)
    made: type[T] = Parameter(name="*")(dataclass(frozen=True, kw_only=True)(kind))
    return made


def switch(text: str, *, name: str | None = None) -> Parameter:
    """Give an option without a value, which is off unless it is there."""
    return Parameter(name=name, negative="", help=text)


def either(text: str, *, off: str | None = None) -> Parameter:
    """Give an option that is on, off by ``off`` (``--no-NAME``), or not said at all."""
    return Parameter(negative=off, help=text)


def valued(
    value: str | None,
    text: str,
    read: Callable[[str], Any] | None = None,
    *,
    name: str | Sequence[str] | None = None,
    needed: bool | None = None,
) -> Parameter:
    """Give an option, or an argument, with a value, which ``read`` makes of a word.

    By default it is needed if its parameter has no default.
    """
    return _declared(value, text, name, needed, read and _one(read))


def repeated(
    value: str | None,
    text: str,
    read: Callable[[str], Any] = str,
    *,
    name: str | Sequence[str] | None = None,
    needed: bool | None = None,
) -> Parameter:
    """Give an option that may be repeated; its type is a tuple."""
    return _declared(value, text, name, needed, _each(read))


def _declared(
    value: str | None,
    text: str,
    name: str | Sequence[str] | None,
    needed: bool | None,
    converter: Callable[[Any, Sequence[Token]], Any] | None,
) -> Parameter:
    of_words: dict[str, Any] = {"n_tokens": 1, "accepts_keys": False} if converter else {}
    return Parameter(name=name, metavar=value, help=text, required=needed, negative="", converter=converter, **of_words)


def _one(read: Callable[[str], T]) -> Callable[[Any, Sequence[Token]], T]:
    return lambda _, words: read(words[0].value)


def _each(read: Callable[[str], T]) -> Callable[[Any, Sequence[Token]], tuple[T, ...]]:
    return lambda _, words: tuple(read(word.value) for word in words)
