"""RocketMQ's JSON dialect: read as fastjson2 reads, write what it writes."""

import contextlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.wire import fastjson
from firearrow.wire.codes import ResponseCode
from firearrow.wire.fastjson import (
    DIGITS_MAX,
    REQUEST_LIMITS,
    STEP_ENTRIES,
    TextLimits,
    decode,
    dumps,
    dumps_in_steps,
    dumps_standard,
    java_double,
    loads,
)
from firearrow.wire.jsondialect import DEPTH_MAX, ObjectKey, with_quoted_keys, with_quoted_objects
from tests.cputime import cpu_seconds
from tests.golden import extract, golden_names

integers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
plain = st.one_of(texts, integers, st.booleans())
object_keys = st.dictionaries(texts, plain, min_size=1, max_size=3).map(ObjectKey)
keys = st.one_of(texts, integers, object_keys)
values = st.recursive(
    plain, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)), max_leaves=20
)


class Queue(msgspec.Struct, rename="camel", frozen=True):
    topic: str
    broker_name: str
    queue_id: int = 0


class Table(msgspec.Struct, rename="camel"):
    offset_table: dict[Queue, int]
    name: str | None = None


@given(values)
def test_what_was_written_before_is_taken_as_it_is(value: Any) -> None:
    written = msgspec.Raw(dumps(value))
    assert dumps({"a": [written, 1]}) == dumps({"a": [value, 1]})


@given(values, st.booleans())
def test_what_is_written_is_read_back(value: Any, pretty: bool) -> None:
    assert loads(dumps(value, pretty)) == value


@pytest.mark.parametrize("store", golden_names)
def test_a_brokers_files_are_written_as_it_wrote_them(store: str, tmp_path: Path) -> None:
    files = sorted((extract(store, tmp_path) / "config").glob("*.json"))
    assert files
    for file in files:
        data = file.read_bytes()
        assert dumps(loads(data), pretty=True) == data, file.name


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"offsetTable":{0:25,-1:7}}', {"offsetTable": {0: 25, -1: 7}}),
        ('{"0":25}', {"0": 25}),
        ('{{"queueId":3,"topic":"T"}:1}', {ObjectKey(queueId=3, topic="T"): 1}),
        ("{'a':'it\\'s',}", {"a": "it's"}),
        ("[1,2,]", [1, 2]),
        ("/* x */ [1, // y\n 2] // z", [1, 2]),
        ('\ufeff{"a":1}', {"a": 1}),
        ('["tab\tnewline\nnul\x00"]', ["tab\tnewline\nnul\x00"]),
        ('["\\ud83d\\ude00","\\ud83d"]', ["😀", "\ufffd"]),
        ("['\\x41\\u00e9\\v\\0\\q']", ["Aé\v\0q"]),
        ("[-1.5e3,true,false,null,]", [-1500.0, True, False, None]),
        ("{1:{},2:[]}", {1: {}, 2: []}),
    ],
)
def test_what_fastjson_reads_is_read(text: str, value: Any) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at byte 0: a value is missing"),
        ("{a:1}", "at byte 1: no JSON token"),
        ("{'a':1} 2", "at byte 8: there is more after the end"),
        ("{0:1", "at byte 4: a comma or } is missing"),
        ("[1 2]", "at byte 3: a comma or ] is missing"),
        ("{'a' 1}", "at byte 5: a colon is missing"),
        ("{[1]:1}", "a name can't be this"),
        ("{true:1}", "a name can't be this"),
        ("{{'a':[1]}:1}", "the object that is a key is not plain"),
        ("[,]", "a value is missing"),
        ("'open", "no JSON token"),
        ("/* open", "no JSON token"),
        ("1 /* open", "at byte 1: no JSON token"),
        ("[1e999,]", "out of range"),
        ("[1x]", "no JSON token"),
        ("{0:" * 100_000, "nested deeper"),
        ("[" * 100_000, "nested deeper"),
        (" " * 100_000 + "@", "no JSON token"),
        ("[" + "9" * 5000 + ",]", "out of range"),
    ],
)
def test_what_it_refuses_is_refused_with_place_and_reason(text: str, reason: str) -> None:
    with pytest.raises(MessageError, match=reason.replace("]", r"\]")):
        loads(text)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(MessageError, match="not UTF-8"):
        loads(b'{"a":"\xff"}')


