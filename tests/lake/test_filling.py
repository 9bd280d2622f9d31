"""A service fills the tables of many topics. What one of them lacks does not stop the others, and a kill loses and
doubles nothing."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from random import Random
from threading import Event
from time import sleep

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from firearrow.errors import ConfigError
from firearrow.lake.filling import Lake, LakeFilling, TableStatus
from firearrow.lake.instances import LIFE_SECONDS, Instances
from firearrow.lake.monitoring import serving
from firearrow.lake.spec import TableSpec
from firearrow.spark.jobs.archive.fileplace import FilePlace
from firearrow.store.engine import MessageStore
from tests.broker.fakes import HandClock
from tests.spark.jobs.archiver import forking
from tests.spark.jobs.inline import Inline
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


def filling(root: Path, lake: Path, *specs: TableSpec, instances: Instances | None = None) -> LakeFilling:
    return LakeFilling(Inline(), Lake({"path": str(root)}, str(lake), specs), instances=instances)


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


def version(lake: Path) -> int:
    table = str(lake / "orders")
    return DeltaTable(table).version() if DeltaTable.is_deltatable(table) else -1
