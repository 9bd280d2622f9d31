"""A batch-send body as stored records, by columns.

The members of a batch (``firearrow.message.batch``) become one record each, side by side, with
consecutive queue offsets. A record is its member with another head and the topic put in between, so
its size is the member's plus a constant, and all heads can be written as one array. When all
members have the same shape, which is what load looks like, the records too are one matrix, filled
in four copies; else they are joined from pieces.

Source: upstream ``CommitLog#asyncPutMessages``, ``MessageExtEncoder#encode(MessageExtBatch)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from firearrow.errors import MessageError
from firearrow.message.batch import split_batch
from firearrow.message.record import HEADS_BY_HOSTS
from firearrow.store.commitlog import CommitLog
from firearrow.store.consumequeue import ConsumeQueue
from firearrow.store.scan import Ints, gather

_MEMBER_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")]
)
_MEMBER_HEAD_BYTES: Final = 20
_MEMBER_BYTES_MIN: Final = 22
_PROPERTIES_SIZE: Final = np.dtype(">i2")
_SIZE: Final = np.dtype(">i4")


@dataclass(slots=True)
class Members:
    """The members of a batch: where each starts in ``body`` and what its parts measure."""

    body: bytes
    start: Ints
    size: Ints
    flag: npt.NDArray[np.int32]
    body_size: Ints

    def __len__(self) -> int:
        return len(self.start)


def members_of(body: bytes) -> Members:
    """Take a batch apart; MessageError names what is wrong with it and where."""
    start = _starts(body)
    head = gather(body, _MEMBER_HEAD, start)
    size, body_size = head["size"].astype(np.int64), head["body_size"].astype(np.int64)
    properties_at = start + _MEMBER_HEAD_BYTES + body_size
    inside = (body_size >= 0) & (body_size <= size - _MEMBER_BYTES_MIN)
    if not inside.all():
        raise _fault(body)
    properties_size = gather(body, _PROPERTIES_SIZE, properties_at)
    if not (body_size + properties_size + _MEMBER_BYTES_MIN == size).all():
        raise _fault(body)
    return Members(body, start, size, head["flag"].astype(np.int32), body_size)


def _fault(body: bytes) -> MessageError:
    """The MessageError of the reader that goes member by member."""
    try:
        split_batch(body)
    except MessageError as error:
        return error
    raise AssertionError("the two readers of batches disagree")


def _starts(body: bytes) -> Ints:
    """Where the members start, by their sizes."""
    end = len(body)
    size = int.from_bytes(body[:4], "big", signed=True)
    if size >= _MEMBER_BYTES_MIN and end % size == 0:
        regular = np.arange(0, end, size, dtype=np.int64)
        if (gather(body, _SIZE, regular) == size).all():
            return regular
    starts: list[int] = []
    at = 0
    while at < end:
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        if not _MEMBER_BYTES_MIN <= size <= end - at:
            raise _fault(body)
        starts.append(at)
        at += size
    if not starts:
        raise _fault(body)
    return np.array(starts, dtype=np.int64)


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
    store_ms: int,
    reconsume_times: int,
) -> Ints:
    """Append all members to a queue, all in one file; return their physical offsets.

    Raises DiskFull or MessageError, having written nothing.
    """
    struct, address_flags = HEADS_BY_HOSTS[len(born_host), len(log.store_host)]
    size = members.size + (struct.size - _MEMBER_HEAD_BYTES + len(queue.topic_field))
    total = int(size.sum())
    at, store_ms = log.make_room(total, store_ms)
    count = len(members)
    # The fields that all records share come from one packed head.
    common = struct.pack(
        0, queue.magic, 0, queue.queue_id, 0, 0, 0, sys_flag | address_flags, born_ms, born_host,
        store_ms, log.store_host, reconsume_times, 0, 0,
    )  # fmt: skip
    heads = np.frombuffer(
        bytearray(common * count), _head_dtype(len(born_host), len(log.store_host))
    )
    offsets = np.cumsum(size)
    offsets += at
    offsets -= size
    heads["size"] = size
    heads["body_crc"] = _body_crcs(members)
    heads["flag"] = members.flag
    heads["queue_offset"] = np.arange(queue.next_offset, queue.next_offset + count)
    heads["physical_offset"] = offsets
    heads["body_size"] = members.body_size
    records = _assemble(members, heads, queue.topic_field)
    assert len(records) == total
    log.write(queue, at, records, count)
    return offsets


def _body_crcs(members: Members) -> list[int]:
    body = members.body
    starts = (members.start + _MEMBER_HEAD_BYTES).tolist()
    pairs = zip(starts, members.body_size.tolist(), strict=True)
    return [crc32(body[at : at + size]) & 0x7FFFFFFF for at, size in pairs]


def _assemble(members: Members, heads: npt.NDArray[Any], topic_field: bytes) -> bytes:
    """Heads, bodies, topics and properties in their places."""
    head_bytes, count = heads.itemsize, len(heads)
    body_bytes = int(members.body_size[0])
    size = int(members.size[0])
    if (members.size == size).all() and (members.body_size == body_bytes).all():
        old = np.frombuffer(members.body, np.uint8).reshape(count, size)
        body_end = head_bytes + body_bytes
        topic_end = body_end + len(topic_field)
        new = np.empty((count, topic_end + size - _MEMBER_HEAD_BYTES - body_bytes), np.uint8)
        new[:, :head_bytes] = heads.view(np.uint8).reshape(count, head_bytes)
        new[:, head_bytes:body_end] = old[:, _MEMBER_HEAD_BYTES : _MEMBER_HEAD_BYTES + body_bytes]
        new[:, body_end:topic_end] = np.frombuffer(topic_field, np.uint8)
        new[:, topic_end:] = old[:, _MEMBER_HEAD_BYTES + body_bytes :]
        return new.tobytes()
    packed = heads.tobytes()
    body = members.body
    pieces: list[bytes] = []
    columns = (members.start.tolist(), members.size.tolist(), members.body_size.tolist())
    for number, (at, length, body_length) in enumerate(zip(*columns, strict=True)):
        middle = at + _MEMBER_HEAD_BYTES + body_length
        pieces += (
            packed[number * head_bytes : (number + 1) * head_bytes],
            body[at + _MEMBER_HEAD_BYTES : middle],
            topic_field,
            body[middle : at + length],
        )
    return b"".join(pieces)
