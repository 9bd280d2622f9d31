"""One queue's files: entries, their order, their ends."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import CorruptStore
from firearrow.store.consumequeue import FileConsumeQueue
from firearrow.store.fs import FileSystem

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
    data = entries(0, kept)
    assert b"".join(contents(tmp_path).values()) == data + bytes(-len(data) % FILE_BYTES)
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
    assert "rr" in map_flags(queue.segments.files[0].path)
    queue.close()
    again = queue_in(tmp_path)
    assert "rr" in map_flags(again.segments.files[0].path)
    again.close()


def map_flags(path: Path) -> list[str]:
    """What Linux notes of the map of a file, such as ``rr``: it is read here and there."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(str(path)):
            break
    return next(line.split()[1:] for line in lines if line.startswith("VmFlags:"))
