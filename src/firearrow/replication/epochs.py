"""Which master wrote which part of the log: the file ``epochFileCheckpoint``.

The controller gives each master a number that is larger than all before, its *epoch*. What a master
writes belongs to its epoch, from where the log ended when it became master to where it ended under
the next one. Two logs in which the same epoch begins at the same place are the same up to where the
first of the two epochs ends: so a slave finds what its master does not have (`Epochs.common_end`).

The file is text, as RocketMQ's broker writes it, each line ended by a line feed:

====== ============================================================================
line   what
====== ============================================================================
1      how many epochs follow
2      the CRC-32 of all lines after this one, decimal; 0 is not checked
3...   ``epoch-offset``: an epoch, which is larger than the one before, and the
       physical offset at which it begins, which is no smaller
====== ============================================================================

What it held before is in ``epochFileCheckpoint.bak``, which is read where the file can't be.

Worked example, a first master and one that took over at 3641::

    2
    903091474
    1-0
    2-3641

Source: upstream ``EpochFileCache``, ``CheckpointFile``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from firearrow.errors import RemoteProtocolError
from firearrow.files import read_newest, replace_atomically, sync_directory
from firearrow.javanumbers import LONG_MAX

_ENTRY: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,19})")
END_OF_TIME: Final = LONG_MAX
"""Where the epoch of the present ends."""


class Epoch(NamedTuple):
    """An epoch, and the physical offset at which it begins."""

    epoch: int
    start: int


class Epochs:
    """The epochs of a log, in their order. ``changed`` is whether the file, if there is one, is
    behind (`save`)."""

    def __init__(self, entries: Iterable[Epoch] = (), path: Path | None = None) -> None:
        self.entries: list[Epoch] = []
        self.changed = False
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
        """Read the file; ConfigError where there is something and nothing of it can be read."""
        found = read_newest(path, parse)
        return Epochs(found.value if found is not None else (), path)

    def save(self) -> None:
        """Write the file if it is behind; it is on the disk on return. Raises OSError."""
        if not self.changed or self._path is None:
            return
        if self.entries:
            replace_atomically(self._path, encode(self.entries))
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
        """Its number, -1 without any."""
        return self.entries[-1].epoch if self.entries else -1

    def begin(self, epoch: int, start: int) -> None:
        """Have an epoch begin at a physical offset, instead of later ones and those behind it.

        One of which nothing was written before the next began stays: a log that has something of
        it has this one in common up to there. Java: EpochFileCache#appendEntry loses the second of
        the two, and such a slave then finds nothing in common (apache/rocketmq#6505).
        """
        assert epoch >= 0
        assert start >= 0
        kept = [it for it in self.entries if it.epoch < epoch and it.start <= start]
        self._become([*kept, Epoch(epoch, start)])

    def follow(self, others: Epochs, end: int) -> None:
        """Have the epochs of another log, to which this one is the same up to its end."""
        self._become([it for it in others.entries if it.start <= end])

    def cut_behind(self, log_end: int) -> None:
        """Forget the epochs that begin behind the end of the log, of which nothing came."""
        self._become([it for it in self.entries if it.start <= log_end])

    def cut_start(self, log_start: int) -> None:
        """Forget the epochs of which the log has nothing left."""
        self._become([it for it in self.entries[:-1] if self.end_of(it) >= log_start] + self.entries[-1:])

    def _become(self, entries: list[Epoch]) -> None:
        if entries != self.entries:
            self.entries = entries
            self.changed = True

    def end_of(self, entry: Epoch) -> int:
        """Where an epoch ends: where the next one begins."""
        at = self.entries.index(entry)  # no epoch is there twice
        return self.entries[at + 1].start if at + 1 < len(self.entries) else END_OF_TIME

    def at(self, physical_offset: int) -> Epoch | None:
        """The epoch that a byte belongs to; the first one for what is before that."""
        before = [it for it in self.entries if it.start <= physical_offset]
        return before[-1] if before else next(iter(self.entries), None)

    def common_end(self, own_end: int, others: Epochs, other_end: int) -> int | None:
        """Up to where this log, which ends at ``own_end``, is the same as another.

        None if no epoch of one is in the other.
        """
        for entry in reversed(self.entries):
            if entry in others.entries:
                ends = self.end_of(entry), others.end_of(entry)
                return min(*ends, own_end, other_end)
        return None

    def with_ends(self) -> list[tuple[Epoch, int]]:
        """Each epoch with its end."""
        return [(it, self.end_of(it)) for it in self.entries]


def encode(entries: Sequence[Epoch]) -> bytes:
    """Give the bytes of the file."""
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in entries).encode()
    return b"%d\n%d\n%s" % (len(entries), _java_crc(lines), lines)


def parse(data: bytes) -> list[Epoch]:
    """Read the bytes of the file; ValueError for anything else."""
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
    """Java: UtilAll#crc32, which drops the sign."""
    return crc32(data) & 0x7FFFFFFF
