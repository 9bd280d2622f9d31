"""The log's own files: where records go, how files roll, what a full disk changes."""

import fcntl
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.message.batch import encode_batch
from firearrow.message.hosts import Host, pack_host
from firearrow.message.record import encode_blank, encode_record, record_size
from firearrow.store import BatchPart, DiskFull, MessageStore, commitlog, members_of
from firearrow.store.batch import append_batch
from firearrow.store.commitlog import CLOCK_BACK_MS_MAX, LONG_BYTES
from firearrow.store.fs import FileSystem
from tests.broker.fakes import HandClock
from tests.store.stores import BORN_HOST, BORN_MS, STORE_HOST, KiB, append, bodies, opened, settle

FILE = 64 * KiB
FIXED = record_size("T", 0, 0)  # the bytes of a record beside its body


def file(store: MessageStore, base: int) -> bytes:
    return (store.root / "commitlog" / f"{base:020d}").read_bytes()


@pytest.mark.parametrize("born", ["10.0.0.7", "2001:db8::7"])
@pytest.mark.parametrize("broker", ["127.0.0.1", "2001:db8::1"])
@pytest.mark.parametrize("topic", ["T", "%RETRY%" + "g" * 200])
def test_records_have_the_bytes_of_the_format(tmp_path: Path, born: str, broker: str, topic: str) -> None:
    born_host, store_host = pack_host(Host(born, 4711)), pack_host(Host(broker, 10911))
    at = 0
    expected = b""
    with opened(tmp_path, store_host=store_host) as store:
        for number, body in enumerate((b"one", b"", b"three" * 100)):
            offset = append(
                store, body, topic, 7, properties={"TAGS": "A"}, flag=-9, sys_flag=1,
                now_ms=BORN_MS + number, born_host=born_host, reconsume_times=2,
            )  # fmt: skip
            assert offset == at
            expected += encode_record(
                topic, body, b"TAGS\x01A\x02", 7, number, at, -9, 1, BORN_MS, born_host,
                BORN_MS + number, store_host, 2,
            )  # fmt: skip
            at = len(expected)
        assert store.log.end_offset == at
        assert file(store, 0) == expected + bytes(FILE - at)


def stored_at(store: MessageStore, *times_ms: int, batch: bool = False) -> list[int]:
    """The store times that messages get at some times, both since BORN_MS."""
    got = []
    for now_ms in times_ms:
        if batch:
            members = members_of(encode_batch([(0, b"", b"")]))
            part = BatchPart(store.queue("T", 0), 1, 0, BORN_MS, 0, BORN_HOST)
            append_batch(store.log, members, [part], BORN_MS + now_ms)
        else:
            append(store, b"", now_ms=BORN_MS + now_ms)
        settle(store)
        got.append(store.store_time_of("T", 0, store.max_queue_offset("T", 0) - 1) - BORN_MS)
    return got


@pytest.mark.parametrize("batch", [False, True])
def test_store_times_wait_for_a_clock_that_is_a_little_back(tmp_path: Path, batch: bool) -> None:
    with opened(tmp_path) as store:
        times = stored_at(store, 500, 700, 600, 100, 700 - CLOCK_BACK_MS_MAX, 701, batch=batch)
    assert times == [500, 700, 700, 700, 700, 701]


@pytest.mark.parametrize("batch", [False, True])
def test_store_times_follow_a_clock_that_is_set_back_and_that_is_said_once(
    tmp_path: Path, batch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = 400 * 86_400_000
    with opened(tmp_path) as store:
        times = stored_at(store, 5, ahead + 6, ahead + 7, 10, 8, 11, batch=batch)
        assert times == [5, ahead + 6, ahead + 7, 10, 10, 11]
    assert caplog.text.count("behind the last store time") == 1
    with opened(tmp_path) as store:
        assert stored_at(store, ahead + 8, batch=batch) == [ahead + 8]
    caplog.clear()
    with opened(tmp_path) as store:
        assert stored_at(store, 12, 13, batch=batch) == [12, 13], "also across a restart"
    assert caplog.text.count("behind the last store time") == 1


@pytest.mark.parametrize("left", [8, 9, 100])
def test_a_record_that_leaves_room_for_the_blank_stays_in_its_file(tmp_path: Path, left: int) -> None:
    with opened(tmp_path) as store:
        append(store, b"a")
        append(store, bytes(FILE - left - 2 * FIXED - 1))
        assert store.log.end_offset == FILE - left
        assert append(store, b"next") == FILE
        assert file(store, 0)[-left:] == encode_blank(left) + bytes(left - 8)
        settle(store)
        assert bodies(store)[-1] == b"next"


@pytest.mark.parametrize("left", [0, 1, 7])
def test_a_record_that_leaves_less_goes_to_the_next(tmp_path: Path, left: int) -> None:
    with opened(tmp_path) as store:
        append(store, b"a")
        end = store.log.end_offset
        assert append(store, bytes(FILE - left - 2 * FIXED - 1)) == FILE
        blank = file(store, 0)[end:]
        assert blank == encode_blank(FILE - end) + bytes(FILE - end - 8)


def test_the_largest_record_fills_a_file_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, b"a")
        end = store.log.end_offset
        with pytest.raises(MessageError, match="does not fit a CommitLog file of 65536"):
            append(store, bytes(FILE - 8 - FIXED + 1))
        assert store.log.end_offset == end
        assert store.queue("T", 0).next_offset == 1
        assert not any(file(store, 0)[end:])
        assert append(store, bytes(FILE - 8 - FIXED)) == FILE
        assert append(store, b"c") == 2 * FILE
        settle(store)
        assert [len(body) for body in bodies(store)] == [1, FILE - 8 - FIXED, 1]


