"""Offsets at which groups that pop go on after a broker was killed.

Their offsets are written every few seconds, their checkpoints at once. So a start looks through the
checkpoints of the last seconds: one that begins where its group is moves it behind what was popped.
What was in hand stays invisible until its time then, and does not come at once.

A group is never moved over a message that no checkpoint is about. Where pops were noted elsewhere,
or gave nothing that their filter wants, it goes on where it was, and what was popped behind comes
once more. RocketMQ repeats all pops since it wrote the offsets.
"""

from __future__ import annotations

from typing import Final

from firearrow.broker.offsets.table import UNKNOWN, ConsumerOffsets
from firearrow.broker.pop.records import CHECKPOINT_TAG, checkpoint_of
from firearrow.errors import MessageError
from firearrow.message.names import TIMER_TOPIC, tag_code
from firearrow.store import Boundary, MessageStore

RECORDS_MAX: Final = 500_000  # of the timer's topic, the last ones; a second or two
_CHECKPOINT: Final = tag_code(CHECKPOINT_TAG)


def go_on_behind_pops(store: MessageStore, offsets: ConsumerOffsets, seconds: float) -> int:
    """Move groups behind what they popped in the last ``seconds`` of a store; gives how many pops
    that were."""
    end = store.max_queue_offset(TIMER_TOPIC, 0)
    last_ms = store.store_time_of(TIMER_TOPIC, 0, end - 1)
    if last_ms < 0:
        return 0
    first_ms = last_ms - int(seconds * 1000)
    first = store.search_offset(TIMER_TOPIC, 0, first_ms, Boundary.LOWER)
    first = max(first, end - RECORDS_MAX)
    moved = 0
    for _, physical_offset, _, kind in store.iterate_from(TIMER_TOPIC, 0, first):
        if kind == _CHECKPOINT:
            try:
                body = store.content_at(physical_offset).body
                moved += _go_on_behind(body, store, offsets)
            except MessageError:  # whoever reads it for its sake says so
                continue
    return moved


def _go_on_behind(body: bytes, store: MessageStore, offsets: ConsumerOffsets) -> bool:
    popped = checkpoint_of(body)
    topic, queue_id = popped.topic, popped.queue_id
    known = offsets.query(popped.group, topic, queue_id)
    if not popped.count or known not in {UNKNOWN, popped.start_offset}:
        return False
    behind = popped.queue_offset(popped.count - 1) + 1
    if behind > store.max_queue_offset(topic, queue_id):
        return False
    offsets.commit(popped.group, topic, queue_id, behind)
    return True
