"""The shipped descriptors and stubs agree with their sources, and with those of RocketMQ's own client."""

from collections.abc import Iterator
from importlib import import_module

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from firearrow.proxy import descriptors
from tools.write_protos import COMPILED, PROXY, STUBS, compiled, stub


def shipped() -> FileDescriptorSet:
    return FileDescriptorSet.FromString(COMPILED.read_bytes())


def test_the_shipped_file_is_compiled_from_the_sources() -> None:
    assert shipped() == compiled(), "run `make protos`"


@pytest.mark.parametrize("module", STUBS)
def test_stubs_are_fresh(module: str) -> None:
    text = (PROXY / f"{module}.pyi").read_text(encoding="utf-8")
    assert text == stub(STUBS[module], shipped()), "run `make protos`"


@pytest.mark.parametrize("name", ["definition", "service"])
def test_messages_are_those_of_the_official_client(name: str) -> None:
    """Its descriptors are older: each of its fields and values is in ours, and some are only in ours."""
    from rocketmq.grpc_protocol import definition_pb2, service_pb2

    theirs = FileDescriptorProto()
    {"definition": definition_pb2, "service": service_pb2}[name].DESCRIPTOR.CopyToProto(theirs)
    (ours,) = (file for file in shipped().file if file.name == f"apache/rocketmq/v2/{name}.proto")
    known = set(facts(theirs))
    assert len(known) > 100
    assert known - set(facts(ours)) == set()


@pytest.mark.parametrize("name", ["collector/metrics/v1/metrics_service", "metrics/v1/metrics", "common/v1/common"])
def test_metrics_are_those_of_opentelemetry(name: str) -> None:
    """Fields that are left out are skipped by a reader; all others are the same."""
    name = f"opentelemetry/proto/{name}"
    theirs = FileDescriptorProto()
    import_module(f"{name.replace('/', '.')}_pb2").DESCRIPTOR.CopyToProto(theirs)
    (ours,) = (file for file in shipped().file if file.name == f"{name}.proto")
    assert set(facts(ours)) - set(facts(theirs)) == set()


def facts(file: FileDescriptorProto) -> Iterator[tuple[object, ...]]:
    """Yield the name, number, type and label of every field; of enums the values, of services the methods."""
    for message in file.message_type:
        yield from _facts_of(message, message.name)
    for enum in file.enum_type:
        yield from ((enum.name, value.name, value.number) for value in enum.value)
    for service in file.service:
        for method in service.method:
            streams = method.client_streaming, method.server_streaming
            yield service.name, method.name, method.input_type, method.output_type, *streams


def _facts_of(message: DescriptorProto, path: str) -> Iterator[tuple[object, ...]]:
    yield path, message.options.map_entry
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        shape = field.type, field.type_name, field.label, field.proto3_optional, oneof
        yield path, field.name, field.number, *shape
    for enum in message.enum_type:
        yield from ((path, enum.name, value.name, value.number) for value in enum.value)
    for inner in message.nested_type:
        yield from _facts_of(inner, f"{path}.{inner.name}")


def test_every_message_and_enum_is_there_by_its_name() -> None:
    for file in shipped().file:
        names = [*(it.name for it in file.message_type), *(it.name for it in file.enum_type)]
        assert [descriptors.member(name, file.package).__name__ for name in names] == names


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^apache\.rocketmq\.v2 has no message or enum Mesage$"):
        descriptors.member("Mesage", "apache.rocketmq.v2")
