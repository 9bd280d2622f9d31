"""The database of popped messages: what is in it after any end, and when what is due."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firearrow.broker.config import BrokerConfig
from firearrow.broker.pop.kvstore import STEP_MS, KvRecord, KvStore, encode, key_of, kv_store_of, record_of, records_of
from firearrow.config.table import load
from firearrow.database import Database, Snapshot
from firearrow.errors import ConfigError, MessageError
from firearrow.wire.poprecords import PopCheckpoint
from tests.golden import extract

NOW_MS = 1_700_000_000_000 // STEP_MS * STEP_MS


@contextmanager
def opened(path: Path) -> Iterator[KvStore]:
    store = KvStore(path)
    try:
        yield store
    finally:
        store.close()


def record(queue_offset: int, ahead_ms: int = 0) -> KvRecord:
    """A message that is visible so long after `NOW_MS`."""
    return KvRecord(
        pop_ms=NOW_MS - 60_000, group="g", topic="T", queue_id=0, invisible_ms=60_000 + ahead_ms,
        queue_offset=queue_offset,
    )  # fmt: skip


def all_due(store: KvStore, now_ms: int, count: int = 100) -> list[int]:
    """The queue offsets of all that is due."""
    found = []
    while (due_ms := store.due_ms()) is not None and due_ms <= now_ms:
        for key in store.due(now_ms, count):
            value = store.get(key)
            assert value is not None
            found.append(record_of(key, value).queue_offset)
    return found


def as_after_a_kill(path: Path) -> Path:
    """What a kill would leave now."""
    copy = path.with_name(path.name + "-killed")
    shutil.copytree(path, copy)
    return copy


def test_records_are_due_when_their_time_is_over(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.due_ms() is None
        store.put([record(0), record(2, STEP_MS), record(1, 10)])
        assert store.due_ms() == NOW_MS + STEP_MS
        assert store.due(NOW_MS + STEP_MS - 1, 100) == []
        assert all_due(store, NOW_MS + STEP_MS) == [0, 1]
        assert store.due_ms() == NOW_MS + 2 * STEP_MS
        assert all_due(store, NOW_MS + 2 * STEP_MS) == [2]
        assert store.due_ms() is None


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_they_are_given_some_at_a_time_each_once(tmp_path: Path, count: int) -> None:
    with opened(tmp_path) as store:
        store.put(record(number) for number in range(7))
        first = store.due(NOW_MS + STEP_MS, count)
        assert len(first) == count
        store.put([record(7)])  # which is behind what was read
        again = [record_of(key, b"").queue_offset for key in first]
        assert sorted({*again, *all_due(store, NOW_MS + STEP_MS, count)}) == list(range(8))


def test_what_is_removed_is_not_due_and_not_looked_for(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put([record(0), record(1)])
        keys = [record(0).key, record(1).key]
        assert store.remove([keys[0], record(9).key]) == [keys[0]]
        assert store.remove(keys) == [keys[1]]
        assert store.get(keys[0]) is None
        assert store.due_ms() is None


def test_one_that_takes_the_place_of_another_stays(tmp_path: Path) -> None:
    """Also if both have the same key."""
    with opened(tmp_path) as store:
        store.put([record(0)])
        store.put([record(0, 5000)], [record(0).key])
        assert store.get(record(0).key) is None
        store.put([record(0, 5000)], [record(0, 5000).key])
        assert all_due(store, NOW_MS + 10_000) == [0]


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    with opened(path) as store:
        store.put([record(0), record(1), record(2)])
        store.remove([record(1).key])
        with opened(as_after_a_kill(path)) as found:
            assert all_due(found, NOW_MS + STEP_MS) == [0, 2]


def test_what_leaves_is_removed_when_the_log_has_it(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    with opened(path) as store:
        store.put([record(0), record(1), record(2)])
        store.leave([record(0).key], 1000)
        store.leave([record(1).key], 2000)
        assert [store.get(record(number).key) is None for number in range(3)] == [True, True, False]
        assert store.remove([record(0).key]) == []
        store.settle(999)
        store.settle(1999)
        assert store.has_leaving
        with opened(as_after_a_kill(path)) as found:
            assert all_due(found, NOW_MS + STEP_MS) == [1, 2]
        store.settle(2000)
        assert not store.has_leaving
    with opened(path) as found:
        assert all_due(found, NOW_MS + STEP_MS) == [2]


def test_what_is_put_while_it_leaves_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put([record(0)])
        assert all_due(store, NOW_MS + STEP_MS) == [0]
        store.leave([record(0).key], 1000)
        store.put([record(0)])
        store.settle(1000)
        assert all_due(store, NOW_MS + STEP_MS) == [0]
        store.leave([record(0).key], 1000)
        store.put([record(0)])
        store.leave([record(0).key], 2000)
        store.settle(1999)
        assert store.some(b"", 1) != []
        store.settle(2000)
        assert store.some(b"", 1) == []


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path / "kv") as store:
        batch = store._database.batch()
        for key in (b"short", b"\xff" * 40, record(0).key[:8] + b"rubbish"):
            batch.put("popState", key, b"")
        store._database.write(batch)
        store.put([record(1)])
        with opened(as_after_a_kill(tmp_path / "kv")) as found:
            assert len(found.due(NOW_MS + STEP_MS, 10)) == 2
            assert found.due_ms() is None


def test_until_when_all_was_moved_is_known_for_good(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.moved_ms == -1
        store.note_moved(NOW_MS)
    with opened(tmp_path) as store:
        assert store.moved_ms == NOW_MS


def test_a_sync_that_fails_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as store:
        assert not store.unsynced
        store.put([record(0)])
        with monkeypatch.context() as patched:
            patched.setattr(Database, "sync", _refuse)
            with pytest.raises(OSError, match="gone"):
                store.sync()
        assert store.unsynced
        store.sync()
        assert not store.unsynced


def _refuse(_: Database) -> None:
    raise OSError(5, "the disk is gone")


CHANGES = st.lists(st.tuples(st.sampled_from(["put", "remove", "leave", "due"]), st.integers(0, 9)), max_size=40)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CHANGES)
def test_whatever_happens_what_is_there_is_due(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int]]
) -> None:
    """In steps of four, whatever was read before."""
    there: set[int] = set()
    read: set[int] = set()
    with opened(tmp_path_factory.mktemp("kv")) as store:
        for change, number in changes:
            key = record(number, number * STEP_MS // 4).key
            if change == "put":
                store.put([record(number, number * STEP_MS // 4)])
                there.add(number)
                read.discard(number)
            elif change == "remove":
                assert (store.remove([key]) == [key]) == (number in there)
                there.discard(number)
            elif change == "leave" and number in there:
                store.leave([key], number)
                there.discard(number)
            elif change == "due":
                due = store.due(NOW_MS + number * STEP_MS, 2)
                read |= {record_of(key, b"").queue_offset for key in due}
        assert there <= read | set(all_due(store, NOW_MS + 100 * STEP_MS, 2))


# --- whether it is opened ---


def test_it_is_opened_if_the_key_says_so_or_there_is_one(tmp_path: Path) -> None:
    assert kv_store_of(BrokerConfig(), tmp_path) is None
    assert not (tmp_path / "kvStore").exists()
    for config in (BrokerConfig(pop_consumer_kv_service_init=True), BrokerConfig()):
        store = kv_store_of(config, tmp_path)
        assert store is not None
        store.close()


def test_without_the_package_a_start_is_refused_by_the_name_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig(pop_consumer_kv_service_init=True)
    with opened(tmp_path / "kvStore"):
        pass
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigError, match=r"popConsumerKVServiceInit=true: .*'firearrow\[rocksdb\]'"):
        kv_store_of(config, tmp_path)
    with pytest.raises(ConfigError, match=r"kvStore: .*'firearrow\[rocksdb\]'"):
        kv_store_of(BrokerConfig(), tmp_path)


def test_one_that_can_not_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "kvStore").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"popConsumerKVServiceInit=true.*kvStore"):
        kv_store_of(BrokerConfig(pop_consumer_kv_service_init=True), tmp_path)


def test_a_broker_that_could_not_pop_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs popConsumerKVServiceInit=true"):
        load(BrokerConfig, {"popConsumerKVServiceEnable": "true"})


# Records in RocksDB: byte for byte those of the original; of a damaged one, what can be known.


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
    checkpoint = PopCheckpoint(
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
