"""Queues in RocksDB: every tool reads them as it reads files, and leaves the database as it is."""

import shutil
import sys
from pathlib import Path

import pytest

from firearrow.clock import SystemClock
from firearrow.database import Snapshot
from firearrow.errors import ConfigError
from firearrow.store import rocksformat as rows
from firearrow.store.offline import INVARIANTS, Layout, Order, Selection, StoreView, diff, find, rebuild, stat, verify
from firearrow.store.offline.findings import Repair
from firearrow.store.reading.queues import rocks_queues
from firearrow.store.reading.rocksqueues import RocksQueues
from firearrow.store.reading.storage import LocalStorage
from tests.store.offline.damage import (
    IN_DATABASE,
    QUEUE,
    Damage,
    a_message,
    database,
    database_store,
    entry_key,
    in_record,
    prepared,
    put_last,
    put_row,
)
from tests.store.stores import append, contents, make_store, opened, settle

CONTENT = dict[str, list[tuple[bytes, bytes]]]


def content(directory: Path) -> CONTENT:
    """All rows, but those that only say where a queue began when it was last looked at."""
    snapshot = Snapshot(directory, (rows.ENTRIES, rows.OFFSETS))
    found = {name: list(table.rows()) for name, table in snapshot.tables.items()}
    snapshot.close()
    found[rows.OFFSETS] = [row for row in found[rows.OFFSETS] if b"\1min\1" not in row[0]]
    return found


def own_store(directory: Path) -> Path:
    root = directory / "own"
    store = make_store(root, store_type="defaultRocksDB")
    store.open()
    for number in range(600):
        properties = {"UNIQ_KEY": f"U{number}", "TAGS": "A"}
        now_ms = 1_795_000_000_005 + 100 * number
        append(store, b"x" * 150, queue_id=number % 3, properties=properties, now_ms=now_ms)
        settle(store)
    store.close()
    return root


def test_every_invariant_of_queues_that_is_not_about_files_is_broken_in_a_database() -> None:
    about_files = {
        "queue-file-size", "queue-file-missing", "queue-stray", "queue-kind",
        "queue-entry-messages", "queue-name",
    }  # fmt: skip
    of_queues = {name for name in INVARIANTS if name.startswith("queue-")} - about_files
    assert {damage.invariant for damage in IN_DATABASE} == of_queues


@pytest.mark.parametrize("damage", IN_DATABASE, ids=lambda damage: damage.invariant)
def test_small_stretches_find_what_whole_files_do(damage: Damage, tmp_path: Path) -> None:
    layout = Layout(prepared(damage, tmp_path))
    assert verify(layout, stretch_bytes=50_000) == verify(layout)


def test_looking_changes_nothing(tmp_path: Path) -> None:
    root = database_store(tmp_path)
    before = contents(root)
    verdict = verify(Layout(root))
    assert (verdict.findings, verdict.skipped, verdict.queues) == ([], [], 24)
    assert stat(Layout(root)).queues_kept == "RocksDB"
    assert diff(Layout(root), Layout(root)).same
    with StoreView(Layout(root)) as view:
        chosen = Selection(topic="GoldenPlain", queue_id=0, queue_from=10, queue_to=13)
        assert [message.queue_offset for message in find(view, chosen)] == [10, 11, 12]
    assert contents(root) == before


def test_what_a_queue_and_a_topic_take(tmp_path: Path) -> None:
    found = stat(Layout(database_store(tmp_path)))
    topic = next(topic for topic in found.topics if topic.topic == "GoldenPlain")
    queue = topic.queues[0]
    assert (queue.min_offset, queue.max_offset) == (0, queue.records)
    assert queue.queue_bytes == 28 * queue.records
    assert found.queue_files_bytes > 10_000
    assert found.configured["topics"] > 10
    assert found.configured["topics_consumed"] > 3


