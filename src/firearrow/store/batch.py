"""Batch-send bodies as stored records, by columns.

The members of a batch (``firearrow.message.batch``) become one record each, side by side, with consecutive queue
offsets. A record is its member with another head and the topic in between. So its size is the member's plus a constant,
and one array holds all heads. Under load, all members usually have the same head. Then the records are one array too,
and each field is copied for all of them at once. Otherwise the records are joined from pieces. For 32 members this
takes 24 µs instead of 83. Appending them one by one (`CommitLog.append`) takes 30 µs, and taking the batch apart comes
on top.

Array operations cost a fixed time, which is most of the time for one batch. So batches that come together and look
alike are appended together: the members of each are one ``BatchPart`` of the whole. Four batches of 32 then take 44 µs
instead of 96.

Source: RocketMQ's ``CommitLog#asyncPutMessages``, ``MessageExtEncoder#encode(MessageExtBatch)``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from firearrow.errors import MessageError
from firearrow.message.batch import MEMBER_BYTES_MIN, split_batch
from firearrow.message.record import HEADS_BY_HOSTS, crc32
from firearrow.store.commitlog import CommitLog
from firearrow.store.queues import ConsumeQueue
from firearrow.store.scan import Ints, gather

_MEMBER_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")]
)
_MEMBER_STRUCT: Final = struct.Struct(">iiiii")
assert _MEMBER_STRUCT.size == _MEMBER_HEAD.itemsize
_MEMBER_HEAD_BYTES: Final = 20
_PROPERTIES_SIZE: Final = np.dtype(">i2")
# Nearly all batches have one of a few shapes; an unknown shape costs some microseconds.
_SHAPES_KEPT: Final = 64
_BODIES_TOGETHER: Final = 32


@dataclass(slots=True)
class RegularMembers:
    """Members that are in ``body`` one after another and have the same head.

    ``records`` takes the heads of all records, with every field that does not depend on the member. They hold the
    physical offset of the first record. Their queue offset is a base for the member's number.
    """

    body: bytes
    size: int
    flag: int
    body_size: int

    def __len__(self) -> int:
        return len(self.body) // self.size

    def shared(self, added: int) -> tuple[int, int, int]:
        """Size, flag and body size of all records, which are larger than members by ``added``."""
        return self.size + added, self.flag, self.body_size

    def texts(self) -> bytes:
        """The properties of all members, each after its size."""
        rows = np.frombuffer(self.body, _member_dtype(self.size, self.body_size))
        return rows["properties"].tobytes()

    def records(self, heads: bytes, topic_field: bytes) -> tuple[memoryview, Ints]:
        """The records as one array, whose fields are their parts, and their physical offsets."""
        count, head_bytes = len(self), len(heads) // len(self)
        properties_bytes = self.size - _MEMBER_HEAD_BYTES - self.body_size
        assert len(heads) == head_bytes * count, "each record has a head"
        dtype = _record_dtype(head_bytes, self.body_size, len(topic_field), properties_bytes)
        old = np.frombuffer(self.body, _member_dtype(self.size, self.body_size))
        new = np.empty(count, dtype)
        new["head"] = np.frombuffer(heads, dtype["head"])
        new["body_crc"] = np.fromiter(map(crc32, self._bodies()), np.int64, count) & 0x7FFFFFFF
        number = np.arange(count)
        queue_offset = new["queue_offset"]
        queue_offset += number
        physical_offsets = number * dtype.itemsize + int(new["physical_offset"][0])
        new["physical_offset"] = physical_offsets
        new["body"] = old["body"]
        new["topic"] = np.void(topic_field)
        new["properties"] = old["properties"]
        return new.view(np.uint8).data, physical_offsets

    def _bodies(self) -> Iterator[bytes]:
        """The bodies, cut out ``_BODIES_TOGETHER`` at a time at most."""
        together = math.gcd(len(self), _BODIES_TOGETHER)
        cut = _bodies_struct(self.size, self.body_size, together)
        return chain.from_iterable(cut.iter_unpack(self.body))


@dataclass(slots=True)
class IrregularMembers:
    """Members of any kind: columns of their starts in ``body`` and of the fields of their heads.

    ``records`` is as that of ``RegularMembers``.
    """

    body: bytes
    start: Ints
    size: Ints
    flag: Ints
    body_size: Ints

    def __len__(self) -> int:
        return len(self.start)

    def shared(self, added: int) -> tuple[int, int, int]:
        """Zeros: no field is known to be the same for all."""
        return 0, 0, 0

    def texts(self) -> bytes:
        """The properties of all members, each after its size."""
        starts = self.start + _MEMBER_HEAD_BYTES + self.body_size
        spans = zip(starts.tolist(), (self.start + self.size).tolist(), strict=True)
        return b"".join([self.body[start:end] for start, end in spans])

    def records(self, heads: bytes, topic_field: bytes) -> tuple[bytes, Ints]:
        """The records, joined from their pieces, and their physical offsets."""
        body = self.body
        starts = self.start + _MEMBER_HEAD_BYTES
        middles, ends = starts + self.body_size, self.start + self.size
        spans = list(zip(starts.tolist(), middles.tolist(), ends.tolist(), strict=True))
        head_bytes = len(heads) // len(self)
        assert len(heads) == head_bytes * len(self), "each record has a head"
        added = head_bytes - _MEMBER_HEAD_BYTES + len(topic_field)
        columns = np.frombuffer(bytearray(heads), _record_dtype(head_bytes))
        number = np.arange(len(self))
        physical_offsets: Ints = columns["physical_offset"] + self.start + number * added
        columns["size"] = self.size + added
        columns["body_crc"] = [crc32(body[start:end]) & 0x7FFFFFFF for start, end, _ in spans]
        columns["flag"] = self.flag
        columns["queue_offset"] += number
        columns["physical_offset"] = physical_offsets
        columns["body_size"] = self.body_size
        heads = columns.tobytes()
        pieces: list[bytes] = []
        at = 0
        for start, middle, end in spans:
            head = heads[at : at + head_bytes]
            pieces += (head, body[start:middle], topic_field, body[middle:end])
            at += head_bytes
        return b"".join(pieces), physical_offsets


Members = RegularMembers | IrregularMembers


class BatchPart(NamedTuple):
    """The next ``members`` of all members: their queue, and the fields that their request has.

    ``sys_flag`` has no address bits, as in ``CommitLog.append``; ``born_host`` is in its stored form.
    """

    queue: ConsumeQueue
    members: int
    sys_flag: int
    born_ms: int
    reconsume_times: int
    born_host: bytes


class MemberPlaces(NamedTuple):
    """Places of members: the first queue offset of each part, every member's physical offset."""

    queue_offsets: list[int]
    physical_offsets: Ints


