"""Bodies in Avro, each one datum without a file's header. Columns are the same as from Spark's own Avro reader.

A registry knows the schema that a body was written with. The fields come from the schema of the columns, because Avro
resolves one schema to the other.

A union of several types is a structure with a field for each type, named after it; the field of the value's type is not
null. Spark names the fields ``member0``, ``member1`` and so on: a type that is added in the middle of the union would
then change the meaning of columns that are written already. A record that contains itself is the text of its JSON.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, Final

from pyspark.sql import types as T

from firearrow.errors import ConfigError, MissingPackage
from firearrow.spark.bodies.bodies import Undecodable
from firearrow.spark.bodies.registry import AVRO, RegisteredSchema, Registry

try:
    from fastavro import _read_py, parse_schema, schemaless_reader
    from fastavro.read import SchemaResolutionError
    from fastavro.schema import SchemaParseException, expand_schema
except ImportError:
    raise MissingPackage("Avro bodies need", "fastavro", "bodies") from None

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
NARROWER: Final = {"long": "int", "double": "float"}
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
OF_VALUES: Final[dict[type, tuple[str, ...]]] = {
    bool: ("boolean",), int: ("long", "int", "double", "float"), float: ("double", "float"),
    str: ("string", "enum"), bytes: ("bytes", "fixed"), list: ("array",), dict: ("map", "record", "error"),
}  # fmt: skip

# Errors that fastavro raises for schemas, and for bytes that are no datum of a schema.
NO_SCHEMA: Final = (SchemaParseException, ValueError, TypeError, LookupError, AttributeError, RecursionError)
NO_DATUM: Final = (EOFError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError, SchemaResolutionError)

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class AvroBodies:
    """Settings of a decoder: the schema of the columns, and the registry if bodies name their schema."""

    schema: str
    registry: Registry | None = None

    def fields(self) -> T.StructType:
        """Return the columns; raise ConfigError for a schema that cannot be columns."""
        try:
            _Schema(self.schema)
            fields, _ = _Columns(json.loads(self.schema)).type_of_all()
        except NO_SCHEMA as error:
            raise ConfigError(f"Avro schema {self.schema!r}: {error}") from None
        if not isinstance(fields, T.StructType) or not fields:
            raise ConfigError(f"Avro schema {self.schema!r}: must be a record with fields")
        return fields

    def identities(self) -> Mapping[str, Sequence[str | int]]:
        """Return the aliases of each field, which are names that it had."""
        return {part["name"]: part.get("aliases", ()) for part in _fields(json.loads(self.schema))}

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        """Return a function from a body to its value, which raises Undecodable for a body that has none."""
        reader = _Schema(self.schema)
        columns = _Columns(json.loads(self.schema))
        _, convert = columns.type_of_all()
        writers: dict[int, _Schema | Undecodable] = {}
        readers: dict[int, _Schema] = {}

        def decode(body: bytes) -> dict[str, Any]:
            writer: _Schema | Undecodable = reader
            wanted = reader
            if self.registry is not None:
                schema_id, body = self.registry.unframed(body)
                if schema_id not in writers:
                    writers[schema_id] = _writer(self.registry, schema_id)
                    readers[schema_id] = _reader(self.schema, writers[schema_id])
                writer, wanted = writers[schema_id], readers[schema_id]
            if isinstance(writer, Undecodable):
                raise Undecodable(str(writer))
            stream = io.BytesIO(body)
            try:
                datum: Any = writer.read(stream, writer.parsed, wanted.parsed, return_named_type=columns.tagged)
                value: dict[str, Any] = convert(datum) if convert else datum
            except NO_DATUM as error:
                raise Undecodable(
                    f"the body is no datum of its Avro schema: {str(error) or type(error).__name__}"
                ) from None
            if stream.tell() < len(body):
                raise Undecodable("bytes follow the datum of the Avro schema")
            return value

        return decode


class _Schema:
    """A schema, and the function that reads the data written with it. Raises one of NO_SCHEMA for any other text."""

    def __init__(self, text: str) -> None:
        named: dict[str, Any] = {}
        self.parsed = parse_schema(_bare(json.loads(text)), named)
        if _has_list_of_nothing(self.parsed, named):
            raise ValueError("the items of a list take no bytes, so a few bytes could be an endless list")
        # A datum within itself, a few thousand times, would overflow the stack of fastavro's extension and end the
        # process. Its reader in Python takes two to five times longer, and raises RecursionError.
        self.read = _read_py.schemaless_reader if _contains_itself(self.parsed, frozenset()) else schemaless_reader


def _writer(registry: Registry, schema_id: int) -> _Schema | Undecodable:
    """Return the schema that a body names, or the reason why the body does not decode."""
    try:
        return _Schema(self_contained(registry.written(schema_id, AVRO)))
    except Undecodable as error:
        return error
    except (ConfigError, *NO_SCHEMA) as error:
        return Undecodable(f"schema {schema_id} of the registry is no Avro schema: {error}")


def _reader(text: str, writer: _Schema | Undecodable) -> _Schema:
    """Return the schema of the columns as a body's schema needs it, without aliases of fields that the body has.

    fastavro would take the value of the alias, or fail, depending on the order of both fields.
    """
    schema = json.loads(text)
    held = set() if isinstance(writer, Undecodable) else {part["name"] for part in _fields(writer.parsed)}
    for part in _fields(schema):
        if part["name"] in held:
            part.pop("aliases", None)
    return _Schema(json.dumps(schema))


def _contains_itself(schema: Any, around: frozenset[str]) -> bool:
    """Tell whether a parsed schema has a type that contains itself.

    A name can only refer to a type before it or around it, so every circle closes at a type around its name.
    """
    if isinstance(schema, str):
        return schema in around
    if isinstance(schema, dict) and schema["type"] in NAMED:
        around |= {schema["name"]}
    return any(_contains_itself(part, around) for part in _parts(schema))


def _has_list_of_nothing(schema: Any, named: dict[str, Any]) -> bool:
    """Tell whether a parsed schema contains a list whose items take no bytes."""
    if isinstance(schema, dict) and schema["type"] == "array" and _is_nothing(schema["items"], named, frozenset()):
        return True
    return any(_has_list_of_nothing(part, named) for part in _parts(schema))


def _is_nothing(schema: Any, named: dict[str, Any], around: frozenset[str]) -> bool:
    """Tell whether the values of a parsed type take no bytes."""
    if isinstance(schema, str):
        return schema in {*around, "null"} or (schema in named and _is_nothing(named[schema], named, around))
    if isinstance(schema, list) or schema["type"] in {"array", "map", "enum"}:
        return False
    if schema["type"] == "fixed":
        return bool(schema["size"] == 0)
    if schema["type"] in {"record", "error"}:
        around |= {schema["name"]}
        return all(_is_nothing(part["type"], named, around) for part in schema["fields"])
    return _is_nothing(schema["type"], named, around)


def _parts(schema: Any) -> list[Any]:
    """Return the types directly within a type."""
    if isinstance(schema, list):
        return schema
    if isinstance(schema, str):
        return []
    inner = [part["type"] for part in schema.get("fields", ())]
    inner += [schema[key] for key in ("items", "values") if key in schema]
    return inner if isinstance(schema["type"], str) else [*inner, schema["type"]]


def _fields(schema: Any) -> list[Any]:
    """Return the fields of a record, or of the only record in a union; none of any other type."""
    if isinstance(schema, list):
        held = [kind for kind in schema if kind != "null"]
        return _fields(held[0]) if len(held) == 1 else []
    if isinstance(schema, str):
        return []
    return schema.get("fields") or _fields(schema["type"])


def given_schema(schema: str) -> str:
    """Return the text of a schema that is given as text or as the name of a file."""
    if schema.lstrip()[:1] in {"{", "[", '"'}:
        return schema
    try:
        return Path(schema).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"Avro schema {schema!r}: {error}") from None


def self_contained(schema: RegisteredSchema) -> str:
    """Return a schema with the types that it refers to, each one defined where it is named first.

    Raises ConfigError if one of the texts is no Avro schema.
    """
    if not schema.references:
        return schema.text
    definitions: dict[str, Any] = {}
    try:
        for _, text in schema.references:
            definitions |= _definitions(json.loads(text), "")
        return json.dumps(_inlined(json.loads(schema.text), "", definitions, set()))
    except NO_SCHEMA as error:
        raise ConfigError(f"Avro schema {schema.schema_id} or one that it refers to: {error!r}") from None


def _definitions(schema: Any, space: str) -> Iterator[tuple[str, Any]]:
    """Yield the named types in a schema, with their full names."""
    if isinstance(schema, list):
        for part in schema:
            yield from _definitions(part, space)
    if not isinstance(schema, dict):
        return
    if schema.get("type") in NAMED:
        name, space = _full_name(schema, space)
        yield name, {**schema, "name": name, "namespace": space}
    for part in (schema.get("type"), schema.get("items"), schema.get("values")):
        yield from _definitions(part, space)
    for part in schema.get("fields", ()):
        yield from _definitions(part["type"], space)


def _inlined(schema: Any, space: str, definitions: dict[str, Any], known: set[str]) -> Any:
    """Return a schema with definitions in place of names that are not ``known`` yet."""
    if isinstance(schema, list):
        return [_inlined(part, space, definitions, known) for part in schema]
    if isinstance(schema, str):
        name = schema if "." in schema or not space else f"{space}.{schema}"
        if name in known or name not in definitions:
            return schema
        return _inlined(definitions[name], "", definitions, known)
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    if schema.get("type") in NAMED:
        name, space = _full_name(schema, space)
        if name in known:
            return name
        known.add(name)
    elif "type" in schema:
        found["type"] = _inlined(schema["type"], space, definitions, known)
    for key in ("items", "values"):
        if key in schema:
            found[key] = _inlined(schema[key], space, definitions, known)
    if "fields" in schema:
        found["fields"] = [
            {**part, "type": _inlined(part["type"], space, definitions, known)} for part in schema["fields"]
        ]
    return found


def _full_name(schema: dict[str, Any], space: str) -> tuple[str, str]:
    """Return the full name of a named type in a namespace, and the namespace of the names in it."""
    name = str(schema["name"])
    if "." not in name:
        space = str(schema.get("namespace", space))
        name = f"{space}.{name}" if space else name
    return name, name.rpartition(".")[0]


def _bare(schema: Any) -> Any:
    """Return a schema without logical types: fastavro would convert by the writer's types, not by the columns'."""
    if isinstance(schema, dict):
        return {key: _bare(part) for key, part in schema.items() if key != "logicalType"}
    return [_bare(part) for part in schema] if isinstance(schema, list) else schema


class _Columns:
    """Types of the columns of a schema, and functions from Avro's values to the columns' values.

    With ``tagged``, fastavro must give the values of named types in unions as pairs with the name.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = expand_schema(schema)
        self.tagged = _has_choice(self._schema)

    def type_of_all(self) -> tuple[T.DataType, Convert | None]:
        """Return the type of the whole schema; raise ConfigError if there is none."""
        return self._type(self._schema, "the schema")

    def _type(self, schema: Any, at: str) -> tuple[T.DataType, Convert | None]:
        """Return a column's type, and the function from Avro's values to its values; None if they are the same."""
        if isinstance(schema, list):
            return self._union(schema, at)
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._type(kind, at)
        if kind in {"record", "error"}:
            return self._record(schema, at)
        if kind == "array":
            items, convert_item = self._type(schema["items"], at)
            if convert_item is None:
                return T.ArrayType(items), None
            return T.ArrayType(items), lambda them: [convert_item(it) for it in them]
        if kind == "map":
            held, convert_held = self._type(schema["values"], at)
            # Arrow takes maps as pairs
            return T.MapType(T.StringType(), held), lambda them: [
                (key, convert_held(it) if convert_held else it) for key, it in them.items()
            ]
        logical = schema.get("logicalType", "")
        if logical == "decimal" and kind in {"bytes", "fixed"}:
            return _decimal(schema, at)
        found = LOGICAL.get((kind, logical)) or PLAIN.get(kind)
        if found is None and kind != "null":  # the name of a type around this one: only these are not expanded
            return T.StringType(), _json_text
        if found is None:
            raise ConfigError(f"Avro schema: {at} can't be a column: {kind}")
        in_millis = (kind, logical) in LOGICAL and logical.endswith("-millis")
        return found, (lambda millis: millis * 1000) if in_millis else None

    def _union(self, kinds: list[Any], at: str) -> tuple[T.DataType, Convert | None]:
        held = _choices(kinds, at)
        if len(held) > 1:
            return self._choice(held, at)
        found, convert = self._type(held[0] if held else "null", at)
        if self.tagged and _branch(held[0])[1]:
            same = convert or _same
            return found, lambda it: None if it is None else same(it[1] if type(it) is tuple else it)
        return found, convert and (lambda it: None if it is None else convert(it))

    def _choice(self, kinds: list[Any], at: str) -> tuple[T.DataType, Convert]:
        """Return a structure with a field for each type of a union."""
        fields: list[T.StructField] = []
        converts: dict[str, tuple[str, Convert]] = {}
        records: list[tuple[frozenset[str], str]] = []
        taken: set[str] = set()
        for kind in kinds:
            branch, name = _branch(kind)
            column = name.rpartition(".")[2] or branch
            if column.lower() in taken:
                column = name.replace(".", "_")
            if column.lower() in taken:
                raise ConfigError(f"Avro schema: {at} can't be a column: a union with two types {column}")
            taken.add(column.lower())
            found, convert = self._type(kind, at)
            fields.append(T.StructField(column, found))
            for known in filter(None, (name, name.rpartition(".")[2], branch)):
                converts.setdefault(known, (column, convert or _same))
            if isinstance(kind, dict) and "fields" in kind:
                records.append((frozenset(part["name"] for part in kind["fields"]), name))
        nothing = dict.fromkeys(field.name for field in fields)

        def branch_of(value: Any) -> str:
            """Return the branch of a value without a name: of no named type, or written with no union.

            A symbol that was written with no union can so be in the field of texts, if there is one.
            """
            branches = [it for it in OF_VALUES[type(value)] if it in converts]
            if branches and branches[0] in {"record", "error"}:
                return next((name for names, name in records if names == value.keys()), "")
            return branches[0]

        def convert_any(value: Any) -> dict[str, Any] | None:
            if value is None:
                return None
            branch, held = value if type(value) is tuple else (branch_of(value), value)
            # a writer may have the type in another namespace
            column, convert = converts.get(branch) or converts[branch.rpartition(".")[2]]
            return nothing | {column: convert(held)}

        return T.StructType(fields), convert_any

    def _record(self, schema: Any, at: str) -> tuple[T.StructType, Convert | None]:
        fields = []
        converts: list[tuple[str, Convert]] = []
        for part in schema["fields"]:
            name = part["name"]
            found, convert = self._type(part["type"], f"field {name}")
            fields.append(T.StructField(name, found))
            if convert:
                converts.append((name, convert))

        def converted(record: dict[str, Any]) -> dict[str, Any]:
            return record | {name: convert(record[name]) for name, convert in converts}

        return T.StructType(fields), converted if converts else None


