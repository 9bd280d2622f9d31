"""What a store holds, counted."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from firearrow.database import DEFAULT, Database, FamilyOptions
from firearrow.errors import CorruptStore
from firearrow.message.sysflag import INNER_BATCH
from firearrow.store.offline import Layout, stat, why_not_deleted
from tests import golden
from tests.broker.fakes import HandClock
from tests.golden import extract
from tests.store.offline.damage import a_message, golden_store, in_record, messages
from tests.store.stores import KINDS, KiB, append, opened, settle, small_config
from tests.store.test_cleaner import HOUR_NOW, OTHER_HOURS, Disk
from tests.store.test_commitlog import wait_for_preparation
from tests.store.test_engine import tree


def test_a_store_of_the_original(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    everything = messages(root)
    found = stat(Layout(root))
    assert (found.state, found.lock_holder, found.queues_kept) == ("clean", None, "files")
    assert (found.log_files, found.log_start, found.log_end) == (3, 0, 592_625)
    assert (found.records, found.damaged_bytes, found.queues) == (len(everything), 0, 24)
    assert found.configured["topics"] == 22
    assert sum(topic.log_bytes for topic in found.topics) == sum(m.store_size for m in everything)
    plain = next(topic for topic in found.topics if topic.topic == "GoldenPlain")
    theirs = [message for message in everything if message.topic == "GoldenPlain"]
    assert plain.records == len(theirs)
    assert plain.first_ms == theirs[0].store_timestamp_ms
    assert plain.last_ms == theirs[-1].store_timestamp_ms
    assert [(q.min_offset, q.max_offset, q.queue_bytes) for q in plain.queues] == [(0, 158, 3160)] * 4
    assert plain.disk_bytes == plain.log_bytes + 4 * 3160
    assert plain.records_per_second is not None


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    stat(Layout(golden_store(tmp_path)), lambda done, total: seen.append((done, total)))
    assert seen == [(262_144 * number, 3 * 262_144) for number in (1, 2, 3)]


def test_queues_in_rocksdb_are_counted_from_the_log(tmp_path: Path) -> None:
    found = stat(Layout(golden.extract("rocksdb-cq-clean", tmp_path)))
    assert found.queues_kept == "RocksDB"
    plain = next(topic for topic in found.topics if topic.topic == "GoldenPlain")
    assert [(queue.min_offset, queue.max_offset) for queue in plain.queues] == [(0, 158)] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_usual_queue_an_inner_batch_has_one_queue_offset(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "store"
    with opened(root, store_type=kind) as store:
        for topic, count in (("T", 3), ("U", 1)):
            for _ in range(count):
                append(store, b"abc", topic, properties={"INNER_NUM": "3"}, sys_flag=INNER_BATCH)
        settle(store)
    for directory in root.glob("consumequeue*"):  # by the log alone
        shutil.rmtree(directory)
    ends = {topic.topic: topic.queues[0].max_offset for topic in stat(Layout(root)).topics}
    assert ends == {"T": 3, "U": 1}


def test_damage_is_counted(tmp_path: Path) -> None:
    root = golden_store(tmp_path)
    message = a_message(root)
    in_record(root, message, 4, b"gone" * 2)
    found = stat(Layout(root))
    assert (found.damaged_bytes, found.records) == (message.store_size, 951)


# --- Why files are still there ---


HOUR = 3600


def reasons(root: Path, *, hours: int, used: float = 0.1, **changed: Any) -> list[list[str]]:
    clock, disk = HandClock(), Disk()
    clock.seconds += hours * HOUR
    disk.used = used
    report = why_not_deleted(small_config(root, **changed), clock, disk)
    return [[reason["obstacle"] for reason in file.reasons] for file in report.files]


def test_a_file_that_is_only_ready_does_not_make_the_one_before_it_deletable(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        append(store, bytes(40 * KiB))
        settle(store)
        wait_for_preparation()
        assert len(list((root / "commitlog").iterdir())) == 2
        assert reasons(root, hours=24 * 365, delete_when=NOW) == [LAST, LAST]


NOW = f"{HOUR_NOW:02d}"
LAST = ["last-file"]
CASES: list[tuple[int, float, dict[str, str], list[list[str]]]] = [
    (24, 0.1, {"delete_when": NOW}, [["reserved"], ["reserved"], LAST]),
    (24, 0.1, {"delete_when": OTHER_HOURS}, [["no-occasion", "reserved"]] * 2 + [LAST]),
    (96, 0.1, {"delete_when": NOW}, [[], [], LAST]),
    (96, 0.1, {"delete_when": OTHER_HOURS}, [["no-occasion"], ["no-occasion"], LAST]),
    (96, 0.8, {"delete_when": OTHER_HOURS}, [[], [], LAST]),
    (24, 0.9, {"delete_when": OTHER_HOURS}, [[], [], LAST]),
]


@pytest.mark.parametrize(("hours", "used", "changed", "expected"), CASES)
def test_each_file_has_its_reasons(
    tmp_path: Path, hours: int, used: float, changed: dict[str, str], expected: list[list[str]]
) -> None:
    root = extract("file-cq-clean", tmp_path)
    before = tree(root)
    assert reasons(root, hours=hours, used=used, **changed) == expected
    assert tree(root) == before


def test_groups_that_have_yet_to_consume_are_named(tmp_path: Path) -> None:
    root = extract("file-cq-clean", tmp_path)
    offsets = '{"offsetTable":{"GoldenPlain@golden_ok":{0:3},"GoldenPlain@deleted":{1:1}}}'
    (root / "config" / "consumerOffset.json").write_text(offsets)
    keep: dict[str, Any] = {"unconsumed_policy": "keep", "delete_when": NOW}
    assert reasons(root, hours=96, **keep)[0] == ["unconsumed"]
    assert reasons(root, hours=96, delete_when=NOW)[0] == []
    report = why_not_deleted(small_config(root, unconsumed_policy="keep"), HandClock(), Disk())
    waiting = report.files[0].unconsumed
    assert [(row["group"], row["topic"], row["queueId"]) for row in waiting] == [
        ("golden_ok", "GoldenPlain", queue_id) for queue_id in range(4)
    ]
    assert int(waiting[0]["messages"]) > 10
    assert int(waiting[1]["messages"]) > 10


def test_queues_and_offsets_in_databases_are_read(tmp_path: Path) -> None:
    root = extract("rocksdb-cq-clean", tmp_path)
    families = [FamilyOptions(DEFAULT, 1 << 20), FamilyOptions("kvDataVersion", 1 << 20)]
    offsets = Database(
        root / "config/consumerOffsets", families, cache_bytes=1 << 20, open_files_max=64, log_ahead=True
    )
    batch = offsets.batch()
    batch.put(DEFAULT, b"GoldenPlain@golden_ok", b'{"offsetTable":{"0":3}}')
    offsets.write(batch)
    offsets.close()
    before = tree(root)
    report = why_not_deleted(small_config(root, store_type="defaultRocksDB"), HandClock(), Disk())
    waiting = report.files[0].unconsumed
    assert {(row["group"], row["topic"]) for row in waiting} == {("golden_ok", "GoldenPlain")}
    assert tree(root) == before


def test_a_directory_without_a_log_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(CorruptStore, match="has no CommitLog file"):
        why_not_deleted(small_config(tmp_path), HandClock(), Disk())
