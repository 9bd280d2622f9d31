"""`firearrow sql`: a topic is a table, and nothing else is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from firearrow.cli.messages import sql
from firearrow.client.blocking import Producer
from firearrow.testing import BlockingCluster, EmbeddedCluster
from tests.cli.shell import Shell
from tests.message.bombs import send_bombs

NAMES = ("ada", "ben", "cy")


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    """Topic ``my-orders`` with JSON bodies, and a binary one."""
    with EmbeddedCluster() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAMESRV_ADDR", running.name_server)
        running.create_topic("my-orders")
        running.create_topic("empty")
        with Producer(running.name_server, group="p") as producer:
            for number in range(9):
                body = json.dumps({"customer": NAMES[number % 3], "cents": number})
                producer.send("my-orders", body, tag="new", key=f"k{number}", properties={"region": "eu"})
            producer.send("my-orders", b"\xff\xfe")
        yield running


@pytest.fixture
def shell(cluster: BlockingCluster, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(cluster, capsys)


def test_bodies_and_properties_are_columns(shell: Shell) -> None:
    query = """
        SELECT body->>'$.customer' AS customer, sum((body->>'$.cents')::int) AS cents,
            max(properties['region']) AS region
        FROM "my-orders" WHERE NOT bodyIsBase64 GROUP BY 1 ORDER BY 1
    """
    assert [tuple(row.values()) for row in shell.rows("sql", query)] == [
        ("ada", 9, "eu"), ("ben", 12, "eu"), ("cy", 15, "eu"),
    ]  # fmt: skip
    binary = 'SELECT body IS NULL AS isNull, bodyBytes FROM "my-orders" WHERE bodyIsBase64'
    assert shell.rows("sql", binary) == [{"isNull": True, "bodyBytes": 2}]
    assert shell.rows("sql", "SELECT count(*) AS n FROM empty") == [{"n": 0}]


def test_values_are_as_the_query_made_them(shell: Shell) -> None:
    """The name of a column implies a unit elsewhere, but here a user has chosen it."""
    query = """
        SELECT 0.0625::double AS share, 5000 AS bodyBytes, 1234567 AS "lagSeconds",
            TIMESTAMP '2026-01-02 03:04:05.678' AS t
    """
    head, row = shell.text("sql", query).splitlines()
    assert head.split() == ["share", "bodyBytes", "lagSeconds", "t"]
    assert row.split() == ["0.0625", "5000", "1234567", "2026-01-02", "03:04:05.678000"]


def test_no_column_hides_another_of_its_name(shell: Shell) -> None:
    assert shell.rows("sql", "SELECT 1 AS a, 2 AS a, 3 AS a_1") == [{"a": 1, "a_1": 2, "a_1_1": 3}]


def test_what_was_cut_is_said(shell: Shell) -> None:
    text = shell.text("sql", 'SELECT count(*) AS n FROM "my-orders"', "--messages", "8")
    assert "only the newest" in text
    assert "only the first 2 rows are shown" in shell.text("sql", 'SELECT keys FROM "my-orders"', "--rows", "2")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT * FROM read_text('/etc/passwd')", "file system operations are disabled"),
        ("SELECT * FROM '/etc/passwd'", "no route"),
        ("COPY (SELECT 1) TO '/tmp/x'", "the query is not one SELECT"),
        ("SELECT 1; SELECT 2", "the query is not one SELECT"),
        ("SET memory_limit='90GB'", "the query is not one SELECT"),
        ("INSTALL httpfs", "the query is not one SELECT"),
        ("SELECT * FROM connection", "no route"),
        ("SELEC 1", "syntax error"),
        ("SELECT nothing FROM empty", "nothing"),
        ("SELECT getenv('HOME')", "does not exist"),
        ("SELECT * FROM duckdb_secrets()", "disabled"),
        ("SELECT * FROM read_text('.tmp/x')", "disabled"),
        ("SELECT * FROM glob('/*')", "disabled"),
        ("SELECT * FROM sniff_csv('/etc/passwd')", "disabled"),
        ("SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')", "disabled"),
        ("SELECT * FROM query_table('nothing')", "no route"),
        ("WITH x AS (COPY (SELECT 1) TO '/tmp/x') SELECT 1", "disabled"),
        ("SELECT list(repeat('x', 1000000) || i) FROM range(1000000) t(i)", "emory"),
        ("", "the query is not one SELECT"),
    ],
)
def test_only_topics_can_be_read(shell: Shell, query: str, reason: str) -> None:
    code, said = shell.fails("sql", query)
    assert code in (1, 3)
    assert reason in said


def test_a_query_that_takes_long_ends(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "SECONDS", 0.2)
    code, said = shell.fails("sql", "SELECT sum(a.i * b.i) FROM range(1000000) a(i), range(1000000) b(i)")
    assert (code, "takes more than 0.2 s" in said) == (1, True)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT length(repeat('x', 4000000000))",
        "SELECT sum(length(repeat('x', 100000000::BIGINT + i % 2))) FROM range(1000) t(i)",
        "SELECT repeat('x', 4000000000) FROM range(1)",
    ],
)
def test_a_call_that_nothing_interrupts_ends(shell: Shell, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    monkeypatch.setattr(sql, "SECONDS", 3)
    code, said = shell.fails("sql", query)
    assert code == 1
    assert "more than 3 s" in said or "emory" in said


def test_many_long_rows_are_cut(shell: Shell) -> None:
    query = "SELECT repeat('x', 1000000) AS a FROM range(200)"
    text = shell.text("sql", query, "--json")
    assert 0 < text.count('"a"') < 200


def test_more_queries_than_may_run_are_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "QUERIES_MAX", 0)
    assert "the most at a time" in shell.fails("sql", "SELECT 1")[1]


def test_paths_of_this_machine_are_no_settings(shell: Shell) -> None:
    rows = shell.rows("sql", "SELECT name, value FROM duckdb_settings() WHERE value LIKE '%/%'")
    assert not [row for row in rows if "/work" in str(row["value"]) or "/root" in str(row["value"])], rows


def test_a_body_that_unpacks_to_much_is_null(shell: Shell, cluster: BlockingCluster) -> None:
    cluster.create_topic("bombs", queues=1)
    send_bombs(cluster.name_server, "bombs")
    assert shell.rows("sql", "SELECT body IS NULL AS isNull FROM bombs") == [{"isNull": True}]


def test_a_typed_table_goes_on_with_the_messages_behind_it(
    shell: Shell, cluster: BlockingCluster, tmp_path: Path
) -> None:
    cluster.create_topic("sales")
    with Producer(cluster.name_server, group="p") as producer:
        producer.send("sales", json.dumps({"customer": "ada", "cents": 5}))
        words = ["--path", str(cluster.store), "--to", str(tmp_path), "--schema", "customer string, cents long"]
        shell.text("pipeline", "tables", *words, "--topic", "sales")
        producer.send("sales", json.dumps({"customer": "ben", "cents": 7}))
    rows = shell.rows("sql", "SELECT customer, cents FROM sales ORDER BY 1", "--lake", str(tmp_path))
    assert rows == [{"customer": "ada", "cents": 5}, {"customer": "ben", "cents": 7}]
