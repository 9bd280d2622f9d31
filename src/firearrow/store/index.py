"""IndexFiles: from a key to the physical offsets of its messages.

A file is named by the local time of its creation (``yyyyMMddHHmmssSSS``) and holds, big-endian:

========= ==== =================================================================
offset    size field
========= ==== =================================================================
0         8    store time of the first key, ms
8         8    store time of the last key, ms
16        8    physical offset of the first key's record
24        8    physical offset of the last key's record
32        4    number of slots in use
36        4    number of the next entry (entry 0 is never used)
40        4 s  slots: number of the newest entry of the chain, 0 for none
40+4s     20 n entries
========= ==== =================================================================

An entry: i32 hash of the key (>= 0), i64 physical offset, i32 seconds since the first key's store
time, i32 the slot's entry before this one. Slot of a key = hash mod s.

Worked example, the first entry for hash 2539445 at physical offset 4096:
``0026bfb5 0000000000001000 00000000 00000000``.

A batch of keys is put at once: its entries are one column write, and the chains inside the batch
come out of one stable sort by slot.

Source: upstream ``IndexFile``, ``IndexService``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.store.fs import OS_FILES, FileSystem, unmap
from firearrow.store.scan import Ints

HEADER: Final = struct.Struct(">qqqqii")
_ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
_ENTRY_STRUCT: Final = struct.Struct(">iqii")
_NAME_DIGITS: Final = 17
_RESERVE_STEP_BYTES: Final = 4 * 1024 * 1024
_CHAIN_STEPS_MAX: Final = 200_000  # some 0.1 s: a tag that every message has is one long chain
_SECONDS_MAX: Final = (1 << 31) - 1


class IndexFile:
    """One file; ``count`` is the number of the next entry."""

    def __init__(self, path: Path, slots: int, entries: int, fs: FileSystem = OS_FILES) -> None:
        self.path = path
        self._fs = fs
        self.map = fs.map_file(path)
        self._slot_count = slots
        self._entry_count = entries
        self._entries_at = HEADER.size + 4 * slots
        self._slots: npt.NDArray[np.int32] = np.frombuffer(self.map, ">i4", slots, HEADER.size)
        self._entries: npt.NDArray[Any] = np.frombuffer(self.map, _ENTRY, entries, self._entries_at)
        self._reserved_bytes = 0
        (
            self.begin_ms,
            self.end_ms,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.used_slots,
            self.count,
        ) = HEADER.unpack_from(self.map)
        self.count = max(self.count, 1)

    @staticmethod
    def create(
        path: Path,
        slots: int,
        entries: int,
        previous: IndexFile | None,
        fs: FileSystem = OS_FILES,
    ) -> IndexFile:
        """Make a new file; it starts with the end of the one before it."""
        at = HEADER.size + 4 * slots
        fs.create_file(path, at + _ENTRY.itemsize * entries, at)
        file = IndexFile(path, slots, entries, fs)
        if previous is not None:
            file.begin_ms = file.end_ms = previous.end_ms
            file.begin_physical_offset = previous.end_physical_offset
            file.end_physical_offset = previous.end_physical_offset
        file._write_header()
        return file

    @property
    def room(self) -> int:
        """How many more entries fit."""
        room: int = self._entry_count - self.count
        return room

    def put(self, hashes: Ints, physical_offsets: Ints, store_ms: Ints) -> None:
        """Put as many keys as there are, in order; the caller has looked at ``room``."""
        count = len(hashes)
        assert 0 < count <= self.room
        self._reserve(self.count + count)
        numbers = np.arange(self.count, self.count + count, dtype=np.int32)
        slots = hashes % self._slot_count
        order = slots.argsort(kind="stable")
        sorted_slots = slots[order]
        previous = self._slots[sorted_slots].astype(np.int32)
        chained = (sorted_slots[1:] == sorted_slots[:-1]).nonzero()[0] + 1
        empty = count - int(np.count_nonzero(previous))
        if len(chained):
            empty -= len(chained) - int(np.count_nonzero(previous[chained]))
            previous[chained] = numbers[order[chained - 1]]
        self.used_slots += empty
        entries = self._entries[self.count : self.count + count]
        entries["hash"] = hashes
        entries["physical_offset"] = physical_offsets
        entries["seconds"] = self._seconds(store_ms)
        entries["previous"][order] = previous
        self._slots[slots] = numbers
        if self.count == 1:
            self.begin_ms = int(store_ms[0])
            self.begin_physical_offset = int(physical_offsets[0])
        self.end_ms = int(store_ms[-1])
        self.end_physical_offset = int(physical_offsets[-1])
        self.count += count
        self._write_header()

    def _seconds(self, store_ms: Ints) -> Ints:
        """Seconds since the file's begin; the first key's is taken against what it inherits."""
        begin_ms = self.begin_ms if self.count > 1 else int(store_ms[0])
        seconds = (store_ms - begin_ms) // 1000
        if self.count == 1:
            seconds[0] = (int(store_ms[0]) - self.begin_ms) // 1000 if self.begin_ms > 0 else 0
        np.maximum(seconds, 0, out=seconds)
        clamped: Ints = np.minimum(seconds, _SECONDS_MAX, out=seconds)
        return clamped

    def find(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Physical offsets of records whose key has this hash, newest first, within a time span.

        Times are known to the second only. The chain is followed until it ends or turns older.
        """
        found: list[int] = []
        number = int(self._slots[key_hash % self._slot_count])
        steps = 0
        while 0 < number < self.count and len(found) < limit and steps < _CHAIN_STEPS_MAX:
            steps += 1
            at = self._entries_at + number * _ENTRY.itemsize
            entry_hash, offset, seconds, previous = _ENTRY_STRUCT.unpack_from(self.map, at)
            stored_ms = self.begin_ms + seconds * 1000
            if stored_ms + 999 < begin_ms:
                break
            if entry_hash == key_hash and stored_ms <= end_ms:
                found.append(offset)
            if previous >= number:
                break
            number = previous
        return found

    def _reserve(self, entries: int) -> None:
        end = self._entries_at + entries * _ENTRY.itemsize
        if end > self._reserved_bytes:
            start = self._reserved_bytes
            upto = min(end + _RESERVE_STEP_BYTES, len(self.map))
            self._fs.reserve(self.path, start, upto - start)
            self._reserved_bytes = upto

    def _write_header(self) -> None:
        HEADER.pack_into(
            self.map,
            0,
            self.begin_ms,
            self.end_ms,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.used_slots,
            self.count,
        )

    def close(self) -> None:
        """Unmap the file."""
        self._slots = np.empty(0, np.int32)
        self._entries = np.empty(0, _ENTRY)
        unmap(self.map)


