"""Reconciling: a start makes topics, groups and the messages in the store fit together."""

from __future__ import annotations

import logging
from bisect import bisect_left
from typing import Final

from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.broker.delaying.redelivery import stated_due_ms
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.pop.revivelog import go_on_behind_pops
from firearrow.broker.topics.table import TopicTable
from firearrow.message.names import SCHEDULE_TOPIC
from firearrow.store import MessageStore

log = logging.getLogger(__name__)

TOLD_SECONDS: Final = 30.0  # so old are the offsets that a slave knows in controller mode, at most
ACTS_SECONDS: Final = 90.0  # and those of one that acts for its master
LOST_MS: Final = 10_000  # so old may be a delivery that the log has lost
LOST_MESSAGES_MAX: Final = 1 << 20  # of a level of which it may have lost the deliveries


def pass_pops(store: MessageStore, offsets: ConsumerOffsets, seconds: float = ACTS_SECONDS) -> None:
    """Have groups go on behind what they popped in the last ``seconds`` of the log."""
    pops = go_on_behind_pops(store, offsets, seconds)
    log.info("groups go on behind their pops", extra={"count": pops})


def place_groups(store: MessageStore, offsets: ConsumerOffsets, write_seconds: float) -> None:
    """See that groups get what takes the place of lost messages (`ConsumerOffsets.go_back`),
    and after a kill go on behind what they popped; offsets are written so often.

    What was killed may have been a slave, which knew offsets behind what it had of the log.
    """
    if not store.was_closed:
        pass_pops(store, offsets, max(2 * write_seconds, TOLD_SECONDS))
    elif not store.may_have_lost:
        return
    found = offsets.go_back(store.max_queue_offset)
    if found:
        log.warning(
            "groups go back to the end of queues: messages that they consumed are not here",
            extra={"count": len(found), "topics": sorted({topic for topic, _ in found})[:10]},
        )


def adopt_queues(store: MessageStore, topics: TopicTable) -> None:
    """See that messages have a topic, and deleted topics no messages (`TopicTable.adopt`)."""
    for topic in topics.adopt(store.queues_left(topics.table)):
        log.info("queues are deleted again: their topic was deleted", extra={"topic": topic})
        store.delete_topic(topic)
    topics.deleted.forget_before(store.log_start_offset)


def load_deliveries(store: MessageStore, offsets: DelayOffsets) -> None:
    """Read how far delay levels are delivered. Where the log may have lost its end, and deliveries
    with it, they go back by some seconds: what the log still has is not delivered again.

    Raises ConfigError when the file can't be read.
    """
    offsets.load(store.log_end_offset)
    if not store.may_have_lost:
        return
    sure_ms = store.last_store_ms - LOST_MS
    for level, at in list(offsets.table.items()):
        end = min(at, store.max_queue_offset(SCHEDULE_TOPIC, level - 1))
        first = max(store.min_queue_offset(SCHEDULE_TOPIC, level - 1), end - LOST_MESSAGES_MAX)

        def due_ms(queue_offset: int, level: int = level) -> int:
            entries = store.iterate_from(SCHEDULE_TOPIC, level - 1, queue_offset, 1)
            return sum(stated_due_ms(store, level, entry) for entry in entries)

        back = first + bisect_left(range(first, end), sure_ms, key=due_ms)
        if back < at:
            offsets.correct(level, back)
