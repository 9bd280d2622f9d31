"""Keys and values of the RocksDB database of a store's queues.

Integers are big-endian, topics UTF-8; ``n`` is the topic's length in bytes. Every key begins with the topic:

====== ==== ==============================================================
offset size field
====== ==== ==============================================================
0      4    n
4      1    01
5      n    topic
5+n    1    01
====== ==== ==============================================================

In the column family ``default``, an entry for each message, goes on:

====== ==== ==============================================================
6+n    4    queue id
10+n   1    01; 00 and 02 are the ends of the queue's range
11+n   8    queue offset
====== ==== ==============================================================

with the value (28 bytes; the first 20 are an entry as in a file, see ``consumequeue``):

====== ==== ==============================================================
0      8    physical offset of the record
8      4    size of the record
12     8    tag code
20     8    store time, ms
====== ==== ==============================================================

In the column family ``offset``, up to two rows for each queue, goes on:

====== ==== ==============================================================
6+n    3    ``max``: the queue's last message, ``min``: its first when last looked at
9+n    1    01
10+n   4    queue id
====== ==== ==============================================================

with the value (16 bytes): physical offset of the record, queue offset. A ``max`` for queue 0 of the topic
``CHECKPOINT_TOPIC`` has one integer: the end of the dispatched log.

Worked example, message 2 of queue 1 of topic ``T``, 300 bytes at 4096, tag ``TagA``, stored at 1795000000000 ms: key
``00000001 01 54 01 00000001 01 0000000000000002``, value ``0000000000001000 0000012c 000000000027a807
000001a1ee565e00``; its row in ``offset``: key ``00000001 01 54 01 6d6178 01 00000001``, value ``0000000000001000
0000000000000002``.

Source: RocketMQ's ``RocksDBConsumeQueueTable``, ``RocksDBConsumeQueueOffsetTable``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from operator import add
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from firearrow.message.names import LMQ_PREFIX
from firearrow.store.queues import DispatchedEntries
from firearrow.store.scan import Ints

ENTRIES: Final = "default"
OFFSETS: Final = "offset"
MAX: Final = b"max"
MIN: Final = b"min"
MAX_MIDDLE: Final = MAX + b"\1"
"""Middle of a topic's keys of rows ``MAX``, after the topic's head; the rest is the queue id."""

VALUE: Final = struct.Struct(">qiqq")
VALUE_BYTES: Final = 28
STORE_MS_AT: Final = 20
PLACE: Final = struct.Struct(">qq")
DISPATCHED: Final = struct.Struct(">q")
_TOPIC_HEAD: Final = struct.Struct(">IB")
_LMQ: Final = LMQ_PREFIX.encode()
QUEUE_ID: Final = struct.Struct(">I")
ENTRY_KEY_MIDDLE: Final = struct.Struct(">IB")
_OFFSET_KEY_REST_BYTES: Final = 3 + 1 + 4
_ENTRY_KEY_REST: Final = np.dtype([("queue_id", ">u4"), ("mark", "u1"), ("queue_offset", ">i8")])
_MAX_KEY_REST: Final = np.dtype([("middle", f"V{len(MAX_MIDDLE)}"), ("queue_id", ">u4")])
_VALUE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8"), ("store_ms", ">i8")])
_PLACE: Final = np.dtype([("physical_offset", ">i8"), ("queue_offset", ">i8")])
assert VALUE.size == VALUE_BYTES
assert _VALUE.itemsize == VALUE_BYTES, "columns and single rows have one format"
assert _PLACE.itemsize == PLACE.size
assert _ENTRY_KEY_REST.itemsize == ENTRY_KEY_MIDDLE.size + 8
assert _MAX_KEY_REST.itemsize == _OFFSET_KEY_REST_BYTES


def topic_head(topic: str) -> bytes:
    """Beginning of all keys of a topic."""
    name = topic.encode()
    return _TOPIC_HEAD.pack(len(name), 1) + name + b"\1"


def entry_head(topic: str, queue_id: int) -> bytes:
    """Beginning of the keys of a queue's entries: the rest is the queue offset, i64."""
    return topic_head(topic) + ENTRY_KEY_MIDDLE.pack(queue_id, 1)


