"""The tables beside messages hold what a plain look at the files finds."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa
import pytest

from firearrow.errors import ConfigError, CorruptStore, DataLost
from firearrow.spark.options import parse
from firearrow.spark.source.datasource import table_schema
from firearrow.spark.source.storetables import TableReader
from firearrow.spark.tables import TABLES
from tests import golden
from tests.spark import logs, oracle

FILE_STORES = [name for name in golden.golden_names if name.startswith("file")]


def rows_of(root: Path, table: str, **options: str) -> list[dict[str, Any]]:
    parsed = parse({"path": str(root), "table": table, **options})
    schema = table_schema(parsed)
    required = [field.name for field in schema if not field.nullable]
    reader = TableReader(parsed, schema)
    rows: list[dict[str, Any]] = []
    for task in reader.partitions():
        for batch in reader.read(task):
            batch.validate(full=True)
            assert not any(batch.column(name).null_count for name in required)
            rows += batch.to_pylist()
    return rows


def config(root: Path, name: str) -> dict[str, Any]:
    """A configuration file whose integer keys are bare."""
    text = (root / "config" / name).read_text()
    found: dict[str, Any] = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))
    return found


@pytest.mark.parametrize("name", FILE_STORES)
def test_queues_are_read_entry_by_entry(name: str, tmp_path: Path) -> None:
    root = golden.extract(name, tmp_path)
    expected = set()
    for path in (root / "consumequeue").glob("*/*/*"):
        data = path.read_bytes()
        for number in range(len(data) // 20):
            physical, size, tag = struct.unpack_from(">qiq", data, 20 * number)
            if 0 < size < 0x7FFFFFFF:
                queue_offset = int(path.name) // 20 + number
                key = path.parent.parent.name, int(path.parent.name)
                expected.add((*key, queue_offset, physical, size, tag))
    found = [tuple(row.values()) for row in rows_of(root, "consume_queue")]
    assert {row[0] for row in found} == {"broker-g"}
    assert sorted(row[1:] for row in found) == sorted(expected)


def test_queues_in_a_database_say_where_messages_are(tmp_path: Path) -> None:
    root = golden.extract("rocksdb-cq-clean", tmp_path)
    found = {
        (row["topic"], row["queueId"], row["queueOffset"]): (row["commitLogOffset"], row["size"])
        for row in rows_of(root, "consume_queue")
    }
    assert found == {
        (line["topic"], line["queueId"], line["queueOffset"]): (line["physicalOffset"], line["storeSize"])
        for line in golden.expected("rocksdb-cq-clean")
    }


def test_topics_are_chosen_in_queues_too(tmp_path: Path) -> None:
    root = golden.extract("file-cq-clean", tmp_path)
    found = {row["topic"] for row in rows_of(root, "consume_queue", subscribe="GoldenPlain")}
    assert found == {"GoldenPlain"}


@pytest.mark.parametrize("name", golden.golden_names)
def test_the_index_is_read_entry_by_entry(name: str, tmp_path: Path) -> None:
    root = golden.extract(name, tmp_path)
    expected = []
    for path in sorted((root / "index").iterdir()):
        data = path.read_bytes()
        begin_ms, count = struct.unpack_from(">q", data)[0], struct.unpack_from(">i", data, 36)[0]
        for number in range(1, count):
            at = 40 + 4 * 2000 + 20 * number
            key_hash, physical, seconds, previous = struct.unpack_from(">iqii", data, at)
            expected.append((path.name, number, key_hash, physical, begin_ms + 1000 * seconds, previous))
            slots = struct.unpack_from(">2000i", data, 40)
            assert slots[key_hash % 2000] >= number
    found = [
        (
            row["file"],
            row["entry"],
            row["keyHash"],
            row["commitLogOffset"],
            round(row["storeTimestamp"].timestamp() * 1000),
            row["previous"],
        )
        for row in rows_of(root, "index")
    ]
    assert found == expected


def test_offsets_come_with_the_bounds_of_their_queues(tmp_path: Path) -> None:
    root = golden.extract("file-cq-clean", tmp_path)
    expected = {
        (name.partition("@")[2], name.partition("@")[0], int(queue_id)): offset
        for name, queues in config(root, "consumerOffset.json")["offsetTable"].items()
        for queue_id, offset in queues.items()
    }
    found = rows_of(root, "consumer_offsets")
    assert {(row["consumerGroup"], row["topic"], row["queueId"]): row["offset"] for row in found} == expected
    counts: dict[tuple[str, int], int] = {}
    for line in golden.expected("file-cq-clean"):
        key = line["topic"], line["queueId"]
        counts[key] = counts.get(key, 0) + 1
    for row in found:
        count = counts.get((row["topic"], row["queueId"]), 0)
        assert (row["minOffset"], row["maxOffset"]) == (0, count)
        assert row["lag"] == max(count - row["offset"], 0)


@pytest.mark.parametrize("name", FILE_STORES)
def test_topics_and_groups_are_those_of_the_configuration(name: str, tmp_path: Path) -> None:
    root = golden.extract(name, tmp_path)
    topics = config(root, "topics.json")["topicConfigTable"]
    found = {row["topic"]: row for row in rows_of(root, "topics")}
    assert found.keys() == topics.keys()
    for topic, row in found.items():
        assert row["readQueues"] == topics[topic]["readQueueNums"]
        assert row["writeQueues"] == topics[topic]["writeQueueNums"]
        assert row["permission"] == topics[topic]["perm"]
        assert row["filterType"] == topics[topic]["topicFilterType"]
        assert dict(row["attributes"]) == topics[topic]["attributes"]
    groups = config(root, "subscriptionGroup.json")["subscriptionGroupTable"]
    for row in rows_of(root, "subscription_groups"):
        group = groups.pop(row["consumerGroup"])
        assert row["retryMaxTimes"] == group["retryMaxTimes"]
        assert row["consumeMessageOrderly"] == group["consumeMessageOrderly"]
    assert groups == {}


def test_state_in_databases_is_read(tmp_path: Path) -> None:
    root = golden.extract("rocksdb-cq-clean", tmp_path)
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    topics = {row["topic"] for row in rows_of(root, "topics")}
    assert {"GoldenPlain", "SCHEDULE_TOPIC_XXXX"} <= topics
    offsets = {(row["consumerGroup"], row["topic"]): row["lag"] for row in rows_of(root, "consumer_offsets")}
    assert offsets["golden_ok", "GoldenPlain"] == 0
    assert len(rows_of(root, "subscription_groups")) == 11
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before


@pytest.mark.parametrize("name", golden.golden_names)
def test_what_waits_for_its_time_is_found(name: str, tmp_path: Path) -> None:
    """Of the golden stores one message of two hours' delay was left; all others had come out."""
    root = golden.extract(name, tmp_path)
    (row,) = rows_of(root, "timer")
    (line,) = (
        line for line in golden.expected(name) if line["topic"] == "SCHEDULE_TOPIC_XXXX" and line["queueId"] == 17
    )
    assert row["topic"] == "GoldenDelay"
    assert row["queueId"] == int(line["properties"]["REAL_QID"])
    assert row["msgId"] == line["uniqKey"]
    assert (row["commitLogOffset"], row["size"]) == (line["physicalOffset"], line["storeSize"])
    due_ms = round(row["deliveryTimestamp"].timestamp() * 1000)
    assert due_ms - line["storeTimestamp"] == 7_200_000
    assert rows_of(root, "timer", subscribe="GoldenPlain") == []


