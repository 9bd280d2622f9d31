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

An entry: i32 hash of the key (>= 0), i64 physical offset, i32 seconds since the first key's store time, i32 the slot's
entry before this one. Slot of a key = hash mod s.

Worked example, the first entry for hash 2539445 at physical offset 4096: ``0026bfb5 0000000000001000 00000000
00000000``.

A batch of keys is put at once. Its entries are one column write, and one stable sort by slot gives the chains inside
the batch. A key's predecessor is the one before it in that order, if it has the same slot, otherwise the former value
of the slot. A loop over the keys would need the slot that each has just written.

Source: RocketMQ's ``IndexFile``, ``IndexService``.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.javanumbers import INT_MAX
from firearrow.logs import Log
from firearrow.store.fs import OS_FILES, FileSystem, ensure_directory, unmap
from firearrow.store.scan import Ints

log: Final = Log(__name__)

HEADER: Final = struct.Struct(">qqqqii")
INDEX_ENTRY: Final = np.dtype([("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_ENTRY_STRUCT: Final = struct.Struct(">iqii")
_SLOT: Final = struct.Struct(">i")
assert _ENTRY_STRUCT.size == INDEX_ENTRY.itemsize
NAME_DIGITS: Final = 17
_RESERVE_STEP_BYTES: Final = 4 * 1024 * 1024
_KEYS_OF_A_PAGE: Final = 16  # at this number on average, hardly any page of slots has none
_ALWAYS_MS: Final = 1 << 62
_CHAIN_STEPS_MAX: Final = 200_000  # some 0.1 s: a tag that every message has is one long chain
_CHECK_STEP: Final = 1 << 20  # entries of one step of a check: some 50 MB


class IndexFile:
    """One file; ``count`` is the number of the next entry."""

    begin_ms: int
    end_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    used_slots: int
    count: int

    def __init__(self, path: Path, slots: int, entries: int, fs: FileSystem = OS_FILES) -> None:
        self.path = path
        self._fs = fs
        self.map: Final = fs.map_file(path)
        self._slot_count = slots
        self._entry_count = entries
        self._entries_at = HEADER.size + 4 * slots
        self._slots: npt.NDArray[np.int32] = np.frombuffer(self.map, ">i4", slots, HEADER.size)
        self._entries: npt.NDArray[Any] = np.frombuffer(self.map, INDEX_ENTRY, entries, self._entries_at)
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
        path: Path, slots: int, entries: int, previous: IndexFile | None, fs: FileSystem = OS_FILES
    ) -> IndexFile:
        """Make a new file; it starts with the end of the one before it.

        Its name is on the disk before it has a key: so before a later file, no earlier one is missing.
        """
        at = HEADER.size + 4 * slots
        fs.create_file(path, at + INDEX_ENTRY.itemsize * entries, at)
        try:
            fs.sync_directory(path.parent)
            file = IndexFile(path, slots, entries, fs)
        except OSError:  # an empty file would hide those before it
            fs.remove(path)
            raise
        if previous is not None:
            file.begin_ms = file.end_ms = previous.end_ms
            file.begin_physical_offset = previous.end_physical_offset
            file.end_physical_offset = previous.end_physical_offset
        assert file.count == 1, "a new file has no key"
        file._write_header()
        return file

    @property
    def room(self) -> int:
        """Number of entries that still fit."""
        room: int = self._entry_count - self.count
        return room

    def put(self, hashes: Ints, physical_offsets: Ints, store_ms: Ints) -> None:
        """Put keys in order; there must be ``room`` for them."""
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

    def put_of_one(self, hashes: Sequence[int], physical_offset: int, store_ms: int) -> None:
        """Put the keys of one record, as `put` does for many, in a tenth of its time. The file must have keys already,
        and room for these.
        """
        assert 0 < len(hashes) <= self.room
        assert self.count > 1, "the first key says when the file begins"
        self._reserve(self.count + len(hashes))
        seconds = min(max((store_ms - self.begin_ms) // 1000, 0), INT_MAX)
        for key_hash in hashes:
            number = self.count
            slot_at = HEADER.size + _SLOT.size * (key_hash % self._slot_count)
            [previous] = _SLOT.unpack_from(self.map, slot_at)
            at = self._entries_at + _ENTRY_STRUCT.size * number
            _ENTRY_STRUCT.pack_into(self.map, at, key_hash, physical_offset, seconds, previous)
            _SLOT.pack_into(self.map, slot_at, number)
            self.used_slots += not previous
            self.count = number + 1
        self.end_ms = store_ms
        self.end_physical_offset = physical_offset
        self._write_header()

    def _seconds(self, store_ms: Ints) -> Ints:
        """Seconds since the file's begin; for the first key, since the begin that the file inherits."""
        begin_ms = self.begin_ms if self.count > 1 else int(store_ms[0])
        seconds = (store_ms - begin_ms) // 1000
        if self.count == 1:
            seconds[0] = (int(store_ms[0]) - self.begin_ms) // 1000 if self.begin_ms > 0 else 0
        np.maximum(seconds, 0, out=seconds)
        clamped: Ints = np.minimum(seconds, INT_MAX, out=seconds)
        return clamped

    def find(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Physical offsets of records whose key has this hash, newest first, within a time span.

        Times are known to the second only. The chain is followed until it ends or its entries are too old. If the clock
        was set back, keys from before the file's begin have no known time. So if the last key is one of these, the time
        span is ignored.
        """
        if self.end_ms < self.begin_ms:
            begin_ms, end_ms = 0, _ALWAYS_MS
        found: list[int] = []
        number = int(self._slots[key_hash % self._slot_count])
        steps = 0
        while 0 < number < self.count and len(found) < limit and steps < _CHAIN_STEPS_MAX:
            steps += 1
            at = self._entries_at + number * INDEX_ENTRY.itemsize
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

    def has_record(self, physical_offset: int) -> bool:
        """Tell whether a record has a key here: the entries are in the order of the log."""
        if not self.begin_physical_offset <= physical_offset <= self.end_physical_offset:
            return False
        numbers = range(1, self.count)
        at = bisect_left(numbers, physical_offset, key=self._physical_offset)
        return at < len(numbers) and self._physical_offset(numbers[at]) == physical_offset

    def _physical_offset(self, number: int) -> int:
        at = self._entries_at + number * _ENTRY_STRUCT.size
        offset: int = _ENTRY_STRUCT.unpack_from(self.map, at)[1]
        return offset

    def repair_slots(self) -> bool:
        """Write the slots that follow from the entries; False if header or entries are incomplete.

        A process that was killed while it put keys leaves slots of entries that don't count yet.
        """
        slot_of = np.zeros(self.count, np.int32)
        newest = np.zeros(self._slot_count, np.int32)
        chains = before = 0
        for start in range(1, self.count, _CHECK_STEP):
            numbers = np.arange(start, min(start + _CHECK_STEP, self.count), dtype=np.int32)
            entries = self._entries[start : start + len(numbers)]
            previous = entries["previous"].astype(np.int32)
            offsets = entries["physical_offset"].astype(np.int64)
            slots = slot_of[numbers] = entries["hash"].astype(np.int32) % self._slot_count
            newest[slots] = numbers
            known = previous[previous > 0]
            if (
                (entries["hash"] < 0).any()
                or (previous < 0).any()
                or (previous >= numbers).any()
                or (slot_of[known] != slots[previous > 0]).any()
                or (offsets[1:] < offsets[:-1]).any()
                or int(offsets[0]) < before
            ):
                return False
            chains += len(numbers) - len(known)
            before = int(offsets[-1])
        if not chains == self.used_slots == int(np.count_nonzero(newest)):
            return False
        if self.count > 1 and before != self.end_physical_offset:
            return False
        if (newest != self._slots).any():
            self._slots[:] = newest
        return True

    def _reserve(self, entries: int) -> None:
        end = self._entries_at + entries * INDEX_ENTRY.itemsize
        if end > self._reserved_bytes:
            start = self._reserved_bytes
            self._advise()
            upto = min(end + _RESERVE_STEP_BYTES, len(self.map))
            assert end <= upto, "entries are within the file"
            self._fs.reserve(self.path, start, upto - start)
            self._reserved_bytes = upto

    def _advise(self) -> None:
        """Advise the system on the use of the pages.

        When a page is not in memory, the system makes the pages of the next megabytes at once, and the writer waits for
        that (25 ms for 8 MB). But if it is advised against that, no use of a page counts when it needs memory. Then
        slots of later keys are read from the disk, after the pending writes (up to 100 ms). So it gets that advice for
        entries, which are written once, and for slots until keys have touched their pages.
        """
        slots_end = self._entries_at // mmap.PAGESIZE * mmap.PAGESIZE
        self.map.madvise(mmap.MADV_RANDOM, slots_end)
        if slots_end:
            touched = self.count > _KEYS_OF_A_PAGE * slots_end // mmap.PAGESIZE
            self.map.madvise(mmap.MADV_NORMAL if touched else mmap.MADV_RANDOM, 0, slots_end)

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
        self._entries = np.empty(0, INDEX_ENTRY)
        unmap(self.map)


class Index:
    """All IndexFiles of a store, oldest first."""

    def __init__(
        self, directory: Path, slots: int, entries: int, now_ms: Callable[[], int], fs: FileSystem = OS_FILES
    ) -> None:
        self._directory = directory
        self._slots = slots
        self._entries = entries
        self._now_ms = now_ms
        self._fs = fs
        self.files: list[IndexFile] = []
        self._complete_until = -1  # no key of a record up to here is missing

    def load(self, synced_until_ms: int | None) -> None:
        """Map the files. ``synced_until_ms`` is None after a clean end. Otherwise it is the store time of the last
        flushed key according to the checkpoint.

        After an unclean end a file is kept if it is full and was synced, or if it can be repaired
        (``IndexFile.repair_slots``). The first other file is removed, with those after it, and dispatch puts their keys
        again. (Java: IndexService#load deletes every file that is newer than the checkpoint, and loses its keys that
        dispatch does not reach again.)
        """
        ensure_directory(self._fs, self._directory)
        lost: list[Path] = []
        complete = True
        for path in self._paths():
            file = self._open(path)
            if file is None:
                if path.is_file() and path.stat().st_size == 0:  # it was just being made
                    lost.append(path)
                complete = synced_until_ms is None
            elif complete and (synced_until_ms is None or self._survived(file, synced_until_ms)):
                self.files.append(file)
            else:
                complete = False
                file.close()
                lost.append(path)
        self._remove(lost)
        # A file that was kept when others were removed may end among the keys of one record.
        self._complete_until = self.end_physical_offset if synced_until_ms is None else -1

    def _survived(self, file: IndexFile, synced_until_ms: int) -> bool:
        """Tell whether a file, the next after those that were kept, has all its keys."""
        if file.room == 0 and file.end_ms < synced_until_ms:
            return True
        if self.files and self.files[-1].room:  # it has lost the keys that made it full
            return False
        known = max(self.end_physical_offset, 0)
        return file.count > 1 and file.begin_physical_offset >= known and file.repair_slots()

    def _paths(self) -> list[Path]:
        """The files with the name of an IndexFile, oldest first."""
        paths = []
        for path in sorted(self._directory.glob("*")):
            if path.name.isdigit() and len(path.name) == NAME_DIGITS:
                paths.append(path)
            else:
                log.warning(
                    "file is ignored: its name has another number of digits",
                    extra={"path": path, "digits": NAME_DIGITS},
                )
        return paths

    def _open(self, path: Path) -> IndexFile | None:
        """The file, if it has the right size."""
        found = path.stat().st_size if path.is_file() else -1
        size = HEADER.size + 4 * self._slots + INDEX_ENTRY.itemsize * self._entries
        if found == size:
            return IndexFile(path, self._slots, self._entries, self._fs)
        log.warning(
            "file is ignored: its size is wrong", extra={"path": path, "size_bytes": found, "right_size_bytes": size}
        )
        return None

    @property
    def names(self) -> list[str]:
        """The names of the files, oldest first."""
        return [file.path.name for file in self.files]

    def expect(self, names: list[str]) -> None:
        """Delete the files after a missing one of ``names``; dispatch puts their keys again."""
        gone = sorted(set(names) - set(self.names))
        if gone:
            log.error(
                "IndexFiles are gone since the store was closed",
                extra={"path": self._directory / gone[0], "count": len(gone)},
            )
            kept = sum(name < gone[0] for name in self.names)
            self._drop_from(kept)

    def _drop_from(self, kept: int) -> None:
        if kept < len(self.files):
            self._complete_until = -1
            for file in self.files[kept:]:
                file.close()
            self._remove([file.path for file in self.files[kept:]])
            del self.files[kept:]

    def cut(self, log_end_offset: int) -> None:
        """Delete the files with keys of records at or after a physical offset; dispatch puts the other keys of these
        files again.
        """
        kept = len(self.files)
        while kept and self.files[kept - 1].end_physical_offset >= log_end_offset:
            kept -= 1
        self._drop_from(kept)
        assert self.end_physical_offset < log_end_offset

    def forget_missing(self) -> None:
        """Forget the first file that somebody has removed, and all files after it; OSError if these can't be removed.

        Keys from ``end_physical_offset`` on must then be put again.
        """
        kept = next((n for n, file in enumerate(self.files) if not file.path.is_file()), None)
        if kept is not None:
            self._complete_until = -1
            self._remove([file.path for file in self.files[kept:] if file.path.is_file()])
            for file in self.files[kept:]:
                file.close()
            del self.files[kept:]
        ensure_directory(self._fs, self._directory)

    def delete_expired(self, log_start_offset: int) -> list[Path]:
        """Take out the files, except the last, that have only records before a physical offset; return them."""
        gone: list[Path] = []
        while len(self.files) > 1 and self.files[0].end_physical_offset < log_start_offset:
            file = self.files.pop(0)
            file.close()
            gone.append(file.path)
        return gone

    def _remove(self, paths: list[Path]) -> None:
        """Delete files, the newest first: at no moment is one missing before another."""
        for path in reversed(paths):
            self._fs.remove(path)
            self._fs.sync_directory(self._directory)

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the last record with a key; -1 for an empty index."""
        return self.files[-1].end_physical_offset if self.files else -1

    @property
    def begin_ms(self) -> int:
        """Store time of the first key, 0 for an empty index."""
        return self.files[0].begin_ms if self.files else 0

    @property
    def end_ms(self) -> int:
        """Store time of the last key, 0 for an empty index."""
        return self.files[-1].end_ms if self.files else 0

    def put(self, hashes: Ints, physical_offsets: Ints, store_ms: Ints) -> None:
        """Put keys in the order of their records, and skip keys of records before the end.

        Raises OSError when the disk is full. Written keys stay, and a second call with the same keys continues after
        them.
        """
        if len(physical_offsets) and self.files:
            known = max(self.files[-1].end_physical_offset, self._complete_until + 1)
            fresh = physical_offsets >= known
            if np.count_nonzero(fresh) < len(fresh):
                hashes, physical_offsets, store_ms = (hashes[fresh], physical_offsets[fresh], store_ms[fresh])
        while len(hashes):
            file = self._file_with_room()
            part = slice(0, file.room)
            rest = slice(file.room, None)
            file.put(hashes[part], physical_offsets[part], store_ms[part])
            hashes, physical_offsets, store_ms = (hashes[rest], physical_offsets[rest], store_ms[rest])

    def put_of_one(self, hashes: Sequence[int], physical_offset: int, store_ms: int) -> bool:
        """Put the keys of one record after all others. False, having put none, in cases that only `put` handles. Raises
        OSError when the disk is full.
        """
        last = self.files[-1] if self.files else None
        if last is None or last.count == 1 or last.room < len(hashes):
            return False
        if physical_offset <= max(last.end_physical_offset, self._complete_until):
            return False
        if hashes:
            last.put_of_one(hashes, physical_offset, store_ms)
        return True

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
        while (self._directory / f"{name:0{NAME_DIGITS}d}").exists():  # an ignored file
            name += 1
        assert not self.files or name > int(self.files[-1].path.name), "files are in order by name"
        return f"{name:0{NAME_DIGITS}d}"

    def find(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Physical offsets of candidates, newest first; the caller compares the real key."""
        found: list[int] = []
        for file in reversed(self.files):
            fell = file.end_ms < file.begin_ms  # set back with the clock
            if len(found) >= limit or (file.end_ms < begin_ms and not fell):
                break
            if file.begin_ms <= end_ms or fell:
                found += file.find(key_hash, begin_ms, end_ms, limit - len(found))
        return found

    def has_record(self, physical_offset: int) -> bool:
        """Tell whether the record that begins at an offset has a key."""
        return any(file.has_record(physical_offset) for file in self.files)

    def close(self) -> None:
        """Unmap all files."""
        for file in self.files:
            file.close()
        self.files.clear()
