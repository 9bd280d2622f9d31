"""What reaches the disk in which order, and what follows when the disk refuses."""

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from firearrow.store import FlushRefused
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.fs import FileSystem
from tests.broker.fakes import HandClock
from tests.store.stores import BORN_MS, KiB, append, bodies, opened, settle


class Disk(FileSystem):
    """Notes what is brought to the disk, by its path in the store; refuses what it is told to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.synced: list[str] = []
        self.refusing = ""
        self.error = errno.EIO

    def sync_file(self, path: Path) -> None:
        self.note(path)
        super().sync_file(path)

    def sync_directory(self, path: Path) -> None:
        self.note(path)
        super().sync_directory(path)

    def replace_head(self, path: Path, data: bytes, size_bytes: int) -> None:
        self.note(path)
        super().replace_head(path, data, size_bytes)

    def note(self, path: Path) -> None:
        name = str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)
        if self.refusing and name.startswith(self.refusing):
            raise OSError(self.error, "the disk refuses")
        self.synced.append(name)

    def take(self) -> list[str]:
        """What was synced since the last call."""
        taken, self.synced = self.synced, []
        return taken


FIRST = "0" * 20
LOG = f"commitlog/{FIRST}"
QUEUE = f"consumequeue/T/0/{FIRST}"
QUEUE_NAMES = ["consumequeue/T/0", "consumequeue/T", "consumequeue", "."]


def test_a_store_without_threads_flushes_when_it_is_told_to(tmp_path: Path) -> None:
    clock, disk = HandClock(), Disk(tmp_path)
    threads = threading.active_count()
    with opened(tmp_path, background=False, clock=clock, fs=disk) as store:
        append(store, b"a" * 40 * KiB)
        settle(store)  # more than half of the file is used: the next one is made here
        assert len(list((tmp_path / "commitlog").iterdir())) == 2
        disk.take()
        store.flush_step()
        assert disk.take() == []
        clock.seconds += 0.5
        store.flush_step()
        assert disk.take() == [LOG]
        assert threading.active_count() == threads


def test_log_then_queues_then_names_then_checkpoint(tmp_path: Path) -> None:
    clock, disk = HandClock(), Disk(tmp_path)
    with opened(tmp_path, background=False, clock=clock, fs=disk) as store:
        append(store, b"a", properties={"KEYS": "k"})
        settle(store)
        disk.take()
        clock.seconds += 60
        store.flush_step()
        assert disk.take() == [LOG, QUEUE, *QUEUE_NAMES, "checkpoint"]
        last = Checkpoint.load(tmp_path / "checkpoint")
        assert (last.log_ms, last.queues_ms, last.index_ms) == (BORN_MS + 5, BORN_MS + 5, 0)
        clock.seconds += 60
        store.flush_step()
        assert disk.take() == [], "nothing is new"
        append(store, b"b")
        settle(store)
        clock.seconds += 60
        store.flush_step()
        assert disk.take() == [LOG, QUEUE, "checkpoint"]


def test_a_queue_file_that_is_new_has_its_name_brought_to_the_disk(tmp_path: Path) -> None:
    clock, disk = HandClock(), Disk(tmp_path)
    with opened(tmp_path, background=False, clock=clock, fs=disk) as store:
        for number in range(20):
            append(store, b"%d" % number)
        settle(store)
        clock.seconds += 60
        store.flush_step()
        disk.take()
        append(store, b"in the second file of 20 entries")
        settle(store)
        clock.seconds += 60
        store.flush_step()
        names = disk.take()
    assert names == [LOG, f"consumequeue/T/0/{400:020d}", *QUEUE_NAMES, "checkpoint"]


def test_a_full_index_file_is_flushed_with_all_queues_the_last_at_the_close(tmp_path: Path) -> None:
    clock, disk = HandClock(), Disk(tmp_path)
    with opened(tmp_path, background=False, clock=clock, fs=disk) as store:
        for number in range(250):
            append(store, b"", properties={"KEYS": f"k{number}"}, now_ms=BORN_MS + number)
        settle(store)
        full, filling = sorted(path.name for path in (tmp_path / "index").iterdir())
        disk.take()
        clock.seconds += 60
        store.flush_step()
        synced = disk.take()
        assert synced[-2:] == [f"index/{full}", "checkpoint"]
        assert f"index/{filling}" not in synced
        assert Checkpoint.load(tmp_path / "checkpoint").index_ms == BORN_MS + 198
    assert f"index/{filling}" in disk.take()
    assert Checkpoint.load(tmp_path / "checkpoint").index_ms == BORN_MS + 249


def test_little_is_flushed_by_the_thorough_interval_only(tmp_path: Path) -> None:
    clock, disk = HandClock(), Disk(tmp_path)
    with opened(tmp_path, background=False, clock=clock, fs=disk) as store:
        append(store, b"small")
        settle(store)
        disk.take()
        for _ in range(19):
            clock.seconds += 0.5
            store.flush_step()
        assert [name for name in disk.take() if name != "checkpoint"] == []
        clock.seconds += 0.5
        store.flush_step()
        assert LOG in disk.take()
        append(store, bytes(16 * KiB))
        clock.seconds += 0.5
        store.flush_step()
        assert LOG in disk.take(), "four pages are enough"


def test_queues_are_flushed_by_pages_between_the_thorough_flushes(tmp_path: Path) -> None:
    clock, disk = HandClock(), Disk(tmp_path)
    sizes: dict[str, Any] = {"mapped_file_size_consume_queue": 20_000, "mapped_file_size_commit_log": 256 * KiB}
    with opened(tmp_path, background=False, clock=clock, fs=disk, **sizes) as store:
        for count, flushed in ((408, False), (2, True)):  # 8,192 bytes are 409.6 entries
            for _ in range(count):
                append(store, b"")
            settle(store)
            disk.take()
            clock.seconds += 1
            store.flush_step()
            assert (QUEUE in disk.take()) is flushed
    assert Checkpoint.load(tmp_path / "checkpoint").queues_ms == BORN_MS + 5


def test_the_names_above_a_new_store_are_on_the_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    root = tmp_path / "a" / "store"
    with opened(root, background=False, fs=disk) as store:
        append(store, b"a")
        assert {".", "a", "a/store", "a/store/commitlog"} <= set(disk.take())


def test_a_log_that_the_disk_refuses_is_never_confirmed_again(tmp_path: Path) -> None:
    clock, disk = HandClock(), Disk(tmp_path)
    told: list[bool] = []
    refusals: list[FlushRefused] = []
    with opened(tmp_path, background=False, clock=clock, fs=disk) as store:
        store.flush_refused.listen(refusals.append)
        append(store, b"a")
        store.when_safe(store.log.end_offset, told.append)
        store.flush_step()
        append(store, b"b")
        settle(store)
        assert refusals == []
        disk.refusing = "commitlog"
        store.when_safe(store.log.end_offset, told.append)
        with pytest.raises(OSError, match="refuses"):
            store.flush_step()
        assert told == [True, False]
        disk.refusing = ""
        disk.take()
        store.when_safe(store.log.end_offset, told.append)
        clock.seconds += 60
        with pytest.raises(OSError, match="refuses"):
            store.flush_step()
        assert told == [True, False, False]
        assert ["refuses" in str(refusal.error) for refusal in refusals] == [True]
        assert bodies(store) == [b"a", b"b"]
    assert disk.take() == []
    assert Checkpoint.load(tmp_path / "checkpoint") == Checkpoint()
    assert (tmp_path / "abort").exists()
    with opened(tmp_path) as store:
        assert bodies(store) == [b"a", b"b"]
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("refused", ["consumequeue/T/0/", "consumequeue", "index"])
def test_the_checkpoint_stays_where_queues_or_index_can_not_be_flushed(tmp_path: Path, refused: str) -> None:
    clock, disk = HandClock(), Disk(tmp_path)
    with opened(tmp_path, background=False, clock=clock, fs=disk) as store:
        for number in range(250):
            append(store, b"%d" % number, properties={"KEYS": f"k{number}"})
        settle(store)
        clock.seconds += 60
        disk.refusing = refused
        for _ in range(2):
            with pytest.raises(OSError, match="refuses"):
                store.flush_step()
            disk.refusing = ""
            clock.seconds += 60
        told: list[bool] = []
        append(store, b"last")
        store.when_safe(store.log.end_offset, told.append)
        with pytest.raises(OSError, match="refuses"):
            store.flush_step()
        assert told == [True], "the log is another matter"
    assert Checkpoint.load(tmp_path / "checkpoint") == Checkpoint()
    assert (tmp_path / "abort").exists()
    with opened(tmp_path) as store:
        assert len(bodies(store)) == 251


def test_too_many_open_files_say_nothing_of_the_disk(tmp_path: Path) -> None:
    clock, disk = HandClock(), Disk(tmp_path)
    disk.error = errno.EMFILE
    told: list[bool] = []
    with opened(tmp_path, background=False, clock=clock, fs=disk) as store:
        append(store, b"a")
        settle(store)
        for refused in ("commitlog", "consumequeue/T/0/", "consumequeue", "checkpoint"):
            disk.refusing = refused
            clock.seconds += 60
            store.when_safe(store.log.end_offset, told.append)
            with pytest.raises(OSError, match="refuses"):
                store.flush_step()
        disk.refusing = ""
        disk.take()
        clock.seconds += 60
        store.flush_step()
        assert disk.take() == ["checkpoint"]
    assert told == [True] * 4
    assert not (tmp_path / "abort").exists()


def test_the_log_is_flushed_at_the_close_though_its_queue_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path)
    told: list[bool] = []

    def full(fs: FileSystem, path: Path, size_bytes: int, reserved_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(tmp_path, background=False, fs=disk) as store:
        append(store, b"a")
        monkeypatch.setattr(FileSystem, "create_file", full)
        store.when_safe(store.log.end_offset, told.append)
    assert told == [True]
    assert (tmp_path / "abort").exists()


def test_what_is_deleted_meanwhile_needs_no_flush(tmp_path: Path) -> None:
    clock = HandClock()

    class Deleting(Disk):
        def sync_file(self, path: Path) -> None:
            if path.parent.parent.name == "T":
                store.delete_topic("T")
            super().sync_file(path)

    with opened(tmp_path, background=False, clock=clock, fs=Deleting(tmp_path)) as store:
        append(store, b"a")
        append(store, b"b", "U")
        settle(store)
        clock.seconds += 60
        store.flush_step()
        assert bodies(store, "U") == [b"b"]
    assert not (tmp_path / "abort").exists()


AHEAD_MS = 400 * 86_400_000


def saved_ms(root: Path) -> list[int]:
    """The times of the checkpoint that is on the disk, since BORN_MS."""
    found = Checkpoint.load(root / "checkpoint")
    return [ms - BORN_MS for ms in (found.log_ms, found.queues_ms)]


def test_the_checkpoint_goes_back_before_store_times_do(tmp_path: Path) -> None:
    """Recovery takes what was stored before its times for flushed."""
    clock = HandClock()
    with opened(tmp_path, clock=clock, background=False) as store:
        append(store, b"ahead", now_ms=BORN_MS + AHEAD_MS)
        settle(store)
        clock.seconds += 61
        store.flush_step()
        assert saved_ms(tmp_path) == [AHEAD_MS, AHEAD_MS]
        append(store, b"now", now_ms=BORN_MS + 7)
        assert saved_ms(tmp_path) == [7, 7]
        append(store, b"later", now_ms=BORN_MS + 9)
        clock.seconds += 61
        store.flush_step()  # dispatch has yet to come to the new time
        assert saved_ms(tmp_path) == [9, 9]


def test_store_times_wait_while_the_checkpoint_can_not_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, clock = Disk(tmp_path), HandClock()
    with opened(tmp_path, fs=disk, clock=clock, background=False) as store:
        append(store, b"", now_ms=BORN_MS + AHEAD_MS)
        clock.seconds += 61
        store.flush_step()
        disk.refusing, disk.error = "checkpoint", errno.ENOSPC
        for _ in range(3):
            append(store, b"", now_ms=BORN_MS + 7)
        assert store.log.last_store_ms == BORN_MS + AHEAD_MS
        assert caplog.text.count("can't follow it yet") == 1
        disk.refusing = ""
        append(store, b"", now_ms=BORN_MS + 7)
        assert store.log.last_store_ms == BORN_MS + AHEAD_MS, "asked once a second"
        clock.seconds += 1
        append(store, b"", now_ms=BORN_MS + 8)
        assert store.log.last_store_ms == BORN_MS + 8
