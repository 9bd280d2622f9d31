"""Messages from a broker of ours in another process: the rows that its files give."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from firearrow.client.pull import rangereader as range_reader
from firearrow.client.queues import NOT_STORED, Bound, Queue, Span
from firearrow.config import properties
from firearrow.errors import ConfigError, DataLost, NotPermitted, TopicNotFound
from firearrow.spark.jobs.archive.archiving import archive, source
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.options import for_sink, parse
from firearrow.spark.sink import BatchWriter
from firearrow.spark.source.brokers import BrokerOrigin, BrokerPartition, PullRange
from firearrow.spark.source.datasource import batch_spans
from firearrow.spark.source.filters import NumberSet, PushedFilters, TextSet
from firearrow.spark.source.stream import StreamReader
from firearrow.spark.tables import MESSAGES
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import FieldValue
from tests.client.fakes import fake_cluster
from tests.golden import extract, settings_file
from tests.interop.servers import BROKER_NAME, SMALL_FILES, Server, serve
from tests.loglines import told
from tests.net.rawclient import RawClient
from tests.spark.brokers import create_topic, serving, stored
from tests.spark.jobs.inline import Inline

ROWS = 3000
ORDER = [("topic", "ascending"), ("queueId", "ascending"), ("queueOffset", "ascending")]


def write(server: Server, topic: str, **columns: Any) -> None:
    batch = pa.RecordBatch.from_pydict(columns)
    options = for_sink({"nameServer": server.namesrv, "topic": topic, "sendBatch": "100"})
    BatchWriter(options, batch.schema, False).write(iter([batch]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker with 3,000 messages in four queues of Orders, and few in others."""
    with serving(tmp_path_factory.mktemp("brokers"), {"autoCreateTopicEnable": "false"}) as server:
        for topic in ("Orders", "Returns", "Empty"):
            create_topic(server, topic)
        numbers = range(ROWS)
        write(
            server,
            "Orders",
            body=[b"body %d" % n * (n % 7) for n in numbers],
            tags=["odd" if n % 2 else "even" for n in numbers],
            keys=[f"k{n} all" for n in numbers],
            properties=pa.array([[("n", str(n))] for n in numbers], pa.map_("string", "string")),
        )
        write(server, "Returns", body=["x", "y"], queueId=[1, 1])
        # A pull has what is pending dispatched; from then on the ends of queues are what they are.
        assert len(stored(server, "Orders")) == ROWS
        assert len(stored(server, "Returns")) == 2
        yield server


@contextmanager
def origin_of(server: Server, **options: str) -> Iterator[BrokerOrigin]:
    origin = BrokerOrigin(parse({"nameServer": server.namesrv, **options}))
    yield origin
    origin.close()


def read(server: Server, **options: str) -> pa.Table:
    return read_some(server, options)


def read_some(
    server: Server, options: Mapping[str, str], narrow: PushedFilters | None = None, schema: pa.Schema = MESSAGES
) -> pa.Table:
    """What a batch reads: planned by one origin, read by others from what was pickled."""
    given = parse({"nameServer": server.namesrv, **options})
    planned = BrokerOrigin(given, narrow)
    tasks = pickle.loads(pickle.dumps(planned.partitions(batch_spans(planned, given))))
    planned.close()
    batches = [b for task in tasks for b in BrokerOrigin(given, narrow).read(task, schema)]
    return pa.Table.from_batches(batches, schema)


def bodies(table: pa.Table) -> list[bytes]:
    return sorted(table.column("body").to_pylist())


def test_bounds_are_the_ends_of_the_queues_that_were_chosen(server: Server) -> None:
    with origin_of(server, subscribe="Orders, Returns, Empty") as origin:
        bounds = origin.bounds()
    assert set(bounds) == {Queue(topic, BROKER_NAME, n) for topic in ("Orders", "Returns", "Empty") for n in range(4)}
    assert sum(b.latest for queue, b in bounds.items() if queue.topic == "Orders") == ROWS
    assert bounds[Queue("Returns", BROKER_NAME, 1)] == Bound(0, 2)
    assert bounds[Queue("Empty", BROKER_NAME, 0)] == Bound(0, 0)


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"subscribe": "Returns"}, {"Returns"}),
        ({"subscribePattern": "R.*s"}, {"Returns"}),
        ({"assign": '{"Orders": {"broker-a": [2]}, "Empty": {"broker-a": [0]}}'},
         {"Orders", "Empty"}),
        ({"subscribe": "Orders", "brokerName": "another"}, set()),
    ],
)  # fmt: skip
def test_what_is_chosen(server: Server, options: dict[str, str], topics: set[str]) -> None:
    with origin_of(server, **options) as origin:
        bounds = origin.bounds()
    assert {queue.topic for queue in bounds} == topics
    if "assign" in options:
        assert {queue.queue_id for queue in bounds if queue.topic == "Orders"} == {2}


