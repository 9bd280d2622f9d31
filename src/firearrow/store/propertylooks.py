"""Which entries of a queue lead to messages whose properties are wanted.

Only heads, lengths and properties of the records are read, and hundreds at a time as columns: that
costs a sixth of reading them one by one, and of few a multiple of it (``propertycolumns``). A pull
takes some of what such a look finds; the rest is kept, and the next pulls of the group take it
without a look.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np

from firearrow.message.record import RECORD_BYTES_MIN, properties_in
from firearrow.store.propertycolumns import Asked, Bools, answers_of
from firearrow.store.queues import ENTRY, ENTRY_BYTES, ConsumeQueue
from firearrow.store.segments import Segment, Segments

FEW: Final = 32
"""Entries that are looked at first, one by one: often there are enough wanted ones among them."""
MANY: Final = 800
"""Entries whose records are read as columns at a time."""
KEPT_MAX: Final = 1024
"""Pairs of a queue and a filter, of which answers are kept, usually in up to 80 KiB each."""
LOOKS_MAX: Final = 8_000
"""For properties in one pull, each of less than a microsecond, as far as the next two go."""
LOOKED_BYTES_MAX: Final = 4 << 20
"""Of records that are looked at in vain: of large ones each look may be one at the disk."""
CHEAP_COST: Final = 4  # a filter of a higher cost gets through fewer bytes

_PLACE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
_ENTRY: Final = np.dtype((np.void, ENTRY_BYTES))


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

    @property
    def names(self) -> frozenset[bytes] | None:
        """The properties whose values alone decide; None if that is not known."""
        ...


class Chosen(NamedTuple):
    """Entries side by side, with their queue offsets, and where the look for them ended."""

    numbers: list[int]
    entries: bytes
    following: int


class _Kept(NamedTuple):
    """Entries from an offset on that were looked at, which of them are wanted, and why."""

    queue_offset: int
    entries: bytes
    chosen: Chosen
    asked: Asked


class Looks:
    """Looks at entries, and keeps what was found behind those that a pull took: most pulls of a
    group go on where its last one ended, with the same filter."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._kept: dict[tuple[ConsumeQueue, PropertyFilter], _Kept] = {}

    def forget(self) -> None:
        """Look again at everything."""
        self._kept.clear()

    def known(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        wanted: PropertyFilter,
        count_of: Callable[[int], int],
    ) -> Chosen | None:
        """Give what `wanted_entries` would if the last look found all of it; None if it did not.

        No record is read for that, and no entry behind the last one: `wanted_entries` has to be
        given hundreds, and all that they lead to has to be in memory.
        """
        kept = self._kept.get((queue, wanted))
        if kept is None or queue_offset < kept.queue_offset:
            return None
        numbers, entries, _ = kept.chosen
        first = bisect_left(numbers, queue_offset)
        if first == len(numbers):
            return None
        count = count_of(_physical_offset(entries, first))
        end = first + count
        if end > len(numbers) or count_of(_physical_offset(entries, end - 1)) != count:
            return None
        following = numbers[end - 1] + 1
        start, stop = queue_offset - kept.queue_offset, following - kept.queue_offset
        looked = kept.entries[start * ENTRY_BYTES : stop * ENTRY_BYTES]
        # A queue that was cut off may lead to other records from there on.
        if queue.read(queue_offset, following - queue_offset) != looked:
            return None
        found = entries[first * ENTRY_BYTES : end * ENTRY_BYTES]
        return Chosen(numbers[first:end], found, following)

    def wanted_entries(
        self,
        queue: ConsumeQueue,
        entries: bytes,
        queue_offset: int,
        wanted: PropertyFilter,
        count_of: Callable[[int], int],
    ) -> Chosen:
        """Give the entries of records that are wanted, and where the look at them ended: at the
        last, when there are ``count_of`` a physical offset, or when it has taken long enough.

        ``count_of`` changes once along a queue, if at all. What can't be looked at is among them:
        what is the matter with it is said where it is copied.
        """
        numbers: list[int] = []
        parts: list[bytes] = []
        following = queue_offset
        entries = _in_one_look(entries, wanted.cost)
        most = max(_ends(entries, count_of))
        for looked in self._looked(queue, entries, queue_offset, wanted, most):
            taken = _taken(looked.entries, len(numbers), count_of)
            if taken:
                numbers += looked.numbers[:taken]
                parts.append(looked.entries[: taken * ENTRY_BYTES])
                following = numbers[-1] + 1
                break
            numbers += looked.numbers
            parts.append(looked.entries)
            following = looked.following
        return Chosen(numbers, b"".join(parts), following)

    def _looked(
        self,
        queue: ConsumeQueue,
        entries: bytes,
        queue_offset: int,
        wanted: PropertyFilter,
        most: int,
    ) -> Iterator[Chosen]:
        """Those of entries that are wanted, or can't be looked at: of what was looked at before,
        and then of each file of the log; ``most`` are enough."""
        kept = self._kept_of(queue, entries, queue_offset, wanted)
        asked = Asked(wanted.wants, wanted.names) if kept is None else kept.asked
        start, end = queue_offset, queue_offset + len(entries) // ENTRY_BYTES
        if kept is not None:
            known = _from(kept.chosen, queue_offset, end)
            if known.following > queue_offset:
                yield known
            start = known.following
        step = FEW if kept is None else MANY
        while start < end:
            at = (start - queue_offset) * ENTRY_BYTES
            part = entries[at : at + step * ENTRY_BYTES]
            segment = self._segments.find(int.from_bytes(part[:8], "big", signed=True))
            if segment is None:
                yield Chosen([start], part[:ENTRY_BYTES], start + 1)
                return
            if len(part) <= FEW * ENTRY_BYTES:
                chosen = _few_chosen(segment, part, start, asked.wants, most)
                nothing = Chosen([], b"", chosen.following)
                self._keep(queue, wanted, _Kept(chosen.following, b"", nothing, asked))
            else:
                answers = answers_of(segment, part, asked)
                asked.forget_many()
                part = part[: len(answers) * ENTRY_BYTES]
                chosen = _chosen(part, answers, start)
                self._keep(queue, wanted, _Kept(start, part, chosen, asked))
            yield chosen
            start = chosen.following
            step = MANY

    def _kept_of(
        self, queue: ConsumeQueue, entries: bytes, queue_offset: int, wanted: PropertyFilter
    ) -> _Kept | None:
        """What is known of the first entries; None if the last pull was elsewhere."""
        kept = None if wanted.names is None else self._kept.get((queue, wanted))
        if kept is None or not kept.queue_offset <= queue_offset <= kept.chosen.following:
            return None
        passed = (queue_offset - kept.queue_offset) * ENTRY_BYTES
        same = kept.entries[passed : passed + len(entries)]
        # A queue that was cut off may lead to other records from there on.
        return kept if entries.startswith(same) else None

    def _keep(self, queue: ConsumeQueue, wanted: PropertyFilter, kept: _Kept) -> None:
        if wanted.names is None:  # it may answer otherwise the next time
            return
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[queue, wanted] = kept


