"""A service fills the tables of many topics. What one of them lacks does not stop the others, and a kill loses and
doubles nothing."""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from threading import Event
from time import sleep
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from firearrow.errors import ConfigError
from firearrow.lake.filling import RETRY_SECONDS, Lake, LakeFilling, TableStatus, topic_source, typed_table
from firearrow.lake.instances import LIFE_SECONDS, Instances
from firearrow.lake.monitoring import serving
from firearrow.lake.spec import TableSpec
from firearrow.spark.bodies.registry import FRAME
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.spark.jobs.workers import SameProcess, WorkersLost
from firearrow.store.engine import MessageStore
from tests.broker.fakes import HandClock
from tests.lake.filled import fill
from tests.spark.jobs.archiver import forking
from tests.spark.jobs.inline import Inline, P, R
from tests.spark.registries import serving_schemas
from tests.store.stores import append, opened, settle

SPEC = TableSpec(topics="orders.*", schema="number long")


def configure(root: Path, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Write the topics of a store as its broker does."""
    (root / "config").mkdir(exist_ok=True)
    table = {
        name: {"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "attributes": of}
        for name, of in topics.items()
    }
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def send(store: MessageStore, topic: str, numbers: range) -> None:
    for number in numbers:
        append(store, json.dumps({"number": number}).encode(), topic, number % 2)
    settle(store)


def numbers(lake: Path, table: str) -> list[int]:
    return sorted(pa.table(DeltaTable(str(lake / table)).to_pyarrow_table())["number"].to_pylist())


def filling(
    root: Path, lake: Path, *specs: TableSpec, instances: Instances | None = None, clock: HandClock | None = None
) -> LakeFilling:
    return LakeFilling(Inline(), Lake({"path": str(root)}, str(lake), specs), instances=instances, clock=clock)


def test_topics_become_tables_as_they_come(tmp_path: Path) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    with opened(root) as store:
        send(store, "orders", range(5))
        send(store, "other", range(5))
        configure(root, {"orders": {}, "other": {}})
        work = filling(root, lake, SPEC)
        assert work.round()
        assert not work.round()
        send(store, "orders-eu", range(3))
        send(store, "orders", range(5, 8))
        send(store, "paid", range(4))
        configure(
            root, {"orders": {}, "orders-eu": {}, "paid": {"table.format": "delta", "table.schema": "number int"}}
        )
        assert work.round()
        assert numbers(lake, "orders") == [*range(8)]
        assert numbers(lake, "orders_eu") == [*range(3)]
        assert numbers(lake, "paid") == [*range(4)]
        assert sorted(path.name for path in lake.iterdir()) == ["orders", "orders_eu", "paid"]


def test_a_table_that_cannot_go_on_does_not_stop_the_others(tmp_path: Path) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    with opened(root) as store:
        configure(root, {"orders": {}, "orders-eu": {}})
        send(store, "orders", range(3))
        send(store, "orders-eu", range(3))
        filling(root, lake, SPEC).round()
        send(store, "orders", range(3, 6))
        send(store, "orders-eu", range(3, 6))
        work = filling(root, lake, TableSpec(topics="orders", schema="number string"), SPEC)
        work.round()
        stopped, going = (work.statuses[topic] for topic in ("orders", "orders-eu"))
        assert stopped.trouble.startswith(
            "table orders: column number is int64, but the new schema has number of string"
        )
        assert (going.trouble, going.rows) == ("", 3)
        assert numbers(lake, "orders") == [*range(3)]
        work = filling(root, lake, SPEC)
        work.round()
        assert numbers(lake, "orders") == [*range(6)]


def test_two_topics_cannot_be_one_table(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        configure(root, {"orders-eu": {}, "orders_eu": {}})
        send(store, "orders-eu", range(1))
        with pytest.raises(ConfigError, match="topics 'orders-eu' and 'orders_eu' would both be the table orders_eu"):
            filling(root, tmp_path / "lake", SPEC).round()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "a"}, "option subscribe: the tables name the topics"),
        ({"tags": "a"}, "option tags: an archive contains whole queues"),
    ],
)
def test_options_that_choose_messages_are_refused(tmp_path: Path, options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LakeFilling(Inline(), Lake({"path": str(tmp_path), **options}, str(tmp_path)))


def test_instances_share_the_tables(tmp_path: Path) -> None:
    root, place = tmp_path / "store", FilePlace(tmp_path / "lake")
    topics = [f"orders-{number}" for number in range(12)]
    with opened(root) as store:
        configure(root, {topic: {} for topic in topics})
        for topic in topics:
            send(store, topic, range(2))
        both = [Instances(place, name) for name in "ab"]
        for one in (*both, both[0]):
            one.beat()
        works = [filling(root, tmp_path / "lake", SPEC, instances=one) for one in both]
        for work in works:
            work.round()
        held = [set(work.statuses) for work in works]
        assert held[0] | held[1] == {*topics}
        assert not held[0] & held[1]
        assert all(len(them) > 1 for them in held)
        dead = place.directory and place.directory / "_instances" / "b"
        assert dead is not None
        os.utime(dead, (dead.stat().st_mtime - 2 * LIFE_SECONDS,) * 2)
        works[0].round()
        assert set(works[0].statuses) == {*topics}
        both[0].leave()
        assert not (dead.parent / "a").exists()


def framed(schema_id: int, body: bytes) -> bytes:
    return FRAME.pack(0, schema_id) + body


def avro_of(*fields: str) -> str:
    parts = [{"name": name, "type": ["null", "long"], "default": None} for name in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": parts})


def json_of(*fields: str) -> str:
    return json.dumps({"type": "object", "properties": {name: {"type": "integer"} for name in fields}})


def protobuf_of(*fields: str) -> str:
    file = FileDescriptorProto(syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, name in enumerate(fields, 1):
        message.field.add(name=name, number=number, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("kind", "schema_of", "bodies"),
    [
        ("json", json_of, (b'{"number": 1}', b'{"number": 2, "cents": 3}')),
        ("avro", avro_of, (b"\x02\x02", b"\x02\x04\x02\x06")),
        ("protobuf", protobuf_of, (b"\0\x08\x01", b"\0\x08\x02\x10\x03")),
    ],
)
def test_a_field_of_a_new_schema_is_a_column_with_its_first_message(
    tmp_path: Path, kind: Any, schema_of: Callable[..., str], bodies: tuple[bytes, bytes]
) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    schemas, subjects = {7: schema_of("number")}, {"orders-value": 7}
    more = {} if kind == "avro" else {"schemaType": kind.upper()}
    with opened(root) as store, serving_schemas(schemas, subjects, more=more) as (url, asked):
        configure(root, {"orders": {}})
        spec = TableSpec(topics="orders", bodies=kind, registry=url, subject="orders-value")
        old, new = framed(7, bodies[0]), framed(5, bodies[1])  # a lower id: another subject had this schema before
        work = filling(root, lake, spec)
        append(store, old, "orders", 0)
        settle(store)
        work.round()
        work.round()
        assert sum(path.startswith("/subjects/orders-value/versions/latest") for path in asked) == 2

        # a decoder with the old schema leaves a body with the new one for later
        table = typed_table(str(lake), "orders", spec)
        schemas[5], subjects["orders-value"] = schema_of("number", "cents"), 5
        append(store, new, "orders", 0)
        settle(store)
        opener, settings = topic_source({"path": str(root)}, "orders")
        assert fill(Inline(), opener, table, settings).undecoded == 1
        held = pa.table(DeltaTable(str(lake / "orders__undecoded")).to_pyarrow_table())
        assert held["reason"].to_pylist() == ["the body has a newer schema than the table"]

        for body in (old, new, old):
            append(store, body, "orders", 0)
        settle(store)
        work.round()
        rows = pa.table(DeltaTable(str(lake / "orders")).to_pyarrow_table()).sort_by("_offset")
        null = 0 if kind == "protobuf" else None  # a field without presence has its default
        assert rows["number"].to_pylist() == [1, 2, 1, 2, 1]
        assert rows["cents"].to_pylist() == [None, 3, null, 3, null]
        assert pa.table(DeltaTable(str(lake / "orders__undecoded")).to_pyarrow_table()).num_rows == 0


def test_messages_whose_schema_comes_late_are_decoded_after_ten_minutes(tmp_path: Path) -> None:
    root, lake, clock = tmp_path / "store", tmp_path / "lake", HandClock()
    schemas = {1: avro_of("number")}
    with opened(root) as store, serving_schemas(schemas, {"orders-value": 1}) as (url, _):
        configure(root, {"orders": {}})
        spec = TableSpec(topics="orders", bodies="avro", registry=url, subject="orders-value")
        work = filling(root, lake, spec, clock=clock)
        for schema_id, number in ((1, b"\x02"), (2, b"\x04"), (3, b"\x06")):
            append(store, framed(schema_id, b"\x02" + number), "orders", 0)
        settle(store)
        work.round()
        held = pa.table(DeltaTable(str(lake / "orders__undecoded")).to_pyarrow_table())
        assert held["reason"].to_pylist() == [f"schema {number} is not in the registry" for number in (2, 3)]
        schemas[2] = avro_of("number")
        clock.seconds += RETRY_SECONDS - 1
        work.round()
        assert numbers(lake, "orders") == [1]
        clock.seconds += 1
        work.round()
        assert numbers(lake, "orders") == [1, 2]
        assert work.statuses["orders"].rows == 2
        assert work.statuses["orders"].trouble == ""
        append(store, framed(2, b"\x02\x08"), "orders", 0)
        settle(store)
        work.round()
        assert numbers(lake, "orders") == [1, 2, 4]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_pages_show_the_lag_of_each_table() -> None:
    clock = HandClock()
    now_ms = clock.now_ms()
    fresh = TableStatus("orders", "orders", 60.0, rows=7, fresh_ms=now_ms - 10_000)
    late = TableStatus("paid", "paid", 5.0, fresh_ms=now_ms - 10_000)
    stopped = TableStatus("a", "a", 5.0, trouble="a sentence")
    statuses = [fresh]
    trouble = ["the topics are not read yet"]
    with serving(lambda: statuses, "127.0.0.1", 0, clock, trouble=lambda: trouble[-1]) as port:
        assert get(port, "/readyz") == (503, "the topics are not read yet\n")
        trouble.append("")
        assert get(port, "/readyz") == (200, "ok\n")
        statuses += [late, stopped, TableStatus("new", "new", 5.0)]
        status, text = get(port, "/readyz")
        assert status == 503
        assert text.splitlines() == ["paid: 10 s behind, 5 s are allowed", "a: a sentence", "new: not filled yet"]
        _, text = get(port, "/metrics")
        assert 'firearrow_table_lag_seconds{table="orders",topic="orders"} 10.0' in text
        assert 'firearrow_table_stopped{table="a",topic="a"} 1' in text
        assert 'firearrow_table_rows_total{table="orders",topic="orders"} 7' in text
        assert json.loads(get(port, "/varz")[1])[0]["lag"] == 10.0
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/") == (404, "the pages are /healthz, /readyz, /metrics, /varz\n")


def test_a_service_follows_until_it_is_stopped(tmp_path: Path) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    with opened(root) as store:
        configure(root, {"orders": {}})
        send(store, "orders", range(4))
        work, stop, rounds = filling(root, lake, TableSpec(topics="orders", schema="number int", lag=0.03)), Event(), 0

        def on_round() -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 1:
                send(store, "orders", range(4, 9))
            elif len(numbers(lake, "orders")) == 9:
                stop.set()

        work.follow(stop, on_round)
        assert numbers(lake, "orders") == [*range(9)]


class Turning(Event):
    """Waits by turning a clock on."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.clock.seconds += timeout
        return self.is_set()


def test_each_table_has_a_pace_of_its_own(tmp_path: Path) -> None:
    root, lake, clock = tmp_path / "store", tmp_path / "lake", HandClock()
    specs = [TableSpec(topics=topic, schema="number int", lag=lag) for topic, lag in (("fast", 3), ("slow", 90))]
    with opened(root) as store:
        configure(root, {"fast": {}, "slow": {}})
        work, stop, rounds, start = filling(root, lake, *specs, clock=clock), Turning(clock), 0, clock.seconds

        def on_round() -> None:
            nonlocal rounds
            for topic in ("fast", "slow"):
                send(store, topic, range(rounds, rounds + 1))
            rounds += 1
            if clock.seconds - start >= 60:
                stop.set()

        work.follow(stop, on_round)
        steps = {name: status.steps for name, status in work.statuses.items()}
        assert steps == {"fast": 60, "slow": 2}  # the first round found nothing
        assert numbers(lake, "slow") == [*range(60)]


def test_a_service_rests_while_its_topics_cannot_be_read(tmp_path: Path) -> None:
    clock = HandClock()
    work = filling(tmp_path / "nowhere", tmp_path / "lake", SPEC, clock=clock)
    stop, start = Turning(clock), clock.seconds
    rounds: list[float] = []

    def on_round() -> None:
        rounds.append(clock.seconds - start)
        if len(rounds) == 3:
            stop.set()

    work.follow(stop, on_round)
    assert rounds == [0, 15, 30]
    assert "nowhere" in work.trouble


def test_a_killed_service_loses_and_doubles_nothing(tmp_path: Path) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    random = Random(7)
    with opened(root) as store:
        configure(root, {"orders": {}})
        send(store, "orders", range(2000))
    with forking(root, str(lake), tmp_path / "log", "fill_for_ever") as forks:
        for _ in range(8):
            pid = forks.start()
            wanted = version(lake) + random.randrange(1, 4)
            while version(lake) < wanted:
                sleep(random.random() / 50)
            forks.kill(pid)
            found = numbers(lake, "orders")
            assert len(found) == len(set(found)) < 2000
    filling(root, lake, TableSpec(topics="orders", schema="number long")).round()
    assert numbers(lake, "orders") == [*range(2000)]


def test_a_service_without_workers_ends(tmp_path: Path) -> None:
    class Dead(SameProcess):
        def run(self, work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
            raise WorkersLost("a worker process has died")

    root = tmp_path / "store"
    with opened(root) as store:
        configure(root, {"orders": {}})
        send(store, "orders", range(3))
        work = LakeFilling(Dead(), Lake({"path": str(root)}, str(tmp_path / "lake"), (SPEC,)))
        with pytest.raises(WorkersLost):
            work.follow(Event())


def version(lake: Path) -> int:
    """The last commit of the table of orders, -1 if there is none; cheap enough to be asked for without a pause."""
    return max((int(entry.stem) for entry in (lake / "orders" / "_delta_log").glob("[0-9]*.json")), default=-1)
