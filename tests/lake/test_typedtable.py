"""The table of a topic holds each message once, decoded or not, whatever ends the process that writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from firearrow.client.queues import Bound, Queue
from firearrow.errors import ConfigError
from firearrow.lake.filling import typed_table
from firearrow.lake.spec import TableSpec
from firearrow.lake.typedtable import TypedTable
from firearrow.spark.jobs.archive.archiving import ArchiveSettings, Summary
from tests.lake.filled import fill
from tests.lake.remains import remains
from tests.spark.jobs.inline import Inline
from tests.spark.origins import DAY_MS, MemoryOrigin

A, B = Queue("orders", "a", 0), Queue("orders", "a", 1)
SPEC = TableSpec(topics="orders", schema="order string, cents int")


def order(queue: Queue, offset: int) -> bytes:
    """Each tenth body is of another type."""
    return json.dumps({"order": f"{queue.queue_id}-{offset}", "cents": "much" if offset % 10 == 7 else offset}).encode()


def orders(*, a: int = 25, b: int = 12, body: Callable[[Queue, int], bytes] = order) -> MemoryOrigin:
    return MemoryOrigin({A: Bound(0, a), B: Bound(0, b)}, split_rows=8, body=body)


def run(origin: MemoryOrigin, lake: Path, spec: TableSpec = SPEC, *, rows: int | None = None) -> Summary:
    settings = ArchiveSettings(step_rows_max=rows)
    return fill(Inline(), lambda: origin, typed_table(str(lake), "orders", spec), settings)


def read(lake: Path, name: str = "orders") -> pa.Table:
    if not DeltaTable.is_deltatable(str(lake / name)):
        return pa.table({"_queue": [], "_offset": []})
    return DeltaTable(str(lake / name)).to_pyarrow_table()


def places(rows: pa.Table) -> list[tuple[int, int]]:
    return sorted(zip(rows["_queue"].to_pylist(), rows["_offset"].to_pylist(), strict=True))


def every(origin: MemoryOrigin, *, sound: bool) -> list[tuple[int, int]]:
    return sorted(
        (queue.queue_id, offset)
        for queue, bound in origin.held.items()
        for offset in range(bound.earliest, bound.latest)
        if (offset % 10 != 7) is sound
    )


def table_at(lake: Path, spec: TableSpec = SPEC) -> TypedTable:
    return typed_table(str(lake), "orders", spec)


def test_bodies_are_columns_beside_what_rocketmq_knows(tmp_path: Path) -> None:
    origin = orders()
    summary = run(origin, tmp_path)
    assert (summary.rows, summary.undecoded) == (34, 3)
    rows = read(tmp_path)
    assert places(rows) == every(origin, sound=True)
    (row,) = rows.filter((pa.compute.field("_queue") == 1) & (pa.compute.field("_offset") == 4)).to_pylist()
    stored = row.pop("_stored_at")
    assert stored.timestamp() * 1000 == origin.base_ms + 4000
    assert str(row.pop("_stored_at_day")) == str(stored.date())
    assert row == {
        "_broker": "a", "_queue": 1, "_offset": 4, "_keys": "k4", "_tag": "t1", "_properties": [("KEYS", "k4")],
        "_message_id": "ID1-4", "order": "1-4", "cents": 4,
    }  # fmt: skip


def test_bodies_that_do_not_decode_keep_their_bytes_and_a_reason(tmp_path: Path) -> None:
    origin = orders()
    run(origin, tmp_path)
    rows = read(tmp_path, "orders__undecoded")
    assert places(rows) == every(origin, sound=False)
    assert set(rows["reason"].to_pylist()) == {'cents: "much" is no whole number'}
    assert rows["body"].to_pylist()[0] == order(A, 7)


def test_undecoded_messages_are_in_the_table_once_the_schema_fits(tmp_path: Path) -> None:
    origin = orders()
    run(origin, tmp_path)
    spec = TableSpec(topics="orders", schema="order string, cents int, note string")
    assert table_at(tmp_path, spec).retry(Inline()) == 0
    new = TableSpec(topics="orders", schema="order string")
    assert table_at(tmp_path, new).retry(Inline()) == 3
    assert places(read(tmp_path)) == sorted(every(origin, sound=True) + every(origin, sound=False))
    assert places(read(tmp_path, "orders__undecoded")) == []


def test_a_kill_at_any_change_loses_and_doubles_nothing(tmp_path: Path) -> None:
    lakes = remains(tmp_path / "lake", lambda: run(orders(), tmp_path / "lake", rows=20))
    assert len(lakes) > 10
    origin = orders(a=31)
    for lake in lakes:
        run(origin, lake, rows=20)
        assert places(read(lake)) == every(origin, sound=True)
        assert places(read(lake, "orders__undecoded")) == every(origin, sound=False)


def test_a_kill_at_any_change_of_a_retry_loses_and_doubles_nothing(tmp_path: Path) -> None:
    def some(queue: Queue, offset: int) -> bytes:
        return b"null" if offset == 17 else order(queue, offset)

    new = TableSpec(topics="orders", schema="order string")
    origin = orders(body=some)
    run(origin, tmp_path / "lake", rows=9)
    lakes = remains(tmp_path / "lake", lambda: table_at(tmp_path / "lake", new).retry(Inline()))
    assert len(lakes) > 3
    left = [(0, 17)]
    for lake in lakes:
        run(origin, lake, new)
        assert places(read(lake, "orders__undecoded")) == left
        assert places(read(lake)) == sorted(set(every(origin, sound=True) + every(origin, sound=False)) - {*left})


def test_added_fields_are_columns_and_lost_ones_stay(tmp_path: Path) -> None:
    origin = orders(a=5, b=0)
    run(origin, tmp_path)
    origin.held[A] = Bound(0, 7)
    origin.body = lambda queue, offset: json.dumps({"cents": offset, "to": {"city": "x"}}).encode()
    run(origin, tmp_path, TableSpec(topics="orders", schema="cents int, to struct<city: string>"))
    rows = read(tmp_path).sort_by("_offset").select(["order", "cents", "to"]).to_pylist()
    assert rows[4:6] == [{"order": "0-4", "cents": 4, "to": None}, {"order": None, "cents": 5, "to": {"city": "x"}}]


def test_wider_types_and_fields_of_structures_rewrite_the_files(tmp_path: Path) -> None:
    origin = orders(a=5, b=0, body=lambda _, offset: json.dumps({"cents": offset, "to": {"city": "x"}}).encode())
    run(origin, tmp_path, TableSpec(topics="orders", schema="cents int, to struct<city: string>"))
    origin.held[A] = Bound(0, 6)
    origin.body = lambda _, offset: json.dumps({"cents": 2**40, "to": {"zip": 5}}).encode()
    run(origin, tmp_path, TableSpec(topics="orders", schema="cents long, to struct<city: string, zip: int>"))
    assert read(tmp_path).sort_by("_offset").select(["cents", "to"]).to_pylist()[4:] == [
        {"cents": 4, "to": {"city": "x", "zip": None}},
        {"cents": 2**40, "to": {"city": None, "zip": 5}},
    ]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            TableSpec(schema="cents string"),
            "table orders: column cents is int32, but the new schema has cents of string",
        ),
        (TableSpec(schema="Cents int"), "but the new schema has Cents of int32"),
        (
            TableSpec(schema="cents int", partition=("hour",)),
            "is partitioned by _stored_at_day, not by _stored_at_hour",
        ),
        (TableSpec(schema="_offset int"), "field '_offset': each table has a column of this name"),
        (TableSpec(schema="cents int", partition=("bucket(4, customer)",)), "the table has no column 'customer'"),
        (TableSpec(schema="cents int", cluster=("customer",)), "cluster 'customer' is no column"),
    ],
)
def test_another_table_is_needed_for_what_no_column_holds(tmp_path: Path, spec: TableSpec, says: str) -> None:
    origin = orders(a=5, b=0)
    run(origin, tmp_path)
    with pytest.raises(ConfigError, match=says.replace("(", "\\(")):
        run(origin, tmp_path, spec)
    assert places(read(tmp_path)) == every(origin, sound=True)


def test_files_are_partitioned_and_sorted_as_the_topic_says(tmp_path: Path) -> None:
    def body(_: Queue, offset: int) -> bytes:
        return json.dumps({"customer": f"c{offset % 5}" if offset else None, "cents": -offset}).encode()

    spec = TableSpec(
        topics="orders",
        schema="customer string, cents int",
        partition=("hour", "bucket(4, customer)", "customer"),
        cluster=("cents",),
    )
    origin = orders(a=30, b=0, body=body)
    origin.base_ms = 20_000 * DAY_MS - 10_000
    run(origin, tmp_path, spec)
    assert places(read(tmp_path)) == [(0, offset) for offset in range(30)]
    files = DeltaTable(str(tmp_path / "orders")).get_add_actions(flatten=True)
    found = pa.table(files)
    keys = ["partition._stored_at_hour", "partition.customer_bucket", "partition.customer"]
    held = set(zip(*(found[key].to_pylist() for key in keys), strict=True))
    assert len(held) == 11
    assert {hour for hour, _, _ in held} == {20_000 * 24 - 1, 20_000 * 24}
    assert len({(bucket, name) for _, bucket, name in held}) == 6
    for path in found["path"].to_pylist():
        cents = pa.parquet.read_table(tmp_path / "orders" / path, partitioning=None)["cents"].to_pylist()
        assert cents == sorted(cents)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_any_reader_of_delta_can_read_the_table(tmp_path: Path, mode: Literal["append", "upsert"]) -> None:
    """Deletion vectors need a reader of version 3; without them, version 1 is enough."""
    key = "order" if mode == "upsert" else ""
    spec = TableSpec(topics="orders", schema="order string, cents int", mode=mode, key=key, change_data_feed=True)
    origin = orders(body=lambda _, offset: json.dumps({"order": str(offset % 5), "cents": offset}).encode())
    run(origin, tmp_path, spec, rows=20)
    origin.held[A] = Bound(0, 31)
    run(origin, tmp_path, msgspec.structs.replace(spec, schema="order string, cents long"))
    table_at(tmp_path, spec).compact()
    table = DeltaTable(str(tmp_path / "orders"))
    protocol = table.protocol()
    assert (protocol.min_reader_version, protocol.reader_features) == (1, None)
    steps = [commit for commit in table.history() if commit.get("firearrow") == "archive"]
    metrics = [commit["operationMetrics"] for commit in reversed(steps)]
    if mode == "append":
        assert [int(each["numOutputRows"]) for each in metrics] == [20, 17, 6]
        assert all(int(each["numFiles"]) > 0 < int(each["numOutputBytes"]) for each in metrics)
    else:
        assert [each["num_target_rows_inserted"] for each in metrics] == [5, 0, 0]
