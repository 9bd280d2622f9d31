"""Covers damaged bytes of the log by records, so that all behind them stays reachable.

A broker that recovers reads the log record by record and cuts off everything from the first place
that is none. So a damaged stretch is filled to the byte with sound records:

* where a message of a queue was, a **placeholder** with its topic, queue and queue offset stands at
  the same place with the same size, so that queue offsets stay consecutive and the queue's entry
  stays right. It has no tags and no keys; consumers without a tag filter get it, with an empty body
  and the property ``FIREARROW_LOST``;
* what is between is covered by **fillers**: records of the topic ``RMQ_SYS_REPAIRED`` that are
  typed as a transaction's rollback, which no queue and no index takes up;
* what reaches the end of a file is covered by the blank that ends a file.

Which messages were lost is known from the entries of the ConsumeQueues. A stretch of less than 92
bytes has no room for a record, unless it reaches the end of its file.

Source of what a start accepts: upstream ``CommitLog#recoverAbnormally``,
``#checkMessageAndReturnSize``, ``CommitLogDispatcherBuildConsumeQueue``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from firearrow.message.record import BLANK_BYTES, encode_blank, encode_record, record_size
from firearrow.message.sysflag import TRANSACTION_ROLLBACK

LOST_PROPERTY: Final = "FIREARROW_LOST"
FILLER_TOPIC: Final = "RMQ_SYS_REPAIRED"
_FILLER_BYTES_MAX: Final = 4 * 1024 * 1024
_PADDING_BYTES_MAX: Final = 16 * 1024  # a longer rest goes into the body


class Lost(NamedTuple):
    """A message whose bytes are damaged, as its queue's entry tells of it."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.physical_offset + self.size


class Stamp(NamedTuple):
    """What the records that cover have of their surroundings: store time and broker's address."""

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
    return None if rest is None else b"".join((*parts, rest))


def fits(lost: Iterable[Lost], start: int, end: int) -> list[Lost]:
    """Those that are within a stretch and do not overlap, in order."""
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
    assert len(record) == place.size
    return record
