"""What a start does so that topics, groups and the messages in the store fit together."""

from __future__ import annotations

import logging

from firearrow.broker.pop.resuming import go_on_behind_pops
from firearrow.broker.state.offsets import ConsumerOffsets
from firearrow.broker.state.topics import TopicTable
from firearrow.store import MessageStore

log = logging.getLogger(__name__)


def place_groups(store: MessageStore, offsets: ConsumerOffsets, write_seconds: float) -> None:
    """See that groups get what takes the place of lost messages (`ConsumerOffsets.go_back`),
    and after a kill go on behind what they popped; offsets are written so often."""
    if not store.was_closed:
        pops = go_on_behind_pops(store, offsets, 2 * write_seconds)
        log.info("groups go on behind their pops", extra={"count": pops})
    if not store.may_have_lost:
        return
    found = offsets.go_back(store.max_queue_offset)
    if found:
        log.warning(
            "groups go back to the end of queues: messages that they consumed are lost",
            extra={"count": len(found), "topics": sorted({topic for topic, _ in found})[:10]},
        )


def adopt_queues(store: MessageStore, topics: TopicTable) -> None:
    """See that messages have a topic, and deleted topics no messages (`TopicTable.adopt`)."""
    for topic in topics.adopt(store.queues_left(topics.table)):
        log.info("queues are deleted again: their topic was deleted", extra={"topic": topic})
        store.delete_topic(topic)
    topics.deleted.forget_before(store.log_start_offset)
