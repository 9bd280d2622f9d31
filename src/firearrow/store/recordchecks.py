"""Checks that records fit the entries of a queue: the records of a pull's answer must frame.

Clients find the records of an answer one after another by their lengths. At an unreadable one they drop all following
ones, and continue after the whole answer: none of the dropped records comes again.

Most pulls are of records that were just appended, and are not checked (``CommitLog.own_from``). Messages are mostly
read one after another, and by several groups. So hundreds are checked at once (``plain_ahead``), and sound ones are
remembered for a while (``Checked``). Where that is impossible, the records of one pull are checked together
(``are_plain``) or, if they are few, one by one (``faults_of``). Only records that are not plain are decoded
(``fault_of``).

Checking each pull separately took 10 to 25 µs for its 32 records, each time and for each group. The rest of the store's
work for a pull takes as long, or less. The price of remembering is that later damage is only noticed after
``CHECK_AGAIN_SECONDS``.

Source: RocketMQ's ``MessageDecoder#decodes``, which ends at the first unreadable record, and ``#clientDecode``, which
does not check the CRC. Java: DefaultMessageStore#getMessage checks no part of a record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from mmap import mmap
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.errors import MessageError
from firearrow.events import Event
from firearrow.logs import Log
from firearrow.message.compress import is_as_said
from firearrow.message.names import is_lmq
from firearrow.message.record import MAGIC_V1, MAGIC_V2, body_crc, crc32, read_frame
from firearrow.message.sysflag import BORN_HOST_V6, COMPRESSED, HOSTS_V6_MASK, INNER_BATCH, STORE_HOST_V6
from firearrow.store.events import RecordDamaged
from firearrow.store.queues import ENTRIES, ConsumeQueue
from firearrow.store.scan import Columns, Ints

log: Final = Log(__name__)

_NAMED_MAX: Final = 1024  # a store with more damage than that has another problem
_NUMBERS: Final = 4096
_COUNT_MAX: Final = 1024  # records of one pull
_BEGINNING_BYTES: Final = 8  # show how a body is compressed
_BODY_COUNTS: Final = COMPRESSED | INNER_BATCH  # with these flags clients decompress or split the body as they decode
_SPECIAL: Final = HOSTS_V6_MASK | _BODY_COUNTS
PLAIN_MIN: Final = 16
"""Number of records below which a loop is faster than two dozen operations on arrays."""
AHEAD_ENTRIES: Final = 1024
"""Entries that are checked together, as a consumer that catches up soon wants all of them."""
AHEAD_BYTES: Final = 2 << 20
"""Limit of the stretch of the log that holds them: more might have to be read from the disk."""
_STRETCHES_MAX: Final = 16
assert AHEAD_ENTRIES <= _COUNT_MAX, "the numbers of a block reach as far as a check"


class _Hosts(NamedTuple):
    """Numbers that follow from the count of IPv6 hosts.

    ``unpack`` gives size, magic, body CRC, queue offset, physical offset, system flag, the upper
    halves of both ports (zero) and the size of the body; ``fields`` has most of these.
    """

    unpack: Callable[[bytes, int], tuple[Any, ...]]
    head_bytes: int
    ports_at: tuple[int, int]
    fields: np.dtype[np.void]


def _hosts(born: int, store: int) -> _Hosts:
    head = struct.Struct(f">iii8xqqi{born + 12}xH{store + 14}xH14xi")
    ports_at = born + 52, born + store + 68
    fields: dict[str, tuple[str, int]] = {
        "size": ("V4", 0),
        "magic": ("V4", 4),
        "queue_offset": ("V8", 20),
        "physical_offset": ("V8", 28),
        "flags": ("V4", 36),
        "born": ("V2", ports_at[0]),
        "stored": ("V2", ports_at[1]),
        "body": (">u4", head.size - 4),
    }
    formats, offsets = zip(*fields.values(), strict=True)
    assert head.size == 88 + born + store, "the head as a record has it"
    parts = {"names": [*fields], "formats": formats, "offsets": offsets, "itemsize": head.size}
    return _Hosts(head.unpack_from, head.size, ports_at, np.dtype(parts))  # type: ignore[call-overload]


_HOSTS: Final = {
    0: _hosts(0, 0),
    BORN_HOST_V6: _hosts(12, 0),
    STORE_HOST_V6: _hosts(0, 12),
    HOSTS_V6_MASK: _hosts(12, 12),
}


class Fault(NamedTuple):
    """Fault of a record. A record that ``frames`` is as its producer sent it.

    It harms only a consumer that decompresses or splits its body.
    """

    why: str
    frames: bool = False


class Damaged:
    """The damaged records that reads have met: their number, and each named once in the log.

    Records that were sent damaged are named, too. ``met`` is called for records whose ``size`` is known.
    """

    def __init__(self, met: Event[RecordDamaged] | None = None) -> None:
        self.count: int = 0
        self._met = met or Event()
        self._named: dict[int, None] = {}

    def forget(self, physical_offset: int) -> None:
        """Take a record for sound again."""
        self._named.pop(physical_offset, None)

    def note(self, physical_offset: int, place: str, fault: Fault, size: int = 0) -> None:
        """Name a record, unless it was named before; up to ``_NAMED_MAX`` are remembered."""
        if physical_offset in self._named:
            return
        if len(self._named) >= _NAMED_MAX:
            del self._named[next(iter(self._named))]
        self._named[physical_offset] = None
        assert len(self._named) <= _NAMED_MAX
        extra = {"physical_offset": physical_offset, "place": place, "reason": fault.why}
        if fault.frames:
            log.warning("message is sent alone: consumers can't decompress it", extra=extra)
        else:
            self.count += 1
            log.error("record is damaged", extra=extra)
            if size:
                self._met(RecordDamaged(physical_offset, size))


class Checked:
    """Records of a queue that were checked, by their queue offsets.

    ``vain`` is a stretch where a check of many at once has met records that are not plain: there the records of each
    pull are checked separately.
    """

    __slots__ = ("_sound", "vain")

    def __init__(self) -> None:
        self._sound: list[range] = []  # as many as there are groups that read in different places
        self.vain: range = range(0)

    def has(self, start: int, end: int) -> bool:
        """Tell whether all records from an offset to before another were found sound."""
        # A loop takes half the time of any().
        for stretch in self._sound:  # noqa: SIM110
            if stretch.start <= start and end <= stretch.stop:
                return True
        return False

    def end_of(self, start: int) -> int:
        """End of the sound stretch around an offset; the offset itself, if it is in none."""
        return max([s.stop for s in self._sound if s.start <= start < s.stop], default=start)

    def add(self, start: int, end: int) -> None:
        """Note that the records from an offset to before another were found sound."""
        assert start < end
        apart = [s for s in self._sound if s.stop < start or end < s.start]
        joined = [s for s in self._sound if s not in apart]
        start = min([start, *(s.start for s in joined)])
        end = max([end, *(s.stop for s in joined)])
        self._sound = [range(start, end), *apart[: _STRETCHES_MAX - 1]]


class Places(NamedTuple):
    """Places of records by the entries of queues, as columns."""

    physical_offset: tuple[int, ...]
    size: tuple[int, ...]
    queue_offset: tuple[int, ...]


def faults_of(records: bytes, places: Places, queue: ConsumeQueue, *, check_crc: bool) -> dict[int, Fault]:
    """Faults of records by their number; ``records`` are the records side by side, as in an answer.

    Bodies count only with ``check_crc``, or where clients decompress or split them as they decode.
    """
    hosts = records[39] & HOSTS_V6_MASK
    if hosts and min(places.size) < _HOSTS[hosts].head_bytes:
        hosts = 0
    shared = _HOSTS[hosts]
    unpack, head_bytes = shared.unpack, shared.head_bytes
    lmq = is_lmq(queue.topic)
    magic, topic = _topic_of_first(records, queue) if lmq else (queue.magic, queue.topic_field)
    faults: dict[int, Fault] = {}
    at = 0
    for number, (position, size, queue_offset) in enumerate(zip(*places, strict=True)):
        its_size, kind, crc, its_offset, its_position, flags, born, stored, body = unpack(records, at)
        topic_at = at + head_bytes + body
        end = topic_at + len(topic)
        its_end = at + size
        if (
            its_size != size
            or kind != magic
            or its_position != position
            or (its_offset != queue_offset and not lmq)
            or flags & _SPECIAL != hosts
            or born
            or stored
            or body < 0
            or end + 2 > its_end
            or records[topic_at:end] != topic
            or end + 2 + (records[end] << 8 | records[end + 1]) != its_end
            or (check_crc and crc32(records[at + head_bytes : topic_at]) & 0x7FFFFFFF != crc)
        ):
            record = records[at:its_end]
            fault = fault_of(record, position, check_crc=check_crc) or _misplaced(record, places, number, queue)
            if fault is not None:
                faults[number] = fault
        at = its_end
    return faults


def are_plain(records: bytes, entries: bytes, queue_offset: int, queue: ConsumeQueue) -> bool:
    """Tell whether records with one system flag are all sound: the records of entries from an offset on.

    False also in doubt.
    """
    place = np.frombuffer(entries, ENTRIES)
    size = place["size"].astype(np.int64)
    return _are_plain_at(records, size.cumsum() - size, size, place, queue_offset, queue)


def plain_ahead(log_file: mmap, base: int, entries: bytes, queue_offset: int, queue: ConsumeQueue) -> tuple[int, bool]:
    """Count the records from a queue offset on that are near each other in one file of the log.

    The file begins at ``base``. The second value is True if all are sound, and False in doubt. For hundreds at once a
    record costs 0.1 µs, for 32 of one pull 0.5 µs.
    """
    place = np.frombuffer(entries, ENTRIES)
    size = place["size"].astype(np.int64)
    at = place["physical_offset"].astype(np.int64) - base
    first = int(at[0])
    near = (at >= first) & (at + size <= min(first + AHEAD_BYTES, len(log_file)))
    count = len(at) if near.all() else int(near.argmin())
    if count < PLAIN_MIN or first < 0:
        return count, False
    some = slice(0, count)
    sound = _are_plain_at(log_file, at[some], size[some], place[some], queue_offset, queue)
    return count, sound


def _are_plain_at(
    records: bytes | mmap, at: Ints, size: Ints, place: npt.NDArray[np.void], queue_offset: int, queue: ConsumeQueue
) -> bool:
    """Tell whether the records at some places are plain, have these sizes and fit their entries."""
    count, first = len(at), int(at[0])
    beginning = records[first : first + int(size[0])]
    flags = beginning[36:40]
    if len(flags) < 4 or flags[3] & _BODY_COUNTS:
        return False
    hosts = _HOSTS[flags[3] & HOSTS_V6_MASK]
    head_bytes = hosts.head_bytes
    if len(beginning) < head_bytes or at.max() + head_bytes > len(records):
        return False
    lmq = is_lmq(queue.topic)
    magic, topic = _topic_of_first(beginning, queue) if lmq else (queue.magic, queue.topic_field)
    head = _at(records, at, hosts.fields)
    # As bytes: nothing is converted from big-endian, and most of the work is one comparison of memory.
    if (
        head["size"].tobytes() != place["size"].tobytes()
        or head["physical_offset"].tobytes() != place["physical_offset"].tobytes()
        or head["magic"].tobytes() != magic.to_bytes(4, "big", signed=True) * count
        or head["flags"].tobytes() != flags * count
        or head["born"].tobytes() + head["stored"].tobytes() != bytes(4 * count)
        or not (lmq or head["queue_offset"].tobytes() == _numbers_of(queue_offset, count))
    ):
        return False
    end = head["body"].astype(np.int64)
    end += head_bytes
    topic_at = at + end
    end += len(topic) + 2
    if topic_at.max() > len(records) - len(topic) - 2:
        return False
    tail = _at(records, topic_at, _tail_of(len(topic)))
    end += tail["properties"]
    return tail["topic"].tobytes() == topic * count and end.tobytes() == size.tobytes()


def _at(records: bytes | mmap, at: Ints, fields: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Fields at each of some places, which must be within the records."""
    size = fields.itemsize
    anywhere = np.ndarray((len(records) - size + 1,), f"V{size}", records, 0, (1,))
    return anywhere[at].view(fields)  # copied faster as a whole than one by one


