"""What the log holds behind its queues is read as if these had it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from firearrow.client.queues import Bound, Queue
from firearrow.errors import CorruptStore, DataLost
from firearrow.spark.options import parse
from firearrow.spark.planning import stores
from firearrow.spark.planning.stretches import walk
from firearrow.spark.source.files import FileOrigin
from firearrow.store.offline import Layout, Selection, StoreView, find
from firearrow.store.rocks import RocksConsumeQueues
from tests import golden
from tests.loglines import told
from tests.spark import logs
from tests.spark.source.test_files import by_place, read
from tests.spark.source.test_storetables import rows_of
from tests.store.stores import KINDS, abandon, append, make_store, opened, settle

LINES = golden.expected("rocksdb-cq-clean")
ROW_NAMES = {
    "topic": "topic",
    "queueId": "queueId",
    "queueOffset": "queueOffset",
    "commitLogOffset": "physicalOffset",
    "storeSize": "storeSize",
    "flag": "flag",
    "reconsumeTimes": "reconsumeTimes",
    "preparedTransactionOffset": "preparedTransactionOffset",
    "offsetMsgId": "offsetMsgId",
    "msgId": "uniqKey",
}


def killed(directory: Path, part: float) -> Path:
    """The golden store as a broker leaves it that is killed: its database has only what was
    flushed, and the next file of the log was made ahead."""
    root = golden.extract("rocksdb-cq-clean", directory)
    places = sorted(line["physicalOffset"] for line in LINES)
    flushed(root, places[int(part * len(places))] if part else 0)
    files = sorted((root / "commitlog").iterdir())
    size = files[-1].stat().st_size
    (root / "commitlog" / f"{int(files[-1].name) + size:020d}").write_bytes(bytes(size))
    (root / "abort").touch()
    return root


def flushed(root: Path, end: int) -> None:
    """Have a database only the entries of records before a place."""
    if not end:
        shutil.rmtree(root / "consumequeue")
    queues = RocksConsumeQueues(root / "consumequeue", root / "elsewhere", "lz4")
    queues.load()
    if end:
        queues.cut(end)
        queues.flush(0)
    queues.close()


@pytest.mark.parametrize("part", [0, 0.3, 0.999])
@pytest.mark.parametrize("split", ["128m", "100k"])
def test_a_killed_database_has_what_the_java_client_read(part: float, split: str, tmp_path: Path) -> None:
    root = killed(tmp_path, part)
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    rows = by_place(read(root, splitBytes=split))
    lines = sorted(LINES, key=lambda line: line["physicalOffset"])
    assert [{name: row[name] for name in ROW_NAMES} for row in rows] == [
        {name: line[field] for name, field in ROW_NAMES.items()} for line in lines
    ]
    bodies = [hashlib.sha256(row["body"]).hexdigest() for row in rows]
    assert bodies == [line["bodySha256"] for line in lines]
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before


@pytest.mark.parametrize("part", [0, 0.5])
def test_the_tables_of_a_killed_database(part: float, tmp_path: Path) -> None:
    whole = golden.extract("rocksdb-cq-clean", tmp_path / "whole")
    root = killed(tmp_path / "killed", part)
    for table in ("consume_queue", "consumer_offsets", "timer"):
        expected = rows_of(whole, table)
        assert expected
        assert rows_of(root, table) == expected
    log: dict[str, Any] = {"visibility": "log", "splitBytes": "100k"}
    assert by_place(read(root, **log)) == by_place(read(whole, **log))


def test_a_killed_database_is_searched_like_a_whole_one(tmp_path: Path) -> None:
    whole = golden.extract("rocksdb-cq-clean", tmp_path / "whole")
    root = killed(tmp_path / "killed", 0.4)
    middle = sorted(line["storeTimestamp"] for line in LINES)[len(LINES) * 3 // 4]
    choices: list[dict[str, Any]] = [
        {"keys": " ".join(line["uniqKey"] for line in LINES[::30])},
        {"subscribe": "GoldenPlain"},
        {"startingTimestamp": str(middle), "startingOffsetsByTimestampStrategy": "latest"},
    ]
    for options in choices:
        expected = by_place(read(whole, **options))
        assert expected
        assert by_place(read(root, **options)) == expected
    for topic, queue_id in {(line["topic"], line["queueId"]) for line in LINES}:
        with StoreView(Layout.of(root)) as view:
            found = [message.queue_offset for message in find(view, Selection(topic, queue_id))]
        assert found == list(range(len(found)))
        assert len(found) == sum((x["topic"], x["queueId"]) == (topic, queue_id) for x in LINES)


@pytest.mark.parametrize("part", [0, 0.5])
def test_lmqs_of_a_killed_database(part: float, tmp_path: Path) -> None:
    root = golden.extract("light-rocksdb", tmp_path)
    places = [row["commitLogOffset"] for row in by_place(read(root, subscribe="Parent"))]
    with StoreView(Layout.of(root)) as view:
        names = {topic for topic, _ in view.queues if topic.startswith("%LMQ%")}
    choice = ",".join(["Parent", *names])
    whole = by_place(read(root, subscribe=choice))
    assert len(whole) > len(places)
    flushed(root, places[int(part * len(places))])
    (root / "abort").touch()
    assert by_place(read(root, subscribe=choice)) == whole
    assert len(read(root)) == len(read(golden.extract("light-rocksdb", tmp_path / "whole")))


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("split", ["3k", "1m"])
def test_queues_of_batches_that_end_before_the_log(left: int, split: str, tmp_path: Path) -> None:
    root = golden.extract("batch-queues", tmp_path)
    whole = by_place(read(root))
    for queue in (root / "batchconsumequeue" / "Bat").iterdir():
        for path in sorted(queue.iterdir())[left:]:
            path.unlink()
    (root / "abort").touch()
    assert by_place(read(root, splitBytes=split)) == whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dispatched", [0, 20])
def test_a_store_that_was_abandoned(kind: str, dispatched: int, tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = make_store(root, store_type=kind)
    store.open(background=False)
    for number in range(50):
        append(store, b"%d" % number, f"T{number % 3}", number % 2)
        if number + 1 == dispatched:
            settle(store)
            store.queues.flush(0)
    abandon(store)
    for split in ("1k", "1m"):
        for visibility in ("consumer", "log"):
            found = by_place(read(root, splitBytes=split, visibility=visibility))
            assert [row["body"] for row in found] == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_breaks_off_is_not_read(kind: str, tmp_path: Path) -> None:
    """Its process was killed while it was copied; a start cuts it."""
    root = tmp_path / "s"
    store = make_store(root, store_type=kind)
    store.open(background=False)
    for number in range(9):
        place = append(store, bytes([number]) * 300, properties={"KEYS": "k"})
    end = store.log.end_offset
    abandon(store)
    (path,) = [path for path in (root / "commitlog").iterdir() if path.name == f"{0:020d}"]
    data = path.read_bytes()
    for cut in (place + 120, end - 1):
        path.write_bytes(data[:cut] + bytes(len(data) - cut))
        for visibility in ("consumer", "log"):
            assert len(read(root, visibility=visibility)) == 8


def test_damage_behind_the_queues_is_told(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = make_store(root, store_type="defaultRocksDB")
    store.open(background=False)
    places = [append(store, bytes([number]) * 300) for number in range(9)]
    abandon(store)
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[places[4] : places[5]] = bytes(places[5] - places[4])
    path.write_bytes(data)
    with pytest.raises(CorruptStore, match=rf"at {places[4]} of the log .* next is at {places[5]}"):
        read(root)


def test_a_stream_looks_at_what_is_new_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[tuple[int, int]] = []

    def counted(storage: Any, stretch: Any, *, skip: bool) -> Any:
        for piece in walk(storage, stretch, skip=skip):
            walked.append((stretch.start, len(piece.columns)))
            yield piece

    monkeypatch.setattr(stores, "walk", counted)
    root = tmp_path / "s"
    queue = Queue("T", logs.BROKER, 0)
    with opened(root, background=False, store_type="defaultRocksDB") as store:
        origin = FileOrigin(parse({"path": str(root), "brokerName": logs.BROKER}))
        for number in range(5):
            for _ in range(4):
                append(store, bytes([number]) * 300)
            assert origin.bounds() == {queue: Bound(0, 4 * number + 4)}
        assert [count for _, count in walked] == [4] * 5
        settle(store)
        store.queues.flush(0)
        assert origin.bounds() == {queue: Bound(0, 20)}
        append(store, b"last")
        assert origin.bounds() == {queue: Bound(0, 21)}
        assert [count for _, count in walked] == [4] * 5 + [1]


def test_too_much_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    root = killed(tmp_path, 0.5)
    start = sorted(line["physicalOffset"] for line in LINES)[len(LINES) // 2]
    monkeypatch.setattr("firearrow.store.reading.undispatched.UNDISPATCHED_BYTES_MAX", 1000)
    with pytest.raises(DataLost, match=rf"the bytes {start} to \d+ of the log are not dispatched"):
        read(root)
    assert len(read(root, failOnDataLoss="false")) >= len(LINES) // 2
    assert "messages are skipped" in [line["event"] for line in told(caplog)]
