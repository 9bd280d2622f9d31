"""A batch-send body as stored records, by columns.

The members of a batch (``firearrow.message.batch``) become one record each, side by side, with
consecutive queue offsets. A record is its member with another head and the topic put in between, so
its size is the member's plus a constant, and all heads can be written as one array. When all
members have the same shape, which is what load looks like, the records too are one matrix, filled
in four copies; else they are joined from pieces.

Source: upstream ``CommitLog#asyncPutMessages``, ``MessageExtEncoder#encode(MessageExtBatch)``.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from firearrow.errors import MessageError
from firearrow.message.batch import split_batch
from firearrow.message.record import HEADS_BY_HOSTS
from firearrow.store.commitlog import CommitLog
from firearrow.store.queues import ConsumeQueue
from firearrow.store.scan import Ints, gather

_MEMBER_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")]
)
_MEMBER_STRUCT: Final = struct.Struct(">iiiii")
_MEMBER_HEAD_BYTES: Final = 20
_MEMBER_BYTES_MIN: Final = 22
_PROPERTIES_SIZE: Final = np.dtype(">i2")

Sizes = Ints | int


class Members(NamedTuple):
    """The members of a batch: where each starts in ``body``, and what its parts measure.

    Of a regular batch ``size``, ``flag`` and ``body_size`` are one number for all.
    """

    body: bytes
    start: Ints
    size: Sizes
    flag: Sizes
    body_size: Sizes

    @property
    def regular(self) -> bool:
        """Whether all members have the same head."""
        return isinstance(self.size, int)


def members_of(body: bytes) -> Members:
    """Take a batch apart; MessageError names what is wrong with it and where."""
    return _regular_members(body) or _irregular_members(body)


def _regular_members(body: bytes) -> Members | None:
    """The members if they all have the head of the first."""
    end = len(body)
    if end < _MEMBER_BYTES_MIN:
        return None
    size, _, _, flag, body_size = _MEMBER_STRUCT.unpack_from(body)
    properties_size = size - _MEMBER_BYTES_MIN - body_size
    if (
        size < _MEMBER_BYTES_MIN
        or end % size
        or body_size < 0
        or not 0 <= properties_size < 1 << 15
    ):
        return None
    rows = np.frombuffer(body, np.uint8).reshape(-1, size)
    properties_at = _MEMBER_HEAD_BYTES + body_size
    lengths = rows[:, properties_at : properties_at + 2]
    if body[properties_at : properties_at + 2] != properties_size.to_bytes(2, "big"):
        return None
    differing = np.count_nonzero(rows[:, :_MEMBER_HEAD_BYTES] != rows[0, :_MEMBER_HEAD_BYTES])
    if differing or np.count_nonzero(lengths != lengths[0]):
        return None
    return Members(body, np.arange(0, end, size, dtype=np.int64), size, flag, body_size)


def _irregular_members(body: bytes) -> Members:
    starts: list[int] = []
    at, end = 0, len(body)
    while at < end:
        length = int.from_bytes(body[at : at + 4], "big", signed=True)
        if not _MEMBER_BYTES_MIN <= length <= end - at:
            raise _fault(body)
        starts.append(at)
        at += length
    if not starts:
        raise _fault(body)
    start = np.array(starts, dtype=np.int64)
    head = gather(body, _MEMBER_HEAD, start)
    size, body_size = head["size"].astype(np.int64), head["body_size"].astype(np.int64)
    if not ((body_size >= 0) & (body_size <= size - _MEMBER_BYTES_MIN)).all():
        raise _fault(body)
    properties_size = gather(body, _PROPERTIES_SIZE, start + _MEMBER_HEAD_BYTES + body_size)
    if not (body_size + properties_size + _MEMBER_BYTES_MIN == size).all():
        raise _fault(body)
    return Members(body, start, size, head["flag"].astype(np.int64), body_size)


def _fault(body: bytes) -> MessageError:
    """The error of the reader that goes member by member."""
    try:
        split_batch(body)
    except MessageError as error:
        return error
    raise AssertionError("the two readers of batches disagree")


@lru_cache(maxsize=4)
def _head_dtype(born_host_bytes: int, store_host_bytes: int) -> np.dtype[Any]:
    dtype = np.dtype(
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
            ("born_host", f"V{born_host_bytes}"),
            ("store_ms", ">i8"),
            ("store_host", f"V{store_host_bytes}"),
            ("reconsume_times", ">i4"),
            ("prepared", ">i8"),
            ("body_size", ">i4"),
        ]
    )
    assert dtype.itemsize == HEADS_BY_HOSTS[born_host_bytes, store_host_bytes][0].size
    return dtype


def append_batch(
    log: CommitLog,
    queue: ConsumeQueue,
    members: Members,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    now_ms: int,
    reconsume_times: int,
) -> Ints:
    """Append all members to a queue, all in one file; return their physical offsets.

    Raises DiskFull or MessageError, having written nothing.
    """
    packer, address_flags = HEADS_BY_HOSTS[len(born_host), len(log.store_host)]
    added = packer.size - _MEMBER_HEAD_BYTES + len(queue.topic_field)
    count = len(members.start)
    # A record starts as far behind its member as all members before it have grown.
    grown = np.arange(0, count * added, added, dtype=np.int64)
    total = len(members.body) + count * added
    at, store_ms = log.make_room(total, now_ms)
    offsets: Ints = members.start + grown
    offsets += at
    # The fields that all records share come from one packed head.
    size, flag, body_size = members[2:] if members.regular else (0, 0, 0)
    common = packer.pack(
        size + added, queue.magic, 0, queue.queue_id, flag, 0, 0, sys_flag | address_flags,
        born_ms, born_host, store_ms, log.store_host, reconsume_times, 0, body_size,
    )  # fmt: skip
    dtype = _head_dtype(len(born_host), len(log.store_host))
    heads = np.frombuffer(bytearray(common * count), dtype)
    heads["queue_offset"] = np.arange(queue.next_offset, queue.next_offset + count)
    heads["physical_offset"] = offsets
    if members.regular:
        records = _assemble_regular(members, heads, queue.topic_field)
    else:
        heads["size"] = members.size + added
        heads["flag"] = members.flag
        heads["body_size"] = members.body_size
        records = _assemble(members, heads, queue.topic_field)
    assert len(records) == total
    log.write(queue, at, records, count)
    return offsets


def _assemble_regular(members: Members, heads: npt.NDArray[Any], topic_field: bytes) -> bytes:
    """All records as one matrix: heads, bodies, topic and properties are ranges of columns."""
    assert isinstance(members.size, int)
    assert isinstance(members.body_size, int)
    body, size, body_bytes = members.body, members.size, members.body_size
    bodies = [body[at : at + body_bytes] for at in range(_MEMBER_HEAD_BYTES, len(body), size)]
    heads["body_crc"] = np.fromiter(map(crc32, bodies), np.int64, len(bodies)) & 0x7FFFFFFF
    count, head_bytes = len(heads), heads.itemsize
    member_body_end = _MEMBER_HEAD_BYTES + body_bytes
    body_end = head_bytes + body_bytes
    topic_end = body_end + len(topic_field)
    old = np.frombuffer(body, np.uint8).reshape(count, size)
    new = np.empty((count, topic_end + size - member_body_end), np.uint8)
    new[:, :head_bytes] = heads.view(np.uint8).reshape(count, head_bytes)
    new[:, head_bytes:body_end] = old[:, _MEMBER_HEAD_BYTES:member_body_end]
    new[:, body_end:topic_end] = np.frombuffer(topic_field, np.uint8)
    new[:, topic_end:] = old[:, member_body_end:]
    return new.tobytes()


def _assemble(members: Members, heads: npt.NDArray[Any], topic_field: bytes) -> bytes:
    """Records joined from their pieces."""
    body = members.body
    starts = members.start + _MEMBER_HEAD_BYTES
    middles, ends = starts + members.body_size, members.start + members.size
    spans = list(zip(starts.tolist(), middles.tolist(), ends.tolist(), strict=True))
    heads["body_crc"] = [crc32(body[start:middle]) & 0x7FFFFFFF for start, middle, _ in spans]
    packed, head_bytes = heads.tobytes(), heads.itemsize
    pieces: list[bytes] = []
    at = 0
    for start, middle, end in spans:
        pieces += (packed[at : at + head_bytes], body[start:middle], topic_field, body[middle:end])
        at += head_bytes
    return b"".join(pieces)
