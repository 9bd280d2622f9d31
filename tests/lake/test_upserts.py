"""A table with upserts has the last message of each key, whatever ends the process that merges."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from google.protobuf import descriptor_pb2

from firearrow.client.queues import Bound, Queue
from firearrow.errors import ConfigError
from firearrow.lake.filling import typed_table
from firearrow.lake.spec import TableSpec
from firearrow.spark.jobs.archive.archiving import ArchiveSettings
from tests.lake.filled import fill
from tests.lake.remains import remains
from tests.spark.jobs.inline import Inline
from tests.spark.origins import MemoryOrigin

A, B = Queue("orders", "a", 0), Queue("orders", "a", 1)
SPEC = TableSpec(topics="orders", schema="order string, cents long", mode="upsert", key="order")


def customer(queue: Queue, offset: int) -> str:
    """One of a few of the queue."""
    return f"{queue.queue_id}/{random.Random(offset).randrange(6)}"


def changed(queue: Queue, offset: int) -> bytes:
    return json.dumps({"order": customer(queue, offset), "cents": offset}).encode()


def run(origin: MemoryOrigin, lake: Path, spec: TableSpec = SPEC, *, rows: int | None = None) -> None:
    fill(Inline(), lambda: origin, typed_table(str(lake), "orders", spec), ArchiveSettings(step_rows_max=rows))


def rows_of(lake: Path, name: str = "orders") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        pa.table(DeltaTable(str(lake / name)).to_pyarrow_table()).sort_by("_offset").to_pylist()
    )
    return found


def lasting(origin: MemoryOrigin, body: Callable[[Queue, int], bytes] = changed) -> dict[str, int]:
    last: dict[str, int] = {}
    for queue, bound in origin.held.items():
        for offset in range(bound.earliest, bound.latest):
            last[customer(queue, offset)] = offset
    return {key: offset for key, offset in last.items() if body(Queue("orders", "a", int(key[0])), offset)}


def origin_of(body: Callable[[Queue, int], bytes] = changed) -> MemoryOrigin:
    return MemoryOrigin(
        {A: Bound(0, 30), B: Bound(0, 20)}, split_rows=7, body=body, key=lambda queue, offset: customer(queue, offset)
    )


def test_the_last_message_of_a_key_is_its_row(tmp_path: Path) -> None:
    origin = origin_of()
    run(origin, tmp_path, rows=11)
    assert {row["order"]: row["cents"] for row in rows_of(tmp_path)} == lasting(origin)
    origin.held[A] = Bound(0, 45)
    run(origin, tmp_path)
    assert {row["order"]: row["_offset"] for row in rows_of(tmp_path)} == lasting(origin)


@pytest.mark.parametrize("key", ["order", ""])
def test_an_empty_body_deletes(tmp_path: Path, key: str) -> None:
    def body(queue: Queue, offset: int) -> bytes:
        return b"" if offset % 4 == 3 else changed(queue, offset)

    spec = TableSpec(topics="orders", schema="order string, cents long", mode="upsert", key=key)
    origin = origin_of(body)
    for rows in (5, 9, None):
        run(origin, tmp_path / str(rows), spec, rows=rows)
        assert {row["_keys"]: row["cents"] for row in rows_of(tmp_path / str(rows))} == lasting(origin, body)


def test_an_empty_body_deletes_though_it_is_a_message_of_protobuf(tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    file.message_type.add(name="Order").field.add(name="cents", number=1, type=3, label=1)  # int64, optional
    (tmp_path / "order.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    spec = TableSpec(bodies="protobuf", schema=str(tmp_path / "order.desc"), message="Order", mode="upsert")
    origin = origin_of(lambda _, offset: b"" if offset % 4 == 3 else bytes([8, offset]))
    run(origin, tmp_path, spec)
    left = lasting(origin, origin.body)
    assert {row["_keys"]: row["cents"] for row in rows_of(tmp_path)} == left
    assert left


def test_a_message_without_a_key_is_undecoded(tmp_path: Path) -> None:
    origin = origin_of(lambda queue, offset: b"{}" if offset == 3 else b"x" if offset == 5 else changed(queue, offset))
    run(origin, tmp_path)
    reasons = {(row["_queue"], row["_offset"]): row["reason"] for row in rows_of(tmp_path, "orders__undecoded")}
    assert reasons.keys() == {(0, 3), (1, 3), (0, 5), (1, 5)}
    assert reasons[0, 3] == "the message has no order"
    assert str(reasons[1, 5]).startswith("the body is not JSON")


def test_keys_are_texts_or_whole_numbers(tmp_path: Path) -> None:
    spec = TableSpec(topics="orders", schema="order string, cents long", mode="upsert", key="cents")
    origin = origin_of(lambda queue, offset: changed(queue, offset % 5) if offset < 25 else b"")
    origin.key = lambda _, offset: "4" if offset == 29 else "x"
    run(origin, tmp_path, spec, rows=20)
    assert sorted(row["cents"] for row in rows_of(tmp_path)) == [0, 1, 2, 3]
    assert {row["reason"] for row in rows_of(tmp_path, "orders__undecoded")} == {
        "the message's key 'x' is no whole number"
    }
    for key, says in (("customer", "key 'customer' is no column"), ("rate", "not a text or a whole number")):
        spec = TableSpec(topics="orders", schema="order string, rate double", mode="upsert", key=key)
        with pytest.raises(ConfigError, match=says):
            run(origin, tmp_path / key, spec)


def test_a_kill_at_any_change_merges_each_step_once(tmp_path: Path) -> None:
    spec = TableSpec(**{**{name: getattr(SPEC, name) for name in SPEC.__struct_fields__}, "change_data_feed": True})

    def body(queue: Queue, offset: int) -> bytes:
        return b"x" if offset == 8 else b"" if offset % 4 == 3 else changed(queue, offset)

    origin = origin_of(body)
    *killed, finished = remains(tmp_path / "lake", lambda: run(origin, tmp_path / "lake", spec, rows=30))
    assert len(killed) > 10
    expected = contents(finished)
    assert {row["order"] for row in expected[0]} <= lasting(origin, body).keys()
    assert not list((finished / "orders" / "staged").glob("*"))
    for lake in (*killed, finished):
        run(origin, lake, spec, rows=30)
        assert contents(lake) == expected
    assert not list((finished / "orders" / "staged").glob("*"))


def contents(lake: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """The rows of both tables, and the number of changes that readers of the change data feed get."""
    changes = pa.table(DeltaTable(str(lake / "orders")).load_cdf(0)).num_rows
    return rows_of(lake), rows_of(lake, "orders__undecoded"), changes
