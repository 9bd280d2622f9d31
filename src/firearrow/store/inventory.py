"""Inventory of a closed store, for the next start: the file ``closed.json``.

Files may vanish while no broker runs. If they were the first or the last ones, or a queue's whole directory, they leave
no gap. So a clean stop notes the bytes of the log, the stretch of each queue in files and the IndexFiles, and the next
start compares. Queues in a database don't need this: the database does not open without one of its files.

The file is JSON. ``checkpoint`` is the CRC-32 of the bytes of ``checkpoint``, ``log`` the begin and end of the log,
``index`` the names of the IndexFiles. ``queues`` has by topic and queue id the first byte of the first file and the
queue offset of the end. RocketMQ does not read the file. Once RocketMQ has served the store, the checkpoint is
different, and the note does not count. A completed start removes the file; a start that is killed before that leaves it
to the next one.

Worked example: ``{"checkpoint":2774365718,"log":[0,4096],"index":["20261120213113741"], "queues":{"T":{"0":[0,12]}}}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from firearrow.logs import Log
from firearrow.message.names import fault_as_directory
from firearrow.store.fs import FileSystem, replace_file
from firearrow.store.laggingqueues import Key

log: Final = Log(__name__)

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
    """A sum that differs between the checkpoints of a store."""
    path = root / "checkpoint"
    return crc32(path.read_bytes()) if path.is_file() else 0


def parse(data: bytes | memoryview, checkpoint: int) -> Inventory | None:
    """Read the bytes of a note; None if it belongs to another checkpoint than the one with this sum.

    Raises ValueError for bytes that are no note.
    """
    found = msgspec.json.decode(data, type=Inventory)
    for fault in filter(None, map(fault_as_directory, found.queues)):
        raise ValueError(fault)
    return found if found.checkpoint == checkpoint else None


def save(root: Path, inventory: Inventory, fs: FileSystem) -> None:
    """Write the note; durable on return. OSError if that fails."""
    assert inventory.log[0] <= inventory.log[1]
    replace_file(fs, root / NAME, [msgspec.json.encode(inventory)])


def load(root: Path) -> Inventory | None:
    """Read the note; None if there is none for the present checkpoint of the store."""
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
