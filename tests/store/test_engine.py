"""The store as a whole: what goes in comes out, over restarts, kills and damage."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from firearrow.database import Batch, Database
from firearrow.errors import CorruptStore, DiskFull, StoreLocked
from firearrow.message.hosts import Host, pack_host
from firearrow.message.model import MessageView
from firearrow.message.names import tag_code
from firearrow.message.record import decode_record, iter_records
from firearrow.message.sysflag import TRANSACTION_MASK
from firearrow.store import GetStatus, MessageStore
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.fs import FileSystem
from tests.broker.fakes import HandClock
from tests.golden import ADDED_BY_CLIENT, as_java_prints, expected, extract, golden_names
from tests.loglines import told
from tests.store.stores import (
    ALWAYS,
    BORN_MS,
    GOLDEN_SIZES,
    KiB,
    abandon,
    append,
    bodies,
    bodies_by_key,
    make_store,
    messages,
    opened,
    settle,
)
from tests.store.test_queues import entries_of

FILE_STORES = ("file-cq-clean", "file-cq-killed")


pytestmark = pytest.mark.usefixtures("kind")


# --- stores of the original broker ---


@pytest.mark.parametrize("name", golden_names)
def test_a_store_of_the_original_serves_its_messages(name: str, tmp_path: Path) -> None:
    lines = expected(name)
    queues = sorted({(line["topic"], line["queueId"]) for line in lines})
    found = []
    with opened(extract(name, tmp_path), **GOLDEN_SIZES) as store:
        for topic, queue_id in queues:
            found += [as_java_prints(view) for view in messages(store, topic, queue_id)]
    for line in lines:
        line["properties"] = without(line["properties"], ADDED_BY_CLIENT)
    order = ("topic", "queueId", "queueOffset")
    assert found == sorted(lines, key=lambda line: [line[field] for field in order])


def without(properties: dict[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}


@pytest.mark.parametrize("name", golden_names)
def test_each_message_of_the_original_is_found_by_its_keys(name: str, tmp_path: Path) -> None:
    with opened(extract(name, tmp_path), **GOLDEN_SIZES) as store:
        for line in expected(name)[::17]:
            offset = line["physicalOffset"]
            properties = line["properties"]
            keys = [("U", properties.get("UNIQ_KEY", ""))]
            keys += [("K", key) for key in properties.get("KEYS", "").split()]
            for kind, key in keys:
                if key:
                    records = store.query(line["topic"], key, kind, *ALWAYS, 1000)
                    assert offset in [decode_record(found).physical_offset for found in records]


@pytest.mark.parametrize("name", FILE_STORES)
def test_the_same_input_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    """A whole log is appended again to an empty store, and then its files are compared.

    Left out is one field of the eight commit records: where their half message is, which no
    plain append knows.
    """
    files = sorted((extract(name, tmp_path) / "commitlog").iterdir())
    views = [view for path in files for view in iter_records(path.read_bytes())]
    commits = [view for view in views if view.sys_flag & TRANSACTION_MASK]
    host = pack_host(Host("127.0.0.1", 11911))
    with opened(tmp_path / "new", store_host=host, **GOLDEN_SIZES) as store:
        for view in views:
            append(
                store, view.body, view.topic, view.queue_id, properties=view.properties,
                flag=view.flag, sys_flag=view.sys_flag, born_ms=view.born_timestamp_ms,
                born_host=pack_host(view.born_host), now_ms=view.store_timestamp_ms,
                reconsume_times=view.reconsume_times,
            )  # fmt: skip
    log = b"".join(path.read_bytes() for path in sorted((tmp_path / "new/commitlog").iterdir()))
    original = bytearray(b"".join(path.read_bytes() for path in files)[: len(log)])
    for view in commits:
        at = view.physical_offset + 76
        assert original[at : at + 8] == view.prepared_transaction_offset.to_bytes(8)
        original[at : at + 8] = bytes(8)
    assert len(commits) == 8
    assert len(views) > 900
    assert log == original


# --- start and stop ---


def filled(root: Path, count: int = 300, **options: Any) -> list[bytes]:
    """A closed store of several files with messages in two queues; gives their bodies."""
    sent = [b"message %d " % n + b"x" * (n % 7 * 100) for n in range(count)]
    with opened(root, **options) as store:
        fill(store, sent)
    return sent


def fill(store: MessageStore, sent: list[bytes], first: int = 0) -> None:
    for n, body in enumerate(sent, first):
        append(
            store, body, queue_id=n % 2, now_ms=BORN_MS + n * 10,
            properties={"UNIQ_KEY": f"{n:032d}", "KEYS": f"k{n}", "TAGS": f"t{n % 3}"},
        )  # fmt: skip
        if n % 50 == 49:
            settle(store)


def check_complete(store: MessageStore, sent: list[bytes]) -> None:
    """Log, queues and index hold exactly what was sent."""
    assert [bodies(store, "T", queue_id) for queue_id in (0, 1)] == [sent[0::2], sent[1::2]]
    for n, body in enumerate(sent):
        assert bodies_by_key(store, f"{n:032d}", kind="U") == [body]
    for n in range(0, len(sent), 29):
        assert bodies_by_key(store, f"k{n}") == [sent[n]]


def tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not (path.parent / "CURRENT").exists()
    }


def test_a_closed_store_is_clean(tmp_path: Path, kind: str) -> None:
    sent = filled(tmp_path)
    files = tree(tmp_path)
    assert "abort" not in files
    assert files["lock"] == b"lock"
    last_ms = BORN_MS + 2990
    checkpoint = Checkpoint.load(tmp_path / "checkpoint")
    with opened(tmp_path) as store:
        assert (tmp_path / "abort").read_bytes() == str(os.getpid()).encode()
        last = store.log.end_offset - len(messages(store, "T", 1)[-1].body)
        assert store.behind_bytes == 0
        check_complete(store, sent)
        offset = messages(store, "T", 1)[-1].physical_offset
        assert last > offset
    expected_checkpoint = Checkpoint(last_ms, last_ms, last_ms, queues_physical_offset=offset)
    if kind != "default":  # the database has its own
        expected_checkpoint = Checkpoint(last_ms, index_ms=last_ms)
    assert checkpoint == expected_checkpoint
    assert tree(tmp_path) == files, "nothing was dispatched again"


def test_transactions_are_not_indexed_again_at_each_start(tmp_path: Path) -> None:
    """The last record of a log may have no queue entry, but keys."""
    with opened(tmp_path) as store:
        append(store, b"plain", properties={"KEYS": "a"})
        append(store, b"half", properties={"KEYS": "b"}, sys_flag=4)
        settle(store)
        assert bodies(store) == [b"plain"]
        assert bodies_by_key(store, "b") == [b"half"]
    files = tree(tmp_path)
    with opened(tmp_path):
        pass
    assert tree(tmp_path) == files


def test_an_empty_store_opens_and_closes(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path) as store:
            assert store.get("T", 0, 0, 32).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
            assert store.min_queue_offset("T", 0) == store.max_queue_offset("T", 0) == 0
            assert store.store_time_of("T", 0, 0) == -1
            assert not store.head_in_memory("T", 0)
            assert store.index_end == (0, 0)
    assert tree(tmp_path) == {"lock": b"lock", "checkpoint": bytes(4096)}
    store.close()


def test_a_message_that_opens_a_file_is_dispatched_at_the_close(tmp_path: Path) -> None:
    """The dispatcher stands before the blank, and the blank is not the end."""
    with opened(tmp_path) as store:
        append(store, bytes(40 * KiB), properties={"KEYS": "a"})
        settle(store)
        append(store, bytes(40 * KiB), properties={"KEYS": "b"})
    with opened(tmp_path) as store:
        assert store.max_queue_offset("T", 0) == 2


def test_a_message_that_opens_a_file_is_dispatched_at_the_start(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.open()
    append(store, bytes(40 * KiB), properties={"KEYS": "a"})
    settle(store)
    append(store, bytes(40 * KiB), properties={"KEYS": "b"})
    abandon(store)
    (tmp_path / "abort").unlink()  # as if the end had been clean, but for this message
    with opened(tmp_path) as store:
        assert store.behind_bytes == 0
        assert store.max_queue_offset("T", 0) == 2


def test_a_second_store_on_the_directory_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"a")
        with pytest.raises(StoreLocked):
            make_store(tmp_path).open()
        code = (
            "import sys; from pathlib import Path; from tests.store.stores import make_store;"
            "make_store(Path(sys.argv[1])).open()"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        last_line = refused.stderr.strip().splitlines()[-1]
        assert refused.returncode == 1
        assert last_line.endswith(f"StoreLocked: store {tmp_path} is in use by process {os.getpid()}")
        assert (tmp_path / "abort").read_text() == str(os.getpid())
    with opened(tmp_path) as store:
        assert bodies(store) == [b"a"]


# --- kills and damage ---

APPENDING = """
import sys
from pathlib import Path
from tests.store.stores import *

