"""Column expressions read properties as the codec does."""

from __future__ import annotations

import pyspark.sql.functions as fn
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from firearrow.message.properties import parse
from firearrow.spark import properties

NAMES = ("TAGS", "KEYS", "S")
PIECES = st.lists(st.sampled_from(["TAGS", "KEYS", "S", "\x01", "\x02", "v", "\n", "é", ".*"]))
TEXTS = st.lists(PIECES.map("".join), min_size=200, max_size=200)


def test_values_are_those_of_the_codec(spark: SparkSession) -> None:
    @settings(max_examples=3)
    @given(texts=TEXTS)
    def check(texts: list[str]) -> None:
        texts = [*texts, "", "TAGS\x01A\x02TAGS\x01B\x02", "TAGS\x01A\x02TAGS\x01\x02", "XTAGS\x01A\x02"]
        frame = spark.createDataFrame([(text,) for text in texts], "properties string")
        read = properties.of(frame)
        rows = frame.select(
            "properties", properties.as_map(frame).alias("map"), *(read(name).alias(name) for name in NAMES)
        ).collect()
        for row in rows:
            expected = parse(row.properties)
            assert row["map"] == expected
            assert {name: row[name] for name in NAMES} == {n: expected.get(n) for n in NAMES}

    check()


def test_a_map_reads_like_the_string(spark: SparkSession) -> None:
    frame = spark.createDataFrame([({"TAGS": "A"},), (None,)], "properties map<string, string>")
    read = properties.of(frame)
    rows = frame.select(read("TAGS"), read("KEYS"), fn.map_keys(properties.as_map(frame))).collect()
    assert [tuple(row) for row in rows] == [("A", None, ["TAGS"]), (None, None, None)]


def test_no_string_has_no_properties(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(None,)], "properties string")
    (row,) = frame.select(properties.of(frame)("TAGS"), properties.as_map(frame)).collect()
    assert tuple(row) == (None, {})