def _same(value: Any) -> Any:
    return value


def _branch(kind: Any) -> tuple[str, str]:
    """Return a type's kind, and its name if it is a named type."""
    if isinstance(kind, str):
        return (kind, "") if kind in PLAIN or kind == "null" else ("record", kind)
    if isinstance(kind["type"], dict):
        return _branch(kind["type"])
    return kind["type"], kind["name"] if kind["type"] in NAMED else ""


def _choices(kinds: list[Any], at: str) -> list[Any]:
    """Return the types of a union without null, and without numbers that another of its types holds, too."""
    held = [kind for kind in kinds if _branch(kind)[0] != "null"]
    branches = {_branch(kind)[0]: kind for kind in held}
    for wide, narrow in NARROWER.items():
        if wide in branches and narrow in branches:
            if any(isinstance(branches[it], dict) and "logicalType" in branches[it] for it in (wide, narrow)):
                raise ConfigError(
                    f"Avro schema: {at} can't be a column: a union of {narrow} and {wide}, not both plain"
                )
            held.remove(branches[narrow])
    return held


def _has_choice(schema: Any) -> bool:
    """Tell whether a schema has a union of several types."""
    if isinstance(schema, list) and sum(_branch(part)[0] != "null" for part in schema) > 1:
        return True
    return any(_has_choice(part) for part in _parts(schema))


def _json_text(value: Any) -> str:
    """Return a value as JSON: bytes in Base64, numbers that JSON has not as texts, logical types as plain numbers."""
    return json.dumps(_as_json(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):  # a named type and its value
        return _as_json(value[1])
    if isinstance(value, dict):
        return {key: _as_json(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_as_json(held) for held in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _decimal(schema: Any, at: str) -> tuple[T.DataType, Convert | None]:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if not 0 < precision <= 38:
        raise ConfigError(f"Avro schema: {at} can't be a column: a decimal of {precision} digits")
    context = Context(prec=precision)

    def convert(unscaled: bytes) -> Decimal:
        return Decimal(int.from_bytes(unscaled, signed=True)).scaleb(-scale, context)

    return T.DecimalType(precision, scale), convert
