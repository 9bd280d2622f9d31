"""The server's side of HTTP/2, by frames made by hand: windows, settings, ends, limits, and any split of the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.wire.grpc import HEAD, TRAILERS_OK, framed
from firearrow.wire.hpack import FIELDS_BYTES_MAX, Decoder
from firearrow.wire.http2 import (
    ACK,
    BLOCK_BYTES_MAX,
    CONNECTION_WINDOW_BYTES,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_WINDOW_BYTES,
    STREAMS_MAX,
    WINDOW_UPDATE,
    ErrorCode,
    Http2,
)
from tests.wire import http2frames as h2
from tests.wire.http2frames import (
    CALL,
    CALL_BLOCK,
    CLIENT_WINDOW_BYTES,
    HELLO,
    SETTINGS_ACK,
    Connection,
    Frame,
    conversations,
    frame,
    frames_of,
)
from tests.wire.strategies import split

WINDOW_MAX = 2**31 - 1


def kinds(frames: list[Frame]) -> list[int]:
    return [it.kind for it in frames]


def body(frames: list[Frame], stream_id: int) -> bytes:
    return b"".join(it.payload for it in frames if it.kind == DATA and it.stream_id == stream_id)


# --- the beginning ---


def test_the_first_frames_of_the_server() -> None:
    settings, window = frames_of(Http2(lambda _: None).begin())
    values = {
        int.from_bytes(settings.payload[at : at + 2]): settings.payload[at + 2 : at + 6] for at in range(0, 18, 6)
    }
    assert {name: int.from_bytes(value) for name, value in values.items()} == {
        3: STREAMS_MAX,
        4: STREAM_WINDOW_BYTES,
        6: min(BLOCK_BYTES_MAX, FIELDS_BYTES_MAX),
    }
    assert (settings.kind, window.kind, window.stream_id) == (SETTINGS, WINDOW_UPDATE, 0)
    assert window.number + CLIENT_WINDOW_BYTES == CONNECTION_WINDOW_BYTES


def test_settings_are_acknowledged() -> None:
    connection = Connection(b"")
    connection.say(HELLO)
    assert [it.encode() for it in connection.heard()] == [SETTINGS_ACK]
    connection.say(SETTINGS_ACK, frame(SETTINGS, payload=b"\x00\x09\xff\xff\xff\xff"))  # unknown ones count for nothing
    assert [it.encode() for it in connection.heard()] == [SETTINGS_ACK]


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n", PREFACE[:-1] + b"x", b"PRI\n"])
def test_another_beginning(hello: bytes) -> None:
    assert Connection(b"").broken(hello) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("first", [h2.ping(), h2.call(1), h2.data(1, b""), h2.window(0, 1), frame(CONTINUATION, 1)])
def test_settings_come_first(first: bytes) -> None:
    assert Connection(PREFACE).broken(first) == ErrorCode.PROTOCOL_ERROR


# --- calls ---


def test_a_call_and_its_answer() -> None:
    connection = Connection()
    stream = connection.begun()
    assert stream.fields == dict(CALL)
    connection.answer(stream, b"answer")
    head, data, trailers = connection.heard()
    assert head == (HEADERS, END_HEADERS, 1, HEAD)
    assert data == (DATA, 0, 1, b"answer")
    assert trailers == (HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS_OK)
    assert connection.http2.streams == {}


@given(st.binary(max_size=100), st.booleans(), st.booleans())
def test_a_short_answer_is_framed_like_a_long_one(data: bytes, has_ended: bool, is_late: bool) -> None:
    """`answer` has a fast path; the general one is `begin_answer`, `send_data` and `end_answer`."""
    data = data or b"x"
    fast, general = Connection(), Connection()
    first, second = fast.begun(ends=has_ended), general.begun(ends=has_ended)
    if is_late:
        for connection in (fast, general):
            connection.say(h2.settings(initial_window_size=3))
    fast.answer(first, data)
    general.write(general.http2.begin_answer(second, HEAD))
    general.write(general.http2.send_data(second, data))
    general.write(general.http2.end_answer(second, TRAILERS_OK))
    assert fast.heard() == general.heard()
    for name in ("_send_window", "pending_bytes", "streams_bytes", "_resets"):
        assert getattr(fast.http2, name) == getattr(general.http2, name)
    assert fast.http2.streams.keys() == general.http2.streams.keys()


def test_trailers_of_a_client_end_its_side() -> None:
    connection = Connection()
    stream = connection.begun(ends=False)
    assert connection.say(h2.headers(1, h2.block_of([(b"a", b"b")]), ends=True)) == [(stream, b"", True)]
    assert stream.has_ended


WRONG_TRAILERS = pytest.mark.parametrize(
    ("block", "ends"), [(h2.block_of([(b"a", b"b")]), False), (CALL_BLOCK, True), (h2.block_of([(b"A", b"b")]), True)]
)


@WRONG_TRAILERS
@pytest.mark.parametrize("ends_itself", [False, True])
def test_wrong_trailers_reset_a_call_that_is_answered_already(block: bytes, ends: bool, ends_itself: bool) -> None:
    """Which comes first, the answer or the trailers, depends on the pace of machine and network."""
    connection = Connection()
    stream = connection.begun(ends=False)
    stream.ends_itself = ends_itself
    connection.write(connection.http2.refuse(stream, HEAD))
    connection.heard()
    assert connection.say(h2.headers(1, block, ends=ends)) == []
    assert [(it.kind, it.error) for it in connection.heard()] == [(RST_STREAM, ErrorCode.PROTOCOL_ERROR)]


@WRONG_TRAILERS
def test_wrong_trailers_reset_the_call(block: bytes, ends: bool) -> None:
    connection = Connection()
    stream = connection.begun(ends=False)
    assert connection.say(h2.headers(1, block, ends=ends)) == [(stream, None, True)]
    assert [(it.kind, it.error) for it in connection.heard()] == [(RST_STREAM, ErrorCode.PROTOCOL_ERROR)]


def test_an_answer_before_the_end_of_the_request_tells_the_client_to_send_no_more() -> None:
    connection = Connection()
    stream = connection.begun(ends=False)
    connection.write(connection.http2.refuse(stream, HEAD))
    answer, reset = connection.heard()
    assert (answer.flags, reset.kind, reset.error) == (END_HEADERS | END_STREAM, RST_STREAM, ErrorCode.NO_ERROR)
    assert connection.say(h2.data(1, b"on its way", ends=True), h2.headers(1, b"", ends=True)) == []
    assert connection.http2.violation is None


def test_a_client_that_ends_its_side_by_itself_is_not_told_to() -> None:
    connection = Connection()
    stream = connection.begun(ends=False)
    stream.ends_itself = True
    connection.write(connection.http2.refuse(stream, HEAD))
    [answer] = connection.heard()
    assert answer.flags == END_HEADERS | END_STREAM
    assert connection.say(h2.data(1, b"on its way"), h2.data(1, b"", ends=True)) == []
    assert connection.http2.violation is None


def test_a_call_that_is_over_has_no_answer() -> None:
    connection = Connection()
    stream = connection.begun()
    assert connection.say(h2.reset(1)) == [(stream, None, True)]
    http2 = connection.http2
    assert http2.answer(stream, HEAD, b"x", TRAILERS_OK) == b""
    assert http2.begin_answer(stream, HEAD) == http2.send_data(stream, b"x") == b""
    assert http2.end_answer(stream, TRAILERS_OK) == http2.refuse(stream, HEAD) == b""
    http2.reset(stream, ErrorCode.CANCEL)
    assert (connection.heard(), http2.pending_bytes, http2.streams_bytes) == ([], 0, 0)


def test_padding_is_no_data_but_counts_for_windows() -> None:
    connection = Connection()
    padded = frame(HEADERS, 1, b"\x05" + CALL_BLOCK + bytes(5), END_HEADERS | PADDED)
    [(stream, data, _)] = connection.say(padded, frame(DATA, 1, b"\x03abc" + bytes(3), PADDED))
    assert (data, stream.window) == (b"abc", STREAM_WINDOW_BYTES - 7)
    assert connection.say(frame(DATA, 1, b"\x00", PADDED | END_STREAM)) == [(stream, b"", True)]


@pytest.mark.parametrize(
    "wrong", [frame(DATA, 1, b"", PADDED), frame(DATA, 1, b"\x01", PADDED), frame(DATA, 1, b"\x02x", PADDED)]
)
def test_more_padding_than_payload(wrong: bytes) -> None:
    connection = Connection()
    connection.begun(ends=False)
    assert connection.broken(wrong) == ErrorCode.PROTOCOL_ERROR


def test_a_block_in_several_frames() -> None:
    connection = Connection()
    third = len(CALL_BLOCK) // 3
    pieces = [CALL_BLOCK[:third], CALL_BLOCK[third : 2 * third], b"", CALL_BLOCK[2 * third :]]
    first = h2.headers(1, pieces[0], ends=True, flags=0)
    others = [frame(CONTINUATION, 1, it) for it in pieces[1:3]]
    assert connection.say(first, *others) == []
    assert connection.http2.held_bytes == 2 * third
    [(stream, data, ends)] = connection.say(frame(CONTINUATION, 1, pieces[3], END_HEADERS))
    assert (stream.fields, data, ends) == (dict(CALL), b"", True)
    assert connection.http2.held_bytes == 0


@pytest.mark.parametrize(
    "between", [h2.ping(), h2.data(1, b""), frame(CONTINUATION, 3), h2.headers(3), frame(200), h2.window(0, 1)]
)
def test_nothing_comes_between_the_frames_of_a_block(between: bytes) -> None:
    assert Connection().broken(h2.headers(1, flags=0), between) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("fields", "is_call"),
    [
        (CALL, True),
        ([*CALL, (b"te", b"trailers")], True),
        ([*CALL, (b"te", b"gzip")], False),
        ([*CALL, (b"connection", b"close")], False),
        ([*CALL, (b"Upper", b"x")], False),
        ([*CALL, (b"", b"x")], False),
        ([*CALL, (b":path", b"/x")], False),
        ([(b":path", b"/x"), *CALL], False),
        ([(b":status", b"200"), *CALL], False),
        (CALL[1:], False),
        ([*CALL[:2], (b":path", b""), *CALL[3:]], False),
        ([(b"a", b"b")], False),
    ],
)
def test_header_fields_of_a_call(fields: list[tuple[bytes, bytes]], is_call: bool) -> None:
    connection = Connection()
    arrived = connection.say(h2.headers(1, h2.block_of(fields), ends=True))
    assert [(data, ends) for _, data, ends in arrived] == [(b"", True)] * is_call
    codes = [it.error for it in connection.heard() if it.kind == RST_STREAM]
    assert codes == [] if is_call else [ErrorCode.PROTOCOL_ERROR]
    assert connection.begun(3).fields == dict(CALL)


@pytest.mark.parametrize(
    ("length", "pieces", "is_right"),
    [
        (b"3", [b"abc"], True),
        (b"3", [b"ab", b"c", b""], True),
        (b"3", [b"abcd"], False),
        (b"3", [b"ab"], False),
        (b"x", [b"abc"], False),
        (b"0", [], True),
        (b"3", [], False),
    ],
)
def test_a_content_length_is_that_of_the_data(length: bytes, pieces: list[bytes], is_right: bool) -> None:
    connection = Connection()
    block = h2.block_of([*CALL, (b"content-length", length)])
    frames = [h2.data(1, it, ends=it is pieces[-1]) for it in pieces]
    arrived = connection.say(h2.headers(1, block, ends=not pieces), *frames)
    assert (arrived[-1][1] is not None) == is_right
    assert (RST_STREAM in kinds(connection.heard())) == (not is_right)


# --- windows for the answers ---


def test_an_answer_waits_for_the_windows() -> None:
    connection = Connection(PREFACE + h2.settings(initial_window_size=10))
    stream = connection.begun()
    connection.answer(stream, b"0123456789abcdef")
    assert body(connection.heard(), 1) == b"0123456789"
    assert (stream.pending_bytes, connection.http2.pending_bytes) == (6, 6)
    connection.say(h2.window(1, 2))
    assert body(connection.heard(), 1) == b"ab"
    connection.say(h2.window(1, 100))
    frames = connection.heard()
    assert body(frames, 1) == b"cdef"
    assert (frames[-1].kind, frames[-1].flags & END_STREAM) == (HEADERS, END_STREAM)
    assert (connection.http2.streams, connection.http2.pending_bytes) == ({}, 0)


def test_an_answer_waits_for_the_window_of_the_connection() -> None:
    connection = Connection(PREFACE + h2.settings(initial_window_size=WINDOW_MAX // 2))
    one, other = connection.begun(1), connection.begun(3)
    connection.answer(one, bytes(CLIENT_WINDOW_BYTES - 1) + b"ab")
    connection.answer(other, b"other")
    assert len(body(connection.heard(), 1)) == CLIENT_WINDOW_BYTES
    connection.say(h2.window(3, 5))
    assert connection.heard() == []
    connection.say(h2.window(0, 3))
    frames = connection.heard()
    assert (body(frames, 1), body(frames, 3)) == (b"b", b"ot")
    connection.say(h2.window(0, 3))
    assert body(connection.heard(), 3) == b"her"
    assert connection.http2.streams == {}


def test_streams_that_wait_take_turns() -> None:
    connection = Connection(PREFACE + h2.settings(initial_window_size=WINDOW_MAX))
    connection.answer(connection.begun(1), bytes(CLIENT_WINDOW_BYTES))
    streams = [connection.begun(number) for number in (3, 5, 7)]
    for stream in streams:
        connection.answer(stream, bytes(2))
    connection.heard()
    order = []
    for _ in range(6):
        connection.say(h2.window(0, 1))
        order += [it.stream_id for it in connection.heard() if it.kind == DATA]
    assert order == [3, 5, 7, 3, 5, 7]


def test_settings_change_the_windows_of_open_calls() -> None:
    connection = Connection(PREFACE + h2.settings(initial_window_size=4))
    stream = connection.begun()
    connection.answer(stream, b"0123456789")
    assert body(connection.heard(), 1) == b"0123"
    connection.say(h2.settings(initial_window_size=1))
    assert stream.send_window == -3
    connection.say(h2.settings(initial_window_size=3))
    assert body(connection.heard(), 1) == b""
    connection.say(h2.window(1, 2))
    assert body(connection.heard(), 1) == b"4"
    connection.say(h2.settings(initial_window_size=100))
    assert body(connection.heard(), 1) == b"56789"
    assert connection.begun(3).send_window == 100


def test_a_window_of_one_byte_gives_a_byte() -> None:
    connection = Connection(PREFACE + h2.settings(initial_window_size=0))
    connection.answer(connection.begun(), b"abc")
    connection.heard()
    for byte in b"abc":
        connection.say(h2.window(1, 1))
        assert body(connection.heard(), 1) == bytes((byte,))


@given(
    st.lists(st.integers(0, 40_000), min_size=1, max_size=5),
    st.integers(0, 70_000),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50_000)), max_size=20),
    st.lists(st.integers(0, 70_000), max_size=3),
)
def test_windows_of_any_size_let_all_answers_pass(
    sizes: list[int], initial: int, updates: list[tuple[int, int]], changes: list[int]
) -> None:
    """No more data leaves than both windows allow; when they open, all does, in order."""
    connection = Connection(PREFACE + h2.settings(initial_window_size=initial))
    streams = [connection.begun(2 * number + 1) for number in range(len(sizes))]
    answers = {it.id: bytes(it.id + at & 255 for at in range(size)) for it, size in zip(streams, sizes, strict=True)}
    room, rooms, read = CLIENT_WINDOW_BYTES, dict.fromkeys(answers, initial), dict.fromkeys(answers, b"")

    def note() -> None:
        nonlocal room
        for it in connection.heard():
            if it.kind == DATA:
                assert len(it.payload) <= FRAME_BYTES_MAX
                room -= len(it.payload)
                rooms[it.stream_id] -= len(it.payload)
                assert room >= 0
                assert rooms[it.stream_id] >= 0
                read[it.stream_id] += it.payload

    for stream in streams:
        connection.answer(stream, answers[stream.id])
        note()
    for number, more in updates:
        stream_id = 2 * number - 1 if number else 0
        connection.say(h2.window(stream_id, more) if stream_id in answers or not stream_id else h2.ping())
        room += more if not stream_id else 0
        if stream_id in answers:
            rooms[stream_id] += more
        note()
        if changes:
            initial, before = changes.pop(), initial
            connection.say(h2.settings(initial_window_size=initial))
            rooms = {it: size + initial - before for it, size in rooms.items()}
            note()
    assert connection.http2.violation is None
    room += 2**20
    rooms = {it: size + 2**20 for it, size in rooms.items()}
    connection.say(h2.window(0, 2**20), *(h2.window(it, 2**20) for it in answers))
    note()
    assert read == answers
    http2 = connection.http2
    assert (http2.streams, http2.pending_bytes, len(http2._blocked), http2.streams_bytes) == ({}, 0, 0, 0)


def test_a_long_answer_is_released_piece_by_piece() -> None:
    connection = Connection()
    stream = connection.begun()
    connection.answer(stream, bytes(10 * FRAME_BYTES_MAX))
    assert stream.pending is not None
    assert max(map(len, stream.pending)) <= FRAME_BYTES_MAX
    assert sum(map(len, stream.pending)) == stream.pending_bytes == 10 * FRAME_BYTES_MAX - CLIENT_WINDOW_BYTES


def test_many_blocked_streams_cost_a_window_nothing() -> None:
    """The windows of the streams are shut: that of the connection has nothing to look through."""
    connection = Connection(PREFACE + h2.settings(initial_window_size=0))
    for number in range(1, 2 * STREAMS_MAX, 2):
        connection.answer(connection.begun(number), b"x")
    assert len(connection.http2._blocked) == 0
    connection.say(h2.window(0, 1))
    connection.say(h2.window(7, 1))
    assert body(connection.heard(), 7) == b"x"


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([h2.window(0, WINDOW_MAX)], ErrorCode.FLOW_CONTROL_ERROR),
        ([h2.window(0, 0)], ErrorCode.PROTOCOL_ERROR),
        ([h2.window(5, 1)], ErrorCode.PROTOCOL_ERROR),
        ([frame(WINDOW_UPDATE, 0, b"123")], ErrorCode.FRAME_SIZE_ERROR),
        ([h2.settings(initial_window_size=WINDOW_MAX + 1)], ErrorCode.FLOW_CONTROL_ERROR),
        ([h2.window(1, 1), h2.settings(initial_window_size=WINDOW_MAX)], ErrorCode.FLOW_CONTROL_ERROR),
    ],
)
def test_windows_that_end_the_connection(frames: list[bytes], code: ErrorCode) -> None:
    connection = Connection()
    connection.begun()
    assert connection.broken(*frames) == code


@pytest.mark.parametrize(("more", "code"), [(0, ErrorCode.PROTOCOL_ERROR), (WINDOW_MAX, ErrorCode.FLOW_CONTROL_ERROR)])
def test_windows_that_end_a_call(more: int, code: ErrorCode) -> None:
    connection = Connection()
    stream = connection.begun()
    assert connection.say(h2.window(1, more)) == [(stream, None, True)]
    assert [it.error for it in connection.heard()] == [code]
    connection.say(h2.window(1, 5))  # of a call that has ended
    assert connection.http2.violation is None


# --- windows for the client's data ---

PIECE = bytes(FRAME_BYTES_MAX)


def test_the_windows_open_again_as_soon_as_data_came() -> None:
    connection = Connection()
    connection.begun(ends=False)
    opened = {0: 0, 1: 0}
    count = 2 * CONNECTION_WINDOW_BYTES // len(PIECE)
    for _ in range(count):
        connection.say(h2.data(1, PIECE))
        for it in connection.heard():
            opened[it.stream_id] += it.number
    assert connection.http2.violation is None
    sent = count * len(PIECE)
    assert sent - CONNECTION_WINDOW_BYTES // 2 <= opened[0] <= sent + 1
    assert sent - STREAM_WINDOW_BYTES // 2 <= opened[1] <= sent + 1


def test_windows_that_are_held_stay_shut() -> None:
    connection = Connection()
    stream, other = connection.begun(ends=False), connection.begun(3, ends=False)
    connection.http2.hold(waits=True)
    for _ in range(STREAM_WINDOW_BYTES // len(PIECE) - 1):
        assert connection.say(h2.data(1, PIECE)) == [(stream, PIECE, False)]
    assert connection.heard() == []
    connection.http2.hold(waits=False)
    [window] = connection.heard()
    assert (window.kind, window.stream_id) == (WINDOW_UPDATE, 1)
    assert (stream.window, other.window) == (STREAM_WINDOW_BYTES, STREAM_WINDOW_BYTES - 1)
    connection.http2.hold(waits=True)
    connection.say(*[h2.data(1, PIECE)] * (STREAM_WINDOW_BYTES // len(PIECE)))
    [reset] = [it for it in [*connection.say(h2.data(1, b"x")), *connection.heard()] if isinstance(it, Frame)]
    assert (reset.stream_id, reset.error) == (1, ErrorCode.FLOW_CONTROL_ERROR)


def test_more_data_than_the_window_of_the_connection() -> None:
    connection = Connection()
    connection.http2.hold(waits=True)
    numbers = range(1, 2 * CONNECTION_WINDOW_BYTES // STREAM_WINDOW_BYTES, 2)
    for number in numbers:
        connection.begun(number, ends=False)
        connection.say(*[h2.data(number, PIECE)] * (STREAM_WINDOW_BYTES // len(PIECE) - 1))
        connection.say(h2.data(number, PIECE[1:]))
    assert connection.http2.violation is None
    assert connection.http2._window == 0
    assert (
        connection.broken(h2.headers(numbers[-1] + 2), h2.data(numbers[-1] + 2, b"x")) == ErrorCode.FLOW_CONTROL_ERROR
    )


def test_data_of_ended_calls_uses_the_window_of_the_connection_up_and_opens_it() -> None:
    connection = Connection()
    connection.http2.reset(connection.begun(ends=False), ErrorCode.CANCEL)
    connection.heard()
    for _ in range(CONNECTION_WINDOW_BYTES // len(PIECE)):
        connection.say(h2.data(1, PIECE))
    assert kinds(connection.heard()) == [WINDOW_UPDATE]


# --- other frames ---


def test_a_ping_is_answered_at_once() -> None:
    connection = Connection()
    connection.say(h2.ping(b"12345678"), h2.ping(b"answered", ACK))
    assert connection.heard() == [(PING, ACK, 0, b"12345678")]


def test_goaway_priority_and_unknown_frames_change_nothing() -> None:
    connection = Connection()
    priority = frame(PRIORITY, 9, bytes(5))
    connection.say(frame(GOAWAY, 0, bytes(8)), priority, frame(99, 5, b"x", 255))
    assert connection.heard() == []
    dependent = frame(HEADERS, 1, b"\x80\x00\x00\x07\x10" + CALL_BLOCK, END_HEADERS | END_STREAM | HAS_PRIORITY)
    [(stream, _, _)] = connection.say(dependent)
    connection.answer(stream, b"x")
    assert body(connection.heard(), 1) == b"x"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (h2.ping(b"short"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(PING, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(GOAWAY, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(GOAWAY, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, bytes(6), ACK), ErrorCode.FRAME_SIZE_ERROR),
        (h2.settings(enable_push=2), ErrorCode.PROTOCOL_ERROR),
        (h2.settings(max_frame_size=FRAME_BYTES_MAX - 1), ErrorCode.PROTOCOL_ERROR),
        (h2.settings(max_frame_size=2**24), ErrorCode.PROTOCOL_ERROR),
        (frame(PUSH_PROMISE, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(CONTINUATION, 1, b"", END_HEADERS), ErrorCode.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (h2.headers(2), ErrorCode.PROTOCOL_ERROR),
        (h2.headers(0), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 1, b"1234", END_HEADERS | HAS_PRIORITY), ErrorCode.FRAME_SIZE_ERROR),
        (h2.headers(1, b"\xff"), ErrorCode.COMPRESSION_ERROR),
        (h2.data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (h2.data(1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (h2.reset(0), ErrorCode.PROTOCOL_ERROR),
        (h2.reset(1), ErrorCode.PROTOCOL_ERROR),
        (frame(RST_STREAM, 1, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_frames_that_end_the_connection(wrong: bytes, code: ErrorCode) -> None:
    assert Connection().broken(wrong) == code


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (h2.data(1, b"x"), ErrorCode.STREAM_CLOSED),
        (h2.headers(1), ErrorCode.STREAM_CLOSED),
        (h2.headers(3), ErrorCode.PROTOCOL_ERROR),  # passed over by 5
    ],
)
@pytest.mark.parametrize("is_answered", [True, False])
def test_frames_behind_the_end_of_a_call(wrong: bytes, code: ErrorCode, is_answered: bool) -> None:
    connection = Connection()
    stream = connection.begun()
    connection.begun(5)
    if is_answered:
        connection.answer(stream, b"x")
    assert connection.broken(wrong) == code


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (frame(PRIORITY, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(PRIORITY, 1, b"\0\0\0\x01\0"), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_wrong_priority_ends_its_call(wrong: bytes, code: ErrorCode) -> None:
    connection = Connection()
    stream = connection.begun()
    assert connection.say(wrong) == [(stream, None, True)]
    assert [it.error for it in connection.heard()] == [code]
    own = frame(HEADERS, 3, b"\0\0\0\x03\0" + CALL_BLOCK, END_HEADERS | END_STREAM | HAS_PRIORITY)
    assert [data for _, data, _ in connection.say(own)] == [b"", None]


def test_frames_of_calls_that_the_server_has_reset_are_ignored() -> None:
    connection = Connection()
    stream = connection.begun(ends=False)
    connection.http2.reset(stream, ErrorCode.CANCEL)
    assert connection.say(h2.data(1, b"x"), h2.window(1, 1), h2.headers(1, ends=True), h2.reset(1)) == []
    assert connection.http2.violation is None


def test_after_leaving_open_calls_are_answered_and_others_refused() -> None:
    connection = Connection()
    stream = connection.begun()
    connection.http2.leave()
    connection.http2.leave()
    assert connection.heard() == [(GOAWAY, 0, 0, (1).to_bytes(4) + bytes(4))]
    assert connection.say(h2.call(3)) == []
    assert [(it.stream_id, it.error) for it in connection.heard()] == [(3, ErrorCode.REFUSED_STREAM)]
    connection.answer(stream, b"x")
    assert body(connection.heard(), 1) == b"x"


def test_giving_up_ends_the_connection() -> None:
    connection = Connection()
    connection.say(frame(DATA, 1, bytes(100))[:50])
    assert connection.http2.held_bytes == 50
    connection.http2.give_up("it takes too much")
    assert connection.http2.violation == "ENHANCE_YOUR_CALM: it takes too much"
    assert connection.http2.held_bytes == 0


def test_a_request_may_begin_with_rows_and_go_on_with_fields_that_choose_its_method() -> None:
    connection = Connection()
    rows = b"\x83\x86"  # :method and :scheme
    for stream_id, path in ((1, b"/a"), (3, b"/b")):
        [(stream, _, _)] = connection.say(h2.headers(stream_id, rows + b"\x04\x02" + path, ends=True))
        assert stream.fields == {b":method": b"POST", b":scheme": b"http", b":path": path}
        assert stream.head.first is None
    assert connection.say(h2.headers(5, rows, ends=True)) == []
    assert connection.say(h2.headers(7, rows + b"\x04\x02/a\x83", ends=True)) == []
    [(stream, _, _)] = connection.say(h2.headers(9, rows + b"\x84\x00\x01a\x01b", ends=True))
    assert stream.head.first is not None
    assert stream.head.first.fields == {b":method": b"POST", b":scheme": b"http", b":path": b"/"}


# --- all together ---


def played(pieces: list[bytes]) -> tuple[list[tuple[int, bytes | None, bool]], list[Frame], str | None, int]:
    """Return what pieces of a conversation mean, and what is answered in the end."""
    connection = Connection(b"")
    arrived = [it for piece in pieces for it in connection.say(piece)]
    events = [(stream.id, data, ends) for stream, data, ends in arrived]
    for stream, data, ends in arrived:
        if ends and data is not None:
            connection.answer(stream, framed(b"answer"))
    return events, connection.heard(), connection.http2.violation, connection.http2.held_bytes


@given(conversations, st.data())
def test_any_split_means_the_same(conversation: bytes, data: st.DataObject) -> None:
    assert played(data.draw(split(conversation))) == played([conversation])


@given(conversations)
def test_any_conversation_holds_only_its_open_calls(conversation: bytes) -> None:
    connection = Connection(b"")
    http2 = connection.http2
    for stream, data, ends in connection.say(conversation):
        if ends and data is not None:
            connection.answer(stream, framed(b"answer"))
    assert http2.streams_bytes == sum(it.held_bytes for it in http2.streams.values())
    assert http2.pending_bytes == sum(it.pending_bytes for it in http2.streams.values())
    assert all(http2.streams.get(it.id) is it and it.pending for it in http2._blocked.values())
    assert http2.held_bytes <= FRAME_BYTES_MAX + 9 + BLOCK_BYTES_MAX
    fields = Decoder(lambda before, fields: {**(before or {}), **dict(fields)})
    for it in connection.heard():
        assert len(it.payload) <= FRAME_BYTES_MAX
        if it.kind == HEADERS:
            assert fields.decode(it.payload)