@lru_cache(maxsize=256)
def _tail_of(topic_bytes: int) -> np.dtype[np.void]:
    """The topic after the body, and the length of the following properties."""
    return np.dtype([("topic", f"V{topic_bytes}"), ("properties", ">u2")])


def _topic_of_first(records: bytes, queue: ConsumeQueue) -> tuple[int, bytes]:
    """Magic and topic of the first record of an LMQ: the others mostly have the same."""
    at = _HOSTS[records[39] & HOSTS_V6_MASK].head_bytes
    at += int.from_bytes(records[at - 4 : at], "big")
    magic = MAGIC_V2 if records[7] == MAGIC_V2 & 0xFF else MAGIC_V1
    length_bytes = 2 if magic == MAGIC_V2 else 1
    text_at = at + length_bytes
    topic = records[at : text_at + int.from_bytes(records[at:text_at], "big")]
    if len(topic) <= length_bytes or not topic[length_bytes:].isascii():
        return queue.magic, queue.topic_field  # no record has these: each is decoded
    return magic, topic


def _numbers_of(queue_offset: int, count: int) -> bytes:
    """Queue offsets that follow each other, in the form of records."""
    assert count <= _COUNT_MAX, "a block reaches no farther"
    block, first = divmod(queue_offset, _NUMBERS)
    return _numbers(block)[8 * first : 8 * (first + count)]


