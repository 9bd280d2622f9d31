"""Queues of batches: ranges that are side by side have each record once."""

from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.client.queues import Span
from firearrow.store.batchqueue import UNIT_BYTES, FileBatchQueue
from firearrow.store.reading.batchqueues import BatchQueue
from firearrow.store.reading.queues import FileQueues
from firearrow.store.reading.storage import LocalStorage
from tests.golden import expected, extract
from tests.store.test_batchqueue import FILE_BYTES, sizes_of_records, units_for

PLACE = "batchconsumequeue/T/0"


def queue_of(root: Path, sizes: list[int], first: int = 0) -> BatchQueue:
    """A queue of records that hold so many messages, as the store writes it."""
    written = FileBatchQueue(root / PLACE, "T", 0, FILE_BYTES)
    (root / PLACE).mkdir(parents=True)
    written.put(units_for(sizes, first=first), complete=True)
    written.close()
    queue = FileQueues(LocalStorage(str(root))).open(("T", 0))
    assert isinstance(queue, BatchQueue)
    return queue


@given(sizes=sizes_of_records, cuts=st.lists(st.integers(0, 900), max_size=5))
def test_each_record_is_in_one_range(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cuts: list[int]
) -> None:
    queue = queue_of(tmp_path_factory.mktemp("store"), sizes)
    end = sum(sizes)
    assert queue.span_from(0) == (0, end)
    assert queue.record_end == 1000 * (len(sizes) - 1) + 100 + len(sizes) - 1
    places = sorted({0, end, *(cut for cut in cuts if cut < end)})
    ranges = list(pairwise(places))
    found = [queue.entries(*ends) for ends in ranges]
    assert [at for part in found for at in part.physical_offset.tolist()] == [1000 * n for n in range(len(sizes))]
    for (start, stop), part in zip(ranges, found, strict=True):
        assert all(start <= at < stop for at in part.queue_offset.tolist())
        assert queue.held(start, stop) == stop - start
        ends = [1000 * n for n, end in enumerate(accumulate(sizes)) if end > start]
        wanted = [at for at in ends if sum(sizes[: at // 1000]) < stop]
        assert queue.holding(start, stop).physical_offset.tolist() == wanted
    assert queue.held(0, end + 7) == end


@given(sizes=sizes_of_records, place=st.integers(-1, 46_000))
def test_places_lead_to_the_first_message_of_a_record(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], place: int
) -> None:
    queue = queue_of(tmp_path_factory.mktemp("store"), sizes, first=5)
    number = min(max(-(-place // 1000), 0), len(sizes))
    base = 5 + sum(sizes[:number])
    end = 5 + sum(sizes)
    assert queue.first_at_or_after(place, 0, end) == base
    assert queue.first_at_or_after(place, 7, 9) == (min(max(base, 7), 9) if base < end else 9)
    assert queue.span_from(place) == (base, end)
    assert queue.held(0, end) == end - 5


def test_a_file_that_is_missing_between_others(tmp_path: Path) -> None:
    units = FILE_BYTES // UNIT_BYTES
    sizes = [2] * 3 * units
    queue_of(tmp_path, sizes)
    (tmp_path / PLACE / f"{FILE_BYTES:020d}").unlink()
    queues = FileQueues(LocalStorage(str(tmp_path)))
    assert queues.holes(("T", 0)) == [Span(2 * units, 4 * units)]
    queue = queues.open(("T", 0))
    assert queue.span_from(0) == (0, 6 * units)
    left = [*range(0, 2 * units, 2), *range(4 * units, 6 * units, 2)]
    assert queue.entries(0, 6 * units).queue_offset.tolist() == left


@given(sizes=sizes_of_records, data=st.data())
def test_damaged_units_hide_only_their_own_messages(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    lost = data.draw(st.sets(st.integers(0, len(sizes) - 1), max_size=len(sizes) - 1))
    kept = [n for n in range(len(sizes)) if n not in lost]
    root = tmp_path_factory.mktemp("store")
    queue_of(root, sizes)
    for number in lost:
        zeroed(root, number)
    queue = FileQueues(LocalStorage(str(root))).open(("T", 0))
    assert isinstance(queue, BatchQueue)
    starts = [0, *accumulate(sizes)]
    end = starts[kept[-1] + 1]  # units that are zero behind the last are the rest of the file
    assert queue.span_from(0) == (0, end)
    assert queue.span_from(1)[0] == next((starts[n] for n in kept if n), end)
    assert queue.held(0, end) == sum(sizes[n] for n in kept)
    assert queue.entries(0, end).queue_offset.tolist() == [starts[n] for n in kept]


def zeroed(root: Path, number: int) -> None:
    """Make one unit of the queue that ``queue_of`` has written zero."""
    file_number, at = divmod(number * UNIT_BYTES, FILE_BYTES)
    with (root / PLACE / f"{file_number * FILE_BYTES:020d}").open("r+b") as file:
        file.seek(at)
        file.write(bytes(UNIT_BYTES))


def test_an_empty_queue(tmp_path: Path) -> None:
    (tmp_path / PLACE).mkdir(parents=True)
    (tmp_path / PLACE / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    queue = FileQueues(LocalStorage(str(tmp_path))).open(("T", 0))
    assert isinstance(queue, BatchQueue)
    assert (queue.span_from(0), queue.record_end) == ((0, 0), -1)
    assert (len(queue.entries(0, 9).size), queue.held(0, 9)) == (0, 0)


def test_what_the_original_wrote(tmp_path: Path) -> None:
    root = extract("batch-queues", tmp_path)
    queues = FileQueues(LocalStorage(str(root)))
    assert list(queues.keys_of(None)) == list(queues.keys_of(["Bat"])) == [("Bat", 0), ("Bat", 1)]
    for queue_id, count in ((0, 45), (1, 35)):
        queue = queues.open(("Bat", queue_id))
        entries = queue.entries(0, count)
        shown = [m for m in expected("batch-queues") if m["queueId"] == queue_id]
        assert entries.physical_offset.tolist() == sorted({m["physicalOffset"] for m in shown})
        assert queue.entries(0, count, 4).queue_offset.tolist() == entries.queue_offset.tolist()[::4]