def test_without_a_choice_there_are_all_topics(server: Server) -> None:
    for options, of_broker in ({}, set[str]()), ({"systemTopics": "true"}, {"BenchmarkTest"}):
        with origin_of(server, **options) as origin:
            topics = {queue.topic for queue in origin.bounds()}
        assert topics >= {"Orders", "Returns", "Empty"}
        assert topics & {"BenchmarkTest"} == of_broker


@pytest.mark.parametrize("split", ["1g", "20k", "1"])
def test_the_rows_are_those_of_the_files(server: Server, split: str) -> None:
    table = read(server, subscribe="Orders", splitBytes=split).sort_by(ORDER)
    files = from_files(server, subscribe="Orders", brokerName=BROKER_NAME).sort_by(ORDER)
    assert table.num_rows == ROWS
    assert table.equals(files)


@pytest.mark.parametrize("split", ["1g", "1"])
def test_messages_of_inner_batches_are_those_of_the_files(tmp_path: Path, split: str) -> None:
    root = extract("batch-queues", tmp_path)
    sizes = {"mappedFileSizeCommitLog": "1048576", "mapperFileSizeBatchConsumeQueue": "460"}
    with serve("firearrow", root, tmp_path / "logs", settings=sizes) as server:
        files = from_files(server, subscribe="Bat", brokerName=BROKER_NAME).sort_by(ORDER)
        assert files.num_rows == 80
        assert read(server, subscribe="Bat", splitBytes=split).sort_by(ORDER).equals(files)
        parts = [
            read_some(server, {"subscribe": "Bat", "startingOffsets": ends(start), "endingOffsets": ends(start + 7)})
            for start in range(0, 45, 7)
        ]
        with origin_of(server, subscribe="Bat") as origin:
            spans = {queue: Span(*_ends(bound)) for queue, bound in origin.bounds().items()}
            found = origin.row_bytes(spans)
        tagged = read(server, subscribe="Bat", tags="TagB", splitBytes=split).sort_by(ORDER)
    assert pa.concat_tables(parts).sort_by(ORDER).equals(files)
    assert 0 < tagged.num_rows < 80
    assert tagged.equals(files.filter(pc.equal(files.column("tags"), "TagB")))
    estimated = sum(found[queue] * (span.end - span.start) for queue, span in spans.items())
    assert estimated == pytest.approx(17_438, rel=0.1)  # the bytes of its 30 records


def ends(offset: int) -> str:
    """Both queues of ``Bat`` at an offset, or at their ends before it."""
    places = {"0": min(offset, 45), "1": min(offset, 35)}
    return json.dumps({"Bat": {BROKER_NAME: places}})


def from_files(server: Server, **options: str) -> pa.Table:
    from firearrow.spark.source.files import FileOrigin

    given = parse({"path": str(server.store), **options})
    origin = FileOrigin(given)
    tasks = origin.partitions(batch_spans(origin, given))
    batches = [b for task in tasks for b in FileOrigin(given).read(task, MESSAGES)]
    return pa.Table.from_batches(batches, MESSAGES)


def test_only_the_columns_that_were_asked_for(server: Server) -> None:
    schema = pa.schema([MESSAGES.field(name) for name in ("queueOffset", "tags")])
    table = read_some(server, {"subscribe": "Orders", "batchBytes": "1k"}, schema=schema)
    assert table.schema == schema
    assert table.num_rows == ROWS


