"""A stream of frames, in any split, is the same commands; nothing else is taken."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Command
from firearrow.wire.connection import (
    CHUNK_BYTES_FULL,
    CHUNK_BYTES_SMALL,
    FRAME_BYTES_MAX,
    Connection,
)
from firearrow.wire.frame import LENGTHS
from tests.wire.strategies import commands, frames_of, json_frame, split


@given(st.lists(commands, max_size=6), st.data())
def test_any_split_gives_the_same_commands(
    sent: list[Command[dict[str, str]]], data: st.DataObject
) -> None:
    stream = frames_of(sent)
    whole, parts = Connection(), Connection()
    expected = whole.receive(stream)
    got = [command for piece in data.draw(split(stream)) for command in parts.receive(piece)]
    assert got == expected
    assert [(c.code, c.body) for c in got] == [(c.code, c.body) for c in sent]
    assert parts.violation is None
    assert parts.held_bytes == 0


@given(st.lists(commands, max_size=3), st.binary(max_size=60), st.data())
def test_random_bytes_raise_nothing_and_hold_at_most_a_frame(
    sent: list[Command[dict[str, str]]], noise: bytes, data: st.DataObject
) -> None:
    connection = Connection(frame_bytes_max=1000)
    stream = frames_of(sent) + noise
    got = 0
    for piece in data.draw(split(stream)):
        got += len(connection.receive(piece))
        assert connection.held_bytes < 4 + 1000 + len(stream)
    assert got >= len(sent)


@given(st.binary(min_size=1, max_size=100), st.data())
def test_no_more_than_one_frame_is_held(noise: bytes, data: st.DataObject) -> None:
    connection = Connection(frame_bytes_max=64)
    for piece in data.draw(split(noise)):
        connection.receive(piece)
        assert connection.held_bytes < 4 + 64
        if connection.violation is not None:
            assert connection.held_bytes == 0


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_an_absurd_length_ends_the_connection_before_anything_is_stored(length: int) -> None:
    connection = Connection()
    good = json_frame({"code": 1})
    commands = connection.receive(good + LENGTHS.pack(length, 2) + b"{")
    assert [command.code for command in commands] == [1]
    assert connection.violation == f"a frame of {length} bytes is above the limit of 16777216"
    assert connection.held_bytes == 0
    assert connection.receive(good) == []


@pytest.mark.parametrize("piece", [97, CHUNK_BYTES_SMALL - 1, CHUNK_BYTES_SMALL])
def test_a_frame_in_very_many_pieces_is_whole_and_costs_what_it_is_long(piece: int) -> None:
    connection = Connection()
    body = bytes(range(256)) * (CHUNK_BYTES_FULL // 256 * 3)
    frame = json_frame({"code": 1}, body)
    got = []
    tracemalloc.start()
    for at in range(0, len(frame) - 1, piece):
        got += connection.receive(frame[at : at + piece][: len(frame) - 1 - at])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < len(frame) * 1.1
    assert connection.held_bytes == len(frame) - 1
    assert connection.missing_bytes == 1
    got += connection.receive(frame[-1:])
    assert [command.body for command in got] == [body]
    assert (connection.held_bytes, connection.missing_bytes) == (0, 0)


def test_a_frame_that_was_begun_is_told_from_the_next() -> None:
    connection = Connection()
    frame = json_frame({"code": 1}, bytes(100))
    seen = []
    for data in (frame[:-9], frame[-9:-5], frame[-5:] + frame[:20], frame[20:] * 2):
        connection.receive(data)
        seen.append((connection.frames_begun, connection.held_bytes > 0))
    assert seen[:3] == [(1, True), (1, True), (2, True)]


@pytest.mark.parametrize("binary", [False, True])
def test_a_frame_is_given_up(binary: bool) -> None:
    connection = Connection()
    frame = frames_of([Command(310, {}, opaque=7, body=bytes(50), binary=binary)])
    connection.receive(frame[:-1])
    command = connection.give_up("enough")
    assert command is not None
    assert (command.opaque, command.binary, command.body) == (7, binary, b"")
    assert (connection.held_bytes, connection.violation) == (0, "enough")
    assert connection.receive(frame) == []


@pytest.mark.parametrize(
    "data", [b"", b"\0\0", json_frame({"code": 310})[:-1], json_frame(b"{", b"x" * 9)[:-1]]
)
def test_nothing_is_known_of_a_frame_whose_header_is_not_there_or_none(data: bytes) -> None:
    connection = Connection()
    connection.receive(data)
    assert connection.give_up("enough") is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (LENGTHS.pack(3, 0), "in a frame of 3"),
        (LENGTHS.pack(0, 0), "in a frame of 0"),
        (LENGTHS.pack(10, 7) + b"{}    ", "a header of 7 bytes in a frame of 10"),
        (json_frame(b"{"), "JSON header"),
        (LENGTHS.pack(6, 5 << 24 | 2) + b"{}", "serialisation type 5"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "speaks TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "above the limit"),
    ],
)
def test_violations_say_why(data: bytes, reason: str) -> None:
    connection = Connection()
    assert connection.receive(data) == []
    assert connection.violation is not None
    assert reason in connection.violation


def test_a_byte_at_a_time() -> None:
    connection = Connection()
    frame = json_frame({"code": 310, "extFields": {}, "opaque": 3}, b"body")
    got = [command for byte in frame for command in connection.receive(bytes([byte]))]
    assert [(command.code, command.opaque, command.body) for command in got] == [(310, 3, b"body")]


def test_a_large_body_in_many_reads_is_joined_once() -> None:
    connection = Connection()
    body = bytes(range(256)) * 16384
    header = json.dumps({"code": int(RequestCode.SEND_MESSAGE)}).encode()
    frame = json_frame(header, body)
    got = [
        command
        for at in range(0, len(frame), 65536)
        for command in connection.receive(frame[at : at + 65536])
    ]
    assert [command.body for command in got] == [body]


def test_the_limit_is_inclusive() -> None:
    connection = Connection(frame_bytes_max=len(json_frame({"code": 1})) - 4)
    assert len(connection.receive(json_frame({"code": 1}))) == 1
    assert connection.receive(json_frame({"code": 1}, b"x")) == []
    assert connection.violation is not None


@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version"])
def test_a_number_that_no_answer_could_repeat_ends_the_connection(name: str) -> None:
    header = {"code": 14, "opaque": 1, "flag": 0, "version": 513} | {name: 10**30}
    text = json.dumps(header).encode()
    connection = Connection()
    frame = LENGTHS.pack(4 + len(text), len(text)) + text
    assert connection.receive(frame + frame) == []
    assert connection.violation is not None
    assert name in connection.violation
