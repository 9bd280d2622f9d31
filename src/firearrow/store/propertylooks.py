"""Which entries of a queue lead to messages whose properties are wanted.

Only heads, lengths and properties of the records are read, and hundreds at a time as columns: that
costs a quarter of reading them one by one, and of few a multiple of it. Most of them have the same
properties with values of the same lengths, and few different ones of those that count, so each of
these is asked about once (see below).
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Callable, Iterator
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
"""Pairs of a queue and a filter, of which answers are kept, in up to 64 KiB each."""
KINDS_MAX: Final = 128
"""Kinds of messages of which a pair keeps the answers from one look to the next."""
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
_ENTRY: Final = np.dtype((np.void, ENTRY_BYTES))

Bools = npt.NDArray[np.bool_]


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


class _Asked:
    """What a filter has answered, by the shape of properties and the values of its own names."""

    def __init__(self, wanted: PropertyFilter) -> None:
        self.names = wanted.names
        self.wants = wanted.wants
        self._answers: dict[bytes, dict[bytes, bool]] = {}

    def of_shape(self, shape: bytes) -> dict[bytes, bool]:
        """The answers of one shape, to be added to."""
        return self._answers.setdefault(shape, {})

    def forget_many(self) -> None:
        """Forget all answers when there are too many to be kept."""
        if sum(map(len, self._answers.values())) > KINDS_MAX or len(self._answers) > KINDS_MAX:
            self._answers.clear()


class _Kept(NamedTuple):
    """Entries from an offset on that were looked at, which of them are wanted, and why."""

    queue_offset: int
    entries: bytes
    chosen: Chosen
    asked: _Asked


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
        asked = _Asked(wanted) if kept is None else kept.asked
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
                answers = _answers(segment, part, asked)
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


def _answers(segment: Segment, part: bytes, asked: _Asked) -> Bools:
    """Whether records of entries, as far as they are in one file, are wanted or can't be looked
    at."""
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
        return _answers_of(segment.map, start, size, asked)
    answers = np.ones(count, np.bool_)
    answers[sound] = _answers_of(segment.map, start[sound], size[sound], asked)
    return answers


def _answers_of(buffer: mmap.mmap, start: Ints, size: Ints, asked: _Asked) -> Bools:
    """Whether messages whose properties are there are wanted."""
    names = asked.names
    if names is None:
        pairs = zip(start.tolist(), (start + size).tolist(), strict=True)
        return np.array([asked.wants(buffer[a:b]) for a, b in pairs], np.bool_)
    if (size == size[:1]).all():
        return _answers_of_size(buffer, start, int(size[0]), names, asked, ALIKE_TRIES)
    answers = np.empty(len(size), np.bool_)
    for one in set(size.tolist()):
        rows = (size == one).nonzero()[0]
        answers[rows] = _answers_of_size(buffer, start[rows], one, names, asked, ALIKE_TRIES)
    return answers


# Most messages of a topic have the same names in the same order, and values of the same lengths.
# Of such messages the filter can only tell those apart that differ in values of its own names, and
# of these there are often few. So one of each kind is asked about, and its answer is that of all:
# what an expression means is said in one place. Of 800 messages of 32 kinds, an answer takes 0.3 µs
# with all that is read, instead of 1.4 to 2; if all of them differ, a tenth more than one by one.


def _answers_of_size(
    buffer: mmap.mmap, start: Ints, size: int, names: frozenset[bytes], asked: _Asked, tries: int
) -> Bools:
    """The same of properties of one size: of those that are like the first, then of the rest."""
    if len(start) < ALIKE_MIN or not size or not tries:
        wants = asked.wants
        return np.array([wants(buffer[at : at + size]) for at in start.tolist()], np.bool_)
    texts = gather(buffer, np.dtype((np.uint8, size)), start)
    least, span, counting = _shape(texts[0].tobytes(), names)
    like = texts - least <= span  # wraps below the least, so both bounds take one comparison
    known = asked.of_shape(least.tobytes())
    if like.all():
        return _answers_alike(buffer, start, texts, counting, asked.wants, known)
    rows = like.all(axis=1)
    answers = np.empty(len(start), np.bool_)
    answers[rows] = _answers_alike(buffer, start[rows], texts[rows], counting, asked.wants, known)
    answers[~rows] = _answers_of_size(buffer, start[~rows], size, names, asked, tries - 1)
    return answers


def _answers_alike(
    buffer: mmap.mmap,
    start: Ints,
    texts: npt.NDArray[np.uint8],
    counting: list[int],
    wants: Callable[[bytes], bool],
    known: dict[bytes, bool],
) -> Bools:
    """The same of properties that differ in nothing but values; ``known`` has answers, and gets
    those that are new."""
    size = texts.shape[1]
    if not counting:
        at = int(start[0])
        return np.full(len(texts), wants(buffer[at : at + size]), np.bool_)
    kind = np.dtype((np.void, len(counting)))
    kinds: list[Any] = texts.take(counting, axis=1).view(kind).ravel().tolist()
    answers: list[Any] = list(map(known.get, kinds))
    if None in answers:
        examples = dict(zip(kinds, start.tolist(), strict=True))
        for new in examples.keys() - known.keys():
            at = examples[new]
            known[new] = wants(buffer[at : at + size])
        answers = list(map(known.__getitem__, kinds))
    return np.array(answers, np.bool_)


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
