"""Steps of a stream are seen once, whoever dies and when, and what is refused."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import deltalake.transaction as delta
import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError
from moto.server import ThreadedMotoServer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from firearrow.client.producer import ending
from firearrow.client.producer.batchsender import BatchBody, SendCounts
from firearrow.client.producer.transactions import end_fields
from firearrow.client.routing.queues import WritableQueue
from firearrow.errors import BrokerFailed, ConfigError, CorruptStore, DataLost, FirearrowError, MessageError
from firearrow.message.ids import encode_offset_id
from firearrow.spark import exactlyonce
from firearrow.spark.exactlyonce import DECISION, HALVES, Decisions, HalfNotes, StepEnd
from firearrow.spark.options import Options, for_sink
from firearrow.spark.sink import BatchWriter, StreamWriter, TaskResult
from firearrow.wire.command import Command
from tests.client.fakes import fake_cluster
from tests.interop.servers import Server
from tests.loglines import told
from tests.spark.brokers import create_topic, serving, stored
from tests.spark.sinkdeaths import (
    AFTER_THE_DECISION,
    BETWEEN_COMMITS,
    IN_A_TASK,
    JVM,
    POINTS,
    ROWS,
    DyingSource,
    has_died,
    kill_at,
)
from tests.spark.sinkdriver import driving, lines, run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("once")) as server:
        yield server


def bodies(server: Server, topic: str, queues: int = 4) -> list[str]:
    """What consumers see, queue by queue."""
    return [view.body.decode() for view in stored(server, topic, queues)]


# --- Spark's workers are killed: of the tasks, and of the end of a step ---


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_are_seen_once_when_workers_are_killed_at_any_point(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """One step dies at each point in turn. Its messages are those of the run that died after its decision."""
    create_topic(server, "Killed")
    spark.dataSource.register(DyingSource)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("".join(f"{row}\n" for row in range(ROWS)))
    seen: list[int] = []
    for point in POINTS:
        kill_at(tmp_path / "checkpoint", point)
        with pytest.raises(StreamingQueryException, match="Python worker exited unexpectedly"):
            run(lines(spark, tmp_path / "in", point), server.namesrv, "Killed", tmp_path / "checkpoint")
        assert has_died(tmp_path / "checkpoint")
        seen.append(len(stored(server, "Killed")))
    assert seen[:4] == [0, 0, 0, 0]
    assert 0 < seen[4] < ROWS
    assert seen[5:] == [ROWS, ROWS]
    (tmp_path / "in" / "1.txt").write_text("the next step\n")
    run(lines(spark, tmp_path / "in", "last"), server.namesrv, "Killed", tmp_path / "checkpoint")
    expected = Counter(f"{row}/{AFTER_THE_DECISION}" for row in range(ROWS))
    assert Counter(bodies(server, "Killed")) == expected + Counter(["the next step/last"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_are_seen_once_when_an_executor_and_then_the_driver_are_killed(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """Spark starts another executor, whose task sends other halves. The driver dies between two commits."""
    create_topic(server, "Driven")
    spark.dataSource.register(DyingSource)
    checkpoint, source = tmp_path / "checkpoint", tmp_path / "in"
    source.mkdir()
    expected: Counter[str] = Counter()

    def more(step: str, run: str) -> None:
        (source / f"{step}.txt").write_text("".join(f"{step} {row}\n" for row in range(ROWS)))
        expected.update(f"{step} {row}/{run}" for row in range(ROWS))

    def go(driver: subprocess.Popen[str]) -> str:
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write("go\n")
        driver.stdin.flush()
        return driver.stdout.readline()

    with driving(server.namesrv, "Driven", tmp_path, "first") as driver:
        assert driver.stdout is not None
        pids = map(int, driver.stdout.readline().split())
        more("one", "first")
        kill_at(checkpoint, IN_A_TASK, JVM)
        assert go(driver) == "sent\n"
        assert has_died(checkpoint)
        assert Counter(bodies(server, "Driven")) == expected
        more("two", "first")
        kill_at(checkpoint, BETWEEN_COMMITS, *pids)
        assert go(driver) == ""
        assert has_died(checkpoint)
        assert ROWS < len(bodies(server, "Driven")) < 2 * ROWS
    more("three", "second")
    run(lines(spark, source, "second"), server.namesrv, "Driven", checkpoint)
    assert Counter(bodies(server, "Driven")) == expected


# --- one sink, without Spark ---


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait for commits in flight: Firearrow's broker commits a half once."""
    monkeypatch.setattr(exactlyonce, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint that Spark has begun."""
    found = tmp_path / "checkpoint"
    found.mkdir()
    (found / "metadata").touch()
    return found


def options(name_server: str, topic: str, checkpoint: Path, **others: str) -> Options:
    given = {"nameServer": name_server, "topic": topic, "checkpointLocation": str(checkpoint)}
    return for_sink(given | {"delivery": "exactly-once"} | others)


class Sink:
    """Runs steps as Spark does: writers come as pickles, so each call has a writer of its own."""

    def __init__(self, given: Options) -> None:
        self._options = given

    def _writer(self, schema: pa.Schema) -> StreamWriter:
        return StreamWriter(self._options, schema, False)

    def write(self, **columns: Any) -> TaskResult:
        """Run a task."""
        batch = pa.RecordBatch.from_pydict(columns)
        return self._writer(batch.schema).write(iter([batch]))

    def commit(self, step: int, *results: TaskResult) -> None:
        """End a step."""
        self._writer(pa.schema({"body": pa.string()})).commit(results, step)

    def abort(self, step: int, *results: TaskResult | None) -> None:
        """Abort a step."""
        self._writer(pa.schema({"body": pa.string()})).abort(results, step)


def test_messages_are_seen_when_their_step_ends(server: Server, checkpoint: Path) -> None:
    create_topic(server, "Steps")
    sink = Sink(options(server.namesrv, "Steps", checkpoint))
    first, second = sink.write(body=["a", "b"], tags=["T", None]), sink.write(body=["c"])
    assert bodies(server, "Steps") == []
    sink.commit(0, first, second)
    assert sorted(bodies(server, "Steps")) == ["a", "b", "c"]
    sink.commit(1)
    assert Decisions(str(checkpoint)).of(1) is None


def test_a_step_that_runs_again_has_the_messages_of_its_decision(server: Server, checkpoint: Path) -> None:
    create_topic(server, "Again")
    sink = Sink(options(server.namesrv, "Again", checkpoint))
    sink.commit(0, sink.write(body=["a", "b"]))
    sink.commit(0, sink.write(body=["b", "another"]))
    sink.commit(0)
    assert sorted(bodies(server, "Again")) == ["a", "b"]


def test_brokers_whose_logs_have_halves_at_the_same_places(server: Server, checkpoint: Path, tmp_path: Path) -> None:
    settings = {"namesrvAddr": server.namesrv, "brokerName": "broker-b"}
    with serving(tmp_path, settings) as other:
        for broker in (server, other):
            create_topic(broker, "Both")
        sink = Sink(options(server.namesrv, "Both", checkpoint))
        sent = [sink.write(body=[f"{run} {number}" for number in range(100)]) for run in ("first", "second")]
        for result in sent:
            sink.commit(0, result)
        seen = [bodies(broker, "Both") for broker in (server, other)]
    assert all(seen)
    assert Counter(seen[0] + seen[1]) == Counter(f"first {number}" for number in range(100))


@pytest.mark.parametrize("in_order", [False, True])
def test_a_broker_that_is_killed_between_two_commits(
    in_order: bool, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts again elsewhere. Rows with an order key stay in order."""
    with fake_cluster("broker-a", queues=4) as cluster, ExitStack() as last:
        broker, stack = cluster.brokers["broker-a"], ExitStack()
        calls = 0

        def start() -> Server:
            server = stack.enter_context(serving(tmp_path, killed=True))
            broker.address = server.broker
            return server

        def killing(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == ending.IN_FLIGHT_MAX + 50:
                stack.close()
                servers.append(start())
            return end_fields(*args, **named)

        monkeypatch.setattr(ending, "end_fields", killing)
        last.callback(stack.close)
        servers = [start()]
        create_topic(servers[0], "T")
        sink = Sink(options(cluster.name_server, "T", checkpoint))
        columns = {"orderKey": [number % 7 for number in range(ROWS)]} if in_order else {}
        sink.commit(0, sink.write(body=[str(number) for number in range(ROWS)], **columns))
        seen = [int(body) for body in bodies(servers[1], "T")]
    assert calls > ROWS
    assert sorted(seen) == list(range(ROWS))
    if in_order:
        for customer in range(7):
            theirs = [number for number in seen if number % 7 == customer]
            assert theirs == sorted(theirs)


def test_halves_are_in_the_order_of_their_rows_though_one_was_sent_again() -> None:
    notes, target = HalfNotes(), WritableQueue("broker-a", "a:1", 3)
    piece = BatchBody("T", b"", 1, True, target)
    for number in (1, 3, 2):
        place = encode_offset_id(("127.0.0.1", 1), 100 + number)
        answer = Command(0, ext={"queueOffset": str(number), "msgId": place})
        notes.note(number, piece, target, answer)
    table = notes.table()
    assert table["physicalOffset"].to_pylist() == [101, 102, 103]
    assert table.slice(1, 1).to_pylist() == [
        {"topic": "T", "broker": "broker-a", "queueId": 3, "inOrder": True, "halfOffset": 2, "physicalOffset": 102}
    ]
    assert HalfNotes().table() == HALVES.empty_table()


# --- halves that do not count ---


def test_a_step_whose_task_fails_is_rolled_back_but_not_one_whose_commit_fails(
    server: Server, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(server, "Aborted")
    sink = Sink(options(server.namesrv, "Aborted", checkpoint))
    dropped, kept = sink.write(body=["dropped"]), sink.write(body=["kept"])
    sink.abort(0, dropped, None)
    sink.abort(0, kept)
    sink.commit(0, dropped, kept)
    assert bodies(server, "Aborted") == ["kept"]
    assert told(caplog) == [{"event": "batch has failed: its next run delivers what is missing", "batch_id": 0}] * 2


def test_a_task_that_fails_rolls_its_halves_back(
    server: Server, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(server, "Failed")
    rolled_back: list[pa.Table] = []
    roll_back = StepEnd.roll_back

    def noted(self: StepEnd, halves: pa.Table) -> None:
        rolled_back.append(halves)
        roll_back(self, halves)

    monkeypatch.setattr(StepEnd, "roll_back", noted)
    given = options(server.namesrv, "Failed", checkpoint)
    sink = Sink(given)
    with pytest.raises(MessageError, match="column queueId: topic 'Failed' has no queue 9"):
        sink.write(body=["a", "b"], queueId=[0, 9])
    good = pa.RecordBatch.from_pydict({"body": ["a"]})
    bad = pa.RecordBatch.from_pydict({"body": [None]}, good.schema)
    with pytest.raises(MessageError, match="a message needs a body"):
        StreamWriter(given, good.schema, False).write(iter([good, bad]))
    assert [len(halves) for halves in rolled_back] == [0, 1]
    sink.commit(0, TaskResult(SendCounts(1, 1, 0, 0), rolled_back[1]))
    assert bodies(server, "Failed") == []


def test_a_row_may_be_a_copy_of_another_groups_message(server: Server, checkpoint: Path) -> None:
    create_topic(server, "Copies")
    sink = Sink(options(server.namesrv, "Copies", checkpoint))
    sink.commit(0, sink.write(body=["copy"], properties=["PGROUP\x01theirs\x02a\x01b"]))
    [view] = stored(server, "Copies")
    assert (view.body, view.properties["a"], view.properties["PGROUP"]) == (b"copy", "b", "firearrow-spark")


# --- decisions ---


def decision(*places: int, start: int = 0, topic: str = "T") -> pa.Table:
    rows = [(topic, "broker-a", 0, False, n, place, start) for n, place in enumerate(places)]
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), DECISION, strict=True)]
    return pa.table(columns, DECISION)


def test_the_first_decision_counts(checkpoint: Path) -> None:
    mine, other = Decisions(str(checkpoint)), Decisions(f"file:{checkpoint}")
    assert mine.of(7) is None
    assert mine.settle(7, decision(1, 2)) == (decision(1, 2), True)
    assert other.settle(7, decision(3)) == (decision(1, 2), False)
    assert mine.of(7) == other.of(7) == decision(1, 2)


@pytest.mark.parametrize("late", [None, DeltaError("the connection was cut")])
def test_another_driver_decides_at_the_same_moment(
    late: Exception | None, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the library then does with the late one: it may even add it to the table."""
    create = delta.create_table_with_add_actions

    def second(*args: Any, **named: Any) -> None:
        monkeypatch.undo()
        Decisions(str(checkpoint)).settle(7, decision(3))
        create(*args, **named | {"mode": "append"})
        if late is not None:
            raise late

    monkeypatch.setattr(delta, "create_table_with_add_actions", second)
    assert Decisions(str(checkpoint)).settle(7, decision(1, 2)) == (decision(3), False)


def test_decisions_in_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    try:
        host, port = store.get_host_and_port()
        urlopen(Request(f"http://{host}:{port}/bucket", method="PUT")).close()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-west-1",
        }.items():
            monkeypatch.setenv(name, value)
        decisions = Decisions("s3a://bucket/checkpoint")
        with pytest.raises(ConfigError, match="Spark has no checkpoint at s3://bucket/checkpoint"):
            decisions.require_checkpoint()
        assert decisions.of(7) is None
        assert decisions.settle(7, decision(1, 2)) == (decision(1, 2), True)
        assert decisions.settle(7, decision(3)) == (decision(1, 2), False)
        decisions.forget_before(8)
        assert decisions.of(7) is None
    finally:
        store.stop()


def test_old_decisions_are_removed(checkpoint: Path) -> None:
    decisions = Decisions(str(checkpoint))
    decisions.forget_before(5)
    for step in (3, 4, 5, 11):
        decisions.settle(step, decision(step))
    decisions.forget_before(5)
    assert [decisions.of(step) for step in (3, 4)] == [None, None]
    assert [decisions.of(step) for step in (5, 11)] == [decision(5), decision(11)]


def test_a_damaged_decision_is_one_sentence(checkpoint: Path) -> None:
    Decisions(str(checkpoint)).settle(1, decision(1))
    (entry,) = checkpoint.glob("firearrow-sink/1/_delta_log/*.json")
    entry.write_bytes(b"")
    with pytest.raises(
        CorruptStore,
        match=r"^[^\n]*firearrow-sink/1: the decision on the step can't be read: [^\n]* remove this[^\n]*$",
    ):
        Decisions(str(checkpoint)).of(1)


def test_a_queue_that_has_begun_again_is_an_error(server: Server, checkpoint: Path) -> None:
    create_topic(server, "Anew")
    Decisions(str(checkpoint)).settle(2, decision(1, start=10, topic="Anew"))
    with pytest.raises(DataLost, match="step 2: it can't be known which messages have arrived"):
        Sink(options(server.namesrv, "Anew", checkpoint)).commit(2)


def test_a_half_that_its_broker_has_lost_is_an_error(server: Server, checkpoint: Path) -> None:
    create_topic(server, "Lost")
    Decisions(str(checkpoint)).settle(2, decision(1 << 40, topic="Lost"))
    with pytest.raises(BrokerFailed, match=f"half message at {1 << 40} in the log of 'broker-a', for topic 'Lost'"):
        Sink(options(server.namesrv, "Lost", checkpoint)).commit(2)


# --- refusals ---


def test_a_checkpoint_that_is_elsewhere_is_refused(tmp_path: Path) -> None:
    halves = pa.table([[] for _ in HALVES], HALVES)
    with pytest.raises(ConfigError, match=r"Spark has no checkpoint at .*; name it with its scheme"):
        StepEnd(options("127.0.0.1:1", "T", tmp_path / "none")).commit(0, halves)
    with pytest.raises(ConfigError, match=r"^checkpoint nothing://here: [^\n]+$"):
        Decisions("nothing://here").require_checkpoint()
    (tmp_path / "file").touch()
    with pytest.raises(FirearrowError, match=rf"^checkpoint {tmp_path}/file: [^\n]+$"):
        Decisions(f"{tmp_path}/file").settle(0, decision(1))


def test_what_can_not_be_seen_exactly_once_is_refused() -> None:
    schema = pa.schema({"body": pa.string()})
    given = {"nameServer": "127.0.0.1:1", "topic": "T", "delivery": "Exactly-Once"}
    with pytest.raises(ConfigError, match="delivery='exactly-once': only a stream has it"):
        BatchWriter(for_sink(given), schema, False)
    with pytest.raises(ConfigError, match="option checkpointLocation is missing"):
        StreamWriter(for_sink(given), schema, False)
    for column, kind in (("delayLevel", pa.int32()), ("deliverTimestamp", pa.int64())):
        with pytest.raises(ConfigError, match=f"column {column} can't be written with delivery=exactly-once"):
            StreamWriter(for_sink(given | {"checkpointLocation": "c"}), schema.append(pa.field(column, kind)), False)
