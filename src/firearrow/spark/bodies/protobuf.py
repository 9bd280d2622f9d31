"""Bodies in Protocol Buffers: a message of a descriptor file (``protoc -o``), or of a registry's schema, as columns.

A field that can be absent (``optional``, a message, or a member of ``oneof``) is null if it is; other fields have their
default. Unsigned numbers get a type that holds all of them. A message that contains itself is the text of its JSON, as
Protobuf defines it, and so are ``google.protobuf.Struct``, ``Value`` and ``ListValue``.

Behind the frame of a registry, a body names its message:

- Confluent: the message's place in its file, see ``_indexes``
- Apicurio: a message with the name as field 1, and its size before it
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import types as T

from firearrow.errors import ConfigError, MissingPackage
from firearrow.spark.bodies.bodies import Undecodable
from firearrow.spark.bodies.registry import PROTOBUF, RegisteredSchema, Registry

try:
    from google.protobuf import (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        descriptor_pool,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        json_format,
        message_factory,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import DecodeError, Message
except ImportError:
    raise MissingPackage("Protobuf bodies need", "protobuf", "bodies") from None

F: Final = FieldDescriptor
INT, LONG = T.IntegerType(), T.LongType()
PLAIN: Final[dict[int, T.DataType]] = {
    F.TYPE_DOUBLE: T.DoubleType(), F.TYPE_FLOAT: T.FloatType(), F.TYPE_BOOL: T.BooleanType(),
    F.TYPE_STRING: T.StringType(), F.TYPE_ENUM: T.StringType(), F.TYPE_BYTES: T.BinaryType(),
    F.TYPE_INT32: INT, F.TYPE_SINT32: INT, F.TYPE_SFIXED32: INT,
    F.TYPE_INT64: LONG, F.TYPE_SINT64: LONG, F.TYPE_SFIXED64: LONG,
    F.TYPE_UINT32: LONG, F.TYPE_FIXED32: LONG,
    F.TYPE_UINT64: T.DecimalType(20), F.TYPE_FIXED64: T.DecimalType(20),
}  # fmt: skip
TIMESTAMP: Final = "google.protobuf.Timestamp"
OF_ANY_SHAPE: Final = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
COMPILED: Final = (
    source_context_pb2, any_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2,
    struct_pb2, timestamp_pb2, wrappers_pb2,
)  # fmt: skip

# Errors that protobuf raises for bytes that are no message, and for messages that no column can hold.
NO_MESSAGE: Final = (DecodeError, ValueError, OverflowError, TypeError, json_format.Error, RecursionError)

Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ProtoBodies:
    """Settings of a decoder: a descriptor file's bytes, and the full name of the message in it.

    With ``registry``, bodies begin with its frame. ``of_registry`` says that the descriptors come from it, too. A body
    may then be written with another schema, whose messages have other places.
    """

    descriptors: bytes = field(repr=False)
    message: str
    registry: Registry | None = None
    of_registry: bool = False

    def fields(self) -> T.StructType:
        """Return the columns; raise ConfigError for a file or message that cannot be columns."""
        fields, _ = _structure(_descriptor(self.descriptors, self.message), ())
        if not fields:
            raise ConfigError(f"Protobuf message {self.message!r} has no fields")
        return fields

    def identities(self) -> Mapping[str, Sequence[str | int]]:
        """Return the number of each field."""
        return {part.name: (part.number,) for part in _descriptor(self.descriptors, self.message).fields}

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        """Return a function from a body to its value, which raises Undecodable for a body that has none."""
        descriptor = _descriptor(self.descriptors, self.message)
        of_bytes = message_factory.GetMessageClass(descriptor).FromString
        _, read = _structure(descriptor, ())
        places: dict[int, bytes | Undecodable] = {}
        place = _indexes(descriptor)

        def message_in(body: bytes) -> bytes:
            """Return the bytes behind the frame and behind the name of the message."""
            assert self.registry is not None
            schema_id, behind = self.registry.unframed(body)
            if self.of_registry and schema_id not in places:
                places[schema_id] = _written_place(self.registry, schema_id, self.message)
            start = places.get(schema_id, place)
            if isinstance(start, Undecodable):
                raise Undecodable(str(start))
            if self.registry.apicurio:
                name, found = _named(behind)
                is_same = name in {self.message, descriptor.name} or (not name and start == b"\0")
            else:
                is_same, found = behind.startswith(start), behind[len(start) :]
            if not is_same:
                raise Undecodable(f"the body is another message than {self.message}")
            return found

        def decode(body: bytes) -> dict[str, Any]:
            try:
                message = of_bytes(body if self.registry is None else message_in(body))
                value: dict[str, Any] = read(message)
            except NO_MESSAGE as error:
                raise Undecodable(f"the body is no {self.message}: {error}") from None
            if not message.IsInitialized():
                raise Undecodable(f"required fields of {self.message} are missing")
            return value

        return decode


def descriptors_of(schema: RegisteredSchema) -> bytes:
    """Return a registry's schema, and the files that it imports, as the bytes of a descriptor file.

    The schema's own file is the last one. Raises ConfigError if the registry has no descriptors, or lacks a file.
    """
    known = _known_files()
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def add(name: str, file: descriptor_pb2.FileDescriptorProto) -> None:
        file.name = name  # registries call each of them "default"
        for imported in file.dependency:
            if imported in known and imported not in files:
                add(imported, known[imported])
            if imported not in files:
                raise ConfigError(f"Protobuf schema {schema.schema_id}: the registry lacks the import {imported!r}")
        files[name] = file

    for name, text in schema.references:
        add(name, _file_of(text, schema.schema_id))
    add(f"schema-{schema.schema_id}", _file_of(schema.text, schema.schema_id))
    return descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString()


def of_registry(registry: Registry, schema: RegisteredSchema, message: str | None) -> ProtoBodies:
    """Return the decoder of a message of a registry's schema, by default the first one; raise as ``descriptors_of``."""
    descriptors = descriptors_of(schema)
    file = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
    if not file.message_type:
        raise ConfigError(f"Protobuf schema {schema.schema_id} has no message")
    chosen = message or f"{file.package}.{file.message_type[0].name}".lstrip(".")
    if _descriptor(descriptors, chosen).file.name != file.name:
        raise ConfigError(
            f"Protobuf message {chosen!r} is not in schema {schema.schema_id}, but in one that it imports"
        )
    return ProtoBodies(descriptors, chosen, registry, of_registry=True)