@given(st.one_of(st.binary(), st.text()))
def test_no_input_raises_anything_else(data: bytes | str) -> None:
    with contextlib.suppress(MessageError):
        loads(data)


@given(st.text(alphabet="{}[],:'\"\\/*01-e.tnu \n", max_size=60))
def test_nearly_sound_input_raises_nothing_else(text: str) -> None:
    try:
        value = loads(text)
    except MessageError:
        return
    assert loads(dumps(value)) == _without_none(value)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def test_nesting_up_to_the_limit_is_read() -> None:
    text = "[" * (DEPTH_MAX - 1) + "{0:1}" + "]" * (DEPTH_MAX - 1)
    assert dumps(loads(text)).decode() == text


def test_structs_print_alphabetically_without_what_is_none() -> None:
    table = Table({Queue("T", "b", 3): 7})
    text = b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:7}}'
    assert dumps(table) == text
    assert decode(text, Table) == table


def test_in_the_pretty_form_a_key_that_is_an_object_has_lines() -> None:
    table = Table({Queue("T", "b", 3): 7})
    key = '{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":3,\n\t\t\t"topic":"T"\n\t\t}'
    text = f'{{\n\t"offsetTable":{{\n\t\t{key}:7\n\t}}\n}}'
    assert dumps(table, pretty=True).decode() == text
    assert decode(text, Table) == table


def test_the_pretty_form() -> None:
    value = {"a": [], "b": {}, "c": [1, {"d": "x"}], "e": {0: {1: 2}}}
    text = '{\n\t"a":[],\n\t"b":{},\n\t"c":[\n\t\t1,\n\t\t{\n\t\t\t"d":"x"\n\t\t}\n\t],\n\t"e":{\n'
    assert dumps(value, pretty=True).decode() == text + "\t\t0:{\n\t\t\t1:2\n\t\t}\n\t}\n}"


def test_the_standard_form_is_json_with_sorted_quoted_keys() -> None:
    value = {"b": {10: "é", 2: None, 0: [Queue("T", "b")]}, "a": 1.5}
    text = dumps_standard(value)
    assert text.decode() == ('{"a":1.5,"b":{"0":[{"brokerName":"b","queueId":0,"topic":"T"}],"10":"é"}}')
    assert json.loads(text)


def test_numbers_with_names_are_numbers() -> None:
    assert dumps({"code": ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUCCESS: {1}}) == (b'{"code":17,0:[1]}')


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes is not JSON"):
        dumps({"a": b"x"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (100.0, "100.0"),
        (0.001, "0.001"),
        (1e-4, "1.0E-4"),
        (1.234e-10, "1.234E-10"),
        (9999999.999, "9999999.999"),
        (1e7, "1.0E7"),
        (-12345678.9, "-1.23456789E7"),
        (1e22, "1.0E22"),
        (123456789012345680000.0, "1.2345678901234568E20"),
        (float("nan"), "null"),
        (float("inf"), "null"),
    ],
)
def test_floats_as_java_prints_them(value: float, text: str) -> None:
    assert java_double(value) == text
    assert dumps([value]) == f"[{text}]".encode()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_their_value(value: float) -> None:
    assert float(java_double(value)) == value


