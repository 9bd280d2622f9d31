"""The store of a slave: it takes the bytes of another log, however they are cut."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from firearrow.errors import DiskFull, StoreError
from firearrow.store import MessageStore
from firearrow.store.dispatch import SLAVE_STEP_RECORDS
from tests.store.stores import KINDS, KiB, abandon, append, bodies, make_store, opened, settle

FILE_BYTES = 64 * KiB


def filled(root: Path, count: int, **options: Any) -> tuple[bytes, list[bytes]]:
    """The log of a store with so many messages in two queues, and the bodies in the first."""
    with opened(root, background=False, **options) as store:
        for number in range(count):
            append(store, b"%d " % number * (number % 60 * 5), queue_id=number % 2)
        data = b"".join(bytes(segment.map) for segment in store.log.segments.files)
        return data[: store.log_end_offset], bodies(store)


def slave(root: Path, **options: Any) -> MessageStore:
    store = make_store(root, broker_role="SLAVE", **options)
    store.open(background=False)
    return store


def test_a_half_record_waits_for_the_rest_and_disturbs_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, expected = filled(tmp_path / "master", 300)
    random = Random(7)
    store = slave(tmp_path / "slave")
    at = 0
    while at < len(data):
        end = at + random.choice([1, 7, 100, 3000])
        store.put_raw(at, memoryview(data)[at:end])
        at = store.log_end_offset
        settle(store)
        assert not store.dispatching.has_undispatched
        assert not store.dispatching.trouble
    assert bodies(store) == expected
    assert "dispatched" not in caplog.text
    store.close()
    with opened(tmp_path / "slave", background=False, broker_role="SLAVE") as again:
        assert (bodies(again), again.log_end_offset) == (expected, len(data))


def test_it_dispatches_in_short_steps_between_which_it_can_read(tmp_path: Path) -> None:
    one_file: dict[str, Any] = {"mapped_file_size_commit_log": 1024 * KiB}
    data, expected = filled(tmp_path / "master", 2 * SLAVE_STEP_RECORDS + 100, **one_file)
    store = slave(tmp_path / "slave", **one_file)
    store.put_raw(0, data)
    steps = 1
    while store.dispatching.step():
        steps += 1
    assert (steps, bodies(store)) == (3, expected)
    store.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("killed", [False, True])
def test_a_stop_within_a_record_goes_on_from_its_start(
    tmp_path: Path, kind: str, killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data, expected = filled(tmp_path / "master", 200)
    cut = len(data) - 700
    store = slave(tmp_path / "slave", store_type=kind)
    store.put_raw(0, data[:cut])
    settle(store)
    whole = cut - store.behind_bytes
    assert whole < cut, "the cut is within a record"
    if killed:
        abandon(store)
    else:
        store.close()
    caplog.clear()
    again = slave(tmp_path / "slave", store_type=kind)
    assert again.log_end_offset == whole
    again.put_raw(whole, data[whole:])
    settle(again)
    assert bodies(again) == expected
    again.close()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_of_which_the_beginning_was_never_here(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queues begin where their first message is, those too that get one only later."""
    data, expected = filled(tmp_path / "master", 400)
    start = FILE_BYTES
    assert len(data) > 3 * FILE_BYTES
    store = slave(tmp_path / "slave", store_type=kind)
    with pytest.raises(StoreError, match="can't begin at 100: no file of 65536 bytes"):
        store.put_raw(100, b"x")
    store.put_raw(start, data[start : 2 * FILE_BYTES])
    assert (store.log_start_offset, store.log_end_offset) == (start, 2 * FILE_BYTES)
    settle(store)
    store.close()
    store = slave(tmp_path / "slave", store_type=kind)
    store.put_raw(2 * FILE_BYTES, data[2 * FILE_BYTES :])
    settle(store)
    first = store.min_queue_offset("T", 0)
    assert 0 < first < len(expected)
    assert bodies(store) == expected[first:]
    store.close()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_slave_takes_no_messages_until_it_is_a_master(tmp_path: Path) -> None:
    data, expected = filled(tmp_path / "master", 100)
    store = slave(tmp_path / "slave")
    with pytest.raises(DiskFull, match="the broker is a slave"):
        append(store, b"x")
    store.put_raw(0, data)
    settle(store)
    with pytest.raises(DiskFull, match="the broker is a slave"):
        append(store, b"x")
    assert store.refused
    assert store.log_end_offset == len(data)
    store.follow(False)
    append(store, b"own")
    settle(store)
    assert bodies(store) == [*expected, b"own"]
    store.close()


