"""Schemas that change: which columns a table gets when its messages have another schema.

New fields become columns, and types become wider: whole numbers and floating-point numbers of more bits, decimals of
more digits, structures of more fields. Fields that a schema does not have any more stay, with null. A field of any
other type than its column is refused: rows that are there could not be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from firearrow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Evolution:
    """Columns of a table after a change of its schema.

    ``added`` are new columns. ``rewritten`` says that columns have another type, so the files must be written again.
    """

    columns: pa.Schema
    added: tuple[pa.Field, ...] = ()
    rewritten: bool = False


def evolved(held: pa.Schema, wanted: pa.Schema, table: str) -> Evolution:
    """Return the columns that hold the rows of a table and new rows; raise ConfigError if none can."""
    columns = list(held)
    by_name = {field.name.lower(): number for number, field in enumerate(held)}
    added: list[pa.Field] = []
    rewritten = False
    for field in wanted:
        number = by_name.get(field.name.lower())
        if number is None:
            added.append(field)
            continue
        column = columns[number]
        kind = wider(column.type, field.type) if column.name == field.name else None
        if kind is None:
            raise ConfigError(
                f"table {table}: column {column.name} is {column.type}, but the new schema has {field.name}"
                f" of {field.type}; no type holds both, so this needs another table"
            )
        rewritten |= kind != column.type
        columns[number] = column.with_type(kind)
    return Evolution(pa.schema([*columns, *added]), tuple(added), rewritten)


_FAMILIES: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], int]], ...]] = (
    (pa.types.is_signed_integer, lambda kind: int(kind.bit_width)),
    (pa.types.is_floating, lambda kind: int(kind.bit_width)),
)


def wider(held: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both types without loss; None if there is none.

    These are the changes that Iceberg allows for a column.
    """
    if held.equals(new):
        return held
    for is_of, width in _FAMILIES:
        if is_of(held) and is_of(new):
            return max(held, new, key=width)
    if pa.types.is_decimal(held) and pa.types.is_decimal(new) and held.scale == new.scale:
        return max(held, new, key=lambda kind: kind.precision)
    if pa.types.is_list(held) and pa.types.is_list(new):
        item = wider(held.value_type, new.value_type)
        return item and pa.list_(item)
    if pa.types.is_map(held) and pa.types.is_map(new) and held.key_type.equals(new.key_type):
        item = wider(held.item_type, new.item_type)
        return item and pa.map_(held.key_type, item)
    if pa.types.is_struct(held) and pa.types.is_struct(new):
        return _wider_structure(held, new)
    return None


def _wider_structure(held: pa.StructType, new: pa.StructType) -> pa.StructType | None:
    fields = {field.name: field for field in held.fields}
    for field in new.fields:
        known = fields.get(field.name)
        kind = field.type if known is None else wider(known.type, field.type)
        if kind is None:
            return None
        fields[field.name] = field.with_type(kind)
    return pa.struct(list(fields.values()))


def fitted(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return a table with other columns, whose types are as wide or wider; columns that it lacks are null.

    Arrow's cast does not add fields to structures.
    """
    found = []
    for field in columns:
        if field.name in table.column_names:
            found.append(_fitted(one_array(table.column(field.name)), field.type))
        else:
            found.append(pa.nulls(table.num_rows, field.type))
    return pa.table(found, columns)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array. Arrow's ``combine_chunks`` copies a single chunk, too."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fitted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type.equals(kind):
        return values
    if pa.types.is_struct(kind):
        members = {field.name: values.field(number) for number, field in enumerate(values.type.fields)}
        arrays = [
            _fitted(members[field.name], field.type) if field.name in members else pa.nulls(len(values), field.type)
            for field in kind.fields
        ]
        return pa.StructArray.from_arrays(arrays, fields=kind.fields, mask=values.is_null())
    if pa.types.is_list(kind):
        items = _fitted(values.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(_offsets(values), items, type=kind, mask=values.is_null())
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        return _fitted_map(values, kind)
    return values.cast(kind)


def _offsets(values: pa.ListArray) -> pa.Array:
    """Return the offsets of lists in their flattened items, where null lists have none."""
    lengths = pa.compute.fill_null(pa.compute.list_value_length(values), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pa.compute.cumulative_sum(lengths).cast(pa.int32())])


def _fitted_map(values: pa.MapArray, kind: pa.MapType) -> pa.Array:
    as_lists = values.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", values.type.item_type)])))
    pairs = as_lists.flatten()
    items = _fitted(pairs.field(1), kind.item_type)
    found = pa.MapArray.from_arrays(_offsets(as_lists), pairs.field(0), items, kind)
    return pa.compute.if_else(values.is_null(), pa.scalar(None, kind), found) if values.null_count else found