def test_typed_reading_is_as_lenient() -> None:
    text = '{"offsetTable":{{"topic":"T","brokerName":"b","queueId":"3",x:1}:"7"},"name":null}'
    assert decode(text.replace("x:", "'x':"), Table) == Table({Queue("T", "b", 3): 7})
    assert decode('{0:"1","2":3}', dict[int, int]) == {0: 1, 2: 3}
    assert decode('{"topic":"T","brokerName":"b","queueId":null}', Queue) == Queue("T", "b")


@pytest.mark.parametrize("text", ["{}", '{"topic":5}', "[", '{"topic":"T","brokerName":[]}'])
def test_typed_reading_says_what_does_not_fit(text: str) -> None:
    with pytest.raises(MessageError, match="JSON"):
        decode(text, Queue)


def test_typed_reading_survives_any_depth() -> None:
    with pytest.raises(MessageError):
        decode('{"x":' * 100_000, Queue)
    deep = '{"x":' + "[" * 5000 + "]" * 5000 + "}"
    with pytest.raises(MessageError):
        decode(deep, Queue)


def test_what_has_not_changed_is_not_formatted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = fastjson.PrettyText()
    state: dict[str, Any] = {
        "version": {"counter": 1},
        "empty": {},
        "none": None,
        "table": {"a": {"x": 1}, "b": {0: 25, 1: 7}, "c": {}, "d": 3, "e": None},
        "list": [1, 2],
    }
    assert b"".join(text.pieces(state)) == fastjson.dumps(state, pretty=True)
    formatted: list[Any] = []
    write = fastjson._write

    def noting(value: Any, out: list[str], newline: str) -> None:
        formatted.append(value)
        write(value, out, newline)

    monkeypatch.setattr(fastjson, "_write", noting)
    state["table"] = {"a": {"x": 1}, "b": {0: 26, 1: 7}, "f": {"y": 1}}
    changed = b"".join(text.pieces(state))
    assert [value for value in formatted if isinstance(value, dict)] == [{0: 26, 1: 7}, {"y": 1}]
    assert changed == fastjson.dumps(state, pretty=True)
    assert b"".join(text.pieces({})) == fastjson.dumps({}, pretty=True)


def test_long_texts_are_written_in_pieces_of_like_work() -> None:
    text = fastjson.PrettyText()
    state: dict[str, dict[str, Any]] = {"a": {f"t{n}": {"x": n} for n in range(2000)}, "b": {}}
    whole = fastjson.dumps(state, pretty=True)
    first, second = list(text.pieces(state)), list(text.pieces(state))
    assert b"".join(first) == b"".join(second) == whole
    formatted = fastjson.PIECE_WORK // fastjson.FORMATTED_WORK
    assert max(piece.count(b'"x"') for piece in first) <= formatted
    assert max(piece.count(b'"x"') for piece in second) == fastjson.PIECE_WORK
    state["a"] = {f"t{number}": number for number in range(fastjson.PIECE_WORK)}
    assert b"".join(text.pieces(state)) == fastjson.dumps(state, pretty=True)


# --- within limits ---

LIMITS = TextLimits(10, 200)


class Numbered(msgspec.Struct):
    numbers: dict[int, str] = {}
    names: list[str] = []
    text: str = ""


@given(
    st.dictionaries(st.integers(0, 2**31), texts, max_size=5),
    st.lists(texts, max_size=3),
    texts | st.sampled_from(['"{1:', "{0:0,1:1}", "\\", ',2:"']),
)
def test_long_texts_with_bare_keys_are_read_as_short_ones(numbers: dict[int, str], found: list[str], text: str) -> None:
    data = dumps({"numbers": numbers, "names": found, "text": text})
    expected = Numbered(numbers, found, text)
    assert decode(data, Numbered) == expected
    assert decode(data, Numbered, TextLimits(0, 1 << 20)) == expected
    assert decode(data.decode(), Numbered, TextLimits(0, 1 << 20)) == expected