def _known_files() -> dict[str, descriptor_pb2.FileDescriptorProto]:
    """Return the files that compilers and registries know, so that no registry serves them."""
    files = [descriptor_pb2.FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb) for each in COMPILED]
    files.append(descriptor_pb2.FileDescriptorProto(name="confluent/meta.proto"))  # options that no column needs
    decimal = descriptor_pb2.FileDescriptorProto(name="confluent/type/decimal.proto", package="confluent.type")
    message = decimal.message_type.add(name="Decimal")
    for number, (name, kind) in enumerate(
        (("value", F.TYPE_BYTES), ("precision", F.TYPE_UINT32), ("scale", F.TYPE_INT32)), 1
    ):
        message.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    return {file.name: file for file in [*files, decimal]}


def _file_of(text: str, schema_id: int) -> descriptor_pb2.FileDescriptorProto:
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        raise ConfigError(
            f"Protobuf schema {schema_id}: the registry has only its source; give a descriptor file"
        ) from None


def _descriptor(descriptors: bytes, message: str) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except (DecodeError, TypeError, ValueError) as error:
        raise ConfigError(f"Protobuf descriptors: {error}") from None
    except KeyError:
        raise ConfigError(f"Protobuf message {message!r} is not in the descriptors") from None


def _written_place(registry: Registry, schema_id: int, message: str) -> bytes | Undecodable:
    """Return the place of a message in the schema that a body names, or the reason why the body does not decode."""
    try:
        schema = registry.written(schema_id, PROTOBUF)
        found = _descriptor(descriptors_of(schema), message)
    except Undecodable as error:
        return error
    except ConfigError as error:
        return Undecodable(str(error))
    if found.file.name != f"schema-{schema_id}":
        return Undecodable(f"the body is another message than {message}")
    return _indexes(found)


