"""What the file source reads is what a plain loop over the bytes reads, however it is cut."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from firearrow.client.queues import Span
from firearrow.errors import ConfigError, CorruptStore, DataLost
from firearrow.message.sysflag import COMPRESSED
from firearrow.spark.options import parse
from firearrow.spark.planning import shortqueues
from firearrow.spark.source.datasource import MessageReader
from firearrow.spark.source.files import FileOrigin
from firearrow.spark.source.filters import NumberSet, PushedFilters
from firearrow.spark.source.stream import StreamReader
from firearrow.spark.tables import DECLARED, MESSAGES, PROPERTIES_MAP
from firearrow.store.batchqueue import UNIT_BYTES
from firearrow.store.reading.storage import LocalStorage
from tests import golden
from tests.spark import logs, oracle

EXAMPLES = settings.default.max_examples // 2 if settings.default else 50
WITH_MAP = MESSAGES.set(MESSAGES.get_field_index("properties"), pa.field("properties", PROPERTIES_MAP))


@pytest.fixture(scope="module", autouse=True, params=[0, 1 << 50], ids=["opened", "carried"])
def in_both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tasks open their queues, or carry the entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shortqueues, "OPENING", request.param)
        yield


def read(
    root: Path | str, schema: pa.Schema = DECLARED["messages"], narrow: PushedFilters | None = None, **options: Any
) -> list[dict[str, Any]]:
    """All rows that the options choose, as Spark would have them read, also those of the broker's own topics."""
    given = {"path": str(root), "brokerName": logs.BROKER, "systemTopics": "true", **options}
    reader = MessageReader(parse(given), schema)
    reader.narrow = narrow
    rows: list[dict[str, Any]] = []
    for task in reader.partitions():
        for batch in reader.read(task):
            assert batch.schema.equals(schema)
            batch.validate(full=True)
            assert all(not array.null_count for array in required(batch))
            rows += batch.to_pylist()
    return rows


def required(batch: pa.RecordBatch) -> list[pa.Array]:
    """The columns that always hold a value; Spark does not look whether they do."""
    return [batch.column(n) for n, field in enumerate(batch.schema) if not field.nullable]


def by_place(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (int(row["commitLogOffset"]), int(row["queueOffset"])))


def columns(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for row in rows]


