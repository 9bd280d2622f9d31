"""How a store says in which state it was left: `checkpoint`, `abort`, `lock`."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from firearrow.errors import StoreLocked
from firearrow.store.checkpoint import CHECKPOINT_BYTES, Checkpoint, End, StoreGuard
from firearrow.store.fs import FileSystem
from firearrow.store.offline.view import lock_holder
from tests.golden import extract

TAKE = """
import sys
from pathlib import Path
from firearrow.errors import StoreLocked
from firearrow.store.checkpoint import StoreGuard
try:
    StoreGuard(Path(sys.argv[1])).take()
except StoreLocked as error:
    sys.exit(str(error))
"""


def take_elsewhere(root: Path) -> str:
    """Try to take a store from another process; gives what it says."""
    command = [sys.executable, "-c", TAKE, str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


def test_the_bytes_of_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    written = Checkpoint(1, 2, 3, 4, 5, 6)
    written.save(path)
    fields = b"".join(number.to_bytes(8) for number in range(1, 7))
    assert path.read_bytes() == fields + bytes(CHECKPOINT_BYTES - len(fields))
    assert Checkpoint.load(path) == written
    Checkpoint(queues_physical_offset=7).save(path)
    assert path.read_bytes() == bytes(40) + (7).to_bytes(8) + bytes(CHECKPOINT_BYTES - 48)


def test_the_original_s_checkpoint(tmp_path: Path) -> None:
    path = extract("file-cq-clean", tmp_path) / "checkpoint"
    before = path.read_bytes()
    found = Checkpoint.load(path)
    assert 0 < found.queues_ms <= found.log_ms
    assert found.index_ms == 0  # no index file was full
    assert found.queues_physical_offset > 0
    found.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [None, b"", b"\1" * 47])
def test_no_checkpoint_is_all_zero(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "checkpoint"
    if content is not None:
        path.write_bytes(content)
    assert Checkpoint.load(path) == Checkpoint()


def test_the_life_of_the_marks(tmp_path: Path) -> None:
    guard = StoreGuard(tmp_path / "store")
    assert guard.take() is End.CLEAN
    guard.mark()
    assert (tmp_path / "store" / "lock").read_bytes() == b"lock"
    assert (tmp_path / "store" / "abort").read_bytes() == str(os.getpid()).encode()
    guard.release(clean=False)
    assert guard.take() is End.LOST
    guard.mark()
    guard.settle()
    guard.release(clean=True)
    assert not (tmp_path / "store" / "abort").exists()
    assert not (tmp_path / "store" / "settled").exists()
    assert guard.take() is End.CLEAN
    guard.release(clean=True)
    guard.release(clean=True)


def killed(root: Path) -> None:
    """Leave a store as a killed process would that had got through recovery."""
    guard = StoreGuard(root, boot_id=lambda: "first")
    guard.take()
    guard.mark()
    guard.settle()
    guard.release(clean=False)


def how_it_ended(root: Path, boot_id: str = "first") -> End:
    guard = StoreGuard(root, boot_id=lambda: boot_id)
    end = guard.take()
    guard.release(clean=False)
    return end


def test_the_end_of_the_process_alone_is_told_from_that_of_the_machine(tmp_path: Path) -> None:
    store = tmp_path / "store"
    killed(store)
    assert how_it_ended(store) is End.KILLED
    assert how_it_ended(store, "second") is End.LOST
    shutil.copytree(store, tmp_path / "copy")
    assert how_it_ended(tmp_path / "copy") is End.LOST
    (store / "abort").write_text("1")  # the original has served since
    assert how_it_ended(store) is End.LOST


def test_a_recovery_that_was_killed_itself_counts_as_nothing(tmp_path: Path) -> None:
    killed(tmp_path)
    guard = StoreGuard(tmp_path, boot_id=lambda: "first")
    assert guard.take() is End.KILLED
    guard.mark()
    guard.release(clean=False)
    assert how_it_ended(tmp_path) is End.LOST


def test_a_machine_without_a_boot_id_trusts_nothing(tmp_path: Path) -> None:
    def unknown() -> str:
        raise FileNotFoundError("boot_id")

    killed(tmp_path)
    guard = StoreGuard(tmp_path, boot_id=unknown)
    assert guard.take() is End.LOST
    guard.mark()
    guard.settle()
    guard.release(clean=False)
    assert how_it_ended(tmp_path, "") is End.LOST


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    guard = StoreGuard(tmp_path)
    guard.take()
    with pytest.raises(StoreLocked, match="open in this process already"):
        StoreGuard(tmp_path).take()
    assert take_elsewhere(tmp_path) == f"store {tmp_path} is in use by another process"
    guard.mark()
    assert take_elsewhere(tmp_path) == f"store {tmp_path} is in use by process {os.getpid()}"
    guard.release(clean=True)
    assert take_elsewhere(tmp_path) == ""


def test_without_its_lock_file_a_store_lets_nobody_in(tmp_path: Path) -> None:
    guard = StoreGuard(tmp_path)
    guard.take()
    guard.mark()
    (tmp_path / "lock").unlink()
    assert take_elsewhere(tmp_path) == f"store {tmp_path} is in use by process {os.getpid()}"
    assert lock_holder(tmp_path / "lock") == os.getpid()
    guard.release(clean=True)
    assert take_elsewhere(tmp_path) == ""


def test_a_file_system_without_such_locks_has_the_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.EBADF, "no lock for a directory")

    monkeypatch.setattr(fcntl, "flock", refuse)
    guard = StoreGuard(tmp_path)
    guard.take()
    assert "only its file `lock` keeps others out" in caplog.text
    assert take_elsewhere(tmp_path) == f"store {tmp_path} is in use by another process"
    guard.release(clean=True)
    assert take_elsewhere(tmp_path) == ""


def test_who_can_not_remove_the_mark_lets_go_all_the_same(tmp_path: Path) -> None:
    class Stubborn(FileSystem):
        def remove(self, path: Path) -> None:
            raise OSError(errno.EMFILE, "refused", str(path))

    guard = StoreGuard(tmp_path, Stubborn())
    guard.take()
    guard.mark()
    guard.release(clean=True)
    assert take_elsewhere(tmp_path) == ""
    assert how_it_ended(tmp_path) is End.LOST


def test_one_store_by_two_names_is_one(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    guard = StoreGuard(tmp_path / "store")
    guard.take()
    with pytest.raises(StoreLocked):
        StoreGuard(tmp_path / "link").take()
    # Neither try has let go of the lock.
    assert "in use" in take_elsewhere(tmp_path / "link")
    guard.release(clean=True)


def test_the_golden_store_that_was_killed_is_marked(tmp_path: Path) -> None:
    for name, end in (("file-cq-clean", End.CLEAN), ("file-cq-killed", End.LOST)):
        guard = StoreGuard(extract(name, tmp_path))
        assert guard.take() is end
        guard.release(clean=False)


def test_marks_that_are_no_text_say_that_the_end_is_unknown(tmp_path: Path) -> None:
    for name in ("abort", "settled"):
        (tmp_path / name).write_bytes(b"\xf5\xff")
    guard = StoreGuard(tmp_path)
    assert guard.take() is End.LOST
    guard.release(clean=False)
