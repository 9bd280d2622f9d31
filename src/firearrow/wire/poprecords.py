"""Records of POP in the revive topic (``rmq_sys_REVIVE_LOG_<cluster>``).

Each record is a message of the topic, whose delivery the timer delays. Its body is JSON with the names in alphabetical
order. All times are in ms; *pop time* and *visible time* have the same meaning as in handles (``wire.pop``).

A *checkpoint* (tag ``ck``) says that messages of one queue were popped, and is delivered a second before they become
visible again:

    bm         bits of the messages that are acknowledged already, in the order of ``d``
    bn, c, t   broker name, group, topic of the messages (perhaps a retry topic)
    q, so      queue, and the queue offset that ``d`` counts from: the start offset of the handles
    d          distance of each message's queue offset from ``so``; absent: 0 to n-1
    n          count of messages
    pt, it     pop time, invisible time; ``reviveTime`` is their sum
    ro         0 in the store; in memory, the record's own offset in the revive queue
    rp         count of retries of the record because the messages could not be read
    sp         whether their redelivery does not count as a failure (`suspend`)

    {"bm":0,"bn":"b","c":"G","d":[0,1],"it":60000,"n":2,"pt":1700000000000,"q":3,
     "reviveTime":1700000060000,"ro":0,"so":7,"sp":false,"t":"T"}

An *acknowledgement* (tag ``ack``; of several messages, ``bAck``) names its checkpoint by ``t``, ``c``, ``q``, ``so``,
``pt`` and ``bn``, and the acknowledged queue offset by ``ao`` or several by ``aol``. It is delivered when the messages
become visible.

    {"ao":8,"bn":"b","c":"G","pt":1700000000000,"q":3,"so":7,"t":"T"}

The decoder also takes the long names of the fields in Java (``popTime`` for ``pt``), and all other JSON that RocketMQ's
library takes (``wire.fastjson``). It refuses records with impossible numbers.

Source: RocketMQ ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``, ``PopMessageProcessor#buildCkMsg``.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from firearrow.errors import MessageError
from firearrow.javanumbers import INT_MAX
from firearrow.wire import fastjson

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

CHECKPOINT_LEAD_MS: Final = 1000  # a checkpoint is delivered this time before its messages are due
MESSAGES_MAX: Final = 127  # of a checkpoint: Java counts them in a byte
PUT_AGAIN_MAX: Final = 127  # Java: PopCheckPoint#parseRePutTimes, for text that is no number

Name = Annotated[str, Meta(min_length=1)]
Natural = Annotated[int, Meta(ge=0, le=(1 << 62) - 1)]  # the sum of two is a long, too
QueueId = Annotated[int, Meta(ge=0, le=INT_MAX)]
Count = Annotated[int, Meta(ge=0, le=MESSAGES_MAX)]


class PopCheckpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages of one queue that were popped together."""

    acknowledged_bits: int = field(name="bm", default=0)
    broker_name: str | None = field(name="bn", default=None)
    group: Name = field(name="c")
    deltas: list[int] | UnsetType | None = field(name="d", default=UNSET)
    invisible_ms: Natural = field(name="it")
    count: Count = field(name="n")
    pop_ms: Natural = field(name="pt")
    queue_id: QueueId = field(name="q")
    visible_ms: int = field(name="reviveTime", default=0)
    revive_offset: int = field(name="ro", default=0)
    put_again: str | int | UnsetType | None = field(name="rp", default=UNSET)
    start_offset: Natural = field(name="so")
    is_suspended: bool = field(name="sp", default=False)
    topic: Name = field(name="t")

    @property
    def queue_offsets(self) -> list[int]:
        """Queue offset of each message."""
        if not self.deltas:
            return list(range(self.start_offset, self.start_offset + self.count))
        return [self.start_offset + delta for delta in self.deltas[: self.count]]

    def queue_offset(self, index: int) -> int:
        """Return the queue offset of a message."""
        return self.start_offset + (self.deltas[index] if self.deltas else index)

    @property
    def left(self) -> list[int]:
        """Queue offset of each message that is not acknowledged yet."""
        bits = self.acknowledged_bits
        offsets = enumerate(self.queue_offsets)
        return [queue_offset for at, queue_offset in offsets if not bits >> at & 1]

    def put_again_for(self, queue_offset: int, due_ms: int) -> PopCheckpoint:
        """Return a checkpoint of one of its messages alone, for a later time.

        Java: PopReviveService#rePutCK forgets whether the message was suspended.
        """
        return PopCheckpoint(
            broker_name=self.broker_name,
            group=self.group,
            deltas=[0],
            invisible_ms=due_ms - self.pop_ms,
            count=1,
            pop_ms=self.pop_ms,
            queue_id=self.queue_id,
            visible_ms=due_ms,
            put_again=str(self.put_again_times + 1),
            start_offset=queue_offset,
            is_suspended=self.is_suspended,
            topic=self.topic,
        )

    @property
    def due_ms(self) -> int:
        """Time when its messages become visible again."""
        return self.pop_ms + self.invisible_ms

    @property
    def put_again_times(self) -> int:
        """Count of its earlier retries."""
        text = str(self.put_again or 0)
        is_number = text.isascii() and text.isdecimal() and len(text) <= 9
        return int(text) if is_number else PUT_AGAIN_MAX

    def unique_key(self) -> str:
        """Return the id of its message."""
        return (
            f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_ms}"
            f"@{self.broker_name}@{CHECKPOINT_TAG}"
        )


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Acknowledgement of messages of a checkpoint: of the one at ``queue_offset``, or of all ``queue_offsets``."""

    queue_offset: int = field(name="ao", default=-1)
    queue_offsets: list[int] | UnsetType | None = field(name="aol", default=UNSET)
    broker_name: str | UnsetType | None = field(name="bn", default=UNSET)
    group: Name = field(name="c")
    pop_ms: Natural = field(name="pt")
    queue_id: QueueId = field(name="q")
    start_offset: Natural = field(name="so")
    topic: Name = field(name="t")

    @property
    def acknowledged(self) -> list[int]:
        """Queue offsets of the acknowledged messages."""
        return self.queue_offsets or [self.queue_offset]

    def unique_key(self) -> str:
        """Return the id of its message; an acknowledgement of several ends like one of one."""
        return (
            f"{self.topic}@{self.queue_id}@{self.queue_offset}@{self.group}@{self.pop_ms}@{self.broker_name}@{ACK_TAG}"
        )

    def format(self) -> AckFormat:
        """Return the bytes that acknowledgements have in common if they differ in one queue offset only."""
        body, key = encode(self), self.unique_key().encode()
        offset = b"%d" % self.queue_offset
        at = len(f"{self.topic}@{self.queue_id}@".encode())
        return AckFormat(body[len(_BODY_BEFORE + offset) :], key[:at], key[at + len(offset) :])


class AckFormat(NamedTuple):
    """Bytes behind the queue offset in a body, and before and behind it in an id."""

    body_behind: bytes
    key_before: bytes
    key_behind: bytes

    def body(self, queue_offset: bytes) -> bytes:
        """Return the body of an acknowledgement."""
        return _BODY_BEFORE + queue_offset + self.body_behind


_BODY_BEFORE: Final = b'{"ao":'

encode: Final = msgspec.json.Encoder().encode
"""Encode the body of a record."""

Record = TypeVar("Record", PopCheckpoint, Acknowledgement)

_LONG_NAMES: Final = {
    "ackOffset": "ao", "ackOffsetList": "aol", "bitMap": "bm", "brokerName": "bn", "cId": "c",
    "cid": "c", "consumerGroup": "c", "invisibleTime": "it", "num": "n", "popTime": "pt",
    "queueId": "q", "queueOffsetDiff": "d", "rePutTimes": "rp", "reviveOffset": "ro",
    "startOffset": "so", "suspend": "sp", "topic": "t",
}  # fmt: skip


_decode_checkpoint: Final = msgspec.json.Decoder(PopCheckpoint).decode
_decode_acknowledgement: Final = msgspec.json.Decoder(Acknowledgement).decode


def checkpoint_of(body: bytes) -> PopCheckpoint:
    """Decode the body of a checkpoint; MessageError if it can't be one."""
    try:
        checkpoint = _decode_checkpoint(body)
    except (ValueError, RecursionError):
        checkpoint = _read(body, PopCheckpoint)
    deltas = checkpoint.deltas
    if deltas and (len(deltas) < checkpoint.count or min(deltas) + checkpoint.start_offset < 0):
        raise MessageError(f"{deltas[:32]} are not {checkpoint.count} distances", "d")
    return checkpoint


def acknowledgement_of(body: bytes) -> Acknowledgement:
    """Decode the body of an acknowledgement, of one message or several; MessageError if it can't be one."""
    try:
        return _decode_acknowledgement(body)
    except (ValueError, RecursionError):
        return _read(body, Acknowledgement)


def _read(body: bytes, kind: type[Record]) -> Record:
    try:
        return fastjson.decode(body, kind)
    except MessageError:
        fields = fastjson.loads(body)
        if not isinstance(fields, dict) or fields.keys().isdisjoint(_LONG_NAMES):
            raise
    short = {_LONG_NAMES.get(name, name): value for name, value in fields.items()}
    return fastjson.decode(fastjson.dumps(short), kind)