@given(
    sent=logs.stores, split=st.sampled_from(["1", "150", "700", "4k", "1m"]), batch=st.sampled_from(["1", "500", "4m"])
)
def test_any_store_is_read_as_the_loop_reads_it(sent: list[logs.Sent], split: str, batch: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        root = Path(home) / "store"
        logs.write(root, sent)
        found = by_place(read(root, splitBytes=split, batchBytes=batch))
        assert found == columns(oracle.visible(root, logs.BROKER), MESSAGES.names)


@settings(max_examples=EXAMPLES)
@given(sent=logs.stores, split=st.sampled_from(["1", "150", "700", "4k", "1m"]), ending=st.sampled_from(logs.ENDINGS))
def test_any_log_is_walked_as_the_loop_walks_it(sent: list[logs.Sent], split: str, ending: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        root = Path(home) / "store"
        logs.write(root, sent, ending=ending)
        found = by_place(read(root, visibility="log", splitBytes=split))
        assert found == columns(oracle.log(root, logs.BROKER), MESSAGES.names)


@given(sent=logs.stores, names=st.lists(st.sampled_from(MESSAGES.names), min_size=1, unique=True), as_map=st.booleans())
def test_any_columns_in_any_order(sent: list[logs.Sent], names: list[str], as_map: bool) -> None:
    schema = pa.schema([(WITH_MAP if as_map else MESSAGES).field(name) for name in names])
    with tempfile.TemporaryDirectory() as home:
        root = Path(home) / "store"
        logs.write(root, sent)
        expected = columns(oracle.visible(root, logs.BROKER), [*names, "map"])
        for row in expected:
            properties = row.pop("map")
            if as_map and "properties" in names:
                row["properties"] = properties
        found = read(root, schema)
        for row in found:
            if as_map and "properties" in names:
                assert len(row["properties"]) == len(dict(row["properties"]))
                row["properties"] = dict(row["properties"])
        assert found == expected


@pytest.mark.parametrize("name", [*golden.golden_names, "batch-queues"])
@pytest.mark.parametrize("split", ["128m", "3k"])
def test_golden_stores_hold_what_the_java_client_read(name: str, split: str, tmp_path: Path) -> None:
    root = golden.extract(name, tmp_path)
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    found = read(root, WITH_MAP, splitBytes=split, decompress="true")
    rows = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in found}
    assert len(rows) == len(found)
    expected = golden.expected(name)
    assert len(expected) == len(found)
    for line in expected:
        row = rows[line["topic"], line["queueId"], line["queueOffset"]]
        properties = dict(row["properties"])
        assert properties == {
            key: value for key, value in line["properties"].items() if key not in golden.ADDED_BY_CLIENT
        }
        assert hashlib.sha256(row["body"]).hexdigest() == line["bodySha256"]
        assert row["commitLogOffset"] == line["physicalOffset"]
        assert row["msgId"] == line["uniqKey"]
        # The client gives the messages of an inner batch no such id.
        assert line["offsetMsgId"] in (row["offsetMsgId"], None)
        assert row["sysFlag"] & ~COMPRESSED == line["sysFlag"]
        assert row["bornTimestamp"].timestamp() * 1000 == pytest.approx(line["bornTimestamp"])
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before


def test_a_broker_is_named_by_its_store(tmp_path: Path) -> None:
    root = golden.extract("rocksdb-cq-clean", tmp_path)
    options = parse({"path": str(root)})
    assert {queue.broker for queue in FileOrigin(options).bounds()} == {"broker-g"}


def test_several_stores_are_one_table(tmp_path: Path) -> None:
    for name in ("a", "b"):
        logs.write(tmp_path / name, [logs.Sent(body=name.encode())] * 3)
    schema = pa.schema([MESSAGES.field("broker"), MESSAGES.field("body")])
    options = parse({"paths": f'["{tmp_path / "a"}", "{tmp_path / "b"}"]'})
    reader = MessageReader(options, schema)
    rows = [
        tuple(row.values()) for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()
    ]
    assert sorted(rows) == [("a", b"a")] * 3 + [("b", b"b")] * 3


def test_two_stores_of_one_broker_are_refused(tmp_path: Path) -> None:
    for name in ("x/store", "y/store"):
        logs.write(tmp_path / name, [logs.Sent()])
    paths = f'["{tmp_path}/x/store", "{tmp_path}/y/store"]'
    with pytest.raises(ConfigError, match="are both of broker 'store'"):
        MessageReader(parse({"paths": paths}), MESSAGES).partitions()


@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        ({"subscribe": "a"}, [b"a0", b"a1"]),
        ({"subscribePattern": "a|b"}, [b"a0", b"a1", b"b0"]),
        ({"assign": '{"a": {"broker-t": [1]}}'}, [b"a1"]),
        ({"tags": "B || C"}, [b"a1", b"b0"]),
        ({"keys": "k2 id0"}, [b"a0", b"b0"]),
        ({"startingOffsets": '{"c": {"broker-t": {"0": 1}}}', "subscribe": "c"}, [b"c1"]),
        ({"startingTimestamp": str(logs.START_MS + 4)}, [b"c0", b"c1"]),
        ({"endingTimestamp": str(logs.START_MS + 2)}, [b"a0"]),
        ({"startingTimestamp": json.dumps({"c": {"broker-t": {"0": logs.START_MS + 5}}})},
         [b"a0", b"a1", b"b0", b"c1"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("visibility", ["consumer", "log"])
def test_options_choose(options: dict[str, Any], bodies: list[bytes], visibility: str, tmp_path: Path) -> None:
    sent = [
        logs.Sent("a", 0, b"a0", b"TAGS\x01A\x02UNIQ_KEY\x01id0\x02"),
        logs.Sent("a", 1, b"a1", b"TAGS\x01B\x02KEYS\x01k1 k3\x02"),
        logs.Sent("b", 0, b"b0", b"TAGS\x01C\x02KEYS\x01k1 k2\x02"),
        logs.Sent("c", 0, b"c0"),
        logs.Sent("c", 0, b"c1"),
    ]
    logs.write(tmp_path / "s", sent)
    of_queues = "startingOffsets" in options or "{" in options.get("startingTimestamp", "")
    if visibility == "log" and of_queues:
        with pytest.raises(ConfigError, match="visibility=log"):
            read(tmp_path / "s", visibility="log", **options)
        return
    if "startingTimestamp" in options:
        options = {**options, "startingOffsetsByTimestampStrategy": "latest"}
    found = read(tmp_path / "s", visibility=visibility, **options)
    assert [row["body"] for row in by_place(found)] == bodies


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({}, {"a", "%RETRY%g"}),
        ({"systemTopics": "true"}, {"a", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"}),
        ({"subscribePattern": ".*_.*"}, set()),
        ({"subscribePattern": ".*_.*", "systemTopics": "true"}, {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"}),
        ({"subscribe": "a, SCHEDULE_TOPIC_XXXX"}, {"a", "SCHEDULE_TOPIC_XXXX"}),
        ({"assign": '{"rmq_sys_wheel_timer": {"broker-t": [0]}}'}, {"rmq_sys_wheel_timer"}),
    ],
)
def test_topics_of_the_broker_itself_are_read_if_asked(
    options: dict[str, str], topics: set[str], tmp_path: Path
) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(topic) for topic in ("a", "SCHEDULE_TOPIC_XXXX", "%RETRY%g", "rmq_sys_wheel_timer")])
    given: dict[str, Any] = {"systemTopics": "false", **options}
    found = read(root, **given)
    assert {row["topic"] for row in found} == topics
    streamed = parse({"path": str(root), "brokerName": logs.BROKER, "startingOffsets": "earliest", **options})
    stream = StreamReader(streamed, MESSAGES)
    start = stream.initialOffset()
    tasks = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    assert {row["topic"] for task in tasks for batch in stream.read(task) for row in batch.to_pylist()} == topics
    if "assign" not in options and "subscribe" not in options:
        every = read(root, visibility="log", **given)
        assert topics <= {row["topic"] for row in every} >= {"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"}


def test_a_topic_that_is_nowhere_is_named(tmp_path: Path) -> None:
    logs.write(tmp_path / "s", [logs.Sent("orders")])
    with pytest.raises(ConfigError, match=r"topic 'order' is in none of the stores, .* orders$"):
        read(tmp_path / "s", subscribe="order")


def test_a_path_without_a_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"path='.*/nowhere': the directory does not exist"):
        read(tmp_path / "nowhere")
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").write_text("")
    with pytest.raises(ConfigError, match="not a store"):
        read(tmp_path / "else")
    with pytest.raises(ConfigError, match="path='nosuch://x/y'"):
        read("nosuch://x/y")


def test_any_file_system_will_do(tmp_path: Path) -> None:
    logs.write(tmp_path / "s t", [logs.Sent(body=bytes([n])) for n in range(30)])
    found = read(f"file://{tmp_path}/s%20t", splitBytes="1k")
    assert [row["body"] for row in by_place(found)] == [bytes([n]) for n in range(30)]


def damaged(root: Path, at: int, data: bytes) -> None:
    path = root / "commitlog" / f"{0:020d}"
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


@pytest.mark.parametrize("visibility", ["consumer", "log"])
@pytest.mark.parametrize("split", ["1", "1m"])
def test_a_damaged_record_is_an_error_or_left_out(visibility: str, split: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=bytes([n])) for n in range(9)])
    size = oracle.log(root, "")[0]["storeSize"]
    damaged(root, 4 * size + 4, b"\0\0\0\0")
    with pytest.raises(CorruptStore, match=rf"at {4 * size} of the log .*onCorrupt=skip"):
        read(root, visibility=visibility, splitBytes=split)
    found = read(root, visibility=visibility, splitBytes=split, onCorrupt="skip")
    assert [row["body"][0] for row in by_place(found)] == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize(("at", "data"), [(0, b"\x7f"), (24, b"\x09"), (28, b"\x01"), (84, b"\x7f"), (90, b"X")])
