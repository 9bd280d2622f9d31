"""Tasks of a data engineer in the first hour, beside the way of the best peer, which the comment above a test has.

Spark has the same tables: tests/spark.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import firearrow.lake
from firearrow.lake.filling import Lake, LakeFilling
from firearrow.lake.spec import TableSpec
from tests.cli.shell import Shell
from tests.spark.jobs.inline import Inline

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture
def store(shell: Shell) -> str:
    """Directory of the broker's store, while the broker runs."""
    return str(shell.cluster.brokers[0].store)


# kafka-dump-log --files 00000000000000000000.log
def test_40_what_is_in_a_store(shell: Shell, store: str) -> None:
    assert "orders" in shell.text("store", "stat", store)


# none
def test_41_messages_as_lines_of_json_without_a_broker(shell: Shell, store: str) -> None:
    rows = [json.loads(line) for line in shell.text("store", "cat", store).splitlines()]
    assert sum(row["topic"] == "orders" for row in rows) == 6


# ksqlDB, or Trino with a connector
def test_42_a_query_groups_messages(shell: Shell) -> None:
    rows = shell.rows("sql", "SELECT tag, count(*) AS n FROM orders GROUP BY tag ORDER BY tag")
    assert [(row["tag"], row["n"]) for row in rows] == [("open", 2), ("paid", 4)]


# Tableflow, or a sink connector and a schema registry
def test_43_a_topic_is_a_typed_table(shell: Shell, tmp_path: Path) -> None:
    shell.cluster.create_topic("bills", queues=1)
    for cents in (5, 7):
        shell.text("send", "bills", json.dumps({"cents": cents}))
    server = shell.cluster.name_server
    spec = TableSpec(topics="bills", schema="cents long")
    assert LakeFilling(Inline(), Lake({"nameServer": server}, str(tmp_path / "lake"), (spec,))).round()
    shell.text("send", "bills", json.dumps({"cents": 9}))
    table = firearrow.lake.table("bills", str(tmp_path / "lake"), {"nameServer": server}).read_all()
    assert sorted(table["cents"].to_pylist()) == [5, 7, 9]


# none: a copy of the broker's data is a broker's alone
def test_44_two_stores_are_compared(shell: Shell, store: str) -> None:
    assert "are the same" in shell.text("store", "diff", store, store)


# kcat -C -o beginning -e -f '%k;%s\\n' > orders.csv
def test_45_messages_for_a_spreadsheet(shell: Shell) -> None:
    lines = shell.text("cat", "orders", "--csv").splitlines()
    assert (len(lines), lines[0].split(",")[1]) == (7, "topic")
