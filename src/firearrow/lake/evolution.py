"""Schemas that change: which columns a table gets when its messages have another schema.

New fields become columns, and types become wider: whole numbers and floating-point numbers of more bits, decimals of
more digits, structures of more fields. Fields that a schema does not have any more stay, with null. A field of any
other type than its column is refused: existing rows could not be read.

A field that had another name renames its column. Avro's aliases say so, and Protobuf's numbers. A column keeps its
identity, which is in the table's schema: so one commit decides whether a column is renamed, and a table of Iceberg that
follows later knows its columns again. A list of renamed columns was rejected: two names that are swapped look the same
before and after, so a process that goes on after a kill could not tell whether they are swapped already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from firearrow.errors import ConfigError
from firearrow.spark.jobs.archive.delta import IDENTITY, column_identity


@dataclass(frozen=True, slots=True)
class Evolution:
    """Columns of a table after a change of its schema.

    ``added`` are new columns. ``former`` has the name of each other column before the change. ``rewritten`` says that
    columns have another type or name, so the files must be written again.
    """

    columns: pa.Schema
    former: Mapping[str, str]
    added: tuple[pa.Field, ...] = ()
    rewritten: bool = False

    @property
    def renamed(self) -> dict[str, str]:
        """The new names of columns that get one."""
        return {old: new for new, old in self.former.items() if old != new}


def renames(
    held: Collection[str], fields: Mapping[str, Sequence[str | int]], numbers: Mapping[int, str]
) -> dict[str, str]:
    """Return the new name of each column that is a field of another name now.

    ``fields`` are the fields of the new schema, each with the names that it had or with its number. ``numbers`` has the
    columns whose number is known. A name that a field still has renames nothing: older bodies decode into that field.
    """
    found: dict[str, str] = {}
    for name, marks in fields.items():
        for mark in marks:
            old = numbers.get(mark, name) if isinstance(mark, int) else mark
            if old in held and old != name and (isinstance(mark, int) or old not in fields):
                found[old] = name
    return found


def evolved(held: pa.Schema, wanted: pa.Schema, table: str, renamed: Mapping[str, str]) -> Evolution:
    """Return the columns that hold the rows of a table and new rows; raise ConfigError if none can."""
    columns = [_named(field, renamed.get(field.name, field.name)) for field in held]
    by_name: dict[str, int] = {}
    for number, field in enumerate(columns):
        other = by_name.setdefault(field.name.lower(), number)
        if other != number:
            raise ConfigError(
                f"table {table}: columns {held[other].name} and {held[number].name} would both be {field.name} by the"
                " new schema; give the field another name, or use another table"
            )
    former = dict(zip((field.name for field in columns), held.names, strict=True))
    identities = {column_identity(field) for field in held}
    added: list[pa.Field] = []
    rewritten = any(old != new for new, old in former.items())
    for field in wanted:
        place = by_name.get(field.name.lower())
        if place is None:
            added.append(_identified(field, identities))
            continue
        column = columns[place]
        kind = wider(column.type, field.type) if column.name == field.name else None
        if kind is None:
            raise ConfigError(
                f"table {table}: column {column.name} is {column.type}, but the new schema has {field.name}"
                f" of {field.type}; no type holds both, so this needs another table"
            )
        rewritten |= kind != column.type
        columns[place] = column.with_type(kind)
    return Evolution(pa.schema([*columns, *added]), former, tuple(added), rewritten)


def _named(column: pa.Field, name: str) -> pa.Field:
    """Return a column with another name and the same identity."""
    identity = column_identity(column)
    return column.with_name(name).with_metadata({IDENTITY: identity} if identity != name else {})


def _identified(field: pa.Field, taken: set[str]) -> pa.Field:
    """Return a new column with an identity that no other column has."""
    identity, number = field.name, 1
    while identity in taken:
        number += 1
        identity = f"{field.name}#{number}"
    taken.add(identity)
    return field.with_metadata({IDENTITY: identity} if identity != field.name else {})


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
