"""Decoders of bodies to columns of Arrow, for the writers of typed tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from firearrow.errors import ConfigError
from firearrow.lake.fields import fields_of
from firearrow.lake.jsonbodies import json_values
from firearrow.lake.spec import TableSpec
from firearrow.spark.bodies.bodies import Bodies, decoded_values
from firearrow.spark.bodies.registry import FRAME, JSON, Registry

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class DecodedBodies:
    """Values of bodies, null where one does not decode, and the reasons of those, by their place."""

    values: pa.StructArray
    reasons: dict[int, str]


class BodyDecoder(Protocol):
    """Decoder of bodies. Can be pickled."""

    def fields(self) -> pa.Schema:
        """Return the columns."""

    def decode(self, bodies: pa.BinaryArray) -> DecodedBodies:
        """Decode bodies; null has no value, like a body that does not decode."""


@dataclass(frozen=True)
class JsonBodies:
    """Decoder of JSON. With ``framed``, bodies begin with the id of their schema in a registry."""

    schema: pa.Schema
    framed: bool = False

    def fields(self) -> pa.Schema:
        """Return the columns."""
        return self.schema

    def decode(self, bodies: pa.BinaryArray) -> DecodedBodies:
        """Decode bodies."""
        if not self.framed:
            return DecodedBodies(*json_values(self.schema, bodies))
        has_frame = pc.and_(pc.starts_with(bodies, b"\0"), pc.greater_equal(pc.binary_length(bodies), FRAME.size))
        values, reasons = json_values(self.schema, pc.binary_replace_slice(bodies, 0, FRAME.size, b""))
        for number in pc.indices_nonzero(pc.invert(has_frame)).to_pylist():
            reasons[number] = "the body does not begin with the id of a schema"
        return DecodedBodies(pc.if_else(has_frame, values, None), reasons)


@dataclass(frozen=True)
class SingleBodies:
    """Decoder of bodies in Avro or Protobuf."""

    bodies: Bodies

    def fields(self) -> pa.Schema:
        """Return the columns."""
        return _arrow_fields(self.bodies.fields())

    def decode(self, bodies: pa.BinaryArray) -> DecodedBodies:
        """Decode bodies."""
        values, reasons = decoded_values(self.bodies, pa.struct(list(self.fields())), bodies)
        for number in pc.indices_nonzero(bodies.is_null()).to_pylist():
            reasons[number] = "there is no body"
        return DecodedBodies(values, reasons)


def decoder_of(spec: TableSpec) -> BodyDecoder:
    """Return the decoder of a table, with the newest schema of its registry.

    Raises ConfigError for a schema that cannot be columns or that is not there.
    """
    registry = Registry(spec.registry) if spec.registry else None
    if spec.bodies == "json":
        framed = registry is not None
        if registry is not None and not spec.schema:
            return JsonBodies(_of_json_schema(registry.latest(spec.subject, JSON)), framed)
        text = _text_of(spec.schema)
        return JsonBodies(_of_json_schema(text) if text.lstrip().startswith("{") else fields_of(text), framed)
    if spec.bodies == "avro":
        from firearrow.spark.bodies.avro import AvroBodies, given_schema  # needs fastavro

        if spec.schema:
            return SingleBodies(AvroBodies(given_schema(spec.schema), registry))
        assert registry is not None
        return SingleBodies(AvroBodies(registry.latest(spec.subject), registry))
    from firearrow.spark.bodies.protobuf import ProtoBodies, given_descriptors  # needs protobuf

    return SingleBodies(ProtoBodies(given_descriptors(spec.schema), spec.message, framed=registry is not None))


def _text_of(schema: str) -> str:
    """Return a schema that is given as text or as the name of a file."""
    if not schema.endswith((".json", ".txt", ".schema")):
        return schema
    try:
        return Path(schema).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"schema {schema!r}: {error}") from None


def _of_json_schema(text: str) -> pa.Schema:
    from firearrow.spark.bodies.jsonschema import struct_of

    return _arrow_fields(struct_of(text))


def _arrow_fields(fields: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(fields, timezone="UTC")
