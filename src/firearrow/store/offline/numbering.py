"""Queue offsets of messages that the log has lost at its end, and placeholders that hold them.

A broker takes a queue's next offset from the end of its ConsumeQueue, and a start cuts that back to the end of the log.
Where the last messages of a queue are lost, the next messages would get their queue offsets again. A group that has
consumed the lost messages would never see the new ones. So a placeholder at the end of the log holds each such offset.

Entries of the ConsumeQueue show which offsets were assigned; where the log is damaged, so do the committed offsets of
groups.

Java: ConsumeQueueStore#recoverOffsetTable, ConsumeQueue#truncateDirtyLogicFiles
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from firearrow.message.names import SCHEDULE_TOPIC, fault_as_directory
from firearrow.message.record import BLANK_BYTES, RECORD_BYTES_MIN, encode_blank, encode_record, record_size
from firearrow.message.sysflag import TRANSACTION_ROLLBACK
from firearrow.state import DELAYS, LMQ_OFFSETS, OFFSETS, table_of
from firearrow.store.offline.metadata import configured_topics
from firearrow.store.offline.view import StoreView, stored_config
from firearrow.store.reading.entries import PRE_BLANK_SIZE, QueueKey, StoredQueue, entry_at
from firearrow.store.reading.rocksqueues import RocksQueue
from firearrow.store.retention import Consumed, committed_offsets
from firearrow.store.rocksformat import MAX

LOST_PROPERTY: Final = "FIREARROW_LOST"
HOLE_MAX: Final = 100_000
"""Limit of queue offsets in a row that placeholders hold; with more, something else is wrong."""

HELD_PROPERTY_BYTES: Final = len(LOST_PROPERTY) + 3
"""Bytes of the property of a placeholder at the end of the log."""


class Given(NamedTuple):
    """Queue offsets from ``first`` to before ``end`` that were assigned, and that the log has none of.

    ``groups`` have committed offsets after ``first``. ``alone`` says that the log has no message of the queue. Then one
    placeholder for the last offset is enough: a queue may begin anywhere.
    """

    topic: str
    queue_id: int
    first: int
    end: int
    groups: tuple[Consumed, ...]
    alone: bool

    def __str__(self) -> str:
        last = self.end - 1
        numbers = f"{self.first}" if last == self.first else f"{self.first} to {last}"
        text = f"queue {self.topic}-{self.queue_id} would give {numbers} again"
        for one in self.groups:
            text += f", group {one.group} is at {one.queue_offset}"
        return text

    @property
    def can_be_held(self) -> bool:
        """Tell whether the number of placeholders is reasonable."""
        return len(self.to_hold) <= HOLE_MAX

    @property
    def to_hold(self) -> range:
        """The queue offsets that need a placeholder."""
        return range(self.end - 1 if self.alone else self.first, self.end)


def given(
    view: StoreView, ends: Mapping[QueueKey, int], *, gone: frozenset[QueueKey] = frozenset(), believe_groups: bool
) -> list[Given]:
    """The queue offsets at the end of each queue whose messages the log lacks.

    ``ends`` are the queue offsets after the last message that the log has of a queue. Queues that are ``gone`` are lost
    unless a message holds them: for these the last offset that they ever had counts, also if the log has deleted its
    message. ``believe_groups`` says that messages may be lost together with their entries, so that the committed
    offsets of groups count.
    """
    groups: dict[QueueKey, list[Consumed]] = {}
    for consumed in _committed(view):
        groups.setdefault((consumed.topic, consumed.queue_id), []).append(consumed)
    topics = {topic for topic, _ in (*view.queues, *ends)} | (configured_topics(view) or set())
    named = {key for key in groups if key[0] in topics and key[1] >= 0 and fault_as_directory(key[0]) is None}
    found: list[Given] = []
    for key in sorted({*view.queues, *(named if believe_groups else ())}):
        low, queue = ends.get(key, 0), view.queues.get(key)
        ever = 0 if queue is None else told_end(view, queue, low, 0)
        end = ever
        if queue is not None and key not in gone:
            end = told_end(view, queue, low, view.log_start)
        beyond = tuple(one for one in groups.get(key, ()) if one.queue_offset > low)
        if believe_groups:  # where the log has deleted all messages, the queue may still know its end
            reached = [one.queue_offset for one in beyond]
            end = max([end, *(offset for offset in reached if key in ends or offset > ever)])
        if end > low:
            found.append(Given(key[0], key[1], low, end, beyond, alone=key not in ends))
    return found


def told_end(view: StoreView, queue: StoredQueue, low: int, physical_from: int) -> int:
    """The queue offset after the last entry from ``low`` on that can be right; 0 without one.

    Such an entry points into the log as it is or was, after the entry before ``low``.
    """
    last = view.log_end
    room = view.log_file_bytes
    after = entry_at(queue, low - 1)[0] if low else -1
    floor = max(physical_from, after + 1) if after < last else physical_from
    end = 0
    for numbers, entries in queue.all():
        offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"]
        good = (numbers >= low) & (sizes >= RECORD_BYTES_MIN) & (sizes != PRE_BLANK_SIZE)
        good &= (sizes <= room) & (offsets >= floor) & (offsets < last + room)
        if good.any():
            end = max(end, int(numbers[np.flatnonzero(good)[-1]]) + 1)
    row = queue.row(MAX) if isinstance(queue, RocksQueue) else None
    if row is not None and row[1] >= low and floor <= row[0] < last + room:
        end = max(end, row[1] + 1)
    assert not end or end > low, "only entries from there on count"
    return end


def _committed(view: StoreView) -> Iterator[Consumed]:
    """The committed offsets of groups, and of the delivery of delayed messages."""
    directory = view.root / "config"
    for part in (OFFSETS, LMQ_OFFSETS):
        content = stored_config(directory, part)
        yield from () if isinstance(content, str) else committed_offsets(content)
    for level, offset in table_of(stored_config(directory, DELAYS), "offsetTable").items():
        yield Consumed("delayed messages", SCHEDULE_TOPIC, int(level) - 1, int(offset))


class Held(NamedTuple):
    """Bytes for the file of the log that begins at ``base``."""

    base: int
    position: int
    data: bytes


def held_bytes(topic: str) -> int:
    """Bytes of a placeholder at the end of the log."""
    return record_size(topic, 0, HELD_PROPERTY_BYTES)


def fits_file(topic: str, file_bytes: int) -> bool:
    """Tell whether a log file of a size has room for a placeholder, and the blank after it."""
    return held_bytes(topic) + BLANK_BYTES <= file_bytes


def holding(numbers: Iterable[Given], at: int, file_bytes: int, base: int, stamp: Stamp) -> list[Held]:
    """The placeholders for queue offsets, from the log's end ``at`` on, in files of one size; one file begins at
    ``base``.
    """
    pieces: list[Held] = []
    data = bytearray()
    file_base = at - (at - base) % file_bytes
    start = at
    for one in numbers:
        size = held_bytes(one.topic)
        for number in one.to_hold:
            room = file_base + file_bytes - at
            if size + BLANK_BYTES > room:
                data += encode_blank(room) if room >= BLANK_BYTES else b""
                pieces.append(Held(file_base, start - file_base, bytes(data)))
                file_base += file_bytes
                at = start = file_base
                data.clear()
            record = placeholder(Lost(at, size, one.topic, one.queue_id, number), stamp)
            assert record is not None, "its size has room for the property"
            data += record
            at += size
    pieces.append(Held(file_base, start - file_base, bytes(data)))
    assert all(piece.position + len(piece.data) <= file_bytes for piece in pieces), "each piece is within its file"
    return [piece for piece in pieces if piece.data]


# --- covering damaged bytes of the log with records, so that the records after them stay reachable ---
#
# A broker that recovers reads the log record by record and cuts off everything from the first place
# that is no record. So a damaged stretch is filled to the byte with sound records:
#
# * in place of a message of a queue, a **placeholder** with its topic, queue and queue offset stands at
#   the same place with the same size, so that queue offsets stay consecutive and the queue's entry
#   stays right. It has no tags and no keys; consumers without a tag filter get it, with an empty body
#   and the property ``FIREARROW_LOST``;
# * **fillers** cover the bytes in between: records of the topic ``RMQ_SYS_REPAIRED`` that are
#   typed as a transaction's rollback, which no queue and no index takes;
# * the blank that ends a file covers bytes up to the end of a file.
#
# The entries of the ConsumeQueues show which messages were lost. A stretch of less than 92
# bytes has no room for a record, unless it reaches the end of its file.
#
# Source of the records that a start accepts: RocketMQ's ``CommitLog#recoverAbnormally``,
# ``#checkMessageAndReturnSize``, ``CommitLogDispatcherBuildConsumeQueue``.


FILLER_TOPIC: Final = "RMQ_SYS_REPAIRED"
_FILLER_BYTES_MAX: Final = 4 * 1024 * 1024
_PADDING_BYTES_MAX: Final = 16 * 1024  # a longer rest goes into the body


class Lost(NamedTuple):
    """A message whose bytes are damaged, as in its queue's entry."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.physical_offset + self.size


