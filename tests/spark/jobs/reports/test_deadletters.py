"""Dead letters know their origin, fall into clusters, and are sent again once."""

from __future__ import annotations

from typing import Any

import pyspark.sql.functions as fn
import pytest
from pyspark.sql import DataFrame, SparkSession

from firearrow.errors import ConfigError
from firearrow.message.properties import OF_BROKER
from firearrow.spark.jobs.reports import deadletters
from tests.spark.jobs.frames import messages, rows

BODIES = [b'{"order": 1, "name": "x"}', b'{"name": "y", "order": 22}', b"", b"order 17 of 3", b"\xff\x00\x01"]


def history(number: int, body: bytes) -> list[dict[str, Any]]:
    """A message, two retries of it, and the dead letter."""
    origin: dict[str, Any] = {"topic": "Orders", "queueId": 1, "queueOffset": number, "offsetMsgId": f"O{number}"}
    carried = {
        "RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": f"O{number}", "UNIQ_KEY": f"U{number}",
        "DELAY": "3", "TAGS": "A", "color": "red",
    }  # fmt: skip
    same: dict[str, Any] = {"msgId": f"U{number}", "body": body, "tags": "A", "keys": f"k{number}"}
    tries: list[dict[str, Any]] = [
        {"topic": "%RETRY%g", "properties": carried, "reconsumeTimes": n, "storeTimestamp": n * 1000} for n in (1, 2)
    ]
    dead: dict[str, Any] = {
        "topic": "%DLQ%g", "queueOffset": number, "properties": carried, "reconsumeTimes": 2,
        "storeTimestamp": 5000 + number,
    }  # fmt: skip
    return [same | row for row in (origin, *tries, dead)]


@pytest.fixture(scope="module")
def log(spark: SparkSession) -> DataFrame:
    found = [row for number, body in enumerate(BODIES) for row in history(number, body)]
    lost = {"topic": "%DLQ%h", "properties": {"ORIGIN_MESSAGE_ID": "gone"}, "queueOffset": 9}
    return messages(spark, *found, lost).cache()


@pytest.fixture(scope="module")
def dead(log: DataFrame) -> DataFrame:
    return deadletters.letters(log).cache()


def test_a_letter_says_where_it_comes_from(dead: DataFrame) -> None:
    assert rows(dead.orderBy("consumerGroup", "queueOffset"), "consumerGroup", "originTopic", "originMsgId") == [
        *(("g", "Orders", f"O{n}") for n in range(5)),
        ("h", None, "gone"),
    ]
    assert rows(deadletters.groups(dead), "consumerGroup", "originTopic", "letters", "bytes") == [
        ("g", "Orders", 5, sum(map(len, BODIES))),
        ("h", None, 1, 4),
    ]


def test_bodies_that_differ_in_numbers_only_have_one_shape(dead: DataFrame) -> None:
    found = rows(deadletters.clusters(dead.where("consumerGroup = 'g'")), "shape", "letters", "exampleKeys")
    assert found == [
        ("json {name, order}", 2, "k1"),
        ("binary, up to 4 bytes", 1, "k4"),
        ("empty", 1, "k2"),
        ("text order 0 of 0", 1, "k3"),
    ]


def test_the_history_has_the_origin_and_the_tries(log: DataFrame, dead: DataFrame) -> None:
    found = deadletters.histories(log, dead)
    columns = ("originQueueId", "originQueueOffset", "tries")
    assert sorted(rows(found.where("consumerGroup = 'g'"), *columns)) == [(1, n, 2) for n in range(5)]
    assert rows(found.where("consumerGroup = 'h'"), *columns) == [(None, None, 0)]


def test_a_selection_is_sql(dead: DataFrame) -> None:
    chosen = deadletters.select(dead, "keys = 'k1' or get_json_object(text, '$.order') = '1'")
    assert sorted(rows(chosen, "keys")) == [("k0",), ("k1",)]
    assert chosen.columns == dead.columns


@pytest.mark.parametrize("condition", ["nothing = 1", "keys ="])
def test_a_wrong_selection_is_told_with_the_columns(dead: DataFrame, condition: str) -> None:
    with pytest.raises(ConfigError, match=r"condition .*columns are consumerGroup, .*text"):
        deadletters.select(dead, condition)


def test_what_is_sent_again_is_as_its_sender_made_it(dead: DataFrame) -> None:
    chosen = deadletters.unsent(deadletters.select(dead, "keys = 'k3' or consumerGroup = 'h'"), None)
    assert rows(deadletters.resend(chosen)) == [
        ("Orders", BODIES[3], "A", "k3", 0, {"color": "red", "FIREARROW_RESENT": "a/%DLQ%g/0/3"})
    ]
    assert rows(deadletters.resend(chosen, "Elsewhere"), "topic") == [("Elsewhere",)]
    assert "UNIQ_KEY" in OF_BROKER  # a message that was sent again is a new one


def test_a_letter_that_was_sent_is_not_sent_again(dead: DataFrame) -> None:
    planned = deadletters.audited(dead.where("queueOffset < 3"), "run-1", "planned")
    sent = deadletters.audited(dead.where("queueOffset < 2"), "run-1", "sent")
    audit = planned.unionByName(sent)
    left = deadletters.unsent(dead, audit)
    assert sorted(rows(left, "queueOffset")) == [(2,), (3,), (4,)]
    assert left.columns == dead.columns
    found = deadletters.outcomes(audit).withColumn("at", fn.lit(0))
    assert rows(found, "queueOffset", "target", "outcome") == [
        (0, "Orders", "sent"),
        (1, "Orders", "sent"),
        (2, "Orders", "planned"),
    ]
