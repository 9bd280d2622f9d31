"""A stretch of the CommitLog as columns: the only code that walks the log.

``scan`` follows the chain of record sizes from a known start. It then reads every fixed field of all records at once,
as numpy columns. Body, topic and properties are columns of (start, size) pairs. Live dispatch, recovery, rebuild,
verification and the offline readers are all built on it. The store's values from properties, tag codes and index keys,
are also computed for all records together (``Properties``).

The layout of a record is in ``firearrow.message.record``. Hosts are 8 or 20 bytes, so the fields after the born host
and after the store host are gathered from computed positions.

A record is taken only if its magic is one of the two, its size equals the sum of its parts and the whole record is
inside the stretch. ``Columns.stop`` is the reason for the end of the walk.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from firearrow.javanumbers import INT_MAX
from firearrow.message.names import java_hash
from firearrow.message.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, crc32
from firearrow.message.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from firearrow.store.crc import ROW_BYTES_MAX, ROWS_MIN, crc32_of_rows

Buffer = bytes | bytearray | memoryview | mmap.mmap
Ints = npt.NDArray[np.int64]

RECORDS_MAX: Final = 8192  # limit of the memory of one scan; a caller continues at ``Columns.end``

_EVENLY_MIN: Final = 8  # number of positions below which the check for even distances takes longer
_EACH_SIZE_MIN: Final = 64  # number of records per topic size below which each record is read separately
_RUN_MIN: Final = 32  # after this number of records of one size as many more are likely

_SIZE_MAGIC: Final = struct.Struct(">ii")
_SIZE_AND_MAGIC: Final = np.dtype(">i8")
_STORED: Final = np.dtype(">i8")
_TAIL: Final = np.dtype([("reconsume", ">i4"), ("prepared", ">i8"), ("body_size", ">i4")])
_FIXED: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_ms", ">i8"),
        ("born_host", "u8"),
        ("store_ms", ">i8"),
        ("store_host", "u8"),
        *((name, _TAIL[name]) for name in _TAIL.names or ()),
    ]
)
assert _FIXED.itemsize + 3 == RECORD_BYTES_MIN, "all but three bytes of the least record"
_FIXED_BYTES: Final = np.dtype((np.void, _FIXED.itemsize))  # copied a fifth faster than by fields
_U16: Final = np.dtype(">u2")


class Stop(Enum):
    """Reason why a scan ended."""

    END = "the stretch ended, perhaps inside a record"
    FULL = "as many records as one scan takes"
    BLANK = "the end of the file is marked by a blank"
    ZERO = "nothing has been written from here on"
    INVALID = "the bytes are no record"


class Columns:
    """``n`` records as columns of length ``n``; ``start`` columns are positions in the buffer.

    ``end`` is the position after the last record taken, ``stop`` why it is the last.
    """

    __slots__ = (
        "_fixed",
        "_tail",
        "body_size",
        "body_start",
        "buffer",
        "end",
        "physical_offset",
        "position",
        "properties_size",
        "properties_start",
        "queue_id",
        "queue_offset",
        "size",
        "stop",
        "store_ms",
        "sys_flag",
        "topic_size",
        "topic_start",
    )

    def __init__(self, buffer: Buffer, position: Ints, end: int) -> None:
        """Read the records at ``position``. Parts that a broken record places after ``end`` are read at the edge, and
        ``valid`` shows that.
        """
        self.buffer: Final = buffer
        self.end: int = end
        self.stop: Stop = Stop.END
        self.position: Ints = position
        fixed = self._fixed = _fixed_parts(buffer, position, end)
        self.sys_flag: Ints = fixed["sys_flag"].astype(np.int64)
        hosts = self.sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)
        if np.count_nonzero(hosts):
            self._locate_tail(hosts, end)
        else:
            self.store_ms: Ints = fixed["store_ms"].astype(np.int64)
            self._tail = fixed
            self.body_start: Ints = position + _FIXED.itemsize
        self.size: Ints = fixed["size"].astype(np.int64)
        self.queue_id: Ints = fixed["queue_id"].astype(np.int64)
        self.queue_offset: Ints = fixed["queue_offset"].astype(np.int64)
        self.physical_offset: Ints = fixed["physical_offset"].astype(np.int64)
        self.body_size: Ints = self._tail["body_size"].astype(np.int64)
        self._locate_text(max(end - 2, 0))

    def _locate_tail(self, hosts: Ints, end: int) -> None:
        """Find the fields after hosts that may have 20 bytes."""
        born = (hosts & BORN_HOST_V6 != 0) * 12
        tail_at = self.position + 72 + born + (hosts & STORE_HOST_V6 != 0) * 12
        np.minimum(tail_at, max(end - _TAIL.itemsize, 0), out=tail_at)
        stored = gather(self.buffer, _STORED, self.position + 56 + born)
        self.store_ms = stored.astype(np.int64)
        self._tail = gather(self.buffer, _TAIL, tail_at)
        self.body_start = tail_at + _TAIL.itemsize

    def _locate_text(self, edge: int) -> None:
        """Find topic and properties after the bodies."""
        length_at = self.body_start + np.maximum(self.body_size, 0)
        word = gather(self.buffer, _U16, np.minimum(length_at, edge)).astype(np.int64)
        long = self._fixed["magic"] == MAGIC_V2
        self.topic_size: Ints = word >> 8
        self.topic_start: Ints = length_at + 1
        if np.count_nonzero(long):
            self.topic_size[long] = word[long]
            self.topic_start += long
        size_at = self.topic_start + self.topic_size
        self.properties_start: Ints = size_at + 2
        size = gather(self.buffer, _U16, np.minimum(size_at, edge))
        self.properties_size: Ints = size.astype(np.int64)

    def __len__(self) -> int:
        return len(self.position)

    @property
    def magic(self) -> Ints:
        """Magic of each record; if ``scan`` did not find the positions, it may be anything."""
        return self._fixed["magic"].astype(np.int64)

    @property
    def body_crc(self) -> Ints:
        """The stored CRC of each body."""
        return self._fixed["body_crc"].astype(np.int64)

    @property
    def flag(self) -> Ints:
        """The application's flag."""
        return self._fixed["flag"].astype(np.int64)

    @property
    def born_ms(self) -> Ints:
        """Times (ms) when the senders made the messages."""
        return self._fixed["born_ms"].astype(np.int64)

    @property
    def born_host(self) -> npt.NDArray[np.uint64]:
        """The first eight bytes of each born host, unchanged; an IPv4 host has no more."""
        host: npt.NDArray[np.uint64] = self._fixed["born_host"].copy()
        return host

    @property
    def store_host(self) -> npt.NDArray[np.uint64]:
        """The eight bytes of each store host, unchanged; only where ``sys_flag`` has no IPv6."""
        host: npt.NDArray[np.uint64] = self._fixed["store_host"].copy()
        return host

    @property
    def ports_fit(self) -> npt.NDArray[np.bool_]:
        """Tell whether the ports of both hosts are possible: their four bytes hold no more than 65535.

        Java clients decode no record with another port, nor any later record in an answer.
        """
        born = (self.sys_flag & BORN_HOST_V6 != 0) * 12
        stored = (self.sys_flag & STORE_HOST_V6 != 0) * 12
        edge = max(self.end - 2, 0)
        upper = gather(self.buffer, _U16, np.minimum(self.position + 52 + born, edge))
        upper |= gather(self.buffer, _U16, np.minimum(self.position + 68 + born + stored, edge))
        fit: npt.NDArray[np.bool_] = upper == 0
        return fit

    @property
    def reconsume_times(self) -> Ints:
        """Counts of failed consumptions."""
        return self._tail["reconsume"].astype(np.int64)

    @property
    def prepared_offset(self) -> Ints:
        """Physical offset of the half, for a commit record."""
        return self._tail["prepared"].astype(np.int64)

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Tell whether each record's size is the sum of its parts."""
        total = self.properties_start + self.properties_size
        total -= self.position
        good: npt.NDArray[np.bool_] = (total == self.size) & (self.body_size >= 0)
        return good

    def topics(self) -> tuple[list[bytes], Ints]:
        """The topics that occur, as stored bytes, and for each record the number of its topic. Shorter topics come
        first; topics of one length are in order.
        """
        topics: list[bytes] = []
        column = np.zeros(len(self), np.int64)
        sizes = np.bincount(self.topic_size).nonzero()[0].tolist()
        if len(self) < len(sizes) * _EACH_SIZE_MIN and len(sizes) > 1:
            strings = self.slices(self.topic_start, self.topic_size)
            topics = sorted(sorted(set(strings)), key=len)
            return topics, _numbers(strings, topics, 0)
        for size in sizes:
            chosen = (self.topic_size == size).nonzero()[0]
            texts = gather(self.buffer, np.dtype((np.void, size)), self.topic_start[chosen])
            first = texts[0].tobytes()
            if texts.tobytes() == first * len(texts):
                column[chosen] = len(topics)
                topics.append(first)
                continue
            strings = texts.tolist()
            some = sorted(set(strings))
            column[chosen] = _numbers(strings, some, len(topics))
            topics += some
        return topics, column

    def slices(self, start: Ints, size: Ints) -> list[bytes]:
        """Copies of variable parts, one per record."""
        buffer = self.buffer
        pairs = zip(start.tolist(), (start + size).tolist(), strict=True)
        if isinstance(buffer, memoryview | bytearray):
            return [bytes(buffer[a:b]) for a, b in pairs]
        return [buffer[a:b] for a, b in pairs]

    @property
    def breaks_off(self) -> bool:
        """Tell whether the last record ends in zeros after its body, where no CRC would show it. A process that is
        killed while it copies a record leaves such an end, and no client writes one.
        """
        [topic] = self.slices(self.topic_start[-1:], self.topic_size[-1:])
        [properties] = self.slices(self.properties_start[-1:], self.properties_size[-1:])
        return b"\0" in topic or properties.endswith(b"\0")

    def body_crc_holds(self) -> npt.NDArray[np.bool_]:
        """Tell whether the CRC of each body equals the stored one."""
        holds: npt.NDArray[np.bool_] = self._body_crcs() & 0x7FFFFFFF == self.body_crc
        return holds

    def _body_crcs(self) -> Ints:
        size = int(self.body_size[0]) if len(self) >= ROWS_MIN else 0
        if 0 < size <= ROW_BYTES_MAX and bool((self.body_size == size).all()):
            bodies = gather(self.buffer, np.dtype((np.void, size)), self.body_start)
            return crc32_of_rows(bodies.view(np.uint8).reshape(-1, size)).astype(np.int64)
        view = memoryview(self.buffer)
        starts, ends = self.body_start.tolist(), (self.body_start + self.body_size).tolist()
        parts = map(view.__getitem__, map(slice, starts, ends))  # no Python loop: there are many bodies
        return np.fromiter(map(crc32, parts), np.int64, len(self))


