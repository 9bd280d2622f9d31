"""JSON Schema as Spark's types: the schemas that a registry has for bodies in JSON.

An object is a structure of its ``properties``, or a map if it has only ``additionalProperties``. A value of several
types, or of none, is the text of its JSON, and so is a value whose schema contains itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urljoin

from pyspark.sql import types as T

from firearrow.errors import ConfigError
from firearrow.spark.bodies.registry import RegisteredSchema

PLAIN: Final[dict[object, T.DataType]] = {"integer": T.LongType(), "number": T.DoubleType(), "boolean": T.BooleanType()}
_ROOT: Final = ""  # name of the schema itself beside those that it refers to

Place = tuple[str, str]  # name of a schema, and a path in it


def struct_of(schema: str) -> T.StructType:
    """Return the fields of a schema's objects; raise ConfigError for any other schema."""
    return struct_of_registered(RegisteredSchema(0, schema))


def struct_of_registered(schema: RegisteredSchema) -> T.StructType:
    """Return the fields of the objects of a schema that may refer to others; raise as ``struct_of``."""
    roots = {name: _loaded(text) for name, text in (*schema.references, (_ROOT, schema.text))}
    found = _Types(roots).type_of(roots[_ROOT], _ROOT, ((_ROOT, ""),))
    if not isinstance(found, T.StructType):
        raise ConfigError(f"JSON schema {schema.text!r}: must be of an object with properties")
    return found


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"JSON schema {text!r}: {error}") from None


class _Types:
    """Types of a schema, and of those that it refers to, by their names."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._roots = roots

    def type_of(self, schema: Any, name: str, around: tuple[Place, ...]) -> T.DataType:
        """Return the type of a part of the schema ``name``. ``around`` are the places of the parts around it."""
        if not isinstance(schema, dict):
            return T.StringType()  # true: anything
        reference = schema.get("$ref")
        if reference is not None:
            place = self._place(str(reference), name)
            if place in around:
                return T.StringType()
            return self.type_of(self._part(place, reference), place[0], (*around, place))
        for several in ("oneOf", "anyOf"):
            held = [each for each in schema.get(several, ()) if each != {"type": "null"}]
            if len(held) == 1:
                return self.type_of(held[0], name, around)
        kind = schema.get("type")
        if isinstance(kind, list):
            held = [each for each in kind if each != "null"]
            kind = held[0] if len(held) == 1 else None
        if kind == "array":
            return T.ArrayType(self.type_of(schema.get("items"), name, around))
        if kind == "object" and schema.get("properties"):
            members = schema["properties"].items()
            return T.StructType([T.StructField(key, self.type_of(it, name, around)) for key, it in members])
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return T.MapType(T.StringType(), self.type_of(schema["additionalProperties"], name, around))
        return PLAIN.get(kind, T.StringType())

    def _place(self, reference: str, name: str) -> Place:
        """Return where a reference leads: its file is a name as it is, or relative to the ``$id`` of the schema."""
        file, _, path = reference.partition("#")
        root = self._roots[name]
        base = str(root.get("$id", "")) if isinstance(root, dict) else ""
        for known in (file, urljoin(base, file)):
            if known and known in self._roots:
                return known, path
        if file in {"", base}:
            return name, path
        by_id = {
            str(root["$id"]): name for name, root in self._roots.items() if isinstance(root, dict) and "$id" in root
        }
        found = by_id.get(file, by_id.get(urljoin(base, file)))
        if found is None:
            raise ConfigError(f"JSON schema: {reference} is not in it")
        return found, path

    def _part(self, place: Place, reference: str) -> Any:
        name, path = place
        found = self._roots[name]
        try:
            start, *steps = path.split("/")
            for step in steps:
                found = found[step.replace("~1", "/").replace("~0", "~")]
        except (LookupError, TypeError):
            start = "nowhere"
        if start:
            raise ConfigError(f"JSON schema: {reference} is not in it")
        return found
