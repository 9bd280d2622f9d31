"""What a start finds wrong with single files, and makes good."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firearrow.message.model import MessageView
from firearrow.message.record import iter_records
from firearrow.store import MessageStore, recovery
from firearrow.store.checkpoint import Checkpoint
from firearrow.store.offline import Layout, verify
from firearrow.store.recovery import StartProgress
from tests.broker.fakes import HandClock
from tests.loglines import told
from tests.store.stores import KiB, abandon, append, bodies, make_store, messages, opened, power_off, settle
from tests.store.test_engine import check_complete, fill, filled, tree

QUEUE = "consumequeue/T/1"
HOURS = ";".join(map(str, range(24)))


def shorten(queue: Path) -> None:
    file = min(queue.iterdir())
    file.write_bytes(file.read_bytes()[:-7])


def lose_a_file(queue: Path) -> None:
    sorted(queue.iterdir())[1].unlink()


def misname(queue: Path) -> None:
    for file in sorted(queue.iterdir(), reverse=True):
        file.rename(queue / f"{int(file.name) + 7:020d}")


@pytest.mark.parametrize("damage", [shorten, lose_a_file, misname])
@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_that_can_not_be_used_is_kept_aside_and_rebuilt(
    tmp_path: Path, damage: Callable[[Path], None], clean: bool
) -> None:
    sent = filled(tmp_path)
    before = tree(tmp_path / QUEUE)
    damage(tmp_path / QUEUE)
    damaged = tree(tmp_path / QUEUE)
    if not clean:
        (tmp_path / "abort").touch()
    with opened(tmp_path) as store:
        check_complete(store, sent)
        append(store, b"more", queue_id=1)
        settle(store)
        assert messages(store, queue_id=1)[-1].queue_offset == 150
    assert tree(tmp_path / "quarantine" / QUEUE) == damaged
    with opened(tmp_path) as store:
        assert bodies(store, "T", 1) == [*sent[1::2], b"more"]
    for name, data in before.items():
        assert tree(tmp_path / QUEUE)[name].startswith(data.rstrip(b"\0"))


def test_a_queue_that_lost_its_files_is_rebuilt_when_a_message_shows_it(tmp_path: Path) -> None:
    sent = filled(tmp_path, 200)
    store_end = max(view.physical_offset for view in iter_all(tmp_path))
    store = make_store(tmp_path)
    store.open()
    fill(store, [b"more %d" % n for n in range(100)], 200)
    abandon(store)
    shutil.rmtree(tmp_path / QUEUE)
    Checkpoint(queues_physical_offset=store_end).save(tmp_path / "checkpoint")
    (tmp_path / "settled").unlink()
    with opened(tmp_path) as store:
        check_complete(store, sent + [b"more %d" % n for n in range(100)])


def iter_all(root: Path) -> list[MessageView]:
    return [view for file in sorted((root / "commitlog").iterdir()) for view in iter_records(file.read_bytes())]


def test_lost_messages_are_bridged_by_the_next_one(tmp_path: Path) -> None:
    """A log that was repaired after damage lacks messages; their queues go on behind them."""
    with opened(tmp_path) as store:
        for number in range(9):
            append(store, b"%d" % number, queue_id=number % 2)
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    for number in (2, 4):  # queue 0 at 1 and 2: nothing dispatches what was rolled back
        data[iter_all(tmp_path)[number].physical_offset + 39] |= 0xC
    log.write_bytes(data)
    shutil.rmtree(tmp_path / "consumequeue")
    with opened(tmp_path) as store:
        assert bodies(store, "T", 1) == [b"1", b"3", b"5", b"7"]
        assert bodies(store, "T", 0) == [b"0", b"6", b"6", b"6", b"8"]
        append(store, b"new")
        settle(store)
        assert messages(store, start=5)[0].queue_offset == 5


@pytest.mark.parametrize("ended", ["killed", "lost"])
def test_the_first_record_of_a_log_may_be_torn_at_any_byte(tmp_path: Path, ended: str) -> None:
    """As of a slave that is killed when it has got a part of it."""
    first = tmp_path / "first"
    store = make_store(first)
    store.open()
    append(store, b"the first", properties={"KEYS": "k"})
    size = store.log.end_offset
    abandon(store)
    data = (first / "commitlog" / f"{0:020d}").read_bytes()
    for at in range(1, size + 1):
        root = tmp_path / str(at)
        shutil.copytree(first, root)
        if ended == "lost":
            (root / "settled").unlink()
        (root / "commitlog" / f"{0:020d}").write_bytes(zero_from(data, at))
        with opened(root, background=False) as store:
            append(store, b"after")
            settle(store)
            assert bodies(store) == [b"the first"] * (at == size) + [b"after"]
        shutil.rmtree(root)


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_a_blank_that_has_lost_its_size_gets_it_back(tmp_path: Path, lost: int) -> None:
    """As when only the sector with its magic reached the disk."""
    root = tmp_path / "store"
    store = make_store(root)
    store.open()
    append(store, bytes(64 * KiB - 400), "Large")
    blank = store.log.end_offset
    append(store, bytes(400), "Large")
    abandon(store)
    (root / "settled").unlink()
    first = root / "commitlog" / f"{0:020d}"
    data = first.read_bytes()
    size = (64 * KiB - blank).to_bytes(4, "big")
    assert data[blank : blank + 4] == size
    first.write_bytes(data[: blank + 4 - lost] + bytes(lost) + data[blank + 4 :])
    with opened(root, background=False) as store:
        settle(store)
        assert len(messages(store, "Large")) == 2
    assert first.read_bytes() == data


TAIL = [b"first of three", b"", b"the last of all"]


def tail(root: Path) -> tuple[bytes, list[int]]:
    """A killed store; gives its last log file, where in it the last three records start, and
    their end."""
    store = make_store(root)
    store.open()
    append(store, bytes(64 * KiB - 400), "Large")  # leaves room for nothing
    for number in range(5):
        append(store, b"before %d" % number, queue_id=number % 2)
    starts = [
        append(store, body, queue_id=number % 2, properties={"KEYS": "k", "TAGS": "t"})
        for number, body in enumerate(TAIL)
    ]
    starts.append(store.log.end_offset)
    settle(store)
    abandon(store)
    (root / "settled").unlink()
    (root / "checkpoint").unlink(missing_ok=True)
    return last_log(root).read_bytes(), [start - 64 * KiB for start in starts]


def last_log(root: Path) -> Path:
    return root / "commitlog" / f"{64 * KiB:020d}"


def cut_off(data: bytes, at: int) -> bytes:
    return data[:at]


def zero_from(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(len(data) - at)


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x21]) + data[at + 1 :]


@pytest.mark.parametrize("damage", [cut_off, zero_from, flip])
def test_a_tail_may_be_torn_at_any_byte(tmp_path: Path, damage: Callable[[bytes, int], bytes]) -> None:
    """What is before the damage is served, the rest is gone or as it was, and the log goes on."""
    data, starts = tail(tmp_path / "0")
    for at in range(starts[0], starts[-1]):
        root = tmp_path / str(at)
        shutil.copytree(tmp_path / "0", root)
        whole = sum(end <= at for end in starts[1:])
        last_log(root).write_bytes(damage(data, at))
        with opened(root, background=False) as store:
            found = [bodies(store, "T", queue_id) for queue_id in (0, 1)]
            before = [[b"before 0", b"before 2", b"before 4"], [b"before 1", b"before 3"]]
            for number in range(len(TAIL)):
                queue = found[number % 2][len(before[number % 2]) :][: number // 2 + 1]
                if number < whole:
                    assert TAIL[number] in queue
                else:
                    assert all(body in TAIL for body in queue)
            if damage is not flip:
                assert sum(map(len, found)) == 5 + whole
            append(store, b"after")
            settle(store)
            assert bodies(store)[-1] == b"after"
        shutil.rmtree(root)


def test_tools_end_the_log_where_a_start_does(tmp_path: Path) -> None:
    """A process that is killed while it copies a record leaves the rest of it zero."""
    data, starts = tail(tmp_path / "0")
    for at in [*range(starts[-2], starts[-1], 11), starts[-1] - 1]:
        root = tmp_path / str(at)
        shutil.copytree(tmp_path / "0", root)
        last_log(root).write_bytes(zero_from(data, at))
        told = verify(Layout(root))
        assert verify(Layout(root), stretch_bytes=at) == told
        found = {finding.invariant: finding for finding in told.findings}
        with opened(root, background=False) as store:
            assert told.log_end == store.log.end_offset
        assert ("log-tail" in found) is (starts[-2] + 3 < at)
        if at > starts[-2] + 3:
            assert found["log-tail"].physical_offset == 64 * KiB + starts[-2]
        shutil.rmtree(root)


STARTS = """
import ctypes, mmap, sys
from tests.store.stores import make_store
from firearrow.store.fs import FileSystem

