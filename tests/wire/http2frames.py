"""Frames of HTTP/2 made and read by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from firearrow.wire.hpack import literal
from firearrow.wire.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
)

CLIENT_WINDOW_BYTES = 65_535  # unless the client's SETTINGS say otherwise
MAX_FRAME_SIZE, INITIAL_WINDOW_SIZE, ENABLE_PUSH = 5, 4, 2


class Frame(NamedTuple):
    """One frame."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    def encode(self) -> bytes:
        """Return its bytes."""
        head = len(self.payload).to_bytes(3) + bytes((self.kind, self.flags)) + self.stream_id.to_bytes(4)
        return head + self.payload

    @property
    def error(self) -> ErrorCode:
        """Code of RST_STREAM or GOAWAY."""
        assert self.kind in (RST_STREAM, GOAWAY)
        return ErrorCode(int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload))

    @property
    def number(self) -> int:
        """Increment of WINDOW_UPDATE, or code of RST_STREAM."""
        return int.from_bytes(self.payload)


def frames_of(data: bytes) -> list[Frame]:
    """Cut bytes into frames; the last one must be whole."""
    frames = []
    while data:
        size = int.from_bytes(data[:3])
        assert len(data) >= HEAD_BYTES + size
        stream_id = int.from_bytes(data[5:HEAD_BYTES])
        frames.append(Frame(data[3], data[4], stream_id, data[HEAD_BYTES : HEAD_BYTES + size]))
        data = data[HEAD_BYTES + size :]
    return frames


def block_of(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode header fields without a table."""
    return b"".join(literal(name, value) for name, value in fields)


CALL = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/p.S/M"), (b"content-type", b"application/grpc")]
CALL_BLOCK = block_of(CALL)


def frame(kind: int, stream_id: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    """Encode a frame of any kind."""
    return Frame(kind, flags, stream_id, payload).encode()


def headers(stream_id: int, block: bytes = CALL_BLOCK, *, ends: bool = False, flags: int = END_HEADERS) -> bytes:
    """Encode HEADERS, of a call unless ``block`` says otherwise."""
    return frame(HEADERS, stream_id, block, flags | (END_STREAM if ends else 0))


def data(stream_id: int, payload: bytes, *, ends: bool = False) -> bytes:
    """Encode DATA."""
    return frame(DATA, stream_id, payload, END_STREAM if ends else 0)


def call(stream_id: int, payload: bytes = b"", block: bytes = CALL_BLOCK) -> bytes:
    """Encode a whole request."""
    return headers(stream_id, block) + data(stream_id, payload, ends=True)


def settings(**values: int) -> bytes:
    """Encode SETTINGS, by names of this module in lower case."""
    pairs = ((globals()[name.upper()], value) for name, value in values.items())
    return frame(SETTINGS, payload=b"".join(name.to_bytes(2) + value.to_bytes(4) for name, value in pairs))


def window(stream_id: int, more: int) -> bytes:
    """Encode WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, stream_id, more.to_bytes(4))


def reset(stream_id: int, code: int = ErrorCode.CANCEL) -> bytes:
    """Encode RST_STREAM."""
    return frame(RST_STREAM, stream_id, code.to_bytes(4))


def ping(payload: bytes = b"8 octets", flags: int = 0) -> bytes:
    """Encode PING."""
    return frame(PING, 0, payload, flags)


SETTINGS_ACK = frame(SETTINGS, flags=ACK)
HELLO = PREFACE + settings()
