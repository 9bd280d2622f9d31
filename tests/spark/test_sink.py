"""DataFrames sent to a broker, as batches and as streams, and what reaches the user if not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from firearrow.client.producer.batchsender import SendCounts
from firearrow.client.routing.queues import WritableQueue
from firearrow.errors import ConfigError, MessageError
from firearrow.message.batch import split_batch
from firearrow.spark.options import for_sink
from firearrow.spark.sink import BATCH_BYTES_MAX, BatchWriter, StreamWriter, TaskResult, pieces_of
from firearrow.spark.sinkrows import Ids, SinkRows, rows_of
from tests.client.fakes import fake_cluster
from tests.interop.servers import Server
from tests.loglines import told
from tests.spark.brokers import create_topic, serving, stored


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"autoCreateTopicEnable": "false"}
    with serving(tmp_path_factory.mktemp("sink"), settings) as server:
        yield server


def write(frame: DataFrame, server: Server, **options: str) -> None:
    to = frame.write.format("rocketmq").mode("append").option("nameServer", server.namesrv)
    to.options(**options).save()


def test_a_frame_is_sent(spark: SparkSession, server: Server) -> None:
    create_topic(server, "Orders")
    create_topic(server, "Returns", queues=1)
    frame = spark.range(0, 25_000, 1, 3).selectExpr(
        "concat('body-', id) AS body",
        "if(id % 100 = 0, 'Returns', 'Orders') AS topic",
        "if(id % 2 = 0, 'even', null) AS tags",
        "array(concat('k', id), 'all') AS keys",
        "map('id', string(id), 'none', null) AS properties",
        "int(id) AS flag",
    )
    write(frame, server)
    views = [*stored(server, "Orders"), *stored(server, "Returns", 1)]
    numbers = [int(view.body.decode().removeprefix("body-")) for view in views]
    assert sorted(numbers) == list(range(25_000))
    for number, view in zip(numbers, views, strict=True):
        assert view.topic == ("Returns" if number % 100 == 0 else "Orders")
        assert (view.flag, view.keys) == (number, [f"k{number}", "all"])
        assert view.tags == ("even" if number % 2 == 0 else None)
        assert view.properties["id"] == str(number)
        assert "none" not in view.properties
    assert len({view.unique_key for view in views}) == 25_000
    assert len({view.queue_id for view in views}) == 4


def test_rows_with_an_order_key_are_in_order(spark: SparkSession, server: Server) -> None:
    create_topic(server, "Ordered")
    frame = spark.range(0, 5_000, 1, 1).selectExpr("string(id) AS body", "id % 50 AS customer")
    write(frame, server, topic="Ordered", orderKey="customer", sendBatch="20")
    queues: dict[int, set[int]] = {}
    last: dict[int, int] = {}
    for view in stored(server, "Ordered"):
        number = int(view.body)
        assert last.get(number % 50, -1) < number
        last[number % 50] = number
        queues.setdefault(number % 50, set()).add(view.queue_id)
    assert len(last) == 50
    assert all(len(places) == 1 for places in queues.values())


def test_a_frame_without_rows(spark: SparkSession, server: Server) -> None:
    create_topic(server, "Empty")
    write(spark.range(0).selectExpr("string(id) AS body"), server, topic="Empty")
    assert stored(server, "Empty") == []


def test_a_stream_is_sent_and_a_step_that_is_repeated_has_the_same_ids(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    create_topic(server, "Stream")
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.txt").write_text("".join(f"{number}-{n}\n" for n in range(100)))

    def run() -> None:
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
        query = (
            lines.selectExpr("value AS body")
            .writeStream.format("rocketmq")
            .option("nameServer", server.namesrv)
            .options(topic="Stream", idempotent="true")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    # As if the driver had been killed before it noted that the last step was done.
    (commit,) = (tmp_path / "checkpoint" / "commits").glob("[2]")
    commit.unlink()
    (tmp_path / "checkpoint" / "commits" / f".{commit.name}.crc").unlink(missing_ok=True)
    run()
    seen = Counter((view.unique_key, view.body) for view in stored(server, "Stream"))
    assert sum(seen.values()) == 400
    assert len(seen) == len({body for _, body in seen}) == len({key for key, _ in seen}) == 300
    assert Counter(seen.values()) == {1: 200, 2: 100}


def test_a_task_that_is_repeated_has_the_same_ids(server: Server) -> None:
    create_topic(server, "Repeated")
    batch = pa.RecordBatch.from_pydict({"body": ["a", "b"]})
    given = {"nameServer": server.namesrv, "topic": "Repeated", "idempotent": "true"}
    writers = [BatchWriter(for_sink(given), batch.schema, False) for _ in range(2)]
    for writer in (*writers, writers[0]):
        assert writer.write(iter([batch, batch])).sent == SendCounts(4, 2, 0, 0)
    keys = Counter(view.unique_key for view in stored(server, "Repeated"))
    assert Counter(keys.values()) == {2: 4, 1: 4}


@pytest.mark.slow
def test_no_row_is_lost_when_brokers_are_killed(tmp_path: Path) -> None:
    """Twice the broker dies with requests under way, and starts again elsewhere."""
    steps, rows = 40, 500
    batches = [pa.RecordBatch.from_pydict({"body": [f"{step}-{row}" for row in range(rows)]}) for step in range(steps)]
    with fake_cluster("broker-a", queues=4) as cluster, ExitStack() as last:
        broker = cluster.brokers["broker-a"]
        stack = ExitStack()

        def start(*, killed: bool) -> Server:
            server = stack.enter_context(serving(tmp_path, killed=killed))
            broker.address = server.broker
            return server

        def dealt() -> Iterator[pa.RecordBatch]:
            for step, batch in enumerate(batches):
                yield batch
                if step in (5, 20):
                    stack.close()
                    start(killed=True)

        last.callback(stack.close)
        create_topic(start(killed=True), "T")
        options = {"nameServer": cluster.name_server, "topic": "T", "sendBatch": "50"}
        writer = BatchWriter(for_sink(options), batches[0].schema, False)
        sent = writer.write(dealt()).sent
        stack.close()
        seen = Counter((view.body, view.unique_key) for view in stored(start(killed=False), "T"))
    assert sent.messages == steps * rows
    assert sent.retries > 0
    assert {body.decode() for body, _ in seen} == {f"{step}-{row}" for step in range(steps) for row in range(rows)}
    assert len(seen) == steps * rows


def test_what_was_sent_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    schema = pa.schema([("body", pa.binary())])
    options = for_sink({"nameServer": "127.0.0.1:1", "topic": "T"})
    sent = [TaskResult(SendCounts(10, 2, 1, 3)), TaskResult(SendCounts(5, 1, 0, 0))]
    batch, stream = BatchWriter(options, schema, False), StreamWriter(options, schema, False)
    batch.commit(sent)
    batch.abort([*sent, None])
    stream.commit(sent, 7)
    stream.abort([None, None], 8)
    sums = {"messages": 15, "requests": 3, "retries": 1, "not_durable": 3, "tasks": 2}
    failed = "has failed: consumers can see the messages that it sent"
    assert told(caplog) == [
        {"event": "messages are sent", **sums, "failed_tasks": 0},
        {"event": f"job {failed}", **sums, "failed_tasks": 1},
        {"event": "messages of a batch are sent", "batch_id": 7, **sums, "failed_tasks": 0},
        {"event": f"batch {failed}", "batch_id": 8, **dict.fromkeys(sums, 0), "failed_tasks": 2},
    ]


def test_overwriting_is_refused() -> None:
    options = for_sink({"nameServer": "127.0.0.1:1", "topic": "T"})
    with pytest.raises(ConfigError, match=r"can only be appended: use .mode\(.append.\)"):
        BatchWriter(options, pa.schema([("body", pa.binary())]), True)


@pytest.mark.parametrize(
    ("columns", "options", "error"),
    [
        (["id AS body"], {"topic": "Bad"}, "column body is int64; allowed is binary or string"),
        (["'' AS body", "id"], {"topic": "Bad"}, "column 'id' can't be written: messages have"),
        (["'' AS body"], {"topic": "Bad", "delivery": "exactly-once"}, "only a stream has it, since a batch"),
        (["'' AS body"], {}, "the topic is missing: give option topic, or a column topic"),
        (["'' AS body"], {"topic": "Unknown"}, "topic 'Unknown' has no route"),
        (["'' AS body"], {"topic": "ReadOnly"}, "no broker allows writing to topic 'ReadOnly'"),
        (["'' AS body"], {"topic": "Bad", "nameServer": "127.0.0.1:1"}, "no name server answers"),
        (["cast(null AS string) AS body"], {"topic": "Bad"}, "column body, row 0: a message needs"),
        (["repeat('x', 5000000) AS body"], {"topic": "Bad"}, "1 messages .* were not taken; 0 of"),
        (["'' AS body", "int(9) AS queueId"], {"topic": "Bad"}, "topic 'Bad' has no queue 9"),
    ],
)
def test_bad_input_reaches_the_user_as_one_sentence(
    spark: SparkSession, server: Server, columns: list[str], options: dict[str, Any], error: str
) -> None:
    create_topic(server, "Bad", queues=2)
    create_topic(server, "ReadOnly", perm=4)
    with pytest.raises(PySparkException, match=error):
        write(spark.range(1).selectExpr(*columns), server, **{"retries": "0"} | options)
    assert stored(server, "Bad", 2) == []


# --- Rows cut into batches: nothing is lost, nothing changes places in its queue ---


TARGETS = [WritableQueue("a", "a:1", 0), WritableQueue("a", "a:1", 1), WritableQueue("b", "b:1", 0)]
NAMES = ["T", "U", "%RETRY%g"]


def no_targets(topic: str) -> list[WritableQueue]:
    raise AssertionError(f"nobody has to know the queues of {topic}")


def encoded(**columns: Any) -> SinkRows:
    return rows_of(pa.RecordBatch.from_pydict(columns), Ids("0" * 20), "T", None)


def bodies(members: bytes) -> list[bytes]:
    return [member.body for member in split_batch(members)]


ROW = st.tuples(
    st.sampled_from(NAMES),
    st.none() | st.integers(0, 1),
    st.none() | st.sampled_from(["k1", "k2", "k3"]),
    st.none() | st.just(1),
)


@given(st.lists(ROW, max_size=60), st.integers(1, 9), st.booleans(), st.booleans())
def test_every_row_is_in_one_piece_and_in_order(
    table: list[tuple[str, int | None, str | None, int | None]], count_max: int, with_queues: bool, with_keys: bool
) -> None:
    topics, queue_ids, keys, delays = map(list, zip(*table, strict=True)) if table else [[]] * 4
    columns: dict[str, Any] = {
        "body": pa.array([b"%d" % number for number in range(len(table))], pa.binary()),
        "topic": pa.array(topics, pa.string()),
        "delayLevel": pa.array(delays, pa.int32()),
    }
    if with_queues:
        columns["queueId"] = pa.array(queue_ids, pa.int32())
    if with_keys:
        columns["orderKey"] = pa.array(keys, pa.string())
    rows = encoded(**columns)
    pieces = list(pieces_of(rows, lambda _: TARGETS, count_max))
    places: dict[tuple[str, WritableQueue | None, bool], list[int]] = {}
    keys_of: dict[tuple[str, str], set[WritableQueue | None]] = {}
    for piece in pieces:
        numbers = [int(body) for body in bodies(piece.members)]
        assert len(numbers) == piece.messages
        assert piece.messages <= (1 if piece.alone else count_max)
        places.setdefault((piece.topic, piece.target, piece.alone), []).extend(numbers)
        for number in numbers:
            topic, queue_id, key, delay = table[number]
            assert piece.topic == topic
            assert piece.alone == (delay is not None or topic == "%RETRY%g")
            if with_queues and queue_id is not None:
                assert piece.target == {0: TARGETS[0], 1: TARGETS[1]}[queue_id]
            elif with_keys and key is not None:
                keys_of.setdefault((topic, key), set()).add(piece.target)
            else:
                assert piece.target is None
    found = sorted(number for numbers in places.values() for number in numbers)
    assert found == list(range(len(table)))
    assert all(numbers == sorted(numbers) for numbers in places.values())
    assert all(len(targets) == 1 and None not in targets for targets in keys_of.values())


def test_a_piece_has_no_more_bytes_than_it_may_but_for_one_message() -> None:
    sizes = [400_000, 400_000, 400_000, BATCH_BYTES_MAX + 1, 10, 10]
    rows = encoded(body=pa.array([bytes(size) for size in sizes]))
    pieces = [list(map(len, bodies(piece.members))) for piece in pieces_of(rows, no_targets, 100)]
    assert pieces == [[400_000, 400_000], [400_000], [BATCH_BYTES_MAX + 1], [10, 10]]


def test_the_queue_of_a_number_that_several_brokers_have() -> None:
    """The number decides on the broker, so that the rows of one number stay together."""
    several = [WritableQueue(name, name, n) for name in ("a", "b") for n in range(4)]
    rows = encoded(body=pa.array([b""] * 8), queueId=pa.array([0, 1, 2, 3] * 2))
    targets = [piece.target for piece in pieces_of(rows, lambda _: several, 9)]
    found = {(target.queue_id, target.broker_name) for target in targets if target is not None}
    assert found == {(0, "a"), (1, "b"), (2, "a"), (3, "b")}


@pytest.mark.parametrize("queue_id", [2, 1 << 30])
def test_a_queue_that_a_topic_has_not(queue_id: int) -> None:
    rows = encoded(body=pa.array([b"", b""]), queueId=pa.array([0, queue_id]))
    with pytest.raises(MessageError, match=f"topic 'T' has no queue {queue_id} .* but 0 to 1"):
        list(pieces_of(rows, lambda _: TARGETS, 10))


def test_all_rows_alike_are_not_moved() -> None:
    rows = encoded(body=pa.array([b"%d" % n for n in range(10)]))
    assert not np.any(rows.topic_number)
    assert [bodies(piece.members) for piece in pieces_of(rows, no_targets, 5)] == [
        [b"0", b"1", b"2", b"3", b"4"],
        [b"5", b"6", b"7", b"8", b"9"],
    ]
