"""Bodies in JSON decode as a whole or not at all, many at once as one by one."""

from __future__ import annotations

import itertools
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.lake.decoding import JsonBodies
from firearrow.lake.fields import fields_of
from firearrow.spark.bodies.registry import FRAME

ORDERS = fields_of("order string, cents int, rate double, paid boolean, at timestamp, lines array<struct<n: long>>")


def decode(schema: pa.Schema, *bodies: bytes | None, framed: bool = False) -> tuple[list[object], dict[int, str]]:
    decoder = pickle.loads(pickle.dumps(JsonBodies(schema, FRAME.size if framed else 0)))
    found = decoder.decode(pa.array(bodies, pa.binary()))
    assert [number for number, value in enumerate(found.values.to_pylist()) if value is None] == sorted(found.reasons)
    return found.values.to_pylist(), found.reasons


def test_fields_get_their_types_and_absent_ones_are_null() -> None:
    body = b'{"order": "o-1", "cents": 5, "rate": 1, "paid": true, "x": 1'
    body += b', "at": "2026-11-29T01:02:03Z", "lines": [{"n": 7}, {}]}'
    values, _ = decode(ORDERS, body, b"{}")
    assert values == [
        {
            "order": "o-1", "cents": 5, "rate": 1.0, "paid": True,
            "at": datetime(2026, 11, 29, 1, 2, 3, tzinfo=UTC), "lines": [{"n": 7}, {"n": None}],
        },
        dict.fromkeys(ORDERS.names),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is not JSON: "),
        (None, "there is no body"),
        (b" ", "the body is not JSON: "),
        (b"[]", "the body is no JSON object"),
        (b"null", "the body is no JSON object"),
        (b'{"order": "a"} {"order": "b"}', "the body is not JSON: Extra data"),
        (b'{"order": "a"}x', "the body is not JSON: Extra data"),
        (b'{"order": "a"', "the body is not JSON: "),
        (b'{"order": "a\xff"}', "the body is not UTF-8"),
        (b'{"order": "\\ud83d"}', "half of a surrogate pair"),
        (b'{"x": "\\udc00"}', "half of a surrogate pair"),
        (b'{"cents": 2147483648}', "cents: 2147483648 is too large"),
        (b'{"cents": 1.5}', "cents: 1.5 is no whole number"),
        (b'{"cents": "1"}', 'cents: "1" is no whole number'),
        (b'{"cents": true}', "cents: true is no whole number"),
        (b'{"rate": NaN}', "the body is not JSON: NaN is no number of JSON"),
        (b'{"paid": 1}', "paid: 1 is no boolean"),
        (b'{"at": 5}', "at: 5 is no timestamp"),
        (b'{"at": "today"}', 'at: "today" is no timestamp'),
        (b'{"lines": {}}', "lines: {} is no list"),
        (b'{"lines": [{"n": "x"}]}', 'lines: n: "x" is no whole number'),
        (b"[" * 100_000, "the body is not JSON: "),
    ],
)
def test_a_wrong_body_has_a_reason_and_spoils_no_other(body: bytes | None, reason: str) -> None:
    sound = b'{"order": "a"}'
    values, reasons = decode(ORDERS, *[sound] * 150, body, *[sound] * 50)
    assert list(reasons) == [150]
    assert reasons[150].startswith(reason)
    assert sum(value is not None for value in values) == 200


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "5", "5"),
        ("string", '{"a": [1, 2.0]}', '{"a": [1, 2.0]}'),
        ("string", '"\\u00e9\\ud83d\\ude80"', "é🚀"),
        ("decimal(5, 2)", "123.45", Decimal("123.45")),
        ("decimal(5, 2)", '"1"', Decimal("1.00")),
        ("date", '"2026-11-29"', date(2026, 11, 29)),
        ("binary", '"AAE="', b"\0\1"),
        ("map<string, long>", '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        ("tinyint", "-128", -128),
        ("float", "1e3", 1000.0),
        ("array<string>", '["a", null, 3]', ["a", None, "3"]),
        ("timestamp", '"2026-11-29 01:02"', datetime(2026, 11, 29, 1, 2, tzinfo=UTC)),
        ("timestamp", '"2026-11-29T01:02:03.123456+02:00"', datetime(2026, 11, 28, 23, 2, 3, 123456, tzinfo=UTC)),
        ("struct<a: int, `b c`: string>", '{"b c": "x", "a": 1}', {"a": 1, "b c": "x"}),
        ("long", "null", None),
    ],
)
def test_values_by_their_types(kind: str, text: str, value: object) -> None:
    values, reasons = decode(fields_of(f"f {kind}"), b'{"f": ' + text.encode() + b"}")
    assert not reasons
    assert values == [{"f": value}]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("decimal(5, 2)", "1.234"),
        ("decimal(5, 2)", "1000"),
        ("decimal(5, 2)", '"NaN"'),
        ("decimal(5, 2)", "true"),
        ("date", '"29.11.2026"'),
        ("binary", '"A"'),
        ("map<string, long>", "[]"),
        ("tinyint", "128"),
    ],
)
def test_values_that_are_not_of_their_types(kind: str, text: str) -> None:
    _, reasons = decode(fields_of(f"f {kind}"), b'{"f": ' + text.encode() + b"}")
    assert reasons[0].startswith(f"f: {text} ")


