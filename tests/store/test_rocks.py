"""Queues in a database: what is on the disk after any end, and what is in memory."""

import errno
import gc
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from firearrow.database import Batch, Database, Table
from firearrow.errors import ConfigError
from firearrow.store import rocks
from firearrow.store.rocks import RocksConsumeQueues
from firearrow.store.rocksqueue import QueueEnds, RocksConsumeQueue
from tests.golden import expected, extract
from tests.store.stores import GOLDEN_SIZES, append, bodies, make_store, opened, settle
from tests.store.test_queues import Message, contents, entries_of

ROCKS: dict[str, Any] = {"store_type": "defaultRocksDB"}


def queues_in(directory: Path) -> RocksConsumeQueues:
    queues = RocksConsumeQueues(directory, directory / "elsewhere", "lz4")
    queues.load()
    return queues


def messages(first: int, count: int) -> list[Message]:
    return [(n * 100, 100, n) for n in range(first, first + count)]


def put(queues: RocksConsumeQueues, queue_id: int, first: int, some: list[Message]) -> None:
    queues.put(entries_of([("T", queue_id, first, some)]))


def objects_of(queues: RocksConsumeQueues) -> int:
    """How many queues are objects."""
    return sum(isinstance(item, RocksConsumeQueue) and item.of_topic.store is queues for item in gc.get_objects())