@given(
    st.dictionaries(st.tuples(texts, integers), st.dictionaries(texts, integers | texts), max_size=4),
    st.sampled_from(["", " ", "\n"]),
    texts | st.sampled_from(['"{', "}", "x{", ":1}:", "\\", "\0{}"]),
)
def test_keys_that_are_objects_are_read_as_token_by_token(
    found: dict[tuple[str, int], dict[str, Any]], space: str, text: str
) -> None:
    value = {"table": {ObjectKey(topic=topic, queueId=number): item for (topic, number), item in found.items()}}
    data = dumps({**value, text: [text]}).replace(b"}:", b"}%b:" % space.encode())
    comment = b"/**/"  # keeps msgspec from it
    try:
        expected = loads(data + comment)
    except MessageError:
        expected = None
    if expected is not None:
        assert loads(data) == expected
    if with_quoted_objects(dumps(value)) is not None:
        assert loads(dumps(value)) == value


@pytest.mark.parametrize("text", ['{{"a":null}:1}', '{{"a":1}:}', '{{"a":{}}:1}', '{{"a":1}:1'])
def test_wrong_keys_that_are_objects_are_refused(text: str) -> None:
    with pytest.raises(MessageError):
        loads(text)


def test_objects_within_texts_are_no_keys() -> None:
    assert loads('{"x{":":1}:",{"a":1}:[2]}') == {"x{": ":1}:", ObjectKey(a=1): [2]}
    assert with_quoted_objects(b'{{"a":1}:2}') == rb'{"\u0000{\"a\":1}":2}'


@given(st.lists(texts | integers), texts)
def test_quotes_change_nothing_but_bare_keys(items: list[Any], text: str) -> None:
    sound = json.dumps({text: [items, {"a": 1, "b": [2, {"3": 4}]}], "x": items}).encode()
    assert with_quoted_keys(sound) == sound


@pytest.mark.parametrize(
    "data",
    [
        b'{"names":["aaaaaaaaa"],"text":null}',
        b'{ "numbers" : { 1 : "a" , -2:"b" } , "names" : null , "more": [{},[1,2]] }',
    ],
)
def test_nulls_in_long_texts_count_as_absent(data: bytes) -> None:
    assert len(data) > LIMITS.parsed
    assert decode(data, Numbered, LIMITS) == decode(data, Numbered)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{'text':'in single quotes'}", "object keys must be strings"),
        (b'{"text":"a trailing comma",}', "trailing comma"),
        (b'{"names":[' + b'"",' * 100 + b"null]}", "Expected `str`, got `null`"),
        (b'{"names":{"a":"b"},"text":null}', "Expected `array`, got `object`"),
        (b'{"numbers":{1:"' + b"a" * 200 + b'"}}', "malformed"),
        (b'{1:[{2:"unterminated', "truncated"),
    ],
)
def test_long_texts_are_read_in_no_slow_way(data: bytes, reason: str) -> None:
    with pytest.raises(MessageError, match=reason) as caught:
        decode(data, Numbered, LIMITS)
    assert f"of {len(data)} bytes with " in str(caught.value)
    assert "only plain JSON of the right types is read" in str(caught.value)
    short = TextLimits(len(data), len(data))
    with contextlib.suppress(MessageError):
        assert decode(data, Numbered, short) == decode(data, Numbered)


def test_bare_keys_of_a_long_text_are_limited() -> None:
    data = b'{"numbers":{1:"a",2:"b",3:"c"}}'
    weight = 6 + 4 * 2  # by commas and colons, and by brackets; three digits do not count
    assert len(decode(data, Numbered, TextLimits(10, 200, 2 * weight)).numbers) == 3
    with pytest.raises(MessageError, match=f"with {weight} values, only plain JSON"):
        decode(data, Numbered, TextLimits(10, 200, 2 * weight - 1))


def test_values_are_limited_however_sound_they_are() -> None:
    data = b'{"names":["a","b","c"]}'
    assert decode(data, Numbered, TextLimits(10, 200, values=5)).names == ["a", "b", "c"]
    with pytest.raises(MessageError, match="it has 5 values, the limit is 4"):
        decode(data, Numbered, TextLimits(10, 200, values=4))