class Stamp(NamedTuple):
    """Fields of the covering records that come from their surroundings: store time and broker's address."""

    store_ms: int
    store_host: bytes


def cover(start: int, end: int, lost: Iterable[Lost], stamp: Stamp, *, file_end: bool) -> bytes | None:
    """The bytes for the stretch [start, end) of the log; None where no records fit it exactly.

    ``file_end`` says that the stretch reaches the end of its file.
    """
    parts: list[bytes] = []
    at = start
    for message in sorted(lost):
        between = _fillers(at, message.physical_offset, stamp)
        held = placeholder(message, stamp)
        if between is None or held is None:
            return None
        parts += (between, held)
        at = message.end
    rest = _blank(end - at) if file_end else _fillers(at, end, stamp)
    if rest is None:
        return None
    data = b"".join((*parts, rest))
    assert len(data) == end - start, "the records fill the stretch"
    return data


def fits(lost: Iterable[Lost], start: int, end: int) -> list[Lost]:
    """The lost messages that are within a stretch and do not overlap, in order."""
    chosen: list[Lost] = []
    at = start
    for message in sorted(lost):
        if message.physical_offset >= at and message.end <= end:
            chosen.append(message)
            at = message.end
    return chosen


def _blank(size: int) -> bytes | None:
    if size == 0:
        return b""
    return encode_blank(size) + bytes(size - BLANK_BYTES) if size >= BLANK_BYTES else None


