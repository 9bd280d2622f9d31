"""A store's messages are the same to a broker, to the offline tools and to Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from firearrow.errors import CorruptStore, DataLost
from firearrow.message.names import is_lmq
from firearrow.message.record import iter_records
from firearrow.spark.options import parse
from firearrow.spark.source.datasource import MessageReader
from firearrow.spark.tables import DECLARED
from firearrow.store.config import StoreConfig, StoreType
from firearrow.store.offline import Layout, Selection, StoreView, find, verify
from firearrow.store.queues import ENTRY, ENTRY_BYTES
from tests import golden
from tests.spark import logs
from tests.store.offline.damage import write
from tests.store.offline.test_never_worse import QUEUES, SIZES, Whole, damaged
from tests.store.stores import GOLDEN_SIZES, KINDS, append, opened, settle

Row = tuple[str, int, int]
"""Topic, queue id and physical offset of a record that a queue leads to."""

MEBIBYTE = {"mapped_file_size_commit_log": 1 << 20, "enable_lmq": True, "enable_multi_dispatch": True}
STORES = {
    **dict.fromkeys(("file-cq-clean", "file-cq-killed", "waiting"), GOLDEN_SIZES),
    "rocksdb-cq-clean": GOLDEN_SIZES | {"store_type": "defaultRocksDB"},
    "light-rocksdb": MEBIBYTE | {"store_type": "defaultRocksDB"},
    **dict.fromkeys(("extended-queues", "light-file"), MEBIBYTE),
    "batch-queues": MEBIBYTE | {"enable_multi_dispatch": False},
}


def seen_by_tools(root: Path) -> set[Row]:
    with StoreView(Layout(root)) as view:
        return {
            (topic, queue_id, message.physical_offset)
            for topic, queue_id in list(view.queues)
            for message in find(view, Selection(topic=topic, queue_id=queue_id))
        }


def seen_by_spark(root: Path) -> set[Row]:
    with StoreView(Layout(root)) as view:
        keys = list(view.queues)
    return {(topic, queue_id, place) for topic, queue_id in keys for place in read_by_spark(root, topic, queue_id)}


def read_by_spark(root: Path, topic: str, queue_id: int) -> list[int]:
    """Return the offsets of the records that a query of one queue reads; it skips damaged ones."""
    skip = {"onCorrupt": "skip", "failOnDataLoss": "false"}
    assign = json.dumps({topic: {logs.BROKER: [queue_id]}})
    options = parse({"path": str(root), "brokerName": logs.BROKER, "assign": assign} | skip)
    reader = MessageReader(options, DECLARED["messages"])
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    told = {told for batch in batches for told in batch["queueId"].to_pylist()}
    assert is_lmq(topic) or told <= {queue_id}
    return [place for batch in batches for place in batch["commitLogOffset"].to_pylist()]


def seen_by_a_broker(root: Path, options: dict[str, Any], keys: Iterable[tuple[str, int]] = ()) -> set[Row]:
    """Return the records that pulls of some or all queues read; afterwards the store is a broker's."""
    with StoreView(Layout(root)) as view:
        keys = list(keys) or list(view.queues)
    found: set[Row] = set()
    with opened(root, **options) as store:
        for topic, queue_id in keys:
            at, end = store.min_queue_offset(topic, queue_id), -1
            while at != end:
                end, pulled = at, store.get(topic, queue_id, at, 32)
                places = (record.physical_offset for record in iter_records(pulled.records))
                found |= {(topic, queue_id, place) for place in places}
                at = max(at, pulled.next_offset)
    return found


@pytest.mark.parametrize("name", STORES)
def test_all_see_the_same_messages_in_a_store_of_the_original(name: str, tmp_path: Path) -> None:
    root = golden.extract(name, tmp_path)
    by_tools, by_spark = seen_by_tools(root), seen_by_spark(root)
    assert by_tools == by_spark
    assert len(by_tools) >= 30
    assert by_tools == seen_by_a_broker(root, dict(STORES[name]))


def entries(root: Path) -> dict[tuple[str, int], bytes]:
    """Return the entries of each queue, up to its end."""
    with StoreView(Layout(root)) as view:
        return {key: queue.read(*queue.span) for key, queue in view.queues.items()}


