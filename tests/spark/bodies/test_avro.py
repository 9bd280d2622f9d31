"""Bodies become typed columns, or say that they don't: Avro."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from firearrow.errors import ConfigError
from firearrow.spark import decoded
from firearrow.spark.bodies.avro import AvroBodies
from firearrow.spark.bodies.bodies import Undecodable, decoded_values
from firearrow.spark.bodies.registry import FRAME, Registry
from tests.spark.bodies.test_decode import both, table
from tests.spark.registries import GLOBAL, serving_schemas


def record(*fields: tuple[str, Any] | tuple[str, Any, Any], name: str = "Order") -> dict[str, Any]:
    parts = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": parts}


def encoded(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(schema), value)
    return stream.getvalue()


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
LINE = record(("sku", "string"), ("at", MILLIS), name="Line")
WIDE = record(
    ("i", "int"), ("l", ["int", "long"]), ("f", "float"), ("d", "double"), ("b", "boolean"),
    ("s", ["null", "string"]), ("raw", "bytes"), ("at", MILLIS), ("maybe", ["null", MILLIS]),
    ("day", {"type": "int", "logicalType": "date"}), ("money", MONEY),
    ("id", {"type": "string", "logicalType": "uuid"}),
    ("state", {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}),
    ("lines", {"type": "array", "items": LINE}), ("by", {"type": "map", "values": "Line"}),
    ("tags", {"type": "map", "values": "int"}),
)  # fmt: skip
AT = datetime(2026, 1, 1, 0, 0, 0, 123000, UTC)


def test_values_are_typed(spark: SparkSession, tmp_path: Path) -> None:
    line = {"sku": "a", "at": AT}
    value = {
        "i": -1, "l": 1 << 40, "f": 0.5, "d": 0.1, "b": True, "s": None, "raw": b"\0", "at": AT,
        "maybe": None, "day": date(2026, 1, 2), "money": Decimal("-12.34"), "state": "PAID",
        "id": "00000000-0000-0000-0000-000000000001", "lines": [line], "by": {"x": line},
        "tags": {"t": 1},
    }  # fmt: skip
    (tmp_path / "order.avsc").write_text(json.dumps(WIDE), encoding="utf-8")
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Shanghai")
    messages = table(session, [encoded(WIDE, value), None])
    rows = decoded(messages, "avro", str(tmp_path / "order.avsc"))
    assert rows.schema["value"].dataType == StructType.fromDDL(
        "i int, l long, f float, d double, b boolean, s string, raw binary, at timestamp, "
        "maybe timestamp, day date, money decimal(4,2), id string, state string, "
        "lines array<struct<sku: string, at: timestamp>>, "
        "by map<string, struct<sku: string, at: timestamp>>, tags map<string, int>"
    )
    times = ["unix_millis(value.at) at", "unix_millis(value.by['x'].at) inner"]
    row, empty = rows.sort("queueOffset").selectExpr("value", "undecoded", *times).collect()
    millis = int(AT.timestamp() * 1000)
    assert (row.at, row.inner, row.undecoded) == (millis, millis, None)
    same = value.keys() - {"raw", "at", "lines", "by"}
    assert {key: row.value[key] for key in same} == {key: value[key] for key in same}
    assert (bytes(row.value.raw), row.value.lines[0].sku) == (b"\0", "a")
    assert (empty.value, empty.undecoded) == (None, None)


def test_what_is_no_such_record_is_undecoded(spark: SparkSession) -> None:
    schema = record(("n", "int"), ("s", "string"), ("money", MONEY))
    fine = encoded(schema, {"n": 1, "s": "x", "money": Decimal("0.05")})
    damaged = [
        b"", b"\xff" * 30, fine + b"x", fine[:-1], b'{"n": 1}', b"\x02\x02\xff\x02\x05",
        encoded(record(("n", "long")), {"n": 1 << 40}) + fine[1:],  # no int
        fine[:-2] + b"\x08\x7f\xff\xff\xff",  # more digits than money has
    ]  # fmt: skip
    rows = both(decoded(table(spark, [fine, *damaged, fine]), "avro", json.dumps(schema)))
    value = (Row(n=1, s="x", money=Decimal("0.05")), None)
    assert rows == [value, *((None, body) for body in damaged), value]


def test_a_registry_knows_what_a_body_was_written_with(spark: SparkSession) -> None:
    old = record(("n", "int"), ("gone", "string"))
    new = record(("n", "long"), ("note", "string", "none"))
    other = record(("unlike", "int"))
    bodies = [
        FRAME.pack(0, 1) + encoded(old, {"n": 1, "gone": "x"}),
        FRAME.pack(0, 2) + encoded(new, {"n": 1 << 40, "note": "y"}),
    ]
    damaged = [
        FRAME.pack(0, 3) + encoded(other, {"unlike": 1}), FRAME.pack(0, 4) + b"\x02",
        b"\0", b"", FRAME.pack(1, 2) + b"\x02\0", FRAME.pack(0, 2) + b"\x02\0more",
    ]  # fmt: skip
    schemas = {number: json.dumps(it) for number, it in enumerate((old, new, other), 1)}
    with serving_schemas(schemas, {"orders-value": 2}) as (url, _):
        messages = table(spark, bodies + damaged)
        rows = decoded(messages, "avro", registry=url, subject="orders-value")
        assert rows.schema["value"].dataType == StructType.fromDDL("n long, note string")
        values = [Row(n=1, note="none"), Row(n=1 << 40, note="y")]
        assert both(rows) == [(it, None) for it in values] + [(None, body) for body in damaged]
        given = decoded(messages, "avro", json.dumps(record(("n", "double"))), registry=url)
        assert [row.value for row in given.where("undecoded is null").collect()] == [
            Row(n=1.0), Row(n=float(1 << 40)),
        ]  # fmt: skip
    with pytest.raises(PythonException, match=f"schema registry {url}: .*refused"):
        decoded(table(spark, [FRAME.pack(0, 77)]), "avro", schemas[1], registry=url).collect()


def test_what_can_not_be_is_told(spark: SparkSession, tmp_path: Path) -> None:
    both_times = ["int", {"type": "long", "logicalType": "timestamp-micros"}]
    for schema, told in {
        "/no/such.avsc": r"Avro schema '/no/such.avsc': .*No such file",
        "{": r"Avro schema '{': Expecting property name",
        '"int"': "Avro schema '\"int\"': must be a record with fields",
        json.dumps(record()): "must be a record with fields",
        json.dumps(record(("a", "strin"))): "Avro schema .*: strin$",
        json.dumps(record(("a", both_times))): "field a can't be .* a union of int and long, not both plain",
        json.dumps(record(("a", "null"))): "field a can't be a column: null",
        json.dumps(record(("a", MONEY | {"precision": 39}))): "a decimal of 39 digits",
    }.items():
        with pytest.raises(ConfigError, match=told):
            decoded(table(spark, []), "avro", schema)
    assert AvroBodies(json.dumps(record(("a", "int")))).fields().names == ["a"]
    wrong_arguments: list[tuple[dict[str, Any], str]] = [
        ({}, "avro bodies: give a schema, or a schema registry and a subject"),
        ({"schema": "{}", "message": "M"}, "avro bodies have no message 'M'"),
        ({"schema": StructType()}, "avro bodies: the schema must be a text, not a StructType"),
    ]
    for wrong, told in wrong_arguments:
        with pytest.raises(ConfigError, match=told):
            decoded(table(spark, []), "avro", **wrong)
    with pytest.raises(ConfigError, match="subject 's': needs a schema registry, and no other"):
        decoded(table(spark, []), "json", subject="s")


NODE = record(
    ("raw", "bytes"), ("rate", "double"), ("next", ["null", "Node"]),
    ("inner", {"type": "array", "items": "Node"}), ("any", ["null", "Node", "string"]), name="Node",
)  # fmt: skip
LEAF = {"raw": b"\0", "rate": 0.5, "next": None, "inner": [], "any": None}
LEAF_TEXT = '{"raw":"AA==","rate":0.5,"next":null,"inner":[],"any":null}'


@pytest.mark.usefixtures("spark")  # to read a schema from its text
def test_a_record_in_itself_is_the_text_of_its_json() -> None:
    bodies = AvroBodies(json.dumps(NODE))
    assert bodies.fields() == StructType.fromDDL(
        "raw binary, rate double, next string, inner array<string>, any struct<Node: string, string: string>"
    )
    far = LEAF | {"rate": float("-inf"), "next": LEAF, "any": "ä"}
    value = bodies.decoder()(encoded(NODE, LEAF | {"next": far, "inner": [LEAF, LEAF], "any": ("Node", LEAF)}))
    text = f'{{"raw":"AA==","rate":"-Infinity","next":{LEAF_TEXT},"inner":[],"any":"ä"}}'
    assert value == {
        "raw": b"\0", "rate": 0.5, "next": text, "inner": [LEAF_TEXT] * 2, "any": {"Node": LEAF_TEXT, "string": None},
    }  # fmt: skip


def test_a_body_of_any_depth_ends_no_process() -> None:
    """An extension in C that calls itself for each level overflows its stack."""
    node = record(("next", ["null", "Node"]), name="Node")
    around = record(("id", "string"), ("node", node))
    without = record(("id", "string"))
    with serving_schemas({1: json.dumps(around)}, {}) as (url, _):
        reads = AvroBodies(json.dumps(node)).decoder(), AvroBodies(json.dumps(without), Registry(url)).decoder()
        for decode, start in zip(reads, (b"", FRAME.pack(0, 1) + b"\x02x"), strict=True):
            assert decode(start + b"\x02" * 50 + b"\0")
            for depth in (1000, 1_000_000):
                with pytest.raises(Undecodable, match="recursion"):
                    decode(start + b"\x02" * depth + b"\0")


def test_a_list_of_nothing_stalls_no_process() -> None:
    """A few bytes say that it has 2**40 items, and all of them are there."""
    nothing = record(("a", "null"), ("b", record(name="Empty")), name="Nothing")
    written = [
        record(("them", {"type": "array", "items": items}), ("n", "int"))
        for items in ("null", nothing, {"type": "fixed", "name": "F", "size": 0}, {"type": "null"})
    ]
    written.append(record(("one", nothing), ("them", {"type": "array", "items": "Nothing"}), ("n", "int")))
    schemas = {number: json.dumps(schema) for number, schema in enumerate(written, 1)}
    with serving_schemas(schemas, {}) as (url, _):
        decode = AvroBodies(json.dumps(record(("n", "int"))), Registry(url)).decoder()
        for number in schemas:
            with pytest.raises(Undecodable, match="the items of a list take no bytes"):
                decode(FRAME.pack(0, number) + b"\x80\x80\x80\x80\x80\x80\x01\0\x02")
    with pytest.raises(ConfigError, match="the items of a list take no bytes"):
        AvroBodies(schemas[2]).fields()


@given(body=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_undecoded(body: bytes) -> None:
    """A value has the columns' types, and its texts are JSON."""
    bodies = AvroBodies(json.dumps(record(("tree", NODE), ("at", ["null", MILLIS, "string"]))))
    kind = pa.struct(list(to_arrow_schema(bodies.fields(), timezone="UTC")))
    values, reasons = decoded_values(bodies, kind, pa.array([body]))
    assert values.null_count == len(reasons)
    (tree,) = values.field("tree").to_pylist()  # Python has no time for some of Arrow's
    if not reasons:
        for text in (tree["next"], *tree["inner"]):
            assert text is None or json.loads(text).keys() == LEAF.keys()


