"""A field that gets another name renames its column: older rows and bodies have the new name, whatever ends the process
that writes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

import firearrow.lake
from firearrow.client.queues import Bound, Queue
from firearrow.errors import ConfigError, StoreLocked
from firearrow.lake.filling import typed_table
from firearrow.lake.spec import TableSpec
from firearrow.spark.jobs.archive.archiving import Archiver, ArchiveSettings
from tests.lake.filled import fill
from tests.lake.test_filling import configure, filling, framed
from tests.spark.jobs.inline import Inline, Killed, Mortal, P, R
from tests.spark.origins import MemoryOrigin
from tests.spark.registries import serving_schemas
from tests.store.stores import append, opened, settle

A = Queue("orders", "a", 0)
BODIES = (b"\0\x08\x01\x10\x02", b"\0\x08\x02\x10\x04", b"\0\x08\x03\x10\x06", b"\0\x08\x04\x10\x08\x18\x05")
KINDS = {"int": Field.TYPE_INT32, "long": Field.TYPE_INT64, "string": Field.TYPE_STRING}


def avro_of(*fields: tuple[str, ...]) -> str:
    """A schema with fields of a name, a type and aliases."""
    parts = [
        {"name": name, "type": kind, "aliases": aliases, "default": "" if kind == "string" else 0}
        for name, kind, *aliases in fields
    ]
    return json.dumps({"type": "record", "name": "Order", "fields": parts})


def protobuf_of(fields: Mapping[int, tuple[str, str]]) -> FileDescriptorProto:
    """A file with a message whose fields have a name and a type."""
    file = FileDescriptorProto(name="order.proto", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, kind) in fields.items():
        message.field.add(name=name, number=number, type=KINDS[kind], label=Field.LABEL_OPTIONAL)
    return file


def of_avro(*fields: tuple[str, ...]) -> TableSpec:
    return TableSpec(bodies="avro", schema=avro_of(*fields))


def of_protobuf(place: Path, fields: Mapping[int, tuple[str, str]]) -> TableSpec:
    """The specification of a table by a descriptor file, which is written."""
    path = place / ("-".join(f"{number}{name}{kind}" for number, (name, kind) in fields.items()) + ".desc")
    path.write_bytes(FileDescriptorSet(file=[protobuf_of(fields)]).SerializeToString())
    return TableSpec(bodies="protobuf", schema=str(path), message="Order")


def registered(fields: Mapping[int, tuple[str, str]]) -> str:
    return base64.b64encode(protobuf_of(fields).SerializeToString()).decode()


def numbers(_: Queue, offset: int) -> bytes:
    """The fields 1 and 2 of a message of Protobuf."""
    return bytes([8, offset, 16, offset + 50])


def datum(_: Queue, offset: int) -> bytes:
    """Two numbers of Avro."""
    return bytes([2 * offset, 2 * offset + 40])


def run(origin: MemoryOrigin, lake: Path, spec: TableSpec) -> None:
    fill(Inline(), lambda: origin, typed_table(str(lake), "orders", spec), ArchiveSettings(step_rows_max=8))


def rows_of(lake: Path, *columns: str) -> list[tuple[Any, ...]]:
    rows = pa.table(DeltaTable(str(lake / "orders")).to_pyarrow_table()).sort_by("_offset")
    return list(zip(*(rows[name].to_pylist() for name in columns), strict=True))


@pytest.mark.parametrize(
    ("kind", "schemas", "bodies", "names"),
    [
        (
            "avro",
            (
                avro_of(("number", "int"), ("cents", "int")),
                avro_of(("count", "long", "nr", "number"), ("cents", "int"), ("note", "int")),
            ),
            (b"\x02\x04", b"\x04\x08", b"\x06\x0c", b"\x08\x10\x0a"),
            ("count", "cents", "note"),
        ),
        (
            "protobuf",
            (
                registered({1: ("number", "int"), 2: ("cents", "int")}),
                registered({1: ("count", "long"), 2: ("cents", "int"), 3: ("note", "int")}),
            ),
            BODIES,
            ("count", "cents", "note"),
        ),
        (
            "protobuf",
            (
                registered({1: ("number", "int"), 2: ("cents", "int")}),
                registered({1: ("cents", "long"), 2: ("count", "int"), 3: ("number", "int")}),
            ),
            BODIES,
            ("cents", "count", "number"),
        ),
    ],
)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_renamed_field_of_a_registry_is_the_same_column(
    tmp_path: Path,
    mode: Literal["append", "upsert"],
    kind: Literal["avro", "protobuf"],
    schemas: Sequence[str],
    bodies: Sequence[bytes],
    names: tuple[str, ...],
) -> None:
    root, lake, live = tmp_path / "store", tmp_path / "lake", {"path": str(tmp_path / "store")}
    known, subjects = {1: schemas[0]}, {"orders-value": 1}
    more = {} if kind == "avro" else {"schemaType": "PROTOBUF"}
    with opened(root) as store, serving_schemas(known, subjects, more=more) as (url, _):
        configure(root, {"orders": {}})
        spec = TableSpec(topics="orders", bodies=kind, registry=url, subject="orders-value", mode=mode)

        def send(schema_id: int, number: int) -> None:
            append(store, framed(schema_id, bodies[number]), "orders", 0, properties={"KEYS": f"k{number}"})
            settle(store)

        work = filling(root, lake, spec)
        for number in (0, 1):
            send(1, number)
        work.round()
        assert rows_of(lake, "number", "cents") == [(1, 2), (2, 4)]
        known[2], subjects["orders-value"] = schemas[1], 2
        send(1, 2)
        send(2, 3)
        whole = [(1, 2, None), (2, 4, None), (3, 6, 0), (4, 8, 5)]
        for _ in range(2):
            found = firearrow.lake.table("orders", lake, live, columns=names).read_all()
            assert sorted(zip(*found.to_pydict().values(), strict=True)) == whole
            work.round()
        assert work.statuses["orders"].trouble == ""
        assert rows_of(lake, *names) == whole
        table = DeltaTable(str(lake / "orders"))
        assert tuple(field.name for field in table.schema().fields if field.name[0] != "_") == names
        assert pa.schema(table.schema()).field(names[0]).type == pa.int64()
        version = table.version()
        filling(root, lake, spec).round()
        assert DeltaTable(str(lake / "orders")).version() == version


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_kill_at_any_change_swaps_names_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Literal["append", "upsert"]
) -> None:
    mortal = Mortal(monkeypatch)
    before = msgspec.structs.replace(of_protobuf(tmp_path, {1: ("a", "int"), 2: ("b", "int")}), mode=mode)
    after = of_protobuf(tmp_path, {1: ("b", "int"), 2: ("a", "long"), 3: ("c", "int")})
    after = msgspec.structs.replace(after, mode=mode)
    for life in range(1000):
        lake = tmp_path / str(life)
        origin = MemoryOrigin({A: Bound(0, 3)}, body=numbers)
        run(origin, lake, before)
        assert rows_of(lake, "a", "b") == [(offset, offset + 50) for offset in range(3)]
        origin.held[A] = Bound(0, 5)
        mortal.left = life
        try:
            run(origin, lake, after)
            finished = True
        except Killed:
            finished = False
        mortal.left = -1
        for _ in range(2):
            run(origin, lake, after)
            assert rows_of(lake, "_offset", "a", "b") == [(offset, offset + 50, offset) for offset in range(5)]
        if finished:
            assert life > 8
            return
    raise AssertionError("it never ends")


def test_names_that_are_free_again_are_new_columns(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 2)}, body=numbers)
    schemas: list[dict[int, tuple[str, str]]] = [
        {1: ("a", "int"), 2: ("b", "int")},
        {1: ("c", "int"), 2: ("b", "int")},
        {1: ("d", "int"), 2: ("b", "int"), 3: ("a", "string")},  # not the column that was so called
        {1: ("a", "int"), 3: ("d", "string")},  # a field that is gone keeps its column
        {1: ("d", "int"), 4: ("b", "int"), 3: ("a", "string")},  # another number of the same name
    ]
    names = [("a", "b"), ("c", "b"), ("d", "b", "a"), ("a", "b", "d"), ("d", "b", "a")]
    for number, (schema, columns) in enumerate(zip(schemas, names, strict=True), 2):
        origin.held[A] = Bound(0, number)
        run(origin, tmp_path, of_protobuf(tmp_path, schema))
        rows = rows_of(tmp_path, *columns)
        assert [row[0] for row in rows] == [*range(number)]
        assert [row[1] for row in rows[:4]] == [50, 51, 52, 53][:number]
        assert {row[2:] for row in rows} <= {(), (None,), ("",)}


def test_an_alias_does_not_take_what_is_no_field(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 2)}, body=datum)
    run(origin, tmp_path, of_avro(("a", "int"), ("b", "int")))
    origin.held[A] = Bound(0, 4)
    # a is still a field, so bodies of older schemas decode into it
    run(origin, tmp_path, of_avro(("a", "int"), ("c", "int", "_offset", "_stored_at_day", "a", "none", "b")))
    assert rows_of(tmp_path, "_offset", "a", "c") == [(0, 0, 20), (1, 1, 21), (2, 2, 22), (3, 3, 23)]


@pytest.mark.parametrize(
    ("fields", "more", "says"),
    [
        ((("cents", "int", "number"),), {}, "columns number and cents would both be cents by the new schema"),
        ((("all", "int", "cents", "number"),), {}, "columns number and cents would both be all by the new schema"),
        ((("Cents", "int", "number"),), {}, "columns number and cents would both be cents by the new schema"),
        (
            (("count", "string", "number"),),
            {},
            "column count is int32, but the new schema has count of string; no type holds both",
        ),
        ((("count", "int", "number"),), {"cluster": ("number",)}, "cluster 'number' is no column"),
        (
            (("count", "int", "number"),),
            {"mode": "upsert", "partition": ("day",), "key": "number"},
            "table orders: column number, which is its key, is count in the new schema; name count as key",
        ),
    ],
)
def test_a_rename_that_cannot_be_is_refused(
    tmp_path: Path, fields: tuple[tuple[str, ...], ...], more: dict[str, Any], says: str
) -> None:
    origin = MemoryOrigin({A: Bound(0, 3)}, body=datum)
    run(origin, tmp_path, msgspec.structs.replace(of_avro(("number", "int"), ("cents", "int")), **more))
    origin.held[A] = Bound(0, 5)
    with pytest.raises(ConfigError, match=says):
        run(origin, tmp_path, msgspec.structs.replace(of_avro(*fields, ("more", "int")), **more))
    assert rows_of(tmp_path, "number", "cents") == [(0, 20), (1, 21), (2, 22)]
    if not more:
        return
    followed = {key: "count" if key == "key" else ("count",) for key in more if key in {"key", "cluster"}}
    run(origin, tmp_path, msgspec.structs.replace(of_avro(*fields, ("more", "int")), **{**more, **followed}))
    assert [count for (count,) in rows_of(tmp_path, "count")] == [*range(5)]


def test_a_column_of_a_partition_keeps_its_name(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 3)}, body=numbers)
    by = {"partition": ("bucket(2, a)",)}
    run(origin, tmp_path, msgspec.structs.replace(of_protobuf(tmp_path, {1: ("a", "int"), 2: ("b", "int")}), **by))
    swapped = of_protobuf(tmp_path, {1: ("b", "int"), 2: ("a", "int")})
    says = "column a, which it is partitioned by, is b in the new schema; keep its name, or use another table"
    with pytest.raises(ConfigError, match=says):
        run(origin, tmp_path, msgspec.structs.replace(swapped, **by))
    assert rows_of(tmp_path, "a") == [(0,), (1,), (2,)]


def test_a_process_that_knows_an_older_name_writes_nothing(tmp_path: Path) -> None:
    origin = MemoryOrigin({A: Bound(0, 3)}, body=datum)
    old, new = of_avro(("a", "int"), ("b", "int")), of_avro(("c", "int", "a"), ("b", "int"))
    table = typed_table(str(tmp_path), "orders", old)
    job = Archiver(Inline(), lambda: origin, table, ArchiveSettings())
    assert job.step(origin.bounds()) is not None
    run(origin, tmp_path, new)
    origin.held[A] = Bound(0, 5)
    files = sorted((tmp_path / "orders").rglob("*.parquet"))
    with pytest.raises(StoreLocked, match="table orders: another process has renamed its columns"):
        job.step(origin.bounds())
    assert sorted((tmp_path / "orders").rglob("*.parquet")) == files
    run(origin, tmp_path, new)
    assert rows_of(tmp_path, "c", "b") == [(offset, offset + 20) for offset in range(5)]


@pytest.mark.parametrize("body", [datum, lambda *_: b"x"], ids=["rows", "undecoded"])
def test_of_two_processes_that_rename_one_counts(tmp_path: Path, body: Callable[[Queue, int], bytes]) -> None:
    """Bodies that do not decode leave a table without files."""
    origin = MemoryOrigin({A: Bound(0, 3)}, body=body)
    run(origin, tmp_path, of_avro(("a", "int"), ("b", "int")))
    new = of_avro(("c", "int", "a"), ("b", "int"))

    other = of_avro(("d", "int", "a"), ("b", "int"), ("e", "int"))

    class Slow(Inline):
        def run(self, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
            typed_table(str(tmp_path), "orders", other).evolve(Inline())
            return super().run(work, pieces)

    with pytest.raises(StoreLocked):
        typed_table(str(tmp_path), "orders", new).evolve(Slow())
    names = [field.name for field in DeltaTable(str(tmp_path / "orders")).schema().fields]
    assert names[-4:] == ["d", "b", "_stored_at_day", "e"]