def test_what_waits_and_has_no_record_is_told(tmp_path: Path) -> None:
    root = golden.extract("file-cq-clean", tmp_path)
    (row,) = rows_of(root, "timer")
    files = sorted((root / "commitlog").iterdir())
    log = max(path for path in files if int(path.name) <= row["commitLogOffset"])
    with log.open("r+b") as file:
        file.seek(row["commitLogOffset"] - int(log.name))
        file.write(bytes(4))
    with pytest.raises(CorruptStore, match=f"should be at {row['commitLogOffset']} of the log"):
        rows_of(root, "timer")
    assert rows_of(root, "timer", onCorrupt="skip") == []
    log.unlink()
    with pytest.raises(DataLost, match=r"1 delayed messages .*first at " f"{row['commitLogOffset']} "):
        rows_of(root, "timer")
    assert rows_of(root, "timer", failOnDataLoss="false") == []


def test_timers_that_have_not_come_out_are_found(tmp_path: Path) -> None:
    """As if the timer had stopped before it read its first second."""
    root = golden.extract("file-cq-clean", tmp_path)
    (root / "config" / "timercheck").write_bytes(bytes(4096))
    found = {row["msgId"]: row for row in rows_of(root, "timer")}
    waiting = {
        line["uniqKey"]: line for line in golden.expected("file-cq-clean") if line["topic"] == "rmq_sys_wheel_timer"
    }
    assert len(waiting) > 1
    assert found.keys() - waiting.keys() == {row["msgId"] for row in rows_of(root, "timer")[-1:]}
    for unique_key in waiting:
        row = found[unique_key]
        due_ms = round(row["deliveryTimestamp"].timestamp() * 1000)
        assert due_ms == int(waiting[unique_key]["properties"]["TIMER_OUT_MS"])
        assert not row["deleted"]


@pytest.mark.parametrize("keeps", [True, False])
def test_messages_of_levels_with_extended_queues_are_due_when_they_are(tmp_path: Path, *, keeps: bool) -> None:
    """Without its extension, it is known when they were stored."""
    root = golden.extract("extended-waiting", tmp_path)
    if not keeps:
        rmtree(root / "consumequeue_ext")
    rows = rows_of(root, "timer")
    assert [row["msgId"] for row in rows] == ["L0", "L1", "L2"]
    for row, due_ms in zip(rows, (1795883253807, 1795883253810, 1795883253813), strict=True):
        stated_ms = round(row["deliveryTimestamp"].timestamp() * 1000)
        assert stated_ms == due_ms - (0 if keeps else 7_200_000)


def test_columns_in_any_order(tmp_path: Path) -> None:
    logs.write(tmp_path / "s", [logs.Sent()] * 3)
    schema = pa.schema([TABLES["consume_queue"].field(name) for name in ("size", "broker")])
    reader = TableReader(parse({"path": str(tmp_path / "s"), "table": "consume_queue"}), schema)
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    size = oracle.log(tmp_path / "s", "")[0]["storeSize"]
    assert batch.to_pylist() == [{"size": size, "broker": "s"}] * 3


def test_tables_are_read_from_files() -> None:
    options = parse({"nameServer": "h:1", "table": "index"})
    with pytest.raises(ConfigError, match="table='index' is read from files, by option path"):
        TableReader(options, TABLES["index"])


@pytest.mark.parametrize("table", [name for name in TABLES if name != "messages"])
def test_an_empty_store_has_no_rows(table: str, tmp_path: Path) -> None:
    (tmp_path / "s" / "commitlog").mkdir(parents=True)
    assert rows_of(tmp_path / "s", table) == []
