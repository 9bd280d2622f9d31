"""A stream's steps: where they begin and end, what they skip, what they refuse."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from firearrow.client.queues import Bound, Queue
from firearrow.errors import ConfigError, DataLost
from firearrow.spark import offsets
from firearrow.spark.options import parse
from firearrow.spark.source.stream import StreamReader
from firearrow.spark.tables import MESSAGES
from tests.broker.fakes import HandClock
from tests.spark.origins import RECORD_BYTES, MemoryOrigin

A, B, NEW = Queue("T", "a", 0), Queue("T", "a", 1), Queue("U", "a", 0)


class Query:
    """Drives a reader as Spark does, and remembers the checkpoint as the text that Spark keeps."""

    def __init__(self, origin: MemoryOrigin, **options: str) -> None:
        self.origin = origin
        self.clock = HandClock()
        self.reader = self.restart(**options)
        self.checkpoint = json.dumps(self.reader.initialOffset())

    def restart(self, **options: str) -> StreamReader:
        parsed = parse({"path": "unused", "startingOffsets": "earliest"} | options)
        self.reader = StreamReader(parsed, MESSAGES, self.origin, self.clock)
        return self.reader

    def step(self, limit: ReadLimit | None = None) -> dict[Queue, int] | None:
        """Make a step; gives how many rows of each queue it has read, None if there was none."""
        start = json.loads(self.checkpoint)
        limit = limit or self.reader.getDefaultReadLimit()
        text = json.dumps(self.reader.latestOffset(json.loads(self.checkpoint), limit))
        if text == self.checkpoint:
            return None
        rows: dict[Queue, int] = {}
        worker: StreamReader = pickle.loads(pickle.dumps(self.reader))
        for partition in self.reader.partitions(start, json.loads(text)):
            for batch in worker.read(partition):
                for topic, broker, queue_id in zip(*(batch.column(n).to_pylist() for n in MESSAGES_KEY), strict=True):
                    queue = Queue(topic, broker, queue_id)
                    rows[queue] = rows.get(queue, 0) + 1
        self.checkpoint = text
        return rows


MESSAGES_KEY = ("topic", "broker", "queueId")


def held(**bounds: tuple[int, int]) -> MemoryOrigin:
    queues = {"a": A, "b": B, "new": NEW}
    return MemoryOrigin({queues[name]: Bound(*bound) for name, bound in bounds.items()})


def test_a_query_reads_everything_once_and_then_what_is_new() -> None:
    query = Query(held(a=(5, 9), b=(0, 0)))
    assert query.step() == {A: 4}
    assert query.step() is None
    query.origin.held |= {B: Bound(0, 3), NEW: Bound(2, 4)}
    assert query.step() == {B: 3, NEW: 2}
    assert query.step() is None
    assert query.reader.reportLatestOffset() == offsets.to_json({A: 9, B: 3, NEW: 4})


def test_by_default_a_query_begins_at_the_end() -> None:
    reader = StreamReader(parse({"path": "unused"}), MESSAGES, held(a=(5, 9)))
    assert reader.initialOffset() == {"T": {"a": {"0": 9}}}
    assert reader.reportLatestOffset() == {"T": {"a": {"0": 9}}}


def test_nothing_is_known_before_the_first_look() -> None:
    assert StreamReader(parse({"path": "x"}), MESSAGES, held()).reportLatestOffset() is None


def test_a_time_is_where_each_queue_begins() -> None:
    origin = held(a=(5, 9), b=(0, 2))
    query = Query(origin, startingTimestamp=str(origin.base_ms + 1500), startingOffsetsByTimestampStrategy="latest")
    assert query.step() == {A: 4}
    with pytest.raises(ConfigError, match=r"startingTimestamp=\d+: queue 1 of topic 'T' on a"):
        Query(origin, startingTimestamp=str(origin.base_ms + 2500))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "1k"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "1k", "minOffsetsPerTrigger": "5"}, ReadMaxBytes(1024)),
        ({"minOffsetsPerTrigger": "5"}, ReadMinRows(5)),
    ],
)
def test_spark_is_told_one_limit(options: dict[str, str], expected: ReadLimit) -> None:
    assert Query(held(), **options).reader.getDefaultReadLimit() == expected


def test_steps_are_limited_and_all_limits_hold() -> None:
    query = Query(held(a=(0, 80), b=(0, 40)), maxOffsetsPerTrigger="60", maxBytesPerTrigger=str(30 * RECORD_BYTES))
    assert query.step() == {A: 15, B: 15}
    counts = [sum((query.step() or {}).values()) for _ in range(4)]
    assert counts == [30, 30, 30, 0]


@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger=7", "maxBytesPerTrigger=700"])
def test_limited_steps_are_in_the_order_of_the_log(limit: str) -> None:
    """Message ``n`` is stored at second ``n``: one queue is long, the others hold some seconds."""
    other = Queue("T", "b", 0)
    origin = held(a=(0, 100), b=(10, 20), new=(50, 51))
    origin.held[other] = Bound(15, 30)
    query = Query(origin, **dict([limit.split("=")]))
    ends = [(0, 0)]
    counts = []
    while rows := query.step():
        counts.append(sum(rows.values()))
        checkpoint = offsets.parse(query.checkpoint, "")
        left = [n for q, n in checkpoint.items() if n < origin.held[q].latest]
        read = [checkpoint[queue] - 1 for queue in rows]
        assert max(read) >= ends[-1][0]
        assert min(left, default=100) >= max(read)  # nothing older than what was read is left
        ends.append((min(read), max(read)))
    assert counts == [7] * 18


class AtOnce(MemoryOrigin):
    """All of its messages are stored in one millisecond."""

    def offset_at(self, queue: Queue, timestamp_ms: int) -> int | None:
        return self.held[queue].earliest if timestamp_ms <= self.base_ms else None


def test_messages_of_one_moment_are_limited_too() -> None:
    query = Query(AtOnce({A: Bound(0, 20), B: Bound(0, 10)}), maxOffsetsPerTrigger="9")
    steps = [query.step() or {} for _ in range(4)]
    assert [sum(step.values()) for step in steps] == [9, 9, 9, 3]
    assert steps[0] == {A: 6, B: 3}


def test_trigger_once_ignores_limits() -> None:
    query = Query(held(a=(0, 80)), maxOffsetsPerTrigger="3", minOffsetsPerTrigger="90")
    assert query.step(ReadAllAvailable()) == {A: 80}


def test_a_new_queue_that_a_limit_leaves_out_is_not_forgotten() -> None:
    query = Query(held(), maxOffsetsPerTrigger="1")
    query.origin.held = {A: Bound(3, 5), NEW: Bound(4, 6)}
    seen: list[Queue] = []
    while rows := query.step():
        assert set(offsets.parse(query.checkpoint, "")) == {A, NEW}
        seen += rows
    assert sorted(seen) == [A, A, NEW, NEW]


def test_a_step_waits_for_enough_messages_or_long_enough() -> None:
    query = Query(held(a=(0, 4)), minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    assert query.step() is None
    query.clock.seconds += 9.9
    assert query.step() is None
    query.clock.seconds += 0.2
    assert query.step() == {A: 4}
    query.origin.held[A] = Bound(0, 10)
    assert query.step() == {A: 6}
    query.origin.held[A] = Bound(0, 11)
    assert query.step() is None


def test_available_now_ends_where_it_began() -> None:
    query = Query(held(a=(0, 10)), maxOffsetsPerTrigger="4", minOffsetsPerTrigger="9")
    query.reader.prepareForTriggerAvailableNow()
    counts = []
    while rows := query.step():
        counts.append(rows[A])
        query.origin.held |= {A: Bound(0, query.origin.held[A].latest + 10), NEW: Bound(0, 5)}
    assert counts == [4, 4, 2]


def test_a_checkpoint_is_where_a_restart_goes_on() -> None:
    query = Query(held(a=(0, 10)), maxOffsetsPerTrigger="4")
    assert query.step() == {A: 4}
    query.restart(startingOffsets="latest")
    assert query.step() == {A: 6}


def test_retention_that_was_faster_is_an_error_or_is_skipped() -> None:
    origin = held(a=(0, 10))
    query = Query(origin)
    origin.held[A] = Bound(0, 20)
    assert query.step() == {A: 20}
    origin.held[A] = Bound(25, 30)
    with pytest.raises(DataLost, match=r"queue 0 of topic 'T' on a: offsets 20 to 25, the queue"):
        query.step()
    query.restart(failOnDataLoss="false")
    assert query.step() == {A: 5}
    assert query.step() is None


def test_a_queue_that_began_again_is_an_error_or_read_from_its_beginning() -> None:
    origin = held(a=(0, 10))
    query = Query(origin)
    assert query.step() == {A: 10}
    origin.held[A] = Bound(0, 3)
    with pytest.raises(DataLost, match="the queue now ends at 3"):
        query.step()
    query.restart(failOnDataLoss="false")
    assert query.step() == {A: 3}
    assert query.step() is None


def test_a_queue_that_is_not_seen_stays_where_it_is() -> None:
    origin = held(a=(0, 10), b=(0, 1))
    query = Query(origin)
    assert query.step() == {A: 10, B: 1}
    del origin.held[A]
    assert query.step() is None
    origin.held[A] = Bound(0, 12)
    assert query.step() == {A: 2}


def test_another_sources_checkpoint_is_refused() -> None:
    reader = Query(held(a=(0, 1))).reader
    with pytest.raises(ConfigError, match=r"^checkpoint, topic 'index': must be a JSON object"):
        reader.latestOffset({"index": 7}, ReadAllAvailable())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets='latest': a stream has no end"),
        ({"endingTimestamp": "0"}, "option endingTimestamp=0: a stream has no end"),
        ({"table": "topics"}, "option table='topics': a stream reads messages only"),
        ({"commitOffsets": "true"}, "only brokers keep offsets"),
    ],
)
def test_options_that_no_stream_has_are_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        StreamReader(parse({"path": "unused"} | options), MESSAGES)


def test_progress_is_shown_to_brokers_if_asked() -> None:
    origin = held(a=(0, 1))
    given = {"nameServer": "127.0.0.1:1", "commitOffsets": "true"}
    with pytest.raises(ConfigError, match="option consumerGroup is missing"):
        StreamReader(parse(given), MESSAGES, origin)
    reader = StreamReader(parse(given | {"consumerGroup": "g"}), MESSAGES, origin)
    reader.commit({"T": {"a": {"0": 7}}})
    assert origin.committed == {A: 7}
    restarted = StreamReader(parse(given | {"consumerGroup": "g"}), MESSAGES, origin)
    restarted.latestOffset({"T": {"a": {"0": 8}}}, ReadAllAvailable())
    assert origin.committed == {A: 8}
    silent = Query(origin).reader
    silent.commit({"T": {"a": {"0": 9}}})
    assert origin.committed == {A: 8}


def test_the_partition_that_spark_makes_up_is_empty() -> None:
    found: list[Any] = list(Query(held()).reader.read(InputPartition(None)))
    assert found == []