def test_the_next_file_is_made_ready_in_advance_and_goes_with_the_store(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append(store, bytes(20 * KiB))
        settle(store)
        wait_for_preparation()
        assert len(list((tmp_path / "commitlog").iterdir())) == 1
        append(store, bytes(20 * KiB))
        settle(store)
        wait_for_preparation()
        prepared = tmp_path / "commitlog" / f"{FILE:020d}"
        assert prepared.stat().st_size == FILE
        inode = prepared.stat().st_ino
        assert append(store, bytes(40 * KiB)) == FILE
        assert prepared.stat().st_ino == inode
        settle(store)
        wait_for_preparation()
        assert len(list((tmp_path / "commitlog").iterdir())) == 3
    assert len(list((tmp_path / "commitlog").iterdir())) == 2


def wait_for_preparation() -> None:
    for thread in threading.enumerate():
        if thread.name == "firearrow-next-file":
            thread.join()


def full(fs: FileSystem, path: Path, size_bytes: int, reserved_bytes: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_changes_nothing_and_does_not_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    with opened(tmp_path, clock=clock) as store:
        append(store, b"first")
        settle(store)  # the queue has its file before the disk is full
        with monkeypatch.context() as patched:
            patched.setattr(FileSystem, "create_file", full)
            append(store, bytes(40 * KiB))
            settle(store)  # tries to make the next file ready, and may fail to
            before = file(store, 0), store.log.end_offset, store.log.last_store_ms
            for _ in range(2):
                with pytest.raises(DiskFull, match=r"00000000000000065536: .*No space left"):
                    append(store, bytes(40 * KiB), now_ms=BORN_MS + 100)
            assert (file(store, 0), store.log.end_offset, store.log.last_store_ms) == before
            assert store.queue("T", 0).next_offset == 2
            append(store, b"small ones still fit")
        with pytest.raises(DiskFull):
            append(store, b"the disk is asked again only after a second" * KiB)
        clock.seconds += 1
        assert append(store, b"x" * 40 * KiB) == FILE
        settle(store)
        assert [len(body) for body in bodies(store)] == [5, 40 * KiB, 20, 40 * KiB]


def test_a_full_disk_at_the_very_first_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    with opened(tmp_path, clock=clock) as store:
        with monkeypatch.context() as patched:
            patched.setattr(FileSystem, "create_file", full)
            with pytest.raises(DiskFull):
                append(store, b"a")
        assert store.log.end_offset == 0
        clock.seconds += 1
        assert append(store, b"a") == 0


@pytest.mark.parametrize("size", [10, FILE - 8 - FIXED], ids=["in a file", "at its end"])
def test_a_reopened_log_goes_on_where_it_ended(tmp_path: Path, size: int) -> None:
    with opened(tmp_path) as store:
        append(store, bytes(size), now_ms=BORN_MS + 50)
        end = store.log.end_offset
    with opened(tmp_path) as store:
        assert (store.log.end_offset, store.log.last_store_ms) == (end, BORN_MS + 50)
        offset = append(store, b"next", now_ms=BORN_MS)
        assert offset == (end if size == 10 else FILE)
        settle(store)
        assert bodies(store) == [bytes(size), b"next"]
        assert store.store_time_of("T", 0, 1) == BORN_MS + 50


def test_the_log_may_be_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    with opened(tmp_path / "store", store_path_commit_log=str(elsewhere)) as store:
        append(store, b"a")
    assert [path.name for path in elsewhere.iterdir()] == ["0" * 20]
    assert not (tmp_path / "store" / "commitlog").exists()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("one"), st.integers(0, 3000)),
            st.tuples(st.just("batch"), st.integers(1, 40)),
            st.tuples(st.just("scan"), st.integers(1, 60)),
        ),
        min_size=10,
        max_size=60,
    ),
    st.sampled_from([3, 1 << 16]),
)
@settings(max_examples=60)
def test_a_scan_finds_every_record_however_it_was_appended(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], noted_max: int
) -> None:
    """One by one or in batches, over ends of files, scanned at once or much later."""
    with pytest.MonkeyPatch.context() as patched, opened(tmp_path_factory.mktemp("log")) as store:
        patched.setattr(commitlog, "_NOTED_MAX", noted_max)
        log, written, found, at = store.log, list[int](), list[int](), 0
        for kind, number in [*steps, ("scan", 1 << 16)]:
            if kind == "one":
                written.append(append(store, bytes(number)))
            elif kind == "batch":
                members = members_of(encode_batch([(0, b"x" * 20, b"")] * number))
                part = BatchPart(store.queue("T", 0), number, 0, BORN_MS, 0, BORN_HOST)
                appended = append_batch(log, members, [part], BORN_MS)
                written += appended.physical_offsets.tolist()
            while kind == "scan" and at < log.end_offset:
                columns = log.scan(at, log.end_offset, number)
                assert columns is not None
                assert len(columns) <= number
                found += columns.physical_offset.tolist()
                at = log.after(at, columns)
                if number < 1 << 16:
                    break
        assert found == written


