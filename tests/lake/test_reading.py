"""A topic is one table from its first message to now."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import polars as pl
import pytest

import firearrow.lake
from firearrow.errors import ConfigError
from firearrow.lake.filling import Lake, LakeFilling
from firearrow.lake.spec import TableSpec
from firearrow.store.engine import MessageStore
from tests.lake.test_filling import configure, send
from tests.spark.jobs.inline import Inline
from tests.store.stores import append, opened, settle

SPEC = TableSpec(topics="orders", schema="number long")
UPSERTS = TableSpec(topics="orders", schema="order string, number long", mode="upsert", key="order")


def fill(root: Path, lake: Path, spec: TableSpec = SPEC) -> None:
    work = LakeFilling(Inline(), Lake({"path": str(root)}, str(lake), (spec,)))
    work.round()
    assert not work.statuses["orders"].trouble


def change(store: MessageStore, order: str, number: int | None, now_ms: int) -> None:
    body = b"" if number is None else json.dumps({"order": order, "number": number}).encode()
    append(store, body, "orders", 0, properties={"KEYS": order}, now_ms=now_ms)
    settle(store)


def test_messages_follow_the_rows_of_the_table(tmp_path: Path) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    with opened(root) as store:
        configure(root, {"orders": {}})
        send(store, "orders", range(7))
        fill(root, lake)
        send(store, "orders", range(7, 12))
        append(store, b"x", "orders")
        settle(store)
        archived = firearrow.lake.table("orders", lake, columns=["number"]).read_all()
        assert sorted(archived["number"].to_pylist()) == [*range(7)]
        live = {"path": str(root)}
        orders = firearrow.lake.table("orders", lake, live)
        assert orders.schema.names[-2:] == ["_message_id", "number"]
        rows = orders.read_all()
        assert sorted(rows["number"].to_pylist()) == [*range(12)]
        orders = firearrow.lake.table("orders", lake, live, columns=["_queue", "number"])
        with duckdb.connect() as connection:
            connection.execute("SELECT _queue, sum(number) FROM orders GROUP BY ALL ORDER BY ALL")
            assert connection.fetchall() == [(0, 30), (1, 36)]
        frame = pl.DataFrame(firearrow.lake.table("orders", lake, live))
        assert frame["number"].sum() == 66


def test_a_table_with_upserts_has_the_last_row_of_each_key(tmp_path: Path) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    with opened(root) as store:
        configure(root, {"orders": {}})
        for number, order in enumerate("abcd"):
            change(store, order, number, 1000 + number)
        fill(root, lake, UPSERTS)
        change(store, "a", 10, 2000)
        change(store, "b", None, 2001)
        change(store, "c", 1, 2001)
        change(store, "e", 11, 2002)
        change(store, "f", 12, 2003)
        change(store, "f", None, 2004)
        rows = firearrow.lake.table("orders", lake, {"path": str(root)}, columns=["order", "number"]).read_all()
        expected = {"a": 10, "c": 1, "d": 3, "e": 11}
        assert dict(zip(rows["order"].to_pylist(), rows["number"].to_pylist(), strict=True)) == expected
        fill(root, lake, UPSERTS)
        again = firearrow.lake.table("orders", lake, {"path": str(root)}, columns=["order", "number"]).read_all()
        assert sorted(again.to_pylist(), key=str) == sorted(rows.to_pylist(), key=str)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    with pytest.raises(ConfigError, match="has no table 'orders'"):
        firearrow.lake.table("orders", lake)
    with opened(root) as store:
        configure(root, {"orders": {}})
        send(store, "orders", range(7))
        fill(root, lake)
        with pytest.raises(ConfigError, match="there is no column 'cents'; the table has _broker, "):
            firearrow.lake.table("orders", lake, columns=["cents"])
        with pytest.raises(ConfigError, match="option subscribe: the tables name the topics"):
            firearrow.lake.table("orders", lake, {"path": str(root), "subscribe": "x"}).read_all()
