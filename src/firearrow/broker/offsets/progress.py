"""Progress of consumer groups, and copies of one group's progress to another: 208, 303, 308, 314, 317, 343, 19002.

Source: RocketMQ's ``AdminBrokerProcessor``, ``ConsumerOffsetManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final

from msgspec import Raw

from firearrow.broker.answers import answer_in_steps
from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import ClientChannel
from firearrow.errors import BrokerError
from firearrow.javanumbers import LONG_MAX
from firearrow.logs import Log
from firearrow.message import names
from firearrow.message.hosts import unpack_host
from firearrow.net.server import Answer, Steps
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import AllConsumeStats, CorrectionOffsets, QueueTimeSpan, QueueTimeSpans
from firearrow.wire.bodies import TopicList
from firearrow.wire.client_bodies import ITEMS_MAX, ConsumeStats, MessageQueue, OffsetWrapper
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import (
    AllProgress,
    CloneGroupOffset,
    CorrectionOffset,
    GetConsumeStats,
    GroupAndTopic,
    TopicsOfGroup,
)

log: Final = Log(__name__)

NOT_COMPARABLE: Final = LONG_MAX
"""Correction of a queue in which the compared group is behind the others."""


InFlightCount = Callable[[str, str, int], int]
"""Returns the count of messages of a topic's queue that a group has popped and not acknowledged."""


