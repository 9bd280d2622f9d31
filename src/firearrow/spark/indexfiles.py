"""IndexFiles as they are: entries as columns, and look-ups that say what they can't know.

A look-up by key gives the places of all messages whose key has the same hash, and the stretches of
the log of which the index knows nothing, so that these two together are all that can have the key.

Format: ``firearrow.store.index``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from firearrow.errors import CorruptStore, MessageError
from firearrow.message.ids import decode_offset_id
from firearrow.message.names import java_hash
from firearrow.spark.storage import NumberedFile, Storage, numbered_files
from firearrow.store.index import HEADER, INDEX_ENTRY

INDEX_DIRECTORY: Final = "index"
INDEX_NAME_DIGITS: Final = 17
_STEPS_MAX: Final = 100_000  # of chains; beyond that it is faster to look at all entries
_SLOT_SHARE_BYTES: Final = 4 + 4 * INDEX_ENTRY.itemsize  # of a slot, and its four entries


class IndexRows:
    """One file; ``count`` is the number of the next entry, the first is 1."""

    def __init__(self, storage: Storage, file: NumberedFile) -> None:
        self._storage = storage
        self._file = file
        self.slots, rest = divmod(file.size_bytes - HEADER.size, _SLOT_SHARE_BYTES)
        head = storage.window(file.path, 0, HEADER.size)
        if rest or self.slots <= 0 or len(head) < HEADER.size:
            raise CorruptStore(
                f"{storage.root}/{file.path}: {file.size_bytes} bytes don't fit a header and "
                "four entries for each slot"
            )
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, _, count = HEADER.unpack(
            head
        )
        self.count = min(max(count, 1), 4 * self.slots)

    def entries(self, start: int, end: int) -> npt.NDArray[Any]:
        """Some entries, as ``INDEX_ENTRY``."""
        at = HEADER.size + 4 * self.slots
        size = INDEX_ENTRY.itemsize
        window = self._storage.window(self._file.path, at + size * start, at + size * end)
        found: npt.NDArray[Any] = np.frombuffer(window, INDEX_ENTRY, len(window) // size)
        return found

    def find(self, hashes: Collection[int]) -> set[int]:
        """The physical offsets of the records with a key of one of some hashes."""
        at = HEADER.size
        window = self._storage.window(self._file.path, at, at + 4 * self.slots)
        heads = np.frombuffer(window, ">i4", len(window) // 4)
        entries = self.entries(0, self.count)
        found: set[int] = set()
        steps = 0
        for key_hash in hashes:
            number = int(heads[key_hash % self.slots])
            while 0 < number < len(entries):
                steps += 1
                if steps > _STEPS_MAX:
                    return self._find_in_all(entries, hashes)
                if entries["hash"][number] == key_hash:
                    found.add(int(entries["physical_offset"][number]))
                number = min(int(entries["previous"][number]), number - 1)
        return found

    @staticmethod
    def _find_in_all(entries: npt.NDArray[Any], hashes: Collection[int]) -> set[int]:
        hit = np.isin(entries["hash"][1:].astype(np.int64), np.array(list(hashes), np.int64))
        return set(entries["physical_offset"][1:][hit].tolist())


def candidates(
    storage: Storage, topic: str, words: Collection[str], log_end: int
) -> list[tuple[int, int]]:
    """Stretches of the log, in order, where all messages of a topic are that have one of some words
    among their keys or as their unique id.

    An id may also be one that says where the message is. Of the last record of a file some keys
    may be missing yet, so that it counts as unknown.
    """
    hashes = {_hash(f"{topic}#{word}") for word in words}
    places = {place for word in words if (place := _place(word)) is not None}
    stretches: list[tuple[int, int]] = []
    known = 0
    for file in numbered_files(storage, INDEX_DIRECTORY, INDEX_NAME_DIGITS):
        rows = IndexRows(storage, file)
        if rows.count > 1:
            places |= rows.find(hashes)
            stretches.append((known, rows.begin_offset))
            known = max(known, rows.end_offset)
    stretches.append((known, log_end))
    return _merged([*stretches, *((place, place + 1) for place in places)])


def _merged(stretches: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches without the empty ones, those that touch each other as one."""
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


def _hash(key: str) -> int:
    code = abs(java_hash(key))
    return 0 if code == 1 << 31 else code
