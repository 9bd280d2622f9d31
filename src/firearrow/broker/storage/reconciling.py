"""Reconciliation of topics, groups and the messages in the store, at a start."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from firearrow.broker.delaying.offsets import DelayOffsets
from firearrow.broker.delaying.redelivery import stated_due_ms
from firearrow.broker.offsets.table import ConsumerOffsets
from firearrow.broker.pop.revivelog import go_on_behind_pops
from firearrow.broker.topics.table import TopicTable
from firearrow.logs import Log
from firearrow.message.names import SCHEDULE_TOPIC
from firearrow.store import MessageStore

log: Final = Log(__name__)

TOLD_SECONDS: Final = 30.0  # maximum age of the offsets of a slave in controller mode
ACTS_SECONDS: Final = 90.0  # and of those of a slave that acts for its master
LOST_MS: Final = 10_000  # maximum age of a delivery that the log has lost
LOST_MESSAGES_MAX: Final = 1 << 20  # of a level that may have lost its deliveries


def pass_pops(store: MessageStore, offsets: ConsumerOffsets, seconds: float = ACTS_SECONDS) -> None:
    """Move groups behind the messages that they popped in the last ``seconds`` of the log."""
    pops = go_on_behind_pops(store, offsets, seconds)
    log.info("groups continue behind their pops", extra={"count": pops})


def place_groups(store: MessageStore, offsets: ConsumerOffsets, write_seconds: float) -> None:
    """Move groups back where they would miss the successors of lost messages (`ConsumerOffsets.go_back`). After a kill,
    move them behind their pops; ``write_seconds`` is the interval between writes of offsets.

    The killed broker may have been a slave, with offsets older than its log.
    """
    if not store.was_closed:
        pass_pops(store, offsets, max(2 * write_seconds, TOLD_SECONDS))
    elif not store.may_have_lost:
        return
    found = offsets.go_back(store.max_queue_offset)
    if found:
        log.warning(
            "groups go back to the end of queues: messages that they consumed are lost",
            extra={"count": len(found), "topics": sorted({topic for topic, _ in found})[:10]},
        )


def adopt_queues(store: MessageStore, topics: TopicTable) -> None:
    """Give messages a topic, and delete the messages of deleted topics (`TopicTable.adopt`)."""
    for topic in topics.adopt(store.queues_left(topics.table)):
        log.info("queues are deleted again: their topic was deleted", extra={"topic": topic})
        store.delete_topic(topic)
    topics.deleted.forget_before(store.log_start_offset)


def load_deliveries(store: MessageStore, offsets: DelayOffsets) -> None:
    """Read the progress of delay levels. Where the log may have lost its end, and deliveries with it, they go back by
    some seconds. Messages that are still in the log are not delivered again.

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
