"""Topics have names in SQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from firearrow.errors import ConfigError
from firearrow.spark import register
from firearrow.spark.source.topicviews import table_names
from tests.golden import extract


def test_each_topic_has_a_name(spark: SparkSession, tmp_path: Path) -> None:
    store = str(extract("file-cq-clean", tmp_path).rename(tmp_path / "it's a store"))
    names = register(spark, {"path": store}, database="golden")
    assert names.keys() >= {"goldenorder", "goldenplain", "_retry_golden_fail"}
    assert set(names.values()).isdisjoint({"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"})
    counts = "SELECT 'o', count(*) FROM golden.goldenorder UNION ALL SELECT 'r', count(*) FROM "
    rows = spark.sql(counts + "golden._retry_golden_fail ORDER BY 1").collect()
    assert [tuple(row) for row in rows] == [("o", 150), ("r", 6)]
    waiting = register(spark, {"path": store, "subscribePattern": "SCHEDULE.*", "systemTopics": "true"})
    assert waiting == {"schedule_topic_xxxx": "SCHEDULE_TOPIC_XXXX"}
    assert spark.sql("SELECT * FROM rocketmq.schedule_topic_xxxx").count() == 19
    both = "SELECT count(*) FROM golden.goldenorder a JOIN golden.goldenorder b USING (msgId)"
    assert spark.sql(both).collect()[0][0] == 150
    more = register(spark, {"path": store, "properties": "map", "subscribe": "GoldenOrder"})
    assert more == {"goldenorder": "GoldenOrder"}
    unique = "SELECT count(DISTINCT properties['UNIQ_KEY']) FROM rocketmq.goldenorder"
    assert spark.sql(unique).collect()[0][0] == 150
    with pytest.raises(ConfigError, match="'Unknown' is in none of the stores"):
        register(spark, {"path": store, "subscribe": "Unknown"})


def test_names_are_what_spark_allows_and_differ() -> None:
    assert table_names(["Orders", "orders", "orders-eu", "orders_eu", "%DLQ%g", "订单"]) == {
        "orders": "Orders",
        "orders_2": "orders",
        "orders_eu": "orders-eu",
        "orders_eu_2": "orders_eu",
        "_dlq_g": "%DLQ%g",
        "__": "订单",
    }