def _physical_offset(entries: bytes, number: int) -> int:
    at = number * ENTRY_BYTES
    return int.from_bytes(entries[at : at + 8], "big")


def _ends(entries: bytes, count_of: Callable[[int], int]) -> tuple[int, int]:
    """What counts for the first and for the last of entries."""
    last = entries[-ENTRY_BYTES : 8 - ENTRY_BYTES]
    return count_of(int.from_bytes(entries[:8], "big")), count_of(int.from_bytes(last, "big"))


def _taken(entries: bytes, before: int, count_of: Callable[[int], int]) -> int:
    """How many of entries are taken until there are enough, with so many ``before`` them; 0 if all
    are not enough."""
    count = len(entries) // ENTRY_BYTES
    if not count:
        return 0
    first, last = _ends(entries, count_of)
    if first == last:
        lacking = max(first - before, 1)
        return lacking if lacking <= count else 0
    for number, (physical, _, _) in enumerate(ENTRY.iter_unpack(entries), 1):
        if before + number >= count_of(physical):
            return number
    return 0


def _from(chosen: Chosen, start: int, end: int) -> Chosen:
    """Those from one queue offset to before another."""
    numbers = chosen.numbers
    first, last = bisect_left(numbers, start), bisect_left(numbers, end)
    entries = chosen.entries[first * ENTRY_BYTES : last * ENTRY_BYTES]
    return Chosen(numbers[first:last], entries, min(chosen.following, end))


def _chosen(part: bytes, answers: Bools, start: int) -> Chosen:
    """Those of entries from an offset on to which the answer is yes."""
    numbers = (answers.nonzero()[0] + start).tolist()
    return Chosen(numbers, np.frombuffer(part, _ENTRY)[answers].tobytes(), start + len(answers))


def is_wanted(record: bytes, wanted: PropertyFilter) -> bool:
    """Whether a record is wanted, or can't be looked at."""
    properties = properties_in(record, 0, len(record))
    return properties is None or wanted.wants(properties)


def _in_one_look(entries: bytes, cost: int) -> bytes:
    """Those of the entries that one pull may look at, if it finds nothing."""
    entries = entries[: max(1, LOOKS_MAX // cost) * ENTRY_BYTES]
    bytes_max = LOOKED_BYTES_MAX // max(1, cost // CHEAP_COST)
    first, _, _ = ENTRY.unpack_from(entries)
    last, size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY_BYTES)
    if 0 <= last - first <= bytes_max - size:  # all that is between counts
        return entries
    looked_bytes = np.frombuffer(entries, _PLACE)["size"].cumsum(dtype=np.int64)
    if looked_bytes[-1] <= bytes_max:
        return entries
    return entries[: (int((looked_bytes > bytes_max).argmax()) + 1) * ENTRY_BYTES]


def _few_chosen(
    segment: Segment, part: bytes, start: int, wants: Callable[[bytes], bool], most: int
) -> Chosen:
    """Those of entries in one file that are wanted, looked at one by one until there are enough."""
    numbers: list[int] = []
    chosen: list[bytes] = []
    following = start
    mapped, base, limit = segment.map, segment.base, segment.end
    for physical, size, _ in ENTRY.iter_unpack(part):
        if len(numbers) >= most or not base <= physical < limit:
            break
        place = physical - base
        sound = RECORD_BYTES_MIN <= size <= limit - physical
        text = properties_in(mapped, place, place + size) if sound else None
        if text is None or wants(text):
            numbers.append(following)
            at = (following - start) * ENTRY_BYTES
            chosen.append(part[at : at + ENTRY_BYTES])
        following += 1
    return Chosen(numbers, b"".join(chosen), following)
