"""`firearrow pipeline` over the files of a shop's store, each job as its command line says it."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from firearrow.cli.main import main
from firearrow.cli.output.reports import Table
from firearrow.cli.pipeline.jobs import order_of, report_of
from firearrow.errors import FirearrowError
from firearrow.message.properties import parse
from firearrow.spark.jobs.archive.delta import Archive
from tests.spark.jobs import orders
from tests.store.stores import append, opened
from tools.demo import create_topics, serving

JOBS_MAX = 5  # for eleven tables
NOW = ("--now", "2026-11-18T17:00:00Z")  # as the shop's store has it


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(orders.fill(tmp_path_factory.mktemp("shop")))


@pytest.fixture
def started(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have commands take the session that is there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("firearrow.cli.pipeline.jobs._started", lambda *_: nullcontext(spark))
    return monkeypatch


def run(spark: SparkSession, job: str, *arguments: str) -> dict[str, Table]:
    now = NOW if job in ("backlog", "accounting", "transactions", "latency") else ()
    order = order_of([job, *arguments, *now])
    return {table.title: table for table in report_of(order, spark).tables}


def cells(table: Table, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table.values(column) for column in columns), strict=True))


def test_a_backlog_needs_files_only(spark: SparkSession, store: str) -> None:
    found = run(spark, "backlog", "--path", store, "--parts", "2")
    assert next(iter(found)) == "Summary"
    assert cells(found["Summary"], "groupsThatLag", "lag", "lost", "behindSeconds") == [
        (2, 510, 0, max(found["Backlog by consumer group"].values("behindSeconds")))  # type: ignore[type-var]
    ]
    assert cells(found["Backlog by consumer group"], "consumerGroup", "lag", "uncommitted") == [
        ("billing", 470, 1),
        ("audit", 40, 0),
        ("shipping", 0, 0),
        ("shipping", 0, 0),
    ]
    assert found["Pending messages, by tag"].values("messages") == [158, 156, 156, 40]
    assert found["Time to drain"].values("drainSeconds")[:2] == [None, None]  # no rate is known


def test_where_no_group_lags_no_jobs_look_for_what_waits(spark: SparkSession, tmp_path: Path) -> None:
    """A job costs a JVM that has just started more than it costs to read a small store."""
    with opened(tmp_path / "store") as two:
        append(two, b"body", "Orders", 0)
        append(two, b"body", "Orders", 1)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    found = run(spark, "backlog", "--path", str(tmp_path / "store"))
    assert not any(table.rows for table in found.values())
    assert len(set(tracker.getJobIdsForGroup()) - before) <= JOBS_MAX


def test_what_is_no_users_message_is_seen_in_the_log(spark: SparkSession, store: str) -> None:
    found = run(spark, "accounting", "--path", store, "--free-bytes", "1")
    assert sum(found["By topic"].values("messages")) == 1597  # type: ignore[arg-type]
    assert "RMQ_SYS_TRANS_HALF_TOPIC" in found["By topic"].values("topic")
    found = run(spark, "transactions", "--path", store)
    assert cells(found["Transactions by state"], "state", "transactions") == [("rolled back", 4), ("undecided", 6)]
    found = run(spark, "latency", "--path", store, "--delay-levels", "1s 5s 10s")
    assert cells(found["Delayed messages"], "delivered", "waiting", "max") == [(18, 2, 340)]


def test_dead_letters_know_their_origin(spark: SparkSession, store: str) -> None:
    found = run(spark, "deadletters", "--path", store, "--where", "keys like 'order-240 %'")
    assert cells(found["History"], "tries", "originQueueId", "originQueueOffset") == [(3, 0, 60)]


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("nonsense ===", "[PARSE_SYNTAX_ERROR] Syntax error at or near '='.;"),
        ("nothing = 1", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function"),
    ],
)
def test_a_condition_that_is_none_is_one_sentence(
    started: object, store: str, condition: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "deadletters", "--path", store, "--where", condition]) == 1
    out, (said,) = (part.splitlines() for part in capfd.readouterr())
    assert out == []
    assert said.startswith(f"firearrow: condition {condition!r}: {reason}")
    assert "; columns are consumerGroup, " in said


@pytest.mark.parametrize(
    ("job", "more", "reason"),
    [
        ("backlog", "--report /dev/full", "/dev/full: No space left on device"),
        ("archive", "--iceberg no:a.b", "--iceberg no:a.b: URI missing, please provide "),
        ("duplicates", "--option verifyCrc=true", "its body has another CRC"),  # a worker says it
    ],
)
def test_what_goes_wrong_is_one_sentence(
    started: pytest.MonkeyPatch,
    store: str,
    job: str,
    more: str,
    reason: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = shutil.copytree(store, tmp_path / "broken") if job == "duplicates" else Path(store)
    if job == "duplicates":
        started.setattr("firearrow.spark.jobs.reports.reading.MESSAGES_MAX", 0)
        for file in (path / "commitlog").iterdir():
            file.write_bytes(file.read_bytes().replace(b"remind", b"rewind"))
    to = ["--to", str(tmp_path / "lake")] if job == "archive" else []
    assert main(["pipeline", job, "--path", str(path), *to, *more.split(), "--json"]) == 1
    out, err = capfd.readouterr()
    assert reason in err
    assert err == f"firearrow: {json.loads(out)['error']}\n"


def test_so_many_rows_are_shown(spark: SparkSession, store: str) -> None:
    found = run(spark, "accounting", "--path", store, "--top", "0")["By topic"]
    assert (len(found.rows) > 2, found.more) == (True, False)
    some = run(spark, "accounting", "--path", store, "--top", "2")["By topic"]
    assert (some.rows, some.more) == (found.rows[:2], True)


def test_an_archive_holds_what_a_dry_run_says(spark: SparkSession, store: str, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    given = ("--path", store, "--to", lake, "--option", "subscribe=Orders,Payments")
    planned = run(spark, "archive", *given, "--dry-run")["Would be archived"]
    assert sum(planned.values("messages")) == 1500  # type: ignore[arg-type]
    assert not Path(lake).exists()
    assert cells(run(spark, "archive", *given)["Archived"], "topic", "messages") == [("Orders", 1440), ("Payments", 60)]
    assert run(spark, "archive", *given)["Archived"].rows == []
    job = ("--archive", lake, "--job", str(tmp_path / "job"), "--dry-run")
    restored = run(spark, "restore", *job, "--topic", "Payments=Again")["Would be restored"]
    assert cells(restored, "queueId", "toOffset", "target") == [(0, 30, "Again"), (1, 30, "Again")]
    chosen = ("--tag", "paid", "--until", "2026-11-18T12:00:00")
    replayed = run(spark, "replay", *job, *chosen)["Would be replayed"]
    assert cells(replayed, "topic", "messages") == [("Orders", 80)]


def test_an_archive_fills_typed_tables(spark: SparkSession, store: str, tmp_path: Path) -> None:
    file, tables = tmp_path / "lake.toml", tmp_path / "tables"
    table = '[[tables]]\ntopics = "Orders"\nschema = "order long, cents {}"\n'
    file.write_text(f'root = "{tables}"\n' + table.format("long"))
    given = ("archive", "--path", store, "--to", str(tmp_path / "lake"), "--tables", str(file))
    found = run(spark, *given)
    assert cells(found["Tables"], "topic", "rows", "undecoded") == [("Orders", 1440, 0)]
    assert ("Orders", 1440) in cells(found["Archived"], "topic", "messages")
    assert cells(run(spark, *given)["Tables"], "topic", "rows") == [("Orders", 0)]
    file.write_text(f'root = "{tables}"\n' + table.format("string"))
    with pytest.raises(FirearrowError, match="1 of 1 tables can't go on: table Orders: column cents is int64"):
        run(spark, *given)
    assert "Tables" not in run(spark, *given[:-2])


def test_an_archive_is_kept_tidy(spark: SparkSession, store: str, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    small = ("--option", "maxOffsetsPerTrigger=20", "--option", "subscribe=Payments")
    given = ("archive", "--path", store, "--to", lake, *small)
    run(spark, *given)
    before = len(Archive(lake).load().files)
    done = run(spark, "compact", "--archive", lake)
    days = len({file.day for file in Archive(lake).load().files.values()})
    assert done["Compacted"].rows == [[before, days]]
    assert done["Removed"].rows == [[0]]
    assert run(spark, "expire", "--archive", lake, "--keep", "99999")["Expired"].rows == []
    gone = run(spark, "expire", "--archive", lake, "--keep", "0")["Expired"]
    assert sum(gone.values("messages")) == 60  # type: ignore[arg-type]
    assert run(spark, *given, "--keep", "1", "--compact")["Archived"].rows == []


def test_what_consumers_saw_is_replayed(spark: SparkSession, store: str, tmp_path: Path) -> None:
    given = ("--path", store, "--tag", "new", "--job", str(tmp_path), "--dry-run")

    def topics(*more: str) -> list[tuple[Any, ...]]:
        table = run(spark, "replay", *given, *more)["Would be replayed"]
        return cells(table, "topic", "messages")

    orders, retries = ("Orders", 480), ("%RETRY%shipping", 36)
    assert topics() == [orders]
    assert topics("--all-topics") == [("%DLQ%shipping", 12), retries, orders]
    assert topics("--option", "subscribe=%RETRY%shipping") == [retries]


def test_what_is_sent_is_sent_once(spark: SparkSession, store: str, tmp_path: Path) -> None:
    """Restored, replayed and resent to a broker; each job is run twice."""
    lake, path = str(tmp_path / "lake"), ("--path", store)
    run(spark, "archive", *path, "--to", lake, "--option", "subscribe=Payments")
    with serving(tmp_path / "to") as (name_server, broker):
        create_topics(broker, {"Again": 1, "Alerts": 1, "Orders": 1})
        to = ("--to-name-server", name_server)
        for _ in range(2):
            job = ("--archive", lake, *to, "--job")
            run(spark, "restore", *job, str(tmp_path / "1"), "--topic", "Payments=Back")
            chosen = ("--where", "tags is null", "--key", "order-7", "--to-topic", "Again")
            run(spark, "replay", *job, str(tmp_path / "2"), *chosen)
            letters = ("--where", "text like '<script>%'", "--audit", str(tmp_path / "audit"))
            run(spark, "deadletters", *path, "--resend", *letters, *to)
        again = (*job, str(tmp_path / "2"), "--to-topic", "Again", "--key", "order-7")
        with pytest.raises(FirearrowError, match="where was tags is null and is tags = 'paid';"):
            run(spark, "replay", *again, "--where", "tags = 'paid'")
        with pytest.raises(FirearrowError, match="where was tags is null and is not given"):
            run(spark, "replay", *again)
        with pytest.raises(FirearrowError, match=r"archive was .* and is not given, path was not"):
            run(spark, "replay", *path, *again[2:], "--where", "tags is null")
        with pytest.raises(FirearrowError, match="no topic 'Paiments'; it has Payments"):
            run(spark, "restore", *job, str(tmp_path / "3"), "--topic", "Paiments")
        rule = ("--alert", "deadLetters > 0", "--to-topic", "Alerts")
        told = run(spark, "watch", *path, "--once", *rule, *to)["Alerts"]
        reader = spark.read.format("rocketmq").option("nameServer", name_server)
        sent = reader.load().where("topic in ('Back', 'Again', 'Orders', 'Alerts')")
        counts = {row.topic: row["count"] for row in sent.groupBy("topic").count().collect()}
        assert counts == {"Back": 60, "Again": 1, "Orders": 1, "Alerts": len(told.rows)}
        (resent,) = sent.where("topic = 'Orders'").collect()
        assert bytes(resent.body).decode() == orders.HOSTILE
        assert parse(resent.properties)["FIREARROW_RESENT"].endswith("/%DLQ%shipping/0/2")


def test_a_watch_tells_what_a_stream_brings(
    spark: SparkSession, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = ("--alert", "deadLetters > 0", "--alert", "lag > 400")
    steps = ("--option", "maxOffsetsPerTrigger=600")  # one queue is of the last minutes only
    found = run(spark, "watch", "--path", store, "--once", *rules, *steps)["Alerts"]
    subjects = found.values("subject")
    assert (subjects.count("%DLQ%shipping"), subjects.count("billing of Orders")) == (12, 1)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines] == found.values("id")
    run(spark, "watch", "--path", store, "--once", *rules, "--json")
    assert capsys.readouterr().out == ""  # it is one object, that of the report


@pytest.mark.parametrize("job", ["backlog", "duplicates"])
def test_a_store_that_is_not_there_is_one_sentence(spark: SparkSession, job: str) -> None:
    with pytest.raises(FirearrowError, match="nowhere") as error:
        run(spark, job, "--path", "nowhere")
    assert len(str(error.value).splitlines()) == 1
