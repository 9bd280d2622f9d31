"""The state of each transaction, from halves, operations and what they led to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from firearrow.spark.jobs.reports import transactions
from tests.golden import extract
from tests.spark.jobs.frames import START_MS, golden, messages, rows

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
NOW = START_MS + 60_000


def half(name: str, offset: int, *, checks: int = 0) -> dict[str, Any]:
    properties = {"REAL_TOPIC": "T", "PGROUP": "p", "UNIQ_KEY": name, "TRAN_MSG": "true"}
    if checks:
        properties["TRANSACTION_CHECK_TIMES"] = str(checks)
    return {
        "topic": HALF, "queueOffset": offset, "commitLogOffset": offset * 100, "msgId": name,
        "properties": properties, "keys": f"k-{name}", "storeTimestamp": 1000 * checks,
    }  # fmt: skip


def op(body: bytes, at: int = 5000) -> dict[str, Any]:
    return {"topic": OP, "body": body, "tags": "d", "storeTimestamp": at}


def real(name: str, offset: int, topic: str = "T") -> dict[str, Any]:
    return {
        "topic": topic, "preparedTransactionOffset": offset * 100, "msgId": name, "sysFlag": 8,
        "storeTimestamp": 4000,
    }  # fmt: skip


def test_every_state_is_told(spark: SparkSession) -> None:
    log = messages(
        spark,
        *(half(name, at) for at, name in enumerate(["committed", "back", "open", "given", "late"])),
        half("twice", 5),
        half("twice", 6, checks=1),
        half("checked", 7),
        half("checked", 8, checks=1),
        half("both", 9),
        half("both", 10, checks=1),
        half("once", 11),
        half("once", 12, checks=1),
        op(b"0,1,"),
        op(b"5,6"),
        op(b"8, nonsense,9,10,77"),
        op(b"11,+12,"),  # the answer to the first half decides its copy as well
        real("once", 11),
        real("committed", 0),
        real("late", 4, "SCHEDULE_TOPIC_XXXX"),  # delayed: waits and is delivered
        real("late", 4),
        real("late", 4, "%RETRY%g"),
        real("twice", 5),
        real("twice", 6),
        real("both", 9),
        half("given", 3) | {"topic": "TRANS_CHECK_MAX_TIME_TOPIC"},
    )
    found = transactions.transactions(log, NOW)
    assert rows(found, "msgId", "state", "halves", "checks", "commits", "decisions") == [
        ("open", "undecided", 1, 0, 0, 0),
        ("back", "rolled back", 1, 0, 0, 1),
        ("both", "decided twice", 2, 1, 1, 2),
        ("checked", "rolled back", 2, 1, 0, 1),
        ("committed", "committed", 1, 0, 1, 1),
        ("given", "discarded", 1, 0, 0, 0),
        ("late", "committed", 1, 0, 1, 1),
        ("once", "committed", 2, 1, 1, 1),
        ("twice", "decided twice", 2, 1, 2, 2),
    ]
    ages = dict(rows(found, "msgId", "ageSeconds"))
    assert (ages["open"], ages["committed"], ages["back"]) == (60.0, 4.0, 5.0)
    counted = transactions.states(found)
    assert rows(counted, "topic", "producerGroup", "state", "transactions") == [
        ("T", "p", "committed", 3),
        ("T", "p", "decided twice", 2),
        ("T", "p", "discarded", 1),
        ("T", "p", "rolled back", 2),
        ("T", "p", "undecided", 1),
    ]


def test_the_original_broker_decides_as_its_producer_did(spark: SparkSession, tmp_path: Path) -> None:
    """Of its twelve, each first was committed, each second rolled back, each third checked."""
    log = golden(spark, extract("file-cq-clean", tmp_path)).cache()
    found = transactions.transactions(log, NOW)
    plain = Counter(row.keys for row in log.where("topic = 'GoldenPlain'").select("keys").collect())
    wanted = [
        (f"tx-{n}", "rolled back" if n % 3 == 1 else "committed", plain[f"tx-{n}"], n % 3 // 2) for n in range(12)
    ]
    assert sorted(rows(found, "keys", "state", "commits", "checks")) == sorted(wanted)