@pytest.mark.parametrize("text", ['"%s"', '{"x":%s}', "[1.%s]"])
def test_numbers_are_limited(text: str) -> None:
    """To read one takes time by the square of its digits."""
    for digits in (DIGITS_MAX - 1, DIGITS_MAX):
        data = (text % ("7" * digits)).encode()
        if digits < DIGITS_MAX:
            decode(data, Any, TextLimits(10, 200))
        else:
            with pytest.raises(MessageError, match="a number has 1000 digits or more"):
                decode(data, Any, TextLimits(10, 200))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('{1:{-2 :"a"}, 3\n:[4,5]}', '{"1":{"-2" :"a"}, "3"\n:[4,5]}'),
        ('{"1:":2,"\\"3:":"\\\\",4:"5:"}', '{"1:":2,"\\"3:":"\\\\","4":"5:"}'),
        ("{1.5:1}", None),
        ("{1e5:1}", None),
        ("{-:1}", None),
        ("{--1:1}", None),
        ("{a1:1}", None),
        ('{1:"\x00"}', None),
    ],
)
def test_integer_keys_alone_get_quotes(text: str, same: str | None) -> None:
    assert with_quoted_keys(text.encode()).decode() == (same or text)


@pytest.mark.parametrize(
    "piece", [b"{},", b"0:0,", b"'a',", b",1", b", ", b"\\a", b'""', b"/**/", b"{", b"[", b'"a":null,', b" "]
)
@pytest.mark.parametrize("start", [b"", b'{"x":[', b'{"x":"', b'{"x":{'])
def test_no_text_takes_long(start: bytes, piece: bytes) -> None:
    """Each of them took twelve seconds and more at 15 MB; a text twice as long may take twice as
    long and not four times."""
    for limit in (REQUEST_LIMITS.parsed, REQUEST_LIMITS.converted):
        data = (start + piece * limit)[: limit - 1]

        def reading(data: bytes = data) -> None:
            with contextlib.suppress(MessageError):
                decode(data, Numbered, REQUEST_LIMITS)

        assert cpu_seconds(reading, 1) < 1


class Tables(msgspec.Struct, rename="camel"):
    by_queue: dict[Queue, dict[int, Any]]
    names: list[str]
    empty: dict[str, int]
    none: list[str]
    text: str = "x"
    nothing: str | None = None


@pytest.mark.parametrize("count", [0, 1, STEP_ENTRIES, STEP_ENTRIES + 1, 5 * STEP_ENTRIES])
def test_what_is_written_in_steps_is_the_same(count: int) -> None:
    queues = {Queue("T,]}", "b", n): {n: ["[", {}]} for n in range(count)}
    value = Tables(queues, [f'"{n}' for n in range(count)], {}, [])
    text: list[bytes] = []

    def taken() -> Generator[None, None, None]:
        text.append((yield from dumps_in_steps(value)))

    assert sum(1 for _ in taken()) >= 2 * count / STEP_ENTRIES
    assert text == [dumps(value)]


class Few(msgspec.Struct):
    numbers: Annotated[list[int], msgspec.Meta(max_length=3)]


def test_a_list_that_is_too_long_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec, "convert", None)
    for limits in (None, LIMITS):
        with pytest.raises(MessageError, match="of length <= 3"):
            decode(json.dumps({"numbers": [1] * 100}), Few, limits)


def test_a_set_with_nothing_in_it_has_lines_where_a_list_has_none() -> None:
    assert fastjson.dumps({"a": frozenset(), "b": []}, pretty=True) == (b'{\n\t"a":[\n\t\t\n\t],\n\t"b":[]\n}')
    assert fastjson.dumps({"a": frozenset()}) == b'{"a":[]}'
