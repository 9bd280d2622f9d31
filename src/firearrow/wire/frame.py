"""Remoting frames and their two header encodings.

A frame, big-endian:

====== ==== ======================================================================
offset size field
====== ==== ======================================================================
0      4    length of all that follows this word
4      4    serialisation (0 JSON, 1 ROCKETMQ) << 24 | header length
8      h    header
8+h    rest body
====== ==== ======================================================================

The JSON header is ``{"code":14,"extFields":{...},"flag":0,"language":"JAVA","opaque":7,
"serializeTypeCurrentRPC":"JSON","version":513}`` in any order. The ROCKETMQ header is binary:

====== ==== ===========================================
offset size field
====== ==== ===========================================
0      2    code (16 bits: the POP codes do not fit)
2      1    language ordinal
3      2    version
5      4    opaque
9      4    flag
13     4+n  remark: length, UTF-8
...    4+m  ext: length, then repeated i16 key, i32 value
====== ==== ===========================================

Worked example, request 14 with ``topic=T``:
``00000025 01000021 000e 03 0201 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54``.

A header of one of the few codes that make up nearly all traffic is decoded straight into its
typed form: RocketMQ's writers put ``code`` first, so the header's first bytes choose the decoder.
That takes 1.1 µs for a send; to decode into a dictionary of texts, which a handler then has to
convert field by field, takes 3.3. A decoder for each of the 164 codes was rejected: what is rare
need not be fast, and the two ways have to agree. Whatever the hot decoders refuse, or any other
order of keys, takes the general way and ends the same.

Source: upstream ``RemotingCommand``, ``RocketMQSerializable``, ``NettyDecoder``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from firearrow.errors import LocalProtocolError, RemoteProtocolError
from firearrow.wire.binary import KIND_BINARY, binary_header, decode_binary
from firearrow.wire.codes import FLAG_RESPONSE, PROTOCOL_VERSION, RequestCode
from firearrow.wire.command import Command, FieldValue, Response, text_of
from firearrow.wire.headers import (
    EndTransaction,
    PullMessage,
    SendBack,
    SendMessage,
    SendMessageV2,
    UpdateConsumerOffset,
)

KIND_JSON: Final = 0

LENGTHS: Final = struct.Struct(">II")

# How many leading bytes tell the hot codes apart: `{"code":310,` is this long.
HOT_PREFIX_BYTES: Final = 12

HEADER_BYTES_MAX: Final = 0xFFFFFF  # the header's length has three bytes
# Properties of a message, the longest thing in it, have 32 KiB. A header that no hot decoder reads
# may take a microsecond for four bytes.
GENERAL_HEADER_BYTES_MAX: Final = 1024 * 1024
REMARK_CHARS_MAX: Final = 4096  # a remark may quote what a peer sent, which may be anything

AnyCommand = Command[Any]

_decode_any = msgspec.json.Decoder(Command[dict[str, Any] | None]).decode
_decode_bare = msgspec.json.Decoder(dict[str, Any]).decode
encode_json = msgspec.json.Encoder().encode


def _hot(code: RequestCode, header: type[msgspec.Struct]) -> tuple[bytes, Any]:
    prefix = (b'{"code":%d,"ext' % code)[:HOT_PREFIX_BYTES]
    decoder = msgspec.json.Decoder(Command[header], strict=False)  # type: ignore[valid-type]
    return prefix, decoder.decode


HOT_DECODERS: Final[dict[bytes, Any]] = dict(
    (
        _hot(RequestCode.SEND_MESSAGE, SendMessage),
        _hot(RequestCode.SEND_MESSAGE_V2, SendMessageV2),
        _hot(RequestCode.SEND_BATCH_MESSAGE, SendMessageV2),
        _hot(RequestCode.PULL_MESSAGE, PullMessage),
        _hot(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset),
        _hot(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack),
        _hot(RequestCode.END_TRANSACTION, EndTransaction),
    )
)


def decode_header(kind: int, header: bytes) -> AnyCommand:
    """Decode one header, JSON or binary, into a command without body.

    Raises RemoteProtocolError when the header is not of its form, or too long; wrong types of
    single ext fields are no error here: ``ext`` is then plain text and ``fields_of`` names the
    field.
    """
    if len(header) > GENERAL_HEADER_BYTES_MAX:
        raise RemoteProtocolError(
            f"a header of {len(header)} bytes is above the limit of {GENERAL_HEADER_BYTES_MAX}"
        )
    if kind == KIND_BINARY:
        return decode_binary(header)
    if kind != KIND_JSON:
        raise RemoteProtocolError(f"serialisation type {kind} is neither 0 (JSON) nor 1 (ROCKETMQ)")
    try:
        return _decode_any_json(header)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RemoteProtocolError(f"the JSON header can't be read: {error}") from None


def _decode_any_json(header: bytes) -> AnyCommand:
    try:
        command: AnyCommand = _decode_any(header)
    except msgspec.ValidationError:
        command = _decode_loosely(header)
    command.ext = {
        name: text_of(value) for name, value in (command.ext or {}).items() if value is not None
    }
    return command


def _decode_loosely(header: bytes) -> AnyCommand:
    """A header whose JSON is sound and whose types are not what ``Command`` declares."""
    raw = _decode_bare(header)
    ext = raw.get("extFields")
    language = raw.get("language")
    return Command(
        code=_integer(raw, "code", None),
        ext=ext if isinstance(ext, dict) else {},
        opaque=_integer(raw, "opaque", 0),
        flag=_integer(raw, "flag", 0),
        version=_integer(raw, "version", 0),
        language=language if isinstance(language, str | int) else None,
        remark=None if raw.get("remark") is None else text_of(raw["remark"]),
    )


def _integer(raw: dict[str, Any], name: str, default: int | None) -> int:
    value = raw.get(name, default)
    if value is None:
        raise RemoteProtocolError(f"header field {name} is missing")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RemoteProtocolError(f"header field {name} is not a number: {str(value)[:40]!r}")
    try:
        number = int(value)
    except ValueError:
        raise RemoteProtocolError(
            f"header field {name} is not a number: {str(value)[:40]!r}"
        ) from None
    if not -(1 << 31) <= number < 1 << 31:
        raise RemoteProtocolError(f"header field {name} does not fit 32 bits: {str(value)[:40]}")
    return number


def encode_response(response: Response, opaque: int, binary: bool = False) -> bytes:
    """A response as a frame, in the serialisation that its request came in.

    Raises LocalProtocolError when its fields do not fit a header.
    """
    remark = response.remark
    if remark is not None and len(remark) > REMARK_CHARS_MAX:
        remark = remark[:REMARK_CHARS_MAX]
    if binary:
        header = binary_header(response.code, FLAG_RESPONSE, opaque, remark, response.fields)
        return _frame(KIND_BINARY, header, response.body)
    if response == _BARE:
        return response_frame(_BARE_HEADER % opaque)
    header = encode_json(
        _json_header(response.code, FLAG_RESPONSE, opaque, remark, response.fields)
    )
    return _frame(KIND_JSON, header, response.body)


def encode_request(command: AnyCommand) -> bytes:
    """A request of ours as a frame, JSON unless ``command.binary``."""
    if command.binary:
        header = binary_header(
            command.code, command.flag, command.opaque, command.remark, command.ext
        )
        return _frame(KIND_BINARY, header, command.body)
    header = encode_json(
        _json_header(command.code, command.flag, command.opaque, command.remark, command.ext)
    )
    return _frame(KIND_JSON, header, command.body)


def response_frame(header: bytes, body: bytes = b"") -> bytes:
    """A frame around a JSON header that a hot processor has formatted itself."""
    return b"".join((LENGTHS.pack(4 + len(header) + len(body), len(header)), header, body))


def _frame(kind: int, header: bytes, body: bytes) -> bytes:
    length = len(header)
    if length > HEADER_BYTES_MAX:
        raise LocalProtocolError(f"a header of {length} bytes, of at most {HEADER_BYTES_MAX}")
    return b"".join((LENGTHS.pack(4 + length + len(body), kind << 24 | length), header, body))


def _json_header(
    code: int, flag: int, opaque: int, remark: str | None, fields: Mapping[str, FieldValue]
) -> dict[str, Any]:
    header: dict[str, Any] = {
        "code": int(code),
        "extFields": {name: text_of(value) for name, value in fields.items()},
        "flag": flag,
        "language": "PYTHON",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": PROTOCOL_VERSION,
    }
    if remark is not None:
        header["remark"] = remark
    return header


_BARE: Final = Response()
# What `encode_response` would write for an answer that says nothing but yes: 0.5 µs instead of 4.
_BARE_HEADER: Final = encode_json(_json_header(0, FLAG_RESPONSE, 0, None, {})).replace(
    b'"opaque":0', b'"opaque":%d'
)