def test_a_record_that_is_another_is_damaged(at: int, data: bytes, tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=b"b") for n in range(3)])
    size = oracle.log(root, "")[0]["storeSize"]
    damaged(root, size + at, data)
    with pytest.raises(CorruptStore, match=rf"at {size} of the log is not the message 1 of topic"):
        read(root)
    assert len(read(root, onCorrupt="skip")) == 2


def test_bodies_are_checked_if_asked(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=b"12345678") for n in range(3)])
    damaged(root, 88, b"X")
    assert len(read(root)) == 3
    with pytest.raises(CorruptStore, match="at 0 of the log is damaged: its body has another CRC"):
        read(root, verifyCrc="true")
    assert len(read(root, verifyCrc="true", onCorrupt="skip")) == 2


def test_bodies_that_do_not_decompress_are_damage(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=b"1" * 100, kind=3) for n in range(3)])
    damaged(root, 92, b"XX")
    assert len(read(root, decompress="false")) == 3
    assert len(read(root, pa.schema([MESSAGES.field("topic")]))) == 3
    with pytest.raises(CorruptStore, match="not a whole ZLIB stream"):
        read(root)
    assert [row["body"] for row in read(root, onCorrupt="skip")] == [b"1" * 100] * 2


@pytest.mark.parametrize(("kind", "module"), [(1, "lz4.frame"), (2, "zstandard")])
def test_a_missing_package_is_no_damage(
    kind: int, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing skips a sound message because this machine lacks a package."""
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(), logs.Sent(kind=kind), logs.Sent()])
    monkeypatch.setitem(sys.modules, module, None)
    lenient: dict[str, Any] = {"onCorrupt": "skip", "failOnDataLoss": "false"}
    for options in ({}, lenient, {**lenient, "visibility": "log"}):
        with pytest.raises(ConfigError, match=r"^the body needs \w+: pip install"):
            read(root, **options)
    assert len(read(root, decompress="false")) == 3


def test_without_rocksdb_no_queue_counts_as_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden.extract("rocksdb-cq-clean", tmp_path)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigError, match="RocksDB needs rocksdict: pip install"):
        read(root, onCorrupt="skip", failOnDataLoss="false")


def test_what_retention_has_deleted_is_told(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=b"x" * 400) for n in range(40)])
    options = parse({"path": str(root)})
    origin = FileOrigin(options)
    (queue,) = origin.bounds()
    tasks = MessageReader(options, MESSAGES).partitions()
    (root / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLost, match="has deleted"):
        list(MessageReader(options, MESSAGES).read(tasks[0]))
    assert FileOrigin(options).bounds()[queue].earliest > 0
    lenient = parse({"path": str(root), "failOnDataLoss": "false"})
    rest = sum(batch.num_rows for batch in MessageReader(lenient, MESSAGES).read(tasks[0]))
    bound = FileOrigin(options).bounds()[queue]
    assert rest == bound.latest - bound.earliest


SIXTY = [logs.Sent(topic="TU"[n % 2], body=b"%d" % n) for n in range(60)]


def sixty(directory: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A store of sixty messages whose log has five files, and all of its rows."""
    root = directory / "s"
    logs.write(root, SIXTY, 1200)
    return root, by_place(read(root))


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


@pytest.mark.parametrize("split", ["1", "1m"])
@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ([2], r"commitlog has no file with the bytes 2400 to 3599 of the log, where \d+ of them"),
        ([1, 2], "no file with the bytes 1200 to 3599"),
        ([-1], r"the log in .* ends at 4800, and \d+ of them were behind"),
        ([-3, -1], "no file with the bytes 2400 to 3599"),
        ([-2, -1], "ends at 3600"),
        ([0, 1, 2, 3, 4], "ends at 0"),
    ],
)
def test_files_of_the_log_that_are_missing_are_told(missing: list[int], text: str, split: str, tmp_path: Path) -> None:
    root, whole = sixty(tmp_path)
    files = log_files(root)
    assert len(files) == 5
    gone = {n % len(files) for n in missing}
    for number in gone:
        files[number].unlink()
    for choice in ("fail", "skip"):
        with pytest.raises(DataLost, match=rf"{text}.*\(failOnDataLoss=false skips them"):
            read(root, splitBytes=split, onCorrupt=choice)
    found = by_place(read(root, splitBytes=split, failOnDataLoss="false"))
    assert found == [row for row in whole if row["commitLogOffset"] // 1200 not in gone]


def test_a_log_with_a_file_missing_is_told(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, SIXTY, 1200)
    whole = by_place(read(root, visibility="log"))
    log_files(root)[2].unlink()
    with pytest.raises(DataLost, match="no file with the bytes 2400 to 3599 of the log"):
        read(root, visibility="log")
    found = by_place(read(root, visibility="log", failOnDataLoss="false"))
    assert found == [row for row in whole if row["commitLogOffset"] // 1200 != 2]
    late = PushedFilters(physical_offset=NumberSet(low=3600))  # a query that has no need of it
    assert read(root, visibility="log", narrow=late)[0]["commitLogOffset"] == 3600


@pytest.mark.parametrize("split", ["1", "1m"])
@pytest.mark.parametrize("numbers", [[0], [7], [7, 8], [3, 28]])
@pytest.mark.parametrize("place", [1200 * 5, 1 << 40, (1 << 63) - 1])
def test_entries_that_point_behind_the_log_are_damaged(
    numbers: list[int], place: int, split: str, tmp_path: Path
) -> None:
    root, whole = sixty(tmp_path)
    for number in numbers:
        placed(root, number, place)
    options: dict[str, Any] = {"splitBytes": split, "subscribe": "T"}
    with pytest.raises(CorruptStore, match=r"queue 0 of topic 'T' points beyond .* ends at 6000"):
        read(root, **options)
    with pytest.raises(CorruptStore, match="onCorrupt=skip"):
        read(root, failOnDataLoss="false", **options)
    found = by_place(read(root, onCorrupt="skip", **options))
    rest = [row for row in whole if row["topic"] == "T" and row["queueOffset"] not in numbers]
    assert found == rest


def placed(root: Path, number: int, place: int) -> None:
    """Have an entry of the queue of T, which has 8 in a file, say another place."""
    path = root / "consumequeue" / "T" / "0" / f"{number // 8 * 160:020d}"
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, number % 8 * 20, place)
    path.write_bytes(data)


def test_damage_and_loss_behind_the_log_are_told_apart(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, SIXTY, 1200)
    placed(root, 7, 1 << 40)
    log_files(root)[-1].unlink()
    with pytest.raises(CorruptStore, match="message 7 in queue 0"):
        read(root)
    with pytest.raises(DataLost, match="ends at 4800"):
        read(root, onCorrupt="skip")
    found = read(root, onCorrupt="skip", failOnDataLoss="false")
    assert {row["commitLogOffset"] // 1200 for row in found} == {0, 1, 2, 3}
    assert 7 not in {row["queueOffset"] for row in found if row["topic"] == "T"}


def test_nothing_contradicts_the_last_entry(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, SIXTY, 1200)
    placed(root, 29, 1 << 40)
    with pytest.raises(DataLost, match="ends at 6000, and 1 of them were behind"):
        read(root)
    assert len(read(root, failOnDataLoss="false")) == 59


def test_files_that_retention_deletes_while_bounds_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.write(tmp_path, [logs.Sent(body=b"%04d" % number) for number in range(200)])
    (tmp_path / "abort").touch()
    files = sorted((tmp_path / "commitlog").iterdir())
    window = LocalStorage.window

    def deletes(self: LocalStorage, path: str, start: int, end: int) -> memoryview:
        if path.startswith("commitlog/") and files:
            files.pop(0).unlink()
            del files[1:]  # two looks meet a deletion
        return window(self, path, start, end)

    whole = FileOrigin(parse({"path": str(tmp_path)})).bounds()
    monkeypatch.setattr(LocalStorage, "window", deletes)
    (bound,) = FileOrigin(parse({"path": str(tmp_path)})).bounds().values()
    assert files == []
    assert [bound.latest] == [known.latest for known in whole.values()]
    assert bound.earliest > 0


def test_a_log_that_grows_meanwhile_has_lost_nothing(tmp_path: Path) -> None:
    root, options = tmp_path / "s", parse({"path": str(tmp_path / "s")})
    logs.write(root, SIXTY[:40], 1200)
    tasks = MessageReader(options, MESSAGES).partitions()
    shutil.rmtree(root)
    logs.write(root, SIXTY, 1200)
    (root / "commitlog" / f"{1200 * 5:020d}").write_bytes(bytes(1200))  # the next, made in advance
    rows = [batch.num_rows for task in tasks for batch in MessageReader(options, MESSAGES).read(task)]
    assert sum(rows) == 40
    assert len(read(root)) == 60


def test_what_has_no_entry_is_in_the_log_alone(tmp_path: Path) -> None:
    root = tmp_path / "s"
    sent = [logs.Sent(body=bytes([n])) for n in range(5)]
    logs.write(root, [*sent, logs.Sent(body=b"half", is_visible=False)])
    for _ in range(2):
        assert len(read(root)) == 5
        assert len(read(root, visibility="log")) == 6
        (root / "abort").write_text("1")


def test_entries_that_repeat_the_next_message_count_once(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=bytes([n])) for n in range(5)])
    path = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:20] + data[40:60] + data[40:])
    for split in ("1", "1m"):
        assert [row["queueOffset"] for row in by_place(read(root, splitBytes=split))] == [0, 2, 3, 4]
        stops = json.dumps({"T": {logs.BROKER: {"0": 2}}})
        assert [row["queueOffset"] for row in read(root, splitBytes=split, endingOffsets=stops)] == [0]


