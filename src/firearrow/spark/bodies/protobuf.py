"""Bodies in Protocol Buffers: a message of a descriptor file (``protoc -o``) as columns.

A field that can be absent (``optional``, a message, or a member of ``oneof``) is null if it is; other fields have their
default. Unsigned numbers get a type that holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import types as T

from firearrow.errors import ConfigError
from firearrow.spark.bodies.bodies import Undecodable
from firearrow.spark.bodies.registry import require_frame

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import DecodeError, Message
except ImportError:
    raise ConfigError("Protobuf bodies need protobuf: pip install 'firearrow[bodies]'") from None

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

Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ProtoBodies:
    """Settings of a decoder: a descriptor file's bytes, and the full name of the message in it."""

    descriptors: bytes = field(repr=False)
    message: str
    framed: bool = False

    def fields(self) -> T.StructType:
        """Return the columns; raise ConfigError for a file or message that cannot be columns."""
        fields, _ = _structure(self._descriptor(), ())
        if not fields:
            raise ConfigError(f"Protobuf message {self.message!r} has no fields")
        return fields

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        """Return a function from a body to its value, which raises Undecodable for a body that has none."""
        descriptor = self._descriptor()
        of_bytes = message_factory.GetMessageClass(descriptor).FromString
        _, read = _structure(descriptor, ())
        frame = _indexes(descriptor)

        def decode(body: bytes) -> dict[str, Any]:
            if self.framed:
                _, behind = require_frame(body)
                if not behind.startswith(frame):
                    raise Undecodable(f"the body is another message than {self.message}")
                body = behind[len(frame) :]
            try:
                message = of_bytes(body)
                value: dict[str, Any] = read(message)
            except (DecodeError, ValueError, OverflowError) as error:
                raise Undecodable(f"the body is no {self.message}: {error}") from None
            if not message.IsInitialized():
                raise Undecodable(f"required fields of {self.message} are missing")
            return value

        return decode

    def _descriptor(self) -> Descriptor:
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(self.descriptors).file:
                pool.Add(file)
            return pool.FindMessageTypeByName(self.message)
        except (DecodeError, TypeError, ValueError) as error:
            raise ConfigError(f"Protobuf descriptors: {error}") from None
        except KeyError:
            raise ConfigError(f"Protobuf message {self.message!r} is not in the descriptors") from None


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
    if message.full_name in around:
        raise ConfigError(f"Protobuf message {message.full_name!r} contains itself: no column can")
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
        return _structure(part.message_type, around)
    if part.enum_type is not None:
        names = {number: value.name for number, value in part.enum_type.values_by_number.items()}
        return PLAIN[part.type], lambda number: names.get(number, str(number))
    return PLAIN[part.type], _same


def _same(value: Any) -> Any:
    return value


def _microseconds(timestamp: Any) -> int:
    return int(timestamp.seconds) * 1_000_000 + int(timestamp.nanos) // 1000
