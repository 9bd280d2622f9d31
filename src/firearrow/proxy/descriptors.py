"""Message classes and enums of the gRPC protocols, made from one file of descriptors when a name is first used.

The descriptors are in a private pool: the official Python client registers the same names in Protobuf's default pool,
and both must run in one process. So a `Timestamp` of this pool is another class than Protobuf's own; each module of
messages offers its `Timestamp` and `Duration`. `tools/write_protos.py` compiles the file from `proto/`.

Enums are `IntEnum`; the field of a message reads as a plain `int`, since a newer peer may send an unknown number.
"""

from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from firearrow.errors import MissingPackage
from firearrow.wire.grpc import CallFailed, Status

try:
    from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2
    from google.protobuf.descriptor import Descriptor, EnumDescriptor
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError, Message
    from google.protobuf.message_factory import GetMessageClass
except ImportError:
    raise MissingPackage("gRPC needs", "protobuf", "grpc") from None

AnyMessage = TypeVar("AnyMessage", bound=Message)

FILE: Final = Path(__file__).with_name("proto") / "descriptors.binpb"
WELL_KNOWN: Final = "google.protobuf"


@cache
def pool() -> DescriptorPool:
    """Return the pool with the descriptors of all protocols."""
    filled = DescriptorPool()
    for known in (duration_pb2, timestamp_pb2):
        filled.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for file in descriptor_pb2.FileDescriptorSet.FromString(FILE.read_bytes()).file:
        filled.AddSerializedFile(file.SerializeToString())
    return filled


def member(name: str, *packages: str) -> type[Message] | type[IntEnum]:
    """Return the message class or enum of a name in a protocol's packages; AttributeError if they have none."""
    for full_name in [f"{package}.{name}" for package in (*packages, WELL_KNOWN)]:
        try:
            return _message(pool().FindMessageTypeByName(full_name))
        except KeyError:
            pass
        try:
            return _enum(pool().FindEnumTypeByName(full_name))
        except KeyError:
            pass
    raise AttributeError(f"{packages[0]} has no message or enum {name}")


def parsed(kind: type[AnyMessage], received: bytes) -> AnyMessage:
    """Return a message that a client sent; CallFailed if the bytes are no message of the kind."""
    try:
        return kind.FromString(received)
    except DecodeError:
        raise CallFailed(Status.INTERNAL, f"the bytes are no {kind.__name__}") from None


def _message(descriptor: Descriptor) -> type[Message]:
    made = GetMessageClass(descriptor)
    for enum in descriptor.enum_types:
        setattr(made, enum.name, _enum(enum))
    return made


@cache
def _enum(descriptor: EnumDescriptor) -> type[IntEnum]:
    make: Any = IntEnum  # mypy would have the name as a literal
    made: type[IntEnum] = make(descriptor.name, [(value.name, value.number) for value in descriptor.values])
    return made
