"""gRPC's server reflection, which tells tools such as grpcurl the services and messages of the server.

Source: `grpc.reflection.v1.ServerReflection` and its older name in `v1alpha`, which differ in nothing else. A file is
answered with all files that it imports, as RocketMQ's server does.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

from firearrow.net.grpc import Call, Method
from firearrow.proxy import grpcmessages as m
from firearrow.proxy.descriptors import parsed, pool
from firearrow.wire.grpc import Status

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

SERVICES: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
METHOD: Final = "ServerReflectionInfo"


class Reflection:
    """Answers about the descriptors of all protocols; ``services`` (full names) are those that the server lists."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = sorted({*SERVICES, *services})

    def methods(self) -> dict[bytes, Method]:
        """Return the methods of both versions, by path."""
        method = Method(f"ServerReflection/{METHOD}", self._take, takes_stream=True)
        return {f"/{service}/{METHOD}".encode(): method for service in SERVICES}

    def _take(self, call: Call, message: bytes) -> None:
        call.ended = call.end
        request = parsed(m.ServerReflectionRequest, message)
        response = self._response(request)
        response.valid_host = request.host
        response.original_request.CopyFrom(request)
        call.send(response.SerializeToString())

    def _response(self, request: m.ServerReflectionRequest) -> m.ServerReflectionResponse:
        try:
            match request.WhichOneof("message_request"):
                case "file_by_filename":
                    return _files(pool().FindFileByName(request.file_by_filename))
                case "file_containing_symbol":
                    return _files(_file_with(request.file_containing_symbol))
                case "all_extension_numbers_of_type":
                    return _no_extensions(request.all_extension_numbers_of_type)
                case "file_containing_extension":
                    return _failed(Status.NOT_FOUND, "there are no extensions")
                case "list_services":
                    return self._list()
        except KeyError:
            return _failed(Status.NOT_FOUND, "there is no such file or symbol")
        return _failed(Status.INVALID_ARGUMENT, "the request asks for nothing")

    def _list(self) -> m.ServerReflectionResponse:
        services = m.ListServiceResponse(service=[m.ServiceResponse(name=name) for name in self._services])
        return m.ServerReflectionResponse(list_services_response=services)


def _file_with(symbol: str) -> FileDescriptor:
    """Return the file of a symbol, which may be a method, too; KeyError if there is none."""
    try:
        return pool().FindFileContainingSymbol(symbol)
    except KeyError:
        service, _, name = symbol.rpartition(".")
        methods = pool().FindServiceByName(service).methods_by_name
        return methods[name].containing_service.file


def _files(file: FileDescriptor) -> m.ServerReflectionResponse:
    files = m.FileDescriptorResponse(file_descriptor_proto=_with_imports(file.name))
    return m.ServerReflectionResponse(file_descriptor_response=files)


@cache
def _with_imports(name: str) -> list[bytes]:
    files: dict[str, bytes] = {}
    waiting = [pool().FindFileByName(name)]
    while waiting:
        file = waiting.pop()
        if file.name not in files:
            files[file.name] = file.serialized_pb
            waiting += file.dependencies
    return list(files.values())


def _no_extensions(message: str) -> m.ServerReflectionResponse:
    found = pool().FindMessageTypeByName(message)
    numbers = m.ExtensionNumberResponse(base_type_name=found.full_name)
    return m.ServerReflectionResponse(all_extension_numbers_response=numbers)


def _failed(status: Status, message: str) -> m.ServerReflectionResponse:
    error = m.ErrorResponse(error_code=status, error_message=message)
    return m.ServerReflectionResponse(error_response=error)
