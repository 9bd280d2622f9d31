"""Bodies become typed columns, or say that they don't: Avro."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from firearrow.errors import ConfigError
from firearrow.spark import decoded
from firearrow.spark.bodies.avro import AvroBodies
from firearrow.spark.bodies.registry import FRAME
from tests.spark.bodies.test_decode import both, table
from tests.spark.registries import serving_schemas


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
    node = record(("next", ["null", "Node"]), name="Node")
    for schema, told in {
        "/no/such.avsc": r"Avro schema '/no/such.avsc': .*No such file",
        "{": r"Avro schema '{': Expecting property name",
        '"int"': "Avro schema '\"int\"': must be a record with fields",
        json.dumps(record()): "must be a record with fields",
        json.dumps(record(("a", "strin"))): "Avro schema .*: strin$",
        json.dumps(record(("a", ["int", "string"]))): "field a can't be .* a union of several",
        json.dumps(record(("a", "null"))): "field a can't be a column: null",
        json.dumps(node): "field next can't be a column: Node",
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
