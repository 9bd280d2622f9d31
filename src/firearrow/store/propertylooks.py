"""Entries of a queue that refer to messages with wanted properties.

Only heads, lengths and properties of the records are read, hundreds at a time as columns. That costs a sixth of reading
them one by one, but for few records a multiple of it (``propertycolumns``). A pull takes some of the results of such a
look. The rest is kept, and the next pulls of the group take it without a look. The wanted records themselves are also
kept, if the look copied all records anyway: copying them again one by one is half of the store's work for such a pull.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import numpy as np

from firearrow.message.record import RECORD_BYTES_MIN, properties_in
from firearrow.store.propertycolumns import AnswerCache, answers_of
from firearrow.store.queues import ENTRIES, ENTRY, ENTRY_BYTES, ConsumeQueue
from firearrow.store.segments import Segment, Segments

FEW: Final = 32
"""Entries that are read first, one by one: often they include enough wanted ones."""
MANY: Final = 800
"""Entries whose records are read as columns at a time."""
KEPT_MAX: Final = 1024
"""Limit of pairs of a queue and a filter whose answers are kept, usually in up to 80 KiB each."""
COPIES_BYTES_MAX: Final = 64 << 20
"""Limit of bytes of wanted records that are kept with the answers, of all pairs together."""
LOOKS_MAX: Final = 8_000
"""Limit of looks for properties in one pull, each of less than a microsecond; the next two constants limit them
further.
"""
LOOKED_BYTES_MAX: Final = 4 << 20
"""Limit of bytes of records that are looked at in vain: for large records each look may read the disk."""
CHEAP_COST: Final = 4  # a filter of a higher cost may look at fewer bytes

_ENTRY: Final = np.dtype((np.void, ENTRY_BYTES))
_SIZE_FROM, _SIZE_TO = 8 - ENTRY_BYTES, 12 - ENTRY_BYTES  # of the last of some entries


class PropertyFilter(Protocol):
    """Chooses messages by their properties, as they are stored."""

    @property
    def cost(self) -> int:
        """Largest cost of one look, in looks for one property."""
        ...

    @property
    def chars(self) -> int:
        """Length of its source; it has a few dozen bytes of memory for each character."""
        ...

    @property
    def wants(self) -> Callable[[bytes], bool]:
        """Function that tells from the properties of a message whether the filter wants it."""
        ...

    @property
    def names(self) -> frozenset[bytes] | None:
        """The properties whose values alone decide; None if they are unknown."""
        ...


class ChosenEntries(NamedTuple):
    """Entries side by side, with their queue offsets, and the end of the look for them. ``records`` has their records
    side by side, if these are of one size and were copied.

    Of kept entries, only the last records may be copied.
    """

    numbers: list[int]
    entries: bytes
    following: int
    records: bytes = b""

    def span(self, first: int, end: int, following: int) -> ChosenEntries:
        """The entries from one place among them to before another."""
        entries = self.entries[first * ENTRY_BYTES : end * ENTRY_BYTES]
        records = self.records
        if records:
            size = _last_size(self.entries)
            behind = len(self.numbers) - len(records) // size
            records = records[(first - behind) * size : (end - behind) * size]
            if first < behind:
                records = b""
        return ChosenEntries(self.numbers[first:end], entries, following, records)

    def and_then(self, more: ChosenEntries) -> ChosenEntries:
        """All entries, with the entries of the following look."""
        if not more.numbers:
            return self._replace(following=more.following)
        records = more.records
        if records and self.records and _last_size(self.entries) == _last_size(more.entries):
            records = self.records + records
        entries = self.entries + more.entries
        return ChosenEntries(self.numbers + more.numbers, entries, more.following, records)


class _Kept(NamedTuple):
    """Entries from an offset on that were looked at, the chosen ones of them, and the filter's answers."""

    queue_offset: int
    entries: bytes
    chosen: ChosenEntries
    cache: AnswerCache


