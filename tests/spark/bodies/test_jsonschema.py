"""JSON Schema as Spark's types."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from firearrow.errors import ConfigError
from firearrow.lake.decoding import decoder_of
from firearrow.lake.spec import TableSpec
from firearrow.spark import decoded
from firearrow.spark.bodies.jsonschema import struct_of, struct_of_registered
from firearrow.spark.bodies.registry import FRAME, JSON, Registry
from tests.spark.bodies.test_decode import both, table
from tests.spark.registries import GLOBAL, serving_schemas


def of(*, more: dict[str, Any] | None = None, **properties: Any) -> str:
    return json.dumps({"type": "object", "properties": properties, **(more or {})})


def test_every_kind_has_a_type() -> None:
    line = {"type": "object", "properties": {"sku": {"type": "string"}}}
    schema = of(
        i={"type": "integer"},
        n={"type": ["null", "number"]},
        b={"oneOf": [{"type": "null"}, {"type": "boolean"}]},
        lines={"type": "array", "items": {"$ref": "#/definitions/a~1b"}},
        by={"type": "object", "additionalProperties": {"type": "integer"}},
        any={"type": "object"},
        two={"type": ["string", "integer"]},
        true=True,
        more={"definitions": {"a/b": line}},
    )
    assert struct_of(schema).simpleString() == (
        "struct<i:bigint,n:double,b:boolean,lines:array<struct<sku:string>>,by:map<string,bigint>,"
        "any:string,two:string,true:string>"
    )


def test_what_can_not_be_is_told() -> None:
    for schema, told in {
        "{": "JSON schema '{': Expecting property name",
        '{"type": "string"}': "must be of an object with properties",
        of(a={"$ref": "#/definitions/b"}): "JSON schema: #/definitions/b is not in it",
        of(a={"$ref": "other.json#/a"}): "JSON schema: other.json#/a is not in it",
    }.items():
        with pytest.raises(ConfigError, match=told):
            struct_of(schema)


def test_a_schema_in_itself_is_text() -> None:
    node = {"type": "object", "properties": {"v": {"type": "integer"}, "inner": {"type": "array"}}}
    node["properties"]["inner"]["items"] = {"$ref": "#/$defs/node"}  # type: ignore[index]
    schema = of(self={"$ref": "#"}, tree={"$ref": "#/$defs/node"}, more={"$defs": {"node": node}})
    assert struct_of(schema).simpleString() == "struct<self:string,tree:struct<v:bigint,inner:array<string>>>"


def test_schemas_of_other_subjects_are_found_by_name_and_by_id() -> None:
    money = json.dumps({"$defs": {"money": {"$ref": "#/$defs/cents"}, "cents": {"type": "integer"}}})
    line = of(price={"$ref": "https://x/money.json#/$defs/money"}, self={"$ref": "#"}, more={"$id": "https://x/l/line"})
    more = {"$id": "https://x/l/order"}
    schema = of(
        line={"$ref": "line.json"}, same={"$ref": "line"}, price={"$ref": "../money.json#/$defs/money"}, more=more
    )
    references = {2: [("https://x/money.json", "money")], 3: [("line.json", "line")]}
    subjects = {"money": 1, "line": 2, "order": 3}
    kind = {"schemaType": "JSON"}
    with serving_schemas({1: money, 2: line, 3: schema}, subjects, references=references, more=kind) as (url, _):
        found = struct_of_registered(Registry(url).latest("order", JSON))
    inner = "struct<price:bigint,self:string>"
    assert found.simpleString() == f"struct<line:{inner},same:{inner},price:bigint>"


def test_a_registry_has_the_schema_of_framed_bodies(spark: SparkSession) -> None:
    bodies = [FRAME.pack(0, 1) + b'{"id": "o-1", "n": 5}', b'{"id": "o-2"}', b"\0\0\0\0", b""]
    bodies += [FRAME.pack(0, 1), FRAME.pack(0, 1) + b"[]"]
    others = [(None, body) for body in bodies[1:]]
    schema = of(id={"type": "string"}, n={"type": "integer"})
    with serving_schemas({1: schema}, {"o": 1}, more={"schemaType": "JSON"}) as (url, _):
        rows = decoded(table(spark, bodies), "json", registry=url, subject="o")
        assert both(rows) == [(Row(id="o-1", n=5), None), *others]
        with pytest.raises(ConfigError, match="is JSON, not AVRO"):
            decoded(table(spark, bodies), "avro", registry=url, subject="o")
    inferred = decoded(table(spark, bodies), "json", registry="http://127.0.0.1:1")
    assert both(inferred) == [(Row(id="o-1", n=5), None), *others]
    given = decoded(table(spark, bodies), "json", "n int", registry="http://127.0.0.1:1")
    assert both(given) == [(Row(n=5), None), *others]


def test_ids_of_eight_bytes_are_behind_the_zero(spark: SparkSession) -> None:
    """In Spark and in typed tables."""
    frame = b"\0" + (GLOBAL + 1).to_bytes(8)
    bodies = [frame + b'{"n": 5}', frame, b"\0\0\0\0\0" + b'{"n": 5}', b"\0"]
    more = {"schemaType": "JSON"}
    with serving_schemas({1: of(n={"type": "integer"})}, {"g/o": 1}, more=more, apicurio="v2") as (url, _):
        rows = decoded(table(spark, bodies), "json", registry=url, subject="g/o")
        assert both(rows) == [(Row(n=5), None), *((None, body) for body in bodies[1:])]
        found = decoder_of(TableSpec(registry=url, subject="g/o")).decode(pa.array(bodies))
    assert found.values.to_pylist() == [{"n": 5}, None, None, None]
    assert sorted(found.reasons) == [1, 2, 3]
