"""What one pull gives: every status, and how much is taken from recent and from old messages."""

import mmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.filter.sql import compile_sql
from firearrow.message.names import tag_code
from firearrow.message.record import iter_records
from firearrow.message.sysflag import INNER_BATCH
from firearrow.store import GetResult, GetStatus
from firearrow.store.batchqueue import BatchUnit, FileBatchQueue
from firearrow.store.reader import PullReader
from firearrow.store.recordchecks import Damaged
from firearrow.store.residency import KNOWN_SECONDS, Fetch, fetch, is_resident
from tests.broker.fakes import HandClock
from tests.store.evicting import evict
from tests.store.stores import KINDS, KiB, append, make_store, opened, settle, small_config


def summary(result: GetResult) -> tuple[GetStatus, int, int, int]:
    """The status, where to go on, and the range of the queue."""
    assert bool(result.records) is (result.status is GetStatus.FOUND)
    return result.status, result.next_offset, result.min_offset, result.max_offset


def test_a_queue_that_is_not_there(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for offset in (0, 5):
            found = summary(store.get("T", 0, offset, 32))
            assert found == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)


def test_a_queue_before_its_first_message(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"not dispatched yet")
        for offset in (-1, 0, 5):
            found = summary(store.get("T", 0, offset, 32))
            assert found == (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)


