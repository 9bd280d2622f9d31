"""IndexFiles: their bytes against a writer that puts one key at a time, and what they find."""

import struct
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.store.fs import FileSystem
from firearrow.store.index import Index
from tests.golden import extract
from tests.store.stores import GOLDEN_SIZES, opened, reads_ahead

SLOTS, ENTRIES = 5, 12
BEGIN_MS = 1_795_000_000_000


class Key(NamedTuple):
    """What is put: a hash, its record's offset and its record's store time."""

    hash: int
    physical_offset: int
    store_ms: int


class Written(NamedTuple):
    """An entry of the model: its place in a chain, and the time that readers take it for."""

    key: Key
    file: int
    number: int
    time_ms: int


class OneAtATime:
    """The rules of the format, one key after another."""

    def __init__(self) -> None:
        self.files: list[bytearray] = []
        self.written: list[Written] = []

    def put(self, key: Key) -> None:
        if not self.files or self._header()[5] >= ENTRIES:
            begin = self._header()[1:4:2] if self.files else (0, 0)
            self.files.append(bytearray(40 + 4 * SLOTS + 20 * ENTRIES))
            ms, offset = begin
            struct.pack_into(">qqqqii", self.files[-1], 0, ms, ms, offset, offset, 0, 1)
        begin_ms, _, begin_offset, end_offset, used, number = self._header()
        if len(self.files) + number > 2 and key.physical_offset < end_offset:
            return
        file = self.files[-1]
        slot_at = 40 + 4 * (key.hash % SLOTS)
        (previous,) = struct.unpack_from(">i", file, slot_at)
        seconds = max((key.store_ms - begin_ms) // 1000, 0) if begin_ms > 0 else 0
        seconds = min(seconds, 2**31 - 1)
        entry_at = 40 + 4 * SLOTS + 20 * number
        struct.pack_into(">iqii", file, entry_at, key.hash, key.physical_offset, seconds, previous)
        struct.pack_into(">i", file, slot_at, number)
        if number == 1:
            begin_ms, begin_offset = key.store_ms, key.physical_offset
        end = key.store_ms, begin_offset, key.physical_offset
        struct.pack_into(">qqqqii", file, 0, begin_ms, *end, used + (previous == 0), number + 1)
        self.written.append(Written(key, len(self.files), number, begin_ms + seconds * 1000))

    def _header(self) -> tuple[int, ...]:
        return struct.unpack_from(">qqqqii", self.files[-1])


def put_all(index: Index, keys: list[Key], batch: int) -> None:
    for at in range(0, len(keys), batch):
        columns = np.array(keys[at : at + batch], np.int64)
        index.put(columns[:, 0], columns[:, 1], columns[:, 2])


def index_in(directory: Path, slots: int = SLOTS, entries: int = ENTRIES) -> Index:
    return Index(directory, slots, entries, lambda: BEGIN_MS)


def contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.glob("*"))]


steps = st.tuples(st.integers(0, 14) | st.integers(0, 2**31 - 1), st.integers(0, 300), st.integers(0, 5000))
key_lists = st.lists(steps, min_size=1, max_size=60).map(
    lambda given: [
        Key(code, offset, store_ms)
        for (code, _, _), offset, store_ms in zip(
            given,
            accumulate((step[1] for step in given), initial=100),
            accumulate((step[2] for step in given), initial=BEGIN_MS),
            strict=False,
        )
    ]
)


@given(keys=key_lists, batch=st.integers(1, 60))
def test_batches_give_the_bytes_of_single_puts(
    tmp_path_factory: pytest.TempPathFactory, keys: list[Key], batch: int
) -> None:
    directory = tmp_path_factory.mktemp("index")
    index, model = index_in(directory), OneAtATime()
    put_all(index, keys, batch)
    for key in keys:
        model.put(key)
    index.close()
    assert contents(directory) == [bytes(file) for file in model.files]


@given(
    keys=key_lists,
    code=st.integers(0, 14),
    span=st.tuples(st.integers(-2, 60), st.integers(-2, 60)),
    limit=st.integers(1, 70),
)
def test_a_key_is_found_within_its_second(
    tmp_path_factory: pytest.TempPathFactory, keys: list[Key], code: int, span: tuple[int, int], limit: int
) -> None:
    begin_ms, end_ms = (BEGIN_MS + 1000 * second for second in span)
    index, model = index_in(tmp_path_factory.mktemp("index")), OneAtATime()
    put_all(index, keys, 7)
    for key in keys:
        model.put(key)
    found = index.find(code, begin_ms, end_ms, limit)
    mine = [entry for entry in reversed(model.written) if entry.key.hash == code]
    # Whatever is stored in the span must be among the candidates: callers compare the real time.
    # (The first entry of a later file has its time against the file before, so it may be missed.)
    must = [
        entry.key.physical_offset
        for entry in mine
        if begin_ms <= entry.key.store_ms <= end_ms and (entry.number > 1 or entry.file == 1)
    ]
    may = [entry.key.physical_offset for entry in mine]
    assert len(found) <= limit
    assert is_subsequence(found, may)
    if len(found) < limit:
        assert is_subsequence(must, found)
    index.close()


