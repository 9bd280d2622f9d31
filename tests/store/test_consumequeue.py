"""One queue's files: entries, their order, their ends, and what a loss of power leaves."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import CorruptStore
from firearrow.store.batchqueue import UNIT_DTYPE, FileBatchQueue
from firearrow.store.consumequeue import FileConsumeQueue, WritableFileQueue
from firearrow.store.fs import FileSystem
from firearrow.store.queues import ENTRY, HasRecord, RecordPlace
from tests.store.stores import flush, reads_ahead

FILE_BYTES = 200  # ten entries
PRE_BLANK = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


def queue_in(directory: Path) -> FileConsumeQueue:
    queue = FileConsumeQueue(directory, "T", 0, FILE_BYTES)
    queue.load()
    return queue


def entries(first: int, count: int) -> bytes:
    """Entry n: a record of 100 + n bytes at 1000 n, tag code -n."""
    return b"".join(struct.pack(">qiq", n * 1000, 100 + n, -n) for n in range(first, first + count))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*"))}


def test_the_worked_example(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    queue.put(0, struct.pack(">qiq", 4096, 300, 2598919))
    [data] = contents(tmp_path).values()
    assert data[:20].hex() == "00000000000010000000012c000000000027a807"
    assert data[20:] == bytes(FILE_BYTES - 20)
    assert queue.entry(0) == (4096, 300, 2598919)
    queue.close()


@given(parts=st.lists(st.integers(1, 25), min_size=1, max_size=6), again=st.integers(0, 30))
def test_entries_roll_over_files_and_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, parts: list[int], again: int
) -> None:
    directory = tmp_path_factory.mktemp("queue")
    queue = queue_in(directory)
    total = 0
    for count in parts:
        known = min(again, total)
        queue.put(total - known, entries(total - known, count + known))
        total += count
        assert (queue.max_offset, queue.next_offset) == (total, total)
        assert queue.max_physical_offset == (total - 1) * 1000
    assert [queue.entry(n) for n in range(total)] == [(n * 1000, 100 + n, -n) for n in range(total)]
    data = entries(0, total)
    data += bytes(-len(data) % FILE_BYTES)
    assert b"".join(contents(directory).values()) == data
    assert list(contents(directory)) == [f"{n:020d}" for n in range(0, len(data), FILE_BYTES)]
    queue.close()
    queue.load()
    assert (queue.max_offset, queue.max_physical_offset) == (total, (total - 1) * 1000)
    queue.close()


def test_what_is_known_already_changes_nothing(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    queue.put(0, entries(0, 8))
    before = contents(tmp_path)
    queue.put(2, b"\xff" * 40)
    queue.put(0, b"\xff" * 160)
    assert contents(tmp_path) == before
    assert queue.max_offset == 8
    queue.close()


def test_reads_end_with_the_file_and_with_the_queue(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    queue.put(0, entries(0, 14))
    assert queue.read(7, 2) == entries(7, 2)
    assert queue.read(7, 100) == entries(7, 3)
    assert queue.read(10, 100) == entries(10, 4)
    assert queue.read(14, 100) == b""
    assert queue.read(19, 100) == b""
    assert queue.read(500, 1) == b""
    assert queue.read(0, 0) == b""
    assert (queue.gap_end(7), queue.gap_end(9), queue.gap_end(10)) == (10, 10, 20)
    with pytest.raises(IndexError):
        queue.entry(20)
    queue.close()


@pytest.mark.parametrize("first", [3, 10, 13, 19, 20])
def test_a_queue_may_begin_behind_what_the_log_has_lost(tmp_path: Path, first: int) -> None:
    queue = queue_in(tmp_path)
    with pytest.raises(CorruptStore, match="ends at 0"):
        queue.put(first, entries(first, 4))
    queue.put(first, entries(first, 4), complete=True)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (first, first + 4, first + 4)
    base = first // 10 * 10
    data = PRE_BLANK * (first - base) + entries(first, 4)
    assert b"".join(contents(tmp_path).values()) == data + bytes(-len(data) % FILE_BYTES)
    assert min(contents(tmp_path)) == f"{base * 20:020d}"
    queue.close()
    queue.load()
    queue.correct_min(0)
    assert (queue.min_offset, queue.max_offset) == (first, first + 4)
    queue.close()


def test_a_hole_is_refused(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    queue.put(0, entries(0, 3))
    with pytest.raises(CorruptStore, match="queue T-0 ends at 3, its next message has 5"):
        queue.put(5, entries(5, 1))
    assert queue.max_offset == 3
    queue.close()


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 25])
def test_where_entries_begin_at_or_after_a_place_in_the_log(tmp_path: Path, count: int) -> None:
    queue = queue_in(tmp_path)
    if count:
        queue.put(0, entries(0, count))
    for physical in (-1, 0, 1, 999, 1000, 1001, 9999, 10_000, 24_000, 99_000):
        model = sum(n * 1000 < physical for n in range(count))
        assert queue.first_at_or_after(physical) == model
    queue.correct_min(4001)
    assert queue.min_offset == min(5, count)
    queue.close()


@pytest.mark.parametrize("kept", range(0, 26, 5))
def test_cut_entries_are_gone_from_the_files(tmp_path: Path, kept: int) -> None:
    queue = queue_in(tmp_path)
    queue.put(0, entries(0, 25))
    queue.cut(kept * 1000)
    assert (queue.max_offset, queue.next_offset) == (kept, kept)
    assert queue.max_physical_offset == (kept - 1) * 1000 if kept else -1
    data = entries(0, kept)  # the first file stays
    rest = FILE_BYTES if not kept else -len(data) % FILE_BYTES
    assert b"".join(contents(tmp_path).values()) == data + bytes(rest)
    queue.put(kept, entries(kept, 12))
    assert queue.read(kept, 1) == entries(kept, 1)
    assert queue.max_offset == kept + 12
    queue.close()


def test_an_entry_without_size_ends_the_queue(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    queue.put(0, entries(0, 15))
    queue.close()
    path = tmp_path / f"{FILE_BYTES:020d}"
    data = bytearray(path.read_bytes())
    data[3 * 20 : 5 * 20] = bytes(40)
    path.write_bytes(data)
    queue.load()
    assert queue.max_offset == 13
    queue.close()


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_in(tmp_path)
    queue.put(0, entries(0, 8))

    def full(fs: FileSystem, path: Path, size_bytes: int, reserved_bytes: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(FileSystem, "create_file", full)
        with pytest.raises(OSError, match="No space"):
            queue.put(8, entries(8, 6))
    assert queue.max_offset == 10
    queue.put(8, entries(8, 6))
    assert queue.max_offset == 14
    assert queue.read(8, 2) + queue.read(10, 9) == entries(8, 6)
    queue.close()


def test_the_system_reads_nothing_ahead_in_its_files(tmp_path: Path) -> None:
    """Of a new file, it would make all pages for the first entry."""
    queue = queue_in(tmp_path)
    queue.put(0, entries(0, 1))
    assert reads_ahead(queue.segments.files[0].path) == [False]
    queue.close()
    again = queue_in(tmp_path)
    assert reads_ahead(again.segments.files[0].path) == [False]
    again.close()


SECTOR_BYTES = 512
UNITS = 150
RECORD_BYTES = 300
both_kinds = pytest.mark.parametrize("kind", [FileConsumeQueue, FileBatchQueue])


def places(first: int) -> list[RecordPlace]:
    """Record n has three messages in a queue of batches, else one."""
    return [RecordPlace("T", 0, n, first + n * 1000, RECORD_BYTES) for n in range(UNITS)]


def put(queue: WritableFileQueue, records: list[RecordPlace]) -> None:
    if isinstance(queue, FileConsumeQueue):
        rows = [ENTRY.pack(place.physical_offset, place.size, 7) for place in records]
        queue.put(records[0].queue_offset, b"".join(rows))
    else:
        assert isinstance(queue, FileBatchQueue)
        units: Any = np.zeros(len(records), UNIT_DTYPE)
        units["physical_offset"] = [place.physical_offset for place in records]
        units["size"] = RECORD_BYTES
        units["queue_offset"] = [place.queue_offset * 3 for place in records]
        units["messages"] = 3
        units["compacted"] = -1
        queue.put(units)


def after_a_loss(
    directory: Path, kind: type[WritableFileQueue], records: list[RecordPlace], on_disk: int, left: list[bool]
) -> WritableFileQueue:
    """The queue with its first units on the disk, and some sectors of the others."""
    file_bytes = UNITS // 2 * kind.unit_bytes
    queue = kind(directory, "T", 0, file_bytes)
    put(queue, records)
    queue.close()
    for number, path in enumerate(sorted(directory.iterdir())):
        now = path.read_bytes()
        kept = now[: max(on_disk * kind.unit_bytes - number * file_bytes, 0)].ljust(len(now), b"\0")
        sectors = range(0, file_bytes, SECTOR_BYTES)
        path.write_bytes(
            b"".join(
                (now if left[(number * 15 + n) % len(left)] else kept)[at : at + SECTOR_BYTES]
                for n, at in enumerate(sectors)
            )
        )
    again = kind(directory, "T", 0, file_bytes)
    again.load()
    return again


def log_of(kind: type[WritableFileQueue], records: list[RecordPlace], start: int) -> HasRecord:
    """A log that begins at ``start`` and holds some records."""
    messages = 3 if kind is FileBatchQueue else 1
    held = {place._replace(queue_offset=place.queue_offset * messages) for place in records}

    def has_record(place: RecordPlace) -> bool | None:
        return None if place.physical_offset < start else place in held

    return has_record


@both_kinds
@given(
    first=st.sampled_from([0, 998, 60_000, 65_500, 1 << 24, (1 << 40) - 5000, 1 << 48]),
    numbers=st.tuples(*[st.integers(0, UNITS)] * 3).map(sorted),
    left=st.lists(st.booleans(), min_size=1, max_size=14),
    log_start=st.sampled_from([0, 1]),
)
def test_nothing_is_left_but_what_was_on_the_disk(
    tmp_path_factory: pytest.TempPathFactory,
    kind: type[WritableFileQueue],
    first: int,
    numbers: list[int],
    left: list[bool],
    log_start: int,
) -> None:
    directory = tmp_path_factory.mktemp("queue")
    records = places(first)
    walked_from, on_disk, in_log = numbers
    queue = after_a_loss(directory, kind, records, on_disk, left)
    end = first + walked_from * 1000
    found, files = queue.max_offset, len(queue.segments.files)
    was_cut = queue.cut(end, log_of(kind, records[:in_log], min(first, log_start)))
    messages = 3 if kind is FileBatchQueue else 1
    assert queue.max_offset == queue.next_offset == walked_from * messages
    assert was_cut is (found > queue.max_offset or files > len(queue.segments.files))
    assert not queue.cut(end, log_of(kind, records[:in_log], 0))
    data = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    assert not any(data[walked_from * kind.unit_bytes :])
    if walked_from < UNITS:
        put(queue, records[walked_from:])
    assert queue.max_offset == UNITS * messages
    queue.close()


@both_kinds
@pytest.mark.parametrize("count", [5, 10, 15])
def test_a_queue_that_begins_again_during_a_flush_is_flushed_again(
    tmp_path: Path, kind: type[WritableFileQueue], count: int
) -> None:
    class Disk(FileSystem):
        during_sync: Callable[[], None] | None = None
        synced = b""

        def sync_file(self, path: Path) -> None:
            during, self.during_sync = self.during_sync, None
            if during is not None:
                during()
            self.synced = path.read_bytes()

    disk = Disk()
    queue = kind(tmp_path, "T", 0, UNITS * kind.unit_bytes, disk)
    put(queue, places(0)[:10])
    disk.during_sync = lambda: put(queue, places(1_000_000)[:count])
    flush(queue, fs=disk)
    disk.synced = b""
    flush(queue, fs=disk)
    assert disk.synced == b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert queue.flushed_bytes == count * kind.unit_bytes
    queue.close()


@both_kinds
def test_a_last_entry_whose_record_is_too_old_for_the_log_stays(tmp_path: Path, kind: type[WritableFileQueue]) -> None:
    """Else its queue offset would be given again."""
    torn = {FileConsumeQueue: 51, FileBatchQueue: 11}[kind]  # across two sectors, and zero in one
    records = places(0)[: torn + 1]
    queue = kind(tmp_path, "T", 0, UNITS * kind.unit_bytes)
    put(queue, records)
    assert queue.max_physical_offset == torn * 1000
    end = queue.max_offset
    asked: list[RecordPlace] = []

    def before_the_log(place: RecordPlace) -> None:
        asked.append(place)

    assert not queue.cut(1 << 30, before_the_log)
    assert [place.physical_offset for place in asked] == [torn * 1000]
    assert queue.max_offset == end
    queue.close()


def test_a_queue_that_has_lost_all_its_entries_keeps_its_offset(tmp_path: Path) -> None:
    queue = FileConsumeQueue(tmp_path, "T", 0, 600)
    put(queue, places(0)[:90])
    assert [path.name for path in queue.delete_expired(60_000)] == [f"{0:020d}", f"{600:020d}"]
    queue.close()
    for base in (0, 600):
        (tmp_path / f"{base:020d}").unlink()
    last = tmp_path / f"{1200:020d}"
    last.write_bytes(bytes(512) + last.read_bytes()[512:])
    for _ in range(2):
        queue = FileConsumeQueue(tmp_path, "T", 0, 600)
        queue.load()
        queue.cut(60_000, lambda place: None)
        assert queue.max_offset == queue.next_offset == 60
        assert last.read_bytes() == bytes(600)
        queue.close()
