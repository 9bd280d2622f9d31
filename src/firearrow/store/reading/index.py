"""IndexFiles (``firearrow.store.index``) as they are: entries as columns, and look-ups.

A look-up by key gives the places of all messages whose key has the same hash. It also gives the stretches of the log
that the index does not cover. So these two together are all places that can have the key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.errors import CorruptStore, MessageError
from firearrow.javanumbers import INT_MAX
from firearrow.message.ids import decode_offset_id
from firearrow.message.names import java_hash
from firearrow.store.index import HEADER, INDEX_ENTRY, NAME_DIGITS
from firearrow.store.reading.storage import Buffer, Directory, Storage, StoreFile, list_files
from firearrow.store.scan import Ints

DIRECTORY: Final = "index"
_STEPS_MAX: Final = 100_000  # of chains; beyond it, reading all entries is faster
_SLOT_SHARE_BYTES: Final = 4 + 4 * INDEX_ENTRY.itemsize  # the default: four entries for each slot


class IndexRows:
    """The entries of one file; number 0 is never used.

    ``count`` is the number of the next entry according to the header, ``taken`` the same within the file's capacity.
    """

    slots: int
    capacity: int
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    count: int

    def __init__(self, window: Callable[[int, int], Buffer], size_bytes: int, slots: int | None = None) -> None:
        """Read a file whose size fits a ``geometry``; ``window`` gives its bytes from one position to another."""
        self._window = window
        self.slots, self.capacity = geometry(size_bytes, slots)
        assert self.slots > 0, "the size fits a geometry"
        self.entries_at: Final = HEADER.size + 4 * self.slots
        assert self.entries_at + INDEX_ENTRY.itemsize * self.capacity == size_bytes, "the parts add up to the file"
        head = window(0, HEADER.size)
        if len(head) < HEADER.size:  # the file is gone or was cut
            head = bytes(HEADER.size)
        header: tuple[int, ...] = HEADER.unpack(head)
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset = header[:4]
        self.used_slots, self.count = header[4:]
        self.taken: int = min(max(self.count, 1), self.capacity)

    def entries(self, start: int, end: int) -> npt.NDArray[Any]:
        """Some entries (``INDEX_ENTRY``), not copied."""
        assert 0 <= start <= end <= self.capacity, "the entries are within the file"
        at, size = self.entries_at, INDEX_ENTRY.itemsize
        window = self._window(at + size * start, at + size * end)
        return np.frombuffer(window, INDEX_ENTRY, len(window) // size)

    @property
    def rows(self) -> npt.NDArray[Any]:
        """All entries from number 1 on, not copied."""
        return self.entries(1, self.taken)

    @property
    def slot_heads(self) -> npt.NDArray[Any]:
        """The slots, not copied."""
        window = self._window(HEADER.size, self.entries_at)
        return np.frombuffer(window, ">i4", len(window) // 4)

    @property
    def span(self) -> tuple[int, int]:
        """Physical offsets of the first and the last entry; only for a file with entries."""
        offsets = self.rows["physical_offset"]
        return int(offsets[0]), int(offsets[-1])

    @cached_property
    def offsets(self) -> Ints:
        """Physical offsets of the entries."""
        column: Ints = self.rows["physical_offset"].astype(np.int64)
        return column

    @cached_property
    def hashes(self) -> Ints:
        """Key hashes of the entries."""
        column: Ints = self.rows["hash"].astype(np.int64)
        return column

    def place_of(self, physical_offset: int) -> int:
        """The number, from 0 on, of the first entry of a record at or after an offset. Bisection reads only a few
        entries.
        """
        offsets = self.rows["physical_offset"]
        return bisect_left(offsets, physical_offset)

    def part(self, low: int, high: int) -> tuple[Ints, Ints, Ints]:
        """Hash, offset and seconds since the begin of the file of some entries."""
        rows = self.rows[low:high]
        return (
            rows["hash"].astype(np.int64),
            rows["physical_offset"].astype(np.int64),
            rows["seconds"].astype(np.int64),
        )

    def find(self, hashes: Collection[int]) -> set[int]:
        """The physical offsets of the records with a key of one of some hashes, by the chains."""
        heads, entries = self.slot_heads, self.entries(0, self.taken)
        found: set[int] = set()
        steps = 0
        for key_hash in hashes:
            number = int(heads[key_hash % self.slots])
            while 0 < number < len(entries):
                steps += 1
                if steps > _STEPS_MAX:
                    return self.find_in_all(hashes)
                if entries["hash"][number] == key_hash:
                    found.add(int(entries["physical_offset"][number]))
                number = min(int(entries["previous"][number]), number - 1)
        return found

    def find_in_all(self, hashes: Collection[int]) -> set[int]:
        """The same by reading all entries, also where chains are broken."""
        rows = self.rows
        hit = np.isin(rows["hash"].astype(np.int64), np.array(list(hashes), np.int64))
        return set(rows["physical_offset"][hit].tolist())


def geometry(size_bytes: int, slots: int | None = None) -> tuple[int, int]:
    """Number of slots and of entries of a file: with the given slots, otherwise with four entries for each slot.

    (0, 0) where its size fits neither.
    """
    size = size_bytes - HEADER.size
    count = slots or size // _SLOT_SHARE_BYTES
    entries, rest = divmod(size - 4 * count, INDEX_ENTRY.itemsize)
    if size <= 0 or entries <= 0 or rest or (not slots and entries != 4 * count):
        return 0, 0
    return count, entries


def key_hash(topic: str, word: str) -> int:
    """The hash of a message's key in the index."""
    code = abs(java_hash(f"{topic}#{word}"))
    code = 0 if code == 1 << 31 else code
    assert 0 <= code <= INT_MAX, "the index has no other hashes"
    return code


# --- of a store ---


def index_files(storage: Storage) -> Directory:
    """The IndexFiles of a store, oldest first."""
    return list_files(storage, DIRECTORY, digits=NAME_DIGITS)


def index_rows(storage: Storage, file: StoreFile) -> IndexRows:
    """The entries of a file. Raises CorruptStore where its size fits none."""
    if not geometry(file.size_bytes)[0]:
        raise CorruptStore(
            f"{storage.root}/{file.path}: {file.size_bytes} bytes don't fit a header and four entries for each slot"
        )
    return IndexRows(partial(storage.window, file.path), file.size_bytes)


def candidates(storage: Storage, topic: str, words: Collection[str], log_end: int) -> list[tuple[int, int]]:
    """Stretches of the log, in order, with all messages of a topic that have one of some words as a key or unique id.

    An id may also hold the place of its message. Some keys of the last record of a file may still be missing, so that
    record counts as not covered.
    """
    hashes = {key_hash(topic, word) for word in words}
    places = {place for word in words if (place := _place(word)) is not None}
    stretches: list[tuple[int, int]] = []
    known = 0
    for file in index_files(storage).files:
        rows = index_rows(storage, file)
        if rows.taken > 1:
            places |= rows.find(hashes)
            stretches.append((known, rows.begin_offset))
            known = max(known, rows.end_offset)
    stretches.append((known, log_end))
    return _merged([*stretches, *((place, place + 1) for place in places)])


def _merged(stretches: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches without empty ones; stretches that touch each other are joined."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(stretch for stretch in stretches if stretch[0] < stretch[1]):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _place(word: str) -> int | None:
    try:
        return decode_offset_id(word).physical_offset
    except MessageError:
        return None