def test_files_and_a_database_are_compared_by_their_entries(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    with database(root) as changed:
        assert len(changed.tables[rows.ENTRIES].some(b"", 1000)) == 600
    files = make_store(tmp_path / "files")
    files.open()
    for number in range(600):
        properties = {"UNIQ_KEY": f"U{number}", "TAGS": "A"}
        now_ms = 1_795_000_000_005 + 100 * number
        append(files, b"x" * 150, queue_id=number % 3, properties=properties, now_ms=now_ms)
        settle(files)
    files.close()
    found = diff(Layout(root), Layout(tmp_path / "files"))
    assert found.queues == []
    assert {item.part for item in found.differences} <= {"checkpoint", "config"}


def test_beside_a_running_broker(tmp_path: Path) -> None:
    root = own_store(tmp_path)
    with opened(root, store_type="defaultRocksDB") as store:
        append(store, b"new", now_ms=1_795_000_900_000)
        settle(store)
        verdict = verify(Layout(root))
        assert verdict.live
        assert verdict.sound
        assert {finding.invariant for finding in verdict.findings} <= {"queue-behind-log", "store-closed"}
        append(store, b"goes on", now_ms=1_795_000_900_001)
        settle(store)
    assert verify(Layout(root)).findings == []


def test_what_a_killed_broker_has_not_written_is_counted(tmp_path: Path) -> None:
    root, killed = tmp_path / "own", tmp_path / "killed"
    with opened(root, store_type="defaultRocksDB"):
        pass
    with opened(root, store_type="defaultRocksDB") as store:
        for number in range(7):
            append(store, b"body", queue_id=number % 3)
        settle(store)
        verdict = verify(Layout(root))
        assert verdict.undispatched == 7
        assert verdict.behind.endswith(" after the ends of the queues: the broker writes them later")
        shutil.copytree(root, killed)
    verdict = verify(Layout(killed))
    assert verdict.sound
    assert verdict.behind == ("7 messages of the log are after the ends of the queues: a start dispatches them")
    with opened(killed, store_type="defaultRocksDB") as store:
        assert sum(store.max_queue_offset("T", queue_id) for queue_id in range(3)) == 7
    assert verify(Layout(killed)).behind == ""


def test_without_the_package_one_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = database_store(tmp_path)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    for tool in (verify, stat):
        with pytest.raises(ConfigError, match="RocksDB needs rocksdict: pip install"):
            tool(Layout(root))


@pytest.mark.parametrize("own", [False, True], ids=["original", "own"])
def test_the_rows_of_a_rebuild_are_those_of_the_broker(own: bool, tmp_path: Path) -> None:
    root = own_store(tmp_path) if own else database_store(tmp_path)
    made = rebuild(Layout(root), SystemClock(), to=tmp_path / "made")
    assert made.left_out == {}
    assert content(tmp_path / "made/consumequeue") == content(root / "consumequeue")
    rebuild(Layout(root), SystemClock(), Order(index=False))
    assert verify(Layout(root)).findings == []


def test_what_the_log_has_nothing_of_is_taken_over(tmp_path: Path) -> None:
    """A queue whose messages have expired goes on with its numbers."""
    root = database_store(tmp_path)
    key = rows.offset_key("Expired", 3, rows.MAX)
    put_row(root, rows.OFFSETS, key, rows.PLACE.pack(7, 4711))
    rebuild(Layout(root), SystemClock())
    with StoreView(Layout(root)) as view:
        assert view.queues["Expired", 3].end == 4712


def test_a_queue_whose_offsets_go_back_stays_as_it_is(tmp_path: Path) -> None:
    root = database_store(tmp_path)
    message = a_message(root)
    in_record(root, message, 20, bytes(7) + b"\5")
    key = entry_key(message.queue_offset)  # which would prove another
    put_row(root, rows.ENTRIES, key, None)
    before = content(root / "consumequeue")
    made = rebuild(Layout(root), SystemClock(), Order(index=False))
    assert list(made.left_out) == [f"{message.topic}-{message.queue_id}"]
    assert content(root / "consumequeue") == before


def test_an_entry_that_the_next_start_will_not_write_is_missing(tmp_path: Path) -> None:
    """A broker dispatches from the row on that says how far it was: what is before is lost."""
    root = database_store(tmp_path)
    (root / "abort").write_text("1")
    with StoreView(Layout(root)) as view:
        last = view.queues[QUEUE].end - 1
    put_row(root, rows.ENTRIES, entry_key(last), None)
    put_last(root, 0, last - 1)
    found = {finding.invariant for finding in verify(Layout(root)).findings}
    assert "queue-entry-missing" in found
    assert INVARIANTS["queue-entry-missing"].repair is Repair.QUEUE


def test_queues_are_found_without_reading_all_rows(tmp_path: Path) -> None:
    queues = RocksQueues.at(database_store(tmp_path) / "consumequeue")
    assert len(queues) == len(list(queues)) == 24
    assert ("GoldenPlain", 3) in queues
    assert ("GoldenPlain", 4) not in queues
    assert queues.strays == []
    queues.close()


@pytest.mark.parametrize("step", [1, 3])
def test_rows_of_another_form_are_left_out(tmp_path: Path, step: int) -> None:
    root = database_store(tmp_path)
    put_row(root, rows.ENTRIES, entry_key(3), b"short")
    put_row(root, rows.OFFSETS, rows.offset_key("GoldenPlain", 1, rows.MAX), b"short")
    queues = rocks_queues(LocalStorage(str(root)))
    assert queues is not None
    end = queues.open(QUEUE).span[1]
    found = queues.open(QUEUE).entries(0, end, step).queue_offset.tolist()
    assert found == [n for n in range(0, end, step) if n != 3]
    assert queues.open(("GoldenPlain", 1)).span == (0, 0)
    queues.close()
