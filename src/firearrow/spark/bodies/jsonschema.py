"""JSON Schema as Spark's types: the schemas that a registry has for bodies in JSON.

An object is a structure of its ``properties``, or a map if it has only ``additionalProperties``. A value of several
types, or of none, is the text of its JSON.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql import types as T

from firearrow.errors import ConfigError

PLAIN: Final[dict[object, T.DataType]] = {"integer": T.LongType(), "number": T.DoubleType(), "boolean": T.BooleanType()}


def struct_of(schema: str) -> T.StructType:
    """Return the fields of a schema's objects; raise ConfigError for any other schema."""
    try:
        root = json.loads(schema)
    except ValueError as error:
        raise ConfigError(f"JSON schema {schema!r}: {error}") from None
    found = _type(root, root, ())
    if not isinstance(found, T.StructType):
        raise ConfigError(f"JSON schema {schema!r}: must be of an object with properties")
    return found


def _type(schema: Any, root: Any, around: tuple[str, ...]) -> T.DataType:
    if not isinstance(schema, dict):
        return T.StringType()  # true: anything
    reference = schema.get("$ref")
    if reference is not None:
        if reference in around:
            raise ConfigError(f"JSON schema: {reference} contains itself: no column can")
        return _type(_referred(reference, root), root, (*around, reference))
    for several in ("oneOf", "anyOf"):
        held = [each for each in schema.get(several, ()) if each != {"type": "null"}]
        if len(held) == 1:
            return _type(held[0], root, around)
    kind = schema.get("type")
    if isinstance(kind, list):
        held = [each for each in kind if each != "null"]
        kind = held[0] if len(held) == 1 else None
    if kind == "array":
        return T.ArrayType(_type(schema.get("items"), root, around))
    if kind == "object" and schema.get("properties"):
        members = schema["properties"].items()
        return T.StructType([T.StructField(k, _type(it, root, around)) for k, it in members])
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return T.MapType(T.StringType(), _type(schema["additionalProperties"], root, around))
    return PLAIN.get(kind, T.StringType())


def _referred(reference: str, root: Any) -> Any:
    found = root
    try:
        anchor, *steps = reference.split("/")
        for step in steps:
            found = found[step.replace("~1", "/").replace("~0", "~")]
    except (LookupError, TypeError):
        anchor = ""
    if anchor != "#":
        raise ConfigError(f"JSON schema: {reference} is not in it")
    return found