defaults["store_type"] = sys.argv[3]
store = make_store(Path(sys.argv[1]))
store.open()
first = int(sys.argv[2])
for n in range(first, first + 1_000_000):
    append(store, b"message %d" % n, queue_id=n % 2, properties={"UNIQ_KEY": f"{n:032d}"})
    sys.stdout.write(f"{n}\\n")
    if n % 7 == 0:
        sys.stdout.flush()
        store.dispatch()
"""


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path, kind: str) -> None:
    acknowledged = 0
    total = 0
    for round_number in range(3):
        command = [sys.executable, "-c", APPENDING, str(tmp_path), str(total), kind]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if int(line) >= total + 400 + 150 * round_number:
                    break
            child.send_signal(signal.SIGKILL)
            acknowledged = max([int(line), *map(int, child.stdout.read().split()[:-1])]) + 1
        assert child.returncode == -signal.SIGKILL
        assert (tmp_path / "abort").read_text() == str(child.pid)
        with opened(tmp_path) as store:
            total = sum(store.max_queue_offset("T", n) for n in (0, 1))
            assert total >= acknowledged
            for n in (0, 1):
                assert bodies(store, "T", n) == [b"message %d" % k for k in range(n, total, 2)]
            for n in range(0, total, 13):
                assert bodies_by_key(store, f"{n:032d}", kind="U") == [b"message %d" % n]
            assert store.behind_bytes == 0


@pytest.mark.parametrize("dispatched", [True, False])
@pytest.mark.parametrize("saved", [True, False], ids=["checkpoint", "no checkpoint"])
def test_an_unclean_end_costs_nothing(tmp_path: Path, dispatched: bool, saved: bool) -> None:
    sent = filled(tmp_path)
    if not saved:
        (tmp_path / "checkpoint").unlink()
    more = [b"more %d" % n for n in range(100)]
    store = make_store(tmp_path)
    store.open()
    fill(store, more, 300)
    if dispatched:
        settle(store)
    abandon(store)
    assert (tmp_path / "abort").exists()
    with opened(tmp_path) as store:
        check_complete(store, sent + more)
        assert store.log.last_store_ms == BORN_MS + 3990
    with opened(tmp_path) as store:
        check_complete(store, sent + more)


LAST = b"the last message"


@pytest.mark.parametrize("at", [0, 3, 4, 8, 28, 35, 84, 88, 88 + len(LAST) - 1, 88 + len(LAST)])
@pytest.mark.parametrize("how", ["zeros", "flipped", "garbage"])
def test_a_damaged_last_record_ends_the_log_before_it(tmp_path: Path, at: int, how: str) -> None:
    start = torn(tmp_path)
    log = tmp_path / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    if how == "flipped":
        data[start + at] ^= 0x40
    else:
        filling = b"\0" if how == "zeros" else b"\xff"
        data[start + at :] = filling * (len(data) - start - at)
    log.write_bytes(data)
    with opened(tmp_path) as store:
        assert store.log.end_offset == start
        assert bodies(store) == [b"first", b"second"]
        assert store.max_queue_offset("T", 1) == 0
        assert bodies_by_key(store, "last") == []
        assert not any(log.read_bytes()[start:])
        assert append(store, b"instead") == start
        append(store, b"another", queue_id=1)
        settle(store)
        assert bodies(store) == [b"first", b"second", b"instead"]
        assert bodies(store, "T", 1) == [b"another"]


def torn(root: Path) -> int:
    """A killed store; gives where its last record starts."""
    store = make_store(root)
    store.open()
    append(store, b"first")
    append(store, b"second")
    start = append(store, LAST, queue_id=1, properties={"KEYS": "last"})
    settle(store)
    abandon(store)
    return start


def damage(root: Path, at: int) -> tuple[MessageView, bytes]:
    """Change a byte of a record in the middle of the last file; gives the record and the file."""
    log = max((root / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    views = list(iter_records(bytes(data)))
    bad = views[len(views) // 2]
    data[bad.physical_offset - int(log.name) + at] ^= 1
    log.write_bytes(data)
    return bad, bytes(data)


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_body_is_reported_and_costs_no_other_message(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, 300)
    bad, _ = damage(tmp_path, 88)
    if not clean:
        (tmp_path / "abort").touch()
    with opened(tmp_path) as store:
        assert sum(store.max_queue_offset("T", n) for n in (0, 1)) == 300
        for n in range(0, 300, 7):
            assert len(bodies_by_key(store, f"k{n}")) == 1
    [line] = [line for line in told(caplog) if line["event"] == "body of a record is damaged"]
    assert line["physical_offset"] == bad.physical_offset


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("at", [0, 4, 34])
def test_a_log_that_is_damaged_before_sound_records_is_not_cut(tmp_path: Path, at: int, clean: bool) -> None:
    filled(tmp_path, 300)
    bad, data = damage(tmp_path, at)
    if not clean:
        (tmp_path / "abort").touch()
    for _ in range(2):
        with pytest.raises(CorruptStore, match=f"from {bad.physical_offset} to .* repair"):
            make_store(tmp_path).open()
        assert max((tmp_path / "commitlog").iterdir()).read_bytes() == data


@pytest.mark.parametrize("known", [True, False], ids=["checkpoint", "no checkpoint"])
def test_what_stands_behind_a_torn_record_is_kept_aside(tmp_path: Path, known: bool) -> None:
    filled(tmp_path, 300)
    bad, data = damage(tmp_path, 0)
    before = bad.store_timestamp_ms if known else 0
    Checkpoint(log_ms=before, queues_ms=before).save(tmp_path / "checkpoint")
    (tmp_path / "abort").touch()
    with opened(tmp_path) as store:
        assert store.log.end_offset == bad.physical_offset
    (kept,) = (tmp_path / "quarantine").iterdir()
    assert kept.name == f"commitlog-{bad.physical_offset:020d}"
    start = bad.physical_offset % (64 * KiB)
    assert data[start:].startswith(kept.read_bytes().rstrip(b"\0"))


def test_without_its_log_a_store_begins_again(tmp_path: Path) -> None:
    filled(tmp_path, 50)
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()
    with opened(tmp_path) as store:
        assert store.max_queue_offset("T", 0) == store.max_queue_offset("T", 1) == 0
        assert append(store, b"new", properties={"KEYS": "k1"}) == 0
        settle(store)
        assert bodies(store) == bodies_by_key(store, "k1") == [b"new"]


# --- disk ---


def test_waiters_are_told_in_order_and_after_the_log_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    told = threading.Semaphore(0)
    real = FileSystem.sync_file

    def sync_file(fs: FileSystem, path: Path) -> None:
        real(fs, path)
        happened.append(path.parent.name)

    def waiter(name: str) -> Any:
        def tell(done: bool) -> None:
            happened.append(f"{name} {done}")
            told.release()

        return tell

    with opened(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
        assert store.sync_flush
        append(store, b"makes the file")
        monkeypatch.setattr(FileSystem, "sync_file", sync_file)
        for name in ("a", "b", "c"):
            append(store, name.encode())
            store.when_safe(store.log.end_offset, waiter(name))
            assert told.acquire(timeout=10)
        assert happened == ["commitlog", "a True", "commitlog", "b True", "commitlog", "c True"]
        happened.clear()
        append(store, b"d")
        end = store.log.end_offset
        for name in ("d", "e", "f"):
            store.when_safe(end, waiter(name))
        for _ in range(3):
            assert told.acquire(timeout=10)
        assert [what for what in happened if what != "commitlog"] == ["d True", "e True", "f True"]
        assert happened[0] == "commitlog"


def test_a_disk_that_refuses_is_told_to_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[bool] = []
    told = threading.Event()

    def tell(done: bool) -> None:
        results.append(done)
        told.set()

    def broken(fs: FileSystem, path: Path) -> None:
        raise OSError(5, "Input/output error")

    with opened(tmp_path) as store:
        append(store, b"a")
        with monkeypatch.context() as patched:
            patched.setattr(FileSystem, "sync_file", broken)
            store.when_safe(store.log.end_offset, tell)
            assert told.wait(10)
        assert results == [False]
        told.clear()
        store.when_safe(store.log.end_offset, tell)
        assert told.wait(10)
        assert results == [False, False]  # the kernel says it once; the pages are lost


def test_who_waits_at_the_close_is_told(tmp_path: Path) -> None:
    results: list[bool] = []
    with opened(tmp_path) as store:
        append(store, b"a")
        store.when_safe(store.log.end_offset, results.append)
    assert results == [True]


def test_a_full_disk_delays_visibility_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fs: FileSystem, path: Path, size_bytes: int, reserved_bytes: int) -> None:
        raise OSError(28, "No space left on device")

    def full_database(database: Database, batch: Batch) -> None:
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as store:
        append(store, b"a")
        settle(store)
        with monkeypatch.context() as patched:
            patched.setattr(FileSystem, "create_file", full)
            patched.setattr(Database, "write", full_database)
            append(store, b"b", "U", properties={"KEYS": "k"})
            append(store, b"c")
            assert store.dispatch()
            assert store.dispatch()
            assert bodies(store, "U") == []
            assert store.behind_bytes > 0
        settle(store)
        assert bodies(store, "U") == bodies_by_key(store, "k", "U") == [b"b"]
        assert bodies(store) == [b"a", b"c"]


# --- reading ---


def test_arrivals_are_told_by_queue(tmp_path: Path) -> None:
    arrivals: list[tuple[str, int, int, int]] = []
    with opened(tmp_path) as store:
        store.messages_arrived.listen(lambda arrived: arrivals.extend(arrived))
        for n in range(6):
            append(store, b"", "TU"[n % 2], n // 4)
        settle(store)
        first, arrivals = arrivals, []
        append(store, b"commit", sys_flag=8)
        append(store, b"half", "H", sys_flag=4)
        settle(store)
    assert sorted(first) == [("T", 0, 0, 2), ("T", 1, 0, 1), ("U", 0, 0, 2), ("U", 1, 0, 1)]
    assert arrivals == [("T", 0, 2, 3)]


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 3),
        (2, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
        (1 << 60, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
    ],
)
def test_any_offset_of_a_queue(tmp_path: Path, offset: int, status: GetStatus, following: int) -> None:
    with opened(tmp_path) as store:
        for n in range(3):
            append(store, b"%d" % n)
        settle(store)
        result = store.get("T", 0, offset, 32)
        assert (result.status, result.next_offset) == (status, following)
        assert (result.min_offset, result.max_offset) == (0, 3)
        found = [view.body for view in iter_records(result.records)]
        assert found == ([b"%d" % n for n in range(offset, 3)] if result.count else [])


def test_a_place_in_another_file_instead_of_a_tag_code_hides_no_message(tmp_path: Path) -> None:
    """What the original writes with enableConsumeQueueExt."""
    with opened(tmp_path) as store:
        at = append(store, b"a", properties={"TAGS": "TagA"})
        size = store.log.end_offset - at
        store.queues.put(entries_of([("T", 0, 0, [(at, size, -(1 << 63))])]))
        result = store.get("T", 0, 0, 32, frozenset({tag_code("TagA")}))
        assert [view.body for view in iter_records(result.records)] == [b"a"]


def test_limits_of_one_read(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_transfer_bytes_on_message_in_memory": 1000, "max_filter_message_size": 200}
    with opened(tmp_path, **limits) as store:
        for n in range(20):
            append(store, bytes(300), properties={"TAGS": "rare" if n == 15 else "often"})
        append(store, bytes(5000))
        settle(store)
        assert store.get("T", 0, 0, 32).count == 2
        assert store.get("T", 0, 0, 1).count == 1
        assert store.get("T", 0, 20, 32).count == 1, "a message alone may be larger"
        rare = frozenset({tag_code("rare")})
        missed = store.get("T", 0, 0, 5, rare)
        assert (missed.status, missed.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)
        found = store.get("T", 0, 10, 5, rare)
        assert (found.status, found.count, found.next_offset) == (GetStatus.FOUND, 1, 20)
        [view] = iter_records(found.records)
        assert (view.queue_offset, view.tags) == (15, "rare")
        assert store.tag_codes("T", 0, 15, 16) == {tag_code("rare")}


def test_store_times_behind_hosts_of_any_size(tmp_path: Path) -> None:
    with opened(tmp_path, store_host=pack_host(Host("::1", 1))) as store:
        append(store, b"", now_ms=BORN_MS + 1)
        append(store, b"", now_ms=BORN_MS + 2, born_host=pack_host(Host("2001:db8::7", 4711)))
        settle(store)
        assert [store.store_time_of("T", 0, n) - BORN_MS for n in (-1, 0, 1)] == [-1 - BORN_MS, 1, 2]


def test_keys_of_one_hash_are_told_apart(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"1", properties={"KEYS": "AaAa x", "UNIQ_KEY": "u1", "TAGS": "AaBB"})
        append(store, b"2", properties={"KEYS": "BBBB", "UNIQ_KEY": "u2", "TAGS": "BBAa"})
        append(store, b"3", properties={"KEYS": "x BBBB AaAa", "UNIQ_KEY": "AaAa"})
        append(store, b"4", "U", properties={"KEYS": "AaAa"})
        settle(store)
        assert bodies_by_key(store, "AaAa") == [b"3", b"1"]
        assert bodies_by_key(store, "BBBB") == [b"3", b"2"]
        assert bodies_by_key(store, "x") == [b"3", b"1"]
        assert bodies_by_key(store, "AaAa", count=1) == [b"3"]
        assert bodies_by_key(store, "AaAa", kind="U") == [b"3"]
        assert bodies_by_key(store, "u1", kind="U") == [b"1"]
        assert bodies_by_key(store, "u1") == [b"1"]
        assert bodies_by_key(store, "AaBB", kind="T") == [b"1"]
        assert bodies_by_key(store, "BBAa", kind="T") == [b"2"]
        assert bodies_by_key(store, "AaAa", "U") == [b"4"]
        assert bodies_by_key(store, "BBBB", "U") == bodies_by_key(store, "AaAa", "V") == []
        assert bodies_by_key(store, "T#AaBB") == []


def test_a_query_keeps_to_its_span_of_time(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for n in range(10):
            append(store, b"%d" % n, properties={"KEYS": "k"}, now_ms=BORN_MS + 400 * n)
        settle(store)
        for begin, end in ((0, 4000), (400, 1200), (401, 1199), (3600, 9000), (3601, 9000), (5, 4)):
            found = store.query("T", "k", "K", BORN_MS + begin, BORN_MS + end, 64)
            expected_bodies = [b"%d" % n for n in range(9, -1, -1) if begin <= 400 * n <= end]
            assert [decode_record(record).body for record in found] == expected_bodies
        assert store.index_end == (BORN_MS + 3600, store.record_at(0) and messages(store)[-1].physical_offset)


def test_without_an_index_nothing_is_found(tmp_path: Path) -> None:
    with opened(tmp_path, message_index_enable=False) as store:
        append(store, b"a", properties={"KEYS": "k"})
        settle(store)
        assert bodies_by_key(store, "k") == []
        assert store.index_end == (0, 0)
        assert bodies(store) == [b"a"]
    assert not (tmp_path / "index").exists()


def test_delayed_messages_have_their_due_time_in_place_of_the_tag(tmp_path: Path) -> None:
    topic = "SCHEDULE_TOPIC_XXXX"
    levels = {"1": 1000, "3": 10_000, "18": 7_200_000, "99": 7_200_000}
    with opened(tmp_path) as store:
        for level in levels:
            append(store, b"", topic, properties={"DELAY": level, "TAGS": "A"}, now_ms=BORN_MS)
        append(store, b"", topic, properties={"TAGS": "A"}, now_ms=BORN_MS)
        append(store, b"", "T", properties={"DELAY": "3", "TAGS": "A"}, now_ms=BORN_MS)
        settle(store)
        codes = [store.tag_codes(topic, 0, n, n + 1) for n in range(5)]
        dues = [BORN_MS + delay for delay in levels.values()]
        assert codes == [{code} for code in (*dues, tag_code("A"))]
        assert store.tag_codes("T", 0, 0, 1) == {tag_code("A")}


def test_a_deleted_topic_is_gone_for_good(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"a", "gone", 3, properties={"KEYS": "a"})
        append(store, b"b", "stays", properties={"KEYS": "b"})
        assert len(list(store.dispatch_in_steps())) == 1
        store.delete_topic("gone")
        store.delete_topic("never there")
        assert store.get("gone", 3, 0, 32).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        assert not (tmp_path / "consumequeue" / "gone").exists()
        assert bodies(store, "stays") == [b"b"]
    with opened(tmp_path) as store:
        assert store.max_queue_offset("gone", 3) == 0
        append(store, b"new", "gone", 3)
        settle(store)
        assert bodies(store, "gone", 3) == [b"new"]


def test_what_was_pending_when_its_topic_was_deleted_is_gone_too(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"a")
        settle(store)
        append(store, b"b")
        store.delete_topic("T")
        settle(store)
        assert store.get("T", 0, 0, 32).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        append(store, b"c")
        settle(store)
        assert bodies(store) == [b"c"]


def test_a_topic_that_was_made_again_keeps_its_messages_over_any_end(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.open()
    for body in (b"old 0", b"old 1", b"old 2"):
        append(store, body)
    append(store, b"other", "U")
    store.delete_topic("T")
    append(store, b"new 0")
    append(store, b"new 1")
    settle(store)
    assert bodies(store) == [b"new 0", b"new 1"]
    abandon(store)  # there is no checkpoint of queues yet: all is dispatched again
    with opened(tmp_path) as store:
        assert bodies(store) == [b"new 0", b"new 1"]
        assert bodies(store, "U") == [b"other"]
        assert store.queue("T", 0).next_offset == 2


def test_a_deleted_topic_with_the_newest_entry_stays_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"a", "stays")
        append(store, b"b", "gone")
        settle(store)
        store.delete_topic("gone")
    with opened(tmp_path) as store:
        assert store.get("gone", 0, 0, 32).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        assert bodies(store, "stays") == [b"a"]


def test_a_queue_offset_that_makes_no_sense_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store(tmp_path)
    store.open()
    for number in range(3):
        position = append(store, b"%d" % number)
    append(store, b"other", "U")
    abandon(store)
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[position + 24] ^= 0x40  # in the queue offset, which no checksum covers
    file.write_bytes(data)
    with opened(tmp_path) as store:
        assert bodies(store) == [b"0", b"1"]
        assert bodies(store, "U") == [b"other"]
    assert "gets no further entries" in caplog.text


def test_facts_of_the_runtime(tmp_path: Path) -> None:
    clock = HandClock()
    with opened(tmp_path, clock=clock) as store:
        assert store.runtime_facts()["earliestMessageTimeStamp"] == "-1"
        append(store, b"a", now_ms=BORN_MS)
        facts = store.runtime_facts()
        assert facts["earliestMessageTimeStamp"] == str(BORN_MS)
        assert facts["commitLogMinOffset"] == "0"
        assert facts["commitLogMaxOffset"] == facts["dispatchBehindBytes"] == str(store.log.end_offset)
        assert 0 <= float(facts["commitLogDiskRatio"]) <= 1
        settle(store)
        facts = store.runtime_facts()
        assert (facts["dispatchBehindBytes"], facts["putMessageFailedTimes"]) == ("0", "0")
        assert store.head_in_memory("T", 0)


def test_a_topic_is_not_deleted_while_dispatch_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, complete: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(tmp_path, background=False) as store:
        append(store, b"a")
        with monkeypatch.context() as patched:
            patched.setattr(type(store.queues), "put", full)
            with pytest.raises(DiskFull, match=r"topic T can't be deleted before .*No space left"):
                store.delete_topic("T")
        settle(store)
        assert bodies(store) == [b"a"]
        store.delete_topic("T")
        assert store.max_queue_offset("T", 0) == 0


@pytest.mark.parametrize("name", golden_names)
def test_what_the_timer_keeps_stays_as_it_is(tmp_path: Path, name: str) -> None:
    root = extract(name, tmp_path)
    before = {path: path.read_bytes() for path in [*root.glob("timer*/*"), *timer_files(root)]}
    assert {path.parent.name for path in before} >= {"timerlog", "config"}
    with opened(root, **GOLDEN_SIZES) as store:
        append(store, b"more", "GoldenPlain")
        settle(store)
    assert {path: path.read_bytes() for path in before} == before


def timer_files(root: Path) -> list[Path]:
    return [root / "timerwheel", root / "config/timercheck", root / "config/timermetrics"]