def _named(behind: bytes) -> tuple[str, bytes]:
    """Return the message's name that Apicurio's serializers write, and the bytes behind it."""
    size, start = _number(behind, 0)
    named, rest = behind[start : start + size], behind[start + size :]
    if not size:
        return "", rest
    length, begin = _number(named, 1)
    if named[0] != 0x0A or len(named) != size or begin + length != size:
        raise ValueError("it does not begin with the name of its message")
    return named[begin:].decode(), rest


def _number(data: bytes, start: int) -> tuple[int, int]:
    """Return a varint, and the place behind it."""
    found = 0
    for place, byte in enumerate(data[start : start + 5]):
        found |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return found, start + place + 1
    raise ValueError("it ends within a number")


def _indexes(descriptor: Descriptor) -> bytes:
    """Return the place of a message in its file, as Confluent's serializers write it behind a schema's id.

    It is the number of steps and each step's index, as signed varints; the first message of a file is a single 0.
    """
    steps: list[int] = []
    at: Descriptor | None = descriptor
    while at is not None:
        around = at.containing_type
        beside = around.nested_types if around else at.file.message_types_by_name.values()
        steps.insert(0, [each.full_name for each in beside].index(at.full_name))
        at = around
    return b"\0" if steps == [0] else b"".join(map(_varint, [len(steps), *steps]))


def _varint(number: int) -> bytes:
    """A number of 0 or more in zigzag: twice the number, seven bits a byte, lowest first."""
    rest, found = 2 * number, b""
    while rest > 0x7F:
        found += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return found + bytes([rest])


def given_descriptors(path: str) -> bytes:
    """Give the bytes of a descriptor file."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"Protobuf descriptors {path!r}: {error}") from None


def _structure(message: Descriptor, around: tuple[str, ...]) -> tuple[T.StructType, Read]:
    """Return the columns of a message, and the function that reads them."""
    fields: list[T.StructField] = []
    reads: list[tuple[str, Read]] = []
    for part in message.fields:
        kind, read = _field(part, (*around, message.full_name))
        fields.append(T.StructField(part.name, kind))
        reads.append((part.name, read))

    def read_all(value: Message) -> dict[str, Any]:
        return {name: read(value) for name, read in reads}

    return T.StructType(fields), read_all


def _field(part: FieldDescriptor, around: tuple[str, ...]) -> tuple[T.DataType, Read]:
    name = part.name
    if part.message_type is not None and part.message_type.GetOptions().map_entry:
        by_name = part.message_type.fields_by_name
        key, read_key = _single(by_name["key"], around)
        held, read_held = _single(by_name["value"], around)
        return T.MapType(key, held), lambda message: [
            (read_key(key), read_held(it)) for key, it in getattr(message, name).items()
        ]
    kind, read = _single(part, around)
    if part.is_repeated:
        return T.ArrayType(kind), lambda message: [read(it) for it in getattr(message, name)]
    if part.has_presence:
        return (kind, lambda message: read(getattr(message, name)) if message.HasField(name) else None)
    return kind, lambda message: read(getattr(message, name))


def _single(part: FieldDescriptor, around: tuple[str, ...]) -> tuple[T.DataType, Read]:
    if part.message_type is not None:
        if part.message_type.full_name == TIMESTAMP:
            return T.TimestampType(), _microseconds
        if part.message_type.full_name in {*around, *OF_ANY_SHAPE}:
            return T.StringType(), _json_text
        return _structure(part.message_type, around)
    if part.enum_type is not None:
        names = {number: value.name for number, value in part.enum_type.values_by_number.items()}
        return PLAIN[part.type], lambda number: names.get(number, str(number))
    return PLAIN[part.type], _same


def _same(value: Any) -> Any:
    return value


def _json_text(message: Message) -> str:
    pool: Any = message.DESCRIPTOR.file.pool
    value = json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _microseconds(timestamp: Any) -> int:
    return int(timestamp.seconds) * 1_000_000 + int(timestamp.nanos) // 1000