class Looks:
    """Looks at entries, and keeps the results after those that a pull took: most pulls of a group continue at the end
    of its last one, with the same filter.
    """

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._kept: dict[tuple[ConsumeQueue, PropertyFilter], _Kept] = {}
        self._copied_bytes = 0

    def forget(self) -> None:
        """Forget all results."""
        self._kept.clear()
        self._copied_bytes = 0

    def known(
        self, queue: ConsumeQueue, queue_offset: int, wanted: PropertyFilter, count_of: Callable[[int], int]
    ) -> ChosenEntries | None:
        """Result of `wanted_entries`, if the last look found the whole result; otherwise None.

        This reads no record, and no entry after the last one. `wanted_entries` needs hundreds of entries, and all their
        records must be in memory.
        """
        kept = self._kept.get((queue, wanted))
        if kept is None or queue_offset < kept.queue_offset:
            return None
        chosen = kept.chosen
        numbers, entries = chosen.numbers, chosen.entries
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
        # After a queue was cut off, the same offsets may refer to other records.
        if queue.read(queue_offset, following - queue_offset) != looked:
            return None
        return chosen.span(first, end, following)

    def wanted_entries(
        self,
        queue: ConsumeQueue,
        entries: bytes,
        queue_offset: int,
        wanted: PropertyFilter,
        count_of: Callable[[int], int],
    ) -> ChosenEntries:
        """The entries of wanted records, and the end of the look at them. It ends at the last entry, at ``count_of`` of
        a physical offset entries, or at a limit of work.

        ``count_of`` changes at most once along a queue. Unreadable records are included: their fault is reported when
        they are copied.
        """
        entries = _in_one_look(entries, wanted.cost)
        end = queue_offset + len(entries) // ENTRY_BYTES
        most = max(_ends(entries, count_of))
        kept = self._kept_of(queue, entries, queue_offset, wanted)
        if kept is None:
            found, step = ChosenEntries([], b"", queue_offset), FEW
            cache = AnswerCache(wanted.wants, wanted.names)
        else:
            found, step, cache = _between(kept.chosen, queue_offset, end), MANY, kept.cache
        while not (taken := _taken(found.entries, count_of)) and found.following < end:
            at = (found.following - queue_offset) * ENTRY_BYTES
            part = entries[at : at + step * ENTRY_BYTES]
            segment = self._segments.find(int.from_bytes(part[:8], "big", signed=True))
            if segment is None:
                number = found.following
                return found.and_then(ChosenEntries([number], part[:ENTRY_BYTES], number + 1))
            found = found.and_then(self._look(segment, part, found.following, cache, most))
            looked = entries[: (found.following - queue_offset) * ENTRY_BYTES]
            self._keep(queue, wanted, _Kept(queue_offset, looked, found, cache))
            step = MANY
        if not taken:
            return found.span(0, len(found.numbers), found.following)
        return found.span(0, taken, found.numbers[taken - 1] + 1)

    def _look(self, segment: Segment, part: bytes, start: int, cache: AnswerCache, most: int) -> ChosenEntries:
        """The entries from an offset on that are wanted or unreadable, within one file. Of few entries it returns
        ``most`` at most.
        """
        if len(part) <= FEW * ENTRY_BYTES:
            return _few_chosen(segment, part, start, cache.wants, most)
        answers, records = answers_of(segment, part, cache)
        cache.forget_many()
        rows = answers.nonzero()[0]
        entries = np.frombuffer(part, _ENTRY).take(rows).tobytes()
        copies = b""
        if records is not None:
            bytes_more = len(rows) * records.itemsize
            if self._copied_bytes + bytes_more <= COPIES_BYTES_MAX:
                copies = records.take(rows).tobytes()
        return ChosenEntries((rows + start).tolist(), entries, start + len(answers), copies)

    def _kept_of(self, queue: ConsumeQueue, entries: bytes, queue_offset: int, wanted: PropertyFilter) -> _Kept | None:
        """The known answers for the first entries; None if the last pull was elsewhere."""
        kept = None if wanted.names is None else self._kept.get((queue, wanted))
        if kept is None or not kept.queue_offset <= queue_offset <= kept.chosen.following:
            return None
        passed = (queue_offset - kept.queue_offset) * ENTRY_BYTES
        same = kept.entries[passed : passed + len(entries)]
        # After a queue was cut off, the same offsets may refer to other records.
        return kept if entries.startswith(same) else None

    def _keep(self, queue: ConsumeQueue, wanted: PropertyFilter, kept: _Kept) -> None:
        if wanted.names is None:  # it may answer differently the next time
            return
        before = self._kept.pop((queue, wanted), None)
        if before is None and len(self._kept) >= KEPT_MAX:
            before = self._kept.pop(next(iter(self._kept)))
        self._copied_bytes += len(kept.chosen.records)
        if before is not None:
            self._copied_bytes -= len(before.chosen.records)
        assert self._copied_bytes >= len(kept.chosen.records), "these are a part of the sum"
        self._kept[queue, wanted] = kept


