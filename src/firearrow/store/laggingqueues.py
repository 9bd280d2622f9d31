"""Queues that lack messages which dispatch has passed, and the file that names them.

A queue that can't be written, for a reason that concerns only this queue, is left out. It gets no further entries, its
messages stay in the log, and all other queues continue. As soon as it can be written again it catches up (``catchup``).
Meanwhile the checkpoint's statement about queues does not hold for it. So before dispatch continues, the queue is noted
in ``left-out-queues.tsv``. The next start, after any kind of end, rebuilds the queues that the file names. RocketMQ
does not read the file.

Each line is ``TOPIC QUEUE_ID END``, with tabs between: no later message of the queue may have a queue offset below
``END``.
"""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from firearrow.logs import Log
from firearrow.message.names import fault_as_directory
from firearrow.store.fs import FileSystem, replace_file

log: Final = Log(__name__)

NAME: Final = "left-out-queues.tsv"
Key = tuple[str, int]

# All files lack this, room or descriptors: waiting for it loses nothing.
_OF_ALL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS})


class Lagging(NamedTuple):
    """A queue that is left out: the reason, the first missing record, and the end that the queue would have.

    ``needs_rebuild``: its files can't be continued.
    """

    reason: str
    since: int
    end: int
    needs_rebuild: bool


def concerns_all(error: OSError) -> bool:
    """Tell whether an error concerns more than one file."""
    return error.errno in _OF_ALL


class LaggingFile:
    """The file; ``noted`` is its content on the disk. Any thread may write."""

    def __init__(self, root: Path, fs: FileSystem) -> None:
        self._path = root / NAME
        self._fs = fs
        self._lock = Lock()
        self.noted: dict[Key, int] = {}

    def load(self) -> None:
        """Read the file; an unreadable line is ignored."""
        if not self._path.is_file():
            return
        for line in self._path.read_text(errors="replace").splitlines():
            try:
                topic, queue_id, end = line.split("\t")
                if (fault := fault_as_directory(topic)) is not None:
                    raise ValueError(fault)
                self.noted[topic, int(queue_id)] = int(end)
            except ValueError:
                log.warning("line is ignored: it names no queue", extra={"path": self._path, "line": line})

    def add(self, ends: dict[Key, int]) -> None:
        """Note queues; durable on return. OSError if that fails."""
        with self._lock:
            if any(self.noted.get(key) is None for key in ends):
                self._write(self.noted | ends)

    def renew(self, whole: set[Key], ends: dict[Key, int] | None = None) -> None:
        """Forget the ``whole`` queues, whose entries are all on the disk; note ends of others."""
        assert ends is None or whole.isdisjoint(ends), "a queue with a new end is still left out"
        with self._lock:
            left = self.noted | (ends or {})
            left = {key: end for key, end in left.items() if key not in whole}
            if left != self.noted:
                self._write(left)

    def _write(self, ends: dict[Key, int]) -> None:
        assert self._lock.locked(), "one thread at a time writes"
        lines = [
            f"{topic}\t{queue_id}\t{end}\n".encode()
            for (topic, queue_id), end in ends.items()
            if fault_as_directory(topic) is None  # for such a topic no queue is made, and its line might look like two
        ]
        if lines:
            replace_file(self._fs, self._path, lines)
        elif self._path.exists():
            self._fs.remove(self._path)
            self._fs.sync_directory(self._path.parent)
        self.noted = ends
