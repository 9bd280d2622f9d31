"""Filters of a query, as the messages that the file source can leave out before it reads the log.

Spark hands over single conditions that must all hold. A message that is left out cannot meet them. Other messages may
or may not meet them, so Spark applies all conditions again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

_LOWEST: Final = -(1 << 63)
_HIGHEST: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NumberSet:
    """A set of numbers from ``low`` to ``high``; only those in ``some`` unless it is None."""

    low: int = _LOWEST
    high: int = _HIGHEST
    some: frozenset[int] | None = None

    def __and__(self, other: NumberSet) -> NumberSet:
        some = self.some if other.some is None else other.some
        if self.some is not None and other.some is not None:
            some = self.some & other.some
        return NumberSet(max(self.low, other.low), min(self.high, other.high), some)

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high and (self.some is None or number in self.some)

    @property
    def is_all(self) -> bool:
        """Tell whether the set holds all numbers."""
        return self == NumberSet()

    @property
    def ends(self) -> tuple[int, int]:
        """Return the lowest and the highest number that the set can hold."""
        if self.some is None:
            return self.low, self.high
        inside = [number for number in self.some if self.low <= number <= self.high]
        return (min(inside), max(inside)) if inside else (0, -1)

    def mask(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the numbers that are in the set."""
        inside: npt.NDArray[np.bool_] = (numbers >= self.low) & (numbers <= self.high)
        if self.some is not None:
            within = [number for number in self.some if _LOWEST <= number <= _HIGHEST]
            inside &= np.isin(numbers, np.array(within, np.int64))
        return inside


@dataclass(frozen=True, slots=True)
class TextSet:
    """A set of texts that begin with all of ``prefixes``; only those in ``some`` unless it is None."""

    some: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()

    def __and__(self, other: TextSet) -> TextSet:
        some = self.some if other.some is None else other.some
        if self.some is not None and other.some is not None:
            some = self.some & other.some
        return TextSet(some, self.prefixes + other.prefixes)

    def __contains__(self, text: str) -> bool:
        if self.some is not None and text not in self.some:
            return False
        return all(text.startswith(prefix) for prefix in self.prefixes)


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """Sets that a wanted message must be in; None for ``tags`` or ``words`` is all of them.

    A message is wanted only if one word of each set of ``words`` is among its keys or is its id.
    """

    topic: TextSet = field(default_factory=TextSet)
    queue_id: NumberSet = field(default_factory=NumberSet)
    queue_offset: NumberSet = field(default_factory=NumberSet)
    physical_offset: NumberSet = field(default_factory=NumberSet)
    store_ms: NumberSet = field(default_factory=NumberSet)
    tags: frozenset[str] | None = None
    words: frozenset[str] | None = None


_NUMBER_COLUMNS: Final = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "commitLogOffset": "physical_offset",
    "storeTimestamp": "store_ms",
}


def narrowed(filters: Iterable[Filter]) -> PushedFilters:
    """Return the sets for some conditions."""
    found = PushedFilters()
    for condition in filters:
        found = _narrowed(found, condition) or found
    return found


def _narrowed(narrow: PushedFilters, condition: Filter) -> PushedFilters | None:
    """Return the set that a condition adds, None for no set."""
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    if column == "topic":
        texts = _texts(condition)
        return None if texts is None else replace(narrow, topic=narrow.topic & texts)
    if column in _NUMBER_COLUMNS:
        name = _NUMBER_COLUMNS[column]
        numbers = _numbers(condition, _milliseconds if name == "store_ms" else _integer)
        if numbers is None:
            return None
        changes: dict[str, Any] = {name: getattr(narrow, name) & numbers}
        return replace(narrow, **changes)
    return _words(narrow, column, condition)


def _words(narrow: PushedFilters, column: str, condition: Filter) -> PushedFilters | None:
    texts = _texts(condition)
    if texts is None or texts.some is None or not all(texts.some):
        return None
    if column == "tags":
        some = texts.some if narrow.tags is None else texts.some & narrow.tags
        return replace(narrow, tags=some)
    if column in ("keys", "msgId") and narrow.words is None:
        first = [text.split() for text in texts.some]
        if all(first):
            return replace(narrow, words=frozenset(words[0] for words in first))
    return None


def _texts(condition: Filter) -> TextSet | None:
    match condition:
        case EqualTo(_, str(text)) | EqualNullSafe(_, str(text)):
            return TextSet(frozenset((text,)))
        case StringStartsWith(_, str(prefix)):
            return TextSet(None, (prefix,))
        case In(_, values) if all(isinstance(value, str) for value in values):
            return TextSet(frozenset(values))
    return None


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _milliseconds(value: Any) -> int | None:
    """Return a time in the store's milliseconds, rounded down."""
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _numbers(condition: Filter, read: Callable[[Any], int | None]) -> NumberSet | None:
    if isinstance(condition, In):
        some = [read(value) for value in condition.value if value is not None]
        known = [number for number in some if number is not None]
        return NumberSet(some=frozenset(known)) if len(known) == len(some) else None
    number = read(getattr(condition, "value", None))
    if number is None:
        return None
    is_time = read is _milliseconds  # rounded down: the bound itself stays in
    match condition:
        case EqualTo() | EqualNullSafe():
            return NumberSet(number, number)
        case GreaterThan():
            return NumberSet(low=number if is_time else number + 1)
        case GreaterThanOrEqual():
            return NumberSet(low=number)
        case LessThan():
            return NumberSet(high=number if is_time else number - 1)
        case LessThanOrEqual():
            return NumberSet(high=number)
    return None