def _fixed_parts(buffer: Buffer, position: Ints, end: int) -> npt.NDArray[Any]:
    """The fixed part of each record, in its form without IPv6 hosts.

    It is zeros where ``end`` cuts it off: such bytes are no record.
    """
    if not len(position) or int(position[-1]) + _FIXED.itemsize <= end:
        return gather(buffer, _FIXED_BYTES, position).view(_FIXED)
    fixed = np.zeros(len(position), _FIXED)
    whole = position + _FIXED.itemsize <= end
    fixed[whole] = gather(buffer, _FIXED_BYTES, position[whole]).view(_FIXED)
    return fixed


def scan(buffer: Buffer, start: int, end: int, records_max: int = RECORDS_MAX) -> Columns:
    """Read the records of ``buffer[start:end]``; ``start`` must be the start of a record."""
    positions, stop = _walk(buffer, start, end, records_max)
    return scan_at(buffer, positions, start, end, stop)


def scan_at(buffer: Buffer, positions: Ints, start: int, end: int, stop: Stop = Stop.END) -> Columns:
    """Read the records with known positions, side by side from ``start`` on.

    ``stop`` is the reason for the end of the positions.
    """
    columns = Columns(buffer, positions, end)
    valid = columns.valid
    if not valid.all():
        columns = Columns(buffer, positions[: int(np.argmin(valid))], end)
        stop = Stop.INVALID
    columns.stop = stop
    columns.end = int(columns.position[-1] + columns.size[-1]) if len(columns) else start
    assert columns.end <= max(start, end), "a record is taken only as a whole"
    return columns