def test_what_is_at_a_physical_offset(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = append(store, b"first")
        second = append(store, b"second")
        end = store.log.end_offset
        record = encode_record("T", b"second", b"", 0, 1, second, 0, 0, BORN_MS, BORN_HOST, BORN_MS + 5, STORE_HOST)
        assert store.record_at(second) == record
        for nothing in (-1, first + 1, second - 1, end, end + 1, FILE, 1 << 62, -(1 << 63)):
            assert store.record_at(nothing) is None


# Long records are written by a call, short ones through the mapping: all are there either way.


SIZES = [1, LONG_BYTES - 300, LONG_BYTES, 20 * KiB]


class OddFiles(FileSystem):
    """Gives other descriptors than those of the files."""

    def __init__(self, descriptor_of: Callable[[Path], int]) -> None:
        self._descriptor_of = descriptor_of

    def open_to_write(self, path: Path) -> int:
        return self._descriptor_of(path)


def refuse(path: Path) -> int:
    raise OSError("too many open files")


def read_only(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


def elsewhere(path: Path) -> int:
    """As where a file and its mapping are two: what is written is not seen."""
    return os.open(path.with_name("elsewhere"), os.O_WRONLY | os.O_CREAT)


def log_bytes(root: Path, fs: FileSystem, sizes: list[int]) -> tuple[list[bytes], list[bytes]]:
    """The files of a log to which records with bodies of some sizes were written, and the bodies
    that are read."""
    with opened(root, fs=fs) as store:
        for number, size in enumerate(sizes):
            append(store, bytes([number % 256]) * size, now_ms=number)
        settle(store)
        found = bodies(store)
    files = [path for path in sorted((root / "commitlog").iterdir()) if path.name.isdigit()]
    return [path.read_bytes() for path in files], found


@given(st.lists(st.sampled_from(SIZES), max_size=12))
def test_how_records_are_written_does_not_show(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as root:
        by_calls, found = log_bytes(Path(root, "calls"), FileSystem(), sizes)
        mapped, _ = log_bytes(Path(root, "mapped"), OddFiles(refuse), sizes)
    assert by_calls == mapped
    assert found == [bytes([number]) * size for number, size in enumerate(sizes)]


@pytest.mark.parametrize("descriptor_of", [refuse, read_only, elsewhere])
def test_what_can_not_be_written_so_goes_through_the_mapping(
    tmp_path: Path, descriptor_of: Callable[[Path], int], caplog: pytest.LogCaptureFixture
) -> None:
    sizes = [*SIZES, *SIZES, 10]
    expected, _ = log_bytes(tmp_path / "usual", FileSystem(), sizes)
    caplog.clear()
    files, found = log_bytes(tmp_path / "odd", OddFiles(descriptor_of), sizes)
    assert files == expected
    assert list(map(len, found)) == sizes
    said = [record for record in caplog.records if "long records" in record.message]
    assert 1 <= len(said) <= len(files)


def test_what_a_slave_is_sent_is_written_so_whatever_its_length(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, fs=OddFiles(read_only)) as store:
        append(store, b"short")
        assert "long records" not in caplog.text
        store.put_raw(store.log_end_offset, b"shorter")
        assert "long records" in caplog.text


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    def writers() -> int:
        """Descriptors of this log for writing alone, as no mapping has one."""
        return sum(
            is_for_writing(int(link.name)) and is_below(link, tmp_path) for link in Path("/proc/self/fd").iterdir()
        )

    with opened(tmp_path / "store") as store:
        for _ in range(9):
            append(store, bytes(20 * KiB))
            assert writers() == 1
        assert len(store.log.segments.files) > 1
    assert writers() == 0


def is_for_writing(descriptor: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    except OSError:  # it was of another thread, which has closed it
        return False


def is_below(link: Path, root: Path) -> bool:
    try:
        return link.readlink().is_relative_to(root)
    except OSError:
        return False