@pytest.mark.parametrize(
    "torn", [(b'{"f": ', b'{"n": 1}}', b"{}{}"), (b'{"f": {"n": 1}', b"}", b"{}{}"), (b'{"x":"}', b'{"}', b"{}{}")]
)
def test_pieces_of_an_object_do_not_decode(torn: tuple[bytes, ...]) -> None:
    values, reasons = decode(fields_of("f struct<n: long>"), b"{}", *torn, b"{}")
    assert list(reasons) == [1, 2, 3]
    assert values == [{"f": None}, None, None, None, {"f": None}]


def test_bodies_of_a_registry_begin_with_the_id_of_their_schema() -> None:
    values, reasons = decode(fields_of("f int"), b'\0\0\0\0\7{"f": 1}', b'{"f": 1}', b"\0\0\0", None, framed=True)
    assert values == [{"f": 1}, None, None, None]
    assert reasons == dict.fromkeys([1, 2], "the body does not begin with the id of a schema") | {3: "there is no body"}


texts = st.text(st.characters(codec="utf-8"), max_size=5)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
typed = st.fixed_dictionaries(
    {},
    optional={
        "order": texts,
        "cents": st.integers(-(2**31), 2**31 - 1),
        "rate": st.floats(allow_nan=False, allow_infinity=False),
        "paid": st.booleans(),
        "at": st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
        "lines": st.lists(st.fixed_dictionaries({}, optional={"n": st.integers(-(2**63), 2**63 - 1)}), max_size=2),
        "more": anything,
    },
)
sound = (
    typed.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(ORDERS.names) | texts, anything, max_size=3).map(
        lambda it: json.dumps(it).encode()
    )
    | anything.map(lambda value: json.dumps(value).encode())
)
torn = (
    st.lists(sound, min_size=1, max_size=3)
    .map(b"".join)
    .flatmap(
        lambda text: st.lists(st.integers(0, len(text)), max_size=4).map(
            lambda cuts: [text[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), len(text)])]
        )
    )
)
bodies = st.lists(sound | st.binary(max_size=8), max_size=6) | torn


@given(bodies)
def test_bodies_decode_together_as_they_do_alone(them: list[bytes]) -> None:
    together, reasons = decode(ORDERS, *them)
    alone = [decode(ORDERS, b"{", body) for body in them]  # the first one lets the reader look at each
    assert together == [values[1] for values, _ in alone]
    assert reasons == {number: of[1] for number, (_, of) in enumerate(alone) if 1 in of}


@given(typed)
def test_bodies_of_the_type_decode(value: dict[str, object]) -> None:
    (found,), reasons = decode(ORDERS, json.dumps(value).encode())
    assert not reasons
    assert isinstance(found, dict)
    assert all(found[name] == value.get(name) for name in ("order", "cents", "rate", "paid"))
