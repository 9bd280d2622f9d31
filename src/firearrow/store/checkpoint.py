"""The small files that record how the last run ended: ``checkpoint``, ``abort``, ``lock``, ``settled``.

``checkpoint`` is 4096 bytes, six i64, big-endian, the rest zero:

====== ====================================================================
offset field
====== ====================================================================
0      store time of the last record that is on the disk, ms
8      store time of the last record whose ConsumeQueue entry is, ms
16     store time of the last key in a full (or closed) IndexFile, ms
24     flushed offset of the master, as its slave knows it; only shown, as on RocketMQ
32     confirmed physical offset
40     physical offset of the last record whose ConsumeQueue entry is on the disk
====== ====================================================================

``abort`` exists while a broker serves and holds its pid: a start that finds it is an abnormal one. ``lock`` is locked
while the store is open; its bytes are ``lock``, and the holder's pid is in ``abort``. Firearrow, unlike RocketMQ, also
locks the directory by ``flock``: even if somebody deletes ``lock``, no second Firearrow can open the store.

``settled`` is Firearrow's own file. It exists from the end of recovery on, and names the process, the boot of the
machine and the directory. If all three are the same at the next start, only the process has ended. Then everything that
it wrote is in the page cache or on the disk.

Source: RocketMQ's ``StoreCheckpoint``, ``DefaultMessageStore#createTempFile``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from firearrow.errors import StoreLocked, naming
from firearrow.logs import Log
from firearrow.store.fs import OS_FILES, FileSystem, ensure_directory

log: Final = Log(__name__)

CHECKPOINT_BYTES: Final = 4096
_FIELDS: Final = struct.Struct(">6q")
# A write in place is atomic for one sector at most.
assert _FIELDS.size <= 512
_LOCK_TEXT: Final = b"lock"
# File locks exclude other processes only; this set excludes other stores of this process.
_held: set[Path] = set()


@dataclass(slots=True)
class Checkpoint:
    """The fields of ``checkpoint``."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0
    queues_physical_offset: int = 0

    @staticmethod
    def load(path: Path) -> Checkpoint:
        """Read the file; all zero where there is none or it is short."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return Checkpoint()
        return Checkpoint.of(data)

    @staticmethod
    def of(data: bytes | memoryview) -> Checkpoint:
        """Take the bytes of a file apart; all zero where it is short."""
        return Checkpoint(*_FIELDS.unpack_from(data)) if len(data) >= _FIELDS.size else Checkpoint()

    def save(self, path: Path, fs: FileSystem = OS_FILES) -> None:
        """Write all fields in place and return once they are on the disk.

        The fields are in one sector. So no new file and no rename is necessary, which would cost the sync of a
        directory each time.
        """
        fields = _FIELDS.pack(
            self.log_ms,
            self.queues_ms,
            self.index_ms,
            self.master_flushed_offset,
            self.confirmed_offset,
            self.queues_physical_offset,
        )
        fs.replace_head(path, fields, CHECKPOINT_BYTES)


class End(Enum):
    """End of the last run."""

    CLEAN = "the store was closed"
    KILLED = "the process ended; the machine did not"
    LOST = "anything that was not synced may be gone"


def _boot_id() -> str:
    """The id of the machine's last boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class StoreGuard:
    """Holds a store directory for this process: its lock, and the mark of an unclean end.

    ``boot_id`` distinguishes one boot of the machine from the next.
    """

    def __init__(self, root: Path, fs: FileSystem = OS_FILES, boot_id: Callable[[], str] = _boot_id) -> None:
        self._fs = fs
        self._boot_id = boot_id
        self._abort = root / "abort"
        self._settled = root / "settled"
        self._lock = root / "lock"
        self._fd = self._directory_fd = -1

    def take(self) -> End:
        """Lock the store; return the end of the last run.

        Raises StoreLocked, naming the holder's pid, when another process has it.
        """
        assert self._fd < 0, "a store is locked once"
        ensure_directory(self._fs, self._lock.parent)
        if self._lock.resolve() in _held:
            raise StoreLocked(f"store {self._lock.parent} is open in this process already")
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # The same range as RocketMQ's FileChannel.tryLock(0, 1, false), so the two exclude each other.
            with naming(self._lock):
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                os.pwrite(fd, _LOCK_TEXT, 0)
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise StoreLocked(f"store {self._lock.parent} is in use by {self._holder()}") from None
        try:
            self._directory_fd = self._hold_directory()
        except BaseException:
            self._let_go(fd)
            raise
        self._fd = fd
        _held.add(self._lock.resolve())
        if not self._abort.exists():
            return End.CLEAN
        facts = self._facts(self._abort.read_text(errors="replace"))
        return End.KILLED if facts and self._settled_facts() == facts else End.LOST

    def _hold_directory(self) -> int:
        """Lock the directory itself; -1 where the file system has no such locks."""
        directory = self._lock.parent
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise StoreLocked(f"store {directory} is in use by {self._holder()}") from None
        except OSError as error:
            os.close(fd)
            log.warning("only its file `lock` keeps others out of a store", extra={"path": directory, "error": error})
            return -1
        return fd

    def _let_go(self, fd: int) -> None:
        os.close(fd)
        if self._directory_fd >= 0:
            fcntl.flock(self._directory_fd, fcntl.LOCK_UN)  # children may also have the descriptor
            os.close(self._directory_fd)
            self._directory_fd = -1

    def _facts(self, pid: str) -> str:
        """The facts of a run for ``settled``; empty where a machine can't tell its boots apart."""
        try:
            boot_id = self._boot_id()
        except OSError:
            return ""
        where = self._abort.parent.stat()
        return f"pid={pid}\nboot={boot_id}\ndirectory={where.st_dev}:{where.st_ino}\n"

    def _settled_facts(self) -> str:
        return self._settled.read_text(errors="replace") if self._settled.exists() else ""

    def _holder(self) -> str:
        try:
            pid = self._abort.read_text(errors="replace").strip()
        except FileNotFoundError:
            pid = ""
        return f"process {pid}" if pid else "another process"

    def mark(self) -> None:
        """Leave the mark that only ``release(clean=True)`` removes.

        It is on the disk, with its name, before recovery writes anything. The ``settled`` of an earlier run is removed
        first: in a container this process may have the same pid.
        """
        assert self._fd >= 0, "only the holder marks a store"
        if self._settled.exists():
            self._fs.remove(self._settled)
        pid = str(os.getpid()).encode()
        self._fs.replace_head(self._abort, pid, len(pid))
        self._fs.sync_directory(self._abort.parent)

    def settle(self) -> None:
        """Note that recovery is done: from now on the end of only this process loses nothing.

        The file's name may be missing on the disk: that can happen only after another boot, and then the file would not
        count.
        """
        assert self._fd >= 0, "only the holder settles a store"
        facts = self._facts(str(os.getpid())).encode()
        if facts:
            self._fs.replace_head(self._settled, facts, len(facts))

    def release(self, *, clean: bool) -> None:
        """Unlock the store, and remove the mark if everything is on the disk."""
        if self._fd < 0:
            return
        try:
            # `abort` last: while it exists, the next start takes the end for an unclean one.
            for mark in (self._settled, self._abort):
                if clean and mark.exists():
                    self._fs.remove(mark)
        except OSError as error:
            log.error("store can't be marked: the next start will look at everything again", extra={"error": error})
        self._let_go(self._fd)
        self._fd = -1
        _held.discard(self._lock.resolve())
