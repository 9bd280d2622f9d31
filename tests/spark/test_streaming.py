"""Streams through Spark: from brokers and from the files of a store that a broker writes."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from firearrow.message.batch import encode_batch
from firearrow.spark import LagListener
from firearrow.spark.options import parse
from firearrow.spark.source.files import FileOrigin
from firearrow.spark.source.listener import QueueLag
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue
from tests.broker.serving import send_fields
from tests.interop.servers import Server
from tests.net.rawclient import RawClient
from tests.spark.brokers import create_topic, serving

WAIT_SECONDS_MAX = 90


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("streamed")) as running:
        yield running


class Sending:
    """Sends numbered messages, and knows which."""

    def __init__(self, server: Server, topic: str) -> None:
        self._server = server
        self._topic = topic
        self._numbers = itertools.count()
        self.bodies: list[str] = []

    def send(self, queue_id: int, count: int) -> None:
        bodies = [f"m{next(self._numbers)}" for _ in range(count)]
        batch = encode_batch([(0, body.encode(), b"TAGS\x01a\x02") for body in bodies])
        client = RawClient()
        fields = send_fields(self._topic, queue_id, m=True)
        client.call(self._server.broker, RequestCode.SEND_BATCH_MESSAGE, fields, batch)
        client.close()
        self.bodies += bodies


def run(frame: DataFrame, home: Path, name: str) -> StreamingQuery:
    """Write what is available now as Parquet, and give the query, which has ended."""
    query = (
        frame.selectExpr("cast(body as string) body", "queueId", "queueOffset")
        .writeStream.format("parquet")
        .queryName(name)
        .option("path", str(home / "rows"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_SECONDS_MAX)
    return query


def written(spark: SparkSession, home: Path) -> list[str]:
    return sorted(row.body for row in spark.read.parquet(str(home / "rows")).collect())


def steps(query: StreamingQuery) -> list[int]:
    return [step.numInputRows for step in query.recentProgress if step.numInputRows]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_available_now_limits_new_queues_and_checkpoints(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    create_topic(server, "limited", 2)
    sending = Sending(server, "limited")
    sending.send(0, 50)
    sending.send(1, 25)
    lags: list[list[QueueLag]] = []
    listener = LagListener(lambda _, found: lags.append(found))
    spark.streams.addListener(listener)
    frame = (
        spark.readStream.format("rocketmq")
        .option("nameServer", server.namesrv)
        .option("subscribe", "limited")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 30)
        .load()
    )
    first = run(frame, tmp_path, "first")
    assert steps(first) == [30, 30, 15]
    assert written(spark, tmp_path) == sorted(sending.bodies)

    create_topic(server, "limited", 3)
    sending.send(2, 10)
    sending.send(0, 5)
    assert steps(run(frame, tmp_path, "second")) == [15]
    assert steps(run(frame, tmp_path, "third")) == []
    assert written(spark, tmp_path) == sorted(sending.bodies)
    until(lambda: len(lags) >= 4)
    spark.streams.removeListener(listener)
    assert [sum(lag.messages for lag in found) for found in lags[:4]] == [45, 15, 0, 0]


def test_the_files_of_a_running_broker_are_a_stream(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    create_topic(server, "filed", 1)
    sending = Sending(server, "filed")
    options = {"path": str(server.store), "subscribe": "filed", "startingOffsets": "earliest"}
    sending.send(0, 40)
    until(lambda: filed(options) == 40)
    frame = spark.readStream.format("rocketmq").options(**options).load()
    query = (
        frame.selectExpr("cast(body as string) body")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    sending.send(0, 7)
    until(lambda: filed(options) == 47)
    query.processAllAvailable()
    query.stop()
    assert written(spark, tmp_path) == sorted(sending.bodies)
    assert steps(query) == [40, 7]


def test_a_checkpoint_of_offsets_that_are_gone_reaches_the_user(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    create_topic(server, "short", 1)
    Sending(server, "short").send(0, 5)
    frame = (
        spark.readStream.format("rocketmq")
        .option("nameServer", server.namesrv)
        .option("subscribe", "short")
        .option("startingOffsets", json.dumps({"short": {broker_name(server): {"0": 700}}}))
        .load()
    )
    with pytest.raises(StreamingQueryException, match="messages to read are missing"):
        run(frame, tmp_path, "lost")


def test_progress_is_shown_to_the_broker(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    create_topic(server, "told", 1)
    Sending(server, "told").send(0, 20)
    frame = (
        spark.readStream.format("rocketmq")
        .option("nameServer", server.namesrv)
        .option("subscribe", "told")
        .option("startingOffsets", "earliest")
        .option("consumerGroup", "told-group")
        .option("commitOffsets", "true")
        .load()
    )
    run(frame, tmp_path, "told")
    run(frame, tmp_path, "told again")  # tells what the one before has finished
    client = RawClient()
    fields: dict[str, FieldValue] = {"consumerGroup": "told-group", "topic": "told"}
    fields["queueId"] = 0
    answer = client.call(server.broker, RequestCode.QUERY_CONSUMER_OFFSET, fields)
    client.close()
    assert answer.ext["offset"] == "20"


def filed(options: dict[str, str]) -> int:
    return sum(bound.latest for bound in FileOrigin(parse(options)).bounds().values())


def broker_name(server: Server) -> str:
    options = parse({"path": str(server.store), "subscribe": "short"})
    until(lambda: FileOrigin(options).bounds() != {})
    (queue,) = FileOrigin(options).bounds()
    return queue.broker


def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that another process brings about."""
    for _ in range(WAIT_SECONDS_MAX * 20):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it has not come about")
