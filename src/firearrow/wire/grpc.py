"""gRPC over HTTP/2: messages, statuses and deadlines, as bytes.

A request or an answer is a sequence of messages: a byte that is 1 if the message is compressed, its length (u32,
big-endian) and its bytes. An answer begins with the fields `HEAD` and ends with its status in `trailers`. If it is only
a status, both are in one block.

Source: gRPC over HTTP/2 (``PROTOCOL-HTTP2.md``).
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

from firearrow.errors import RemoteProtocolError
from firearrow.wire.hpack import literal

CONTENT_TYPE: Final = b"application/grpc"
_STATUS_200: Final = b"\x88"  # row 8 of the static table
_STATUS_415: Final = literal(b":status", b"415")
HEAD: Final = _STATUS_200 + literal(b"content-type", CONTENT_TYPE)
TRAILERS_OK: Final = literal(b"grpc-status", b"0")
NOT_GRPC: Final = _STATUS_415 + literal(b"content-type", b"text/plain")
PREFIX_BYTES: Final = 5
_GZIP_BITS: Final = 31  # of zlib's window: its header is gzip's
PLAIN_BYTES_MAX: Final = 16 * 1024 * 1024  # of a compressed message: 16 KB could be that much, and take 20 ms
STATUS_CHARS_MAX: Final = 512  # of a status message: encoded, it fits into any client's limit of 8 KiB

_TIMEOUT_DIGITS_MAX: Final = 8
_UNIT_MS: Final = {b"H": 3_600_000.0, b"M": 60_000.0, b"S": 1000.0, b"m": 1.0, b"u": 1e-3, b"n": 1e-6}


class Status(IntEnum):
    """Outcome of a call."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailed(Exception):
    """A call that ends with another status than OK; the message is the client's."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def framed(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return b"\0" + len(message).to_bytes(4) + message


def trailers(status: Status, message: str = "") -> bytes:
    """Return the block of fields that ends an answer."""
    block = literal(b"grpc-status", str(int(status)).encode())
    message = message[:STATUS_CHARS_MAX]
    return block + literal(b"grpc-message", _percent_encoded(message)) if message else block


def refusal(status: Status, message: str) -> bytes:
    """Return the block of an answer that is only a status."""
    return HEAD + trailers(status, message)


def _percent_encoded(text: str) -> bytes:
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in text.encode(errors="replace")
    ).encode()


def timeout_ms(value: bytes | None) -> float | None:
    """Return the time that a client gives its call, from the field ``grpc-timeout``; None without a readable one.

    A number of at most eight digits and a unit: ``2999981u``.
    """
    if not value or not value[:-1].isdigit() or len(value) > _TIMEOUT_DIGITS_MAX + 1:
        return None
    unit_ms = _UNIT_MS.get(value[-1:])
    return None if unit_ms is None else int(value[:-1]) * unit_ms


def whole_message(data: bytes) -> bytes | None:
    """Return the message that ``data`` consists of, None if it is no single message or is compressed."""
    return data[PREFIX_BYTES:] if int.from_bytes(data[:PREFIX_BYTES]) == len(data) - PREFIX_BYTES else None


class MessageReader:
    """Cuts the data of a request into messages of at most ``message_bytes_max``, decompressed.

    An unfinished message costs about as much memory as its length, even if it comes byte by byte.
    """

    __slots__ = ("_data", "_message_bytes_max")

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._data = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished message."""
        return len(self._data)

    def take(self, data: bytes, encoding: bytes | None) -> list[bytes]:
        """Return the messages that end in ``data``; CallFailed for one that can't be read."""
        held = self._data
        held += data
        messages: list[bytes] = []
        at = 0
        while len(held) - at >= PREFIX_BYTES:
            start = at + PREFIX_BYTES
            size = int.from_bytes(held[at + 1 : start])
            if size > self._message_bytes_max:
                raise _above(self._message_bytes_max)
            if len(held) < start + size:
                break
            with memoryview(held) as view:
                message = bytes(view[start : start + size])
            messages.append(self._decompressed(message, encoding) if held[at] else message)
            at = start + size
        del held[:at]
        assert len(held) < PREFIX_BYTES + self._message_bytes_max, "the rest is less than a message"
        return messages

    def _decompressed(self, message: bytes, encoding: bytes | None) -> bytes:
        if encoding != b"gzip":
            raise CallFailed(Status.UNIMPLEMENTED, "messages may be compressed by gzip only")
        bytes_max = min(self._message_bytes_max, PLAIN_BYTES_MAX)
        reader = zlib.decompressobj(_GZIP_BITS)
        try:
            plain = reader.decompress(message, bytes_max + 1)
        except zlib.error as error:
            raise CallFailed(Status.INTERNAL, f"a message can't be decompressed: {error}") from None
        if len(plain) > bytes_max:
            raise _above(bytes_max)
        if not reader.eof or reader.unused_data:
            raise CallFailed(Status.INTERNAL, "a compressed message ends too early or too late")
        return plain


def _above(bytes_max: int) -> CallFailed:
    return CallFailed(Status.RESOURCE_EXHAUSTED, f"a message is above the limit of {bytes_max} bytes")


def path_of(fields: dict[bytes, bytes]) -> bytes:
    """Return the method of a call, ``/package.Service/Method``; RemoteProtocolError for another kind of request."""
    content_type = fields.get(b"content-type", b"")
    if fields.get(b":method") != b"POST" or not content_type.startswith(CONTENT_TYPE):
        raise RemoteProtocolError("only gRPC is served here")
    if content_type[len(CONTENT_TYPE) :][:1] not in (b"", b"+", b";"):
        raise RemoteProtocolError("only gRPC is served here")
    return fields[b":path"]