def as_after_a_kill(directory: Path) -> RocksConsumeQueues:
    """The queues that a start would find if the process were killed now."""
    copy = directory.with_name(directory.name + "-killed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    return queues_in(copy)


# --- stores of the original broker ---


def test_a_database_of_the_original_is_taken_as_it_is(tmp_path: Path) -> None:
    root = extract("rocksdb-cq-clean", tmp_path)
    queues = RocksConsumeQueues(root / "consumequeue", root / "elsewhere", "lz4")
    queues.load()
    assert queues.dispatched_offset == 572_806
    lines = expected("rocksdb-cq-clean")
    keys = {(line["topic"], line["queueId"]) for line in lines}
    assert {(item.topic, item.queue_id) for item in queues.ranges()} >= keys
    for line in lines:
        queue = queues.open(line["topic"], line["queueId"])
        physical, size, _ = queue.entry(line["queueOffset"])
        assert (physical, size) == (line["physicalOffset"], line["storeSize"])
        assert queue.stored_ms(line["queueOffset"]) == line["storeTimestamp"]
    queues.close()


def test_nothing_of_it_is_dispatched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    puts = []
    monkeypatch.setattr(RocksConsumeQueues, "put", lambda *arguments: puts.append(arguments))
    with opened(extract("rocksdb-cq-clean", tmp_path), **GOLDEN_SIZES, **ROCKS) as store:
        assert store.behind_bytes == 0
    assert puts == []


# --- ends ---


def test_a_kill_takes_what_was_not_flushed_and_leaves_the_rest(tmp_path: Path) -> None:
    queues = queues_in(tmp_path / "queues")
    put(queues, 0, 0, messages(0, 8))
    killed = as_after_a_kill(tmp_path / "queues")
    assert killed.dispatched_offset == 0
    assert killed.find("T", 0) is None
    killed.close()
    queues.flush(0)
    put(queues, 0, 8, messages(8, 4))
    killed = as_after_a_kill(tmp_path / "queues")
    assert killed.dispatched_offset == 800
    assert contents(killed.open("T", 0)) == messages(0, 8)
    put(killed, 0, 8, messages(8, 4))
    assert contents(killed.open("T", 0)) == messages(0, 12)
    killed.close()
    queues.close()


def test_no_queue_claims_entries_that_are_not_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that come while entries are being flushed are not vouched for by that flush."""
    queues = queues_in(tmp_path / "queues")
    put(queues, 0, 0, messages(0, 8))
    flush = Table.flush

    def busy_flush(table: Table) -> None:
        flush(table)
        if table is queues.entries:
            put(queues, 0, 8, messages(8, 4))
            put(queues, 1, 0, messages(12, 4))

    monkeypatch.setattr(Table, "flush", busy_flush)
    queues.flush(0)
    monkeypatch.undo()
    killed = as_after_a_kill(tmp_path / "queues")
    assert killed.dispatched_offset == 800
    assert contents(killed.open("T", 0)) == messages(0, 8)
    assert killed.find("T", 1) is None
    killed.close()
    queues.flush(0)
    queues.close()
    again = queues_in(tmp_path / "queues")
    assert contents(again.open("T", 0)) == messages(0, 12)
    assert contents(again.open("T", 1)) == messages(12, 4)
    again.close()


def test_rows_that_the_disk_refused_are_written_by_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = queues_in(tmp_path / "queues")
    put(queues, 0, 0, messages(0, 8))

    def full(database: Database, batch: Batch) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(Database, "write", full)
        with pytest.raises(OSError, match="full"):
            queues.flush(0)
    put(queues, 1, 0, messages(8, 2))
    queues.flush(0)
    killed = as_after_a_kill(tmp_path / "queues")
    assert contents(killed.open("T", 0)) == messages(0, 8)
    assert contents(killed.open("T", 1)) == messages(8, 2)
    killed.close()
    queues.close()


def test_a_write_that_the_disk_refused_leaves_the_queues_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = queues_in(tmp_path / "queues")
    put(queues, 0, 0, messages(0, 3))

    def full(database: Database, batch: Batch) -> None:
        raise OSError(errno.ENOSPC, "full")

    more = entries_of([("T", 0, 3, messages(3, 2)), ("U", 0, 0, messages(5, 1))])
    with monkeypatch.context() as patched:
        patched.setattr(Database, "write", full)
        with pytest.raises(OSError, match="full"):
            queues.put(more)
    assert queues.dispatched_offset == 300
    assert contents(queues.open("T", 0)) == messages(0, 3)
    assert queues.open("U", 0).max_offset == 0
    assert queues.put(more) == [("T", 0, 3, 5), ("U", 0, 0, 1)]
    assert contents(queues.open("T", 0)) == messages(0, 5)
    queues.close()


def test_many_entries_are_flushed_before_the_thorough_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks, "_FLUSH_ENTRIES", 8)
    queues = queues_in(tmp_path / "queues")
    for count, dispatched_offset in ((7, 0), (8, 800), (15, 800), (16, 1600)):
        first = queues.open("T", 0).max_offset
        put(queues, 0, first, messages(first, count - first))
        queues.flush(2)
        killed = as_after_a_kill(tmp_path / "queues")
        assert killed.dispatched_offset == dispatched_offset
        killed.close()
    queues.close()


def test_many_queues_outlive_a_kill(tmp_path: Path) -> None:
    """Their columns grow while some of them have rows, and some have not."""
    queues = queues_in(tmp_path / "queues")
    for end in (3, 63, 64, 100, 200):
        for queue_id in range(0, end, 2 if end == 100 else 1):
            first = queues.open("T", queue_id).max_offset
            put(queues, queue_id, first, messages(1000 * first + queue_id, 2))
        if end in (64, 200):
            queues.flush(0)
    ends = [queues.open("T", queue_id).max_offset for queue_id in range(201)]
    assert [ends[n] for n in (0, 1, 62, 63, 64, 65, 199, 200)] == [10, 8, 8, 4, 4, 2, 2, 0]
    killed = as_after_a_kill(tmp_path / "queues")
    found = {found.queue_id: found.max_offset for found in killed.ranges()}
    assert found == {queue_id: end for queue_id, end in enumerate(ends) if end}
    for queue_id in (0, 63, 64, 199):
        assert contents(killed.open("T", queue_id)) == contents(queues.open("T", queue_id))
    killed.close()
    queues.close()


def test_queues_are_looked_at_beside_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at all takes slots, too, for queues that are not in use."""
    queues = queues_in(tmp_path)
    for queue_id in range(3):
        put(queues, queue_id, 0, messages(queue_id, 1))
    queues.flush(0)
    queues.close()
    queues.load()
    alone: list[bool] = []

    def could_flush() -> None:
        got = queues._writing.acquire(blocking=False)
        alone.append(not got)
        if got:
            queues._writing.release()

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*arguments: Any) -> Any:
            flusher = Thread(target=could_flush)
            flusher.start()
            flusher.join()
            return call(*arguments)

        return watching

    for name in ("take", "give_up"):
        monkeypatch.setattr(QueueEnds, name, watched(getattr(QueueEnds, name)))
    for found in queues.ranges():
        assert found.max_offset == 1
        flusher = Thread(target=could_flush)  # nobody waits for who looks
        flusher.start()
        flusher.join()
    assert alone == [True, False, True] * 3
    queues.close()