def address(mapped):
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))

class AtTheEdge(FileSystem):
    def map_file(self, path):
        mapped, kept = super().map_file(path), []
        if len(mapped) % mmap.PAGESIZE == 0:  # else there is room behind it
            upper = mapped
            while address(mapped) + len(mapped) != address(upper):
                kept.append(upper)
                upper, mapped = mapped, super().map_file(path)
            upper.close()
        return mapped

for root in sys.argv[1:]:
    store = make_store(root, fs=AtTheEdge())
    store.open(background=False)
    store.close()
print("all open")
"""


def test_a_start_reads_nothing_behind_the_map_of_a_file(tmp_path: Path) -> None:
    """`mmap.find` does, before Python 3.11.5: of seven ends in a row, some ended the process."""
    data, starts = tail(tmp_path / "0")
    roots = []
    for at in range(starts[-2] + 5, starts[-2] + 12):
        root = tmp_path / str(at)
        shutil.copytree(tmp_path / "0", root)
        last_log(root).write_bytes(zero_from(data, at))
        roots.append(str(root))
    ran = subprocess.run([sys.executable, "-c", STARTS, *roots], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "all open\n"), ran.stderr


@pytest.mark.parametrize("step_bytes", [1000, 50_000, 120_000, 1_000_000])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_killed_process_costs_a_step_of_dispatch(
    tmp_path: Path, step_bytes: int, deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_DISPATCHED_BYTES", step_bytes)
    clock = HandClock()
    options: dict[str, Any] = {"mapped_file_size_consume_queue": 8000}  # a file outlives many of the log
    store = make_store(tmp_path, file_reserved_time=0, delete_when=HOURS, clock=clock, **options)
    store.open(background=False)
    sent = [b"%d " % number + bytes(1000) for number in range(200)]
    fill(store, sent)
    settle(store)
    if deleted:
        store.when_safe(store.log.end_offset, lambda done: None)
        clock.seconds += 61
        store.flush_step()
        store.clean()
    start = store.log.start_offset
    assert (start > 0) is deleted
    abandon(store)
    # What the last step has put into one queue and not into the other.
    queue = max((tmp_path / QUEUE).iterdir())
    entries = queue.read_bytes().rstrip(b"\0")
    queue.write_bytes(entries[: len(entries) // 20 * 20 - 20].ljust(8000, b"\0"))
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    with opened(tmp_path, **options) as store:
        assert store.log.start_offset == start
        for number in (0, 1):
            kept = bodies(store, "T", number)
            assert kept == sent[number::2][-len(kept) :]
            assert store.max_queue_offset("T", number) == 100
            assert len(kept) == 100 or deleted


@pytest.mark.parametrize("kind", ["usual", "light", "of batches"])
@pytest.mark.parametrize("record_left", [False, True])
def test_an_entry_torn_by_a_loss_of_power_is_none(tmp_path: Path, kind: str, record_left: bool) -> None:
    """The sector with the beginning of a last entry is lost, the one with its end is not."""
    unit_bytes, number, sector = (46, 11, 1) if kind == "of batches" else (20, 102, 4)
    topic = "%LMQ%a" if kind == "light" else "T"
    options: dict[str, Any] = {
        "mapped_file_size_consume_queue": 4000,
        "mapper_file_size_batch_consume_queue": 46 * 50,
        "enable_lmq": True,
        "enable_multi_dispatch": True,
    }

    def make(root: Path) -> MessageStore:
        store = make_store(root, wants_batches=lambda name: name == "T" and kind == "of batches", **options)
        store.open(background=False)
        return store

    def send(store: MessageStore, at: int) -> int:
        names = f"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x01{at}\x02"
        properties = names.encode() if kind == "light" else b""
        return append(store, b"%d" % at, properties=properties)

    store = make(tmp_path / "whole")
    for at in range(number):
        send(store, at)
    append(store, bytes(63 * KiB), "Large")  # begins a file: the walk starts with it
    store.close()
    store = make(tmp_path / "whole")
    [file] = store.queue(topic, 0).segments.files  # type: ignore[attr-defined]
    before = file.path.read_bytes()
    place = send(store, number)
    settle(store)
    assert store.max_queue_offset(topic, 0) == number + 1
    root = tmp_path / "left"
    shutil.copytree(tmp_path / "whole", root)
    power_off(store)
    left = root / file.path.relative_to(tmp_path / "whole")
    now = left.read_bytes()
    assert number * unit_bytes < sector * 512 < (number + 1) * unit_bytes
    left.write_bytes(before[: sector * 512] + now[sector * 512 :])
    if not record_left:
        log = last_log(root)
        log.write_bytes(zero_from(log.read_bytes(), place - 64 * KiB))
    for _ in range(2):
        store = make(root)
        count = number + record_left
        assert store.max_queue_offset(topic, 0) == count
        assert bodies(store, topic) == [b"%d" % at for at in range(count)]
        store.close()
    store = make(root)
    send(store, count)
    settle(store)
    assert bodies(store, topic)[-2:] == [b"%d" % (count - 1), b"%d" % count]
    store.close()


def test_entries_behind_a_gap_are_none(tmp_path: Path) -> None:
    """Else the next start would find the end of the queue behind them."""
    options: dict[str, Any] = {"mapped_file_size_consume_queue": 4000}
    whole, left = tmp_path / "whole", tmp_path / "left"
    with opened(whole, **options) as store:
        fill(store, [b"%d" % at for at in range(20)])
        append(store, bytes(64 * KiB - 400), "Large")  # begins a file: the walk starts with it
    store = make_store(whole, **options)
    store.open(background=False)
    shutil.copytree(whole, left)
    fill(store, [b"lost"] * 320)
    settle(store)
    for file in (whole / QUEUE).parent.glob("*/*"):
        path = left / file.relative_to(whole)
        path.write_bytes(path.read_bytes()[:2560] + file.read_bytes()[2560:])
        assert any(path.read_bytes()[2560:])
    power_off(store)
    with opened(left, background=False, **options) as store:
        assert [store.max_queue_offset("T", queue_id) for queue_id in (0, 1)] == [10, 10]
        append(store, bytes(60 * KiB), "Large")  # the log comes to where the entries point
        append(store, bytes(60 * KiB), "Large")
        fill(store, [b"after"] * 190)
    with opened(left, background=False, **options) as store:
        assert [store.max_queue_offset("T", queue_id) for queue_id in (0, 1)] == [105, 105]
        assert [len(bodies(store, "T", queue_id)) for queue_id in (0, 1)] == [105, 105]


def test_a_file_that_begins_in_the_millisecond_of_the_last_flush_may_follow_a_hole(tmp_path: Path) -> None:
    """All messages have one store time: which of them were flushed, the checkpoint can't tell."""
    options: dict[str, Any] = {"store_type": "defaultRocksDB", "mapped_file_size_commit_log": 4 * KiB}
    store = make_store(tmp_path, **options)
    store.open()
    places = [append(store, b"%d" % number) for number in range(60)]
    store_ms = store.log.last_store_ms
    abandon(store)
    Checkpoint(log_ms=store_ms).save(tmp_path / "checkpoint")
    (tmp_path / "settled").unlink()
    assert places[-1] > 4 * KiB
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(places[5])
        file.write(bytes(4 * KiB - places[5]))
    with opened(tmp_path, **options) as store:
        assert bodies(store, "T", 0) == [b"0", b"1", b"2", b"3", b"4"]
        assert store.log.end_offset == places[5]