def is_subsequence(some: Iterable[int], of: list[int]) -> bool:
    rest = iter(of)
    return all(item in rest for item in some)


def test_keys_are_found_after_the_clock_was_set_back(tmp_path: Path) -> None:
    """The first keys of a file are 400 days ahead of those that follow."""
    ahead_ms = BEGIN_MS + 400 * 86_400_000
    keys = [Key(7, 100 * n, (ahead_ms if n < 3 else BEGIN_MS) + 1000 * n) for n in range(2 * ENTRIES)]
    index = index_in(tmp_path)
    put_all(index, keys, 4)
    for begin_ms, end_ms in [(BEGIN_MS, BEGIN_MS + 60_000), (BEGIN_MS + 20_000, BEGIN_MS + 30_000)]:
        wanted = [key.physical_offset for key in keys if begin_ms <= key.store_ms <= end_ms]
        found = index.find(7, begin_ms, end_ms, 1000)
        assert is_subsequence(reversed(wanted), found)
    index.close()


def test_the_worked_example(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    put_all(index, [Key(2539445, 4096, BEGIN_MS)], 1)
    entry = contents(tmp_path)[0][40 + 4 * SLOTS + 20 :][:20]
    assert entry.hex(" ", -4) == "0026bfb5 00000000 00001000 00000000 00000000"
    index.close()


def test_files_are_named_by_their_creation_and_never_twice(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    put_all(index, [Key(n, n, BEGIN_MS) for n in range(40)], 40)
    names = [file.path.name for file in index.files]
    assert len(names) == 4
    assert names == sorted(set(names))
    assert all(len(name) == 17 and name.isdigit() for name in names)
    index.close()


def test_a_reopened_index_goes_on(tmp_path: Path) -> None:
    index, model = index_in(tmp_path), OneAtATime()
    keys = [Key(n % 7, n * 100, BEGIN_MS + n * 700) for n in range(30)]
    for part in (keys[:9], keys[9:10], keys[10:25], keys[20:]):
        put_all(index, part, 4)
        index.close()
        index.load(None)
    for key in keys:
        model.put(key)
    index.close()
    assert contents(tmp_path) == [bytes(file) for file in model.files]


def test_the_system_reads_nothing_ahead_for_who_writes(tmp_path: Path) -> None:
    """Each key touches two pages, and would wait for those of megabytes every 400,000 keys."""
    index = index_in(tmp_path)
    keys = [Key(n, n * 100, BEGIN_MS) for n in range(4)]
    put_all(index, keys[:2], 2)
    [path] = tmp_path.iterdir()
    assert reads_ahead(path) == [False]
    index.close()
    index.load(None)
    assert reads_ahead(path) == [True], "a start that checks it reads it in order"
    put_all(index, keys[2:], 1)
    assert reads_ahead(path) == [False]
    index.close()


def test_slots_that_are_in_use_stay_in_memory(tmp_path: Path) -> None:
    """Where the system reads nothing ahead, it takes no notice of what is used either."""
    index = index_in(tmp_path, slots=4096, entries=220_000)
    numbers = np.arange(215_000)
    index.put(numbers[:10], numbers[:10], numbers[:10])
    [path] = tmp_path.iterdir()
    assert reads_ahead(path) == [False]
    for some in (numbers[10:1000], numbers[1000:]):
        index.put(some, some, some)
    assert reads_ahead(path) == [True, False]
    index.close()
    index.load(None)
    index.put(numbers[:1], numbers[-1:] + 1, numbers[-1:])
    assert reads_ahead(path) == [True, False]
    index.close()


def lose(path: Path, start: int, size: int) -> None:
    data = bytearray(path.read_bytes())
    assert any(data[start : start + size])
    data[start : start + size] = bytes(size)
    path.write_bytes(data)


SLOT_BYTES = 40, 4 * SLOTS
LOST = {"header": (0, 40), "entry": (40 + 4 * SLOTS + 20, 20)}


@pytest.mark.parametrize("part", LOST)
@pytest.mark.parametrize("number", range(3))
def test_after_an_unclean_end_files_that_lack_something_are_deleted(tmp_path: Path, number: int, part: str) -> None:
    index = index_in(tmp_path)
    put_all(index, [Key(n, n, BEGIN_MS + n) for n in range(1, 31)], 30)
    ends = [file.end_ms for file in index.files]
    assert len(ends) == 3
    index.close()
    index.load(0)
    assert [file.end_ms for file in index.files] == ends
    index.close()
    lose(sorted(tmp_path.iterdir())[number], *LOST[part])
    index.load(0)
    assert [file.end_ms for file in index.files] == ends[:number]
    assert len(contents(tmp_path)) == number
    index.close()


@pytest.mark.parametrize("lost", [SLOT_BYTES, (40, 4), (40 + 4 * SLOTS - 4, 4)])
def test_slots_are_repaired_by_the_entries(tmp_path: Path, lost: tuple[int, int]) -> None:
    index = index_in(tmp_path)
    put_all(index, [Key(n, n, BEGIN_MS + n) for n in range(1, 31)], 30)
    index.close()
    before = contents(tmp_path)
    lose(max(tmp_path.iterdir()), *lost)
    index.load(0)
    index.close()
    assert contents(tmp_path) == before


def test_files_that_the_checkpoint_knows_are_not_read_again(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    put_all(index, [Key(n, n, BEGIN_MS + n) for n in range(30)], 30)
    ends = [file.end_ms for file in index.files]
    index.close()
    lose(min(tmp_path.iterdir()), *SLOT_BYTES)
    index.load(ends[0] + 1)
    assert [file.end_ms for file in index.files] == ends
    index.close()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("readme", "2026", "20261121001530123"):
        (tmp_path / name).write_bytes(b"x")
    index = index_in(tmp_path)
    index.load(0)
    assert index.files == []
    assert index.find(1, 0, 1 << 62, 10) == []
    assert (index.end_ms, index.end_physical_offset) == (0, -1)
    assert contents(tmp_path) == [b"x"] * 3


def test_a_broken_chain_ends(tmp_path: Path) -> None:
    """An entry that points at itself or forward, as a torn page may leave it."""
    index = index_in(tmp_path)
    put_all(index, [Key(5, n, BEGIN_MS) for n in range(3)], 3)
    index.close()
    [path] = tmp_path.glob("*")
    damaged = bytearray(path.read_bytes())
    previous_at = 40 + 4 * SLOTS + 20 * 2 + 16
    for previous in (2, 3, 11, 2**31 - 1, -1):
        struct.pack_into(">i", damaged, previous_at, previous)
        path.write_bytes(damaged)
        index.load(None)
        assert index.find(5, 0, 1 << 62, 10) == [2, 1]
        index.close()


def test_a_full_disk_loses_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, model = index_in(tmp_path), OneAtATime()
    keys = [Key(n % 4, n * 10, BEGIN_MS + n) for n in range(20)]
    real = FileSystem.create_file
    created: list[Path] = []

    def full(fs: FileSystem, path: Path, size_bytes: int, reserved_bytes: int) -> None:
        if created:
            raise OSError(28, "No space left on device")
        created.append(path)
        real(fs, path, size_bytes, reserved_bytes)

    with monkeypatch.context() as patched:
        patched.setattr(FileSystem, "create_file", full)
        with pytest.raises(OSError, match="No space"):
            put_all(index, keys, 20)
    put_all(index, keys, 20)
    for key in (*keys[:11], keys[10], *keys[11:]):
        model.put(key)
    index.close()
    assert contents(tmp_path) == [bytes(file) for file in model.files]


@pytest.mark.parametrize("name", ["file-cq-clean", "file-cq-killed"])
def test_the_original_s_files_come_out_of_its_log(name: str, tmp_path: Path) -> None:
    """Index and queues of a store, deleted and built again from the log, are the same bytes."""
    root = extract(name, tmp_path)
    before = derived_files(root)
    for path in before:
        (root / path).unlink()
    with opened(root, **GOLDEN_SIZES):
        pass
    after = derived_files(root)
    indexes = [[data for path, data in files.items() if path.parts[0] == "index"] for files in (before, after)]
    assert len(indexes[0]) == 1
    assert indexes[0] == indexes[1]
    queues = [{p: d for p, d in files.items() if p.parts[0] != "index"} for files in (before, after)]
    assert len(queues[0]) > 20
    assert queues[0] == queues[1]


def derived_files(root: Path) -> dict[Path, bytes]:
    paths = [*root.glob("consumequeue/*/*/*"), *root.glob("index/*")]
    return {path.relative_to(root): path.read_bytes() for path in sorted(paths)}