def _walk(buffer: Buffer, start: int, end: int, records_max: int) -> tuple[Ints, Stop]:
    """The positions of the records, by their sizes and magics alone.

    Each record holds the place of the next one, so a loop must go from one to the other, at 0.3 µs a step. But records
    of one size often follow each other. Such a run is guessed, and checked as a whole, at 6 ns a record. A wrong guess
    ends the run at the first different record.
    """
    runs: list[Ints] = []
    room = records_max
    at = start
    while True:
        positions, at, is_run = _hop(buffer, at, end, room)
        runs.append(np.array(positions, np.int64))
        room -= len(positions)
        if not is_run:
            break
        size = at - positions[-1]
        runs.append(_run(buffer, at, size, min(end, at + room * size)))
        room -= len(runs[-1])
        assert room >= 0
        at += size * len(runs[-1])
    return (np.concatenate(runs) if len(runs) > 1 else runs[0]), _stop_at(buffer, at, end)


def _hop(buffer: Buffer, at: int, end: int, room: int) -> tuple[list[int], int, bool]:
    """Positions from ``at`` on until they end, or many records had one size and the next one probably has it. Also the
    position of that next record, and whether it begins such a run.
    """
    positions: list[int] = []
    unpack = _SIZE_MAGIC.unpack_from
    last = end - _SIZE_MAGIC.size
    before = alike = 0
    for _ in range(room):
        if at > last:
            break
        size, magic = unpack(buffer, at)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            break
        if not RECORD_BYTES_MIN <= size <= end - at:
            break
        if size == before:
            alike += 1
            if alike == _RUN_MIN:
                return positions, at, True
        elif alike:
            alike = 0
        before = size
        positions.append(at)
        at += size
    return positions, at, False