def test_lmqs_are_read_where_they_are_named(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=bytes([n])) for n in range(5)])
    lmq = root / "consumequeue" / "%LMQ%l" / "0"
    lmq.mkdir(parents=True)
    data = (root / "consumequeue" / "T" / "0" / f"{0:020d}").read_bytes()
    (lmq / f"{0:020d}").write_bytes(data[20:60] + bytes(100))
    assert len(read(root)) == 5
    assert [row["queueOffset"] for row in read(root, subscribe="%LMQ%l")] == [1, 2]
    assert len(read(root, subscribe="T,%LMQ%l")) == 7


def test_times_are_found_in_the_log(tmp_path: Path) -> None:
    root = tmp_path / "s"
    logs.write(root, [logs.Sent(body=b"x" * 300, step_ms=10) for n in range(40)], 1500)
    origin = FileOrigin(parse({"path": str(root)}))
    (queue,) = origin.bounds()
    for number in (0, 1, 7, 39):
        stored = logs.START_MS + 10 * (number + 1)
        assert origin.offset_at(queue, stored) == number
        assert origin.offset_at(queue, stored - 9) == number
    assert origin.offset_at(queue, stored + 1) is None


@pytest.mark.parametrize("name", [*golden.golden_names, "batch-queues"])
def test_a_time_is_found_in_all_queues_at_once(name: str, tmp_path: Path) -> None:
    origin = FileOrigin(parse({"path": str(golden.extract(name, tmp_path)), "systemTopics": "true"}))
    times = sorted(line["storeTimestamp"] for line in golden.expected(name))
    spans = {q: Span(b.earliest, b.latest) for q, b in origin.bounds().items()}
    for moment in (0, *times[::50], times[-1], times[-1] + 1):
        one_by_one = {queue: origin.offset_at(queue, moment) for queue in spans}
        assert origin.offsets_at(spans, moment) == {
            queue: spans[queue].end if found is None else found for queue, found in one_by_one.items()
        }


