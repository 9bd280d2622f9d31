"""What a store holds, counted."""

import shutil
from pathlib import Path

import pytest

from firearrow.message.sysflag import INNER_BATCH
from firearrow.store.offline import Layout, stat
from tests import golden
from tests.store.offline.damage import a_message, golden_store, in_record, messages
from tests.store.stores import KINDS, append, opened, settle


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
