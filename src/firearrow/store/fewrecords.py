"""Dispatches records one by one when they are few.

Columns take 0.2 ms for a batch, however small it is: the price of forty operations on arrays. A single record takes 15
µs here, with the same result. So consumers get messages that come one at a time sooner, and the broker has less work.
From a dozen records on columns are cheaper.

Only usual records are dispatched here: outside of transactions, not delayed, in no LMQ, not compressed, and next in a
queue that has files. All other records are left to the columns (``dispatch``), the one place that knows all rules.
"""

from __future__ import annotations

import mmap
from typing import Final

from firearrow.message import properties
from firearrow.message.names import SCHEDULE_TOPIC, java_hash, tag_code
from firearrow.message.record import Located, locate
from firearrow.message.sysflag import COMPRESSED, INNER_BATCH, TRANSACTION_MASK
from firearrow.store.index import Index
from firearrow.store.queuefiles import FileConsumeQueues
from firearrow.store.queues import ENTRY

RECORDS_MAX: Final = 8

_SPECIAL: Final = TRANSACTION_MASK | INNER_BATCH | COMPRESSED
_LMQ: Final = properties.INNER_MULTI_DISPATCH.encode()
_unique_key_in: Final = properties.finder(properties.UNIQUE_KEY)
_keys_in: Final = properties.finder(properties.KEYS)
_tags_in: Final = properties.finder(properties.TAGS)


def dispatched(
    buffer: mmap.mmap, at: int, end: int, queues: FileConsumeQueues, index: Index | None, *, lmq: bool
) -> tuple[str, Located] | None:
    """Dispatch the record from ``at`` to ``end``; return its topic and its fields.

    None if the record must be left to the columns: then nothing was done, or its queue has it and the index lacks its
    keys. The latter also happens in a step that a full disk ends. Raises OSError in the same state.
    """
    record = locate(buffer, at, end)
    if record is None or record.sys_flag & _SPECIAL:
        return None
    if lmq and record.properties.find(_LMQ) >= 0:
        return None
    topic = record.topic.decode("utf-8", "replace")
    if topic == SCHEDULE_TOPIC:
        return None
    tags = _text(_tags_in(record.properties))
    entry = ENTRY.pack(record.physical_offset, record.size, tag_code(tags))
    place = topic, record.queue_id, record.queue_offset
    if not queues.put_one(*place, record.physical_offset, entry):
        return None
    if index is not None:
        hashes = index_keys(topic, record.properties, tags)
        if not index.put_of_one(hashes, record.physical_offset, record.store_timestamp_ms):
            return None
    return topic, record


def index_keys(topic: str, stored: bytes, tags: str) -> list[int]:
    """Index keys of a record, in the order of their puts (``scan.Properties``)."""
    keys: list[str] = []
    unique_key = _text(_unique_key_in(stored))
    if unique_key:
        keys.append(unique_key)
    keys += [key for key in _text(_keys_in(stored)).split(" ") if key]
    if tags:
        keys.append(f"T#{tags}")
    hashes = [abs(java_hash(f"{topic}#{key}")) for key in keys]
    return [0 if key_hash == 1 << 31 else key_hash for key_hash in hashes]


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
