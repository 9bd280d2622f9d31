"""Bodies in Avro, each one datum without a file's header. Columns are the same as from Spark's own Avro reader.

A registry knows the schema that a body was written with. The fields come from the schema of the columns, because Avro
resolves one schema to the other.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, Final

from pyspark.sql import types as T

from firearrow.errors import ConfigError
from firearrow.spark.bodies.bodies import Undecodable
from firearrow.spark.bodies.registry import Registry, require_frame

try:
    from fastavro import parse_schema, schemaless_reader
    from fastavro.read import SchemaResolutionError
    from fastavro.schema import SchemaParseException, expand_schema
except ImportError:
    raise ConfigError("Avro bodies need fastavro: pip install 'firearrow[bodies]'") from None

PLAIN: Final[dict[str, T.DataType]] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "fixed": T.BinaryType(),
    "string": T.StringType(),
    "enum": T.StringType(),
}
LOGICAL: Final[dict[tuple[str, str], T.DataType]] = {
    ("int", "date"): T.DateType(),
    ("long", "timestamp-millis"): T.TimestampType(),
    ("long", "timestamp-micros"): T.TimestampType(),
    ("long", "local-timestamp-millis"): T.TimestampNTZType(),
    ("long", "local-timestamp-micros"): T.TimestampNTZType(),
}
WIDER: Final = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}

# Errors that fastavro raises for bytes that are no datum of a schema.
NO_DATUM: Final = (EOFError, ValueError, LookupError, TypeError, ArithmeticError, SchemaResolutionError)

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class AvroBodies:
    """Settings of a decoder: the schema of the columns, and the registry if bodies name their schema."""

    schema: str
    registry: Registry | None = None

    def fields(self) -> T.StructType:
        """Return the columns; raise ConfigError for a schema that cannot be columns."""
        try:
            parse_schema(_bare(json.loads(self.schema)))
            fields, _ = _type(expand_schema(json.loads(self.schema)), "the schema")
        except (SchemaParseException, ValueError, TypeError) as error:
            raise ConfigError(f"Avro schema {self.schema!r}: {error}") from None
        if not isinstance(fields, T.StructType) or not fields:
            raise ConfigError(f"Avro schema {self.schema!r}: must be a record with fields")
        return fields

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        """Return a function from a body to its value, which raises Undecodable for a body that has none."""
        loaded = json.loads(self.schema)
        reader = parse_schema(_bare(loaded))
        _, convert = _type(expand_schema(loaded), "the schema")
        writers: dict[int, Any] = {}

        def decode(body: bytes) -> dict[str, Any]:
            writer = reader
            if self.registry is not None:
                schema_id, body = require_frame(body)
                if schema_id not in writers:
                    found = self.registry.schema(schema_id)
                    writers[schema_id] = found and parse_schema(_bare(json.loads(found)))
                writer = writers[schema_id]
                if writer is None:
                    raise Undecodable(f"schema {schema_id} is not in the registry")
            stream = io.BytesIO(body)
            try:
                datum: Any = schemaless_reader(stream, writer, reader)
                value: dict[str, Any] = convert(datum) if convert else datum
            except NO_DATUM as error:
                raise Undecodable(
                    f"the body is no datum of its Avro schema: {str(error) or type(error).__name__}"
                ) from None
            if stream.tell() < len(body):
                raise Undecodable("bytes follow the datum of the Avro schema")
            return value

        return decode


def given_schema(schema: str) -> str:
    """Return the text of a schema that is given as text or as the name of a file."""
    if schema.lstrip()[:1] in {"{", "[", '"'}:
        return schema
    try:
        return Path(schema).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"Avro schema {schema!r}: {error}") from None


def _bare(schema: Any) -> Any:
    """Return a schema without logical types: fastavro would convert by the writer's types, not by the columns'."""
    if isinstance(schema, dict):
        return {key: _bare(part) for key, part in schema.items() if key != "logicalType"}
    return [_bare(part) for part in schema] if isinstance(schema, list) else schema


def _type(schema: Any, at: str) -> tuple[T.DataType, Convert | None]:
    """Return a column's type, and the function from Avro's values to its values; None if they are the same."""
    if isinstance(schema, list):
        return _union(schema, at)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _type(kind, at)
    if kind == "record":
        return _record(schema, at)
    if kind == "array":
        items, convert_item = _type(schema["items"], at)
        if convert_item is None:
            return T.ArrayType(items), None
        return T.ArrayType(items), lambda them: [convert_item(it) for it in them]
    if kind == "map":
        held, convert_held = _type(schema["values"], at)
        # Arrow takes maps as pairs
        return T.MapType(T.StringType(), held), lambda them: [
            (key, convert_held(it) if convert_held else it) for key, it in them.items()
        ]
    logical = schema.get("logicalType", "")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        return _decimal(schema, at)
    found = LOGICAL.get((kind, logical)) or PLAIN.get(kind)
    if found is None:
        raise ConfigError(f"Avro schema: {at} can't be a column: {kind}")
    in_millis = (kind, logical) in LOGICAL and logical.endswith("-millis")
    return found, (lambda millis: millis * 1000) if in_millis else None


def _union(kinds: list[Any], at: str) -> tuple[T.DataType, Convert | None]:
    held = [kind for kind in kinds if kind != "null"]
    if all(isinstance(kind, str) for kind in held):
        held = [WIDER.get(frozenset(held), held[0])] if len(held) == 2 and frozenset(held) in WIDER else held
    if len(held) != 1:
        raise ConfigError(f"Avro schema: {at} can't be a column: a union of several types")
    found, convert = _type(held[0], at)
    return found, convert and (lambda it: None if it is None else convert(it))


def _record(schema: Any, at: str) -> tuple[T.StructType, Convert | None]:
    fields = []
    converts: list[tuple[str, Convert]] = []
    for part in schema["fields"]:
        name = part["name"]
        found, convert = _type(part["type"], f"field {name}")
        fields.append(T.StructField(name, found))
        if convert:
            converts.append((name, convert))

    def converted(record: dict[str, Any]) -> dict[str, Any]:
        return record | {name: convert(record[name]) for name, convert in converts}

    return T.StructType(fields), converted if converts else None


def _decimal(schema: Any, at: str) -> tuple[T.DataType, Convert | None]:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if not 0 < precision <= 38:
        raise ConfigError(f"Avro schema: {at} can't be a column: a decimal of {precision} digits")
    context = Context(prec=precision)

    def convert(unscaled: bytes) -> Decimal:
        return Decimal(int.from_bytes(unscaled, signed=True)).scaleb(-scale, context)

    return T.DecimalType(precision, scale), convert
