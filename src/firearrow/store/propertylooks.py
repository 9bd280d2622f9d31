"""Which entries of a queue lead to messages whose properties are wanted.

Only heads, lengths and properties of the records are read, and hundreds at a time as columns: that
costs a quarter of reading them one by one, and of few a multiple of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

import numpy as np

from firearrow.message.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, properties_in
from firearrow.store.queues import ENTRY, ENTRY_BYTES
from firearrow.store.scan import Columns
from firearrow.store.segments import Segment, Segments

FEW: Final = 32
"""Entries that are looked at first, one by one: often there are enough wanted ones among them."""
MANY: Final = 256
"""Entries whose records are read as columns at a time."""
LOOKS_MAX: Final = 8_000
"""For properties in one pull, each of less than a microsecond, as far as the next two go."""
LOOKED_BYTES_MAX: Final = 4 << 20
"""Of records that are looked at in vain: of large ones each look may be one at the disk."""
CHEAP_COST: Final = 4  # a filter of a higher cost gets through fewer bytes

_PLACE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])


class PropertyFilter(Protocol):
    """Chooses messages by their properties, as they are stored."""

    @property
    def cost(self) -> int:
        """What one look takes at most, in looks for one property."""
        ...

    @property
    def chars(self) -> int:
        """How long what it was made of is; it has a few dozen bytes of memory for each."""
        ...

    @property
    def wants(self) -> Callable[[bytes], bool]:
        """Tells of the properties of a message whether it is wanted."""
        ...


Numbered = tuple[int, tuple[int, int, int]]
"""A queue offset and its entry."""


def wanted_entries(
    segments: Segments,
    entries: bytes,
    queue_offset: int,
    wanted: PropertyFilter,
    count_of: Callable[[int], int],
) -> tuple[list[Numbered], int]:
    """Give the entries of records that are wanted, and where the look at them ended: at the last,
    when there are ``count_of`` a physical offset, or when it has taken long enough.

    What can't be looked at is among them: what is the matter with it is said where it is copied.
    """
    found: list[Numbered] = []
    looked_bytes, following = 0, queue_offset
    wants, cost = wanted.wants, wanted.cost
    bytes_max = LOOKED_BYTES_MAX // max(1, cost // CHEAP_COST)
    entries = entries[: max(1, LOOKS_MAX // cost) * ENTRY_BYTES]
    for part, texts in _looks(segments, entries):
        for entry, properties in zip(ENTRY.iter_unpack(part), texts, strict=False):
            following += 1
            if properties is not None and not wants(properties):
                looked_bytes += entry[1]
                if looked_bytes > bytes_max:
                    return found, following
                continue
            found.append((following - 1, entry))
            if len(found) >= count_of(entry[0]):
                return found, following
    return found, following


def is_wanted(record: bytes, wanted: PropertyFilter) -> bool:
    """Whether a record is wanted, or can't be looked at."""
    properties = properties_in(record, 0, len(record))
    return properties is None or wanted.wants(properties)


def _looks(segments: Segments, entries: bytes) -> Iterator[tuple[bytes, list[bytes | None]]]:
    """Entries, with the properties of as many of them as are in one file of the log."""
    at, step = 0, FEW
    while at < len(entries):
        part = entries[at : at + step * ENTRY_BYTES]
        segment = segments.find(int.from_bytes(part[:8], "big", signed=True))
        if segment is None:
            yield part, [None]
            return
        few = len(part) <= FEW * ENTRY_BYTES
        texts = _few_texts(segment, part) if few else _many_texts(segment, part)
        yield part, texts
        at += len(texts) * ENTRY_BYTES
        step = MANY


def _few_texts(segment: Segment, part: bytes) -> list[bytes | None]:
    texts: list[bytes | None] = []
    mapped, base, limit = segment.map, segment.base, segment.end
    for physical, size, _ in ENTRY.iter_unpack(part):
        if not base <= physical < limit:
            break
        start = physical - base
        sound = RECORD_BYTES_MIN <= size <= limit - physical
        texts.append(properties_in(mapped, start, start + size) if sound else None)
    return texts


def _many_texts(segment: Segment, part: bytes) -> list[bytes | None]:
    place = np.frombuffer(part, _PLACE)
    at = place["physical_offset"].astype(np.int64) - segment.base
    inside = (at >= 0) & (at < segment.size_bytes)
    count = len(at) if inside.all() else int(inside.argmin())
    at, size = at[:count], place["size"][:count].astype(np.int64)
    sound = (size >= RECORD_BYTES_MIN) & (at + size <= segment.size_bytes)
    at[~sound] = 0  # the first record of the file stands in
    columns = Columns(segment.map, at, segment.size_bytes)
    magic = columns.magic
    sound &= columns.valid & (columns.size == size) & ((magic == MAGIC_V1) | (magic == MAGIC_V2))
    start = columns.properties_start
    texts = columns.slices(start, columns.properties_size)
    if sound.all():
        return list(texts)
    return [text if good else None for text, good in zip(texts, sound.tolist(), strict=True)]