def placeholder(message: Lost, stamp: Stamp) -> bytes | None:
    """The record in place of a lost message; None if its bytes are too few for one."""
    hosts = 2 * len(stamp.store_host)
    room = message.size - record_size(message.topic, 0, 0, hosts_bytes=hosts)
    if room < 0:
        return None
    name = f"{LOST_PROPERTY}\x01".encode()
    padding = room - len(name) - 1
    if padding < 1:
        properties, body = b"", bytes(room)
    elif padding <= _PADDING_BYTES_MAX:
        properties, body = name + b"-" * padding + b"\x02", b""
    else:
        properties = name + b"-\x02"
        body = bytes(room - len(properties))
    return _record(message, body, properties, 0, stamp)


def _fillers(start: int, end: int, stamp: Stamp) -> bytes | None:
    """Fillers for a stretch; None where it is too short for one."""
    assert start <= end, "the messages around the stretch do not overlap"
    hosts = 2 * len(stamp.store_host)
    least = record_size(FILLER_TOPIC, 0, 0, hosts_bytes=hosts)
    parts: list[bytes] = []
    while start < end:
        left = end - start
        size = left if left <= _FILLER_BYTES_MAX + least else _FILLER_BYTES_MAX
        topic = FILLER_TOPIC[: len(FILLER_TOPIC) - max(least - size, 0)]
        if size < least - len(FILLER_TOPIC) + 1:
            return None
        body = bytes(size - record_size(topic, 0, 0, hosts_bytes=hosts))
        parts.append(_record(Lost(start, size, topic, 0, 0), body, b"", TRANSACTION_ROLLBACK, stamp))
        start += size
    return b"".join(parts)


def _record(place: Lost, body: bytes, properties: bytes, sys_flag: int, stamp: Stamp) -> bytes:
    record = encode_record(
        place.topic,
        body,
        properties,
        place.queue_id,
        place.queue_offset,
        place.physical_offset,
        0,
        sys_flag,
        stamp.store_ms,
        stamp.store_host,
        stamp.store_ms,
        stamp.store_host,
    )
    assert len(record) == place.size, "the record fills its place"
    return record
