"""Bodies become typed columns, or say that they don't: JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from firearrow.errors import ConfigError
from firearrow.spark import decoded
from tests.store.stores import append, opened


def table(spark: SparkSession, bodies: Sequence[bytes | None]) -> DataFrame:
    rows = [(number, body) for number, body in enumerate(bodies)]
    return spark.createDataFrame(rows, "queueOffset long, body binary").coalesce(1)


def both(rows: DataFrame) -> list[tuple[Any, bytes | None]]:
    found = rows.sort("queueOffset").collect()
    return [(row.value, row.undecoded and bytes(row.undecoded)) for row in found]


def test_values_are_typed_and_the_columns_stay(spark: SparkSession) -> None:
    body = {
        "id": "ä-1", "cents": 1 << 40, "rate": 0.5, "price": 12.34, "paid": True,
        "at": "2026-01-01T01:00:00.000123+01:00", "lines": [{"sku": "a"}], "extra": {"k": 1},
    }  # fmt: skip
    fields = (
        "id string, cents long, rate double, price decimal(9,2), paid boolean, at timestamp, "
        "lines array<struct<sku: string>>, extra map<string, int>, missing int"
    )
    rows = decoded(table(spark, [json.dumps(body).encode()]), "json", fields)
    assert rows.columns == ["queueOffset", "body", "value", "undecoded"]
    assert rows.schema["value"].dataType == StructType.fromDDL(fields)
    row = rows.selectExpr("value.*", "date_format(value.at, 'HH:mm:ss.SSSSSS') time").collect()[0]
    assert (row.id, row.cents, row.rate, row.paid) == ("ä-1", 1 << 40, 0.5, True)
    assert (row.price, row.time) == (Decimal("12.34"), "00:00:00.000123")
    assert (row.lines, row.extra, row.missing) == ([Row(sku="a")], {"k": 1}, None)


DAMAGED = [
    b"", b" ", b"null", b"7", b"text", b'{"a": 1', b'{"a": 1,}', b'{"a": "x"}', b'{"a": 1.5}',
    b'{"a": 99999999999}', b'{"a": NaN}', b'[{"a": 1}]', b'{"a": 1}{"a": 2}', b'{"a": 1}, {"a": 2}',
    b'{"a": 1} x', b'{"a": 1}] x', b'{"a": 1}} x', b'{"a": 1},"value":{"a": 2}',
    b'{"a": 1},"end":true} x', b'{"a": 1}],[{"a": 2}', b'{"b": "\xff"}', b'{"a": 1}\x00',
    b'{"l": [1, "x"]}', b"{'a': 1}",
]  # fmt: skip


def test_what_is_no_such_object_is_undecoded_as_a_whole(spark: SparkSession) -> None:
    fine = [b'\n {"a": 1} ', b'{"b": {"deep": [1]}, "c": 5}', b"{}", b'{"a": null}']
    bodies = [*fine, None, *DAMAGED]
    rows = both(decoded(table(spark, bodies), "json", "a int, b string, l array<int>"))
    values = [Row(a=1, b=None, l=None), Row(a=None, b='{"deep":[1]}', l=None)]
    values += [Row(a=None, b=None, l=None)] * 2
    assert rows == [*((value, None) for value in values), (None, None),
                    *((None, body) for body in DAMAGED)]  # fmt: skip


def test_half_of_a_surrogate_pair_is_no_text(spark: SparkSession) -> None:
    """No text of Spark holds one, so it would be another one: a question mark."""
    fine = {
        rb'{"b": "\ud83d\uDE00"}': "\U0001f600",
        rb'{"b": "\\ud83d"}': r"\ud83d",
        rb'{"b": "\\\ud83d\ude00"}': "\\\U0001f600",
        rb'{"b": "\u00e9?\ufffd"}': "é?\ufffd",
    }
    halves = [
        rb'{"b": "\ud83d"}', rb'{"b": "\uDE00 x"}', rb'{"b": "\ude00\ud83d"}',
        rb'{"b": "\ud83d\ud83d\ude00"}', rb'{"b": "\ud83d\\\ude00"}', rb'{"b": "\\\uD83D"}',
        rb'{"b": {"c": ["\ud800"]}}', rb'{"b": "", "other": "\udfff"}', rb'{"b": "", "\udfff": 1}',
    ]  # fmt: skip
    rows = both(decoded(table(spark, [*fine, *halves]), "json", "b string"))
    assert [value.b for value, _ in rows[: len(fine)]] == list(fine.values())
    assert rows[len(fine) :] == [(None, body) for body in halves]


def test_a_sample_says_what_the_fields_are(spark: SparkSession) -> None:
    bodies = [b'{"a": 1, "s": {"x": [true]}}', b"[1]", b"{'d': 1}", b'{"a": 2, "b": "y"}', b'{"c": 1}']
    rows = decoded(table(spark, bodies), "json", sample=4)
    assert rows.schema["value"].dataType == StructType.fromDDL("a long, b string, s struct<x: array<boolean>>")
    assert both(rows) == [
        (Row(a=1, b=None, s=Row(x=[True])), None),
        (None, b"[1]"),
        (None, b"{'d': 1}"),
        (Row(a=2, b="y", s=None), None),
        (Row(a=None, b=None, s=None), None),
    ]


LETTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "s": LETTERS,
        "f": st.floats(allow_nan=False, allow_infinity=False),
        "l": st.lists(st.booleans() | st.none(), max_size=3),
        "m": st.dictionaries(LETTERS, st.fixed_dictionaries({"x": st.integers(-9, 9)}), max_size=2),
    },
)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(objects=st.lists(OBJECTS, min_size=20, max_size=60))
def test_objects_of_a_schema_come_back(spark: SparkSession, objects: list[dict[str, Any]]) -> None:
    fields = "n long, s string, f double, l array<boolean>, m map<string, struct<x: int>>"
    bodies = [json.dumps(each, ensure_ascii=at % 2 == 0).encode() for at, each in enumerate(objects)]
    rows = both(decoded(table(spark, bodies), "json", fields))
    empty = dict.fromkeys("nsflm")
    assert [undecoded for _, undecoded in rows] == [None] * len(objects)
    assert [value.asDict(recursive=True) for value, _ in rows] == [empty | it for it in objects]


def test_a_filter_parses_once(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    rows = decoded(table(spark, []), "json", "a int, b int").where("undecoded is null")
    rows.select("queueOffset", "value.*").explain()
    plan = capsys.readouterr().out
    above, filtered = plan.split("Filter ")
    assert above.count("from_json(") <= 1  # none where Spark sees that it is dear
    assert filtered.count("from_json(") == 1


PIECES = ['{"a": 1}', "{", "}", "[", "]", ",", '"a": ', '"b": ', '"value": ', '"end": true', "1", " "]


def is_object(body: bytes) -> bool:
    """Whether a text is an object whose members ``a``, if any, are numbers."""
    try:
        found = json.loads(body, object_pairs_hook=tuple)
    except ValueError:
        return False
    return isinstance(found, tuple) and all(type(it) is int for name, it in found if name == "a")


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=7), min_size=200, max_size=300))
def test_no_text_around_an_object_is_lost(spark: SparkSession, texts: list[list[str]]) -> None:
    """A text is undecoded exactly if Python says that it is no object of this schema."""
    bodies = ["".join(text).encode() for text in texts]
    rows = both(decoded(table(spark, bodies), "json", "a int"))
    assert [undecoded is None for _, undecoded in rows] == [is_object(body) for body in bodies]
    assert all((value is None) != (undecoded is None) for value, undecoded in rows)


@pytest.mark.slow
def test_a_stream_is_decoded(spark: SparkSession, tmp_path: Path) -> None:
    """By Spark, and by workers."""
    sent = [b'{"id": "o-1"}', b"\x06o-2", b"damaged"]
    with opened(tmp_path / "store") as store:
        for body in sent:
            append(store, body, "Orders", 0)
    options = {"subscribe": "Orders", "startingOffsets": "earliest"}
    stream = spark.readStream.format("rocketmq").options(**options).load(str(tmp_path / "store"))
    with pytest.raises(ConfigError, match="a stream has no sample"):
        decoded(stream, "json")
    rows = decoded(stream, "json", "id string").withColumnsRenamed({"value": "json", "undecoded": "no_json"})
    avro = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    rows = decoded(rows, "avro", json.dumps(avro))
    query = rows.writeStream.format("memory").queryName("decoded").trigger(availableNow=True)
    assert query.start().awaitTermination(90)
    found = spark.table("decoded").sort("queueOffset").collect()
    first, second = Row(id="o-1"), Row(id="o-2")
    assert [(row.json, row.value) for row in found] == [(first, None), (None, second), (None, None)]
    assert [row.no_json and bytes(row.no_json) for row in found] == [None, *sent[1:]]
    assert [row.undecoded and bytes(row.undecoded) for row in found] == [sent[0], None, sent[2]]


def test_what_can_not_be_is_told(spark: SparkSession) -> None:
    messages = table(spark, [b"[]", b'{"a": 1}'])
    for wrong, told in {
        "a int, b strin": r"schema 'a int, b strin': Unsupported data type \"STRIN\"",
        "a int, a long": "schema 'a int, a long': must have fields, and no two of one name",
        "": "schema '': must have fields",
        "m map<int, int>": "schema 'struct<m:map<int,int>>': .*as a key type for a MAP",
    }.items():
        with pytest.raises(ConfigError, match=told):
            decoded(messages, "json", wrong)
    with pytest.raises(ConfigError, match=r"body format 'xml': must be json"):
        decoded(messages, "xml", "a int")
    with pytest.raises(ConfigError, match="none of the first 1 messages is a JSON object"):
        decoded(messages, "json", sample=1)
    with pytest.raises(ConfigError, match="schema 'struct<b:bigint,b:bigint>': must have"):
        decoded(table(spark, [b'{"b": 1, "b": 2}']), "json")
    with pytest.raises(ConfigError, match="a sample of 0 messages: must be more than 0"):
        decoded(messages, "json", sample=0)
    with pytest.raises(ConfigError, match="must have a column body of type binary"):
        decoded(messages.selectExpr("string(body) AS body"), "json", "a int")
    with pytest.raises(ConfigError, match="already have a column 'Value': rename it"):
        decoded(messages.selectExpr("body", "1 AS Value"), "json", "a int")