class ProgressProcessor:
    """208, 303, 308, 314, 317, 343, 19002."""

    def __init__(self, context: BrokerContext, in_flight: InFlightCount) -> None:
        self._in_flight = in_flight
        self._settings = context.settings
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._clients = context.clients
        self._store = context.store
        self._stats = context.stats
        self._clock = context.clock
        self._address = str(unpack_host(context.store.store_host))

    def progress(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """208: progress and rate of a group."""
        header = fields_of(request, GetConsumeStats)
        group = header.consumer_group
        table: dict[MessageQueue, OffsetWrapper] = {}
        tps = 0.0
        listed = _listed(header)
        for topic in self._topics_asked(header) if listed is None else listed:
            config = self._topics.get(topic)
            if config is None or (listed is None and not self._may_consume(group, topic)):
                continue
            with_pops = bool(header.with_pops)
            table |= yield from self._progress_in_topic(group, topic, config.read_queue_nums, with_pops=with_pops)
            tps += self._stats.group_get_tps(group, topic)
            yield
        return (yield from answer_in_steps(ConsumeStats(table, tps)))

    def _topics_asked(self, header: GetConsumeStats) -> Iterable[str]:
        if header.topic and header.topic.strip():
            return [header.topic]
        return sorted(self._offsets.topics_of(header.consumer_group))

    def _may_consume(self, group: str, topic: str) -> bool:
        """Tell whether the group subscribes to the topic, or to the original topic of a retry topic. True for a group
        that is offline: its subscriptions are unknown.
        """
        online = self._clients.consumer_group(group)
        if online is None or not online.subscriptions or topic in online.subscriptions:
            return True
        return names.is_retry(topic) and any(
            topic == names.pop_retry_topic(wanted, group, v2=is_v2)
            for wanted in online.subscriptions
            for is_v2 in (False, True)
        )

    def _progress_in_topic(
        self, group: str, topic: str, queue_nums: int, *, with_pops: bool = False
    ) -> Generator[None, None, dict[MessageQueue, OffsetWrapper]]:
        table: dict[MessageQueue, OffsetWrapper] = {}
        for queue_id in range(queue_nums):
            queue = MessageQueue(topic, self._settings.broker.broker_name, queue_id)
            table[queue] = self._progress_in(group, topic, queue_id, with_pops=with_pops)
            yield
        return table

    def _progress_in(self, group: str, topic: str, queue_id: int, *, with_pops: bool) -> OffsetWrapper:
        consumed = max(0, self._offsets.query(group, topic, queue_id))
        pulled = self._offsets.query_pull(group, topic, queue_id)
        if with_pops and (popped := self._in_flight(topic, group, queue_id)):
            pulled = max(consumed, pulled)
            consumed = max(0, consumed - popped)
        stored = self._store.store_time_of(topic, queue_id, consumed - 1) if consumed > 0 else 0
        return OffsetWrapper(
            max(0, self._store.max_queue_offset(topic, queue_id)), consumed, max(consumed, pulled), max(0, stored)
        )

    def all_progress(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """317: progress of all groups in all their topics, or in ordered ones.

        Java: AdminBrokerProcessor#fetchAllConsumeStatsInBroker leaves out the pulled offsets, so that the messages in
        flight come out below 0.
        """
        header = fields_of(request, AllProgress)
        topics_of = yield from self._offsets.topics_by_group()
        groups: list[dict[str, list[Raw]]] = []
        waiting = in_flight = 0
        for group in list(self._groups.table):
            written: list[Raw] = []
            for topic in topics_of.get(group, ()):
                config = self._topics.get(topic)
                if config is None or (header.is_order and not config.order):
                    continue
                if not self._may_consume(group, topic):
                    continue
                table = yield from self._progress_in_topic(group, topic, config.write_queue_nums)
                stats = ConsumeStats(table, self._stats.group_get_tps(group, topic))
                waiting += stats.diff
                in_flight += stats.in_flight
                written.append(Raw((yield from fastjson.dumps_in_steps(stats))))
            groups.append({group: written})
            yield
        return (yield from answer_in_steps(AllConsumeStats(self._address, groups, waiting, in_flight)))

    def time_spans(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """303: time span of the messages of a topic, and the consumed part."""
        header = fields_of(request, GroupAndTopic)
        config = self._topics.get(header.topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        spans: list[QueueTimeSpan] = []
        for queue_id in range(config.write_queue_nums):
            spans.append(self._time_span(header.group, header.topic, queue_id))
            yield
        return (yield from answer_in_steps(QueueTimeSpans(spans)))

    def _time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        """Time span of one queue. Java: AdminBrokerProcessor#queryConsumeTimeSpan returns a delay since 1970 for a
        group that has not begun, or whose next message is deleted.
        """
        store = self._store
        first_ms, last_ms = store.time_span(topic, queue_id)
        consumed = max(0, self._offsets.query(group, topic, queue_id))
        consumed_ms = store.store_time_of(topic, queue_id, consumed - 1) if consumed else first_ms
        behind = consumed < store.max_queue_offset(topic, queue_id)
        next_offset = max(consumed, store.min_queue_offset(topic, queue_id))
        next_ms = store.store_time_of(topic, queue_id, next_offset) if behind else -1
        delay = max(0, self._clock.now_ms() - next_ms) if next_ms > 0 else 0
        queue = MessageQueue(topic, self._settings.broker.broker_name, queue_id)
        return QueueTimeSpan(queue, first_ms, last_ms, consumed_ms, delay)

    def correction(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """308: the least offset of any group in each queue of a topic, without some groups.

        Where the compared group is behind that offset, the answer is the highest number. Java:
        ConsumerOffsetManager#queryMinOffsetInAllGroup deletes the offsets of the excluded groups.
        """
        header = fields_of(request, CorrectionOffset)
        topic = header.topic
        ignored = set(header.filter_groups.split(","))
        least: dict[int, int] = {}
        for group in sorted(self._offsets.groups_of(topic) - ignored):
            for queue_id, queue_offset in self._offsets.queues(group, topic).items():
                if queue_offset >= self._store.min_queue_offset(topic, queue_id):
                    least[queue_id] = min(queue_offset, least.get(queue_id, queue_offset))
            yield
        for queue_id, queue_offset in self._offsets.queues(header.compare_group, topic).items():
            if least.get(queue_id, queue_offset) > queue_offset:
                least[queue_id] = NOT_COMPARABLE
        return (yield from answer_in_steps(CorrectionOffsets(least)))

    def clone(self, _: ClientChannel, request: AnyCommand) -> Steps:
        """314: copy the offsets of a group to another, in a topic or in all topics of the first.

        A group without offsets is no error: an administrator asks every broker. Java:
        AdminBrokerProcessor#cloneGroupOffset does nothing without a topic.
        """
        header = fields_of(request, CloneGroupOffset)
        fault = names.validate_group(header.dest_group)
        if fault is not None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
        source = header.src_group
        asked = [header.topic] if header.topic.strip() else sorted(self._offsets.topics_of(source))
        cloned = 0
        for topic in asked:
            exists = self._topics.get(topic) is not None
            if exists and (header.offline or self._may_consume(source, topic)):
                cloned += self._offsets.clone(header.dest_group, source, topic)
            yield
        nothing = f"group {source} has no offsets to clone in topic {header.topic or 'any'}"
        return Response(remark=None if cloned else nothing)

    def topics(self, _: ClientChannel, request: AnyCommand) -> Answer:
        """343: the topics where a group has offsets."""
        group = fields_of(request, TopicsOfGroup).group
        return answer_in_steps(TopicList(sorted(self._offsets.topics_of(group)), self._address))

    def delete(self, _: ClientChannel, request: AnyCommand) -> Response:
        """19002: remove the offsets of a group in a topic, and in the topics of its retries.

        A group without offsets is no error: an administrator asks every broker. A member that subscribes to the topic
        would bring the subscription back.
        """
        header = fields_of(request, GroupAndTopic)
        group, topic = header.group, header.topic
        if self._clients.subscription(group, topic) is not None:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"group {group} has a member that subscribes to topic {topic}"
            )
        for source in (topic, *(names.pop_retry_topic(topic, group, v2=is_v2) for is_v2 in (False, True))):
            self._offsets.forget(group, source)
        log.info("subscription is deleted", extra={"group": group, "topic": topic})
        return Response()


def _listed(header: GetConsumeStats) -> list[str] | None:
    """Return the topics that a request lists, None if it lists none; the group may lack a subscription."""
    if not (header.topic_list and header.topic_list.strip()):
        return None
    topics = list(dict.fromkeys(filter(None, header.topic_list.split(";"))))
    if len(topics) > ITEMS_MAX:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER, f"the request lists {len(topics)} topics, the limit is {ITEMS_MAX}"
        )
    return topics