def _stop_at(buffer: Buffer, at: int, end: int) -> Stop:
    """Reason for the end of a walk at a position."""
    if at + _SIZE_MAGIC.size > end:
        return Stop.END
    size, magic = _SIZE_MAGIC.unpack_from(buffer, at)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return _what_else(size, magic)
    if size < RECORD_BYTES_MIN:
        return Stop.INVALID
    return Stop.END if at + size > end else Stop.FULL


def _run(buffer: Buffer, at: int, size: int, end: int) -> Ints:
    """The positions of the records of one size and magic that follow each other from ``at`` on."""
    positions = np.arange(at, end - size + 1, size, dtype=np.int64)
    words = gather(buffer, _SIZE_AND_MAGIC, positions)
    alike = words == words[0]
    return positions if alike.all() else positions[: int(np.argmin(alike))]


def _numbers(strings: list[bytes], some: list[bytes], first: int) -> Ints:
    """The number of each string in ``some``, counted from ``first``."""
    numbers = dict(zip(some, range(first, first + len(some)), strict=True))
    return np.fromiter(map(numbers.__getitem__, strings), np.int64, len(strings))


def _what_else(size: int, magic: int) -> Stop:
    if magic == MAGIC_BLANK:
        return Stop.BLANK
    return Stop.ZERO if magic == 0 and size == 0 else Stop.INVALID


