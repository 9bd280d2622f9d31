"""Every job, and every function of `firearrow.spark`, in a session of a Spark Connect server.

The server is the JVM of the classic session. What it finds is what that session finds.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from firearrow.cli.failures import sentence
from firearrow.cli.main import main
from firearrow.cli.output.reports import Table
from firearrow.cli.output.screen import OperationCounts
from firearrow.message.properties import parse
from firearrow.spark import LagListener, configure, decoded, register
from firearrow.spark.jobs import rebuild, verify
from firearrow.spark.jobs.archive.archiving import read_archive
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.storework import Executors
from firearrow.spark.jobs.workers import SparkWorkers
from firearrow.spark.session import REMOTE_SETTINGS
from firearrow.store.offline import Layout, Order, StoreView
from tests.interop.waiting import wait_until
from tests.spark.connectserver import serving
from tests.spark.jobs import orders
from tests.spark.pieces import fail, number_and_holder, where
from tests.spark.test_pipeline import NOW, run
from tests.store.offline.damage import ROWS, golden_store, prepared
from tests.store.stores import contents
from tools.demo import create_topics
from tools.demo import serving as serving_broker

pytestmark = pytest.mark.timeout(400)  # a server, its workers and those of other tests share few cores

REPORT_INTERVAL = "spark.connect.progress.reportInterval"
END_SECONDS_MAX = 60
MODE = "SPARK_CONNECT_MODE_ENABLED"
REPORTS = ("backlog", "accounting", "deadletters", "transactions", "duplicates", "latency")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(orders.fill(tmp_path_factory.mktemp("shop")))


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[str]:
    with serving(spark) as address:
        yield address


@pytest.fixture(scope="module")
def connected(server: str) -> Iterator[SparkSession]:
    """A session of the server. Where a classic one is active, PySpark's own builder refuses to make it."""
    builder = configure(cast("SparkSession.Builder", ConnectSession.Builder().remote(server)))
    session = builder.config("spark.sql.session.timeZone", "UTC").create()
    yield session
    session.stop()