@pytest.fixture(scope="module", params=["default", "defaultRocksDB"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole") / "store", request.param)


@pytest.mark.parametrize("seed", range(60))
def test_all_see_the_same_messages_in_a_damaged_store(whole: Whole, seed: int, tmp_path: Path) -> None:
    root = damaged(whole, tmp_path / "store", seed)
    require_same(root, whole.kind, may_refuse=True)


@pytest.mark.parametrize(
    ("at", "value", "is_given"),
    [(12, 77, True), (12, -1, True), (52, 1 << 16, False), (68, -1, False), (68, 65535, True)],
    ids=["queue id", "negative queue id", "born port", "store port", "highest port"],
)
def test_a_message_counts_if_clients_can_read_it(
    whole: Whole, at: int, value: int, is_given: bool, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(whole.root, root)
    place = whole.places[7][0]
    write(root / "commitlog", f"{0:020d}", place + at, value.to_bytes(4, "big", signed=True))
    lost = seen_by_tools(whole.root) - require_same(root, whole.kind)
    assert lost == (set() if is_given else {("A", 1, place)})


@pytest.mark.parametrize("seed", [30, 34])
def test_tools_and_spark_agree_where_a_broker_refuses_to_start(whole: Whole, seed: int, tmp_path: Path) -> None:
    root = damaged(whole, tmp_path / "store", seed)
    assert seen_by_tools(root) == seen_by_spark(root) < seen_by_tools(whole.root)
    with pytest.raises(CorruptStore), opened(root, store_type=whole.kind, **SIZES):
        pass


def require_same(root: Path, kind: str, *, may_refuse: bool = False) -> set[Row]:
    """Return the records that all readers see.

    A broker sees more if its start has mended a queue, and may refuse to start.
    """
    by_tools, by_spark = seen_by_tools(root), seen_by_spark(root)
    assert by_tools == by_spark
    before = entries(root)
    try:
        by_broker = seen_by_a_broker(root, {"store_type": kind, **SIZES})
    except CorruptStore:
        assert may_refuse
        return by_tools
    assert by_tools <= by_broker
    assert entries(root) != before or by_tools == by_broker
    return by_tools


@pytest.mark.parametrize("whole", ["default"], indirect=True)
@pytest.mark.parametrize("wrong", [(1, 0), (0, 1), (0, -300), (1 << 40, 0)])
def test_an_entry_leads_only_to_the_record_that_it_means(whole: Whole, wrong: tuple[int, int], tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(whole.root, root)
    path = root / f"consumequeue/A/1/{0:020d}"
    data = bytearray(path.read_bytes())
    physical, size, code = ENTRY.unpack_from(data, 7 * ENTRY_BYTES)
    ENTRY.pack_into(data, 7 * ENTRY_BYTES, physical + wrong[0], size + wrong[1], code)
    path.write_bytes(data)
    assert seen_by_tools(whole.root) - require_same(root, "default") == {("A", 1, physical)}


def write_attribute(root: Path, topic: str, kind: str | None) -> None:
    (root / "config").mkdir(exist_ok=True)
    config = {"topicName": topic} | ({"attributes": {"queue.type": kind}} if kind else {})
    (root / "config/topics.json").write_text(json.dumps({"topicConfigTable": {topic: config}}))


@pytest.mark.parametrize("killed", [False, True])
def test_usual_queues_of_a_topic_with_batches_do_not_count(killed: bool, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root, **SIZES) as store:
        places = {append(store, b"body", "A", 1) for _ in range(30)}
        settle(store)
    write_attribute(root, "A", "BatchCQ")
    if killed:  # then all that queues lack is dispatched on the fly
        (root / "abort").touch()
        assert set(read_by_spark(root, "A", 1)) == places
    else:
        options = parse({"path": str(root), "brokerName": logs.BROKER, "subscribe": "A"})
        with pytest.raises(DataLost, match=r"queue 1 of topic 'A'.* 30 messages .*store rebuild"):
            MessageReader(options, DECLARED["messages"]).partitions()
        assert read_by_spark(root, "A", 1) == []
    with StoreView(Layout(root)) as view:
        assert not view.queues
        found = find(view, Selection(topic="A", queue_id=1))
        assert {message.physical_offset for message in found} == places  # the log is read
    seen = seen_by_a_broker(root, SIZES | {"wants_batches": {"A"}.__contains__}, [("A", 1)])
    assert {place for *_, place in seen} == places
    assert seen_by_spark(root) == seen_by_tools(root) == seen


def test_queues_of_batches_count_without_the_attribute(tmp_path: Path) -> None:
    root = golden.extract("batch-queues", tmp_path)
    seen = seen_by_tools(root)
    write_attribute(root, "Bat", None)
    assert {topic for topic, *_ in seen} >= {"Bat"}
    assert seen == seen_by_tools(root) == seen_by_spark(root)
    assert seen == seen_by_a_broker(root, STORES["batch-queues"])


def test_a_topic_with_queues_of_both_kinds_has_those_of_batches(tmp_path: Path) -> None:
    root = golden.extract("batch-queues", tmp_path)
    seen = seen_by_tools(root)
    for queue_id in (0, 7):
        directory = root / f"consumequeue/Bat/{queue_id}"
        directory.mkdir(parents=True)
        (directory / f"{0:020d}").write_bytes(ENTRY.pack(0, 100, 0))
    assert seen == seen_by_tools(root) == seen_by_spark(root)
    assert read_by_spark(root, "Bat", 7) == []


@pytest.mark.parametrize("left", [(), ("abort",)], ids=["closed", "killed"])
@pytest.mark.parametrize("kinds", [KINDS, KINDS[::-1]], ids=["to RocksDB", "to files"])
def test_a_store_that_changed_its_kind_of_queues_is_sound_and_read_whole(
    kinds: tuple[StoreType, StoreType], left: tuple[str, ...], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    rows: set[Row] = set()
    for kind in kinds:  # each leaves its queues, and the second lacks nothing of the first
        with opened(root, store_type=kind, **SIZES) as store:
            for topic, queue_id in QUEUES * 10:
                rows.add((topic, queue_id, append(store, b"body", topic, queue_id)))
            settle(store)
    for name in left:
        (root / name).touch()
    assert (root / "consumequeue/CURRENT").exists()
    assert (root / "consumequeue/A/1").is_dir()
    for made_as in (None, StoreConfig(store_type=kinds[1])):
        verdict = verify(Layout(root, made_as=made_as))
        assert verdict.sound
        assert len(verdict.findings) == len(left)  # the broker was killed
    assert rows == seen_by_tools(root) == seen_by_spark(root)
    assert rows == seen_by_a_broker(root, SIZES | {"store_type": kinds[1]})
    assert rows == seen_by_tools(root) == seen_by_spark(root)


@pytest.mark.parametrize("whole", ["default"], indirect=True)
def test_what_one_queue_of_a_killed_broker_lacks_is_read_of_the_log(whole: Whole, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(whole.root, root)
    (root / "abort").touch()
    path = max((root / "consumequeue/A/1").iterdir())
    path.write_bytes(bytes(path.stat().st_size))
    seen = seen_by_tools(whole.root)
    assert seen == seen_by_tools(root) == seen_by_spark(root)
    assert seen == seen_by_a_broker(root, SIZES)