class Index:
    """All IndexFiles of a store, oldest first."""

    def __init__(
        self,
        directory: Path,
        slots: int,
        entries: int,
        now_ms: Callable[[], int],
        fs: FileSystem = OS_FILES,
    ) -> None:
        self._directory = directory
        self._slots = slots
        self._entries = entries
        self._now_ms = now_ms
        self._fs = fs
        self.files: list[IndexFile] = []
        self._complete_until = -1  # no key of a record up to here is missing

    def load(self, keep_until_ms: int | None) -> None:
        """Map the files; those with keys newer than ``keep_until_ms`` are deleted (None: keep all).

        After an abnormal stop the last flush of an index file is known by the checkpoint; what it
        got since is put again by dispatch. Source: upstream ``IndexService#load``.
        """
        size = HEADER.size + 4 * self._slots + _ENTRY.itemsize * self._entries
        for path in sorted(self._directory.glob("*")):
            if not (path.name.isdigit() and len(path.name) == _NAME_DIGITS):
                continue
            if path.stat().st_size != size:
                continue
            file = IndexFile(path, self._slots, self._entries, self._fs)
            if keep_until_ms is not None and file.end_ms > keep_until_ms:
                file.close()
                self._fs.remove(path)
            else:
                self.files.append(file)
        # A file that was kept when others were deleted may end among the keys of one record.
        self._complete_until = self.end_physical_offset if keep_until_ms is None else -1

    def cut(self, log_end_offset: int) -> None:
        """Delete the files with keys of records at or after a physical offset; dispatch puts the
        other keys of these files again."""
        while self.files and self.files[-1].end_physical_offset >= log_end_offset:
            file = self.files.pop()
            file.close()
            self._fs.remove(file.path)
            self._complete_until = -1

    @property
    def end_physical_offset(self) -> int:
        """The record after which no key is known; -1 for an empty index."""
        return self.files[-1].end_physical_offset if self.files else -1

    @property
    def end_ms(self) -> int:
        """Store time of the last key, 0 for an empty index."""
        return self.files[-1].end_ms if self.files else 0

    def put(self, hashes: Ints, physical_offsets: Ints, store_ms: Ints) -> None:
        """Put keys in the order of their records; those of records before the end are skipped.

        Raises OSError when the disk is full; what was put stays, and a second call with the same
        keys goes on after it.
        """
        if len(physical_offsets) and self.files:
            known = max(self.files[-1].end_physical_offset, self._complete_until + 1)
            fresh = physical_offsets >= known
            if np.count_nonzero(fresh) < len(fresh):
                hashes, physical_offsets, store_ms = (
                    hashes[fresh],
                    physical_offsets[fresh],
                    store_ms[fresh],
                )
        while len(hashes):
            file = self._file_with_room()
            part = slice(0, file.room)
            rest = slice(file.room, None)
            file.put(hashes[part], physical_offsets[part], store_ms[part])
            hashes, physical_offsets, store_ms = (
                hashes[rest],
                physical_offsets[rest],
                store_ms[rest],
            )

    def _file_with_room(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is None or last.room == 0:
            path = self._directory / self._new_name()
            file = IndexFile.create(path, self._slots, self._entries, last, self._fs)
            self.files.append(file)
        return self.files[-1]

    def _new_name(self) -> str:
        """Local time of now, later than the newest file's name."""
        now_ms = self._now_ms()
        moment = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
        name = int(f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}")
        if self.files:  # the clock may have been set back
            name = max(name, int(self.files[-1].path.name) + 1)
        return f"{name:0{_NAME_DIGITS}d}"

    def find(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Physical offsets of candidates, newest first; the caller compares the real key."""
        found: list[int] = []
        for file in reversed(self.files):
            if len(found) >= limit or file.end_ms < begin_ms:
                break
            if file.begin_ms <= end_ms:
                found += file.find(key_hash, begin_ms, end_ms, limit - len(found))
        return found

    def close(self) -> None:
        """Unmap all files."""
        for file in self.files:
            file.close()
        self.files.clear()