def members_of(body: bytes) -> Members:
    """Take a batch apart; MessageError names the fault and its place."""
    return _regular_members(body) or _irregular_members(body)


def members_alike(bodies: Sequence[bytes]) -> RegularMembers | None:
    """Members of several batches of the same number of members each, or None if their heads differ."""
    length = len(bodies[0])
    if not all(len(body) == length for body in bodies):
        return None
    members = _regular_members(b"".join(bodies))
    return None if members is None or length % members.size else members


def _regular_members(body: bytes) -> RegularMembers | None:
    """The members if they all have the head of the first."""
    end = len(body)
    if end < MEMBER_BYTES_MIN:
        return None
    size, _, _, flag, body_size = _MEMBER_STRUCT.unpack_from(body)
    properties_size = size - MEMBER_BYTES_MIN - body_size
    if size < MEMBER_BYTES_MIN or end % size or body_size < 0 or not 0 <= properties_size < 1 << 15:
        return None
    rows = np.frombuffer(body, _member_dtype(size, body_size))
    # Comparing bytes is faster than comparing rows.
    if rows["properties_size"].tobytes() != properties_size.to_bytes(2, "big") * len(rows) or rows[
        "head"
    ].tobytes() != body[:_MEMBER_HEAD_BYTES] * len(rows):
        return None
    return RegularMembers(body, size, flag, body_size)


@lru_cache(maxsize=_SHAPES_KEPT)
def _member_dtype(size: int, body_size: int) -> np.dtype[Any]:
    """A member; ``properties`` are its properties with their size."""
    properties_at = _MEMBER_HEAD_BYTES + body_size
    assert properties_at + _PROPERTIES_SIZE.itemsize <= size, "a member has the size of its properties"
    return _overlapping(
        size,
        head=(f"V{_MEMBER_HEAD_BYTES}", 0),
        body=(f"V{body_size}", _MEMBER_HEAD_BYTES),
        properties=(f"V{size - properties_at}", properties_at),
        properties_size=("V2", properties_at),
    )


