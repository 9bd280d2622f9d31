"""Messages, statuses and deadlines of gRPC, as bytes."""

from __future__ import annotations

import gzip
import tracemalloc
import urllib.parse
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import RemoteProtocolError
from firearrow.wire.grpc import (
    HEAD,
    NOT_GRPC,
    PLAIN_BYTES_MAX,
    PREFIX_BYTES,
    STATUS_CHARS_MAX,
    TRAILERS_OK,
    CallFailed,
    MessageReader,
    Status,
    framed,
    path_of,
    refusal,
    timeout_ms,
    trailers,
    whole_message,
)
from firearrow.wire.hpack import Decoder
from firearrow.wire.http2 import FRAME_BYTES_MAX
from tests.wire.strategies import split

MESSAGE_BYTES_MAX = 1000


def fields_of(block: bytes) -> dict[bytes, bytes]:
    return Decoder(lambda before, fields: {**(before or {}), **dict(fields)}).decode(block)


def packed(message: bytes) -> bytes:
    """Frame a compressed message."""
    data = gzip.compress(message, mtime=0)
    return b"\x01" + len(data).to_bytes(4) + data


# --- messages ---

messages = st.lists(st.tuples(st.binary(max_size=200), st.booleans()), max_size=6)


@given(messages, st.data())
def test_messages_in_any_split_are_read(sent: list[tuple[bytes, bool]], data: st.DataObject) -> None:
    stream = b"".join(packed(message) if is_packed else framed(message) for message, is_packed in sent)
    reader = MessageReader(MESSAGE_BYTES_MAX)
    heard = [message for piece in data.draw(split(stream)) for message in reader.take(piece, b"gzip")]
    assert heard == [message for message, _ in sent]
    assert reader.held_bytes == 0


@given(st.binary(max_size=60) | st.binary(max_size=40).map(framed))
def test_a_whole_message_is_read_like_any_other(data: bytes) -> None:
    message = whole_message(data)
    reader = MessageReader(2**32)
    try:
        others = reader.take(data, None)
    except CallFailed:
        others = []
    is_whole = len(others) == 1 and not reader.held_bytes
    assert message == (others[0] if is_whole else None)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\0", packed(b"x"), framed(b"x") * 2, framed(b"xy")[:-1]])
def test_other_data_is_no_whole_message(data: bytes) -> None:
    assert whole_message(data) is None


def test_the_unfinished_message_is_counted() -> None:
    reader = MessageReader(MESSAGE_BYTES_MAX)
    data = framed(b"first") + framed(b"second")
    assert reader.take(data[:-1], None) == [b"first"]
    assert reader.held_bytes == PREFIX_BYTES + len(b"secon")
    assert reader.take(data[-1:], None) == [b"second"]
    assert reader.held_bytes == 0


def test_a_message_that_comes_byte_by_byte_costs_no_object_for_each() -> None:
    size = 200_000
    reader = MessageReader(size)
    tracemalloc.start()
    try:
        for byte in framed(bytes(size))[:-1]:
            assert reader.take(bytes((byte,)), None) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.held_bytes == size + PREFIX_BYTES - 1
    assert held < 2 * size


def test_a_message_above_the_limit_fails_before_it_has_come() -> None:
    reader = MessageReader(MESSAGE_BYTES_MAX)
    assert reader.take(framed(bytes(MESSAGE_BYTES_MAX)), None) == [bytes(MESSAGE_BYTES_MAX)]
    with pytest.raises(CallFailed, match="above the limit of 1000 bytes") as failed:
        reader.take(b"\0" + (MESSAGE_BYTES_MAX + 1).to_bytes(4), None)
    assert failed.value.status == Status.RESOURCE_EXHAUSTED


def test_a_compressed_message_may_be_as_long_as_another() -> None:
    reader = MessageReader(MESSAGE_BYTES_MAX)
    assert reader.take(packed(bytes(MESSAGE_BYTES_MAX)), b"gzip") == [bytes(MESSAGE_BYTES_MAX)]
    with pytest.raises(CallFailed) as failed:
        reader.take(packed(bytes(MESSAGE_BYTES_MAX + 1)), b"gzip")
    assert failed.value.status == Status.RESOURCE_EXHAUSTED