def test_messages_of_some_tags_and_keys(server: Server) -> None:
    odd = [b"body %d" % n * (n % 7) for n in range(ROWS) if n % 2]
    assert bodies(read(server, subscribe="Orders", tags="odd || other")) == sorted(odd)
    assert bodies(read(server, subscribe="Orders", keys="k8 k15 nothing")) == [b"body 15", b"body 8"]
    assert bodies(read(server, subscribe="Orders", tags="even", keys="k15")) == []


def test_tags_of_messages_that_wait_are_those_of_the_files(tmp_path: Path) -> None:
    root, topic = extract("file-cq-clean", tmp_path), "SCHEDULE_TOPIC_XXXX"
    settings = properties.load(settings_file("file-cq-clean"))
    sizes = {key: settings[key] for key in SMALL_FILES if key in settings}
    with serve("firearrow", root, tmp_path / "logs", settings=sizes) as server:
        for tags, count in (("*", 19), ("TagB", 6), ("other", 0)):
            table = read(server, subscribe=topic, tags=tags).sort_by(ORDER)
            files = from_files(server, subscribe=topic, tags=tags, brokerName=BROKER_NAME)
            assert table.equals(files.sort_by(ORDER))
            assert table.num_rows == count


def test_an_archive_knows_the_store_behind_a_broker(server: Server, tmp_path: Path) -> None:
    place = Archive(tmp_path / "archive")
    opener, settings = source({"nameServer": server.namesrv, "subscribe": "Orders"})
    assert archive(Inline(), opener, place, settings).rows == ROWS
    [mark] = place.load().progress.marks
    with origin_of(server, subscribe="Returns") as origin:
        origin.bounds()
        found = origin.stored_at(BROKER_NAME, mark.commit_log_offset)
        assert found is not None
        assert found.store_ms == mark.store_ms
        for other in (mark.commit_log_offset + 1, 1 << 40):
            assert origin.stored_at(BROKER_NAME, other) == NOT_STORED
    options = {"path": str(server.store), "brokerName": BROKER_NAME, "subscribe": "Returns"}
    opener, settings = source(options)
    assert archive(Inline(), opener, place, settings).rows > 0
    other_store = {"path": str(extract("file-cq-clean", tmp_path)), "brokerName": BROKER_NAME}
    opener, settings = source(other_store)
    with pytest.raises(ConfigError, match="is of another store of broker"):
        archive(Inline(), opener, place, settings)


def test_what_filters_leave_out_is_not_read(server: Server) -> None:
    narrow = PushedFilters(queue_id=NumberSet(1, 2), queue_offset=NumberSet(100, 199))
    table = read_some(server, {"subscribe": "Orders"}, narrow)
    assert table.num_rows == 200
    assert set(table.column("queueId").to_pylist()) == {1, 2}
    narrow = PushedFilters(topic=TextSet(frozenset({"Returns"})))
    assert bodies(read_some(server, {"subscribe": "Orders, Returns"}, narrow)) == [b"x", b"y"]
    place = read(server, subscribe="Orders").column("commitLogOffset").to_pylist()[7]
    narrow = PushedFilters(physical_offset=NumberSet(place, place))
    assert read_some(server, {"subscribe": "Orders"}, narrow).num_rows == 1


@pytest.mark.parametrize("options", [{}, {"splitBytes": "30k"}, {"minPartitions": "13"}])
def test_tasks_cover_the_spans_once(server: Server, options: dict[str, str]) -> None:
    with origin_of(server, subscribe="Orders, Returns, Empty", **options) as origin:
        spans = {queue: Span(*_ends(bound)) for queue, bound in origin.bounds().items()}
        tasks = origin.partitions(spans)
        sizes = origin.row_bytes(spans)
    found: dict[Queue, list[Span]] = {}
    for task in tasks:
        assert isinstance(task, BrokerPartition)
        for part in task.parts:
            found.setdefault(part.queue, []).append(part.span)
    for queue, span in spans.items():
        offsets = [n for piece in found.get(queue, []) for n in range(*piece)]
        assert offsets == list(range(*span))
    if options == {}:
        assert len(tasks) == 1
    else:
        assert len(tasks) >= int(options.get("minPartitions", "10"))
    assert all(100 < size < 300 for queue, size in sizes.items() if queue.topic == "Orders")


def _ends(bound: Bound) -> tuple[int, int]:
    return bound.earliest, bound.latest


