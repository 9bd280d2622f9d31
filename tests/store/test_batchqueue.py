"""Queues of batches: units, and what they say of messages, times and places."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import CorruptStore
from firearrow.message.sysflag import INNER_BATCH, NEED_UNWRAP
from firearrow.store.batchqueue import UNIT, UNIT_DTYPE, BatchUnit, FileBatchQueue, inner_count
from firearrow.store.queues import ENTRY
from tests.golden import expected, extract
from tests.store.stores import append, flush, opened, settle

FILE_BYTES = 460  # ten units
Sizes = list[int]
sizes_of_records = st.lists(st.integers(1, 40), min_size=1, max_size=45)


def queue_in(directory: Path) -> FileBatchQueue:
    queue = FileBatchQueue(directory, "T", 0, FILE_BYTES)
    queue.load()
    return queue


def units_for(sizes: Sizes, first: int = 0, number: int = 0) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    """Unit n: a record of 100 + n bytes at 1000 n, stored at 10 (n // 2), so two have one time."""
    units: npt.NDArray[Any] = np.zeros(len(sizes), UNIT_DTYPE)
    numbers = np.arange(number, number + len(sizes))
    units["physical_offset"] = numbers * 1000
    units["size"] = numbers + 100
    units["tag_code"] = -numbers
    units["store_ms"] = numbers // 2 * 10
    units["queue_offset"] = first + np.cumsum([0, *sizes])[:-1]
    units["messages"] = sizes
    units["compacted"] = -1
    return units


def contents(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*")))


def test_the_worked_example(tmp_path: Path) -> None:
    root = extract("batch-queues", tmp_path)
    data = (root / "batchconsumequeue/Bat/0" / f"{0:020d}").read_bytes()
    assert data[46:92].hex() == (
        "0000000000000382" "00000281" "0000000000000000" "000001a1fcd0ee7d" "0000000000000001"
        "0003" "ffffffff" "00000000"
    )  # fmt: skip


def test_what_the_original_wrote_is_read(tmp_path: Path) -> None:
    directory = extract("batch-queues", tmp_path) / "batchconsumequeue/Bat/0"
    queue = queue_in(directory)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 45, 45)
    assert queue.max_physical_offset == 16399
    assert list(queue.units_from(33)) == [
        BatchUnit(13028, 648, 0, 1795242913497, 31, 3),
        BatchUnit(13937, 908, 0, 1795242913507, 34, 5),
        BatchUnit(15233, 518, 0, 1795242913515, 39, 2),
        BatchUnit(16399, 778, 0, 1795242913523, 41, 4),
    ]
    assert queue.entry(44) == (16399, 778, 0)
    queue.close()


# Asked of RocketMQ 5.5.0 that had opened the store: ms since the first message, offset for LOWER.
LOWER = [
    (-1, 0), (0, 0), (1, 1), (120, 1), (121, 4), (129, 9), (195, 26), (196, 26), (201, 26),
    (202, 30), (203, 31), (237, 41), (238, 41), (239, 41), (10**11, 41),
]  # fmt: skip
# For UPPER it gives nothing where its bisection fails; these are times where it does not.
UPPER = [(0, 0), (120, 1), (128, 4), (129, 9), (154, 15), (195, 26), (201, 26), (202, 30), (238, 41)]


def test_times_lead_where_they_lead_in_the_original(tmp_path: Path) -> None:
    queue = queue_in(extract("batch-queues", tmp_path) / "batchconsumequeue/Bat/0")
    begin_ms = 1795242913285
    assert [(ms, queue.at_time(begin_ms + ms)) for ms, _ in LOWER] == LOWER
    assert [(ms, queue.at_time(begin_ms + ms, last=True)) for ms, _ in UPPER] == UPPER
    queue.close()


def test_of_records_with_one_time_upper_means_the_last(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    queue.put(units_for([3] * 6))  # times 0 0 10 10 20 20
    assert [queue.at_time(ms) for ms in (0, 5, 10, 20)] == [0, 6, 6, 12]
    assert [queue.at_time(ms, last=True) for ms in (0, 5, 10, 20)] == [3, 6, 9, 15]
    queue.correct_min(2500)
    assert queue.at_time(0) == 9
    queue.close()


def test_a_queue_without_messages_begins_at_minus_one(tmp_path: Path) -> None:
    """As RocketMQ's BatchConsumeQueue says (BatchSendIT#testBatchSend_SysInnerBatch)."""
    with opened(tmp_path, wants_batches="T".__eq__) as store:
        found = [store.min_queue_offset(topic, 0) for topic in ("T", "Other")]
        store.queue("T", 0)
        found.append(store.min_queue_offset("T", 0))
        assert found == [-1, 0, -1]
        append(store, b"batch", sys_flag=INNER_BATCH | NEED_UNWRAP, properties={"INNER_NUM": "3"})
        settle(store)
        assert store.min_queue_offset("T", 0) == 0


def test_an_empty_queue_has_nothing(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 0, -1)
    assert (queue.at_time(5), queue.read(0, 9), queue.last_before(1 << 40)) == (0, b"", -1)
    assert queue.first_at_or_after(7) == queue.gap_end(7) == 0
    assert not flush(queue)
    queue.close()


@given(sizes=sizes_of_records, parts=st.integers(1, 9), again=st.integers(0, 5))
def test_units_roll_over_files_and_are_found(
    tmp_path_factory: pytest.TempPathFactory, sizes: Sizes, parts: int, again: int
) -> None:
    directory = tmp_path_factory.mktemp("queue")
    queue = queue_in(directory)
    units = units_for(sizes)
    for start in range(0, len(units), parts):  # what the queue has is skipped
        queue.put(units[max(start - again, 0) : start + parts])
    data = units.tobytes()
    assert contents(directory) == data + bytes(-len(data) % FILE_BYTES)
    for again_opened in (queue, queue_in(directory)):
        assert again_opened.max_offset == again_opened.next_offset == sum(sizes)
        record_of = [n for n, size in enumerate(sizes) for _ in range(size)]
        for queue_offset, n in enumerate(record_of):
            assert again_opened.entry(queue_offset) == (1000 * n, 100 + n, -n)
            assert again_opened.stored_ms(queue_offset) == n // 2 * 10
        entries = b"".join(again_opened.read(at, 1) for at in range(sum(sizes)))
        assert entries == b"".join(ENTRY.pack(1000 * n, 100 + n, -n) for n in record_of)
        in_a_file = again_opened.read(0, 1 << 20)
        assert entries.startswith(in_a_file)
        assert len(in_a_file) == ENTRY.size * sum(sizes[:10])
        assert again_opened.read(sum(sizes), 1) == b""
        again_opened.close()


@given(sizes=sizes_of_records, data=st.data())
def test_places_in_the_log(tmp_path_factory: pytest.TempPathFactory, sizes: Sizes, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("queue")
    queue = queue_in(directory)
    queue.put(units_for(sizes))
    bases = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    place = data.draw(st.integers(0, 1000 * len(sizes) + 5))
    first = min(-(-place // 1000), len(sizes))
    assert queue.first_at_or_after(place) == bases[first]
    assert queue.last_before(place) == (1000 * (first - 1) if first else -1)
    queue.correct_min(place)
    assert queue.min_offset == bases[first]
    gone = queue.delete_expired(place)
    assert [path.name for path in gone] == [
        f"{n * 46:020d}" for n in range(0, len(sizes) - 10, 10) if 1000 * (n + 9) < place
    ]
    for path in gone:
        path.unlink()
    assert (queue.min_offset, queue.max_offset) == (bases[first], bases[-1])
    again = queue_in(directory)
    assert again.max_offset == bases[-1]
    again.close()
    queue.cut(place)
    end = bases[first] if first > 10 * len(gone) else 0
    assert (queue.max_offset, queue.next_offset) == (end, end)
    left = units_for(sizes)[10 * len(gone) : first].tobytes()  # the first file stays
    assert contents(directory) == left + bytes(-len(left) % FILE_BYTES if left else FILE_BYTES)
    queue.close()


def test_messages_may_not_be_missing(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    queue.put(units_for([3, 2]))
    with pytest.raises(CorruptStore, match="queue T-0 ends at 5, its next message has 6"):
        queue.put(units_for([1], first=6, number=9))
    with pytest.raises(CorruptStore, match="queue T-0 ends at 5, its next message has 4"):
        queue.put(units_for([1], first=4, number=9), complete=True)
    assert queue.max_offset == 5
    queue.close()


def test_what_the_log_has_lost_is_passed_over(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    queue.put(units_for([3, 2], first=10), complete=True)
    queue.put(units_for([4], first=20, number=9), complete=True)
    assert (queue.min_offset, queue.max_offset) == (10, 24)
    assert [unit.queue_offset for unit in queue.units_from(16)] == [20]
    assert queue.read(16, 9) == b""
    assert queue.gap_end(16) == 20
    assert contents(tmp_path)[:46] == UNIT.pack(0, 100, 0, 0, 10, 3, -1, 0)
    queue.close()


def test_a_topic_that_was_made_again_begins_again(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    queue.put(units_for([3, 2]))
    queue.put(units_for([7], number=9))
    assert (queue.min_offset, queue.max_offset) == (0, 7)
    assert contents(tmp_path)[46:] == bytes(FILE_BYTES - 46)
    queue.close()


def test_flushes_what_was_put(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    queue.put(units_for([1] * 12))
    assert not flush(queue, 1)
    assert flush(queue)
    assert queue.flushed_bytes == 12 * 46
    queue.put(units_for([1], first=12, number=12))
    assert not flush(queue)  # to a file that was there
    queue.cut(3000)
    assert queue.flushed_bytes == 0
    queue.close()


@pytest.mark.parametrize(
    ("properties", "count"),
    [({"INNER_NUM": "3"}, 3), ({}, 1), ({"INNER_NUM": "0"}, 1), ({"INNER_NUM": "-2"}, 1),
     ({"INNER_NUM": "32767"}, 32767), ({"INNER_NUM": "32768"}, 1), ({"INNER_NUM": "x"}, 1)],
)  # fmt: skip
def test_how_many_messages_a_record_has(properties: dict[str, str], count: int) -> None:
    assert inner_count(properties, INNER_BATCH | NEED_UNWRAP) == count
    assert inner_count(properties, 0) == 1


def test_each_message_that_the_original_shows_has_its_record(tmp_path: Path) -> None:
    root = extract("batch-queues", tmp_path)
    queues = [queue_in(root / f"batchconsumequeue/Bat/{queue_id}") for queue_id in (0, 1)]
    shown = expected("batch-queues")
    assert [len(shown), *(queue.max_offset for queue in queues)] == [80, 45, 35]
    for message in shown:
        queue = queues[message["queueId"]]
        assert queue.entry(message["queueOffset"])[0] == message["physicalOffset"]
        assert queue.stored_ms(message["queueOffset"]) == message["storeTimestamp"]
    for queue in queues:
        queue.close()