@pytest.mark.parametrize("left", range(9))
def test_the_end_of_a_file_is_followed_as_it_is(tmp_path: Path, left: int) -> None:
    """Whatever is left of a file when the slave starts again: no blank of its own is put there."""
    data, _ = filled(tmp_path / "master", 200)
    assert len(data) > FILE_BYTES + 100
    cut = FILE_BYTES - left
    store = slave(tmp_path / "slave")
    store.put_raw(0, data[:cut])
    store.close()
    store = slave(tmp_path / "slave")
    at = store.log_end_offset
    store.put_raw(at, data[at : FILE_BYTES + 50])
    ours = b"".join(bytes(segment.map) for segment in store.log.segments.files)
    assert ours[: FILE_BYTES + 50] == data[: FILE_BYTES + 50]
    store.close()


def test_log_bytes_are_those_of_one_file(tmp_path: Path) -> None:
    with opened(tmp_path, background=False) as store:
        assert store.log_bytes(0, 10) == b""
        for number in range(200):
            append(store, bytes(number * 10))
        end = store.log_end_offset
        assert len(store.log_bytes(FILE_BYTES - 10, 1000)) == 10
        assert len(store.log_bytes(end - 10, 1000)) == 10
        assert store.log_bytes(end, 1000) == b""
        assert store.log_bytes(end + 7, 1000) == b""
        assert len(store.log_bytes(FILE_BYTES, 1000)) == 1000


def test_a_slave_whose_only_file_is_lost_goes_on_where_that_began(tmp_path: Path) -> None:
    """Its log ends there, without a file; nothing before that is there to be dispatched."""
    data, expected = filled(tmp_path / "master", 300, mapped_file_size_commit_log=8 * KiB)
    start = len(data) - len(data) % (8 * KiB)
    root = tmp_path / "slave"
    store = slave(root, mapped_file_size_commit_log=8 * KiB)
    store.put_raw(start, data[start : start + 100])
    abandon(store)
    [file] = (root / "commitlog").iterdir()
    file.write_bytes(bytes(file.stat().st_size))
    (root / "settled").unlink()  # as after a loss of power
    store = slave(root, mapped_file_size_commit_log=8 * KiB)
    assert (store.log_start_offset, store.log_end_offset) == (start, start)
    store.put_raw(start, data[start:])
    settle(store)
    found = bodies(store)
    assert found
    assert found == expected[-len(found) :]
    assert store.min_queue_offset("T", 0) == len(expected) - len(found)
    store.close()


def test_a_queue_with_an_empty_file_begins_where_the_log_does(tmp_path: Path) -> None:
    """A loss of power may leave the file and nothing in it: no message takes the place of those
    that were never here."""
    data, expected = filled(tmp_path / "master", 300, mapped_file_size_commit_log=8 * KiB)
    start = 8 * KiB
    root = tmp_path / "slave"
    sizes = {"mapped_file_size_commit_log": 8 * KiB, "mapped_file_size_consume_queue": 20 * 1000}
    store = slave(root, **sizes)
    store.put_raw(start, data[start : 2 * start])
    settle(store)
    first = store.min_queue_offset("T", 0)
    assert first > 0
    abandon(store)
    for file in (root / "consumequeue" / "T").glob("*/*"):
        file.write_bytes(bytes(file.stat().st_size))
    (root / "settled").unlink()
    store = slave(root, **sizes)
    store.put_raw(2 * start, data[2 * start : 3 * start])
    settle(store)
    found = bodies(store)
    assert store.min_queue_offset("T", 0) == first
    assert found == expected[first : first + len(found)]
    store.close()
