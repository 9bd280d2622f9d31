"""Queues in files and in a database give the same entries, and nothing that is not there."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from firearrow.store.reading.queues import FileQueues, rocks_queues
from firearrow.store.reading.storage import Directory, Files, LocalStorage, StoreFile
from tests import golden
from tests.spark import logs


def test_a_queue_in_a_database(tmp_path: Path) -> None:
    root = golden.extract("rocksdb-cq-clean", tmp_path)
    queues = rocks_queues(LocalStorage(str(root)))
    assert queues is not None
    lines: dict[tuple[str, int], list[int]] = {}
    for line in golden.expected("rocksdb-cq-clean"):
        lines.setdefault((line["topic"], line["queueId"]), []).append(line["physicalOffset"])
    keys = list(queues.keys_of(None))
    assert set(keys) == set(lines)
    for key in keys:
        queue = queues.open(key)
        places = sorted(lines[key])
        assert queue.span_from(0) == (0, len(places))
        assert queue.span_from(places[-1])[0] == len(places) - 1
        assert queue.entries(0, 1 << 40).physical_offset.tolist() == places
        assert queue.entries(1, len(places), 2).physical_offset.tolist() == places[1::2]
    assert list(queues.keys_of(["GoldenPlain"])) == [("GoldenPlain", n) for n in range(4)]
    assert queues.open(("nowhere", 0)).span_from(0) == (0, 0)
    assert queues.dispatched_offset >= max(max(places) for places in lines.values())


def test_a_store_without_a_database(tmp_path: Path) -> None:
    logs.write(tmp_path / "s", [logs.Sent()])
    assert rocks_queues(LocalStorage(str(tmp_path / "s"))) is None


def entry(physical: int, size: int) -> bytes:
    return struct.pack(">qiq", physical, size, 7)


@pytest.mark.parametrize(
    ("files", "bound", "places"),
    [
        ({}, (0, 0), []),
        ({0: bytes(60)}, (0, 0), []),
        ({0: entry(5, 100) + bytes(40)}, (0, 1), [5]),
        ({0: entry(0, 0x7FFFFFFF) * 2 + entry(5, 100)}, (2, 3), [5]),
        ({60: entry(5, 100) * 3, 120: entry(9, 100) + bytes(40)}, (3, 7), [5, 5, 5, 9]),
        ({0: entry(5, 100) * 3, 120: entry(9, 100) + bytes(40)}, (0, 7), [5, 5, 5, 9]),
        ({60: entry(5, 100) * 3, 120: bytes(60)}, (3, 6), [5, 5, 5]),
    ],
)
def test_the_ends_of_a_queue(
    files: dict[int, bytes], bound: tuple[int, int], places: list[int], tmp_path: Path
) -> None:
    directory = tmp_path / "consumequeue" / "T" / "0"
    directory.mkdir(parents=True)
    for base, data in files.items():
        (directory / f"{base:020d}").write_bytes(data)
    queue = FileQueues(LocalStorage(str(tmp_path))).open(("T", 0))
    assert queue.span_from(0) == bound
    assert queue.entries(0, 100).physical_offset.tolist() == places


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_files_that_are_deleted_while_a_queue_is_read(tmp_path: Path, gone: int) -> None:
    home = tmp_path / "consumequeue" / "T" / "0"
    home.mkdir(parents=True)
    paths = [home / f"{base:020}" for base in (0, 60, 120)]
    for number, path in enumerate(paths):
        path.write_bytes(b"".join(entry(300 * number + at, 100) for at in (0, 100, 200)))
    queue = FileQueues(LocalStorage(str(tmp_path))).open(("T", 0))
    for path in paths[:gone]:
        path.unlink()
    left = range(3 * gone, 9)
    assert queue.entries(0, 9).queue_offset.tolist() == list(left)
    assert queue.span_from(0) == ((left.start, 9) if left else (0, 0))


def test_what_the_log_has_no_more_is_not_counted(tmp_path: Path) -> None:
    logs.write(tmp_path / "s", [logs.Sent() for _ in range(20)])
    queue = FileQueues(LocalStorage(str(tmp_path / "s"))).open(("T", 0))
    places = queue.entries(0, 20).physical_offset.tolist()
    for number in range(20):
        assert queue.span_from(places[number]) == (number, 20)
        assert queue.first_at_or_after(places[number] + 1, 0, 20) == number + 1


def test_bytes_of_a_file_that_is_gone_are_not_those_of_the_next() -> None:
    files = [StoreFile("a", 0, 40), StoreFile("b", 40, 40)]
    left = {"a": b"", "b": b"b" * 40}
    found = Files(Directory(files, []), lambda file: left[file.path])
    assert found.stored(0, 80) == b""
    assert found.stored(50, 80) == b"b" * 30
    left["a"] = b"a" * 30
    assert found.stored(20, 80) == b"a" * 10