def test_offsets_by_time(server: Server) -> None:
    table = read(server, subscribe="Orders").sort_by(ORDER)
    queue = Queue("Orders", BROKER_NAME, 2)
    rows = [row for row in table.select(["queueId", "storeTimestamp"]).to_pylist()
            if row["queueId"] == 2]  # fmt: skip
    times = [int(row["storeTimestamp"].timestamp() * 1000) for row in rows]
    with origin_of(server, subscribe="Orders") as origin:
        for moment in {0, *times, *(time + 1 for time in times)}:
            later = [n for n, time in enumerate(times) if time >= moment]
            assert origin.offset_at(queue, moment) == (later[0] if later else None)
            [(_, found)] = origin.offsets_at({queue: Span(0, len(times))}, moment).items()
            assert found == (later[0] if later else len(times))
        assert origin.offset_at(Queue("Empty", BROKER_NAME, 0), 0) is None


def test_a_group_is_told_how_far_it_is(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue("Orders", BROKER_NAME, 1)
    gone = Queue("Orders", "gone", 1)
    with origin_of(server, subscribe="Orders", consumerGroup="mirror") as origin:
        read(server, subscribe="Orders", consumerGroup="mirror")  # a pull makes the group
        origin.commit_offsets({queue: 42, gone: 1})
    client = RawClient()
    fields: dict[str, FieldValue] = {"consumerGroup": "mirror", "topic": "Orders", "queueId": 1}
    answer = client.call(server.broker, RequestCode.QUERY_CONSUMER_OFFSET, fields)
    client.close()
    assert answer.ext["offset"] == "42"
    [line] = told(caplog)
    assert str(line.pop("error")).startswith("no name server knows where")
    assert line == {"event": "offset is not committed", **gone.fields}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"table": "index"}, ConfigError, "option table='index': brokers have messages only"),
        ({"visibility": "log"}, ConfigError, "option visibility='log': brokers show the messages"),
        ({"subscribe": "Orders,None"}, TopicNotFound, "topic 'None' has no route"),
        ({"subscribe": "WriteOnly"}, NotPermitted, "no broker allows reading topic 'WriteOnly'"),
        ({"assign": '{"Orders": {"broker-a": [4]}}'}, ConfigError,
         "option assign: topic 'Orders' has no queue 4 to read on 'broker-a'"),
        ({"nameServer": "127.0.0.1:1"}, ConnectionError, "no name server answers: 127.0.0.1:1 can"),
        ({"accessKey": "me"}, ConfigError, "option secretKey is missing"),
    ],
)  # fmt: skip
def test_bad_input(server: Server, options: Mapping[str, str], error: type[Exception], text: str) -> None:
    create_topic(server, "WriteOnly", perm=2)
    with pytest.raises(error, match=text):
        read_some(server, options)


def test_ranges_that_are_not_there(server: Server) -> None:
    queue = Queue("Returns", BROKER_NAME, 1)
    for fail, rows in (("true", -1), ("false", 2)):
        with origin_of(server, subscribe="Returns", failOnDataLoss=fail) as origin:
            tasks = origin.partitions({queue: Span(0, 10)})
            if rows < 0:
                with pytest.raises(DataLost, match="offsets 2 to 9 of queue 1 of topic 'Returns'"):
                    list(origin.read(tasks[0], MESSAGES))
            else:
                assert sum(len(batch) for batch in origin.read(tasks[0], MESSAGES)) == rows


def test_a_broker_that_starts_again_elsewhere(tmp_path: Path) -> None:
    """Ends of queues and messages are asked for again, where the broker is now."""
    with serving(tmp_path) as first:
        create_topic(first, "T", queues=1)
        write(first, "T", body=["a", "b"])
        assert len(stored(first, "T", 1)) == 2
    gone = PullRange(Queue("T", BROKER_NAME, 0), Span(0, 2), first.broker)
    with serving(tmp_path) as second, origin_of(second, subscribe="T") as origin:
        found = list(origin.read(BrokerPartition((gone,)), MESSAGES))
        assert bodies(pa.Table.from_batches(found)) == [b"a", b"b"]
        assert origin.bounds() == {gone.queue: Bound(0, 2)}


