"""Records in RocksDB: byte for byte those of the original; of a damaged one, what can be known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.broker.pop.kvrecords import KvRecord, encode, key_of, record_of, records_of
from firearrow.broker.pop.records import Checkpoint
from firearrow.database import Snapshot
from firearrow.errors import MessageError
from tests.golden import extract

LONG = st.integers(0, (1 << 62) - 1)
NAME = st.from_regex(r"[%|a-zA-Z0-9_+-]{1,40}", fullmatch=True)
RECORDS = st.builds(
    KvRecord,
    pop_ms=LONG,
    group=NAME,
    topic=NAME,
    queue_id=st.integers(0, (1 << 31) - 1),
    retry_flag=st.integers(0, 2),
    invisible_ms=LONG,
    queue_offset=LONG,
    attempt_times=st.integers(0, 100),
    attempt_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    is_suspended=st.booleans(),
)

EXAMPLE = KvRecord(
    pop_ms=1_700_000_000_000, group="g", topic="T", queue_id=3, invisible_ms=60_000,
    queue_offset=12,
)  # fmt: skip
KEY = bytes.fromhex("0000018bcfe65260674054400000000340000000000000000c")
VALUE = (
    b'{"popTime":1700000000000,"groupId":"g","topicId":"T","queueId":3,"retryFlag":0,'
    b'"invisibleTime":60000,"offset":12,"attemptTimes":0,"suspend":false}'
)


def test_the_example_is_as_the_original_writes_it() -> None:
    assert EXAMPLE.key == KEY
    assert encode(EXAMPLE) == VALUE
    assert record_of(KEY, VALUE) == EXAMPLE


def test_what_the_original_wrote_is_written_the_same(tmp_path: Path) -> None:
    """Also an attemptId of all kinds of characters."""
    snapshot = Snapshot(extract("popped-kv", tmp_path) / "kvStore", ["default", "popState"])
    rows = list(snapshot.tables["popState"].rows())
    snapshot.close()
    found = [record_of(key, value) for key, value in rows]
    assert [(record.key, encode(record)) for record in found] == rows
    assert [(record.queue_id, record.queue_offset) for record in found] == [
        (1, 0), (1, 1), (0, 2), (1, 2), (0, 1)
    ]  # fmt: skip
    assert [record.is_suspended for record in found] == [False] * 4 + [True]
    assert found[0].attempt_id == 'a"\\/\u00e9\x01\x7f\u2028<'


@given(RECORDS)
def test_what_is_written_is_read(record: KvRecord) -> None:
    assert record_of(record.key, encode(record)) == record


@given(RECORDS, RECORDS)
def test_keys_are_in_order_of_visible_time(one: KvRecord, other: KvRecord) -> None:
    if one.visible_ms != other.visible_ms:
        assert (one.key < other.key) == (one.visible_ms < other.visible_ms)


@given(RECORDS, st.binary())
def test_of_a_damaged_value_the_key_is_left(record: KvRecord, value: bytes) -> None:
    found = record_of(record.key, value)
    assert found.key == record.key
    assert (found.pop_ms, found.invisible_ms) == (record.visible_ms, 0)


def test_the_value_of_another_key_is_damage() -> None:
    key = key_of(EXAMPLE.visible_ms, "g", "T", 3, 13)
    assert record_of(key, VALUE).queue_offset == 13


@given(st.binary(max_size=21))
def test_what_is_too_short_for_a_key_is_none(key: bytes) -> None:
    with pytest.raises(MessageError, match="key"):
        record_of(key, b"")


@pytest.mark.parametrize("at", [8, 9, 10, 11, 12, 16])
def test_a_key_that_is_damaged_is_none(at: int) -> None:
    """At the names, what is between all parts, and the sign of the queue."""
    damaged = bytearray(KEY)
    damaged[at] = 0xFF
    with pytest.raises(MessageError, match="key"):
        record_of(bytes(damaged), b"")


def test_what_a_peer_writes_otherwise_is_read() -> None:
    """As RocketMQ's library reads it: a null, a quoted number."""
    value = VALUE.replace(b'"retryFlag":0', b'"attemptId":null,"retryFlag":"1"')
    assert record_of(KEY, value).retry_flag == 1


def test_a_checkpoint_is_one_record_for_each_message() -> None:
    checkpoint = Checkpoint(
        broker_name="b", group="g", deltas=[0, 2, 3], invisible_ms=60_000, count=3, pop_ms=5,
        queue_id=1, start_offset=7, topic="%RETRY%g_T", acknowledged_bits=2,
    )  # fmt: skip
    records = records_of(checkpoint)
    assert [record.queue_offset for record in records] == [7, 10]
    assert {record.retry_flag for record in records} == {1}
    again = records[1].checkpoint("b")
    assert (again.queue_offsets, again.due_ms, again.broker_name) == ([10], 60_005, "b")


def test_a_record_that_is_tried_again_keeps_when_it_was_popped() -> None:
    again = EXAMPLE.tried_again_at(EXAMPLE.visible_ms + 10_000)
    assert (again.visible_ms, again.pop_ms) == (EXAMPLE.visible_ms + 10_000, EXAMPLE.pop_ms)
    assert (again.attempt_times, again.queue_offset) == (1, 12)
    assert EXAMPLE.tried_again_at(5).visible_ms == 5  # the wall clock was set