def test_a_queue_whose_head_has_expired(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"mapped_file_size_commit_log": 4 * KiB}
    with opened(tmp_path, **sizes) as store:
        for _ in range(10):
            append(store, bytes(900))
        settle(store)
    min((tmp_path / "commitlog").iterdir()).unlink()
    with opened(tmp_path, **sizes) as store:
        least = store.min_queue_offset("T", 0)
        assert 0 < least < 10
        for offset, status, following in (
            (-1, GetStatus.OFFSET_TOO_SMALL, least),
            (0, GetStatus.OFFSET_TOO_SMALL, least),
            (least - 1, GetStatus.OFFSET_TOO_SMALL, least),
            (9, GetStatus.FOUND, 10),
            (10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
            (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        ):
            assert summary(store.get("T", 0, offset, 32)) == (status, following, least, 10)


@pytest.mark.parametrize("tag_codes", [None, frozenset({0})])
def test_a_pull_reads_on_behind_a_file_that_is_going(tmp_path: Path, tag_codes: frozenset[int] | None) -> None:
    """Until the queue has taken note that a log file is gone, its messages are passed over."""
    with opened(tmp_path, mapped_file_size_commit_log=4 * KiB) as store:
        for number in range(10):
            append(store, b"%d" % number * 900)
        settle(store)
        segments = store.log.segments
        segments.drop(segments.files.pop(0))
        left = sum(1 for number in range(10) if store.queue("T", 0).entry(number)[0] >= 4 * KiB)
        found = store.get("T", 0, 1, 32, tag_codes)
        assert summary(found) == (GetStatus.FOUND, 10, 0, 10)
        assert [view.body[:1] for view in iter_records(found.records)] == [
            b"%d" % number for number in range(10 - left, 10)
        ]
        for segment in list(segments.files):
            segments.drop(segment)
        segments.files.clear()
        assert summary(store.get("T", 0, 1, 32)) == (GetStatus.MESSAGE_WAS_REMOVING, 10, 0, 10)


def test_entries_whose_file_is_going(tmp_path: Path) -> None:
    """Queue files of 20 entries."""
    with opened(tmp_path) as store:
        for _ in range(45):
            append(store, b"")
        settle(store)
        segments = store.queues.open("T", 0).segments  # type: ignore[attr-defined]
        segments.drop(segments.files.pop(0))
        found = summary(store.get("T", 0, 7, 32))
        assert found == (GetStatus.OFFSET_FOUND_NULL, 20, 0, 45)
        assert store.get("T", 0, 20, 32).count == 20, "not over the end of a queue file"


def test_of_a_record_that_was_checked_its_own_pages_are_asked_for(tmp_path: Path) -> None:
    log_bytes = 1024 * KiB
    with opened(tmp_path, mapped_file_size_commit_log=log_bytes) as store:
        for _ in range(100):
            append(store, bytes(8 * KiB))
        settle(store)
    clock = HandClock()
    with opened(tmp_path, clock=clock, mapped_file_size_commit_log=log_bytes) as store:
        assert store.get("T", 0, 50, 1, only_resident=True).count == 1
        segment = store.log.segments.find(0)
        assert segment is not None
        segment.map.madvise(mmap.MADV_RANDOM)
        segment.map.madvise(mmap.MADV_DONTNEED)
        evict(segment.path)
        clock.seconds += KNOWN_SECONDS
        with pytest.raises(Fetch) as caught:
            store.get("T", 0, 50, 1, only_resident=True)
        [stretch] = caught.value.stretches
        fetch([stretch._replace(end=stretch.start + 9 * KiB)])
        assert not is_resident(segment.map, stretch.start, segment.size_bytes)
        assert store.get("T", 0, 50, 1, only_resident=True).count == 1
        with pytest.raises(Fetch):
            store.get("T", 0, 52, 1, only_resident=True)


def test_a_pull_that_looks_at_nothing_again_asks_for_what_it_gives(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"mapped_file_size_commit_log": 1024 * KiB, "mapped_file_size_consume_queue": 20_000}
    with opened(tmp_path, **sizes) as store:
        for _ in range(100):
            append(store, bytes(8 * KiB), properties={"n": "1"})
        settle(store)
    clock = HandClock()
    wanted = compile_sql("n = 1")
    with opened(tmp_path, clock=clock, **sizes) as store:
        for queue_offset in (0, 1):  # one by one, then all at once
            assert store.get("T", 0, queue_offset, 1, wanted, only_resident=True).count == 1
        segment = store.log.segments.find(0)
        assert segment is not None
        segment.map.madvise(mmap.MADV_RANDOM)
        segment.map.madvise(mmap.MADV_DONTNEED)
        evict(segment.path)
        clock.seconds += KNOWN_SECONDS
        with pytest.raises(Fetch) as caught:
            store.get("T", 0, 50, 1, wanted, only_resident=True)
        [stretch] = caught.value.stretches
        fetch([stretch._replace(end=stretch.start + 9 * KiB)])
        assert not is_resident(segment.map, stretch.start, segment.size_bytes)
        assert store.get("T", 0, 50, 1, wanted, only_resident=True).count == 1
        with pytest.raises(Fetch):
            store.get("T", 0, 52, 1, wanted, only_resident=True)


def test_no_message_of_a_tag(tmp_path: Path) -> None:
    with opened(tmp_path, max_filter_message_size=10 * 20) as store:
        for _ in range(15):
            append(store, b"", properties={"TAGS": "a"})
        settle(store)
        nothing = frozenset({12345})
        found = summary(store.get("T", 0, 0, 4, nothing))
        assert found == (GetStatus.NO_MATCHED_MESSAGE, 10, 0, 15)
        assert store.get("T", 0, 10, 4, nothing).next_offset == 15


@pytest.mark.parametrize("tags", [None, frozenset({0})], ids=["all", "by tag"])
@given(
    sizes=st.lists(st.integers(0, 2000), min_size=1, max_size=40),
    recent_bytes=st.integers(0, 60_000),
    start=st.integers(0, 39),
    wanted=st.integers(1, 40),
)
def test_old_messages_are_taken_in_smaller_numbers(
    tmp_path_factory: pytest.TempPathFactory,
    tags: frozenset[int] | None,
    sizes: list[int],
    recent_bytes: int,
    start: int,
    wanted: int,
) -> None:
    root = tmp_path_factory.mktemp("reader")
    config = small_config(
        root,
        mapped_file_size_commit_log=256 * KiB,
        mapped_file_size_consume_queue=4000,
        access_message_in_memory_max_ratio=100,
        max_transfer_count_on_message_in_memory=12,
        max_transfer_bytes_on_message_in_memory=9000,
        max_transfer_count_on_message_in_disk=5,
        max_transfer_bytes_on_message_in_disk=3000,
    )
    start = min(start, len(sizes) - 1)
    with opened(root, mapped_file_size_commit_log=256 * KiB) as store:
        for size in sizes:
            append(store, bytes(size))
        settle(store)
        entries = list(store.iterate_from("T", 0, start))
        clock = HandClock()
        reader = PullReader(store.log, store.queues, config, recent_bytes, Damaged(), clock.monotonic)
        found = reader.get("T", 0, start, wanted, tags)
        taken = total = 0
        for entry in entries:
            if entry.queue_offset // 20 != start // 20:
                break  # one file of the queue
            recent = store.log.end_offset - entry.physical_offset <= recent_bytes
            most, most_bytes = (12, 9000) if recent else (5, 3000)
            if taken and (taken >= min(most, wanted) or total + entry.size > most_bytes):
                break
            taken += 1
            total += entry.size
        assert (found.status, found.count, len(found.records)) == (GetStatus.FOUND, taken, total)
        offsets = [view.queue_offset for view in iter_records(found.records)]
        assert offsets == list(range(start, start + taken))
        assert found.next_offset == start + taken


@pytest.mark.parametrize("kind", KINDS)
def test_tag_codes_of_a_range(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, store_type=kind) as store:
        for n in range(50):  # in three files
            append(store, b"", properties={"TAGS": f"t{n // 2}"})
        settle(store)
        for first, end in [(0, 50), (3, 4), (17, 43), (49, 50), (5, 5), (48, 60)]:
            codes = {tag_code(f"t{n // 2}") for n in range(first, min(end, 50))}
            assert store.tag_codes("T", 0, first, end) == codes


def test_tag_codes_of_batches_are_looked_up_once_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path, mapper_file_size_batch_consume_queue=46 * 4, wants_batches="T".__eq__)
    store.open()
    for n in range(10):
        properties = {"TAGS": f"t{n}", "INNER_NUM": "30000"}
        append(store, b"", properties=properties, sys_flag=INNER_BATCH)
        store.queue("T", 0).next_offset += 29_999
    settle(store)
    assert store.max_queue_offset("T", 0) == 300_000
    looked_at: list[int] = []
    unit = FileBatchQueue.unit

    def counted(queue: FileBatchQueue, number: int) -> BatchUnit:
        looked_at.append(number)
        return unit(queue, number)

    monkeypatch.setattr(FileBatchQueue, "unit", counted)
    for first, end in [(0, 10), (3, 4), (2, 9), (7, 12)]:
        codes = {tag_code(f"t{n}") for n in range(first, min(end, 10))}
        assert store.tag_codes("T", 0, first * 30_000, end * 30_000) == codes
        assert store.tag_codes("T", 0, first * 30_000 + 29_999, end * 30_000 - 29_999) == codes
    assert len(looked_at) < 8 * 20
    store.close()
