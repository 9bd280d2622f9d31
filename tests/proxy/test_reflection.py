"""Reflection by gRPC's own client: it can build every message from the answers."""

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from firearrow.proxy import grpcmessages as m
from firearrow.proxy.reflection import Reflection
from tests.proxy.channels import Client, serving

V1, V1ALPHA = (f"/grpc.reflection.{it}.ServerReflection/ServerReflectionInfo" for it in ("v1", "v1alpha"))
MESSAGING = "apache.rocketmq.v2.MessagingService"
NOT_FOUND, INVALID_ARGUMENT = 5, 3


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(Reflection([MESSAGING]).methods()) as client:
        yield client


def answers(client: Client, *requests: m.ServerReflectionRequest, path: str = V1) -> list[m.ServerReflectionResponse]:
    return client.dialogue(path, list(requests), m.ServerReflectionResponse)


@pytest.mark.parametrize("path", [V1, V1ALPHA], ids=["v1", "v1alpha"])
def test_both_versions_list_the_services(client: Client, path: str) -> None:
    request = m.ServerReflectionRequest(host="here", list_services="*")
    (answer,) = answers(client, request, path=path)
    listed = [it.name for it in answer.list_services_response.service]
    assert listed == [MESSAGING, "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]
    assert answer.valid_host == "here"
    assert answer.original_request == request


@pytest.mark.parametrize(
    "symbol",
    [
        MESSAGING,
        f"{MESSAGING}.SendMessage",
        "apache.rocketmq.v2.SendMessageRequest",
        "apache.rocketmq.v2.SendMessageRequest.messages",
    ],
)
def test_a_symbol_is_answered_with_its_file_and_all_imports(client: Client, symbol: str) -> None:
    (answer,) = answers(client, m.ServerReflectionRequest(file_containing_symbol=symbol))
    received = answer.file_descriptor_response.file_descriptor_proto
    files = {file.name: file for file in map(FileDescriptorProto.FromString, received)}
    assert next(iter(files)) == "apache/rocketmq/v2/service.proto"
    pool = DescriptorPool()
    for name in sorted(files, key=lambda name: (not name.startswith("google"), "service" in name)):
        pool.Add(files[name])
    assert len(pool.FindServiceByName(MESSAGING).methods) == 17


def test_one_stream_takes_several_questions(client: Client) -> None:
    name = "google/protobuf/duration.proto"
    questions = [
        m.ServerReflectionRequest(file_by_filename=name),
        m.ServerReflectionRequest(all_extension_numbers_of_type="apache.rocketmq.v2.Message"),
        m.ServerReflectionRequest(file_by_filename="no.proto"),
        m.ServerReflectionRequest(file_containing_symbol="apache.rocketmq.v2.MessagingService.Sned"),
        m.ServerReflectionRequest(file_containing_extension=m.ExtensionRequest(containing_type="A")),
        m.ServerReflectionRequest(all_extension_numbers_of_type="no.Message"),
        m.ServerReflectionRequest(),
    ]
    duration, extensions, *failed = answers(client, *questions)
    (received,) = duration.file_descriptor_response.file_descriptor_proto
    assert FileDescriptorProto.FromString(received).name == name
    assert extensions.all_extension_numbers_response.base_type_name == "apache.rocketmq.v2.Message"
    codes = [answer.error_response.error_code for answer in failed]
    assert codes == [NOT_FOUND] * 4 + [INVALID_ARGUMENT]
