"""What is in memory of a mapped file, and how it gets there."""

import mmap
import os
from pathlib import Path

import pytest

from firearrow.store.reading.storage import LocalStorage
from firearrow.store.residency import KNOWN_SECONDS, FileRange, Resident, fetch, is_resident
from firearrow.store.segments import Segment
from tests.broker.fakes import HandClock
from tests.store.evicting import evict

PAGE = mmap.PAGESIZE
PAGES = 2048


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(os.urandom(PAGES * PAGE))
    return found


def test_what_was_evicted_is_missing_until_it_is_fetched(path: Path) -> None:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    mapped.madvise(mmap.MADV_RANDOM)
    evict(path)
    assert not is_resident(mapped, 0, PAGES * PAGE)
    assert not is_resident(mapped, 5 * PAGE + 1, 5 * PAGE + 2)
    fetch([FileRange(path, 3 * PAGE, 1000 * PAGE)])
    assert is_resident(mapped, 3 * PAGE, 1000 * PAGE)
    assert is_resident(mapped, 4 * PAGE + 17, 900 * PAGE + 3)
    assert is_resident(mapped, 7, 7)
    mapped.close()


def test_what_was_found_counts_as_there_for_a_while(path: Path) -> None:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    mapped.madvise(mmap.MADV_RANDOM)
    base = 1 << 30
    segment = Segment(base, path, mapped, 0)
    clock = HandClock()
    resident = Resident(clock.monotonic)
    evict(path)
    fetch([FileRange(path, 0, 520 * PAGE)])
    assert resident.has(segment, base + 10, base + 257 * PAGE)
    assert not resident.has(segment, base, base + 2000 * PAGE)
    evict(path)
    assert resident.has(segment, base, base + 512 * PAGE), "two blocks of 256 pages were there"
    assert not resident.has(segment, base, base + 512 * PAGE + 1)
    clock.seconds += KNOWN_SECONDS
    assert not resident.has(segment, base, base + 10)
    mapped.close()


def test_a_look_at_a_file_of_holes_reads_a_page(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with path.open("wb") as file:
        file.write(b"entry")
        file.truncate(PAGES * PAGE)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    evict(path)
    assert bytes(LocalStorage(str(tmp_path)).window("queue", 0, PAGES * PAGE)[:5]) == b"entry"
    assert is_resident(mapped, 0, PAGE)
    assert not is_resident(mapped, PAGE, 2 * PAGE)
    mapped.close()


def test_a_file_that_is_gone_is_no_matter(path: Path, tmp_path: Path) -> None:
    evict(path)
    fetch([FileRange(tmp_path / "none", 0, 10), FileRange(path, 0, PAGE)])
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        assert is_resident(mapped, 0, PAGE)
