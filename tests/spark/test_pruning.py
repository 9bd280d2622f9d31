"""A query reads the columns that it uses, and gives what it gives without that."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from firearrow.spark import prune_columns
from firearrow.spark.pruning import PruningBuilder
from firearrow.spark.tables import MESSAGES
from tests.loglines import events
from tests.spark.jobs import orders

SCAN = re.compile(r"BatchScan rocketmq\[(.*?)\]")
Query = Callable[[DataFrame], DataFrame]

QUERIES: list[tuple[Query, list[list[str]]]] = [
    (lambda m: m.select("topic", "queueId"), [["topic", "queueId"]]),
    (lambda m: m.where("tags = 'new'").select("keys"), [["tags", "keys"]]),
    (lambda m: m.groupBy("topic").agg(fn.max("storeTimestamp")), [["topic", "storeTimestamp"]]),
    (lambda m: m.groupBy().count(), [["queueId"]]),
    (lambda m: m.orderBy("commitLogOffset").limit(3).select("queueOffset"), [["queueOffset", "commitLogOffset"]]),
    (lambda m: m.drop("body").select("*"), [[name for name in MESSAGES.names if name != "body"]]),
    (lambda m: m.select("*"), [MESSAGES.names]),
    (
        lambda m: m.alias("a").join(m.alias("b"), fn.expr("a.keys = b.keys")).select("a.topic", "b.flag"),
        [["topic", "keys"], ["flag", "keys"]],
    ),
    (lambda m: m.select("topic").union(m.select("tags")), [["topic"], ["tags"]]),
    (
        lambda m: m.sparkSession.sql("SELECT msgId, (SELECT max(flag) FROM {m}) FROM {m} WHERE sysFlag = 0", m=m),
        [["flag"], ["msgId", "sysFlag"]],
    ),
    (lambda m: m.selectExpr("row_number() over (partition by topic order by msgId) n"), [["topic", "msgId"]]),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(orders.fill(tmp_path_factory.mktemp("shop")))


@pytest.fixture(scope="module")
def plain(spark: SparkSession) -> SparkSession:
    """A session without the rule."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


def read(session: SparkSession, store: str, **options: str) -> DataFrame:
    return session.read.format("rocketmq").options(**options).load(store)


def scans(frame: DataFrame) -> list[list[str]]:
    """The columns of each scan in the plan of a query."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return [re.findall(r"(\w+)#", found) for found in SCAN.findall(plan)]


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_a_query_reads_what_it_uses(spark: SparkSession, plain: SparkSession, store: str, number: int) -> None:
    query, columns = QUERIES[number]
    pruned, whole = query(read(spark, store)), query(read(plain, store))
    assert sorted(scans(pruned)) == sorted(columns)
    assert scans(whole) == [MESSAGES.names] * len(columns)
    assert rows(pruned) == rows(whole) != []


def test_queries_on_one_frame_do_not_know_each_other(spark: SparkSession, plain: SparkSession, store: str) -> None:
    frame, expected = read(spark, store), read(plain, store)
    for names in (["topic"], ["body", "tags"], ["queueOffset", "topic"], MESSAGES.names, ["topic"]):
        assert rows(frame.select(*names)) == rows(expected.select(*names))


def test_a_map_of_properties_costs_those_that_use_it(spark: SparkSession, store: str) -> None:
    frame = read(spark, store, properties="map")
    assert scans(frame.groupBy("topic").count()) == [["topic"]]
    keyed = frame.where("properties['KEYS'] is not null")
    assert scans(keyed.select("keys")) == [["keys", "properties"]]
    assert rows(keyed.selectExpr("properties['KEYS'] AS keys")) == rows(frame.where("keys <> ''").select("keys"))


def test_a_read_with_pushdown_keeps_its_columns(spark: SparkSession, store: str) -> None:
    frame = read(spark, store, pushdown="on").where("topic = 'Payments'").select("topic")
    assert scans(frame) == [MESSAGES.names]
    assert {row.topic for row in frame.collect()} == {"Payments"}


def test_other_tables_are_pruned_too(spark: SparkSession, plain: SparkSession, store: str) -> None:
    pruned, whole = (read(s, store, table="consume_queue").select("topic", "size") for s in (spark, plain))
    assert scans(pruned) == [["topic", "size"]]
    assert rows(pruned) == rows(whole) != []


def test_a_session_takes_the_rule_once_and_can_exclude_it(spark: SparkSession, store: str) -> None:
    session = spark.newSession()
    prune_columns(session)
    prune_columns(session)
    assert session._jsparkSession.experimental().extraOptimizations().size() == 1
    assert scans(read(session, store).select("topic")) == [["topic"]]
    session.conf.set("spark.sql.optimizer.excludedRules", "firearrow.PruneColumns")
    assert scans(read(session, store).select("topic")) == [MESSAGES.names]


def test_without_a_fitting_rule_a_warning_says_so(
    spark: SparkSession, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "PruneColumns.java").write_text("package firearrow; class PruneColumns extends Gone {}")
    monkeypatch.setattr("firearrow.spark.pruning.files", lambda _: tmp_path)
    session = spark.newSession()
    prune_columns(session)
    assert events(caplog) == ["columns of queries are not pruned"]
    assert scans(read(session, store).select("topic")) == [MESSAGES.names]


def test_the_builder_keeps_its_settings(spark: SparkSession) -> None:
    given = SparkSession.Builder().config("spark.sql.session.timeZone", "UTC")
    assert PruningBuilder.like(given).getOrCreate() is spark
