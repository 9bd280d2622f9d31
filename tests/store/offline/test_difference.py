"""Two stores, and where they first differ."""

import os
import shutil
from pathlib import Path

from firearrow.store.offline import Layout, diff
from tests.store.offline.damage import PLAIN, a_message, golden_store, in_record, own_store, write
from tests.store.stores import append, opened, settle


def two(directory: Path) -> tuple[Path, Path]:
    first = golden_store(directory)
    second = directory / "second"
    shutil.copytree(first, second)
    return first, second


def test_a_copy_is_the_same(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    found = diff(Layout(first), Layout(second))
    assert (found.same, found.log_compared) == (True, (0, 592_625))
    assert diff(Layout(first), Layout(second), logical=True).same


def test_the_first_byte_is_named_with_its_record(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    message = a_message(second)
    in_record(second, message, 91, b"\0")
    found = diff(Layout(first), Layout(second))
    [difference] = found.differences
    assert difference.physical_offset == message.physical_offset + 91
    assert f"byte 91 of the record at {message.physical_offset}" in difference.what
    assert f"queue offset {message.queue_offset}" in difference.what
    logical = diff(Layout(first), Layout(second), logical=True)
    [summary] = logical.queues
    assert (summary.topic, summary.queue_id, summary.different) == ("GoldenPlain", 0, 1)


def test_queues_checkpoint_and_configuration(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    write(second, PLAIN, 40, bytes(20))
    write(second, PLAIN, 80, b"\x01" * 20)
    write(second, "checkpoint", 0, bytes(8))
    path = second / "config/delayOffset.json"
    path.write_text(path.read_text().replace("1:6", "1:5"))
    (second / "config/topics.json").unlink()
    found = diff(Layout(first), Layout(second))
    assert [(item.part, item.file) for item in found.differences] == [
        ("queue", None),
        ("checkpoint", None),
        ("config", "delayOffset.json"),
        ("config", "topics.json"),
    ]
    assert found.differences[0].queue_offset == 2
    assert found.differences[2].what == "offsetTable.1: 6 against 5"
    assert [(queue.topic, queue.different) for queue in found.queues] == [("GoldenPlain", 2)]


def test_one_is_ahead(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for root, count in ((first, 5), (second, 8)):
        with opened(root) as store:
            for number in range(count):
                append(store, b"%d" % number)
            settle(store)
    found = diff(Layout(first), Layout(second))
    assert found.differences[0].kind == "only in the second"
    assert [(queue.only_first, queue.only_second) for queue in found.queues] == [(0, 3)]
    logical = diff(Layout(first), Layout(second), logical=True)
    assert [(queue.only_first, queue.only_second) for queue in logical.queues] == [(0, 3)]
    assert logical.differences[0].queue_offset == 5


def test_a_record_that_was_being_written_does_not_count(tmp_path: Path) -> None:
    """A slave that is killed while it copies a record has a part of it, which its start cuts."""
    first, second = tmp_path / "a", tmp_path / "b"
    with opened(first) as store:
        append(store, b"one")
        end = store.log.end_offset
        append(store, b"two", properties={"KEYS": "k"})
        last = store.log.end_offset
    shutil.copytree(first, second)
    (second / "abort").touch()
    write(second, f"commitlog/{0:020d}", last - 4, bytes(4))
    found = diff(Layout(first), Layout(second))
    assert found.log_compared == (0, end)
    assert (found.differences[0].kind, found.differences[0].physical_offset) == ("only in the first", end)


def test_a_queue_file_that_is_cut_within_an_entry(tmp_path: Path) -> None:
    first = own_store(tmp_path)
    second = tmp_path / "second"
    shutil.copytree(first, second)
    os.truncate(second / f"consumequeue/T/0/{0:020d}", 390)
    found = diff(Layout(first), Layout(second))
    assert [(queue.topic, queue.different) for queue in found.queues] == [("T", 1)]
