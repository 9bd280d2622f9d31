"""Latencies from timestamps, traces and delayed messages whose differences are known."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from firearrow.spark.jobs.reports import latency
from tests.golden import extract
from tests.spark.jobs.frames import START_MS, golden, messages, rows


def test_only_what_was_meant_to_come_at_once_counts(spark: SparkSession) -> None:
    plain = [{"bornTimestamp": 60_000, "storeTimestamp": 60_000 + n} for n in range(1, 101)]
    log = messages(
        spark,
        *plain,
        {"bornTimestamp": 10, "storeTimestamp": 5},  # another minute; a clock that is ahead
        {"properties": {"DELAY": "3"}, "storeTimestamp": 10_000},
        {"properties": {"TIMER_OUT_MS": "1"}, "storeTimestamp": 10_000},
        {"properties": {"REAL_TOPIC": "T", "REAL_QID": "0"}, "storeTimestamp": 10_000},
        {"sysFlag": 8, "storeTimestamp": 10_000},
        {"topic": "%RETRY%g", "storeTimestamp": 10_000},
    )
    assert rows(latency.stored(log), "messages", *latency.SPREAD, "early") == [
        (1, -5, -5, -5, -5, -5, 1),
        (100, 50, 90, 99, 100, 100, 0),
    ]
    assert rows(latency.stored(log, by_minute=False), "messages", "max", "early") == [(101, 100, 1)]
    assert latency.delays_of("1s 2m") == [1000, 120_000]


def trace(*lines: str) -> bytes:
    return "".join(",".join(line.split(",")).replace(",", "\x01") + "\x02" for line in lines).encode()


def test_waiting_and_working_come_from_traces(spark: SparkSession) -> None:
    traced = latency.consumptions(
        messages(
            spark,
            {
                "topic": "RMQ_SYS_TRACE_TOPIC",
                "body": trace(
                    f"Pub,{START_MS},r,p,T,1,,,127.0.0.1:1,4,1,0,OID,true",
                    f"SubBefore,{START_MS + 700},r,g,R1,1,0,k",
                    f"SubBefore,{START_MS + 900},r,g,R2,1,1,k",
                    f"SubBefore,{START_MS + 900},r,g,R3,gone,0,k",
                ),
            },
            {
                "topic": "RMQ_SYS_TRACE_TOPIC",
                "body": trace("SubAfter,R1,1,40,false,k,1,0,g", "SubAfter,R3,gone,1,true"),
            },
            {"topic": "T", "body": trace(f"SubBefore,{START_MS},r,g,R9,1,0,k")},
        )
    )
    columns = ("consumerGroup", "msgId", "retries", "tookMs", "success")
    assert sorted(rows(traced, *columns), key=str) == [
        ("g", "1", 0, 40, False),
        ("g", "1", 1, None, None),
        ("g", "gone", 0, 1, True),
    ]
    log = messages(
        spark,
        {"msgId": "1", "storeTimestamp": 200},
        {"msgId": "1", "topic": "%RETRY%g", "reconsumeTimes": 1, "storeTimestamp": 800},
    )
    shown = ("topic", "consumerGroup", "messages", "failed", "waitP50", "waitMax", "tookMax")
    assert rows(latency.consumed(log, traced), *shown) == [
        ("%RETRY%g", "g", 1, 0, 100, 100, None),
        ("T", "g", 1, 1, 500, 500, 40),
    ]


def test_delayed_messages_come_late_or_wait(spark: SparkSession) -> None:
    def waits(name: str, level: int, stored: int) -> dict[str, object]:
        properties = {"DELAY": str(level), "REAL_TOPIC": "T"}
        topic = "SCHEDULE_TOPIC_XXXX"
        return {"topic": topic, "msgId": name, "properties": properties, "storeTimestamp": stored}

    timer = {"TIMER_OUT_MS": str(START_MS + 3000), "REAL_TOPIC": "T"}
    log = messages(
        spark,
        waits("a", 1, 0),
        {"msgId": "a", "storeTimestamp": 1250},
        waits("b", 2, 0),
        waits("c", 99, 0),
        {"topic": "rmq_sys_wheel_timer", "msgId": "t", "properties": timer},
        {"topic": "rmq_sys_wheel_timer", "msgId": "t", "properties": timer},  # rolled
        {"msgId": "t", "storeTimestamp": 3004, "properties": timer},
    )
    found = latency.delayed(log)
    assert sorted(rows(found, "msgId", "kind", "lateMs")) == [
        ("a", "level 1", 250),
        ("b", "level 2", None),
        ("c", "level 99", None),
        ("t", "timer", 4),
    ]
    columns = ("kind", "delivered", "max", "waiting", "overdue")
    assert rows(latency.lateness(found, START_MS + 60_000), *columns) == [
        ("level 1", 1, 250, 0, 0),
        ("level 2", 0, None, 1, 1),
        ("level 99", 0, None, 1, 0),
        ("timer", 1, 4, 0, 0),
    ]


def test_the_original_broker_is_on_time(spark: SparkSession, tmp_path: Path) -> None:
    log = golden(spark, extract("file-cq-clean", tmp_path))
    found = latency.delayed(log)
    late = rows(latency.lateness(found, START_MS), "kind", "delivered", "p50", "max", "waiting")
    assert sum(delivered + waiting for _, delivered, _, _, waiting in late) == 25
    assert {kind for kind, *_ in late} == {"level 1", "level 2", "level 3", "level 18", "timer"}
    assert all(0 <= p50 <= worst < 2000 for _, n, p50, worst, _ in late if n), late