def gather(buffer: Buffer, dtype: np.dtype[Any], positions: Ints) -> npt.NDArray[Any]:
    """The items of ``dtype`` that begin at ``positions``, aligned or not; a copy."""
    count = len(positions)
    if not count:
        return np.empty(0, dtype)
    if count > _EVENLY_MIN:
        first = int(positions[0])
        step = int(positions[1]) - first
        if step > 0 and _is_progression(positions, step):
            evenly: npt.NDArray[Any] = np.ndarray((count,), dtype, buffer, first, (step,))
            return evenly.copy()
    room = len(buffer) - dtype.itemsize + 1
    everywhere: npt.NDArray[Any] = np.ndarray((room,), dtype, buffer, 0, (1,))
    return everywhere[positions]


def _is_progression(numbers: Ints, step: int) -> bool:
    """Tell whether each number is the one before it plus ``step``."""
    if int(numbers[-1]) - int(numbers[0]) != step * (len(numbers) - 1):
        return False
    return bool((numbers[1:] - numbers[:-1] == step).all())


# --- values from properties: tag codes and index keys ---
#
# Both are Java's ``String.hashCode`` (h = 31 h + c over UTF-16 units, 32-bit wrap). Over a batch that is a sum of bytes
# times powers of 31, so it is computed for all keys together. Only text beyond ASCII goes through ``java_hash``.
# ``topic#key`` is never built: the hash of a concatenation is ``hash(topic#) * 31**len(key) + hash(key)``. All values
# of a record's properties then take 0.2 µs where records have the same names at the same places, and 0.6 otherwise;
# ``java_hash`` takes 3 for one key.
#
# Index keys of a record, in the order of their puts: ``topic#UNIQ_KEY``, ``topic#k`` for each word of KEYS,
# ``topic#T#TAGS``; none for a rollback record.
#
# Source: RocketMQ's ``IndexService#buildIndex``, ``MessageExtBrokerInner#tagsString2tagsCode``.

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]

_PAIR_END: Final = 2
_NAME_END: Final = 1
_SPACE: Final = 0x20
PADDING: Final = bytes(16)
"""Bytes after the text of ``joined``, so that whole words can be read to its end."""


def _name_word(name: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(name.ljust(8, b"\0"), "little"))


_UNIQUE: Final = _name_word(b"UNIQ_KEY")
_KEYS: Final = _name_word(b"KEYS\x01")
_TAGS: Final = _name_word(b"TAGS\x01")
_DELAY: Final = _name_word(b"DELAY\x01")
_NAMES: Final = (b"UNIQ_KEY\x01", b"KEYS\x01", b"TAGS\x01", b"DELAY\x01")
_FIVE_BYTES: Final = np.uint64((1 << 40) - 1)
_SIX_BYTES: Final = np.uint64((1 << 48) - 1)
_TAG_MARK: Final = b"T#"
_ZERO: Final = np.uint8(ord("0"))
_LEVEL_DIGITS: Final = 2
_LEVEL_MAX: Final = INT_MAX  # no broker accepts a higher level
_LEVEL_CHARS_MAX: Final = 1000  # Python reads no number of some thousand digits


class TextSpans(NamedTuple):
    """Pieces of a text, each with the number of its record, its start and its size."""

    record: Ints
    start: Ints
    size: Ints

    def take(self, chosen: npt.NDArray[np.bool_] | Ints) -> TextSpans:
        """Some of the pieces."""
        return TextSpans(self.record[chosen], self.start[chosen], self.size[chosen])


_NO_SPANS: Final = TextSpans(*(np.empty(0, np.int64) for _ in range(3)))


class IndexKeys(NamedTuple):
    """Keys to put into the index, in order: the number of their record, and their hash (>= 0)."""

    record: Ints
    hash: Ints


