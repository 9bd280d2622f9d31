"""Records of the command line: values with names, which cost a command nothing before it uses them."""

from __future__ import annotations

from typing import Final, Self, dataclass_transform

NEEDED: Final = object()
"""Stands for the default of a field that has none."""


@dataclass_transform(frozen_default=True)
class Record:
    """Base of classes that are frozen dataclasses to type checkers.

    `dataclasses` and `NamedTuple` write and compile methods for each class: a quarter to a whole millisecond, ten times
    in most commands. A `msgspec.Struct` is as fast, but can't have two bases with fields, as some jobs' options do.
    """

    def __init__(self, *values: object, **named: object) -> None:
        fields = fields_of(type(self))
        assert len(values) <= len(fields), "each value has a field"
        given = vars(self)
        given.update(fields, **dict(zip(fields, values, strict=False)), **named)
        if wrong := [name for name, value in given.items() if name not in fields or value is NEEDED]:
            raise TypeError(f"{type(self).__name__} has, or needs, other fields: {', '.join(wrong)}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def changed(self, **values: object) -> Self:
        """Give a copy with other values."""
        return type(self)(**{**vars(self), **values})


def fields_of(kind: type[Record]) -> dict[str, object]:
    """Give the fields of a class, its bases' first, each with its default or `NEEDED`."""
    hints = {name: hint for one in reversed(kind.__mro__[:-1]) for name, hint in one.__annotations__.items()}
    return {name: getattr(kind, name, NEEDED) for name, hint in hints.items() if not _is_of_class(hint)}


def _is_of_class(hint: object) -> bool:
    return isinstance(hint, str) and hint.startswith("ClassVar")
