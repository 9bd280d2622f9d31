"""Decoders of bodies to columns of Arrow, for the writers of typed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from firearrow.errors import ConfigError
from firearrow.lake.fields import fields_of
from firearrow.lake.jsonbodies import json_values
from firearrow.lake.spec import TableSpec
from firearrow.spark.bodies.bodies import Bodies, decoded_values
from firearrow.spark.bodies.registry import AVRO, JSON, PROTOBUF, SCHEMAS_KEPT_MAX, RegisteredSchema, Registry

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

    def identities(self) -> Mapping[str, Sequence[str | int]]:
        """Return what identifies each field beside its name: the names that it had (Avro), its number (Protobuf)."""

    def decode(self, bodies: pa.BinaryArray) -> DecodedBodies:
        """Decode bodies; null has no value, like a body that does not decode."""


@dataclass(frozen=True)
class JsonBodies:
    """Decoder of JSON. With ``frame_bytes``, bodies begin with a frame that names their schema in a registry."""

    schema: pa.Schema
    frame_bytes: int = 0

    def fields(self) -> pa.Schema:
        """Return the columns."""
        return self.schema

    def identities(self) -> Mapping[str, Sequence[str | int]]:
        """Return nothing: JSON knows only names."""
        return {}

    def decode(self, bodies: pa.BinaryArray) -> DecodedBodies:
        """Decode bodies."""
        size = self.frame_bytes
        if not size:
            return DecodedBodies(*json_values(self.schema, bodies))
        has_frame = pc.and_(pc.starts_with(bodies, b"\0"), pc.greater_equal(pc.binary_length(bodies), size))
        values, reasons = json_values(self.schema, pc.binary_replace_slice(bodies, 0, size, b""))
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

    def identities(self) -> Mapping[str, Sequence[str | int]]:
        """Return what identifies each field beside its name."""
        return self.bodies.identities()

    def decode(self, bodies: pa.BinaryArray) -> DecodedBodies:
        """Decode bodies."""
        values, reasons = decoded_values(self.bodies, pa.struct(list(self.fields())), bodies)
        for number in pc.indices_nonzero(bodies.is_null()).to_pylist():
            reasons[number] = "there is no body"
        return DecodedBodies(values, reasons)


@dataclass(frozen=True)
class RegisteredBodies:
    """Decoder with the newest schema of a subject in a registry, which was ``schema_id`` when the decoder was made.

    A body that is written with a newer one does not decode: its new fields would be lost. It is decoded again once the
    table has their columns.
    """

    decoder: BodyDecoder
    registry: Registry
    subject: str
    kind: str
    schema_id: int

    def fields(self) -> pa.Schema:
        """Return the columns."""
        return self.decoder.fields()

    def identities(self) -> Mapping[str, Sequence[str | int]]:
        """Return what identifies each field beside its name."""
        return self.decoder.identities()

    def decode(self, bodies: pa.BinaryArray) -> DecodedBodies:
        """Decode bodies."""
        found = self.decoder.decode(bodies)
        frames = pc.binary_slice(bodies, 0, 1 + self.registry.id_bytes)
        newer = self._perhaps_newer({frame for frame in frames.unique().to_pylist() if frame is not None})
        if not newer:
            return found
        is_newer = pc.is_in(frames, pa.array(sorted(newer), frames.type))
        reasons = dict.fromkeys(pc.indices_nonzero(is_newer).to_pylist(), "the body has a newer schema than the table")
        return DecodedBodies(pc.if_else(is_newer, None, found.values), found.reasons | reasons)

    def _perhaps_newer(self, frames: set[bytes]) -> set[bytes]:
        """Return the frames of bodies whose schemas can be newer than the columns.

        Ids do not tell the order, because a registry gives the same schema the same id in each subject. But while the
        decoder's schema still is the newest one, the schemas of all bodies that are stored already are older.
        """
        own = b"\0" + self.schema_id.to_bytes(self.registry.id_bytes)
        older = _older_frames(self.registry, self.subject, self.schema_id)
        others = {frame for frame in frames if len(frame) == len(own) and frame[0] == 0} - {own} - older
        if others and self.registry.latest(self.subject, self.kind).schema_id != self.schema_id:
            return others
        if len(older) + len(others) > SCHEMAS_KEPT_MAX:  # most of them are no ids at all
            older.clear()
        older |= others
        return set()


@lru_cache(maxsize=SCHEMAS_KEPT_MAX)
def _older_frames(registry: Registry, subject: str, schema_id: int) -> set[bytes]:
    """Return the frames that are known to have older schemas. The set grows in each worker."""
    return set()


def decoder_of(spec: TableSpec) -> BodyDecoder:
    """Return the decoder of a table, with the newest schema of its registry.

    Raises ConfigError for a schema that cannot be columns or that is not there.
    """
    registry = Registry(spec.registry) if spec.registry else None
    if registry is None or spec.schema:
        return _of_given_schema(spec, registry)
    kind = {"json": JSON, "avro": AVRO, "protobuf": PROTOBUF}[spec.bodies]
    schema = registry.latest(spec.subject, kind)
    return RegisteredBodies(_of_registered(spec, registry, schema), registry, spec.subject, kind, schema.schema_id)


def _of_given_schema(spec: TableSpec, registry: Registry | None) -> BodyDecoder:
    if spec.bodies == "json":
        text = _text_of(spec.schema)
        schema = _of_json_schema(RegisteredSchema(0, text)) if text.lstrip().startswith("{") else fields_of(text)
        return JsonBodies(schema, 0 if registry is None else 1 + registry.id_bytes)
    if spec.bodies == "avro":
        from firearrow.spark.bodies.avro import AvroBodies, given_schema  # needs fastavro

        return SingleBodies(AvroBodies(given_schema(spec.schema), registry))
    from firearrow.spark.bodies.protobuf import ProtoBodies, given_descriptors  # needs protobuf

    return SingleBodies(ProtoBodies(given_descriptors(spec.schema), spec.message, registry))


def _of_registered(spec: TableSpec, registry: Registry, schema: RegisteredSchema) -> BodyDecoder:
    if spec.bodies == "json":
        return JsonBodies(_of_json_schema(schema), 1 + registry.id_bytes)
    if spec.bodies == "avro":
        from firearrow.spark.bodies.avro import AvroBodies, self_contained  # needs fastavro

        return SingleBodies(AvroBodies(self_contained(schema), registry))
    from firearrow.spark.bodies.protobuf import of_registry  # needs protobuf

    return SingleBodies(of_registry(registry, schema, spec.message))


def _text_of(schema: str) -> str:
    """Return a schema that is given as text or as the name of a file."""
    if not schema.endswith((".json", ".txt", ".schema")):
        return schema
    try:
        return Path(schema).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"schema {schema!r}: {error}") from None


def _of_json_schema(schema: RegisteredSchema) -> pa.Schema:
    from firearrow.spark.bodies.jsonschema import struct_of_registered

    return _arrow_fields(struct_of_registered(schema))


def _arrow_fields(fields: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(fields, timezone="UTC")
