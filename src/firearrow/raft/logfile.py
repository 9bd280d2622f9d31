"""The durable state of a node, in one file that only grows.

A file begins with eight bytes, ``FARAFT01``, and continues with records. Each record has the data of one ``append``,
and is on the disk before the next is written:

====== ==== ======================================================================
offset size field
====== ==== ======================================================================
0      4    CRC-32 of the rest of the record, big-endian
4      4    n, big-endian
8      n    MessagePack: ``[term, vote, [[index, term, data], …], snapshot]``, where
            a snapshot is ``[index, term, data]`` or nil
====== ==== ======================================================================

Term and vote are in the last record. Entries replace entries of the same and of higher indexes; a snapshot replaces all
earlier data. Worked example, a vote for n1 in term 2 and nothing else: ``299fc01a 00000007 94 02 a26e31 90 c0``.

A crash may leave a part of the last record: the file ends within it, or a sector of it is still zeros. That part is cut
off: no other node knows of it, as nothing is sent before its record is on the disk. Any other record that is not whole
was whole once, and is damaged; so is the first one, which existed when the file got its name. A node that forgot a vote
or an entry would break a promise to the other nodes, so it does not start. Remove it from the group's machines only
with its file. A node whose file is lost must not return under its name while other nodes might still rely on it.

When the file has grown, a snapshot takes its place: a new file with one record.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import msgspec

from firearrow.errors import CorruptStore, StoreLocked, naming
from firearrow.files import SECTOR_BYTES, is_thrown_away, make_directory, replace_atomically
from firearrow.raft.messages import LogEntry, Saved

MAGIC: Final = b"FARAFT01"
_HEAD: Final = struct.Struct(">II")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Saved).decode


class RaftFile(Protocol):
    """Operations that a file must have."""

    def read(self) -> bytes:
        """Return the content; empty if the file is missing."""
        ...

    def append(self, data: bytes) -> None:
        """Write behind the end; on an OSError the end has not moved."""
        ...

    def sync(self) -> None:
        """Return once all written bytes are on the disk."""
        ...

    def cut(self, size_bytes: int) -> None:
        """Cut the file to a size; durable on return."""
        ...

    def replace(self, data: bytes) -> None:
        """Replace the content, which is old or new at any moment; durable on return."""
        ...


class LogFile:
    """Durable memory of a node; all calls are blocking, and one at a time."""

    def __init__(self, file: RaftFile, name: str = "the Raft log") -> None:
        self._file = file
        self.name = name
        self.size_bytes: int = 0

    def load(self) -> Saved:
        """Read the saved state, and cut off a last record that a crash has left incomplete.

        Raises CorruptStore for damage that no crash leaves.
        """
        data = self._file.read()
        if not data:
            self.rewrite(Saved())
            return Saved()
        if not data.startswith(MAGIC):
            raise CorruptStore(f"{self.name} does not begin with {MAGIC.decode()}")
        saved = _Replay()
        end = len(MAGIC)
        for record in _records(data, end):
            saved.take(record.saved)
            end = record.end
        if end == len(MAGIC):  # it was written with the file, as a whole
            raise CorruptStore(f"{self.name} is damaged at {end}: its first record can't be read")
        if end < len(data):
            self._check_torn(data, end)
            self._file.cut(end)
        self.size_bytes = end
        return saved.result()

    def append(self, saved: Saved) -> None:
        """Write a change; it is on the disk after the next ``sync``."""
        assert all(other.index == one.index + 1 for one, other in pairwise(saved.entries)), "no entry is missing"
        record = _record(saved)
        self._file.append(record)
        self.size_bytes += len(record)

    def sync(self) -> None:
        """Return once all appended changes are on the disk.

        After an OSError the content of the disk is unknown: the node must stop.
        """
        self._file.sync()

    def rewrite(self, saved: Saved) -> None:
        """Replace all records by one; durable on return."""
        data = MAGIC + _record(saved)
        self._file.replace(data)
        self.size_bytes = len(data)

    def _check_torn(self, data: bytes, start: int) -> None:
        """Raise CorruptStore unless the record at ``start`` is the last, and half written."""
        behind = next((at for at in range(start + 1, len(data)) if _read(data, at)), None)
        if behind is not None:
            raise CorruptStore(f"{self.name} is damaged at {start}: a record follows at {behind}")
        begin = start + _HEAD.size
        is_cut = begin > len(data) or begin + _HEAD.unpack_from(data, start)[1] > len(data)
        if is_cut or _has_empty_sector(data, start):
            return
        raise CorruptStore(f"{self.name} is damaged at {start}: that is more than a crash leaves")


class _LogRecord(NamedTuple):
    saved: Saved
    end: int


class _Replay:
    """Merge of all records into one state."""

    def __init__(self) -> None:
        self._last = Saved()
        self._entries: list[LogEntry] = []

    def take(self, saved: Saved) -> None:
        """Apply the next record."""
        snapshot = saved.snapshot or self._last.snapshot
        if saved.snapshot is not None:
            self._entries.clear()
        if saved.entries:
            first = saved.entries[0].index
            while self._entries and self._entries[-1].index >= first:
                self._entries.pop()
            self._entries += saved.entries
        self._last = Saved(saved.term, saved.vote, [], snapshot)

    def result(self) -> Saved:
        """Return the state after all records."""
        last = self._last
        return Saved(last.term, last.vote, self._entries, last.snapshot)


def _record(saved: Saved) -> bytes:
    body = _encode(saved)
    size = len(body).to_bytes(4, "big")
    return _HEAD.pack(crc32(body, crc32(size)), len(body)) + body


def _records(data: bytes, start: int) -> Iterator[_LogRecord]:
    while record := _read(data, start):
        yield record
        start = record.end


def _read(data: bytes, at: int) -> _LogRecord | None:
    """Return the record at a place; None if there is no whole record."""
    begin = at + _HEAD.size
    if begin > len(data):
        return None
    crc, size = _HEAD.unpack_from(data, at)
    end = begin + size
    if not size or end > len(data) or crc32(memoryview(data)[at + 4 : end]) != crc:
        return None
    try:
        return _LogRecord(_decode(memoryview(data)[begin:end]), end)
    except (ValueError, RecursionError):  # bytes of another format with a sound CRC
        return None


def _has_empty_sector(data: bytes, start: int) -> bool:
    """Tell whether the part of a sector behind ``start`` is still zeros."""
    while start < len(data):
        end = (start // SECTOR_BYTES + 1) * SECTOR_BYTES
        if not any(data[start:end]):
            return True
        start = end
    return False


class OsFile:
    """A file of the machine, in a directory that no other process may use at the same time.

    Raises StoreLocked if another process does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        make_directory(path.parent)
        self._directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        self._file: int | None = None
        self._end = 0
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._directory)
            raise StoreLocked(f"another process has {path.parent} open") from None

    def read(self) -> bytes:
        """Return the content; empty if the file is missing."""
        if not self._path.exists():
            return b""
        data = self._path.read_bytes()
        self._open(len(data))
        return data

    def append(self, data: bytes) -> None:
        """Write behind the end; on an OSError the end has not moved."""
        assert self._file is not None, "it was read, or made, before"
        written = 0
        with naming(self._path):
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._end + written)
        self._end += len(data)

    def sync(self) -> None:
        """Return once all written bytes are on the disk."""
        assert self._file is not None, "it was read, or made, before"
        if not is_thrown_away(self._path):
            with naming(self._path):
                os.fdatasync(self._file)

    def cut(self, size_bytes: int) -> None:
        """Cut the file to a size; durable on return."""
        assert self._file is not None, "it was read before"
        assert size_bytes <= self._end, "a cut does not extend the file"
        with naming(self._path):
            os.ftruncate(self._file, size_bytes)
        self._end = size_bytes
        self.sync()

    def replace(self, data: bytes) -> None:
        """Replace the content, which is old or new at any moment; durable on return."""
        replace_atomically(self._path, data, backup=False)
        self._open(len(data))

    def close(self) -> None:
        """Close the file and unlock its directory."""
        for descriptor in (self._file, self._directory):
            if descriptor is not None:
                os.close(descriptor)
        self._file = None

    def _open(self, size_bytes: int) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = os.open(self._path, os.O_RDWR)
        self._end = size_bytes
