"""Inventory of a closed store, for the next start: the file ``closed.json``.

Files that vanish while no broker runs leave no gap where they were the first or the last ones, and
none where a queue's whole directory is gone. So a clean stop notes which bytes of the log, which
stretch of each queue in files and which IndexFiles there are, and the next start compares. Queues
in a database need no note: it does not open without one of its files.

The file is JSON: ``checkpoint`` is the CRC-32 of the bytes of ``checkpoint``, ``log`` where the log
begins and ends, ``index`` the names of the IndexFiles, ``queues`` has by topic and queue id the
first byte of the first file and the queue offset of the end. RocketMQ does not look at it. Once it
has served the store, the checkpoint is another one, and the note does not count. A start that has
come to its end removes it: one that is killed before that leaves it to the next.

Worked example: ``{"checkpoint":2774365718,"log":[0,4096],"index":["20261120213113741"],
"queues":{"T":{"0":[0,12]}}}``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from firearrow.message.names import fault_as_directory
from firearrow.store.fs import FileSystem, replace_file
from firearrow.store.laggingqueues import Key

log = logging.getLogger(__name__)

NAME: Final = "closed.json"


class Inventory(msgspec.Struct):
    """The fields of the file."""

    checkpoint: int
    log: tuple[int, int]
    index: list[str]
    queues: dict[str, dict[int, tuple[int, int]]]

    def each_queue(self) -> Iterator[tuple[Key, int, int]]:
        """Each queue with the first byte of its first file, and the queue offset of its end."""
        for topic, queues in self.queues.items():
            for queue_id, (first, end) in queues.items():
                yield (topic, queue_id), first, end


def checkpoint_sum(root: Path) -> int:
    """Give a sum that tells one checkpoint of a store from another."""
    path = root / "checkpoint"
    return crc32(path.read_bytes()) if path.is_file() else 0


def parse(data: bytes | memoryview, checkpoint: int) -> Inventory | None:
    """Read the bytes of a note; None if it is of another checkpoint than the one with this sum.

    Raises ValueError for bytes that are no note.
    """
    found = msgspec.json.decode(data, type=Inventory)
    for fault in filter(None, map(fault_as_directory, found.queues)):
        raise ValueError(fault)
    return found if found.checkpoint == checkpoint else None


def save(root: Path, inventory: Inventory, fs: FileSystem) -> None:
    """Write the note; it is on the disk on return. OSError if it can't be."""
    assert inventory.log[0] <= inventory.log[1]
    replace_file(fs, root / NAME, [msgspec.json.encode(inventory)])


def load(root: Path) -> Inventory | None:
    """Read the note; None where there is none that holds for the store as it is."""
    path = root / NAME
    if not path.is_file():
        return None
    try:
        return parse(path.read_bytes(), checkpoint_sum(root))
    except ValueError as error:
        log.warning("file is ignored: it can't be read", extra={"path": path, "error": error})
        return None


def remove(root: Path, fs: FileSystem) -> None:
    """Remove the note: from now on the store changes."""
    if (root / NAME).exists():
        fs.remove(root / NAME)
        fs.sync_directory(root)
