# Written by tools/write_protos.py
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Literal

from google.protobuf.internal import containers
from google.protobuf.message import Message as _Message

class HealthCheckRequest(_Message):
    service: str
    def __init__(self, *, service: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["service"]) -> None: ...

class HealthCheckResponse(_Message):
    class ServingStatus(IntEnum):
        UNKNOWN = 0
        SERVING = 1
        NOT_SERVING = 2
        SERVICE_UNKNOWN = 3

    status: int
    def __init__(self, *, status: int | None = None) -> None: ...
    def ClearField(self, field_name: Literal["status"]) -> None: ...

class ServerReflectionRequest(_Message):
    host: str
    file_by_filename: str
    file_containing_symbol: str
    file_containing_extension: Final[ExtensionRequest]
    all_extension_numbers_of_type: str
    list_services: str
    def __init__(
        self,
        *,
        host: str | None = None,
        file_by_filename: str | None = None,
        file_containing_symbol: str | None = None,
        file_containing_extension: ExtensionRequest | None = None,
        all_extension_numbers_of_type: str | None = None,
        list_services: str | None = None,
    ) -> None: ...
    def HasField(
        self,
        field_name: Literal[
            "file_by_filename",
            "file_containing_symbol",
            "file_containing_extension",
            "all_extension_numbers_of_type",
            "list_services",
            "message_request",
        ],
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "host",
            "file_by_filename",
            "file_containing_symbol",
            "file_containing_extension",
            "all_extension_numbers_of_type",
            "list_services",
            "message_request",
        ],
    ) -> None: ...
    def WhichOneof(
        self, oneof_group: Literal["message_request"]
    ) -> (
        Literal[
            "file_by_filename",
            "file_containing_symbol",
            "file_containing_extension",
            "all_extension_numbers_of_type",
            "list_services",
        ]
        | None
    ): ...

class ExtensionRequest(_Message):
    containing_type: str
    extension_number: int
    def __init__(self, *, containing_type: str | None = None, extension_number: int | None = None) -> None: ...
    def ClearField(self, field_name: Literal["containing_type", "extension_number"]) -> None: ...

class ServerReflectionResponse(_Message):
    valid_host: str
    original_request: Final[ServerReflectionRequest]
    file_descriptor_response: Final[FileDescriptorResponse]
    all_extension_numbers_response: Final[ExtensionNumberResponse]
    list_services_response: Final[ListServiceResponse]
    error_response: Final[ErrorResponse]
    def __init__(
        self,
        *,
        valid_host: str | None = None,
        original_request: ServerReflectionRequest | None = None,
        file_descriptor_response: FileDescriptorResponse | None = None,
        all_extension_numbers_response: ExtensionNumberResponse | None = None,
        list_services_response: ListServiceResponse | None = None,
        error_response: ErrorResponse | None = None,
    ) -> None: ...
    def HasField(
        self,
        field_name: Literal[
            "original_request",
            "file_descriptor_response",
            "all_extension_numbers_response",
            "list_services_response",
            "error_response",
            "message_response",
        ],
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "valid_host",
            "original_request",
            "file_descriptor_response",
            "all_extension_numbers_response",
            "list_services_response",
            "error_response",
            "message_response",
        ],
    ) -> None: ...
    def WhichOneof(
        self, oneof_group: Literal["message_response"]
    ) -> (
        Literal[
            "file_descriptor_response", "all_extension_numbers_response", "list_services_response", "error_response"
        ]
        | None
    ): ...

class FileDescriptorResponse(_Message):
    file_descriptor_proto: Final[containers.RepeatedScalarFieldContainer[bytes]]
    def __init__(self, *, file_descriptor_proto: Iterable[bytes] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["file_descriptor_proto"]) -> None: ...

class ExtensionNumberResponse(_Message):
    base_type_name: str
    extension_number: Final[containers.RepeatedScalarFieldContainer[int]]
    def __init__(self, *, base_type_name: str | None = None, extension_number: Iterable[int] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["base_type_name", "extension_number"]) -> None: ...

class ListServiceResponse(_Message):
    service: Final[containers.RepeatedCompositeFieldContainer[ServiceResponse]]
    def __init__(self, *, service: Iterable[ServiceResponse] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["service"]) -> None: ...

class ServiceResponse(_Message):
    name: str
    def __init__(self, *, name: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["name"]) -> None: ...

class ErrorResponse(_Message):
    error_code: int
    error_message: str
    def __init__(self, *, error_code: int | None = None, error_message: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["error_code", "error_message"]) -> None: ...
