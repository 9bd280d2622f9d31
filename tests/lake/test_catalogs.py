"""The Iceberg table of a topic has the rows of its Delta table, whatever happens to the catalog and to processes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from threading import Event
from time import sleep
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import CreateTableTransaction, Table, Transaction

from firearrow.client.queues import Bound, Queue
from firearrow.errors import CatalogError, ConfigError
from firearrow.lake.catalogs import NEEDED, IcebergTables, LakeCatalog
from firearrow.lake.filling import UPKEEP_SECONDS, Lake, LakeFilling, typed_table
from firearrow.lake.spec import TableSpec
from firearrow.lake.typedtable import TypedTable
from firearrow.spark.jobs.archive.archiving import ArchiveSettings
from firearrow.spark.jobs.archive.delta import Archive
from firearrow.spark.jobs.archive.iceberg import Iceberg
from tests.broker.fakes import HandClock
from tests.lake.filled import fill
from tests.lake.test_evolution import of_protobuf
from tests.lake.test_filling import configure, numbers, send, version
from tests.spark.jobs.archiver import forking
from tests.spark.jobs.inline import Inline, Killed
from tests.spark.origins import DAY_MS, MemoryOrigin
from tests.store.stores import opened

A = Queue("orders", "a", 0)


def properties(root: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}


@pytest.fixture
def lake(tmp_path: Path) -> LakeCatalog:
    (tmp_path / "warehouse").mkdir()
    return LakeCatalog.of({"namespace": "lake", **properties(tmp_path)})


@pytest.fixture
def catalog(lake: LakeCatalog, tmp_path: Path) -> Iterator[Catalog]:
    """The catalog as others see it."""
    found = load_catalog("firearrow", **properties(tmp_path))
    yield found
    found.close()
    lake.catalog.opened.close()


class Kills:
    """Lets the process die before or after its n-th commit to a catalog."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for kind in (Transaction, CreateTableTransaction):
            monkeypatch.setattr(kind, "commit_transaction", self._counted(kind.commit_transaction))

    def _counted(self, commit: Any) -> Any:
        def committed(transaction: Any) -> Any:
            for half in (lambda: None, lambda: commit(transaction)):
                done = half()
                if self.left == 0:
                    raise Killed
                self.left -= 1
            return done

        return committed

    def finishes(self, life: int, work: Callable[[], object]) -> bool:
        """Do some work that dies at the commit ``life``; tell whether it has finished before."""
        self.left = life
        try:
            work()
        except Killed:
            return False
        finally:
            self.left = -1
        return True


def run(origin: MemoryOrigin, root: Path, spec: TableSpec, *, rows: int | None = None) -> TypedTable:
    table = typed_table(str(root), "orders", spec)
    fill(Inline(), lambda: origin, table, ArchiveSettings(step_rows_max=rows))
    return table


def rows_of(found: pa.Table) -> list[dict[str, Any]]:
    rows = sorted(found.to_pylist(), key=lambda row: (row["_queue"], row["_offset"]))
    for row in rows:  # pyiceberg reads lists and maps of structures that are null as empty ones
        row |= {name: row.get(name) or None for name in ("lines", "more")}
    return [{key: it for key, it in row.items() if not key.endswith(("_day", "_hour", "_bucket"))} for row in rows]


def require_same(catalog: Catalog, root: Path, name: str = "orders", namespace: str = "lake") -> Table:
    """Compare both tables; return Iceberg's."""
    table = catalog.load_table(f"{namespace}.{name}")
    assert rows_of(table.scan().to_arrow()) == rows_of(pa.table(DeltaTable(str(root / name)).to_pyarrow_table()))
    return table


def body(_: Queue, offset: int) -> bytes:
    customer = f"c {offset % 5}%/ü" if offset % 7 else None
    return json.dumps({"customer": customer, "cents": offset, "paid": f"1969-12-31T23:{offset:02}:00Z"}).encode()


