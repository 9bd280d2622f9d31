"""Through Spark: the rows are those of the loop, and errors reach the user."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from firearrow.errors import ConfigError
from firearrow.spark.options import parse
from firearrow.spark.source.datasource import RocketMQSource, checked_schema, table_schema
from firearrow.spark.tables import MESSAGES, PROPERTIES_MAP, TABLES
from tests.spark import logs, oracle


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred messages of all kinds."""
    root = tmp_path_factory.mktemp("source") / "broker-t"
    logs.write(root, logs.any_messages(7, 300), 16_384)
    return root


def test_rows_are_those_of_the_loop(spark: SparkSession, store: Path) -> None:
    frame = spark.read.format("rocketmq").option("splitBytes", "5k").load(str(store))
    assert frame.schema.names == MESSAGES.names
    assert {field.name for field in frame.schema if field.nullable} == {"tags", "keys"}
    assert frame.rdd.getNumPartitions() > 3
    rows = frame.toArrow().sort_by("commitLogOffset").to_pylist()
    expected = oracle.visible(store, "broker-t")
    assert rows == [{name: row[name] for name in MESSAGES.names} for row in expected]


def test_a_schema_of_ones_own_chooses_columns(spark: SparkSession, store: Path) -> None:
    frame = (
        spark.read.format("rocketmq")
        .schema("properties map<string,string>, queueOffset long, topic string")
        .load(str(store))
    )
    found = [(t, q, sorted((p or {}).items())) for p, q, t in map(tuple, frame.collect())]
    expected = [
        (row["topic"], row["queueOffset"], sorted(row["map"].items())) for row in oracle.visible(store, "broker-t")
    ]
    assert sorted(found) == sorted(expected)


CONDITIONS = [
    "topic = 'T'",
    "topic in ('T', 'other') and queueId = 1",
    "topic like 'topic%' and queueOffset between 3 and 9",
    "commitLogOffset >= 9000 and commitLogOffset < 20000 and queueId <> 0",
    "storeTimestamp > timestamp_millis(1795000000200) and queueOffset in (1, 5, 20)",
    "storeTimestamp <= timestamp_millis(1795000000200)",
    "tags = 'TagB' or tags = 'A'",
    "tags = 'A' and topic = 'T'",
    "keys = 'k1 k2' and topic = 'T'",
    "msgId = '00FF' and topic = 'other'",
    "tags is null and topic = 'nowhere'",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_filters_choose_the_same_rows_wherever_they_are_looked_at(
    spark: SparkSession, store: Path, condition: str
) -> None:
    def places(**options: str) -> list[int]:
        frame = spark.read.format("rocketmq").options(**options).load(str(store))
        rows = frame.where(condition).select("commitLogOffset").collect()
        return sorted(row.commitLogOffset for row in rows)

    assert places(pushdown="on", splitBytes="5k") == places()


def test_queries_do_not_disturb_each_other(spark: SparkSession, store: Path) -> None:
    frame = spark.read.format("rocketmq").load(str(store))
    some = frame.where("topic = 'T'").count()
    others = frame.where("topic = 'other'")
    assert 0 < some < frame.count() == len(oracle.visible(store, "broker-t"))
    both = frame.where("topic = 'T'").union(others)
    assert both.count() == some + others.count()


def test_errors_reach_the_user(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    reader = spark.read.format("rocketmq")
    with pytest.raises(AnalysisException, match=r"ConfigError: option path=.* does not exist"):
        reader.load(str(tmp_path / "nowhere")).count()
    with pytest.raises(AnalysisException, match="table='mesages': allowed is messages, consume_q"):
        spark.read.format("rocketmq").option("table", "mesages").load(str(store))
    with pytest.raises(AnalysisException, match="topic 'nowhere' is in none of the stores"):
        spark.read.format("rocketmq").option("subscribe", "nowhere").load(str(store)).count()
    with pytest.raises(AnalysisException, match="table messages has no column 'offset', but brok"):
        spark.read.format("rocketmq").schema("offset long").load(str(store)).count()
    with pytest.raises(AnalysisException, match=r"column queueId .* is int32, not string"):
        spark.read.format("rocketmq").schema("queueId string").load(str(store)).count()
    root = tmp_path / "broken"
    logs.write(root, [logs.Sent()] * 3)
    path = root / "commitlog" / f"{0:020d}"
    path.write_bytes(b"\0" * 8 + path.read_bytes()[8:])
    with pytest.raises(PySparkException, match=r"CorruptStore: .* at 0 of the log is not the mess"):
        spark.read.format("rocketmq").load(str(root)).count()


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_its_columns(table: str) -> None:
    options = parse({"path": "x", "table": table})
    declared = table_schema(options)
    assert declared.names == TABLES[table].names
    assert declared.types == TABLES[table].types
    for asked in (declared, TABLES[table]):
        assert checked_schema(options, from_arrow_schema(asked)).equals(asked)


def test_a_schema_says_not_null_only_where_that_is_so(spark: SparkSession, store: Path) -> None:
    reader = spark.read.format("rocketmq")
    frame = reader.schema("topic string not null, tags string, body binary").load(str(store))
    assert [field.nullable for field in frame.schema] == [False, True, True]
    assert frame.count() == len(oracle.visible(store, "broker-t"))
    with pytest.raises(AnalysisException, match=r"column tags of table messages may be null"):
        reader.schema("tags string not null").load(str(store)).count()


def test_properties_are_as_the_option_says() -> None:
    kinds = {word: table_schema(parse({"path": "x", "properties": word})) for word in ("raw", "map", "none")}
    assert kinds["raw"].field("properties").type == pa.string()
    assert kinds["map"].field("properties").type == PROPERTIES_MAP
    assert "properties" not in kinds["none"].names


def test_an_option_chooses_columns_without_their_types() -> None:
    given = {"path": "p", "columns": "topic, properties, queueId", "properties": "map"}
    chosen = table_schema(parse(given))
    assert [(column.name, column.type) for column in chosen] == [
        ("topic", pa.string()),
        ("properties", PROPERTIES_MAP),
        ("queueId", pa.int32()),
    ]
    with pytest.raises(ConfigError, match=r"^table messages has no column 'properties', but broker, topic, .*, body$"):
        table_schema(parse(given | {"properties": "none"}))
    with pytest.raises(ConfigError, match=r"^table topics has no column 'queueId', but broker, topic, "):
        table_schema(parse({"path": "p", "columns": "queueId", "table": "topics"}))


def test_the_source_says_what_is_wrong_before_it_reads() -> None:
    with pytest.raises(ConfigError, match=r"path .* or nameServer"):
        RocketMQSource({}).schema()