@lru_cache(maxsize=64)
def _numbers(block: int) -> bytes:
    """The queue offsets of a block, and as many after it as one pull may want."""
    first = block * _NUMBERS
    return np.arange(first, first + _NUMBERS + _COUNT_MAX, dtype=">i8").tobytes()


def last_undecodable(columns: Columns) -> int:
    """Physical offset of the last record that clients can't decompress although its flag says so; -1 for none."""
    packed = np.flatnonzero(columns.sys_flag & COMPRESSED)
    sizes = np.minimum(columns.body_size[packed], _BEGINNING_BYTES)
    beginnings = columns.slices(columns.body_start[packed], sizes)
    for at, body in zip(reversed(packed.tolist()), reversed(beginnings), strict=True):
        if not is_as_said(body, int(columns.sys_flag[at])):
            return int(columns.physical_offset[at])
    return -1


def fault_of(record: bytes, physical_offset: int, *, check_crc: bool) -> Fault | None:
    """Fault of a record that must be at a physical offset; None if it has none."""
    try:
        frame = read_frame(record)
    except MessageError as error:
        return Fault(str(error))
    if frame.size != len(record):
        return Fault(f"its size is {frame.size}, its entry says {len(record)}")
    if frame.physical_offset != physical_offset:
        return Fault(f"it says that it is at {frame.physical_offset}")
    if (check_crc or frame.sys_flag & _BODY_COUNTS) and body_crc(frame.body) != frame.body_crc:
        return Fault("its body doesn't match its CRC")
    if not is_as_said(frame.body, frame.sys_flag):
        return Fault("its body is not compressed as its system flag says", frames=True)
    return None


def _misplaced(record: bytes, places: Places, number: int, queue: ConsumeQueue) -> Fault | None:
    """Fault of an intact record that belongs elsewhere than its entry's place; None if it belongs there.

    A message of LMQs holds its place in its topic's own queue. The entry of a lost message repeats the entry of the
    next one (``consumequeue``).
    """
    if is_lmq(queue.topic):
        return None
    frame = read_frame(record)
    if frame.topic != queue.topic:
        return Fault(f"its topic is {frame.topic}")
    if frame.queue_offset == places.queue_offset[number]:
        return None
    if queue.min_offset <= frame.queue_offset < queue.max_offset:
        there = queue.entry(frame.queue_offset)
        if there[:2] == (places.physical_offset[number], places.size[number]):
            return None
    return Fault(f"its queue offset is {frame.queue_offset}")