ADDRESS = record(("city", "string"), name="com.shop.Address")
SIDE = {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}
CHOICE = ["null", "int", "long", "double", "string", "bytes", "boolean", ADDRESS, SIDE]
CHOICE += [{"type": "fixed", "name": "Two", "size": 2}, {"type": "array", "items": "int"}]
CHOICE += [{"type": "map", "values": "com.shop.Address"}]
CHOSEN = (
    st.tuples(st.just("long"), st.integers(-(1 << 63), (1 << 63) - 1))
    | st.tuples(st.just("double"), st.floats(allow_nan=False))
    | st.tuples(st.just("string"), st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
    | st.tuples(st.just("bytes"), st.binary(max_size=3))
    | st.tuples(st.just("boolean"), st.booleans())
    | st.tuples(st.just("Address"), st.fixed_dictionaries({"city": st.sampled_from(["", "x"])}))
    | st.tuples(st.just("Side"), st.sampled_from(["BUY", "SELL"]))
    | st.tuples(st.just("Two"), st.binary(min_size=2, max_size=2))
    | st.tuples(st.just("array"), st.lists(st.integers(0, 9), max_size=3))
    | st.tuples(st.just("map"), st.dictionaries(st.sampled_from("ab"), st.just({"city": "y"}), max_size=2))
)
FULL_NAMES = {"Address": "com.shop.Address", "Side": "Side", "Two": "Two"}


@given(chosen=st.none() | CHOSEN)
def test_a_union_is_a_structure_with_the_field_of_its_type(chosen: tuple[str, Any] | None) -> None:
    bodies = AvroBodies(json.dumps(record(("it", CHOICE))))
    names = ["long", "double", "string", "bytes", "boolean", "Address", "Side", "Two", "array", "map"]
    assert bodies.fields()["it"].dataType.names == names  # type: ignore[attr-defined]
    given_value = chosen and ((FULL_NAMES[chosen[0]], chosen[1]) if chosen[0] in FULL_NAMES else chosen[1])
    value = bodies.decoder()(encoded(record(("it", CHOICE)), {"it": given_value}))
    held = chosen and (chosen[0], list(chosen[1].items()) if chosen[0] == "map" else chosen[1])
    assert value == {"it": None if held is None else dict.fromkeys(names) | dict([held])}


def test_a_union_takes_what_was_written_without_one() -> None:
    union = [SIDE, "bytes", ADDRESS, record(("n", "int"), name="Other"), "double"]
    written: list[tuple[Any, Any, str, Any]] = [
        ("bytes", b"x", "bytes", b"x"), ("int", 5, "double", 5.0), (SIDE, "BUY", "Side", "BUY"),
        (record(("n", "int"), name="Other"), {"n": 1}, "Other", {"n": 1}),
        ([SIDE, "bytes"], ("Side", "SELL"), "Side", "SELL"),
        ([SIDE | {"name": "old.Side"}, "bytes"], ("old.Side", "SELL"), "Side", "SELL"),
    ]  # fmt: skip
    for number, (kind, value, name, found) in enumerate(written, 1):
        with serving_schemas({number: json.dumps(record(("it", kind)))}, {}) as (url, _):
            decode = AvroBodies(json.dumps(record(("it", union))), Registry(url)).decoder()
            held = decode(FRAME.pack(0, number) + encoded(record(("it", kind)), {"it": value}))["it"]
        assert {key: it for key, it in held.items() if it is not None} == {name: found}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (("a", "c"), {"b": 1, "c": 3}),
        (("b", "c"), {"b": 2, "c": 3}),
        (("a", "b", "c"), {"b": 2, "c": 3}),
        (("b", "c", "a"), {"b": 2, "c": 3}),
        (("c", "former"), {"b": 4, "c": 3}),
    ],
)
def test_a_field_has_the_value_of_its_alias_unless_it_was_written_itself(
    written: tuple[str, ...], value: dict[str, int]
) -> None:
    known = {"a": 1, "b": 2, "c": 3, "former": 4}
    schema = record(*((name, "int") for name in written))
    columns = record(("b", "int"), ("c", "int"))
    columns["fields"][0]["aliases"] = ["former", "a"]
    with serving_schemas({1: json.dumps(schema)}, {}) as (url, _):
        bodies = AvroBodies(json.dumps(columns), Registry(url))
        body = encoded(schema, {name: known[name] for name in written})
        assert bodies.decoder()(FRAME.pack(0, 1) + body) == value


