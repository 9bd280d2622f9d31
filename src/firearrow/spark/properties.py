"""A message's properties as column expressions: the one place that knows their stored form.

A table holds them as the stored string (``name \\x01 value \\x02 ...``) or as a map; `of` gives the reader that fits a
DataFrame. Both agree with `firearrow.message.properties.parse`: the last pair of a repeated name counts, and a pair
without a value is no pair.
"""

from __future__ import annotations

from collections.abc import Callable

import pyspark.sql.functions as fn
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import MapType

from firearrow.message.properties import NAME_END, PAIR_END

Reader = Callable[[str], Column]
"""From a property's name to its value, null where a message has none."""


def of(frame: DataFrame, column: str = "properties") -> Reader:
    """Give the reader of a DataFrame's properties: a string, or a map."""
    if isinstance(frame.schema[column].dataType, MapType):
        return lambda name: fn.try_element_at(frame[column], fn.lit(name))
    return lambda name: property(frame[column], name)


def property(column: Column, name: str) -> Column:  # noqa: A001 - callers say properties.property
    """Read one property of the stored string; null if it is not there.

    Two searches find the last pair of a name. All pairs are looked at only if that pair has no value.
    """
    text = fn.concat(fn.lit(PAIR_END), column)
    start = f"{PAIR_END}{name}{NAME_END}"
    last = fn.substring_index(fn.substring_index(text, start, -1), PAIR_END, 1)
    value = fn.coalesce(fn.nullif(last, fn.lit("")), _any(column, name))
    return fn.when(fn.contains(text, fn.lit(start)), value)


def as_map(frame: DataFrame, column: str = "properties") -> Column:
    """Give all properties as a map, whichever way the DataFrame has them."""
    if isinstance(frame.schema[column].dataType, MapType):
        return frame[column]
    pairs = fn.filter(
        fn.split(fn.coalesce(frame[column], fn.lit("")), PAIR_END),
        lambda pair: fn.rlike(pair, fn.lit(f"(?s)^[^{NAME_END}]+{NAME_END}.")),
    )
    found = fn.transform(pairs, _name_of)
    last = fn.filter(  # a map with a name twice is an error in Spark
        pairs, lambda pair, at: fn.array_position(fn.slice(found, at + 2, fn.size(found) + 1), _name_of(pair)) == 0
    )
    return fn.map_from_entries(fn.transform(last, lambda pair: fn.struct(_name_of(pair), _after_name(pair))))


def _name_of(pair: Column) -> Column:
    return fn.substring_index(pair, NAME_END, 1)


def _after_name(pair: Column) -> Column:
    return fn.substr(pair, fn.locate(NAME_END, pair) + 1)


def _any(column: Column, name: str) -> Column:
    start = f"{name}{NAME_END}"
    found = fn.filter(
        fn.split(column, PAIR_END), lambda pair: fn.startswith(pair, fn.lit(start)) & (fn.length(pair) > len(start))
    )
    return fn.substring(fn.try_element_at(found, fn.lit(-1)), len(start) + 1, 1 << 30)
