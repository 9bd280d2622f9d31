"""Rules are asked about minutes and lag; an alert is told once, and to somebody who hears it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import DataFrame, SparkSession

from firearrow.errors import ConfigError, FirearrowError
from firearrow.spark.jobs.reports import backlog, watch
from firearrow.spark.jobs.reports.watch import Alert, Lags, Rule, Watch, Webhook, parse_rule
from tests.spark.jobs.frames import messages, rows, table

ALERT = Alert("1", "lag > 1", "g of T", "2026-01-01T00:00:00Z", 2)


def test_a_rule_is_a_metric_and_a_number() -> None:
    assert parse_rule("deadletters>0") == Rule("deadLetters", 0)
    assert str(parse_rule(" p99Ms > 2.50 ")) == "p99Ms > 2.5"


@pytest.mark.parametrize("text", ["lag", "lag < 3", "nothing > 3", "lag > x", ""])
def test_what_is_no_rule_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^rule '.*': must be METRIC > NUMBER, .* messages, "):
        parse_rule(text)


def batch(spark: SparkSession, *more: dict[str, object]) -> DataFrame:
    slow = {"bornTimestamp": 0, "storeTimestamp": 900}
    dead = {"topic": "%DLQ%g", "storeTimestamp": 61_000}
    half = {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}
    return messages(spark, slow, slow, dead, half, *more).select(*watch.MESSAGE_COLUMNS)


def test_a_delay_that_was_asked_for_is_no_latency(spark: SparkSession) -> None:
    """Of delay levels, of timers (in both the topic waited for is kept), and of transactions."""
    later: list[dict[str, object]] = [
        {"properties": {"DELAY": "3", "REAL_TOPIC": "T"}},
        {"properties": {"REAL_TOPIC": "T"}},
        {"properties": {"TIMER_OUT_MS": "1"}},
        {"sysFlag": 8},
        {"topic": "OnlyLater", "properties": {"REAL_TOPIC": "OnlyLater"}},
    ]
    frame = batch(spark, *({"storeTimestamp": 50_000, **row} for row in later))
    found = rows(watch.measured(frame).orderBy("topic"), "topic", "messages", "p99Ms")
    assert found == [("%DLQ%g", 1, None), ("OnlyLater", 1, None), ("T", 6, 900)]


def test_a_stream_tells_each_alert_once(spark: SparkSession, tmp_path: Path) -> None:
    """Also over a restart, as far as the minute's numbers do not change."""
    told: list[Sequence[Alert]] = []
    rules = [parse_rule(text) for text in ("deadLetters > 0", "p99Ms > 500", "messages > 5")]
    source, checkpoint = str(tmp_path / "in"), str(tmp_path / "checkpoint")

    def run(seen: Watch, *more: dict[str, object]) -> None:
        batch(spark, *more).write.mode("append").parquet(source)
        schema = batch(spark).schema
        stream = spark.readStream.schema(schema).parquet(source)
        query = watch.start(stream, seen, checkpoint, {"availableNow": True})
        assert query.awaitTermination(180)

    seen = Watch(rules, told.append)
    run(seen)
    assert [{(a.rule, a.subject, a.value) for a in alerts} for alerts in told] == [
        {("deadLetters > 0", "%DLQ%g", 1), ("p99Ms > 500", "T", 900)}
    ]
    run(seen, {"storeTimestamp": 5}, {"storeTimestamp": 5})
    assert [(a.rule, a.subject, a.value) for a in told[1]] == [("messages > 5", "T", 6)]
    assert len({alert.id for alerts in told for alert in alerts}) == 3


def test_what_comes_too_late_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    source, checkpoint = str(tmp_path / "in"), str(tmp_path / "checkpoint")
    lag_only = Watch([parse_rule("lag > 1")], lambda _: None)
    counts = []
    for minute in (60, 55, 30):
        one = messages(spark, {"storeTimestamp": minute * 60_000})
        one.select(*watch.MESSAGE_COLUMNS).write.mode("append").parquet(source)
        stream = spark.readStream.schema(batch(spark).schema).parquet(source)
        query = watch.start(stream, lag_only, checkpoint, {"availableNow": True})
        assert query.awaitTermination(180)
        counts.append(watch.late(query))
    assert counts == [0, 0, 1]


def test_lag_is_told_when_it_begins_and_not_while_it_lasts(spark: SparkSession) -> None:
    committed = {"T": 0}

    def lags() -> DataFrame:
        row = {"broker": "a", "consumerGroup": "g", "topic": "T", "queueId": 0, "minOffset": 0}
        row |= {"offset": committed["T"], "maxOffset": 10}
        return backlog.lags(table(spark, "consumer_offsets", row))

    lags_of_g = Lags(lags, [parse_rule("lag > 5"), parse_rule("messages > 0")])
    now = datetime(2026, 1, 1, tzinfo=UTC)
    seen = []
    for committed["T"] in (0, 0, 9, 1):
        seen.append([(a.subject, a.value) for a in lags_of_g.look(now)])
    assert seen == [[("g of T", 10)], [], [], [("g of T", 9)]]


@pytest.fixture
def hook() -> Iterator[tuple[str, list[bytes], list[int]]]:
    """A server that answers with the given states, then with 204."""
    bodies: list[bytes] = []
    states: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(states.pop(0) if states else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", bodies, states
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_is_tried_again(hook: tuple[str, list[bytes], list[int]]) -> None:
    url, bodies, states = hook
    states += [500, 503]
    Webhook(url, pause_seconds=0)([ALERT])
    assert len(bodies) == 3
    assert json.loads(bodies[-1]) == {"alerts": [json.loads(ALERT.as_json())]}


def test_a_webhook_that_does_not_take_it_is_an_error(hook: tuple[str, list[bytes], list[int]]) -> None:
    url, _, states = hook
    states += [500, 500, 500]
    with pytest.raises(FirearrowError, match=r"webhook http:.* 500: .* after 3 tries, 1 alerts"):
        Webhook(url, pause_seconds=0)([ALERT])
    with pytest.raises(ConfigError, match="must begin with http"):
        Webhook("file:///etc/passwd")
