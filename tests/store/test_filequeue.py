"""What a loss of power leaves of queues in files, whatever their units are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.store.batchqueue import UNIT_DTYPE, FileBatchQueue
from firearrow.store.consumequeue import FileConsumeQueue
from firearrow.store.filequeue import FileQueue
from firearrow.store.fs import FileSystem
from firearrow.store.queues import ENTRY, HasRecord, Place

SECTOR_BYTES = 512
UNITS = 150
RECORD_BYTES = 300
both_kinds = pytest.mark.parametrize("kind", [FileConsumeQueue, FileBatchQueue])


def places(first: int) -> list[Place]:
    """Record n has three messages in a queue of batches, else one."""
    return [Place("T", 0, n, first + n * 1000, RECORD_BYTES) for n in range(UNITS)]


def put(queue: FileQueue, records: list[Place]) -> None:
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
    directory: Path, kind: type[FileQueue], records: list[Place], on_disk: int, left: list[bool]
) -> FileQueue:
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


def log_of(kind: type[FileQueue], records: list[Place], start: int) -> HasRecord:
    """A log that begins at ``start`` and holds some records."""
    messages = 3 if kind is FileBatchQueue else 1
    held = {place._replace(queue_offset=place.queue_offset * messages) for place in records}

    def has_record(place: Place) -> bool | None:
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
    kind: type[FileQueue],
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
    tmp_path: Path, kind: type[FileQueue], count: int
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
    queue.flush(0)
    disk.synced = b""
    queue.flush(0)
    assert disk.synced == b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert queue.flushed_bytes == count * kind.unit_bytes
    queue.close()


@both_kinds
def test_a_last_entry_whose_record_is_too_old_for_the_log_stays(
    tmp_path: Path, kind: type[FileQueue]
) -> None:
    """Else its queue offset would be given again."""
    torn = {FileConsumeQueue: 51, FileBatchQueue: 11}[kind]  # across two sectors, and zero in one
    records = places(0)[: torn + 1]
    queue = kind(tmp_path, "T", 0, UNITS * kind.unit_bytes)
    put(queue, records)
    assert queue.max_physical_offset == torn * 1000
    end = queue.max_offset
    asked: list[Place] = []

    def before_the_log(place: Place) -> None:
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