@pytest.fixture
def remote(connected: SparkSession, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """That session. Functions of PySpark are those of Spark Connect, except in `classic`."""
    monkeypatch.setenv(MODE, "1")
    return connected


@contextmanager
def classic() -> Iterator[None]:
    """Let functions of PySpark be those of a classic session."""
    mode = os.environ.pop(MODE)
    try:
        yield
    finally:
        os.environ[MODE] = mode


def rows_of(tables: dict[str, Table]) -> dict[str, object]:
    return {title: (table.columns, table.rows) for title, table in tables.items()}


# --- sessions and workers ---


def test_a_session_has_the_settings_that_it_can_change(remote: SparkSession) -> None:
    assert {key: remote.conf.get(key) for key in REMOTE_SETTINGS} == REMOTE_SETTINGS


def test_a_client_needs_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    configure(SparkSession.Builder().remote("sc://127.0.0.1:1"))


def test_each_piece_is_done_by_a_worker(remote: SparkSession) -> None:
    workers = SparkWorkers(remote)
    pieces = [None, "text", *range(8), {"b": b"\0" * 100_000}]
    found = workers.run(where, pieces)
    assert [piece for piece, _ in found] == pieces
    assert os.getpid() not in {pid for _, pid in found}
    assert workers.run(where, []) == []
    assert workers.parallelism == 2
    counts = OperationCounts(remote)
    remote.conf.set(REPORT_INTERVAL, "10ms")  # so that a short operation reports, too
    workers.run(where, [1, 2, 3])
    remote.conf.unset(REPORT_INTERVAL)
    done, total = counts.look()
    assert done == total > 0


def test_the_error_of_a_piece_is_one_sentence(remote: SparkSession) -> None:
    with pytest.raises(PySparkException) as error:
        SparkWorkers(remote).run(fail, [1, 2])
    assert "Traceback" not in str(error.value)
    assert sentence(error.value) == "a file is damaged"


def test_a_store_is_verified_and_rebuilt(remote: SparkSession, tmp_path: Path) -> None:
    root = golden_store(tmp_path / "sound")
    with StoreView(Layout(root), owned=True) as view:
        view.holder = 4711  # what this process knows is what the others go by
        found = list(Executors(remote, 7).work(view, number_and_holder, list(range(10))))
    assert found == [(number, 4711) for number in range(10)]
    assert verify.findings(remote, root).collect() == []
    made = rebuild.written(remote, root, to=tmp_path / "made", order=Order(stretch_bytes=20_000)).collect()
    assert contents(tmp_path / "made/consumequeue") == contents(root / "consumequeue")
    assert {row.kind for row in made} == {"queue", "index"}
    damage = next(row for row in ROWS if row.invariant == "record-body-crc")
    (tmp_path / "damaged").mkdir()
    damaged = prepared(damage, tmp_path / "damaged")
    assert "record-body-crc" in {row.invariant for row in verify.findings(remote, damaged).collect()}


# --- tables and streams ---


def test_tables_views_and_bodies_are_those_of_a_classic_session(
    remote: SparkSession, spark: SparkSession, store: str
) -> None:
    def found(session: SparkSession, database: str) -> list[object]:
        messages = session.read.format("rocketmq").option("pushdown", "on").load(store)
        messages = messages.where("topic = 'Orders' and queueId = 1")
        paid = decoded(messages, "json", "customer string, cents long").where("tags = 'paid'")
        names = register(session, {"path": store, "subscribe": "Orders"}, database=database)
        counts = session.sql(f"SELECT tags, count(*) FROM {database}.orders GROUP BY tags ORDER BY tags").collect()
        for each in (database, f"{database}_tables"):
            session.sql(f"DROP DATABASE {each} CASCADE")
        avro = decoded(messages.selectExpr("X'0E' AS body"), "avro", '{"type": "record", "name": "R", "fields": '
                       '[{"name": "n", "type": "int"}]}')  # fmt: skip
        return [
            [tuple(row) for row in paid.selectExpr("sum(value.cents)", "count(undecoded)").collect()],
            names,
            [tuple(row) for row in counts],
            [tuple(row) for row in avro.selectExpr("sum(value.n)").collect()],
        ]

    ours = found(remote, "connected")
    with classic():
        assert found(spark, "classic") == ours


def test_a_stream_is_sent_and_its_lag_is_known(remote: SparkSession, store: str, tmp_path: Path) -> None:
    lags: list[int] = []
    listener = LagListener(lambda _, found: lags.append(sum(lag.messages for lag in found)))
    remote.streams.addListener(listener)
    with serving_broker(tmp_path / "to") as (name_server, broker):
        create_topics(broker, {"Copy": 2})
        reader = remote.readStream.format("rocketmq").option("startingOffsets", "earliest")
        stream = reader.options(subscribe="Payments", maxOffsetsPerTrigger=40).load(store)
        to = stream.selectExpr("body", "'Copy' AS topic", "keys").writeStream.format("rocketmq")
        options = {"nameServer": name_server, "checkpointLocation": str(tmp_path / "checkpoint")}
        query = to.options(**options).trigger(availableNow=True).start()
        query.awaitTermination()
        # An event that comes while PySpark removes a listener waits for its end, and that for the event.
        wait_until(lambda: len(lags) >= 2 and not listener.queries(), END_SECONDS_MAX, "the end of the query")
        remote.streams.removeListener(listener)
        copies = remote.read.format("rocketmq").options(nameServer=name_server, subscribe="Copy").load()
        assert copies.select("keys").distinct().count() == 60
    assert lags[:2] == [20, 0]


# --- jobs ---


@pytest.mark.parametrize("job", REPORTS)
def test_a_report_is_that_of_a_classic_session(
    remote: SparkSession, spark: SparkSession, store: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's workers read the store; for the classic session the driver does."""
    with classic():
        expected = run(spark, job, "--path", store)
    monkeypatch.setattr("firearrow.spark.jobs.reports.reading.MESSAGES_MAX", 0)
    assert rows_of(run(remote, job, "--path", store)) == rows_of(expected)


def test_an_archive_is_made_read_and_kept_tidy(
    remote: SparkSession, spark: SparkSession, store: str, tmp_path: Path
) -> None:
    lake, small = str(tmp_path / "lake"), ("--option", "maxOffsetsPerTrigger=20", "--option", "subscribe=Payments")
    planned = run(remote, "archive", "--path", store, "--to", lake, *small, "--dry-run")["Would be archived"]
    assert sum(cast("list[int]", planned.values("messages"))) == 60
    archived = run(remote, "archive", "--path", store, "--to", lake, *small)["Archived"]
    assert archived.values("messages") == [60]
    before = len(Archive(lake).load().files)
    columns = ["queueId", "queueOffset", "msgId", "body"]
    with classic():
        messages = spark.read.format("rocketmq").option("subscribe", "Payments").load(store).select(*columns)
        expected = sorted(map(tuple, messages.collect()))
    for _ in range(2):
        found = read_archive(remote, Archive(lake)).select(*columns).collect()
        assert sorted(map(tuple, found)) == expected
        run(remote, "compact", "--archive", lake)
    assert len(Archive(lake).load().files) < before
    gone = run(remote, "expire", "--archive", lake, "--keep", "0")["Expired"]
    assert gone.values("messages") == [60]


def test_a_cluster_gets_what_jobs_send(remote: SparkSession, store: str, tmp_path: Path) -> None:
    """Restored, replayed and resent messages, and alerts, which a process of the server sends."""
    lake, path = str(tmp_path / "lake"), ("--path", store)
    run(remote, "archive", *path, "--to", lake, "--option", "subscribe=Payments")
    with serving_broker(tmp_path / "to") as (name_server, broker):
        create_topics(broker, {"Again": 1, "Alerts": 1, "Orders": 1})
        to = ("--to-name-server", name_server)
        job = ("--archive", lake, *to, "--job")
        run(remote, "restore", *job, str(tmp_path / "1"), "--topic", "Payments=Back")
        chosen = ("--where", "tags is null", "--key", "order-7", "--to-topic", "Again")
        run(remote, "replay", *job, str(tmp_path / "2"), *chosen)
        letters = ("--where", "text like '<script>%'", "--audit", str(tmp_path / "audit"))
        run(remote, "deadletters", *path, "--resend", *letters, *to)
        rule = ("--alert", "deadLetters > 0", "--alert", "lag > 400", "--to-topic", "Alerts")
        told = run(remote, "watch", *path, "--once", *rule, *to)["Alerts"]
        sent = remote.read.format("rocketmq").option("nameServer", name_server).load()
        rows = sent.where("topic in ('Back', 'Again', 'Orders', 'Alerts')").collect()
    assert Counter(row.topic for row in rows) == {"Back": 60, "Again": 1, "Orders": 1, "Alerts": 13}
    ids = [row["keys"] for row in rows if row.topic == "Alerts"]
    assert sorted(ids) == sorted(cast("list[str]", told.values("id")))
    (resent,) = [row for row in rows if row.topic == "Orders"]
    assert bytes(resent.body).decode() == orders.HOSTILE
    assert parse(resent.properties)["FIREARROW_RESENT"].endswith("/%DLQ%shipping/0/2")


def test_a_watch_prints_here(
    remote: SparkSession, spark: SparkSession, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--path", store, "--once", "--alert", "deadLetters > 0", "--alert", "p99Ms > 290", "--top", "0")
    with classic():
        expected = run(spark, "watch", *given)["Alerts"].rows
    capsys.readouterr()
    found = run(remote, "watch", *given)["Alerts"]
    assert sorted(found.rows, key=str) == sorted(expected, key=str)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines] == found.values("id")


# --- the command ---


def said(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "firearrow", *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


def test_the_command_connects(server: str, store: str) -> None:
    given = ("pipeline", "accounting", "--path", store, "--master", server, *NOW, "--free-bytes", "1")
    code, out, err = said(*given)
    assert (code, err) == (0, "")
    assert "Orders" in out
    code, out, err = said(*given, "--conf", "spark.executor.memory=1g")
    assert (code, out) == (1, "")
    assert err.startswith("firearrow: --conf spark.executor.memory=1g: a session of Spark Connect refuses it: [CANNOT_")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("master", "more", "reason"),
    [
        ("sc://127.0.0.1:x;token=secret", "", "--master sc://127.0.0.1:x: must be local, local[N], "),
        ("sc://127.0.0.1:70000", "", "sc://127.0.0.1:70000: "),
        ("sc://127.0.0.1", "--spark-log log", "--spark-log log: the log of a Spark Connect server is on its host"),
    ],
)
def test_a_wrong_address_is_one_sentence(
    master: str, more: str, reason: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "accounting", "--path", store, "--master", master, *more.split()]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"firearrow: {reason}")
    assert "secret" not in line


def test_what_does_not_answer_is_not_waited_for(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something that accepts connections and never speaks."""
    monkeypatch.setattr("firearrow.cli.pipeline.connecting.MASTER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        master = f"sc://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["pipeline", "accounting", "--path", store, "--master", master]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"firearrow: Spark does not start: no Spark Connect server answers at {master[5:]} within 0.5 s"
