"""The file system: what fails names the file, also where the call has only a descriptor."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from firearrow.files import replace_atomically
from firearrow.store.fs import FOREIGN_BYTES, OS_FILES, FileSystem, ManyFiles


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def map_without_memory(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("mmap.mmap", lambda *_, **__: no_room())
    OS_FILES.map_file(path)


@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("posix_fallocate", lambda path: OS_FILES.create_file(path.with_name("new"), 8, 8)),
        ("posix_fallocate", lambda path: OS_FILES.reserve(path, 0, 8)),
        ("ftruncate", lambda path: OS_FILES.replace_head(path, b"x", 8)),
        ("pwrite", lambda path: OS_FILES.replace_head(path, b"x", 1)),
        ("fdatasync", lambda path: OS_FILES.sync_file(path)),
        ("fdatasync", lambda path: OS_FILES.write_file(path.with_name("new"), [b"x"])),
        ("fsync", lambda path: OS_FILES.sync_directory(path.parent)),
        ("fsync", lambda path: replace_atomically(path, b"x")),
    ],
)
def test_what_has_no_room_is_named(
    call: str, act: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    monkeypatch.setattr(os, call, no_room)
    with pytest.raises(OSError, match="No space left") as caught:
        act(path)
    assert str(caught.value.filename).startswith(str(tmp_path))


def test_a_map_that_can_not_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    with pytest.raises(OSError, match="No space left") as caught:
        map_without_memory(path, monkeypatch)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize(
    ("blocks", "free", "for_all", "ratio"), [(100, 50, 50, 0.5), (100, 40, 30, 0.67), (100, 0, 0, 1.0), (0, 0, 0, 0.0)]
)
def test_a_disk_is_as_full_as_it_is_for_who_is_not_root(
    blocks: int, free: int, for_all: int, ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = os.statvfs_result((4096, 4096, blocks, free, for_all, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: said)
    assert OS_FILES.used_ratio(tmp_path) == ratio


class Disk(FileSystem):
    """Counts what is synced; can sync as a whole, unless that fails or others write much."""

    def __init__(self) -> None:
        self.one_by_one: list[Path] = []
        self.wholes = 0
        self.unwritten = 0
        self.fails = False

    def hold_whole(self, directory: Path) -> int | None:
        return os.open(directory, os.O_RDONLY)

    def sync_whole(self, held: int) -> None:
        self.wholes += 1
        if self.fails:
            no_room()

    def unwritten_bytes(self) -> int:
        return self.unwritten

    def sync_file(self, path: Path) -> None:
        if not path.is_symlink():
            super().sync_file(path)
        self.one_by_one.append(path)

    sync_directory = sync_file


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / str(number) for number in range(FileSystem.many_files)]
    for path in made:
        path.write_bytes(b"1")
    return made


def synced(disk: Disk, many: ManyFiles, files: list[Path]) -> tuple[int, list[Path]]:
    """How often all was synced for some files, and what was synced one by one."""
    disk.wholes, disk.one_by_one = 0, []
    assert many.sync_files(files) == {}
    return disk.wholes, sorted(disk.one_by_one)


def test_many_files_are_synced_at_once_and_few_one_by_one(files: list[Path]) -> None:
    disk = Disk()
    many = ManyFiles(files[0].parent, disk)
    assert synced(disk, many, files) == (0, sorted(files)), "it does not know what failed before"
    many.open()
    assert synced(disk, many, files) == (1, [])
    assert synced(disk, many, files[1:]) == (0, sorted(files[1:]))
    many.sync_directories(files)
    assert (disk.wholes, disk.one_by_one) == (1, sorted(files[1:], key=files.index))
    many.close()


def test_many_files_do_not_wait_for_all_that_others_write(files: list[Path]) -> None:
    disk = Disk()
    many = ManyFiles(files[0].parent, disk)
    many.open()
    disk.unwritten = len(files) * FOREIGN_BYTES + 1
    assert synced(disk, many, files) == (0, sorted(files))
    many.close()


def test_an_error_of_all_is_looked_for_in_each_file_from_then_on(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells it once, and it may be about a file of this store that is synced later."""
    disk = Disk()
    many = ManyFiles(files[0].parent, disk)
    many.open()
    disk.fails = True
    assert synced(disk, many, files) == (1, sorted(files))
    disk.fails = False
    assert synced(disk, many, files) == (0, sorted(files))
    monkeypatch.setattr(os, "fdatasync", no_room)
    with pytest.raises(OSError, match="No space left"):
        many.sync_files(files)


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_gone_or_elsewhere_is_told_or_synced_by_itself(whole: bool, files: list[Path]) -> None:
    disk = Disk()
    many = ManyFiles(files[0].parent, disk)
    disk.unwritten = 0 if whole else 1 << 60
    many.open()
    files[3].unlink()
    files[5].unlink()
    files[5].symlink_to("/proc/self/status")  # on another file system
    missing = many.sync_files(files)
    assert [(path, error.errno) for path, error in missing.items()] == [(files[3], errno.ENOENT)]
    assert files[5] in disk.one_by_one
    assert (len(disk.one_by_one) == 1) is whole
    many.close()


def test_the_machine_syncs_many_files(files: list[Path]) -> None:
    many = ManyFiles(files[0].parent, OS_FILES)
    many.open()
    many.sync_directories([files[0].parent] * len(files))
    assert many.sync_files(files) == {}
    many.close()
