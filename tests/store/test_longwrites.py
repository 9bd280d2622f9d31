"""Long records are written by a call, short ones through the mapping: all are there either way."""

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.store.fs import FileSystem
from firearrow.store.longwrites import LONG_BYTES
from tests.store.stores import KiB, append, bodies, opened, settle

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
