"""IndexFiles of a store: look-ups that say what they can't know.

A look-up by key gives the places of all messages whose key has the same hash, and the stretches of
the log of which the index knows nothing, so that these two together are all that can have the key.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from firearrow.errors import CorruptStore, MessageError
from firearrow.message.ids import decode_offset_id
from firearrow.spark.storage import NumberedFile, Storage, numbered_files
from firearrow.store.index import NAME_DIGITS
from firearrow.store.snapshot.indexrows import DIRECTORY, IndexRows, geometry, key_hash


def index_files(storage: Storage) -> list[NumberedFile]:
    """The IndexFiles of a store, oldest first."""
    return numbered_files(storage, DIRECTORY, NAME_DIGITS)


def index_rows(storage: Storage, file: NumberedFile) -> IndexRows:
    """The entries of one; CorruptStore where its size fits none."""
    if not geometry(file.size_bytes)[0]:
        raise CorruptStore(
            f"{storage.root}/{file.path}: {file.size_bytes} bytes don't fit a header and four entries for each slot"
        )
    return IndexRows(partial(storage.window, file.path), file.size_bytes)


def candidates(storage: Storage, topic: str, words: Collection[str], log_end: int) -> list[tuple[int, int]]:
    """Stretches of the log, in order, where all messages of a topic are that have one of some words
    among their keys or as their unique id.

    An id may also be one that says where the message is. Of the last record of a file some keys
    may be missing yet, so that it counts as unknown.
    """
    hashes = {key_hash(topic, word) for word in words}
    places = {place for word in words if (place := _place(word)) is not None}
    stretches: list[tuple[int, int]] = []
    known = 0
    for file in index_files(storage):
        rows = index_rows(storage, file)
        if rows.taken > 1:
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
