"""When the disk is asked, who is answered, and that nothing ends it."""

import asyncio
import errno
import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firearrow.services import Timer
from firearrow.store import MessageStore
from firearrow.store.acknowledging import MANY_WAITERS
from firearrow.store.config import StoreConfig
from firearrow.store.flushservice import ThreadWorker
from firearrow.store.fs import FileSystem
from tests.broker.fakes import HandClock
from tests.loglines import told
from tests.store.stores import append, bodies, make_store, opened, settle

Calls = queue.SimpleQueue[Callable[[], object]]


class SlowDisk(FileSystem):
    """Brings the log to the disk when it is let; a file that is just made, at once."""

    def __init__(self) -> None:
        self.made: set[Path] = set()
        self.asked = threading.Semaphore(0)
        self.let = threading.Semaphore(0)

    def sync_file(self, path: Path) -> None:
        if path.parent.name == "commitlog" and path in self.made:
            self.asked.release()
            assert self.let.acquire(timeout=10)
        self.made.add(path)
        super().sync_file(path)


class HandLoop:
    """An event loop that the test makes the calls of; what is to be done by time is not."""

    def __init__(self, calls: queue.SimpleQueue[Callable[[], object]]) -> None:
        self._calls = calls

    def time(self) -> float:
        return 0.0

    def call_soon(self, call: Callable[[], object], /) -> Timer:
        return self.call_soon_threadsafe(call)

    def call_later(self, seconds: float, call: Callable[[], object], /) -> Timer:
        return Never()

    def call_soon_threadsafe(self, call: Callable[[], object], /) -> Timer:
        self._calls.put(call)
        return Never()


class Never:
    """A call that is not made."""

    def cancel(self) -> None:
        return


async def start(store: MessageStore) -> None:
    for service in store.services:
        await service.start()


def syncing(root: Path, disk: SlowDisk) -> tuple[MessageStore, Calls]:
    """A store under SYNC_FLUSH, and what its threads hand to the event loop."""
    calls: Calls = queue.SimpleQueue()
    store = make_store(root, fs=disk, scheduler=HandLoop(calls), flush_disk_type="SYNC_FLUSH")
    store.open()
    asyncio.run(start(store))
    return store, calls


def test_one_flush_answers_all_who_came_before_it_in_one_call(tmp_path: Path) -> None:
    disk = SlowDisk()
    store, calls = syncing(tmp_path, disk)
    told: list[tuple[int, bool]] = []

    def wait(number: int) -> None:
        append(store, b"%d" % number)
        store.when_safe(store.log.end_offset, lambda done: told.append((number, done)))

    wait(0)
    assert disk.asked.acquire(timeout=10)
    for number in range(1, 9):
        wait(number)
    disk.let.release()
    calls.get(timeout=10)()
    assert told == [(0, True)]
    assert disk.asked.acquire(timeout=10)
    disk.let.release()
    calls.get(timeout=10)()
    assert told == [(number, True) for number in range(9)]
    assert calls.empty()
    store.close()


def test_the_next_flush_begins_once_the_last_is_answered(tmp_path: Path) -> None:
    disk = SlowDisk()
    disk.let.release(10)
    store, calls = syncing(tmp_path, disk)
    told: list[str] = []

    def wait(name: str) -> None:
        append(store, b"")
        store.when_safe(store.log.end_offset, lambda done: told.append(f"{name} {done}"))

    wait("a")
    answer = calls.get(timeout=10)
    assert disk.asked.acquire(timeout=10)
    wait("b")
    assert not disk.asked.acquire(blocking=False)
    answer()
    assert told == ["a True"]
    assert disk.asked.acquire(timeout=10)
    calls.get(timeout=10)()
    assert told == ["a True", "b True"]
    store.close()


def test_where_many_wait_the_next_flush_follows_at_once(tmp_path: Path) -> None:
    disk = SlowDisk()
    store, calls = syncing(tmp_path, disk)
    told: list[bool] = []
    for number in range(MANY_WAITERS + 1):
        append(store, b"")
        store.when_safe(store.log.end_offset, told.append)
        if number == 0:
            assert disk.asked.acquire(timeout=10)
    disk.let.release()
    assert disk.asked.acquire(timeout=10)
    assert told == []
    disk.let.release()
    for _ in range(2):
        calls.get(timeout=10)()
    assert told == [True] * (MANY_WAITERS + 1)
    store.close()


