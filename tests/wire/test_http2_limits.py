"""Limits of an HTTP/2 connection: a test for each reaches it, and shows that one less is allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firearrow.wire.grpc import HEAD
from firearrow.wire.hpack import FIELDS_BYTES_MAX
from firearrow.wire.http2 import (
    BLOCK_BYTES_MAX,
    CONTINUATION,
    CONTINUATIONS_MAX,
    DATA,
    END_HEADERS,
    FRAME_BYTES_MAX,
    FRAMES_MAX,
    GOAWAY,
    NOISE_MAX,
    PRIORITY,
    RESETS_MAX,
    STREAM_BYTES,
    STREAMS_MAX,
    ErrorCode,
)
from tests.wire import http2frames as h2
from tests.wire.http2frames import CALL, CALL_BLOCK, Connection, frame


def test_calls_at_a_time_are_limited() -> None:
    connection = Connection()
    streams = [connection.begun(number) for number in range(1, 2 * STREAMS_MAX, 2)]
    assert connection.http2.streams_bytes == STREAMS_MAX * (STREAM_BYTES + len(CALL_BLOCK))
    assert connection.say(h2.call(2 * STREAMS_MAX + 1)) == []
    assert [(it.stream_id, it.error) for it in connection.heard()] == [(2 * STREAMS_MAX + 1, ErrorCode.REFUSED_STREAM)]
    connection.answer(streams[0], b"x")
    assert connection.begun(2 * STREAMS_MAX + 3).fields == dict(CALL)


def test_a_client_may_send_to_as_many_ended_calls_as_there_can_be() -> None:
    connection = Connection()
    streams = [connection.begun(number, ends=False) for number in range(1, 2 * STREAMS_MAX, 2)]
    for stream in streams:
        connection.write(connection.http2.refuse(stream, HEAD))
    for stream in streams:
        connection.say(h2.data(stream.id, b"x", ends=True))
    assert connection.http2.violation is None
    assert len(connection.http2._reset_here) == STREAMS_MAX
    connection.http2.reset(connection.begun(2 * STREAMS_MAX + 1, ends=False), ErrorCode.CANCEL)
    assert len(connection.http2._reset_here) == STREAMS_MAX


def test_a_frame_is_limited() -> None:
    connection = Connection()
    stream = connection.begun(ends=False)
    assert connection.say(h2.data(1, bytes(FRAME_BYTES_MAX))) == [(stream, bytes(FRAME_BYTES_MAX), False)]
    head = (FRAME_BYTES_MAX + 1).to_bytes(3) + bytes((DATA, 0)) + (1).to_bytes(4)
    assert connection.broken(head) == ErrorCode.FRAME_SIZE_ERROR


def test_a_block_is_limited_in_bytes_and_frames() -> None:
    field = h2.block_of([(b"n", bytes(BLOCK_BYTES_MAX // 2 - 6))])
    small = h2.block_of([(b"n", b"v")])

    def frames(count: int, piece: bytes) -> list[bytes]:
        return [h2.headers(1, CALL_BLOCK, flags=0), *[frame(CONTINUATION, 1, piece)] * (count - 1)]

    connection = Connection()
    assert connection.say(*frames(CONTINUATIONS_MAX - 1, small)) == []
    assert [data for _, data, _ in connection.say(frame(CONTINUATION, 1, small, END_HEADERS), h2.data(1, b"x"))] == [
        b"x"
    ]
    assert Connection().broken(*frames(CONTINUATIONS_MAX + 1, b"")) == ErrorCode.ENHANCE_YOUR_CALM
    assert len(field) <= FRAME_BYTES_MAX
    connection = Connection()
    assert connection.say(*frames(2, field)) == []
    assert connection.http2.violation is None
    assert connection.broken(frame(CONTINUATION, 1, field)) == ErrorCode.ENHANCE_YOUR_CALM


def test_fields_that_unfold_to_too_much_end_the_connection() -> None:
    row = b"\x40\x01n\x7f\xa1\x1e" + bytes(4000)
    block = CALL_BLOCK + row + b"\xbe" * (FIELDS_BYTES_MAX // 4000 + 1)
    assert Connection().broken(h2.headers(1, block)) == ErrorCode.COMPRESSION_ERROR


def test_cancelled_calls_are_limited() -> None:
    connection = Connection()
    for number in range(RESETS_MAX):
        connection.say(h2.call(2 * number + 1), h2.reset(2 * number + 1))
    assert connection.http2.violation is None
    assert connection.http2.streams == {}
    number = 2 * RESETS_MAX + 1
    assert connection.broken(h2.call(number), h2.reset(number)) == ErrorCode.ENHANCE_YOUR_CALM


def test_a_client_that_lets_as_many_calls_finish_may_cancel_for_ever() -> None:
    connection = Connection()
    for number in range(1, 12 * RESETS_MAX, 4):
        connection.say(h2.call(number), h2.reset(number))
        connection.answer(connection.begun(number + 2), b"x")
    assert connection.http2.violation is None
    assert connection.http2._resets == 0


FAULTS: dict[str, Callable[[int], bytes]] = {
    "window": lambda number: h2.window(number, 0),
    "priority": lambda number: frame(PRIORITY, number, b"x"),
    "length": lambda number: h2.data(number, bytes(11)),
    "trailers": lambda number: h2.headers(number, h2.block_of([(b"a", b"b")])),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_calls_that_the_client_makes_the_server_reset_count_as_cancelled(fault: str) -> None:
    connection = Connection()
    block = h2.block_of([*CALL, (b"content-length", b"10")])

    def frames(number: int) -> list[bytes]:
        return [h2.headers(number, block), h2.data(number, b"x"), FAULTS[fault](number)]

    for number in range(1, 2 * RESETS_MAX, 2):
        assert connection.say(*frames(number))[-1][1] is None
    assert connection.http2.violation is None
    assert connection.broken(*frames(2 * RESETS_MAX + 1)) == ErrorCode.ENHANCE_YOUR_CALM


def test_calls_with_wrong_fields_count_as_cancelled() -> None:
    connection = Connection()
    wrong = h2.block_of([(b"a", b"b")])
    connection.say(*(h2.headers(number, wrong, ends=True) for number in range(1, 2 * RESETS_MAX, 2)))
    assert connection.http2.violation is None
    assert connection.broken(h2.headers(2 * RESETS_MAX + 1, wrong)) == ErrorCode.ENHANCE_YOUR_CALM


NOISE = {
    "ping": h2.ping(),
    "settings": h2.settings(),
    "window": h2.window(0, 1),
    "priority": frame(PRIORITY, 5, bytes(5)),
    "unknown": frame(99),
    "data": h2.data(1, b""),
    "goaway": frame(GOAWAY, 0, bytes(8)),
}


@pytest.mark.parametrize("kind", NOISE)
def test_frames_without_a_call_are_limited(kind: str) -> None:
    connection = Connection()
    connection.begun(ends=False)
    connection.say(*[NOISE[kind]] * NOISE_MAX)
    assert connection.http2.violation is None
    assert connection.broken(NOISE[kind]) == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("way", ["a call", "data", "an answer"])
def test_frames_between_calls_and_data_are_no_noise(way: str) -> None:
    connection = Connection()
    stream = connection.begun(ends=False)
    for number in range(3, 9, 2):
        connection.say(*[h2.ping()] * (NOISE_MAX - 1))
        if way == "a call":
            connection.begun(number)
        elif way == "data":
            connection.say(h2.data(1, b"x"))
        else:
            connection.write(connection.http2.send_data(stream, b"x"))
    assert connection.http2.violation is None


def test_settings_that_change_the_windows_of_many_calls_are_limited() -> None:
    connection = Connection()
    for number in range(1, 2 * STREAMS_MAX, 2):
        connection.begun(number)
    count = 0
    while connection.http2.violation is None:
        connection.say(h2.settings(initial_window_size=count % 2), h2.settings())
        count += 1
    assert NOISE_MAX // 80 < count < NOISE_MAX // 40


def test_a_turn_handles_a_number_of_frames() -> None:
    connection = Connection()
    http2 = connection.http2
    assert http2.receive(h2.ping() * FRAMES_MAX + h2.call(1)) == []
    assert (len(connection.heard()), http2.has_more) == (FRAMES_MAX, True)
    assert [data for _, data, _ in http2.receive(b"")] == [b""]
    assert not http2.has_more
