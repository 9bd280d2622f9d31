"""Which entries of a queue lead to messages whose properties are wanted.

Only heads, lengths and properties of the records are read, and hundreds at a time as columns: that
costs a quarter of reading them one by one, and of few a multiple of it. Most of them have the same
properties with values of the same lengths, and few different ones of those that count, so each of
these is asked about once (see below).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from itertools import compress
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from firearrow.message.properties import NAME_END, PAIR_END
from firearrow.message.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, properties_in
from firearrow.store.queues import ENTRY, ENTRY_BYTES, ConsumeQueue
from firearrow.store.scan import Columns, Ints, gather
from firearrow.store.segments import Segment, Segments

FEW: Final = 32
"""Entries that are looked at first, one by one: often there are enough wanted ones among them."""
MANY: Final = 800
"""Entries whose records are read as columns at a time."""
KEPT_MAX: Final = 1024
"""Pairs of a queue and a filter, of which answers are kept, in up to 24 KiB each."""
LOOKS_MAX: Final = 8_000
"""For properties in one pull, each of less than a microsecond, as far as the next two go."""
LOOKED_BYTES_MAX: Final = 4 << 20
"""Of records that are looked at in vain: of large ones each look may be one at the disk."""
CHEAP_COST: Final = 4  # a filter of a higher cost gets through fewer bytes
ALIKE_MIN: Final = 8  # records, below which each is asked about by itself
ALIKE_TRIES: Final = 4
"""So often it is tried to find records alike among those of one size; the rest is by itself."""

_NAME_END: Final = NAME_END.encode()
_PAIR_END: Final = PAIR_END.encode()
_VALUE_BYTE_MIN: Final = 3  # below it are the two, and 0, which is rare
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

    @property
    def names(self) -> frozenset[bytes] | None:
        """The properties whose values alone decide; None if that is not known."""
        ...


Numbered = tuple[int, tuple[int, int, int]]
"""A queue offset and its entry."""


class _Kept(NamedTuple):
    queue_offset: int
    entries: bytes
    answers: list[bool]


class Looks:
    """Looks at entries, and keeps what was found behind those that a pull took: most pulls of a
    group go on where its last one ended, with the same filter."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._kept: dict[tuple[ConsumeQueue, PropertyFilter], _Kept] = {}

    def forget(self) -> None:
        """Look again at everything."""
        self._kept.clear()

    def wanted_entries(
        self,
        queue: ConsumeQueue,
        entries: bytes,
        queue_offset: int,
        wanted: PropertyFilter,
        count_of: Callable[[int], int],
    ) -> tuple[list[Numbered], int]:
        """Give the entries of records that are wanted, and where the look at them ended: at the
        last, when there are ``count_of`` a physical offset, or when it has taken long enough.

        What can't be looked at is among them: what is the matter with it is said where it is
        copied.
        """
        found: list[Numbered] = []
        following = queue_offset
        entries = _in_one_look(entries, wanted.cost)
        for part, answers in self._answered(queue, entries, queue_offset, wanted):
            for numbered in compress(enumerate(ENTRY.iter_unpack(part), following), answers):
                found.append(numbered)
                if len(found) >= count_of(numbered[1][0]):
                    return found, numbered[0] + 1
            following += len(part) // ENTRY_BYTES
        return found, following

    def _answered(
        self, queue: ConsumeQueue, entries: bytes, queue_offset: int, wanted: PropertyFilter
    ) -> Iterator[tuple[bytes, Iterable[bool]]]:
        """Entries, and whether those of them are wanted, or can't be looked at, that were looked at
        before, and then those that are in one file of the log."""
        known = self._known(queue, entries, queue_offset, wanted)
        if known:
            yield entries[: len(known) * ENTRY_BYTES], known
        at, step = len(known or ()) * ENTRY_BYTES, FEW if known is None else MANY
        while at < len(entries):
            part = entries[at : at + step * ENTRY_BYTES]
            segment = self._segments.find(int.from_bytes(part[:8], "big", signed=True))
            if segment is None:
                yield part[:ENTRY_BYTES], [True]
                return
            if len(part) <= FEW * ENTRY_BYTES:
                texts = _few_texts(segment, part)
                part = part[: len(texts) * ENTRY_BYTES]
                end = queue_offset + (at + len(part)) // ENTRY_BYTES
                self._keep(queue, wanted, _Kept(end, b"", []))
                yield part, (text is None or wanted.wants(text) for text in texts)
            else:
                answers = _answers(segment, part, wanted)
                part = part[: len(answers) * ENTRY_BYTES]
                start = queue_offset + at // ENTRY_BYTES
                self._keep(queue, wanted, _Kept(start, part, answers))
                yield part, answers
            at += len(part)
            step = MANY

    def _known(
        self, queue: ConsumeQueue, entries: bytes, queue_offset: int, wanted: PropertyFilter
    ) -> list[bool] | None:
        """The answers that are known of the first entries; None if the last pull was elsewhere."""
        kept = None if wanted.names is None else self._kept.get((queue, wanted))
        if kept is None or not 0 <= queue_offset - kept.queue_offset <= len(kept.answers):
            return None
        passed = queue_offset - kept.queue_offset
        same = kept.entries[passed * ENTRY_BYTES : passed * ENTRY_BYTES + len(entries)]
        # A queue that was cut off may lead to other records from there on.
        if not entries.startswith(same):
            return None
        return kept.answers[passed : passed + len(entries) // ENTRY_BYTES]

    def _keep(self, queue: ConsumeQueue, wanted: PropertyFilter, kept: _Kept) -> None:
        if wanted.names is None:  # it may answer otherwise the next time
            return
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[queue, wanted] = kept


def is_wanted(record: bytes, wanted: PropertyFilter) -> bool:
    """Whether a record is wanted, or can't be looked at."""
    properties = properties_in(record, 0, len(record))
    return properties is None or wanted.wants(properties)


def _in_one_look(entries: bytes, cost: int) -> bytes:
    """Those of the entries that one pull may look at, if it finds nothing."""
    entries = entries[: max(1, LOOKS_MAX // cost) * ENTRY_BYTES]
    bytes_max = LOOKED_BYTES_MAX // max(1, cost // CHEAP_COST)
    looked_bytes = np.frombuffer(entries, _PLACE)["size"].cumsum(dtype=np.int64)
    if looked_bytes[-1] <= bytes_max:
        return entries
    return entries[: (int((looked_bytes > bytes_max).argmax()) + 1) * ENTRY_BYTES]


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


def _answers(segment: Segment, part: bytes, wanted: PropertyFilter) -> list[bool]:
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
    start, size = columns.properties_start, columns.properties_size
    if sound.all():
        return _answers_of(segment.map, start, size, wanted)
    answers = np.ones(count, np.bool_)
    answers[sound] = _answers_of(segment.map, start[sound], size[sound], wanted)
    found: list[bool] = answers.tolist()
    return found


def _answers_of(buffer: mmap.mmap, start: Ints, size: Ints, wanted: PropertyFilter) -> list[bool]:
    """Whether messages whose properties are there are wanted."""
    names, wants = wanted.names, wanted.wants
    if names is None:
        return [wants(buffer[a:b]) for a, b in _pairs(start, size)]
    sizes = set(size.tolist())
    if len(sizes) == 1:
        return _answers_of_size(buffer, start, sizes.pop(), names, wants, ALIKE_TRIES)
    answers = np.empty(len(size), np.bool_)
    for one in sizes:
        rows = (size == one).nonzero()[0]
        answers[rows] = _answers_of_size(buffer, start[rows], one, names, wants, ALIKE_TRIES)
    found: list[bool] = answers.tolist()
    return found


def _pairs(start: Ints, size: Ints) -> Iterable[tuple[int, int]]:
    return zip(start.tolist(), (start + size).tolist(), strict=True)


# Most messages of a topic have the same names in the same order, and values of the same lengths.
# Of such messages the filter can only tell those apart that differ in values of its own names, and
# of these there are often few. So one of each kind is asked about, and its answer is that of all:
# what an expression means is said in one place. Of 800 messages of 32 kinds, an answer takes 0.4 µs
# with all that is read, instead of 1.4 to 2; if all of them differ, a tenth more than one by one.


def _answers_of_size(
    buffer: mmap.mmap,
    start: Ints,
    size: int,
    names: frozenset[bytes],
    wants: Callable[[bytes], bool],
    tries: int,
) -> list[bool]:
    """The same of properties of one size: of those that are like the first, then of the rest."""
    if len(start) < ALIKE_MIN or not size or not tries:
        return [wants(buffer[at : at + size]) for at in start.tolist()]
    texts = gather(buffer, np.dtype((np.uint8, size)), start)
    least, span, counting = _shape(texts[0].tobytes(), names)
    like = texts - least <= span  # wraps below the least, so both bounds take one comparison
    if like.all():
        return _answers_alike(buffer, start, texts, counting, wants)
    rows = like.all(axis=1)
    answers = np.empty(len(start), np.bool_)
    answers[rows] = _answers_alike(buffer, start[rows], texts[rows], counting, wants)
    rest = start[~rows]
    answers[~rows] = _answers_of_size(buffer, rest, size, names, wants, tries - 1)
    found: list[bool] = answers.tolist()
    return found


def _answers_alike(
    buffer: mmap.mmap,
    start: Ints,
    texts: npt.NDArray[np.uint8],
    counting: list[int],
    wants: Callable[[bytes], bool],
) -> list[bool]:
    """The same of properties that differ in nothing but values."""
    size = texts.shape[1]
    if not counting:
        at = int(start[0])
        return [wants(buffer[at : at + size])] * len(texts)
    kind = np.dtype((np.void, len(counting)))
    kinds: list[Any] = texts.take(counting, axis=1).view(kind).ravel().tolist()
    examples = dict(zip(kinds, start.tolist(), strict=True))
    answers = {kind: wants(buffer[at : at + size]) for kind, at in examples.items()}
    return list(map(answers.__getitem__, kinds))


def _shape(
    text: bytes, names: frozenset[bytes]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], list[int]]:
    """What properties that are like a text have at each place: the least byte, and how far above it
    they may be; and at which places the values of names are.

    All is as in the text, but that a value may have any bytes that separate nothing.
    """
    least = np.frombuffer(text, np.uint8).copy()
    span = np.zeros(len(text), np.uint8)
    counting: list[int] = []
    at = 0
    for pair in text.split(_PAIR_END):
        name, _, value = pair.partition(_NAME_END)
        start, end = at + len(name) + 1, at + len(pair)
        if value and _NAME_END not in value:
            least[start:end] = _VALUE_BYTE_MIN
            span[start:end] = 255 - _VALUE_BYTE_MIN
        if name in names:
            counting.extend(range(start, end))
        at = end + 1
    return least, span, counting