def test_a_bomb_is_not_unpacked() -> None:
    packer = zlib.compressobj(wbits=31)
    data = b"".join(packer.compress(bytes(1024 * 1024)) for _ in range(8 * PLAIN_BYTES_MAX // 2**20)) + packer.flush()
    tracemalloc.start()
    try:
        with pytest.raises(CallFailed, match=f"above the limit of {PLAIN_BYTES_MAX} bytes"):
            MessageReader(2**31).take(b"\x01" + len(data).to_bytes(4) + data, b"gzip")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 * PLAIN_BYTES_MAX


def compressed(data: bytes) -> bytes:
    return b"\x01" + len(data).to_bytes(4) + data


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [
        (packed(b"x"), None, Status.UNIMPLEMENTED),
        (packed(b"x"), b"deflate", Status.UNIMPLEMENTED),
        (compressed(b"no gzip"), b"gzip", Status.INTERNAL),
        (compressed(zlib.compress(b"x")), b"gzip", Status.INTERNAL),
        (compressed(gzip.compress(b"x", mtime=0)[:-1]), b"gzip", Status.INTERNAL),
        (compressed(gzip.compress(b"x", mtime=0) + b"y"), b"gzip", Status.INTERNAL),
        (compressed(b""), b"gzip", Status.INTERNAL),
    ],
)
def test_messages_that_can_t_be_decompressed(data: bytes, encoding: bytes | None, status: Status) -> None:
    with pytest.raises(CallFailed) as failed:
        MessageReader(MESSAGE_BYTES_MAX).take(data, encoding)
    assert failed.value.status == status


@given(st.lists(st.binary(max_size=30), max_size=6), st.sampled_from([None, b"gzip", b"x"]))
def test_any_data_gives_messages_or_a_status(pieces: list[bytes], encoding: bytes | None) -> None:
    reader = MessageReader(MESSAGE_BYTES_MAX)
    for piece in pieces:
        try:
            reader.take(piece, encoding)
        except CallFailed:
            return
    assert reader.held_bytes <= sum(map(len, pieces))


# --- header fields ---


@given(st.text(max_size=100), st.sampled_from(Status))
def test_the_status_message_is_percent_encoded(message: str, status: Status) -> None:
    fields = fields_of(trailers(status, message))
    expected = message.encode(errors="replace").decode()
    assert urllib.parse.unquote(fields.get(b"grpc-message", b"").decode("ascii")) == expected
    assert fields[b"grpc-status"] == b"%d" % status
    assert (b"grpc-message" in fields) == bool(message)


def test_a_long_status_message_is_cut() -> None:
    block = refusal(Status.INTERNAL, "键" * FRAME_BYTES_MAX)
    assert len(block) < FRAME_BYTES_MAX // 2
    assert urllib.parse.unquote(fields_of(block)[b"grpc-message"].decode()) == "键" * STATUS_CHARS_MAX


def test_the_constant_blocks() -> None:
    ok = {b":status": b"200", b"content-type": b"application/grpc"}
    assert fields_of(HEAD) == ok
    assert fields_of(TRAILERS_OK) == {b"grpc-status": b"0"}
    assert fields_of(NOT_GRPC) == {b":status": b"415", b"content-type": b"text/plain"}
    assert fields_of(refusal(Status.UNAVAILABLE, "a%b\n")) == ok | {b"grpc-status": b"14", b"grpc-message": b"a%25b%0A"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"2999981u", 2999.981),
        (b"3S", 3000.0),
        (b"1H", 3_600_000.0),
        (b"2M", 120_000.0),
        (b"7m", 7.0),
        (b"5000000n", 5.0),
        (b"99999999H", 99_999_999 * 3_600_000.0),
        (b"0m", 0.0),
        (b"999999999S", None),
        (b"S", None),
        (b"3", None),
        (b"3s", None),
        (b"-3S", None),
        (b"3.5S", None),
        (b" 3S", None),
        ("٣S".encode(), None),
        (b"", None),
        (None, None),
    ],
)
def test_timeouts(value: bytes | None, expected: float | None) -> None:
    assert timeout_ms(value) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=utf-8"])
def test_the_path_of_a_call(kind: bytes) -> None:
    assert path_of({b":method": b"POST", b":path": b"/p.S/M", b"content-type": kind}) == b"/p.S/M"


@pytest.mark.parametrize(
    "fields",
    [
        {b":method": b"GET", b"content-type": b"application/grpc"},
        {b":method": b"POST"},
        {b":method": b"POST", b"content-type": b"application/json"},
        {b":method": b"POST", b"content-type": b"application/grpc-web"},
        {b":method": b"POST", b"content-type": b"Application/grpc"},
    ],
)
def test_requests_of_other_kinds(fields: dict[bytes, bytes]) -> None:
    with pytest.raises(RemoteProtocolError, match="only gRPC"):
        path_of({b":path": b"/p.S/M"} | fields)
