"""Messages that a POP consumer did not acknowledge in time go to a retry topic of its group.

``%RETRY%<group>_<topic>`` or, with ``enableRetryTopicV2``, ``%RETRY%<group>+<topic>``; what is in a
retry topic already stays in that one. It has one queue, or as many as the topic and a message keeps
its own: with ``useSeparateRetryQueue``, so those of a queue stay in order; and for topics with
priorities always, or a message would wait there for all of lower priority that failed before.
Java: reviveRetry has one queue for them, too (apache/rocketmq#10350).

Source: upstream ``PopReviveService#reviveRetry``, ``#addRetryTopicIfNotExist``.
"""

from __future__ import annotations

from msgspec.structs import replace

from firearrow.broker.context import BrokerContext
from firearrow.broker.pop.records import Checkpoint
from firearrow.broker.puts import Draft, draft_of
from firearrow.broker.state.attributes import MESSAGE_TYPE
from firearrow.errors import BrokerError, MessageError
from firearrow.message import names, properties
from firearrow.message.model import MessageView
from firearrow.store import QueueEntry


class Retries:
    """Puts messages of checkpoints into retry topics."""

    def __init__(self, context: BrokerContext) -> None:
        self._store = context.store
        self._puts = context.puts
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._settings = context.settings

    def are_wanted(self, checkpoint: Checkpoint) -> bool:
        """Whether topic and group of a checkpoint are still there; DiskFull if that can't be."""
        topic = popped_topic(checkpoint.topic, checkpoint.group)
        has_topic = self._topics.get(topic) is not None
        return has_topic and self._groups.find(checkpoint.group) is not None

    def put(self, checkpoint: Checkpoint, queue_offset: int, now_ms: int) -> None:
        """Put one message of a checkpoint into its retry topic, unless it is gone from the store.

        MessageError says why that can't be done with this message for now; StoreError and OSError,
        why nothing can be put.
        """
        entry = self._entry(checkpoint, queue_offset)
        if entry is None:
            return
        try:
            view = self._store.view_at(entry.physical_offset)
        except MessageError:
            if entry.physical_offset < self._store.log_start_offset:
                return
            raise
        self._put(checkpoint, view, now_ms)

    def _entry(self, checkpoint: Checkpoint, queue_offset: int) -> QueueEntry | None:
        """Where a message is, None if it is gone; MessageError if that is not known yet.

        Java: PopReviveService#getBizMessage takes whatever the queue can't give for gone.
        """
        store, topic, queue_id = self._store, checkpoint.topic, checkpoint.queue_id
        if queue_offset < store.min_queue_offset(topic, queue_id):
            return None
        for entry in store.iterate_from(topic, queue_id, queue_offset, 1):
            return entry if entry.queue_offset == queue_offset else None
        if queue_offset < store.queue(topic, queue_id).next_offset:
            raise MessageError("its queue does not reach it yet", "queue offset")
        return None

    def _put(self, checkpoint: Checkpoint, view: MessageView, now_ms: int) -> None:
        topic = self._topic_of(checkpoint)
        draft = self._draft(checkpoint, view)
        draft.topic = topic
        draft.queue_id = self._queue_id(checkpoint, topic, view.queue_id)
        noted = draft.properties
        if not view.reconsume_times or properties.FIRST_POP_TIME not in noted:
            noted = noted | {properties.FIRST_POP_TIME: str(checkpoint.pop_ms)}
        noted = noted | {properties.ORIGIN_GROUP: checkpoint.group}
        # The notes may make it too large. Java: tries it again, for ever.
        for kept in (noted, view.properties):
            draft.properties = kept
            try:
                self._puts.deliver(draft, now_ms)
            except (MessageError, BrokerError) as error:
                refusal = str(error)
            else:
                return
        raise MessageError(refusal, "message")

    def _draft(self, checkpoint: Checkpoint, view: MessageView) -> Draft:
        """The message as it was, born here, and failed once more unless it was set aside."""
        draft = draft_of(view)
        draft.born_host = self._store.store_host
        draft.reconsume_times += not checkpoint.is_suspended
        return draft

    def _topic_of(self, checkpoint: Checkpoint) -> str:
        """The retry topic for a checkpoint; it is there with its queues when this returns."""
        topic, group = checkpoint.topic, checkpoint.group
        if not names.is_retry(topic):
            topic = names.pop_retry_topic(
                topic, group, v2=self._settings.broker.enable_retry_topic_v2
            )
        config, queue_nums = self._topics.get(topic), self._queue_nums(checkpoint)
        if config is None:
            self._topics.create(topic, queue_nums)
            known = 0
        elif config.write_queue_nums < queue_nums:
            # Java: PopReviveService#addRetryTopicIfNotExist makes it smaller, too, and what is in
            # its last queues is popped no more.
            nums = {"read_queue_nums": queue_nums, "write_queue_nums": queue_nums}
            self._topics.put(replace(config, attributes={}, **nums))
            known = config.write_queue_nums
        else:
            return topic
        for queue_id in range(known, queue_nums):
            if self._offsets.query(group, topic, queue_id) < 0:
                self._offsets.commit(group, topic, queue_id, 0)
        return topic

    def _queue_nums(self, checkpoint: Checkpoint) -> int:
        """How many queues the retry topic for a checkpoint is to have at least."""
        popped = self._topics.get(popped_topic(checkpoint.topic, checkpoint.group))
        if popped is None:
            return 1
        has_priorities = popped.attributes.get(MESSAGE_TYPE) == "PRIORITY"
        if has_priorities or self._settings.broker.use_separate_retry_queue:
            return max(popped.write_queue_nums, 1)
        return 1

    def _queue_id(self, checkpoint: Checkpoint, topic: str, queue_id: int) -> int:
        """The queue for a message that was in a queue."""
        config = self._topics.get(topic)
        count = 0 if config is None else config.write_queue_nums
        return queue_id if queue_id < min(self._queue_nums(checkpoint), count) else 0


def popped_topic(topic: str, group: str) -> str:
    """Give the topic that messages were popped from at first, of that which they are in now."""
    for v2 in (True, False):
        prefix = names.pop_retry_topic("", group, v2=v2)
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic
