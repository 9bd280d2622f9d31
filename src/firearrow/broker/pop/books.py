"""The books of what was popped: `Books` keeps them in the revive topic (``pop.records``).

A group's offset moves on when its messages are popped, and not when they are consumed. So the
checkpoint is in the log before: whoever is killed between the two has messages popped twice, and
none lost.

Each record waits in the timer's topic, as any message with a delivery time. Its properties, in the
order in which RocketMQ's broker has them (that of a Java HashMap)::

    REAL_TOPIC         rmq_sys_REVIVE_LOG_<cluster>
    TIMER_DELIVER_MS   a checkpoint: a second before its messages are visible; else when they are
    UNIQ_KEY           <topic>@<queue>@<start offset>@<group>@<pop time>@<broker>@ck
                       <topic>@<queue>@<offset or -1>@<group>@<pop time>@<broker>@ack
    TAGS               ck, ack or bAck
    TIMER_OUT_MS       the slot of the timer, see ``broker.timing``
    REAL_QID           the revive queue

Source: upstream ``PopMessageProcessor#buildCkMsg``, ``AckMessageProcessor#appendAck``,
``PopBufferMergeService#addCkJustOffset``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_LEAD_MS,
    CHECKPOINT_TAG,
    Acknowledgement,
    Checkpoint,
)
from firearrow.broker.state.offsets import UNKNOWN
from firearrow.broker.timing import TimerRedirection
from firearrow.errors import BrokerError
from firearrow.message import names
from firearrow.wire.codes import ResponseCode

_encode: Final = msgspec.json.Encoder().encode


class Books:
    """Writes checkpoints and acknowledgements, and moves the offsets of groups."""

    def __init__(self, context: BrokerContext) -> None:
        config = context.settings.broker
        self._broker_name = config.broker_name
        self._topic = names.revive_topic(config.broker_cluster_name)
        self._topics = context.topics
        self._offsets = context.offsets
        self._puts = context.puts
        self._timer = TimerRedirection(context.settings, context.timers, context.chance)
        self._settings = context.settings
        self._next_queue = 0

    @property
    def queue_count(self) -> int:
        """How many revive queues there are."""
        config = self._topics.get(self._topic)
        return 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)

    def next_queue_id(self) -> int:
        """Give the revive queue of the next pop, one after another."""
        count = max(min(self._settings.broker.revive_queue_num, self.queue_count), 1)
        self._next_queue = (self._next_queue + 1) % count
        return self._next_queue

    # --- what was popped ---

    def offset(self, group: str, topic: str, queue_id: int) -> int:
        """Give the offset that a group pops from, -1 if it has none."""
        queues = self._offsets.committed.get(f"{topic}@{group}")
        return UNKNOWN if queues is None else queues.get(queue_id, UNKNOWN)

    def popped(
        self, checkpoint: Checkpoint, revive_queue_id: int, next_offset: int, now_ms: int
    ) -> None:
        """Note that messages are popped, after which the group goes on at an offset.

        Raises BrokerError, DiskFull or MessageError, having noted nothing: then they are not.
        """
        self.put_checkpoint(checkpoint, revive_queue_id, now_ms)
        self._offsets.commit(checkpoint.group, checkpoint.topic, checkpoint.queue_id, next_offset)

    def passed(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Note that a group goes on at an offset, and wants nothing of what is before it."""
        self._offsets.commit(group, topic, queue_id, next_offset)

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Have a group go on at an offset, whatever was popped before."""
        self._offsets.commit(group, topic, queue_id, queue_offset)

    # --- what was consumed ---

    def acknowledged(
        self, ack: Acknowledgement, revive_queue_id: int, visible_ms: int, now_ms: int
    ) -> None:
        """Note that messages were consumed that become visible at a time; raises like `popped`."""
        self.put_acknowledgement(ack, revive_queue_id, visible_ms, now_ms)

    # --- records ---

    def put_checkpoint(self, checkpoint: Checkpoint, revive_queue_id: int, now_ms: int) -> None:
        """Write a checkpoint; raises like `popped`."""
        deliver_ms = checkpoint.pop_ms + checkpoint.invisible_ms - CHECKPOINT_LEAD_MS
        key = checkpoint.unique_key()
        self._put(_encode(checkpoint), revive_queue_id, CHECKPOINT_TAG, key, deliver_ms, now_ms)

    def put_acknowledgement(
        self, ack: Acknowledgement, revive_queue_id: int, visible_ms: int, now_ms: int
    ) -> None:
        """Write an acknowledgement; raises like `popped`."""
        tag = BATCH_ACK_TAG if ack.queue_offsets else ACK_TAG
        self._put(_encode(ack), revive_queue_id, tag, ack.unique_key(), visible_ms, now_ms)

    def _put(
        self, body: bytes, queue_id: int, tag: str, key: str, deliver_ms: int, now_ms: int
    ) -> None:
        if not 0 <= queue_id < self.queue_count:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"reviveQid[{queue_id}] is illegal, there are {self.queue_count} revive queues",
            )
        slot_ms = self._timer.slot_ms(deliver_ms, now_ms)
        stored = f"TIMER_DELIVER_MS\1{deliver_ms}\2UNIQ_KEY\1{key}\2TAGS\1{tag}\2"
        if slot_ms is None:
            self._puts.put_waiting(
                self._topic, queue_id, body, stored.encode(), self._topic, now_ms
            )
            return
        stored = (
            f"REAL_TOPIC\1{self._topic}\2{stored}TIMER_OUT_MS\1{slot_ms}\2REAL_QID\1{queue_id}\2"
        )
        self._puts.put_waiting(names.TIMER_TOPIC, 0, body, stored.encode(), self._topic, now_ms)