def test_the_log_has_inner_batches_as_they_are_stored(tmp_path: Path) -> None:
    root = golden.extract("batch-queues", tmp_path)
    rows = by_place(read(root, visibility="log"))
    shown = golden.expected("batch-queues")
    first = {m["physicalOffset"]: m["queueOffset"] for m in reversed(shown)}
    assert {row["commitLogOffset"]: row["queueOffset"] for row in rows} == first
    assert len(rows) == 30
    assert sum(row["sysFlag"] == 0xC0 for row in rows) == 25
    assert rows == by_place(read(root, visibility="log", splitBytes="30k"))
    (root / "abort").touch()
    assert rows == by_place(read(root, visibility="log"))


@pytest.mark.parametrize("options", [{}, {"verifyCrc": "true"}, {"batchBytes": "1"}])
def test_ranges_of_offsets_have_the_messages_of_inner_batches(options: dict[str, Any], tmp_path: Path) -> None:
    root = golden.extract("batch-queues", tmp_path)
    whole = by_place(read(root, **options))
    assert len(whole) == 80
    parts: list[dict[str, Any]] = []
    for start, end in ((0, 6), (6, 7), (7, 33), (33, 45)):
        ends = json.dumps({"Bat": {logs.BROKER: {"0": start, "1": min(start, 35)}}})
        stops = json.dumps({"Bat": {logs.BROKER: {"0": end, "1": min(end, 35)}}})
        found = read(root, startingOffsets=ends, endingOffsets=stops, **options)
        assert all(start <= row["queueOffset"] < end for row in found)
        parts += found
    assert by_place(parts) == whole


