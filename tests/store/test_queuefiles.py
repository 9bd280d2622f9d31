"""Queues in files: which kind a topic's are, and queues of batches in a store."""

import itertools
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from firearrow.clock import SystemClock
from firearrow.errors import CorruptStore, StoreError
from firearrow.filter.sql import compile_sql
from firearrow.message.sysflag import INNER_BATCH
from firearrow.store import Boundary, GetStatus, MessageStore, queuefiles, recovery
from firearrow.store.fs import FileSystem
from firearrow.store.offline import Layout, rebuild
from firearrow.store.queuefiles import NEW_QUEUES_MAX, FileConsumeQueues, batch_topics
from tests.broker.fakes import HandClock
from tests.golden import expected, extract
from tests.loglines import told
from tests.store.stores import KINDS as KINDS_OF_STORES
from tests.store.stores import abandon, append, append_named, contents, make_store, opened, settle
from tests.store.test_queues import entries_of

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapper_file_size_batch_consume_queue": 460,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
KINDS = ("batchconsumequeue", "consumequeue")


def files_of(root: Path, *names: str) -> dict[str, bytes]:
    files = contents(root)
    return {name: files[name] for name in files if not names or name.split("/")[0] in names}


def places(store: MessageStore, queue_id: int) -> list[int]:
    """Where the record of each message of a queue is."""
    queue = store.queue("Bat", queue_id)
    return [queue.entry(at)[0] for at in range(queue.min_offset, queue.max_offset)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return extract("batch-queues", tmp_path)


def test_a_store_with_queues_of_batches_is_served_and_handed_back(root: Path) -> None:
    before = files_of(root, *KINDS)
    assert batch_topics(root) == {"Bat"}
    with opened(root, **SIZES) as store:
        assert store.queues.is_batch("Bat")
        assert [tuple(queue) for queue in store.queues.ranges()] == [("Bat", 0, 0, 45), ("Bat", 1, 0, 35)]
        for queue_id in (0, 1):
            shown = [m for m in expected("batch-queues") if m["queueId"] == queue_id]
            assert places(store, queue_id) == [m["physicalOffset"] for m in shown]
            assert store.time_span("Bat", queue_id) == (shown[0]["storeTimestamp"], shown[-1]["storeTimestamp"])
        assert store.search_offset("Bat", 0, 1795242913285 + 121, Boundary.LOWER) == 4
        assert store.search_offset("Bat", 0, 1795242913285 + 128, Boundary.UPPER) == 4
        assert store.store_time_of("Bat", 0, 5) == 1795242913413
        entries = list(store.iterate_from("Bat", 0, 2, 4))
        assert [entry[:2] for entry in entries] == [(2, 898), (3, 898), (4, 2308), (5, 2308)]
    assert files_of(root, *KINDS) == before


# As RocketMQ 5.5.0 answers, which had opened the store: queue, offset and most messages asked for;
# the queue offsets of the records, and where to go on.
PULLS = [
    (0, 0, 32, [0, 1, 4, 9, 11, 15, 16, 19, 24, 26], 30),
    (0, 2, 32, [1, 4, 9, 11, 15, 16, 19, 24, 26], 30),
    (0, 30, 32, [30, 31, 34, 39, 41], 45),
    (0, 33, 32, [31, 34, 39, 41], 45),
    (0, 44, 32, [41], 45),
    (0, 0, 3, [0], 1),
    (0, 0, 4, [0, 1], 4),
    (0, 0, 8, [0, 1], 4),
    (0, 2, 1, [1], 4),
    (0, 2, 8, [1, 4], 9),
    (1, 0, 8, [0, 2, 6], 7),
    (1, 0, 10, [0, 2, 6, 7], 10),
    (1, 2, 5, [2, 6], 7),
]


def test_pulls_get_what_they_get_from_the_original(root: Path) -> None:
    with opened(root, **SIZES) as store:
        for queue_id, queue_offset, count, bases, following in PULLS:
            found = store.get("Bat", queue_id, queue_offset, count)
            queue = store.queue("Bat", queue_id)
            want = [store.record_at(queue.entry(base)[0]) or b"" for base in bases]
            assert found.records == b"".join(want)
            ends = [*bases[1:], following]
            messages = sum(end - base for base, end in zip(bases, ends, strict=True))
            assert (found.status, found.next_offset, found.count) == (GetStatus.FOUND, following, messages)
            assert (found.min_offset, found.max_offset) == (0, (45, 35)[queue_id])
        assert store.get("Bat", 0, 45, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert store.get("Bat", 0, 46, 32).status is GetStatus.OFFSET_OVERFLOW_BADLY
        tagged = store.get("Bat", 1, 0, 32, frozenset({2598937}))  # only records have tag codes
        assert (tagged.status, tagged.count, tagged.next_offset) == (GetStatus.FOUND, 3, 27)
        large = store.get("Bat", 0, 0, 32, compile_sql("INNER_NUM > 3"))
        assert (large.status, large.count, large.next_offset) == (GetStatus.FOUND, 18, 30)
        none = store.get("Bat", 0, 0, 32, frozenset({2598937}))
        assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 30)


def test_limits_of_a_pull_count_messages_and_bytes(root: Path) -> None:
    with opened(root, **SIZES, max_transfer_count_on_message_in_memory=5) as store:
        assert store.get("Bat", 0, 0, 32).next_offset == 9
    with opened(root, **SIZES, max_transfer_bytes_on_message_in_memory=1026) as store:
        assert store.get("Bat", 0, 0, 32).next_offset == 4
    with opened(root, **SIZES, max_filter_message_size=46 * 9) as store:
        assert store.get("Bat", 0, 0, 32, frozenset({7})).next_offset == 32 - 2
        assert store.get("Bat", 0, 1, 8, frozenset({7})).next_offset == 11


@pytest.mark.parametrize("lost", ["all", "a file", "units"])
def test_what_is_lost_is_dispatched_again_with_the_same_bytes(root: Path, lost: str) -> None:
    before = files_of(root, "batchconsumequeue")
    directory = root / "batchconsumequeue/Bat/1"
    if lost == "all":
        shutil.rmtree(root / "batchconsumequeue")
    elif lost == "a file":
        (directory / f"{460:020d}").unlink()
    else:
        with (directory / f"{460:020d}").open("r+b") as file:
            file.seek(46)
            file.write(bytes(460 - 46))
    (root / "abort").touch()
    store = make_store(root, wants_batches="Bat".__eq__, **SIZES)
    store.open()
    store.close()
    assert files_of(root, *KINDS) == before


def test_a_killed_broker_leaves_queues_that_go_on(root: Path) -> None:
    before = files_of(root, "batchconsumequeue")

    def send(store: MessageStore, count: int) -> int:
        """Append a batch; give the queue offset of its first message."""
        queue = store.queue("Bat", 0)
        first = queue.next_offset
        properties = {"INNER_NUM": str(count)}
        place = append(store, b"batch", "Bat", properties=properties, sys_flag=INNER_BATCH)
        queue.next_offset = first + count
        settle(store)
        sent.append((place, count))
        return first

    sent: list[tuple[int, int]] = []
    store = make_store(root, **SIZES)
    store.open(background=False)
    assert send(store, 5) == 45
    abandon(store)
    with opened(root, **SIZES) as store:
        assert store.queue("Bat", 0).max_offset == 50
        assert send(store, 7) == 50
        assert send(store, 1) == 57
    with opened(root, **SIZES) as store:
        assert store.queue("Bat", 0).next_offset == 58
        placed = [place for place, count in sent for _ in range(count)]
        assert places(store, 0)[45:] == placed
        assert store.get("Bat", 0, 45, 32).count == 13
    after = files_of(root, "batchconsumequeue")
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {f"batchconsumequeue/Bat/0/{460:020d}"}
    [name] = changed
    assert after[name].startswith(before[name].rstrip(b"\0"))
    assert not files_of(root, "consumequeue")


def test_usual_queues_of_such_a_topic_are_set_aside(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """RocketMQ 5.5.0 does not start there: the queue type "should be SimpleCQ, but is BatchCQ"."""
    before = files_of(root, "batchconsumequeue")
    for queue_id in ("0", "2"):
        stray = root / "consumequeue/Bat" / queue_id
        stray.mkdir(parents=True)
        (stray / f"{0:020d}").write_bytes(bytes(400))
    with opened(root, **SIZES) as store:
        assert store.queue("Bat", 0).max_offset == 45
    [line] = [line for line in told(caplog) if line.get("queue_id") == 2]
    assert (line["event"], line["topic"]) == ("queue is left out", "Bat")
    assert str(line["reason"]).startswith("the topic's queues are of batches")
    assert files_of(root, "batchconsumequeue") == before
    assert not files_of(root, "consumequeue")
    assert (root / f"quarantine/consumequeue/Bat/2/{0:020d}").is_file()


def test_an_empty_directory_does_not_say_the_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as store:
        append(store, b"x")
    before = files_of(tmp_path, *KINDS)
    (tmp_path / "batchconsumequeue/T/0").mkdir(parents=True)
    with opened(tmp_path) as store:
        assert not store.queues.is_batch("T")
        assert store.queue("T", 0).max_offset == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert files_of(tmp_path, *KINDS) == before


def test_the_kind_of_a_topic_stays_until_it_is_deleted(tmp_path: Path) -> None:
    wanted: set[str] = set()
    queues = FileConsumeQueues(tmp_path / "consumequeue", 200, wants_batches=wanted.__contains__)
    queues.put(entries_of([("T", 0, 0, [(0, 100, 0)])]))
    queues.open("E", 0)  # gets no message
    wanted |= {"T", "E", "N"}
    assert [queues.is_batch(topic) for topic in "TEN"] == [False, False, True]
    assert [queues.admit_batches(topic) for topic in "TEN"] == [False, True, True]
    assert [queues.is_batch(topic) for topic in "TEN"] == [False, True, True]
    assert queues.open("T", 1).segments.directory.parts[-3] == "consumequeue"
    queues.delete_queues({("T", 0)})
    assert not queues.is_batch("T")
    queues.delete_queues({("T", 1)})
    assert queues.is_batch("T")
    queues.open("T", 0)
    wanted.clear()
    assert queues.is_batch("T")
    queues.delete_topic("T")
    assert not queues.is_batch("T")
    queues.close()


def test_a_fault_of_a_queue_is_told_again_after_it_was_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queues = FileConsumeQueues(tmp_path / "consumequeue", 200)
    for number in range(3):
        for _ in range(2):
            queues.put(entries_of([("T", 0, 3, [(0, 100, 0)])]))
        assert caplog.text.count("its next message has 3") == 1
        caplog.clear()
        if number == 0:
            queues.delete_topic("T")
        else:
            queues.delete_queues({("T", 0)})
    assert queues.set_aside(tmp_path / "aside") == set()
    queues.close()


def test_queues_of_batches_without_the_attribute_are_served(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), opened(root, **SIZES) as store:
        assert store.queue("Bat", 0).max_offset == 45
        store.delete_topic("Bat")
        assert not store.queues.is_batch("Bat")
    assert "RocketMQ does not start before the topic has the attribute" in caplog.text
    assert not list((root / "batchconsumequeue").iterdir())


def test_a_file_of_another_size_leaves_the_queue_out_until_it_is_rebuilt(root: Path) -> None:
    before = files_of(root, "batchconsumequeue")
    with (root / "batchconsumequeue/Bat/1" / f"{0:020d}").open("ab") as file:
        file.write(b"\0")
    with opened(root, **SIZES) as store:
        assert store.queue("Bat", 1).max_offset == 35
    assert files_of(root, "batchconsumequeue") == before
    assert (root / f"quarantine/batchconsumequeue/Bat/1/{0:020d}").stat().st_size == 461


def test_a_database_has_no_such_queues(root: Path) -> None:
    before = files_of(root)
    store = make_store(root, store_type="defaultRocksDB")
    with pytest.raises(StoreError, match=r"can't be served with storeType=defaultRocksDB: topics "):
        store.open()
    assert {name: data for name, data in files_of(root).items() if name != "lock"} == before


def test_in_a_lmq_an_inner_batch_is_one_message(tmp_path: Path) -> None:
    """RocketMQ may put one there; this broker refuses to."""
    lmq = "INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x01{}\x02"
    store = make_store(tmp_path, enable_lmq=True, enable_multi_dispatch=True, wants_batches="B".__eq__)
    store.open(background=False)
    for number in range(3):
        text = "INNER_NUM\x013\x02" + lmq.format(number)
        append(store, b"x", "B", properties=text.encode(), sys_flag=INNER_BATCH)
        store.queue("B", 0).next_offset += 2
    settle(store)
    assert store.max_queue_offset("B", 0) == 9
    assert store.max_queue_offset("%LMQ%a", 0) == 3
    assert store.get("%LMQ%a", 0, 0, 32).count == 3
    store.close()


@pytest.mark.parametrize(("seconds_for_each", "most"), [(0.0, NEW_QUEUES_MAX), (0.001, 4), (0.1, 1)])
def test_a_step_of_dispatch_makes_few_new_queues(
    tmp_path: Path, seconds_for_each: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of new queues are made in many steps, and each has its message in the end."""
    clock = HandClock()
    made: list[Path] = []
    create_file = FileSystem.create_file

    def counted(fs: FileSystem, path: Path, size_bytes: int, reserved_bytes: int) -> None:
        if "consumequeue" in path.parts:
            made.append(path)
            clock.seconds += seconds_for_each
        create_file(fs, path, size_bytes, reserved_bytes)

    with opened(tmp_path, clock=clock) as store:
        for queue_id in range(500):
            append(store, b"first", "T", queue_id)
        monkeypatch.setattr(FileSystem, "create_file", counted)
        steps = []
        turns = itertools.cycle((store.dispatch, store.catch_up))  # who reads waits for no more
        while store.behind_bytes:
            before = len(made)
            next(turns)()
            steps.append(len(made) - before)
        assert sum(steps) == 500
        assert max(steps) == most
        assert [store.max_queue_offset("T", queue_id) for queue_id in range(500)] == [1] * 500
        assert all(store.get("T", queue_id, 0, 1).status is GetStatus.FOUND for queue_id in (0, 499))


class Counting(FileSystem):
    """Counts how often it was synced as a whole, and which files of queues were synced by
    themselves."""

    def __init__(self) -> None:
        self.wholes = 0
        self.files: list[Path] = []

    def hold_whole(self, directory: Path) -> int | None:
        return os.open(directory, os.O_RDONLY)

    def sync_whole(self, held: int) -> None:
        self.wholes += 1

    def unwritten_bytes(self) -> int:
        return 0

    def sync_file(self, path: Path) -> None:
        if "consumequeue" in path.parts:
            self.files.append(path)
        super().sync_file(path)


QUEUES = 200
USUAL: dict[str, Any] = {"mapped_file_size_consume_queue": 6_000_000}


def filled_queues(root: Path, fs: FileSystem) -> MessageStore:
    store = make_store(root, fs=fs, mapped_file_size_commit_log=1 << 20, **USUAL)
    store.open(background=False)
    for number in range(QUEUES):
        append(store, b"first", f"T{number}")
    settle(store)
    return store


def maps_of_queues(root: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{root}/consumequeue/")


def test_a_small_queue_takes_a_block_and_has_the_size_that_rocketmq_wants(tmp_path: Path) -> None:
    store = filled_queues(tmp_path, FileSystem())
    for _ in range(3000):  # 60,000 bytes of entries
        append(store, b"more", "T0")
    settle(store)
    store.close()
    found = {path.parts[-3]: path.stat() for path in tmp_path.glob("consumequeue/*/*/*")}
    assert {stat.st_size for stat in found.values()} == {6_000_000}
    assert found.pop("T0").st_blocks * 512 == 64 * 1024
    assert {stat.st_blocks * 512 for stat in found.values()} == {4096}


def test_a_stop_syncs_very_many_queues_at_once_and_a_start_touches_none(tmp_path: Path) -> None:
    disk = Counting()
    filled_queues(tmp_path, disk).close()
    assert (disk.wholes, disk.files) == (2, []), "for the files, and for their names"
    store = make_store(tmp_path, fs=disk, mapped_file_size_commit_log=1 << 20, **USUAL)
    store.open(background=False)
    assert maps_of_queues(tmp_path) == 0
    assert [store.max_queue_offset(f"T{number}", 0) for number in range(QUEUES)] == [1] * QUEUES
    assert maps_of_queues(tmp_path) == 0
    assert store.get("T7", 0, 0, 32).count == 1
    assert maps_of_queues(tmp_path) == 1
    store.close()
    assert (disk.wholes, disk.files) == (2, []), "a clean start has nothing that is not there"


def test_a_killed_broker_has_all_its_queues_synced_by_the_next_stop(tmp_path: Path) -> None:
    disk = Counting()
    abandon(filled_queues(tmp_path, disk))
    store = make_store(tmp_path, fs=disk, mapped_file_size_commit_log=1 << 20, **USUAL)
    store.open(background=False)
    assert disk.wholes == 0
    store.close()
    assert (disk.wholes, disk.files) == (2, [])


def test_after_a_kill_only_queues_of_the_last_step_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RECORDS_MAX", 20)
    abandon(filled_queues(tmp_path, FileSystem()))
    files = [tmp_path / f"consumequeue/T{number}/0" / ("0" * 20) for number in range(QUEUES)]
    for path in files[-15:-3:2]:  # those that a kill within the step has left without an entry
        path.write_bytes(bytes(6_000_000))
    before = [path.stat().st_ino for path in files]
    for path in files:
        os.utime(path, (1, 1))
    store = make_store(tmp_path, mapped_file_size_commit_log=1 << 20, **USUAL)
    store.open(background=False)
    assert [store.max_queue_offset(f"T{number}", 0) for number in range(QUEUES)] == [1] * QUEUES
    assert [store.get(f"T{number}", 0, 0, 1).count for number in range(QUEUES)] == [1] * QUEUES
    store.close()
    assert [path.stat().st_ino for path in files] == before, "no file is made again"
    written = [number for number, path in enumerate(files) if path.stat().st_mtime != 1]
    assert written == list(range(QUEUES - 21, QUEUES))


def test_more_queues_are_served_than_can_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuefiles, "maps_max", lambda: 10)
    store = filled_queues(tmp_path, FileSystem())
    assert maps_of_queues(tmp_path) == 10
    for number in range(QUEUES):
        append(store, b"second", f"T{number}")
    settle(store)
    for number in range(QUEUES):
        assert store.get(f"T{number}", 0, 0, 32).count == 2
    assert maps_of_queues(tmp_path) == 10
    store.close()


NAMES = ("../../x", "..", ".", "", "a/b", "T/0", "x\nT\t0\t99", "a\0b", "\x7f")
"""Of topics that can't be directories; one of an absolute path comes on top."""


def traps(outside: Path) -> list[str]:
    """Make what such names lead to, and give the names."""
    for name in ("x", "0", "abs"):
        trap = outside / name / "0"
        trap.mkdir(parents=True)
        (trap / f"{0:020d}").write_bytes(bytes(400))
    return [*NAMES, str(outside / "abs")]


def apart(outside: Path, root: Path) -> dict[str, bytes]:
    """All files that are not the store's."""
    prefix = f"{root.relative_to(outside).as_posix()}/"
    found = contents(outside)
    return {name: found[name] for name in found if not name.startswith(prefix)}


def queue_directories(root: Path) -> set[str]:
    found = (path for kind in KINDS for path in (root / kind).rglob("*") if path.is_dir())
    return {path.relative_to(root).as_posix() for path in found}


def test_a_topic_of_the_log_names_no_directory_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "store"
    names = traps(tmp_path)
    before = apart(tmp_path, root)
    own = {"consumequeue/T", "consumequeue/T/0", "consumequeue/U", "consumequeue/U/0"}

    def is_whole(store: MessageStore, count: int) -> None:
        settle(store)
        assert [store.max_queue_offset(topic, 0) for topic in ("T", "U")] == [count, count]
        for name in names:
            with pytest.raises(CorruptStore, match="the name"):
                store.queue(name, 0)
            assert store.max_queue_offset(name, 0) == 0
            store.delete_topic(name)
        assert isinstance(store.queues, FileConsumeQueues)
        assert not store.queues.can_catch_up
        assert queue_directories(root) == own
        assert not (root / "left-out-queues.tsv").exists()
        assert apart(tmp_path, root) == before

    def send(store: MessageStore) -> None:
        append(store, b"t")
        for name in names:
            append_named(store, name)
        append(store, b"u", "U")

    store = make_store(root)
    store.open(background=False)
    send(store)
    settle(store)
    said = [str(line["topic"]) for line in told(caplog) if "the name" in str(line["error"])]
    assert sorted(said) == sorted(names)
    is_whole(store, 1)
    send(store)
    abandon(store)
    with opened(root) as killed:
        is_whole(killed, 2)
        send(killed)
    shutil.rmtree(root / "consumequeue")
    with opened(root) as closed:
        is_whole(closed, 3)


def test_notes_of_a_store_name_no_directory_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "store"
    names = [name for name in traps(tmp_path) if not set(name) & set("\0\n")]
    before = apart(tmp_path, root)
    for kind in ("left-out-queues.tsv", "closed.json"):
        with opened(root) as store:
            append(store, b"t")
        if kind == "closed.json":
            note = json.loads((root / kind).read_text())
            note["queues"] |= {name: {"0": [0, 9]} for name in names}
            (root / kind).write_text(json.dumps(note))
        else:
            (root / kind).write_text("".join(f"{name}\t0\t9\n" for name in names))
        with opened(root) as store:
            settle(store)
        assert kind in caplog.text
        caplog.clear()
        assert queue_directories(root) == {"consumequeue/T", "consumequeue/T/0"}
        assert apart(tmp_path, root) == before


def test_a_directory_that_no_topic_can_have_is_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"t")
    for name in ("a\nb/0", "T/²"):
        (tmp_path / "consumequeue" / name).mkdir(parents=True)
    with opened(tmp_path) as store:
        assert [queue.topic for queue in store.queues.ranges()] == ["T"]
        assert store.max_queue_offset("T", 0) == 1


@pytest.mark.parametrize("kind", KINDS_OF_STORES)
def test_a_topic_that_gets_too_long_as_text_holds_nothing_up(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = b"\xff" * 100  # each byte is replaced by three
    store = make_store(tmp_path, store_type=kind)
    store.open(background=False)
    append_named(store, odd)
    append(store, b"t")
    settle(store)
    append_named(store, odd)
    settle(store)
    abandon(store)
    with opened(tmp_path, store_type=kind) as after:
        append(after, b"u")
        settle(after)
        assert [(one.topic, one.max_offset) for one in after.queues.ranges()] == [("T", 2)]
    name = odd.decode("utf-8", "replace")
    assert {line["topic"] for line in told(caplog) if "further entries" in str(line["event"])} == {name}
    made = rebuild(Layout(tmp_path), SystemClock(), to=tmp_path / "made")
    assert list(made.left_out) == [f"{name}-0"]
