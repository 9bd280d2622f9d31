"""IndexFiles (``firearrow.store.index``) as they are: entries as columns, and look-ups."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.message.names import java_hash
from firearrow.store.index import HEADER, INDEX_ENTRY
from firearrow.store.scan import Ints
from firearrow.store.snapshot.files import Buffer

DIRECTORY: Final = "index"
_STEPS_MAX: Final = 100_000  # of chains; beyond that it is faster to look at all entries
_SLOT_SHARE_BYTES: Final = 4 + 4 * INDEX_ENTRY.itemsize  # the default: four entries for each slot


class IndexRows:
    """The entries of one file; number 0 is never used.

    ``count`` is what the header says is the number of the next entry, ``taken`` that as far as it
    can be.
    """

    def __init__(self, window: Callable[[int, int], Buffer], size_bytes: int, slots: int | None = None) -> None:
        """Look into a file of which ``window`` gives the bytes from one position to another, and
        whose size fits a ``geometry``."""
        self._window = window
        self.slots, self.capacity = geometry(size_bytes, slots)
        assert self.slots > 0
        self.entries_at = HEADER.size + 4 * self.slots
        head = window(0, HEADER.size)
        if len(head) < HEADER.size:  # it is gone by now, or was cut
            head = bytes(HEADER.size)
        header: tuple[int, ...] = HEADER.unpack(head)
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset = header[:4]
        self.used_slots, self.count = header[4:]
        self.taken = min(max(self.count, 1), self.capacity)

    def entries(self, start: int, end: int) -> npt.NDArray[Any]:
        """Some entries, as ``INDEX_ENTRY``, where they are."""
        at, size = self.entries_at, INDEX_ENTRY.itemsize
        window = self._window(at + size * start, at + size * end)
        return np.frombuffer(window, INDEX_ENTRY, len(window) // size)

    @property
    def rows(self) -> npt.NDArray[Any]:
        """All entries from number 1 on, where they are."""
        return self.entries(1, self.taken)

    @property
    def slot_heads(self) -> npt.NDArray[Any]:
        """The slots, where they are."""
        window = self._window(HEADER.size, self.entries_at)
        return np.frombuffer(window, ">i4", len(window) // 4)

    @property
    def span(self) -> tuple[int, int]:
        """Physical offsets of the first and the last entry; there must be one."""
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
        """The number, from 0 on, of the first entry of a record at or after an offset; a few are
        looked at, so that no column is read as a whole."""
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
        """The same, also where chains are broken."""
        rows = self.rows
        hit = np.isin(rows["hash"].astype(np.int64), np.array(list(hashes), np.int64))
        return set(rows["physical_offset"][hit].tolist())


def geometry(size_bytes: int, slots: int | None = None) -> tuple[int, int]:
    """Slot and entry number of a file: as given, else four entries for each slot.

    (0, 0) where its size fits neither.
    """
    size = size_bytes - HEADER.size
    count = slots or size // _SLOT_SHARE_BYTES
    entries, rest = divmod(size - 4 * count, INDEX_ENTRY.itemsize)
    if size <= 0 or entries <= 0 or rest or (not slots and entries != 4 * count):
        return 0, 0
    return count, entries


def key_hash(topic: str, word: str) -> int:
    """The hash under which a key of a topic's message is."""
    code = abs(java_hash(f"{topic}#{word}"))
    return 0 if code == 1 << 31 else code