def test_a_record_whose_last_byte_begins_a_sector_is_whole(tmp_path: Path) -> None:
    """Without properties that byte is zero, as is what a loss of power has left of the sector."""
    store = make_store(tmp_path)
    store.open(background=False)
    append(store, b"")
    size = store.log_end_offset
    append(store, bytes(range(256)) * 2 + b"x" * ((1 - 2 * size - 512) % 512))
    end = store.log_end_offset
    assert end % 512 == 1
    abandon(store)
    (tmp_path / "settled").unlink()
    with opened(tmp_path, background=False) as again:
        assert again.log_end_offset == end


# --- What a long start says, and that a short one says nothing ---


MIB = 1 << 20


def test_says_now_and_then_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    progress = StartProgress("checking", clock.monotonic)
    with caplog.at_level(logging.INFO):
        for step in range(1, 101):
            clock.seconds += 0.5
            progress(step * MIB, 100 * MIB)
    assert len(caplog.messages) == 25
    always = {"event": "start goes on", "work": "checking", "total_bytes": 100 * MIB}
    first = {"done_bytes": 4 * MIB, "done_percent": 4, "left_seconds": 48}
    last = {"done_bytes": 100 * MIB, "done_percent": 100, "left_seconds": 0}
    assert told(caplog)[0] == always | first
    assert told(caplog)[-1] == always | last


def test_says_nothing_when_it_is_quick(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    progress = StartProgress("checking", clock.monotonic)
    with caplog.at_level(logging.INFO):
        for step in range(100):
            clock.seconds += 0.01
            progress(step, 100)
        clock.seconds += 10
        progress(0, 0)
    assert caplog.messages == []
