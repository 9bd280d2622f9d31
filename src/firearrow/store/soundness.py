"""Whether records are what the entries of a queue mean: what a pull hands out must frame.

Clients find the records of an answer one after another by their lengths. At one that they can't
read they drop all behind it, and go on after the whole answer: nothing of that comes again.

Most pulls have records that are alike, which is seen in a few operations for all of them
(``are_alike``); else each costs a step of a loop (``faults_of``). Only what is not plain is taken
apart (``fault_of``).

Source: upstream ``MessageDecoder#decodes``, which ends at the first record that it can't read, and
``#clientDecode``, which does not look at the CRC. Java: DefaultMessageStore#getMessage looks at
nothing of a record.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np

from firearrow.errors import MessageError
from firearrow.message.compress import is_as_said
from firearrow.message.names import is_lmq
from firearrow.message.record import body_crc, read_frame
from firearrow.message.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    HOSTS_V6_MASK,
    INNER_BATCH,
    STORE_HOST_V6,
)
from firearrow.store.queues import ENTRY_BYTES, ConsumeQueue
from firearrow.store.scan import Ints

log = logging.getLogger(__name__)

_NAMED_MAX: Final = 1024  # a store with more damage than that has another problem
ALIKE_MIN: Final = 4
"""Records, below which it is faster to look at each."""
_ALIKE_MAX: Final = 128  # and above which a shape takes too much memory
_NUMBERS: Final = 4096
_BODY_COUNTS: Final = COMPRESSED | INNER_BATCH  # clients take the body apart as they decode
_SPECIAL: Final = HOSTS_V6_MASK | _BODY_COUNTS


class _Hosts(NamedTuple):
    """What follows from how many of the hosts are of IPv6.

    ``unpack`` gives size, magic, body CRC, queue offset, physical offset, system flag, the upper
    halves of both ports (zero) and the size of the body.
    """

    unpack: Callable[[bytes, int], tuple[Any, ...]]
    head_bytes: int
    ports_at: tuple[int, int]


def _hosts(born: int, store: int) -> _Hosts:
    head = struct.Struct(f">iii8xqqi{born + 12}xH{store + 14}xH14xi")
    return _Hosts(head.unpack_from, head.size, (born + 52, born + store + 68))


_HOSTS: Final = {
    0: _hosts(0, 0),
    BORN_HOST_V6: _hosts(12, 0),
    STORE_HOST_V6: _hosts(0, 12),
    HOSTS_V6_MASK: _hosts(12, 12),
}


class Fault(NamedTuple):
    """What is wrong with a record. If it ``frames``, it harms only who takes its body apart."""

    why: str
    frames: bool = False


class Damaged:
    """The damaged records that were met: how many, and each named once in the log."""

    def __init__(self) -> None:
        self.count = 0
        self._named: dict[int, None] = {}

    def note(self, physical_offset: int, place: str, why: str) -> None:
        """Name a record, unless it was named before; only so many are remembered."""
        if physical_offset in self._named:
            return
        if len(self._named) >= _NAMED_MAX:
            del self._named[next(iter(self._named))]
        self._named[physical_offset] = None
        self.count += 1
        log.error(
            "record is damaged",
            extra={"physical_offset": physical_offset, "place": place, "reason": why},
        )


class Places(NamedTuple):
    """Where entries of a queue say that its records are, as columns."""

    physical_offset: tuple[int, ...]
    size: tuple[int, ...]
    queue_offset: tuple[int, ...]


def faults_of(
    records: bytes, places: Places, queue: ConsumeQueue, *, check_crc: bool
) -> dict[int, Fault]:
    """What is wrong with records, side by side as they would go out, by their number.

    Bodies count only with ``check_crc``, or where clients take them apart as they decode.
    """
    hosts = records[39] & HOSTS_V6_MASK
    if hosts and min(places.size) < _HOSTS[hosts].head_bytes:
        hosts = 0
    shared = _HOSTS[hosts]
    unpack, head_bytes = shared.unpack, shared.head_bytes
    topic, magic = queue.topic_field, queue.magic
    faults: dict[int, Fault] = {}
    at = 0
    for number, (position, size, queue_offset) in enumerate(zip(*places, strict=True)):
        its_size, kind, crc, its_offset, its_position, flags, born, stored, body = unpack(
            records, at
        )
        topic_at = at + head_bytes + body
        end = topic_at + len(topic)
        following = at + size
        if (
            its_size != size
            or kind != magic
            or its_position != position
            or its_offset != queue_offset
            or flags & _SPECIAL != hosts
            or born
            or stored
            or body < 0
            or end + 2 > following
            or records[topic_at:end] != topic
            or end + 2 + (records[end] << 8 | records[end + 1]) != following
            or (check_crc and crc32(records[at + head_bytes : topic_at]) & 0x7FFFFFFF != crc)
        ):
            record = records[at:following]
            fault = fault_of(record, position, check_crc=check_crc) or _misplaced(
                record, places, number, queue
            )
            if fault is not None:
                faults[number] = fault
        at = following
    return faults


def are_alike(records: bytes, entries: bytes, queue_offset: int, queue: ConsumeQueue) -> bool:
    """Whether plain records of one shape are all sound: those of entries from an offset on.

    False also if they only may be.
    """
    count = len(entries) // ENTRY_BYTES
    flags = records[36:40]
    hosts = flags[3] & HOSTS_V6_MASK
    body_at = _HOSTS[hosts].head_bytes
    shape = _shape(
        int.from_bytes(entries[8:12], "big"),
        flags,
        records[body_at - 4 : body_at],
        queue.topic_field,
        queue.magic,
        count,
    )
    block, first = divmod(queue_offset, _NUMBERS)
    if shape is None or len(records) != shape.total or first + count > _NUMBERS:
        return False
    fields = np.frombuffer(records, np.uint8).take(shape.fields).tobytes()
    places = np.frombuffer(entries, np.uint8).take(shape.places).tobytes()
    return fields == places + _numbers(block)[8 * first : 8 * (first + count)] + shape.same


class _Shape(NamedTuple):
    """How to see that ``count`` records are of one shape.

    ``fields`` are the bytes of theirs that matter: the places as their entries have them (the bytes
    ``places`` of those), the queue offsets, and the ``same`` in all.
    """

    total: int
    fields: Ints
    places: Ints
    same: bytes


@lru_cache(maxsize=64)
def _shape(
    size: int, flags: bytes, body: bytes, topic: bytes, magic: int, count: int
) -> _Shape | None:
    """None where the parts don't make up the size, or more than they are matters."""
    hosts = _HOSTS[flags[3] & HOSTS_V6_MASK]
    topic_at = hosts.head_bytes + int.from_bytes(body, "big")
    end = topic_at + len(topic) + 2
    if end > size or flags[3] & _BODY_COUNTS or not ALIKE_MIN <= count <= _ALIKE_MAX:
        return None
    born, stored = hosts.ports_at
    same = [0, 1, 2, 3, *range(36, 40), born, born + 1, stored, stored + 1]
    same += [*range(4, 8), *range(hosts.head_bytes - 4, hosts.head_bytes), *range(topic_at, end)]
    expected = b"".join(
        (
            size.to_bytes(4, "big"),
            flags,
            bytes(4),
            magic.to_bytes(4, "big", signed=True),
            body,
            topic,
            (size - end).to_bytes(2, "big"),
        )
    )

    def of_each(columns: Iterable[int], step: int) -> Ints:
        bytes_of_each: Ints = np.add.outer(np.arange(count) * step, np.array(list(columns)))
        return bytes_of_each.ravel()

    place = [*range(28, 36), *range(4)]
    parts = [of_each(columns, size) for columns in (place, range(20, 28), same)]
    places = of_each(range(12), ENTRY_BYTES)
    return _Shape(size * count, np.concatenate(parts), places, expected * count)