def test_who_comes_after_one_that_waited_too_long_is_flushed(tmp_path: Path) -> None:
    clock, disk = HandClock(), SlowDisk()
    told: list[str] = []
    answered = threading.Event()
    with opened(tmp_path, clock=clock, fs=disk) as store:
        append(store, b"a")
        store.when_safe(store.log.end_offset, lambda done: told.append(f"a {done}"))
        assert disk.asked.acquire(timeout=10)
        clock.seconds += 4
        append(store, b"b")

        def tell(done: bool) -> None:
            told.append(f"b {done}")
            answered.set()

        store.when_safe(store.log.end_offset, tell)
        clock.seconds += 1
        store.acknowledging.expire()
        disk.let.release(10)
        assert answered.wait(10)
    assert told == ["a False", "b True"]


def test_too_many_open_files_only_delay_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firearrow.store.flushservice.RETRY_SECONDS", 0.01)
    answered = threading.Event()
    refusals: list[OSError] = []

    class Crowded(FileSystem):
        def sync_file(self, path: Path) -> None:
            if refusals:
                raise refusals.pop()
            super().sync_file(path)

    with opened(tmp_path, fs=Crowded()) as store:
        append(store, b"a")
        refusals += [OSError(errno.EMFILE, "Too many open files")] * 3
        store.when_safe(store.log.end_offset, lambda done: answered.set() if done else None)
        assert answered.wait(10)
    assert refusals == []


def test_who_waits_too_long_is_told_and_the_message_stays(tmp_path: Path) -> None:
    clock, disk = HandClock(), SlowDisk()
    told: list[bool] = []
    with opened(tmp_path, clock=clock, fs=disk, sync_flush_timeout=2000) as store:
        append(store, b"a")
        store.when_safe(store.log.end_offset, told.append)
        assert disk.asked.acquire(timeout=10)
        clock.seconds += 1.5
        store.acknowledging.expire()
        assert told == []
        clock.seconds += 0.5
        store.acknowledging.expire()
        assert told == [False]
        settle(store)
        assert bodies(store) == [b"a"]
        disk.let.release(10)
    assert told == [False]
    with opened(tmp_path) as store:
        assert bodies(store) == [b"a"]


def test_a_flush_can_be_asked_for_without_waiting(tmp_path: Path) -> None:
    disk = SlowDisk()
    with opened(tmp_path, fs=disk) as store:
        append(store, b"a")
        store.flush_soon()
        assert disk.asked.acquire(timeout=10)
        append(store, b"b")
        store.flush_soon()
        disk.let.release(10)
        assert disk.asked.acquire(timeout=10), "what was asked for during a flush is flushed next"


class Turns:
    """A step that does what a list says, and tells when that is done."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.done = threading.Event()
        self.worker = ThreadWorker("turns", self.step)

    def step(self) -> float:
        if not self.errors:
            self.done.set()
            return 60.0
        self.worker.wake()
        error = self.errors.pop(0)
        if error is not None:
            raise error
        return 60.0

    def run(self) -> None:
        self.worker.start()
        assert self.done.wait(10)
        self.worker.stop()


def test_nothing_that_a_step_raises_ends_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    refused = OSError(5, "Input/output error")
    closed = RuntimeError("Event loop is closed")
    with caplog.at_level(logging.INFO):
        Turns(refused, refused, None, refused, closed, ValueError("mmap closed"), None).run()
    assert [(line["event"], line["error"]) for line in told(caplog)] == [
        ("flush failed", "OSError: [Errno 5] Input/output error"),
        ("flush failed", "RuntimeError: Event loop is closed"),
        ("flush failed", "ValueError: mmap closed"),
    ]
    assert [record.exc_info is not None for record in caplog.records] == [False, True, True]


MACHINE_LOSES = "ASYNC_FLUSH: a machine crash may lose the last "
PROCESS_LOSES = "; a process crash loses nothing"


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ({}, f"{MACHINE_LOSES}500 ms (while less than 16 KiB comes: 10000 ms){PROCESS_LOSES}"),
        ({"flush_commit_log_least_pages": 0, "flush_interval_commit_log": 20}, f"{MACHINE_LOSES}20 ms{PROCESS_LOSES}"),
        (
            {"flush_disk_type": "SYNC_FLUSH"},
            "SYNC_FLUSH: neither a machine nor a process crash loses what was acknowledged",
        ),
    ],
)
def test_the_loss_window_is_told(
    tmp_path: Path, keys: dict[str, Any], window: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert StoreConfig(**keys).loss_window == window
    with caplog.at_level(logging.INFO), opened(tmp_path, **keys):
        assert {"event": "flush policy", "flush": window} in told(caplog)
