"""The records of popped messages in RocksDB: one for each message, in order of visible time.

They are rows of the column family ``popState`` in ``kvStore/`` below the store's root. All times
are in ms; the key is big-endian::

    offset size name
    0      8    when the message is visible again: pop time + invisible time
    8      n    group, then @
    8+n+1  m    topic that the message is in (perhaps a retry topic), then @
           4    queue, then @
           8    queue offset

The value is JSON, names in this order; ``attemptId`` is there if the pop had one::

    {"popTime":1700000000000,"groupId":"g","topicId":"T","queueId":3,"retryFlag":0,
     "invisibleTime":60000,"offset":12,"attemptTimes":0,"suspend":false}

    0000018bcfe65260 67 40 54 40 00000003 40 000000000000000c     the key of that

``retryFlag`` is the origin of the handle (``wire.pop``), or 0 where the record was written for one
that is to be visible at another time; ``attemptTimes`` is how often the message could not be put
into its retry topic; ``suspend`` says that it comes again without another failure being counted.
Who acknowledges a message knows the key by its handle, and removes the row.

Source: upstream ``PopConsumerRecord``.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType, field

from firearrow.broker.pop.records import Checkpoint, Name, Place, QueueId
from firearrow.errors import MessageError
from firearrow.javanumbers import LONG_MAX
from firearrow.wire import fastjson
from firearrow.wire.pop import origin_of

TIME: Final = struct.Struct(">Q")
_PLACE: Final = struct.Struct(">cicq")  # @ queue @ offset, behind the topic
_AT: Final = b"@"


class KvRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that was popped."""

    pop_ms: Place = field(name="popTime")
    group: Name = field(name="groupId")
    topic: Name = field(name="topicId")
    queue_id: QueueId = field(name="queueId")
    retry_flag: int = field(name="retryFlag", default=0)
    invisible_ms: Place = field(name="invisibleTime")
    queue_offset: Place = field(name="offset")
    attempt_times: int = field(name="attemptTimes", default=0)
    attempt_id: str | UnsetType | None = field(name="attemptId", default=UNSET)
    is_suspended: bool = field(name="suspend", default=False)

    @property
    def visible_ms(self) -> int:
        """Time at which the message can be popped again unless it was acknowledged."""
        return self.pop_ms + self.invisible_ms

    @property
    def key(self) -> bytes:
        """The key of its row."""
        return key_of(self.visible_ms, self.group, self.topic, self.queue_id, self.queue_offset)

    def checkpoint(self, broker_name: str) -> Checkpoint:
        """Give the checkpoint that says the same in a revive topic."""
        return Checkpoint(
            broker_name=broker_name,
            group=self.group,
            deltas=[0],
            invisible_ms=self.invisible_ms,
            count=1,
            pop_ms=self.pop_ms,
            queue_id=self.queue_id,
            visible_ms=self.visible_ms,
            put_again=str(self.attempt_times),
            start_offset=self.queue_offset,
            is_suspended=self.is_suspended,
            topic=self.topic,
        )

    def tried_again_at(self, visible_ms: int) -> KvRecord:
        """Give the record of the same, which could not come again, for a later time."""
        return KvRecord(
            pop_ms=min(self.pop_ms, visible_ms),
            group=self.group,
            topic=self.topic,
            queue_id=self.queue_id,
            retry_flag=self.retry_flag,
            invisible_ms=visible_ms - min(self.pop_ms, visible_ms),
            queue_offset=self.queue_offset,
            attempt_times=self.attempt_times + 1,
            is_suspended=self.is_suspended,
        )


encode: Final = msgspec.json.Encoder().encode
"""Gives the value of a record's row."""

_decode: Final = msgspec.json.Decoder(KvRecord).decode


def records_of(checkpoint: Checkpoint) -> list[KvRecord]:
    """Give the records that say the same as a checkpoint."""
    return [
        KvRecord(
            pop_ms=checkpoint.pop_ms,
            group=checkpoint.group,
            topic=checkpoint.topic,
            queue_id=checkpoint.queue_id,
            retry_flag=origin_of(checkpoint.topic),
            invisible_ms=checkpoint.invisible_ms,
            queue_offset=queue_offset,
            is_suspended=checkpoint.is_suspended,
        )
        for queue_offset in checkpoint.left
    ]


def key_of(visible_ms: int, group: str, topic: str, queue_id: int, queue_offset: int) -> bytes:
    """Give the key of a record's row."""
    place = _PLACE.pack(_AT, queue_id, _AT, queue_offset)
    return TIME.pack(visible_ms) + f"{group}@{topic}".encode() + place


def record_of(key: bytes, value: bytes) -> KvRecord:
    """Read a row; MessageError if nothing can be made of it.

    The key says which message is meant and when it is visible, so a damaged value loses none. Java:
    PopConsumerRocksdbStore#scanExpiredRecords ends there, and nothing comes again any more.
    """
    try:
        record = _decode(value)
    except (ValueError, RecursionError):
        try:
            record = fastjson.decode(value, KvRecord)
        except MessageError:
            return _record_of_key(key)
    return record if record.key == key else _record_of_key(key)


def _record_of_key(key: bytes) -> KvRecord:
    """Read what a key says; the pop then was when the message becomes visible."""
    names, tail = key[TIME.size : -_PLACE.size], key[-_PLACE.size :]
    group, at, topic = names.partition(_AT)
    if len(key) < TIME.size + _PLACE.size or not (group and at and topic):
        raise MessageError(f"not the key of a popped message: {key[:200].hex()}")
    before, queue_id, behind, queue_offset = _PLACE.unpack(tail)
    visible_ms = TIME.unpack_from(key)[0]
    if before + behind != _AT + _AT or min(queue_id, queue_offset) < 0 or visible_ms > LONG_MAX:
        raise MessageError(f"not the key of a popped message: {key[:200].hex()}")
    try:
        return KvRecord(
            pop_ms=visible_ms,
            group=group.decode(),
            topic=topic.decode(),
            queue_id=queue_id,
            invisible_ms=0,
            queue_offset=queue_offset,
        )
    except UnicodeDecodeError as error:
        raise MessageError(f"a name in a key is no UTF-8: {error}") from None
