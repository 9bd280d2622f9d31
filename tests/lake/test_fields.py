"""Columns from a text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from firearrow.errors import ConfigError
from firearrow.lake.fields import fields_of


def test_types_have_the_names_of_spark_sql() -> None:
    text = "a string, b:int, `c d` decimal(10,2), e ARRAY<map<string, struct<f: long, g timestamp>>>, h decimal(4)"
    assert fields_of(text) == pa.schema(
        [
            ("a", pa.string()),
            ("b", pa.int32()),
            ("c d", pa.decimal128(10, 2)),
            ("e", pa.list_(pa.map_(pa.string(), pa.struct([("f", pa.int64()), ("g", pa.timestamp("us", "UTC"))])))),
            ("h", pa.decimal128(4, 0)),
        ]
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a name expected at character 0"),
        ("a", "no type '' at character 1"),
        ("a string b int", "',' expected at character 10"),
        ("a text", "no type 'text' at character 6"),
        ("a array<int", "'>' expected at character 11"),
        ("a map<int, int>", "the keys of a map must be of type string at character 9"),
        ("a decimal(39)", "a decimal has 1 to 38 digits at character 13"),
        ("a decimal(x)", "a number expected at character 11"),
        ("a int, A long", "two fields have one name"),
        ("a int;", "a character that can't be in a schema at character 5"),
    ],
)
def test_a_wrong_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        fields_of(text)
    assert str(refused.value) == f"schema {text!r}: {reason}"