class Properties:
    """The properties of a batch of records as one text, with the three values that the store uses: unique key, keys,
    tags.
    """

    unique: TextSpans
    keys: TextSpans
    tags: TextSpans

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._text, row_bytes = joined(columns)
        self._end = len(self._text) - len(PADDING)
        self._high = int(self._text.max()) > 127
        evenly = self._evenly(row_bytes) if row_bytes else None
        self._delays: TextSpans | None = None  # until the first use, where they cost something
        if evenly is None:
            self.unique, self.keys, self.tags = self._one_by_one()
        else:
            self.unique, self.keys, self.tags, self._delays = evenly

    def _evenly(self, row_bytes: int) -> tuple[TextSpans, TextSpans, TextSpans, TextSpans] | None:
        """The values if all records have the same names at the same places; otherwise None."""
        count = self._end // row_bytes
        assert count * row_bytes == self._end, "all rows have one length"
        ends = self._text[: self._end] == _PAIR_END
        if ends.tobytes() != ends[:row_bytes].tobytes() * count:
            return None
        values = dict.fromkeys(_NAMES, (0, 0))
        at = 0
        for pair in self._text[: row_bytes - 1].tobytes().split(b"\x02"):
            name = pair[: pair.find(b"\x01") + 1] or pair
            if name:
                form = np.dtype((np.void, len(name)))
                names = np.ndarray((count,), form, self._text.data, at, (row_bytes,))
                if names.tobytes() != name * count:
                    return None
            if name in values and len(pair) > len(name):
                values[name] = at + len(name), len(pair) - len(name)
            at += len(pair) + 1
        record = np.arange(count)
        unique, keys, tags, delays = (
            TextSpans(record, record * row_bytes + start, np.full(count, size)) if size else _NO_SPANS
            for start, size in values.values()
        )
        return unique, keys, tags, delays

    def _one_by_one(self) -> tuple[TextSpans, TextSpans, TextSpans]:
        """The values of pairs at any places."""
        start, size, words = self._pairs()
        short = words & _FIVE_BYTES
        unique = (words == _UNIQUE).nonzero()[0]
        unique = unique[self._text[start[unique] + 8] == _NAME_END]
        return (
            self._values(start[unique] + 9, size[unique] - 9),
            self._values(start[short == _KEYS] + 5, size[short == _KEYS] - 5),
            self._values(start[short == _TAGS] + 5, size[short == _TAGS] - 5),
        )

    def _pairs(self) -> tuple[Ints, Ints, npt.NDArray[np.uint64]]:
        """The start, the length and the first eight bytes of each pair."""
        ends = (self._text[: self._end] == _PAIR_END).nonzero()[0]
        start = np.zeros(len(ends), np.int64)
        start[1:] = ends[:-1] + 1
        words: npt.NDArray[np.uint64] = np.ndarray((self._end + 1,), np.dtype("<u8"), self._text.data, 0, (1,))[start]
        return start, ends - start, words

    def _values(self, start: Ints, size: Ints) -> TextSpans:
        """Values, in order; if a record repeats a name, the last one counts."""
        if len(size):
            start, size = start[size > 0], size[size > 0]  # a pair without value does not count
        if not len(size):
            return _NO_SPANS
        record_end = (self._columns.properties_size + 1).cumsum()
        record = record_end.searchsorted(start, side="right")
        keep = np.append(record[1:] != record[:-1], True)
        if np.count_nonzero(keep) == len(keep):
            return TextSpans(record, start, size)
        return TextSpans(record[keep], start[keep], size[keep])

    def holding(self, text: bytes) -> Ints:
        """The records whose properties contain a text."""
        texts = self._text.tobytes()
        found: list[int] = []
        at = texts.find(text)
        while at >= 0:
            found.append(at)
            at = texts.find(text, at + len(text))
        if not found:
            return _NO_SPANS.record
        record_end = (self._columns.properties_size + 1).cumsum()
        return np.unique(record_end.searchsorted(found, side="right"))

    def tag_codes(self) -> Ints:
        """The ConsumeQueue's tag code of each record: the hash of its TAGS, 0 without."""
        codes = np.zeros(len(self._columns), dtype=np.int64)
        if len(self.tags.record):
            codes[self.tags.record] = self._hash(self.tags).astype(np.int32)
        return codes

    def delay_levels(self) -> Ints:
        """The number that each record has as DELAY, 0 without one."""
        if self._delays is None:
            start, size, words = self._pairs()
            named = words & _SIX_BYTES == _DELAY
            self._delays = self._values(start[named] + 6, size[named] - 6)
        levels = np.zeros(len(self._columns), dtype=np.int64)
        record, start, size = self._delays
        if not len(record):
            return levels
        tens, ones = self._text[start] - _ZERO, self._text[start + size - 1] - _ZERO
        usual = (size <= _LEVEL_DIGITS) & (tens <= 9) & (ones <= 9)  # less than "0" wraps around
        levels[record] = np.where(size == 1, ones, tens.astype(np.int64) * 10 + ones)
        for number in (~usual).nonzero()[0].tolist():
            at = int(start[number])
            text = self._text[at : at + int(size[number])].tobytes().decode("utf-8", "replace")
            is_number = text.isdecimal() and len(text) <= _LEVEL_CHARS_MAX
            levels[record[number]] = min(int(text), _LEVEL_MAX) if is_number else 0
        return levels

    def index_keys(self, topics: list[bytes], topic_number: Ints) -> IndexKeys:
        """The index keys of the records, given the topics and the number of each record's."""
        mask = self._columns.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
        kinds = [(self.unique, b""), (self._split(self.keys), b""), (self.tags, _TAG_MARK)]
        if np.count_nonzero(mask) < len(mask):
            kinds = [(spans.take(mask[spans.record]), mark) for spans, mark in kinds]
        kinds = [(spans, mark) for spans, mark in kinds if len(spans.record)]
        if not kinds:
            return IndexKeys(_NO_SPANS.record, _NO_SPANS.record)
        words = [self._prefixed(spans, _prefix_column(topics, topic_number, mark)) for spans, mark in kinds]
        record, word = kinds[0][0].record, words[0]
        if len(kinds) > 1:
            record = np.concatenate([spans.record for spans, _ in kinds])
            order = record.argsort(kind="stable")
            record, word = record[order], np.concatenate(words)[order]
        hashes = np.abs(word.view(np.int32).astype(np.int64))
        hashes[hashes == 1 << 31] = 0
        return IndexKeys(record, hashes)

    def _prefixed(self, spans: TextSpans, prefixes: Words) -> Words:
        """Hashes of prefix + value."""
        hashes = self._hash(spans)
        lengths = self._utf16_lengths(spans)
        return prefixes[spans.record] * _powers(int(lengths.max()))[lengths] + hashes

    def _split(self, spans: TextSpans) -> TextSpans:
        """The words of KEYS values, in order."""
        if not len(spans.record) or not np.count_nonzero(self._text == _SPACE):
            return spans
        space = (self._text == _SPACE).nonzero()[0]
        within = spans.start.searchsorted(space, side="right") - 1  # spans are in order
        space = space[(within >= 0) & (space < (spans.start + spans.size)[within])]
        start = np.sort(np.concatenate((spans.start, space + 1)))
        size = np.sort(np.concatenate((spans.start + spans.size, space))) - start
        record = spans.record[spans.start.searchsorted(start, side="right") - 1]
        return TextSpans(record, start, size).take(size > 0)

    def _hash(self, spans: TextSpans) -> Words:
        """The hash of each piece, as unsigned 32 bits."""
        longest = int(spans.size.max())
        if longest == int(spans.size.min()):
            hashes = self._hash_equal(spans.start, longest)
        else:
            hashes = self._hash_ragged(spans, longest)
        if self._high:
            self._rehash_unicode(spans, hashes)
        return hashes

    def _hash_equal(self, start: Ints, size: int) -> Words:
        piece = np.dtype((np.void, size))
        room = len(self._text) - size + 1
        pieces = np.ndarray((room,), piece, self._text.data, 0, (1,))[start]
        matrix = pieces.view(np.uint8).reshape(len(start), size)
        hashes: Words = matrix.astype(np.uint32) @ _powers(size)[:size][::-1]
        return hashes

    def _hash_ragged(self, spans: TextSpans, longest: int) -> Words:
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(spans.size)[:-1]))
        place = np.arange(int(spans.size.sum())) - np.repeat(first, spans.size)
        power = _powers(longest)[np.repeat(spans.size, spans.size) - 1 - place]
        terms = self._text[np.repeat(spans.start, spans.size) + place] * power
        hashes: Words = np.add.reduceat(terms, first, dtype=np.uint32)
        return hashes

    def _rehash_unicode(self, spans: TextSpans, hashes: Words) -> None:
        """Hash the pieces that are not ASCII again, by their UTF-16 units."""
        for number, piece in self._unicode_pieces(spans):
            hashes[number] = java_hash(piece) & 0xFFFFFFFF

    def _utf16_lengths(self, spans: TextSpans) -> Ints:
        if not self._high:
            return spans.size
        lengths = spans.size.copy()
        for number, piece in self._unicode_pieces(spans):
            lengths[number] = len(piece.encode("utf-16-be")) // 2
        return lengths

    def _unicode_pieces(self, spans: TextSpans) -> list[tuple[int, str]]:
        text = self._text.tobytes()
        pieces = [text[a : a + n] for a, n in zip(spans.start.tolist(), spans.size.tolist(), strict=True)]
        return [
            (number, piece.decode("utf-8", "replace")) for number, piece in enumerate(pieces) if not piece.isascii()
        ]


