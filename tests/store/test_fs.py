"""The file system: what fails names the file, also where the call has only a descriptor."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from firearrow.files import replace_atomically
from firearrow.store.fs import OS_FILES


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


def test_a_map_that_can_not_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    with pytest.raises(OSError, match="No space left") as caught:
        map_without_memory(path, monkeypatch)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize(
    ("blocks", "free", "for_all", "ratio"),
    [(100, 50, 50, 0.5), (100, 40, 30, 0.67), (100, 0, 0, 1.0), (0, 0, 0, 0.0)],
)
def test_a_disk_is_as_full_as_it_is_for_who_is_not_root(
    blocks: int, free: int, for_all: int, ratio: float, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    said = os.statvfs_result((4096, 4096, blocks, free, for_all, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: said)
    assert OS_FILES.used_ratio(tmp_path) == ratio