def _between(chosen: ChosenEntries, start: int, end: int) -> ChosenEntries:
    """The entries from one queue offset to before another."""
    numbers = chosen.numbers
    first, last = bisect_left(numbers, start), bisect_left(numbers, end)
    return chosen.span(first, last, min(chosen.following, end))


def _physical_offset(entries: bytes, number: int) -> int:
    at = number * ENTRY_BYTES
    return int.from_bytes(entries[at : at + 8], "big")


def _ends(entries: bytes, count_of: Callable[[int], int]) -> tuple[int, int]:
    """The counts for the first and for the last of the entries."""
    last = entries[-ENTRY_BYTES : 8 - ENTRY_BYTES]
    return count_of(int.from_bytes(entries[:8], "big")), count_of(int.from_bytes(last, "big"))


def _taken(entries: bytes, count_of: Callable[[int], int]) -> int:
    """Count the entries up to a sufficient number; 0 if all entries are not enough."""
    count = len(entries) // ENTRY_BYTES
    if not count:
        return 0
    first, last = _ends(entries, count_of)
    if first == last:
        enough = max(first, 1)
        return enough if enough <= count else 0
    for number, (physical, _, _) in enumerate(ENTRY.iter_unpack(entries), 1):
        if number >= count_of(physical):
            return number
    return 0


def _last_size(entries: bytes) -> int:
    """The size of the last entry's record."""
    return int.from_bytes(entries[_SIZE_FROM:_SIZE_TO], "big")


def is_wanted(record: bytes, wanted: PropertyFilter) -> bool:
    """Tell whether a record is wanted or unreadable."""
    properties = properties_in(record, 0, len(record))
    return properties is None or wanted.wants(properties)


def _in_one_look(entries: bytes, cost: int) -> bytes:
    """The first entries, as many as one pull may look at if it finds nothing."""
    entries = entries[: max(1, LOOKS_MAX // cost) * ENTRY_BYTES]
    bytes_max = LOOKED_BYTES_MAX // max(1, cost // CHEAP_COST)
    first, _, _ = ENTRY.unpack_from(entries)
    last, size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY_BYTES)
    if 0 <= last - first <= bytes_max - size:  # all bytes in between count
        return entries
    looked_bytes = np.frombuffer(entries, ENTRIES)["size"].cumsum(dtype=np.int64)
    if looked_bytes[-1] <= bytes_max:
        return entries
    return entries[: (int((looked_bytes > bytes_max).argmax()) + 1) * ENTRY_BYTES]


def _few_chosen(segment: Segment, part: bytes, start: int, wants: Callable[[bytes], bool], most: int) -> ChosenEntries:
    """The wanted entries of some in one file, which are read one by one until there are enough."""
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
    return ChosenEntries(numbers, b"".join(chosen), following)
