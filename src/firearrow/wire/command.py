"""One remoting command, and a server's answer to one.

``Command`` is a command as received. Its ``ext`` (the wire's ``extFields``) is usually a plain ``dict[str, str]``. For
the few codes that make up nearly all traffic, it is already the typed header of ``wire.headers``, which ``wire.frame``
decodes in one step. ``fields_of`` returns the typed header in both cases. ``Response`` is the result of a processor;
the server adds opaque and serialisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from firearrow.errors import BrokerError
from firearrow.javanumbers import INT_MAX, INT_MIN
from firearrow.wire.codes import FLAG_ONEWAY, FLAG_RESPONSE, PROTOCOL_VERSION, ResponseCode

Int32 = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
Ext = TypeVar("Ext")
Header = TypeVar("Header", bound=msgspec.Struct)
FieldValue = str | int | bool

NO_FIELDS: Mapping[str, FieldValue] = {}


class Command(msgspec.Struct, Generic[Ext], gc=False):
    """A request or response as received (RocketMQ's ``RemotingCommand``).

    ``body`` and ``binary`` are not header fields: the frame reader sets them. Their wire names do not occur in a header
    that any client writes. ``admitted_by`` is no header field either. Access control puts an object there, which no
    peer can write. The server asks that object again if the answer takes more than a turn
    (``net.refusals.Admitted``).
    """

    code: Int32
    ext: Ext = msgspec.field(name="extFields")
    flag: Int32 = 0
    language: str | int | None = None
    opaque: Int32 = 0
    remark: str | None = None
    version: Int32 = 0
    body: bytes = msgspec.field(name="(body)", default=b"")
    binary: bool = msgspec.field(name="(binary)", default=False)
    admitted_by: Any = msgspec.field(name="(admitted)", default=None)

    @property
    def is_response(self) -> bool:
        """True if this is the answer to a request of ours."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """True if the peer wants no answer."""
        return bool(self.flag & FLAG_ONEWAY)


class Response(msgspec.Struct, gc=False):
    """Answer of a processor; the values of ``fields`` are written as text, as RocketMQ does."""

    code: int = 0
    remark: str | None = None
    fields: Mapping[str, FieldValue] = NO_FIELDS
    body: bytes = b""


class Placed(Response):
    """Answer to a send whose sender is in the same process: the place of the message, without the fields of a frame."""

    queue_offset: int = 0


def not_supported(code: int, reason: str = "") -> Response:
    """Answer a request of a code that is not served, in RocketMQ's words, and say why."""
    remark = f" request type {code} not supported"
    return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"{remark}: {reason}" if reason else remark)


_TEXT: Final = frozenset({str})


def request(
    code: int, fields: Mapping[str, FieldValue] = NO_FIELDS, body: bytes = b"", *, opaque: int = 0, oneway: bool = False
) -> Command[dict[str, str]]:
    """Build a request to send, with its fields as the wire's text."""
    if _TEXT.issuperset(map(type, fields.values())):  # like the sends of a client: in half of the time
        ext: dict[str, str] = dict(fields)  # type: ignore[arg-type]
    else:
        ext = {name: value if type(value) is str else text_of(value) for name, value in fields.items()}
    return Command(
        code=code,
        ext=ext,
        opaque=opaque,
        flag=FLAG_ONEWAY if oneway else 0,
        version=PROTOCOL_VERSION,
        language="PYTHON",
        body=body,
    )


def typed_request(code: int, header: msgspec.Struct, body: bytes = b"") -> Command[Any]:
    """Build a request with its typed header, as a server reads it. `with_text` makes it one for the wire."""
    return Command(code=code, ext=header, version=PROTOCOL_VERSION, language="PYTHON", body=body)


def with_text(command: Command[Any]) -> Command[Any]:
    """Replace a typed header by its fields as the wire's text, and return the command."""
    header = command.ext
    if isinstance(header, msgspec.Struct):
        values = ((name, getattr(header, field)) for field, name in _names_of(type(header)))
        command.ext = {name: text_of(value) for name, value in values if value is not None}
    return command


@cache
def _names_of(header: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Fields of a header with their names on the wire."""
    return tuple(zip(header.__struct_fields__, header.__struct_encode_fields__, strict=True))


def fields_of(command: Command[Any], header: type[Header]) -> Header:
    """Return the typed header of a command.

    Raises BrokerError(SYSTEM_ERROR), RocketMQ's answer to a header that it cannot decode. The error names the field
    that is missing or of the wrong type.
    """
    ext = command.ext
    if type(ext) is header:
        return ext
    try:
        return msgspec.convert(ext or {}, header, strict=False)
    except msgspec.ValidationError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"request {command.code} has a bad header: {error}") from None


def text_of(value: Any) -> str:
    """Return a header value as RocketMQ writes it: ``true`` or ``false``, decimal for numbers."""
    if isinstance(value, str):
        return value
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)