def test_partitions_are_icebergs_own(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    by = ("day", "hour(paid)", "bucket(4, customer)", "bucket(3, cents)", "customer")
    spec = TableSpec(schema="customer string, cents long, paid timestamp", partition=by)
    origin = MemoryOrigin({A: Bound(0, 40)}, 20_000 * DAY_MS - 10_000, body=body)
    table = run(origin, tmp_path, spec, rows=15)
    both = IcebergTables(lake, table)
    assert both.publish() > 20
    assert both.publish() == 0
    found = require_same(catalog, tmp_path)
    files = {task.file.file_path for task in found.scan().plan_files()}
    scan = found.scan("customer = 'c 3%/ü'")
    assert {row["cents"] % 5 for row in scan.to_arrow().to_pylist()} == {3}
    assert {task.file.file_path for task in scan.plan_files()} == {it for it in files if "/customer=c%203" in it}
    for cents in (8, 21):
        scan = found.scan(f"cents = {cents}")
        assert scan.to_arrow()["cents"].to_pylist() == [cents]
        assert len({task.file.partition[3] for task in scan.plan_files()}) == 1
    assert found.scan("paid < '1970-01-01T00:00:00+00:00'").to_arrow().num_rows == 40
    origin.held[A] = Bound(0, 45)
    run(origin, tmp_path, spec, rows=2)
    assert table.compact() > 0
    both.publish()
    assert len(list(require_same(catalog, tmp_path).scan().plan_files())) == len(table.load().paths)


def test_merged_rows_follow(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    spec = TableSpec(
        schema="customer string, cents long",
        mode="upsert",
        key="customer",
        partition=("bucket(4, customer)", "customer"),
    )
    origin = MemoryOrigin({A: Bound(0, 4)}, body=body)
    for end in (9, 20, 40):
        origin.held[A] = Bound(0, end)
        assert IcebergTables(lake, run(origin, tmp_path, spec, rows=6)).publish() > 1
        assert len(require_same(catalog, tmp_path).scan().to_arrow()) == 5
        require_same(catalog, tmp_path, "orders__undecoded")


def test_columns_follow_their_messages(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    schemas = (
        "cents int, rate float, to struct<city: string>, lines array<struct<sku: string>>",
        "cents long, rate double, to struct<city: string, at: struct<x: int>>, lines array<struct<sku string, n int>>",
        "note string, to struct<at: struct<x: long, y: int>>, price decimal(9, 2), more map<string, struct<a: int>>",
    )
    bodies = (
        {"cents": 5, "rate": 0.5, "to": {"city": "x"}, "lines": [{"sku": "a"}]},
        {"cents": 2**40, "rate": 0.1, "to": {"at": {"x": 7}}, "lines": [{"sku": "b", "n": 1}, {"n": 2}]},
        {"note": "n", "to": {"at": {"x": 2**40, "y": 1}}, "price": "1.25", "more": {"k": {"a": 1}}},
    )
    origin = MemoryOrigin({A: Bound(0, 0)}, body=lambda _, offset: json.dumps(bodies[offset // 3]).encode())
    for number, schema in enumerate(schemas):
        origin.held[A] = Bound(0, 3 * number + 3)
        IcebergTables(lake, run(origin, tmp_path, TableSpec(schema=schema))).publish()
        found = require_same(catalog, tmp_path)
    assert [field.name for field in found.schema().fields][-7:] == [
        "cents", "rate", "to", "lines", "note", "price", "more"
    ]  # fmt: skip
    assert str(found.schema().find_type("to.at.x")) == "long"


def of_protobuf_fields(_: Queue, offset: int) -> bytes:
    """A number as field 1, and a text as field 2."""
    return bytes([8, offset, 18, 1, 65 + offset])


def ids(table: Table) -> dict[str, int]:
    """The ids of the fields of bodies."""
    return {field.name: field.field_id for field in table.schema().fields if field.name[0] != "_"}


def test_renamed_columns_keep_their_ids(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    origin = MemoryOrigin({A: Bound(0, 2)}, body=of_protobuf_fields)

    def follow(*schemas: dict[int, tuple[str, str]]) -> Table:
        """Let a table have some schemas, each with another message, and publish the last one."""
        for schema in schemas:
            table = run(origin, tmp_path, of_protobuf(tmp_path, schema))
            origin.held[A] = Bound(0, origin.held[A].latest + 1)
        IcebergTables(lake, table).publish()
        assert IcebergTables(lake, table).publish() == 0
        return require_same(catalog, tmp_path)

    first = follow({1: ("a", "int"), 2: ("b", "string")})
    (a, b), old = ids(first).values(), first.current_snapshot()
    assert old is not None
    found = follow({1: ("x", "int"), 2: ("b", "string")}, {1: ("c", "long"), 2: ("b", "string"), 3: ("d", "int")})
    assert ids(found) == {"c": a, "b": b, "d": max(ids(found).values())}
    assert [row["c"] for row in rows_of(found.scan("c > 0").to_arrow())] == [1, 2, 3]
    rows = rows_of(found.scan(snapshot_id=old.snapshot_id).to_arrow())
    assert [(row["a"], row["b"]) for row in rows] == [(0, "A"), (1, "B")]

    # files have no ids: of those with the old names, nobody could tell which column is which
    found = follow({1: ("b", "long"), 2: ("c", "string"), 3: ("d", "int")})
    assert ids(found) == {"b": a, "c": b, "d": max(ids(found).values())}
    assert len(found.snapshots()) == 1
    found = follow({1: ("b", "long"), 2: ("e", "string"), 3: ("d", "int")})
    assert len(found.snapshots()) == 2
    found = follow({1: ("b", "long"), 2: ("e", "string"), 3: ("d", "int"), 4: ("c", "int")})
    assert ids(found) == {"b": a, "e": b, "d": ids(found)["d"], "c": max(ids(found).values())}
    assert len(found.snapshots()) == 1
    found = follow({1: ("a", "long"), 2: ("b", "string"), 3: ("d", "int"), 4: ("c", "int")})
    assert (ids(found)["a"], ids(found)["b"]) == (a, b)


def test_a_table_of_renamed_columns_can_be_published_late(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    origin = MemoryOrigin({A: Bound(0, 2)}, body=of_protobuf_fields)
    for schema in ({1: ("a", "int"), 2: ("b", "string")}, {1: ("b", "int"), 2: ("a", "string")}):
        table = run(origin, tmp_path, of_protobuf(tmp_path, schema))
    IcebergTables(lake, table).publish()
    before = ids(require_same(catalog, tmp_path))
    table = run(origin, tmp_path, of_protobuf(tmp_path, {1: ("a", "int"), 2: ("b", "string")}))
    IcebergTables(lake, table).publish()
    assert ids(require_same(catalog, tmp_path)) == {"a": before["b"], "b": before["a"]}


def test_a_kill_at_any_commit_to_the_catalog_swaps_names_once(
    tmp_path: Path, lake: LakeCatalog, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = Kills(monkeypatch)
    specs = [
        of_protobuf(tmp_path, {1: (number, "int"), 2: (text, "string")}) for number, text in (("a", "b"), ("b", "a"))
    ]
    origin = MemoryOrigin({A: Bound(0, 2)}, body=of_protobuf_fields)
    for life in range(100):
        root, names = tmp_path / str(life), LakeCatalog(lake.catalog, f"lake{life}")
        IcebergTables(names, run(origin, root, specs[0])).publish()
        before = ids(require_same(catalog, root, namespace=names.namespace))
        table = run(origin, root, specs[1])
        finished = kills.finishes(life, IcebergTables(names, table).publish)
        # what is published is the old table or the new one, with its names
        between = rows_of(catalog.load_table(f"{names.namespace}.orders").scan().to_arrow())
        number = "b" if isinstance(between[0]["b"], int) else "a"
        assert [row[number] for row in between] == [0, 1]
        IcebergTables(names, table).publish()
        found = require_same(catalog, root, namespace=names.namespace)
        assert ids(found) == {"b": before["a"], "a": before["b"]}
        if finished:
            assert life > 1
            return
    raise AssertionError("it never ends")


def test_undecoded_messages_leave_their_table_together(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    origin = MemoryOrigin({A: Bound(0, 10)}, body=lambda _, n: json.dumps({"cents": "x" if n % 4 == 1 else n}).encode())
    IcebergTables(lake, run(origin, tmp_path, TableSpec(schema="cents int"))).publish()
    assert len(require_same(catalog, tmp_path, "orders__undecoded").scan().to_arrow()) == 3
    IcebergTables(lake, run(origin, tmp_path, TableSpec(schema="note string"))).publish()
    assert len(require_same(catalog, tmp_path).scan().to_arrow()) == 10
    assert len(require_same(catalog, tmp_path, "orders__undecoded").scan().to_arrow()) == 0


SPEC = TableSpec(topics="orders", schema="number long", format="iceberg")


def filling(root: Path, lake: LakeCatalog | None, *, clock: HandClock | None = None) -> LakeFilling:
    source = {"path": str(root / "store")}
    return LakeFilling(Inline(), Lake(source, str(root / "lake"), (SPEC,), catalog=lake), clock=clock)


def published(catalog: Catalog) -> list[int]:
    if not catalog.table_exists("lake.orders"):
        return []
    return sorted(catalog.load_table("lake.orders").scan().to_arrow()["number"].to_pylist())


def test_a_catalog_that_fails_does_not_stop_the_delta_table(tmp_path: Path) -> None:
    place = tmp_path / "away"
    lake = LakeCatalog.of({"namespace": "lake", **properties(place)})
    with opened(tmp_path / "store") as store:
        configure(tmp_path / "store", {"orders": {}})
        send(store, "orders", range(5))
        work = filling(tmp_path, lake)
        for count in (5, 8):
            assert work.round()
            status = work.statuses["orders"]
            assert status.trouble.startswith("catalog firearrow:lake: (sqlite3.OperationalError) unable to open")
            assert status.fresh_ms is None
            assert numbers(tmp_path / "lake", "orders") == [*range(count)]
            send(store, "orders", range(5, 8) if count == 5 else range(0))
        place.mkdir()
        assert not work.round()
        assert status.trouble == ""
        assert status.fresh_ms is not None
        catalog = load_catalog("firearrow", **properties(place))
        assert published(catalog) == [*range(8)]
        catalog.drop_table("lake.orders")
        send(store, "orders", range(8, 9))
        work.round()
        assert status.trouble == "catalog firearrow:lake: Table does not exist: lake.orders"
        work.round()
        assert published(catalog) == [*range(9)]
        catalog.close()
        lake.catalog.opened.close()


def test_a_table_that_needs_a_catalog_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        filling(tmp_path, None)
    assert str(caught.value) == NEEDED
    attributes = {"table.format": "iceberg", "table.schema": "number long"}
    with opened(tmp_path / "store") as store:
        configure(tmp_path / "store", {"orders": attributes})
        send(store, "orders", range(5))
        work = LakeFilling(Inline(), Lake({"path": str(tmp_path / "store")}, str(tmp_path / "lake")))
        work.round()
        assert work.statuses["orders"].trouble == NEEDED
        assert numbers(tmp_path / "lake", "orders") == [*range(5)]


def test_snapshots_go_before_files(
    tmp_path: Path, lake: LakeCatalog, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(name: str, work: Any) -> Any:
        def works(self: Any) -> Any:
            done.append(name)
            return work(self)

        return works

    monkeypatch.setattr(Iceberg, "expire_snapshots", noted("expire", Iceberg.expire_snapshots))
    monkeypatch.setattr(Archive, "clean", noted("clean", Archive.clean))
    clock = HandClock()
    with opened(tmp_path / "store") as store:
        configure(tmp_path / "store", {"orders": {}})
        work = filling(tmp_path, lake, clock=clock)
        for number in range(4):
            send(store, "orders", range(number, number + 1))
            work.round()
        work.tidy()
        clock.seconds += UPKEEP_SECONDS
        work.tidy()
        assert done == ["expire", "clean"]
        table = require_same(catalog, tmp_path / "lake")
        assert len(list(table.scan().plan_files())) == 1
        monkeypatch.setattr(Iceberg, "publish", lambda _: 1 // 0)
        clock.seconds += UPKEEP_SECONDS
        work.tidy()
        assert done == ["expire", "clean"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("prod:", "catalog prod:: the namespace of the tables is missing"),
        ({"type": "sql"}, "catalog firearrow:: the namespace of the tables is missing"),
        ({"namespace": "lake"}, "catalog firearrow:lake: URI missing, please provide"),
        ("no:lake", "catalog no:lake: URI missing, please provide"),
        ({"namespace": "lake", "type": "sqll"}, "catalog firearrow:lake: 'sqll' is not a valid CatalogType"),
        (
            {"namespace": "lake", "name": "a", "uri": "sq://me:secret@host"},
            "catalog a:lake: Could not infer the catalog type from the uri: sq://...@host",
        ),
        ({"namespace": "lake", "type": "hive", "uri": "thrift://h"}, "catalog firearrow:lake: Apache Hive support not"),
    ],
)
def test_a_catalog_that_cannot_be_is_one_sentence(given: str | dict[str, str | int | bool], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LakeCatalog.of(given).catalog.check()
    assert str(caught.value).startswith(says)


def test_a_kill_at_any_commit_to_the_catalog_loses_and_doubles_nothing(
    tmp_path: Path, lake: LakeCatalog, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = Kills(monkeypatch)
    with opened(tmp_path / "store") as store:
        configure(tmp_path / "store", {"orders": {}})
        for life in range(100):
            send(store, "orders", range(life, life + 1))
            if catalog.table_exists("lake.orders"):
                catalog.drop_table("lake.orders")
            finished = kills.finishes(life, lambda: filling(tmp_path, lake).round())
            work = filling(tmp_path, lake)
            work.round()
            assert work.statuses["orders"].trouble == ""
            assert published(catalog) == [*range(life + 1)] == numbers(tmp_path / "lake", "orders")
            if finished:
                assert life > 4
                return
    raise AssertionError("it never ends")


def test_a_killed_service_publishes_each_file_once(tmp_path: Path, lake: LakeCatalog, catalog: Catalog) -> None:
    root, place = tmp_path / "store", tmp_path / "lake"
    random = Random(7)
    with opened(root) as store:
        configure(root, {"orders": {}})
        send(store, "orders", range(1200))
    with forking(root, str(place), tmp_path / "log", "publish_for_ever") as forks:
        for _ in range(5):
            pid = forks.start()
            wanted = version(place) + random.randrange(1, 4)
            while version(place) < wanted:
                sleep(random.random() / 50)
            forks.kill(pid)
            found = published(catalog)
            assert len(found) == len(set(found)) < 1200
            assert {*found} <= {*numbers(place, "orders")}
    filling(tmp_path, lake).round()
    assert published(catalog) == [*range(1200)]


def test_a_catalog_that_refuses_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        lake = LakeCatalog.of({"namespace": "lake", "uri": f"http://127.0.0.1:{unheard.getsockname()[1]}"})
        lake.catalog.check()
        both = IcebergTables(lake, run(MemoryOrigin({A: Bound(0, 4)}, body=body), tmp_path, TableSpec(schema="a int")))
        with pytest.raises(CatalogError, match=r"^catalog firearrow:lake: .*refused"):
            both.publish()


def test_a_catalog_that_does_not_answer_does_not_stop_the_delta_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firearrow.spark.jobs.archive.catalogs.ANSWER_SECONDS", 0.01)
    with opened(tmp_path / "store") as store, socket.create_server(("127.0.0.1", 0)) as silent:
        configure(tmp_path / "store", {"orders": {}})
        send(store, "orders", range(5))
        lake = LakeCatalog.of({"namespace": "lake", "uri": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        work, stop = filling(tmp_path, lake), Event()
        troubles: list[str] = []

        def on_round() -> None:
            troubles.append(work.statuses["orders"].trouble)
            stop.set()

        work.follow(stop, on_round)
        assert troubles == ["catalog firearrow:lake: there is no answer yet"]
        assert numbers(tmp_path / "lake", "orders") == [*range(5)]


def test_work_that_takes_long_ends_in_its_thread() -> None:
    catalog, go_on, done = LakeCatalog.of("lake").catalog, Event(), Event()

    def job() -> None:
        go_on.wait()
        done.set()

    for says in ("no answer after 0.01 s", "no answer yet"):
        with pytest.raises(CatalogError, match=says):
            catalog.work(job, 0.01)
    go_on.set()
    assert done.wait(60)
    for thread in threading.enumerate():
        if thread.name == "catalog-work":
            thread.join()
    assert catalog.work(lambda: 7, 60) == 7
