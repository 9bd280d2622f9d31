"""The books of POP: records in the revive topic (``rmq_sys_REVIVE_LOG_<cluster>``).

Each is a message of the topic whose delivery the timer delays; body JSON, names in the order of the
alphabet. All times are in ms; *pop* and *visible time* are those of the handles (``wire.pop``).

A *checkpoint* (tag ``ck``) says that messages of one queue were popped, and is delivered a second
before they become visible again:

    bm         bits of those that are acknowledged already, in the order of ``d``
    bn, c, t   broker name, group, topic that they are in (perhaps a retry topic)
    q, so      queue, and the queue offset that ``d`` counts from: the start offset of the handles
    d          how far each one's queue offset is behind ``so``; absent: 0 to n-1
    n          how many there are
    pt, it     pop time, invisible time; ``reviveTime`` is their sum
    ro         0 in the store; in memory, the record's own offset in the revive queue
    rp         how often the record had to be put again because the messages could not be read
    sp         whether they are delivered again without another failure being counted (`suspend`)

    {"bm":0,"bn":"b","c":"G","d":[0,1],"it":60000,"n":2,"pt":1700000000000,"q":3,
     "reviveTime":1700000060000,"ro":0,"so":7,"sp":false,"t":"T"}

An *acknowledgement* (tag ``ack``; of several, ``bAck``) names its checkpoint by ``t``, ``c``,
``q``, ``so``, ``pt`` and ``bn``, the queue offset that was acknowledged by ``ao`` or those by
``aol``, and is delivered when they become visible.

    {"ao":8,"bn":"b","c":"G","pt":1700000000000,"q":3,"so":7,"t":"T"}

Source: upstream ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``, ``PopMessageProcessor#buildCkMsg``.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType, field

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

CHECKPOINT_LEAD_MS: Final = 1000  # a checkpoint is delivered so long before its messages are due


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages of one queue that were popped together."""

    acknowledged_bits: int = field(name="bm", default=0)
    broker_name: str | None = field(name="bn", default=None)
    group: str = field(name="c")
    deltas: list[int] | UnsetType | None = field(name="d", default=UNSET)
    invisible_ms: int = field(name="it")
    count: int = field(name="n")
    pop_ms: int = field(name="pt")
    queue_id: int = field(name="q")
    visible_ms: int = field(name="reviveTime", default=0)
    revive_offset: int = field(name="ro", default=0)
    put_again: str | UnsetType | None = field(name="rp", default=UNSET)
    start_offset: int = field(name="so")
    is_suspended: bool = field(name="sp", default=False)
    topic: str = field(name="t")

    @property
    def queue_offsets(self) -> list[int]:
        """The queue offset of each message."""
        if not self.deltas:
            return list(range(self.start_offset, self.start_offset + self.count))
        return [self.start_offset + delta for delta in self.deltas]

    def unique_key(self) -> str:
        """The id of its message."""
        return (
            f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_ms}"
            f"@{self.broker_name}@{CHECKPOINT_TAG}"
        )


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Messages of a checkpoint were consumed: that at ``queue_offset``, or all of
    ``queue_offsets``."""

    queue_offset: int = field(name="ao", default=-1)
    queue_offsets: list[int] | UnsetType | None = field(name="aol", default=UNSET)
    broker_name: str | UnsetType | None = field(name="bn", default=UNSET)
    group: str = field(name="c")
    pop_ms: int = field(name="pt")
    queue_id: int = field(name="q")
    start_offset: int = field(name="so")
    topic: str = field(name="t")

    @property
    def acknowledged(self) -> list[int]:
        """The queue offsets that were acknowledged."""
        return self.queue_offsets or [self.queue_offset]

    def unique_key(self) -> str:
        """The id of its message; that of several, too, ends like that of one."""
        return (
            f"{self.topic}@{self.queue_id}@{self.queue_offset}@{self.group}@{self.pop_ms}"
            f"@{self.broker_name}@{ACK_TAG}"
        )