@lru_cache(maxsize=64)
def _numbers(block: int) -> bytes:
    """The queue offsets of a block, as records have them."""
    return np.arange(block * _NUMBERS, (block + 1) * _NUMBERS, dtype=">i8").tobytes()


def fault_of(record: bytes, physical_offset: int, *, check_crc: bool) -> Fault | None:
    """What is wrong with a record that is to lie at a physical offset; None if nothing is."""
    try:
        frame = read_frame(record)
    except MessageError as error:
        return Fault(str(error))
    if frame.size != len(record):
        return Fault(f"its size is {frame.size}, its entry says {len(record)}")
    if frame.physical_offset != physical_offset:
        return Fault(f"it says that it lies at {frame.physical_offset}")
    if (check_crc or frame.sys_flag & _BODY_COUNTS) and body_crc(frame.body) != frame.body_crc:
        return Fault("its body doesn't match its CRC")
    if not is_as_said(frame.body, frame.sys_flag):
        return Fault("its body is not compressed as its system flag says", frames=True)
    return None


def _misplaced(record: bytes, places: Places, number: int, queue: ConsumeQueue) -> Fault | None:
    """Whether a record, which is as it was written, belongs elsewhere than where its entry stands.

    A message of light queues says its place in its topic's own queue. The entry of a message that
    was lost is that of the next one (``consumequeue``).
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