def entry_keys(heads: Iterable[bytes], queue_id: Ints, queue_offset: Ints) -> list[bytes]:
    """The keys of many entries, given the ``topic_head`` of each."""
    rests: npt.NDArray[Any] = np.empty(len(queue_id), _ENTRY_KEY_REST)
    rests["queue_id"] = queue_id
    rests["mark"] = 1
    rests["queue_offset"] = queue_offset
    return list(map(add, heads, _strings(rests)))


def entry_values(entries: DispatchedEntries) -> list[bytes]:
    """The values of many entries."""
    values: npt.NDArray[Any] = np.empty(len(entries.size), _VALUE)
    values["physical_offset"] = entries.physical_offset
    values["size"] = entries.size
    values["tag_code"] = entries.tag_code
    values["store_ms"] = entries.store_ms
    return _strings(values)


def max_keys(heads: Iterable[bytes], queue_id: Sequence[int]) -> list[bytes]:
    """The keys of many rows ``MAX``, given the ``topic_head`` of each."""
    rests: npt.NDArray[Any] = np.empty(len(queue_id), _MAX_KEY_REST)
    rests["middle"] = MAX_MIDDLE
    rests["queue_id"] = queue_id
    return list(map(add, heads, _strings(rests)))


def places(physical_offset: Ints, queue_offset: Ints) -> list[bytes]:
    """The values of many rows in ``offset``."""
    values: npt.NDArray[Any] = np.empty(len(physical_offset), _PLACE)
    values["physical_offset"] = physical_offset
    values["queue_offset"] = queue_offset
    return _strings(values)


def _strings(items: npt.NDArray[Any]) -> list[bytes]:
    strings: list[bytes] = items.view(f"V{items.itemsize}").tolist()
    return strings


def entry_range(head: bytes) -> tuple[bytes, bytes]:
    """The keys between which a queue has all its entries; ``head`` is its ``entry_head``."""
    return head[:-1] + b"\0", head[:-1] + b"\2"


def offset_key(topic: str, queue_id: int, kind: bytes) -> bytes:
    """The key of a queue's row ``MAX`` or ``MIN``."""
    return topic_head(topic) + kind + b"\1" + QUEUE_ID.pack(queue_id)


DISPATCHED_KEY: Final = offset_key("CHECKPOINT_TOPIC", 0, MAX)


class OffsetRow(NamedTuple):
    """A row of the column family ``offset``; ``kind`` is ``MAX`` or ``MIN``."""

    topic: str
    queue_id: int
    kind: bytes
    physical_offset: int
    queue_offset: int


def offset_row(key: bytes, value: bytes) -> OffsetRow | None:
    """Take a row apart; None for one that is not a queue's."""
    if len(value) != PLACE.size or len(key) < _TOPIC_HEAD.size + 1 + _OFFSET_KEY_REST_BYTES:
        return None
    length, _ = _TOPIC_HEAD.unpack_from(key)
    at = _TOPIC_HEAD.size + length + 1
    if len(key) != at + _OFFSET_KEY_REST_BYTES:
        return None
    topic = key[_TOPIC_HEAD.size : at - 1].decode("utf-8", "replace")
    kind, (queue_id,) = key[at : at + 3], QUEUE_ID.unpack_from(key, at + 4)
    return OffsetRow(topic, queue_id, kind, *PLACE.unpack(value))


def is_of_lmq(key: bytes) -> bool:
    """Tell whether a row of the column family ``offset`` is of an LMQ."""
    return key.startswith(_LMQ, _TOPIC_HEAD.size)


def queue_of(key: bytes) -> tuple[str, int] | None:
    """Topic and queue id of an entry's key; None for other keys."""
    length = int.from_bytes(key[:4], "big")
    if len(key) != 4 + 1 + length + 1 + 4 + 1 + 8:
        return None
    at = 5 + length
    try:
        found = key[5:at].decode(), int.from_bytes(key[at + 1 : at + 5], "big")
    except UnicodeDecodeError:
        return None
    return found if key.startswith(entry_head(*found)) else None