@pytest.mark.usefixtures("spark")  # to read a schema from its text
def test_two_types_of_one_name_have_their_full_names() -> None:
    union = [record(("a", "int"), name=f"{space}.Line") for space in ("x", "y.z")]
    bodies = AvroBodies(json.dumps(record(("it", union))))
    assert bodies.fields() == StructType.fromDDL("it struct<Line: struct<a: int>, y_z_Line: struct<a: int>>")
    value = bodies.decoder()(encoded(record(("it", union)), {"it": ("y.z.Line", {"a": 1})}))
    assert value == {"it": {"Line": None, "y_z_Line": {"a": 1}}}


def test_types_of_other_subjects_are_found(spark: SparkSession) -> None:
    line = record(("sku", "string"), ("price", "com.shop.Money"), name="Line") | {"namespace": "com.shop"}
    order = record(("line", "Line"), ("more", {"type": "array", "items": "com.shop.Line"}), ("sum", "Money"))
    order |= {"namespace": "com.shop"}
    money = record(("cents", "long"), name="com.shop.Money")
    schemas = {number: json.dumps(it) for number, it in enumerate((money, line, order), 1)}
    references = {2: [("com.shop.Money", "money")], 3: [("com.shop.Line", "line"), ("com.shop.Money", "money")]}
    body = b"\x02a\x0a" + b"\x02\x02b\x0c\0" + b"\x0e"
    subjects = {"money": 1, "line": 2, "orders": 3}
    with serving_schemas(schemas, subjects, references=references) as (url, _):
        rows = decoded(table(spark, [FRAME.pack(0, 3) + body]), "avro", registry=url, subject="orders")
        first, second = Row(sku="a", price=Row(cents=5)), Row(sku="b", price=Row(cents=6))
        assert both(rows) == [(Row(line=first, more=[second], sum=Row(cents=7)), None)]