def _overlapping(size: int, /, **fields: tuple[str, int]) -> np.dtype[Any]:
    """``size`` bytes with fields, by their formats and offsets; fields may overlap."""
    formats, offsets = zip(*fields.values(), strict=True)
    names = list(fields)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def _irregular_members(body: bytes) -> IrregularMembers:
    starts: list[int] = []
    at, end = 0, len(body)
    while at < end:
        length = int.from_bytes(body[at : at + 4], "big", signed=True)
        if not MEMBER_BYTES_MIN <= length <= end - at:
            raise _fault(body)
        starts.append(at)
        at += length
    if not starts:
        raise _fault(body)
    start = np.array(starts, dtype=np.int64)
    head = gather(body, _MEMBER_HEAD, start)
    size, body_size = head["size"].astype(np.int64), head["body_size"].astype(np.int64)
    if not ((body_size >= 0) & (body_size <= size - MEMBER_BYTES_MIN)).all():
        raise _fault(body)
    properties_size = gather(body, _PROPERTIES_SIZE, start + _MEMBER_HEAD_BYTES + body_size)
    if not (body_size + properties_size + MEMBER_BYTES_MIN == size).all():
        raise _fault(body)
    return IrregularMembers(body, start, size, head["flag"].astype(np.int64), body_size)


def _fault(body: bytes) -> MessageError:
    """The error that the reader by members (``split_batch``) raises."""
    try:
        split_batch(body)
    except MessageError as error:
        return error
    raise AssertionError("the two readers of batches disagree")


def append_batch(log: CommitLog, members: Members, parts: Sequence[BatchPart], now_ms: int) -> MemberPlaces:
    """Append members side by side in one file. All parts must be of one topic, and of one kind of born host.

    Raises DiskFull or MessageError, having written nothing.
    """
    topic_field = parts[0].queue.topic_field
    packer, address_flags = HEADS_BY_HOSTS[len(parts[0].born_host), len(log.store_host)]
    added = packer.size - _MEMBER_HEAD_BYTES + len(topic_field)
    total = len(members.body) + len(members) * added
    at, store_ms = log.make_room(total, now_ms)
    size, flag, body_size = members.shared(added)
    heads: list[bytes] = []
    queue_offsets: list[int] = []
    next_offsets: dict[ConsumeQueue, int] = {}
    members_before = 0
    for queue, count, sys_flag, born_ms, reconsume_times, born_host in parts:
        first = next_offsets.get(queue, queue.next_offset)
        head = packer.pack(
            size, queue.magic, 0, queue.queue_id, flag, first - members_before, at,
            sys_flag | address_flags, born_ms, born_host, store_ms, log.store_host,
            reconsume_times, 0, body_size,
        )  # fmt: skip
        heads.append(head * count)
        queue_offsets.append(first)
        next_offsets[queue] = first + count
        members_before += count
    assert members_before == len(members), "the parts are all members"
    records, physical_offsets = members.records(b"".join(heads), topic_field)
    assert len(records) == total
    log.write(at, records)
    for queue, next_offset in next_offsets.items():
        queue.next_offset = next_offset
    return MemberPlaces(queue_offsets, physical_offsets)


@lru_cache(maxsize=_SHAPES_KEPT)
def _record_dtype(
    head_bytes: int, body_size: int = 0, topic_bytes: int = 0, properties_bytes: int = 0
) -> np.dtype[Any]:
    """A record: its parts, and the fields of its head that are written by columns."""
    topic_at = head_bytes + body_size
    properties_at = topic_at + topic_bytes
    return _overlapping(
        properties_at + properties_bytes,
        head=(f"V{head_bytes}", 0),
        body=(f"V{body_size}", head_bytes),
        topic=(f"V{topic_bytes}", topic_at),
        properties=(f"V{properties_bytes}", properties_at),
        size=(">i4", 0),
        body_crc=(">i4", 8),
        flag=(">i4", 16),
        queue_offset=(">i8", 20),
        physical_offset=(">i8", 28),
        body_size=(">i4", head_bytes - 4),
    )


@lru_cache(maxsize=_SHAPES_KEPT)
def _bodies_struct(size: int, body_size: int, together: int) -> struct.Struct:
    rest = size - _MEMBER_HEAD_BYTES - body_size
    return struct.Struct(f"{_MEMBER_HEAD_BYTES}x{body_size}s{rest}x" * together)


@lru_cache(maxsize=4)
def _id_dtype(store_host_bytes: int) -> np.dtype[Any]:
    return np.dtype([("store_host", f"V{store_host_bytes}"), ("physical_offset", ">i8")])


def offset_ids(store_host: bytes, physical_offsets: Ints) -> bytes:
    """The offset message ids (``firearrow.message.ids``) of records, joined by commas."""
    ids = np.empty(len(physical_offsets), _id_dtype(len(store_host)))
    ids["store_host"] = np.void(store_host)
    ids["physical_offset"] = physical_offsets
    return ids.tobytes().hex(",", ids.itemsize).upper().encode()
