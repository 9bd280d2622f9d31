"""File system that loses power.

``CrashableFileSystem`` works on a real directory. It also keeps the state that a disk would have if the power failed
now:

- the bytes of a file when ``sync_file`` last returned (nothing before that);
- the names in a directory when ``sync_directory`` last returned.

``crash`` makes a directory of a possible remainder: everything that was synced, and a part of the rest, chosen by a
seed. Unsynced bytes are lost or survive by sectors of 512 bytes in any order, as a kernel writes them back. Unsynced
names appear, stay or vanish one by one.

Every operation first calls ``before``. A test that raises ``PowerLoss`` there stops the store between any two
operations. A test that raises OSError there makes this operation fail.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt

from firearrow.files import SECTOR_BYTES
from firearrow.store.fs import FileSystem

_COPIES_MAX: Final = 100
_SURVIVING: Final = (0.0, 0.5, 0.9, 1.0)  # shares of the unsynced sectors that reached the disk

Before = Callable[[str, Path], None]


class PowerLoss(BaseException):
    """Loss of power: only the test that raised it may handle it."""


class _Node:
    """File or directory, under any name; ``synced`` is None for a directory."""

    __slots__ = ("synced",)

    def __init__(self, synced: bytes | None) -> None:
        self.synced = synced


def _nothing(operation: str, path: Path) -> None:
    """Default of ``before``."""


class CrashableFileSystem(FileSystem):
    """File system below ``root``; existing files count as synced.

    ``others`` are names in ``root`` of databases that write past this file system and sync their files themselves: a
    crash leaves them unchanged. ``whole`` allows one sync of the whole file system, which is used from two files on.
    Otherwise files are synced one after another, in this thread.
    """

    many_files = 2
    sync_threads = 1

    def __init__(
        self, root: Path, before: Before = _nothing, others: Collection[str] = (), *, whole: bool = False
    ) -> None:
        self.root = root
        self._whole = whole
        self.before = before
        self._others = others
        # Names are strings: in a simulation, paths took a fifth of the time.
        self._prefix = len(str(root)) + 1
        self._live: dict[str, _Node] = {
            self._name(path): _Node(None if path.is_dir() else path.read_bytes())
            for path in sorted(root.rglob("*"))
            if path.relative_to(root).parts[0] not in others
        }
        self._synced = dict(self._live)

    def _name(self, path: Path) -> str:
        """Path relative to the root; empty for the root itself."""
        name = str(path)
        assert path == self.root or name.startswith(f"{self.root}/"), f"{path} is outside of the root"
        return name[self._prefix :]

    # --- operations of the store ---

    def create_file(self, path: Path, size_bytes: int, reserved_bytes: int) -> None:
        """Create a file; its name and size are not durable."""
        self.before("create", path)
        super().create_file(path, size_bytes, reserved_bytes)
        self._named(path)

    def make_directory(self, path: Path) -> None:
        """Make a directory; its name is not durable."""
        self.before("make", path)
        super().make_directory(path)
        self._live.setdefault(self._name(path), _Node(None))

    def reserve(self, path: Path, start_bytes: int, size_bytes: int) -> None:
        """Reserve blocks, which changes no content."""
        self.before("reserve", path)
        super().reserve(path, start_bytes, size_bytes)

    def map_file(self, path: Path) -> mmap.mmap:
        """Map a file, which changes nothing."""
        self.before("map", path)
        return super().map_file(path)

    def resize(self, path: Path, size_bytes: int) -> None:
        """Truncate or extend a file; durable after a sync."""
        self.before("resize", path)
        super().resize(path, size_bytes)

    def replace_head(self, path: Path, data: bytes, size_bytes: int) -> None:
        """Write a small file; its bytes are durable, its name only if it was."""
        self.before("replace", path)
        super().replace_head(path, data, size_bytes)
        self._named(path).synced = path.read_bytes()

    def write_file(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Write a new file; its bytes are durable, its name is not."""
        self.before("write", path)
        super().write_file(path, pieces)
        self._named(path).synced = path.read_bytes()

    def rename(self, path: Path, target: Path) -> None:
        """Rename; after a crash, either name may exist."""
        self.before("rename", path)
        super().rename(path, target)
        source, destination = self._name(path), self._name(target)
        self._name_parents(destination)
        for name in self._names_in(source):
            self._live[destination + name[len(source) :]] = self._live.pop(name)

    def _names_in(self, top: str) -> list[str]:
        """Name of a directory, and all names in it."""
        return [name for name in self._live if name == top or name.startswith(f"{top}/")]

    def remove(self, path: Path) -> None:
        """Remove a file; its name may reappear."""
        self.before("remove", path)
        super().remove(path)
        self._live.pop(self._name(path), None)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with its content; any of it may reappear."""
        self.before("remove", path)
        super().remove_tree(path)
        for name in self._names_in(self._name(path)):
            del self._live[name]

    def sync_file(self, path: Path) -> None:
        """Make a file's bytes durable."""
        self.before("sync", path)
        self._live[self._name(path)].synced = path.read_bytes()

    def sync_directory(self, path: Path) -> None:
        """Make a directory's names durable."""
        self.before("sync names", path)
        directory = self._name(path)
        for name in [name for name in self._synced if _parent(name) == directory]:
            if name not in self._live:
                del self._synced[name]
        for name, node in self._live.items():
            if _parent(name) == directory:
                self._synced[name] = node

    def hold_whole(self, directory: Path) -> int | None:
        """Number that stands for the root."""
        return 0 if self._whole else None

    def let_go(self, held: int) -> None:
        """Do nothing."""

    def unwritten_bytes(self) -> int:
        """Zero: a test does not depend on the writes of others."""
        return 0

    def sync_whole(self, held: int) -> None:
        """Make all bytes and names durable."""
        self.before("sync whole", self.root)
        for name, node in self._live.items():
            if node.synced is not None:
                node.synced = (self.root / name).read_bytes()
        self._synced = dict(self._live)

    def _named(self, path: Path) -> _Node:
        name = self._name(path)
        self._name_parents(name)
        return self._live.setdefault(name, _Node(b""))

    def _name_parents(self, name: str) -> None:
        at = name.find("/")
        while at >= 0:
            self._live.setdefault(name[:at], _Node(None))
            at = name.find("/", at + 1)

    # --- after a crash ---

    def crash(self, target: Path, seed: int) -> None:
        """Make ``target`` a possible state of this directory after a loss of power."""
        random = Random(seed)
        target.mkdir()
        for name in sorted(self._live.keys() | self._synced.keys(), key=lambda it: it.split("/")):
            node = self._survivor(name, random)
            if node is None or not (target / name).parent.is_dir():
                continue
            if node.synced is None:
                (target / name).mkdir()
            else:
                (target / name).write_bytes(self._bytes_left(name, node, random))
        for other in self._others:
            if (self.root / other).is_dir():
                copy_whole(self.root / other, target / other)

    def _survivor(self, name: str, random: Random) -> _Node | None:
        """Node of a name: the synced one or the present one."""
        synced, live = self._synced.get(name), self._live.get(name)
        return live if synced is live or random.random() < 0.5 else synced

    def _bytes_left(self, name: str, node: _Node, random: Random) -> bytes:
        synced = node.synced
        assert synced is not None
        if self._live.get(name) is not node:
            return synced
        now = (self.root / name).read_bytes()
        if len(now) != len(synced):
            if random.random() < 0.3:
                return synced
            synced = synced[: len(now)].ljust(len(now), b"\0")
        return _mixed(synced, now, random)


def copy_whole(source: Path, target: Path) -> None:
    """Copy a directory as it is at one moment, though a thread of its owner may change it."""
    for _ in range(_COPIES_MAX):
        with suppress(OSError):  # a file has vanished, so this listing belongs to another moment
            before = _sizes(source)
            shutil.copytree(source, target)
            if _sizes(source) == before == _sizes(target):
                return
        shutil.rmtree(target, ignore_errors=True)
    raise RuntimeError(f"{source} keeps changing")


def _sizes(directory: Path) -> dict[str, int]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _mixed(old: bytes, new: bytes, random: Random) -> bytes:
    """``old`` with some of the different sectors of ``new``."""
    before, after = _sectors(old), _sectors(new)
    differing = (before != after).any(axis=1).nonzero()[0].tolist()
    share = random.choice(_SURVIVING)
    survivors = [sector for sector in differing if random.random() < share]
    before[survivors] = after[survivors]
    return before.tobytes()[: len(new)]


def _sectors(data: bytes) -> npt.NDArray[np.uint8]:
    padded = data.ljust(-(-len(data) // SECTOR_BYTES) * SECTOR_BYTES, b"\0")
    return np.frombuffer(bytearray(padded), np.uint8).reshape(-1, SECTOR_BYTES)