def test_an_id_of_another_schema_stops_no_other_body() -> None:
    """A producer can write any id."""
    schemas = {1: json.dumps(record(("n", "int"))), 2: '"strin"', 3: "{", 4: json.dumps(record(("a", "gone.Type")))}
    schemas |= {6: "{}", 7: "7"}
    references = {4: [("gone.Type", "gone")], 6: [("x", "damaged")]}
    with serving_schemas(schemas, {"damaged": 3}, references=references) as (url, _):
        decode = AvroBodies(schemas[1], Registry(url)).decoder()
        for schema_id, told in {
            2: "schema 2 of the registry is no Avro schema: strin", 3: "is no Avro schema: Expecting",
            4: "has no /subjects/gone/versions/1", 5: "schema 5 is not in the registry",
            6: "Avro schema 6 or one that it refers to: JSONDecodeError", 7: "is no Avro schema",
        }.items():  # fmt: skip
            for _ in range(2):
                with pytest.raises(Undecodable, match=told):
                    decode(FRAME.pack(0, schema_id) + b"\x02")
        assert decode(FRAME.pack(0, 1) + b"\x02") == {"n": 1}
    with (
        serving_schemas({1: "{}"}, {}, more={"schemaType": "JSON"}) as (url, _),
        pytest.raises(Undecodable, match="/schemas/ids/1 is JSON, not AVRO"),
    ):
        AvroBodies(schemas[1], Registry(url)).decoder()(FRAME.pack(0, 1) + b"\x02")


def test_apicurio_names_schemas_by_eight_bytes() -> None:
    schema = json.dumps(record(("n", "int")))
    with serving_schemas({7: schema}, {"default/orders": 7}, apicurio="v2") as (url, _):
        decode = AvroBodies(schema, Registry(url)).decoder()
        assert decode(b"\0" + (GLOBAL + 7).to_bytes(8) + b"\x02") == {"n": 1}
        with pytest.raises(Undecodable, match=f"schema {GLOBAL + 8} is not in the registry"):
            decode(b"\0" + (GLOBAL + 8).to_bytes(8) + b"\x02")