def test_a_topic_that_is_deleted_during_a_flush_stays_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = queues_in(tmp_path / "queues")
    put(queues, 0, 0, messages(0, 8))
    flush = Table.flush

    def busy_flush(table: Table) -> None:
        flush(table)
        if table is queues.entries:
            queues.delete_topic("T")

    monkeypatch.setattr(Table, "flush", busy_flush)
    queues.flush(0)
    monkeypatch.undo()
    killed = as_after_a_kill(tmp_path / "queues")
    assert killed.find("T", 0) is None
    killed.close()
    queues.close()


def test_the_kind_of_queues_may_change_at_any_start(tmp_path: Path) -> None:
    sent: list[bytes] = []
    for kind in ("default", "defaultRocksDB", "default", "defaultRocksDB"):
        with opened(tmp_path, store_type=kind) as store:
            assert bodies(store) == sent
            for n in range(30):
                sent.append(b"%s %d" % (kind.encode(), n))
                append(store, sent[-1])
            settle(store)
            assert bodies(store) == sent


# --- what is in memory ---


def test_the_first_use_of_a_topic_takes_up_its_queues_and_no_others(tmp_path: Path) -> None:
    queues = queues_in(tmp_path)
    for number, (topic, queue_id) in enumerate((t, q) for t in ("T", "TT") for q in range(4)):
        queues.put(entries_of([(topic, queue_id, 0, messages(number, 1))]))
    queues.flush(0)
    queues.close()
    queues = queues_in(tmp_path)
    assert len(list(queues.ranges())) == 8
    assert objects_of(queues) == 0
    appended = queues.open("T", 1)
    assert objects_of(queues) == 4
    appended.next_offset += 1
    assert queues.find("T", 1) is appended
    assert queues.find("T", 4) is None
    assert queues.find("U", 0) is None
    put(queues, 1, 1, messages(50, 1))
    assert contents(appended) == [*messages(1, 1), *messages(50, 1)]
    queues.delete_topic("T")
    assert queues.find("T", 1) is None
    assert queues.open("T", 1) is not appended
    assert len(list(queues.ranges())) == 4
    queues.close()


def test_expired_entries_are_removed(tmp_path: Path) -> None:
    queues = queues_in(tmp_path)
    put(queues, 0, 0, messages(0, 8))
    put(queues, 1, 0, messages(8, 8))
    put(queues, 2, 0, messages(0, 3))
    for log_start_offset in (300, 500, 500):
        assert queues.delete_expired(log_start_offset) == []
        queues.correct_min(log_start_offset)
        queues.flush(0)
    assert len(list(queues.entries.rows())) == 3 + 8
    assert sorted(queues.ranges()) == [("T", 0, 5, 8), ("T", 1, 0, 8), ("T", 2, 3, 3)]
    assert contents(queues.open("T", 0)) == messages(5, 3)
    assert queues.open("T", 0).gap_end(2) == 5
    assert queues.open("T", 0).read(2, 4) == b""
    with pytest.raises(IndexError):
        queues.open("T", 0).entry(2)
    queues.close()


# --- configuration ---


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    store = make_store(tmp_path, **ROCKS)
    with pytest.raises(ConfigError, match=r"rocksdict: pip install"):
        store.open()


def test_the_database_has_two_places_and_is_not_left_behind_in_one(tmp_path: Path) -> None:
    separate = {**ROCKS, "use_separate_store_path_for_rocksdb_cq": True}
    with opened(tmp_path, **separate) as store:
        append(store, b"a")
    assert (tmp_path / "consumequeue_rocksdb" / "CURRENT").exists()
    with pytest.raises(ConfigError, match="useSeparateStorePathForRocksdbCQ has been changed"):
        make_store(tmp_path, **ROCKS).open()
    with opened(tmp_path, **separate) as store:
        assert bodies(store) == [b"a"]
