"""Keys and values of the queues' database."""

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from firearrow.store import rocksformat as rows
from firearrow.store.queues import DispatchedEntries, Runs

topics = st.text(min_size=1, max_size=127)
queue_ids = st.integers(0, 0xFFFFFFFF)
offsets = st.integers(0, (1 << 63) - 1)


def test_the_worked_example() -> None:
    key = rows.entry_head("T", 1) + struct.pack(">q", 2)
    assert key.hex() == "00000001015401" + "00000001" + "01" + "0000000000000002"
    value = rows.VALUE.pack(4096, 300, 2598919, 1_795_000_000_000)
    assert value.hex() == "0000000000001000" + "0000012c" + "000000000027a807" + "000001a1ee565e00"
    assert int.from_bytes(value[rows.STORE_MS_AT :], "big") == 1_795_000_000_000
    assert rows.offset_key("T", 1, rows.MAX).hex() == "00000001015401" + "6d6178" + "01" + "00000001"
    assert rows.PLACE.pack(4096, 2).hex() == "0000000000001000" + "0000000000000002"


numbers = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.tuples(topics, queue_ids, offsets, offsets, st.integers(0, 99), numbers)))
def test_columns_give_the_same_bytes_as_single_values(some: list[tuple[str, int, int, int, int, int]]) -> None:
    columns = [np.array(column, np.int64) for column in list(zip(*some, strict=True))[1:]]
    queue_id, queue_offset, physical_offset, size, tag_code = columns or [np.empty(0, np.int64)] * 5
    no_runs = Runs([], *[queue_id[:0]] * 4)
    entries = DispatchedEntries(physical_offset, size, tag_code, tag_code, queue_id, queue_offset, no_runs)
    heads = [rows.topic_head(topic) for topic, *_ in some]
    assert rows.entry_keys(heads, queue_id, queue_offset) == [
        rows.entry_head(topic, queue_id) + queue_offset.to_bytes(8) for topic, queue_id, queue_offset, *_ in some
    ]
    assert rows.entry_values(entries) == [
        rows.VALUE.pack(physical_offset, size, tag_code, tag_code) for *_, physical_offset, size, tag_code in some
    ]
    assert rows.max_keys(heads, queue_id.tolist()) == [
        rows.offset_key(topic, queue_id, rows.MAX) for topic, queue_id, *_ in some
    ]
    assert rows.places(physical_offset, queue_offset) == [
        rows.PLACE.pack(physical_offset, queue_offset) for _, _, queue_offset, physical_offset, *_ in some
    ]


@given(topics, queue_ids, st.sampled_from([rows.MAX, rows.MIN]), offsets, offsets)
def test_offset_rows_are_read_back(
    topic: str, queue_id: int, kind: bytes, physical_offset: int, queue_offset: int
) -> None:
    key = rows.offset_key(topic, queue_id, kind)
    row = rows.offset_row(key, rows.PLACE.pack(physical_offset, queue_offset))
    assert row == (topic, queue_id, kind, physical_offset, queue_offset)
    assert key.startswith(rows.topic_head(topic))


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_foreign_rows_are_no_queues(key: bytes, value: bytes) -> None:
    row = rows.offset_row(key, value)
    assert row is None or rows.offset_key(*row[:3])[5:] == key[5:]
    assert rows.offset_row(rows.DISPATCHED_KEY, rows.DISPATCHED.pack(7)) is None


@given(topics, queue_ids, offsets, offsets)
def test_keys_sort_by_queue_offset_within_the_range_of_their_queue(
    topic: str, queue_id: int, one: int, other: int
) -> None:
    head = rows.entry_head(topic, queue_id)
    low, high = rows.entry_range(head)
    keys = [head + offset.to_bytes(8, "big") for offset in (one, other)]
    assert all(low < key < high for key in keys)
    assert (keys[0] < keys[1]) == (one < other)
    neighbour = rows.entry_head(topic, (queue_id + 1) & 0xFFFFFFFF) + bytes(8)
    assert not low < neighbour < high


@given(topics, queue_ids)
def test_an_entry_names_its_queue(topic: str, queue_id: int) -> None:
    key = rows.entry_head(topic, queue_id) + bytes(8)
    assert rows.queue_of(key) == (topic, queue_id)
    assert rows.queue_of(key[:-1]) is None
    assert rows.queue_of(key + b"x") is None
    assert rows.queue_of(b"\0" + key) is None
