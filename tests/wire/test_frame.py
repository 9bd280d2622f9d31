"""The two header encodings, both ways, and what is said of headers that are neither."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from firearrow.errors import BrokerError, LocalProtocolError, RemoteProtocolError
from firearrow.wire import frame as frame_module
from firearrow.wire import headers
from firearrow.wire.binary import KIND_BINARY
from firearrow.wire.codes import FLAG_RESPONSE, PROTOCOL_VERSION, RequestCode
from firearrow.wire.command import Command, Response, fields_of, request
from firearrow.wire.frame import (
    CHUNK_BYTES_FULL,
    CHUNK_BYTES_SMALL,
    FRAME_BYTES_MAX,
    GENERAL_HEADER_BYTES_MAX,
    HEADER_BYTES_MAX,
    HOT_PREFIX_BYTES,
    KIND_JSON,
    LENGTHS,
    REMARK_CHARS_MAX,
    AnyCommand,
    Connection,
    SendAnswers,
    decode_header,
    encode_request,
    encode_response,
    pop_answer,
    pull_answer,
    response_frame,
)
from firearrow.wire.headers import EndTransaction, SendBack
from firearrow.wire.hotheaders import hot_decoders
from tests.wire.strategies import commands, ext_fields, frames_of, int16, int32, json_frame, split, texts

# From the 5.5.0 encoder: request 14, opaque 7, queueId=3, topic=T, consumerGroup=g.
JAVA_JSON = bytes.fromhex("000000a20000009e") + (
    b'{"code":14,"extFields":{"queueId":"3","topic":"T","consumerGroup":"g"},"flag":0,'
    b'"language":"PYTHON","opaque":7,"serializeTypeCurrentRPC":"JSON","version":513}'
)
JAVA_BINARY = bytes.fromhex(
    "0000004701000043000e0302010000000700000000000000000000002e00077175657565496400000001330005746f"
    "7069630000000154000d636f6e73756d657247726f75700000000167"
)


def decode(kind: int, header: bytes) -> AnyCommand:
    """A header by the way that a connection takes."""
    connection = Connection(decoders=hot_decoders())
    frame = LENGTHS.pack(4 + len(header), kind << 24 | len(header)) + header
    commands = connection.receive(frame)
    if connection.violation is not None:
        raise RemoteProtocolError(connection.violation)
    return commands[0]


def received(frame: bytes) -> Command[Any]:
    [command] = Connection(decoders=hot_decoders()).receive(frame)
    return command


@pytest.mark.parametrize("frame", [JAVA_JSON, JAVA_BINARY])
def test_frames_of_the_java_encoder(frame: bytes) -> None:
    command = received(frame)
    assert (command.code, command.opaque, command.flag, command.version) == (14, 7, 0, 513)
    assert command.language == "PYTHON"
    assert command.remark is None
    assert command.body == b""
    assert command.ext == {"queueId": "3", "topic": "T", "consumerGroup": "g"}
    assert encode_request(command) == frame


def test_the_worked_example_of_the_module_is_right() -> None:
    text = (frame_module.__doc__ or "").partition("``topic=T``:\n``")[2].partition("``")[0]
    command = received(bytes.fromhex(text))
    assert (command.code, command.opaque, command.version, command.ext) == (14, 7, 513, {"topic": "T"})


@given(commands)
def test_requests_both_ways(command: Command[dict[str, str]]) -> None:
    got = received(encode_request(command))
    sent = msgspec.structs.replace(command, version=PROTOCOL_VERSION, language="PYTHON")
    assert got == sent


@given(int16, int32, st.none() | texts.filter(bool), ext_fields, st.binary(), st.booleans())
def test_responses_both_ways(
    code: int, opaque: int, remark: str | None, fields: dict[str, str], body: bytes, binary: bool
) -> None:
    got = received(encode_response(Response(code, remark, fields, body), opaque, binary))
    assert (got.code, got.opaque, got.remark, got.ext) == (code, opaque, remark, fields)
    assert (got.flag, got.body, got.binary) == (FLAG_RESPONSE, body, binary)
    assert got.is_response


def test_values_of_fields_are_text() -> None:
    fields: dict[str, str | int | bool] = {"i": -3, "t": True, "f": False, "s": "x"}
    got = received(encode_response(Response(fields=fields), 1))
    assert got.ext == {"i": "-3", "t": "true", "f": "false", "s": "x"}


def test_a_hot_processors_own_header_makes_the_same_frame() -> None:
    frame = encode_response(Response(0, body=b"x"), 1)
    header = frame[8:-1]
    assert response_frame(header, b"x") == frame


int64 = st.integers(0, (1 << 63) - 1)


def as_frame(answer: Response | bytes, opaque: int, binary: bool) -> bytes:
    """The frame that an answer becomes, if it is none yet."""
    return answer if isinstance(answer, bytes) else encode_response(answer, opaque, binary=binary)


@given(texts, int32, int64, int32, int64, st.text(st.characters(codec="utf-8"), max_size=40), st.booleans())
def test_answers_to_sends_by_templates_say_what_the_general_encoder_says(
    region: str, opaque: int, place: int, queue_id: int, offset: int, unique: str, binary: bool
) -> None:
    answers = SendAnswers(region, trace_on=True, id_prefix="7F00000100002A9F")
    asked: Command[dict[str, str]] = Command(310, {}, opaque=opaque, binary=binary)
    found = as_frame(answers.frame(asked, place, queue_id, offset, unique.encode()), opaque, binary)
    general = encode_response(answers.response(place, queue_id, offset, unique.encode()), opaque, binary=binary)
    assert received(found) == received(general)
    batch = answers.batch_frame(opaque, b"7F,8A", queue_id, offset)
    assert received(batch) == received(encode_response(answers.batch_response(b"7F,8A", queue_id, offset), opaque))


@given(int32, st.tuples(int64, int64, int64), st.tuples(int32, int32, int32), st.binary(), st.booleans())
def test_answers_to_pulls_by_templates_say_what_the_general_encoder_says(
    opaque: int, offsets: tuple[int, int, int], others: tuple[int, int, int], records: bytes, binary: bool
) -> None:
    asked: Command[dict[str, str]] = Command(11, {}, opaque=opaque, binary=binary)
    (following, least, most), (topic_flag, group_flag, suggested) = offsets, others
    answer = pull_answer(
        asked, 0, RequestCode.PULL_MESSAGE, following, least, most, topic_flag, group_flag, records, suggested
    )
    fields = {
        "suggestWhichBrokerId": suggested, "nextBeginOffset": following, "minOffset": least,
        "maxOffset": most, "topicSysFlag": topic_flag, "groupSysFlag": group_flag,
    }  # fmt: skip
    general = encode_response(Response(fields=fields, body=records), opaque, binary=binary)
    assert received(as_frame(answer, opaque, binary)) == received(general)


@given(int32, st.tuples(int64, int64, int64), st.none() | st.just("0 0 1;1 3 2"), st.binary())
def test_answers_to_pops_by_templates_say_what_the_general_encoder_says(
    opaque: int, numbers: tuple[int, int, int], counts: str | None, records: bytes
) -> None:
    popped, invisible, rest = numbers
    fields: dict[str, str | int] = {
        "popTime": popped, "invisibleTime": invisible, "reviveQid": 3, "restNum": rest,
        "startOffsetInfo": "0 1 5", "msgOffsetInfo": "0 1 5,6",
    }  # fmt: skip
    if counts is not None:
        fields["orderCountInfo"] = counts
    asked: Command[dict[str, str]] = Command(200050, {}, opaque=opaque)
    answer = pop_answer(asked, popped, invisible, 3, rest, "0 1 5", "0 1 5,6", counts, records)
    assert received(answer) == received(encode_response(Response(fields=fields, body=records), opaque))


@given(int32)
def test_a_bare_yes_is_written_like_any_other_answer(opaque: int) -> None:
    other = encode_response(Response(1), opaque)
    assert encode_response(Response(), opaque) == other.replace(b'"code":1,', b'"code":0,')


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (36, {"group": "g", "offset": "5", "delayLevel": "0", "unitMode": "false"}),
        (37, {"producerGroup": "g", "tranStateTableOffset": "5", "commitLogOffset": "9", "commitOrRollback": "8"}),
    ],
)
def test_typed_headers_are_read_as_others_are(code: int, fields: dict[str, str]) -> None:
    kind = {36: SendBack, 37: EndTransaction}[code]
    header = encode_request(request(code, fields))[8:]
    typed = hot_decoders()[header[:HOT_PREFIX_BYTES]](header)
    assert type(typed.ext) is kind
    assert fields_of(typed, kind) == fields_of(decode_header(0, header), kind)


def test_pop_codes_do_not_fit_the_binary_header() -> None:
    command = Command[dict[str, str]](code=RequestCode.POP_MESSAGE, ext={}, binary=True)
    with pytest.raises(LocalProtocolError, match="200050"):
        encode_request(command)


def test_a_long_remark_is_cut() -> None:
    got = received(encode_response(Response(1, "\0" * 10_000_000), 1))
    assert got.remark == "\0" * REMARK_CHARS_MAX


@pytest.mark.parametrize("binary", [False, True])
def test_a_header_that_is_too_long_for_a_frame_is_refused(binary: bool) -> None:
    response = Response(fields={"value": "x" * HEADER_BYTES_MAX})
    with pytest.raises(LocalProtocolError, match="header of"):
        encode_response(response, 1, binary)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({"code": 14}, Command(14, {})),
        ({"code": 14, "extFields": None, "unknown": [1]}, Command(14, {})),
        ({"opaque": 3, "extFields": {"n": 5, "b": True, "x": None}, "code": 14},
         Command(14, {"n": "5", "b": "true"}, opaque=3)),
        ({"code": 14, "language": 3}, Command(14, {}, language=3)),
        ({"code": 14, "language": "COBOL"}, Command(14, {}, language="COBOL")),
        ({"code": "14", "opaque": "7", "flag": "2"}, Command(14, {}, 2, opaque=7)),
        ({"code": 14, "remark": 5, "extFields": [1], "language": [2]},
         Command(14, {}, remark="5")),
        ({"code": 14, "\0body": "aGk=", "\0binary": True}, Command(14, {})),
        ({"code": 200050, "opaque": 2**31 - 1}, Command(200050, {}, opaque=2**31 - 1)),
    ],
)  # fmt: skip
def test_headers_of_other_writers(header: Any, expected: Command[Any]) -> None:
    assert decode_header(KIND_JSON, json.dumps(header).encode()) == expected


@pytest.mark.parametrize(
    ("kind", "header", "reason"),
    [
        (KIND_JSON, b"{", "JSON header can't be read"),
        (KIND_JSON, b'{"code":1,"remark":"\xff"}', "JSON header can't be read"),
        (KIND_JSON, b"[" * 200_000, "JSON header can't be read"),
        (KIND_JSON, b"[]", "JSON header can't be read"),
        (KIND_JSON, b"{}", "field code is missing"),
        (KIND_JSON, b'{"code":1,"flag":null}', "field flag is missing"),
        (KIND_JSON, b'{"code":"x"}', "field code is not a number: 'x'"),
        (KIND_JSON, b'{"code":true}', "field code is not a number"),
        (KIND_JSON, b'{"code":1,"opaque":[]}', "field opaque is not a number"),
        (KIND_JSON, b'{"code":1,"opaque":"%s"}' % (b"9" * 5000), "field opaque is not a number"),
        (KIND_BINARY, b"", "binary header can't be read"),
        (KIND_BINARY, bytes(13) + b"\x7f\xff\xff\xff", "leaves it"),
        (KIND_BINARY, bytes(13) + b"\xff\xff\xff\xff", "leaves it"),
        (KIND_BINARY, bytes(17) + b"\x00\x00\x00\x06\x00\x09topi", "leaves it"),
        (KIND_BINARY, bytes(17) + b"\x00\x00\x00\x03\x00\x01\xff", "can't be read"),
        (2, b"{}", "serialisation type 2 is neither"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(kind: int, header: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        decode_header(kind, header)


SEND = {
    "producerGroup": "g", "topic": "T", "queueId": "3", "sysFlag": "0", "bornTimestamp": "1",
    "flag": "0", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "properties": "a\1b\2",
    "reconsumeTimes": "0", "unitMode": "false", "maxReconsumeTimes": "16", "batch": "true",
}  # fmt: skip
SEND_V2 = dict(zip("abefghcdijklm", SEND.values(), strict=True))
PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "3", "queueOffset": "7", "maxMsgNums": "32",
    "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
    "subVersion": "1", "expressionType": "TAG", "maxMsgBytes": "100",
}  # fmt: skip
COMMIT = {"consumerGroup": "g", "topic": "T", "queueId": "3", "commitOffset": "7"}

HOT: list[tuple[int, type[msgspec.Struct], dict[str, str]]] = [
    (RequestCode.SEND_MESSAGE, headers.SendMessage, SEND),
    (RequestCode.SEND_MESSAGE_V2, headers.SendMessageV2, SEND_V2),
    (RequestCode.SEND_BATCH_MESSAGE, headers.SendMessageV2, SEND_V2),
    (RequestCode.PULL_MESSAGE, headers.PullMessage, PULL),
    (RequestCode.UPDATE_CONSUMER_OFFSET, headers.UpdateConsumerOffset, COMMIT),
]
strange_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", " 1", "1 ", "+1", "0x1", "1_0", "1.0", "1e3", "TRUE", "yes", "null", "-0"]),
    int32.map(str),
    texts,
    st.lists(st.integers(), max_size=1),
    st.dictionaries(texts, texts, max_size=1),
)


@pytest.mark.parametrize(("code", "header", "fields"), HOT)
def test_hot_codes_come_typed(code: int, header: type[msgspec.Struct], fields: dict[str, str]) -> None:
    frame = encode_request(Command(code, fields, opaque=5, version=1, language="JAVA"))
    command = received(frame)
    assert type(command.ext) is header
    assert command.ext == fields_of(Command(code, fields), header)


@given(st.sampled_from(HOT), st.data())
def test_hot_decoders_equal_the_general_decoder(
    hot: tuple[int, type[msgspec.Struct], dict[str, str]], data: st.DataObject
) -> None:
    code, header, fields = hot
    names = st.sampled_from([*fields, "unknown"])
    changes = data.draw(st.dictionaries(names, strange_values, max_size=3))
    gone = data.draw(st.sets(names, max_size=1))
    changed = {n: v for n, v in {**fields, **changes}.items() if n not in gone}
    outer = data.draw(
        st.fixed_dictionaries(
            {}, optional={"opaque": int32 | int32.map(str), "flag": st.integers(0, 3), "remark": texts}
        )
    )
    text = json.dumps({"code": code, "extFields": changed, **outer}, separators=(",", ":")).encode()
    quick, general = decode(KIND_JSON, text), decode_header(KIND_JSON, text)
    assert outcome(quick, header) == outcome(general, header)
    for name in ("code", "opaque", "flag", "remark", "version", "language"):
        assert getattr(quick, name) == getattr(general, name)


def outcome(command: Command[Any], header: type[msgspec.Struct]) -> Any:
    """The typed header of a command, or why it has none."""
    try:
        return fields_of(command, header)
    except BrokerError as error:
        return error.code, str(error)


@given(st.sampled_from([KIND_JSON, KIND_BINARY]), st.binary(max_size=80))
def test_any_header_is_read_or_refused(kind: int, header: bytes) -> None:
    try:
        command = decode(kind, header)
    except RemoteProtocolError:
        return
    assume(isinstance(command.ext, dict))
    assert all(isinstance(item, str) for pair in command.ext.items() for item in pair)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_header_that_takes_long_to_read_is_refused(kind: int) -> None:
    reason = f"a header of {GENERAL_HEADER_BYTES_MAX + 1} bytes is above the limit"
    with pytest.raises(RemoteProtocolError, match=reason):
        decode_header(kind, b" " * (GENERAL_HEADER_BYTES_MAX + 1))
    text = b'{"code":1}'.ljust(GENERAL_HEADER_BYTES_MAX)
    assert decode_header(0, text).code == 1


@given(st.lists(commands, max_size=6), st.data())
def test_any_split_gives_the_same_commands(sent: list[Command[dict[str, str]]], data: st.DataObject) -> None:
    stream = frames_of(sent)
    whole, parts = Connection(decoders=hot_decoders()), Connection(decoders=hot_decoders())
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


@pytest.mark.parametrize("data", [b"", b"\0\0", json_frame({"code": 310})[:-1], json_frame(b"{", b"x" * 9)[:-1]])
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
    got = [command for at in range(0, len(frame), 65536) for command in connection.receive(frame[at : at + 65536])]
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
    connection = Connection(decoders=hot_decoders())
    frame = LENGTHS.pack(4 + len(text), len(text)) + text
    assert connection.receive(frame + frame) == []
    assert connection.violation is not None
    assert name in connection.violation
