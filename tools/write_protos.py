"""Compile the `.proto` files of the gRPC proxy to one file of descriptors, and write the stubs of its message modules.

`tests/proxy/test_descriptors.py` checks that the files are up to date. The compiler comes with grpcio-tools.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from textwrap import indent

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).parent.parent
PROXY = ROOT / "src" / "firearrow" / "proxy"
PROTO = PROXY / "proto"
COMPILED = PROTO / "descriptors.binpb"
OTLP = "opentelemetry.proto"
STUBS = {
    "messages": ["apache.rocketmq.v2"],
    "grpcmessages": ["grpc.health.v1", "grpc.reflection.v1"],
    "otlpmessages": [f"{OTLP}.{it}.v1" for it in ("collector.metrics", "metrics", "common", "resource")],
}
WELL_KNOWN = (duration_pb2, timestamp_pb2)

F = FieldDescriptorProto
PYTHON_TYPES: dict[int, str] = {F.TYPE_STRING: "str", F.TYPE_BYTES: "bytes", F.TYPE_BOOL: "bool"}
PYTHON_TYPES |= {F.TYPE_DOUBLE: "float", F.TYPE_FLOAT: "float"}  # all others, also enums, are int

HEAD = """\
# Written by tools/write_protos.py
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, Literal

from google.protobuf.internal import containers, well_known_types
from google.protobuf.message import Message as _Message
"""


def compiled() -> FileDescriptorSet:
    """Return the descriptors of all `.proto` files."""
    from grpc_tools import protoc

    sources = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))
    with tempfile.NamedTemporaryFile() as target:
        known = files("grpc_tools").joinpath("_proto")
        status = protoc.main(["protoc", f"-I{PROTO}", f"-I{known}", f"-o{target.name}", *sources])
        if status:
            sys.exit(f"protoc ends with {status}")
        return FileDescriptorSet.FromString(Path(target.name).read_bytes())


def stub(packages: list[str], found: FileDescriptorSet) -> str:
    """Return the stub of a module with the messages of some packages, and Protobuf's well-known ones that they use."""
    mine = [file for file in found.file if file.package in packages]
    imported = {name for file in mine for name in file.dependency}
    prefixes = [f".{package}." for package in [*packages, "google.protobuf"]]
    parts = [HEAD]
    for known in (it for it in WELL_KNOWN if it.DESCRIPTOR.name in imported):
        (message,) = known.DESCRIPTOR.message_types_by_name.values()
        proto = DescriptorProto()
        message.CopyToProto(proto)
        parts.append(_message(proto, prefixes, f"_Message, well_known_types.{proto.name}"))
    for file in mine:
        parts += map(_enum, file.enum_type)
        parts += [_message(it, prefixes) for it in file.message_type]
    return _formatted("\n".join(parts))


def _enum(enum: EnumDescriptorProto) -> str:
    values = "".join(f"    {value.name} = {value.number}\n" for value in enum.value)
    return f"class {enum.name}(IntEnum):\n{values}"


def _message(message: DescriptorProto, prefixes: list[str], bases: str = "_Message") -> str:
    maps = {it.name: it for it in message.nested_type if it.options.map_entry}
    inner = [_message(it, prefixes) for it in message.nested_type if it.name not in maps]
    inner += map(_enum, message.enum_type)
    types = {it.name: _types(it, maps, prefixes) for it in message.field}
    lines = [f"{name}: {attribute}\n" for name, (attribute, _) in types.items()]
    if types:
        arguments = ", ".join(f"{name}: {given} | None = None" for name, (_, given) in types.items())
        lines.append(f"def __init__(self, *, {arguments}) -> None: ...\n")
    lines += _presence(message)
    return f"class {message.name}({bases}):\n" + indent("".join([*inner, *lines]) or "...\n", "    ")


def _types(field: FieldDescriptorProto, maps: dict[str, DescriptorProto], prefixes: list[str]) -> tuple[str, str]:
    """Return the types of an attribute and of the constructor's argument."""
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = (_type(it, prefixes) for it in entry.field)
        container = "MessageMap" if entry.field[1].type == F.TYPE_MESSAGE else "ScalarMap"
        return f"Final[containers.{container}[{key}, {value}]]", f"Mapping[{key}, {value}]"
    one = _type(field, prefixes)
    is_message = field.type == F.TYPE_MESSAGE
    if field.label == F.LABEL_REPEATED:
        container = "RepeatedCompositeFieldContainer" if is_message else "RepeatedScalarFieldContainer"
        return f"Final[containers.{container}[{one}]]", f"Iterable[{one}]"
    return f"Final[{one}]" if is_message else one, one


def _type(field: FieldDescriptorProto, prefixes: list[str]) -> str:
    if field.type != F.TYPE_MESSAGE:
        return PYTHON_TYPES.get(field.type, "int")
    (name,) = (field.type_name.removeprefix(it) for it in prefixes if field.type_name.startswith(it))
    return name


def _presence(message: DescriptorProto) -> Iterator[str]:
    """Yield the methods that take the name of a field or of a oneof."""
    groups: dict[str, list[str]] = {}
    names = []
    for field in message.field:
        if field.HasField("oneof_index"):
            groups.setdefault(message.oneof_decl[field.oneof_index].name, []).append(field.name)
        if field.label != F.LABEL_REPEATED and (field.type == F.TYPE_MESSAGE or field.HasField("oneof_index")):
            names.append(field.name)
    oneofs = {name: fields for name, fields in groups.items() if not name.startswith("_")}
    if names:
        yield f"def HasField(self, field_name: {_literal([*names, *oneofs])}) -> bool: ...\n"
    if message.field:
        every = [it.name for it in message.field]
        yield f"def ClearField(self, field_name: {_literal([*every, *oneofs])}) -> None: ...\n"
    for number, (name, fields) in enumerate(oneofs.items()):
        assert number == 0, f"{message.name} has several oneofs: WhichOneof needs overloads"
        yield f"def WhichOneof(self, oneof_group: {_literal([name])}) -> {_literal(fields)} | None: ...\n"


def _literal(names: list[str]) -> str:
    return f"Literal[{', '.join(map(repr, names))}]"


def _formatted(text: str) -> str:
    """Return the text formatted, without imports that it does not use."""
    for words in (["check", "--fix-only", "--select", "F401"], ["format"]):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", "messages.pyi", "-"]
        text = subprocess.run(command, cwd=ROOT, input=text, check=True, capture_output=True, text=True).stdout
    return text


if __name__ == "__main__":
    everything = compiled()
    COMPILED.write_bytes(everything.SerializeToString(deterministic=True))
    for module, packages in STUBS.items():
        (PROXY / f"{module}.pyi").write_text(stub(packages, everything), encoding="utf-8")