def streamed(server: Server, checkpoint: Any, **options: str) -> tuple[list[bytes], Any]:
    """The bodies that a query reads on from a checkpoint, by itself, and the next checkpoint."""
    given = {"nameServer": server.namesrv, "subscribe": "T", "startingOffsets": "earliest"}
    reader = StreamReader(parse(given | options), MESSAGES)
    start = reader.initialOffset() if checkpoint is None else checkpoint
    end = reader.latestOffset(start, ReadAllAvailable())
    tasks = pickle.loads(pickle.dumps(reader.partitions(start, end))) if end != start else []
    found = [batch for task in tasks for batch in reader.read(task)]
    reader.origin.close()  # type: ignore[attr-defined]
    return bodies(pa.Table.from_batches(found, MESSAGES)), end


@pytest.mark.parametrize("count", [20, 40, 60])
def test_a_topic_that_was_made_again_is_read_from_its_beginning(
    tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as server:
        create_topic(server, "T", queues=1)
        write(server, "T", body=[f"old{n}" for n in range(40)])
        stored(server, "T", 1)
        found, checkpoint = streamed(server, None)
        assert len(found) == 40
        client = RawClient()
        client.call(server.broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        client.close()
        create_topic(server, "T", queues=1)
        new = [f"new{n}" for n in range(count)]
        write(server, "T", body=new)
        stored(server, "T", 1)
        with pytest.raises(DataLost, match="offsets 40 to 40, the topic was deleted and created agai"):
            streamed(server, checkpoint)
        found, checkpoint = streamed(server, checkpoint, failOnDataLoss="false")
        assert found == sorted(body.encode() for body in new)
        assert "the topic was deleted and created again" in [it.get("reason") for it in told(caplog)]
        assert streamed(server, checkpoint) == ([], checkpoint)


def test_a_checkpoint_knows_the_store_behind_a_broker(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as server:
        create_topic(server, "T", queues=1)
        write(server, "T", body=["a"] * 40)
        stored(server, "T", 1)
        _, checkpoint = streamed(server, None)
    with serving(tmp_path / "two") as server:
        create_topic(server, "T", queues=1)
        write(server, "T", body=["b"] * 41)
        stored(server, "T", 1)
        with pytest.raises(ConfigError, match="the checkpoint is of another store of broker"):
            streamed(server, checkpoint)
        found, checkpoint = streamed(server, checkpoint, allowNewStore="true")
        assert found == [b"b"] * 41
        assert streamed(server, checkpoint) == ([], checkpoint)


def test_ends_of_queues_are_asked_for_again_where_a_route_was_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "PAUSE_SECONDS", 0.0)
    with fake_cluster("a", queues=1) as cluster:
        given = parse({"nameServer": cluster.name_server, "subscribe": "T"})
        origin = BrokerOrigin(given)
        cluster.old_routes = range_reader.ATTEMPTS_MAX - 1
        assert origin.bounds() == {Queue("T", "a", 0): Bound(3, 7)}
        origin.close()
        origin = BrokerOrigin(given)
        cluster.old_routes = range_reader.ATTEMPTS_MAX
        with pytest.raises(ConnectionError, match=r"^127.0.0.1:1 can't be reached"):
            origin.bounds()
        origin.close()


def test_spark_reads_a_batch_and_a_stream(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    frame = spark.read.format("rocketmq").option("nameServer", server.namesrv)
    rows = frame.option("subscribe", "Orders").option("splitBytes", "256k").load()
    counted = rows.groupBy("tags").count().collect()
    assert {row["tags"]: row["count"] for row in counted} == {"odd": ROWS // 2, "even": ROWS // 2}
    assert rows.where("queueId = 1 and queueOffset < 10").count() == 10
    stream = spark.readStream.format("rocketmq").option("nameServer", server.namesrv)
    query = (
        stream.options(subscribe="Orders", startingOffsets="earliest", maxOffsetsPerTrigger="1000")
        .options(consumerGroup="streamed", commitOffsets="true")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == ROWS


def test_an_error_reaches_the_user_of_spark(spark: SparkSession, server: Server) -> None:
    frame = spark.read.format("rocketmq").option("nameServer", server.namesrv)
    with pytest.raises(PySparkException, match="topic 'None' has no route: no broker has registered it"):
        frame.option("subscribe", "None").load().count()
