"""Epochs of the log, the part that each master wrote: the file ``epochFileCheckpoint``.

The controller gives each master a number that is larger than all earlier ones, its *epoch*. The bytes that a master
writes belong to its epoch. It begins at the end of the log when the broker became master, and ends where the next epoch
begins. If two logs have the same epoch with the same start, they are equal up to the end of the shorter of the two
epochs. So a slave finds the part of its log that its master does not have (`Epochs.common_end`).

The file is text, as RocketMQ's broker writes it, each line ended by a line feed:

====== ============================================================================
line   content
====== ============================================================================
1      count of the epochs that follow
2      the CRC-32 of all lines after this one, decimal; 0 is not checked
3...   ``epoch-offset``: an epoch, which is larger than the one before, and the
       physical offset of its first byte, which is no smaller
====== ============================================================================

The file's previous content is in ``epochFileCheckpoint.bak``, which is read if the file is unreadable.

Worked example, a first master and one that took over at 3641::

    2
    903091474
    1-0
    2-3641

Source: RocketMQ's ``EpochFileCache``, ``CheckpointFile``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from firearrow.errors import RemoteProtocolError
from firearrow.files import read_newest, replace_atomically, sync_directory
from firearrow.javanumbers import LONG_MAX

_ENTRY: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,19})")
END_OF_TIME: Final = LONG_MAX
"""End of the present epoch."""


class Epoch(NamedTuple):
    """An epoch and the physical offset of its first byte."""

    epoch: int
    start: int


class Epochs:
    """The epochs of a log, in their order.

    ``changed`` is true while the file is older than the entries (`save`); without a path there is no file.
    """

    def __init__(self, entries: Iterable[Epoch] = (), path: Path | None = None) -> None:
        self.entries: list[Epoch] = []
        self.changed: bool = False
        self._path = path
        for entry in entries:
            self._check(entry)
            self.entries.append(entry)

    def _check(self, entry: Epoch) -> None:
        last = self.last
        follows = entry.epoch >= 0 and entry.start >= 0
        if last is not None:
            follows = entry.epoch > last.epoch and entry.start >= last.start
        if not follows:
            raise RemoteProtocolError(f"epoch {entry.epoch} at {entry.start} can't follow {last}")

    @staticmethod
    def load(path: Path) -> Epochs:
        """Read the file; raises ConfigError if a file exists but neither it nor its backup is readable."""
        found = read_newest(path, parse)
        return Epochs(found.value if found is not None else (), path)

    def save(self) -> None:
        """Write the file if it is older than the entries; it is durable on return. Raises OSError."""
        if not self.changed or self._path is None:
            return
        if self.entries:
            data = encode(self.entries)
            assert parse(data) == self.entries, "the next start reads the same epochs"
            replace_atomically(self._path, data)
        elif self._path.parent.is_dir():  # RocketMQ would read the backup of an empty file
            for path in (self._path, self._path.with_name(self._path.name + ".bak")):
                path.unlink(missing_ok=True)
            sync_directory(self._path.parent)
        self.changed = False

    @property
    def last(self) -> Epoch | None:
        """The latest epoch."""
        return self.entries[-1] if self.entries else None

    @property
    def last_epoch(self) -> int:
        """Number of the latest epoch, -1 without any."""
        return self.entries[-1].epoch if self.entries else -1

    def begin(self, epoch: int, start: int) -> None:
        """Begin an epoch at a physical offset, in place of epochs with a higher number or a later start.

        An earlier epoch stays even if nothing was written in it: a log that has some of its bytes shares it up to its
        start. Java: EpochFileCache#appendEntry loses the second of the two. Such a slave then finds no common epoch
        (apache/rocketmq#6505).
        """
        assert epoch >= 0
        assert start >= 0
        kept = [it for it in self.entries if it.epoch < epoch and it.start <= start]
        self._become([*kept, Epoch(epoch, start)])

    def follow(self, others: Epochs, end: int) -> None:
        """Take over the epochs of another log that this log equals up to its end."""
        self._become([it for it in others.entries if it.start <= end])

    def cut_behind(self, log_end: int) -> None:
        """Forget the epochs that begin behind the end of the log; none of their bytes arrived."""
        self._become([it for it in self.entries if it.start <= log_end])

    def cut_start(self, log_start: int) -> None:
        """Forget the epochs whose bytes the log no longer has."""
        self._become([it for it in self.entries[:-1] if self.end_of(it) >= log_start] + self.entries[-1:])

    def _become(self, entries: list[Epoch]) -> None:
        if entries != self.entries:
            assert all(one.epoch < other.epoch and one.start <= other.start for one, other in pairwise(entries))
            self.entries = entries
            self.changed = True

    def end_of(self, entry: Epoch) -> int:
        """End of an epoch, which is the start of the next one."""
        at = self.entries.index(entry)  # no epoch occurs twice
        return self.entries[at + 1].start if at + 1 < len(self.entries) else END_OF_TIME

    def at(self, physical_offset: int) -> Epoch | None:
        """Return the epoch of a byte; the first epoch for a byte before it."""
        before = [it for it in self.entries if it.start <= physical_offset]
        return before[-1] if before else next(iter(self.entries), None)

    def common_end(self, own_end: int, others: Epochs, other_end: int) -> int | None:
        """Return the end of the part that this log, which ends at ``own_end``, shares with another, a physical offset.

        None if the two share no epoch.
        """
        for entry in reversed(self.entries):
            if entry in others.entries:
                ends = self.end_of(entry), others.end_of(entry)
                return min(*ends, own_end, other_end)
        return None

    def with_ends(self) -> list[tuple[Epoch, int]]:
        """Return each epoch with its end."""
        return [(it, self.end_of(it)) for it in self.entries]


def encode(entries: Sequence[Epoch]) -> bytes:
    """Return the bytes of the file."""
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in entries).encode()
    return b"%d\n%d\n%s" % (len(entries), _java_crc(lines), lines)


def parse(data: bytes) -> list[Epoch]:
    """Read the bytes of the file; raises ValueError for any other bytes."""
    lines = data.decode("ascii").splitlines()
    count, crc = int(lines[0]), int(lines[1]) if len(lines) > 1 else 0
    content = "".join(f"{line}\n" for line in lines[2:]).encode()
    if crc and crc != _java_crc(content):
        raise ValueError(f"the CRC of the epochs is {_java_crc(content)}, it should be {crc}")
    found = [_ENTRY.fullmatch(line) for line in lines[2:]]
    entries = [Epoch(int(it[1]), int(it[2])) for it in found if it is not None]
    if len(entries) != count or len(found) != count:
        raise ValueError(f"there are {len(entries)} epochs in {len(found)} lines, not {count}")
    return Epochs(entries).entries


def _java_crc(data: bytes) -> int:
    """Return the CRC-32 without its sign. Java: UtilAll#crc32."""
    return crc32(data) & 0x7FFFFFFF