def joined(columns: Columns) -> tuple[Bytes, int]:
    """The property strings of all records, a pair's end after each, and padding. The number is the length of each with
    its end, if all have the same length, otherwise 0.
    """
    count = len(columns)
    size = int(columns.properties_size[0]) if count else 0
    if size and np.count_nonzero(columns.properties_size == size) == count:
        text = np.zeros(count * (size + 1) + len(PADDING), np.uint8)
        rows = text[: -len(PADDING)].reshape(count, size + 1)
        strings = gather(columns.buffer, np.dtype((np.void, size)), columns.properties_start)
        rows[:, :size] = strings.view(np.uint8).reshape(count, size)
        rows[:, size] = _PAIR_END
        return text, size + 1
    strings_of_all = columns.slices(columns.properties_start, columns.properties_size)
    return np.frombuffer(b"\x02".join([*strings_of_all, PADDING]), np.uint8), 0


_KEPT_MAX: Final = 65_536

V = TypeVar("V")


class ByTopic(dict[bytes, V]):
    """Results of ``of`` for each topic, by the topic's bytes in records.

    Forgets all of them when there are too many.
    """

    def __init__(self, of: Callable[[bytes], V]) -> None:
        super().__init__()
        self._of = of

    def __missing__(self, topic: bytes) -> V:
        if len(self) >= _KEPT_MAX:
            self.clear()
        self[topic] = found = self._of(topic)
        return found


@lru_cache(maxsize=64)
def _power_table(bits: int) -> Words:
    powers = np.ones(1 << bits, np.uint32)
    for n in range(bits):
        half = 1 << n
        powers[half : 2 * half] = powers[:half] * np.uint32(pow(31, half, 1 << 32))
    return powers


def _powers(longest: int) -> Words:
    """31**n mod 2**32 for n = 0 .. at least ``longest``."""
    return _power_table(max(6, longest.bit_length()))


def _prefix_hash(topic: bytes, mark: bytes) -> int:
    """Hash of the text before a key: the topic and a mark."""
    return java_hash((topic + b"#" + mark).decode("utf-8", "replace")) & 0xFFFFFFFF


_PREFIXES: Final = {mark: ByTopic(partial(_prefix_hash, mark=mark)) for mark in (b"", _TAG_MARK)}


def _prefix_column(topics: list[bytes], topic_number: Ints, mark: bytes) -> Words:
    prefixes = map(_PREFIXES[mark].__getitem__, topics)
    column: Words = np.fromiter(prefixes, np.uint32, len(topics))[topic_number]
    return column
