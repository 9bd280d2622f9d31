"""Frames of HTTP/2 made and read by hand, and a server's side that takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import strategies as st

from firearrow.wire.grpc import HEAD, TRAILERS_OK
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
    Arrived,
    ErrorCode,
    Http2,
    Stream,
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


class Connection:
    """A server's side, and the frames that it has sent."""

    def __init__(self, hello: bytes = HELLO) -> None:
        self._sent = bytearray()
        self.http2 = Http2(self._sent.extend)
        assert self.say(hello) == []
        self.heard()

    def say(self, *frames: bytes) -> list[Arrived]:
        """Take frames in one read, and all turns that it takes; return the data of calls."""
        arrived = self.http2.receive(b"".join(frames))
        while self.http2.has_more:
            arrived += self.http2.receive(b"")
        return arrived

    def write(self, frames: bytes) -> None:
        """Send frames of an answer."""
        self._sent.extend(frames)

    def answer(self, stream: Stream, data: bytes) -> None:
        """Send a whole answer."""
        self.write(self.http2.answer(stream, HEAD, data, TRAILERS_OK))

    def heard(self) -> list[Frame]:
        """Return the frames sent since the last time."""
        sent = bytes(self._sent)
        self._sent.clear()
        return frames_of(sent)

    def begun(self, stream_id: int = 1, *, ends: bool = True, block: bytes = CALL_BLOCK) -> Stream:
        """Begin a call."""
        [(stream, piece, has_ended)] = self.say(headers(stream_id, block), data(stream_id, b"x", ends=ends))
        assert (stream.id, piece, has_ended) == (stream_id, b"x", ends)
        return stream

    def broken(self, *frames: bytes) -> ErrorCode:
        """Send frames that end the connection; return the code."""
        self.say(*frames)
        assert self.http2.violation is not None
        last = self.heard()[-1]
        assert last.kind == GOAWAY
        assert self.http2.violation == f"{last.error.name}: {last.payload[8:].decode()}"
        assert self.http2.held_bytes == 0
        assert self.say(call(2**31 - 1)) == []  # it takes no more
        return last.error


# --- frames from sound to rotten, for property tests ---

_ids = st.sampled_from([0, 1, 1, 1, 3, 3, 5, 7, 9, 2, 2**31 - 1])
_small = st.binary(max_size=40)
_increments = st.sampled_from([0, 1, 5, 100, 65_535, 2**31 - 1])
_blocks = st.one_of(
    st.just(CALL_BLOCK),
    st.just(CALL_BLOCK),
    st.just(block_of([*CALL, (b"content-length", b"10")])),
    st.just(b"\x83\x86\x84\x40\x01a\x01b"),  # POST http /, and a row for the table
    st.just(b"\x83\x86\x84\xbe"),
    st.just(block_of([(b"a", b"b")])),
    st.just(block_of([*CALL, (b"A", b"b")])),
    st.just(b"\x3f\xe1\x01" + CALL_BLOCK),
    st.just(b""),
    _small,
)
_messages = st.one_of(_small.map(lambda it: b"\0" + len(it).to_bytes(4) + it), _small, st.just(bytes(16_384)))
_data = st.builds(data, _ids, _messages, ends=st.booleans())
_calls = st.builds(call, _ids, _messages, st.just(CALL_BLOCK))
_headers = st.builds(headers, _ids, _blocks, ends=st.booleans())
_flagged = st.builds(headers, _ids, _blocks, ends=st.booleans(), flags=st.integers(0, 255))
_settings = st.builds(
    lambda name, value: frame(SETTINGS, payload=name.to_bytes(2) + value.to_bytes(4)),
    st.integers(0, 9),
    st.sampled_from([0, 1, 16, 100, 16_384, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1]),
)
_windows = st.builds(window, _ids, _increments)
_anything = st.builds(frame, st.integers(0, 12), _ids, _small, st.sampled_from([0, 1, 4, 5, 8, 9, 13, 32, 37, 255]))
sound_frames = st.one_of(_calls, _data, _headers, _windows, _settings, st.builds(ping), st.builds(reset, _ids))
"""Frames of the right form, of which some may break the rules at their place."""
any_frames = st.one_of(sound_frames, sound_frames, _flagged, _anything, _small)
"""These, frames of any kind, and bytes that are no frames."""
conversations = st.builds(
    lambda hello, frames: hello + b"".join(frames),
    st.sampled_from([HELLO, HELLO, HELLO, HELLO, PREFACE, PREFACE[:10] + b"x", b""]),
    st.lists(any_frames, max_size=12),
)
"""All that a client sends on a connection."""