@pytest.mark.parametrize("name", ["tags", "keys"])
def test_messages_of_inner_batches_are_chosen_by_their_own_properties(name: str, tmp_path: Path) -> None:
    root = golden.extract("batch-queues", tmp_path)
    wanted = read(root)[17][name]
    found = read(root, **{name: wanted})
    assert by_place(found) == [row for row in by_place(read(root)) if row[name] == wanted]
    narrow = PushedFilters(tags=frozenset([wanted])) if name == "tags" else PushedFilters(words=frozenset([wanted]))
    assert by_place(read(root, narrow=narrow)) == by_place(read(root))  # a query filters again


def test_an_inner_batch_that_is_none(tmp_path: Path) -> None:
    root = golden.extract("batch-queues", tmp_path)
    whole = read(root)
    (log,) = sorted((root / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    place = next(row["commitLogOffset"] for row in whole if row["queueOffset"] == 10)
    data[place + 88 : place + 92] = (7).to_bytes(4, "big")  # the size of its first message
    log.write_bytes(data)
    with pytest.raises(CorruptStore, match=f"{place} of the log is damaged: size"):
        read(root)
    with pytest.raises(CorruptStore, match=f"{place} of the log is damaged: its body has another"):
        read(root, verifyCrc="true")
    left = [row for row in by_place(whole) if row["commitLogOffset"] != place]
    assert by_place(read(root, onCorrupt="skip")) == left
    assert by_place(read(root, onCorrupt="skip", verifyCrc="true")) == left


@pytest.mark.parametrize("number", [0, 5, 9, 12])
def test_a_damaged_unit_of_a_queue_of_batches_is_told(tmp_path: Path, number: int) -> None:
    root = golden.extract("batch-queues", tmp_path)
    places = {row["commitLogOffset"] for row in read(root)}
    file_number, at = divmod(number * UNIT_BYTES, 460)
    path = root / "batchconsumequeue/Bat/0" / f"{file_number * 460:020d}"
    data = path.read_bytes()
    (place,) = struct.unpack_from(">q", data, at)
    path.write_bytes(data[:at] + bytes(UNIT_BYTES) + data[at + UNIT_BYTES :])
    lost = r"queue 0 of topic 'Bat' .* no longer has \d+ of the messages 0 to 44"
    behind = " \\(" if number else ", it has from "
    with pytest.raises(DataLost, match=lost + behind):
        read(root)
    found = {row["commitLogOffset"] for row in read(root, failOnDataLoss="false")}
    assert places - found == {place}
    path.write_bytes(data[:at] + struct.pack(">q", 1 << 40) + data[at + 8 :])
    for split in ("1", "1m"):
        with pytest.raises(CorruptStore, match="in queue 0 of topic 'Bat' points beyond the log"):
            read(root, splitBytes=split)
        rows = read(root, splitBytes=split, onCorrupt="skip")
        assert places - {row["commitLogOffset"] for row in rows} == {place}


def test_a_task_imports_no_broker_and_no_tools() -> None:
    """Each worker of Spark imports this again."""
    code = "import sys, firearrow.spark.jobs.reports.reading; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    heavy = {"asyncio", "firearrow.store.engine", "firearrow.store.offline"}
    assert not heavy & set(ran.stdout.split())
