"""Pulls (11, 361): messages of one queue, by tag or SQL92; they wait if the client allows it.

Source: RocketMQ's ``PullMessageProcessor``, ``DefaultPullMessageResultHandler``.
"""

from __future__ import annotations

from typing import Final

from firearrow.broker.context import BrokerContext
from firearrow.broker.flowcontrol import REJECTED
from firearrow.broker.groups.clients import tag_codes_of
from firearrow.broker.groups.filters import ConsumerFilters, RetriedFilter, filter_of
from firearrow.broker.pulling.coldreads import ColdReads
from firearrow.broker.pulling.longpoll import WAIT_MS_MAX, HeldPull, HeldPulls, lighten
from firearrow.errors import BrokerError
from firearrow.message import names
from firearrow.message.names import group_of, is_retry
from firearrow.message.record import last_physical_offset
from firearrow.net.server import Finished, Peer
from firearrow.store import Fetch, GetResult, GetStatus, Wanted
from firearrow.wire.bodies import PERM_READ, TopicConfig
from firearrow.wire.client_bodies import SubscriptionData, SubscriptionGroupConfig
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import fields_of
from firearrow.wire.frame import AnyCommand, pull_answer
from firearrow.wire.headers import PullMessage

COMMIT_FLAG: Final = 1
SUSPEND_FLAG: Final = 2
SUBSCRIPTION_FLAG: Final = 4


_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
}
_EMPTY_QUEUE: Final = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)


class PullProcessor:
    """Answers pulls, and holds those that must wait."""

    def __init__(self, context: BrokerContext, held: HeldPulls, cold: ColdReads, filters: ConsumerFilters) -> None:
        self._settings = context.settings
        self._store = context.store
        self._topics = context.topics
        self._topic_table = context.topics.table
        self._groups = context.groups
        self._group_table = context.groups.table
        self._clients = context.clients
        self._offsets = context.offsets
        self._stats = context.stats
        self._clock = context.clock
        self._held = held
        self._cold = cold
        self._filters = filters
        self._replicas = context.replicas

    def pull(self, peer: Peer, request: AnyCommand) -> Finished:
        """11, 361: return messages, or a code that tells the client its next offset."""
        if self._replicas.is_slave and not self._settings.broker.slave_read_enable:
            raise BrokerError(ResponseCode.SYSTEM_BUSY, REJECTED)
        try:
            return self._pull(peer, request, may_suspend=True, aside=self._cold.are_aside)
        except Fetch as lacks:
            self._cold.hold(peer, request, lacks.stretches, self._answer_fetched)
            return None

    def _answer_fetched(self, peer: Peer, request: AnyCommand) -> Finished:
        """Answer a pull that waited for the disk."""
        return self._pull(peer, request, may_suspend=True, aside=False)

    def _answer_now(self, peer: Peer, request: AnyCommand) -> Finished:
        """Answer a held pull now, with or without messages."""
        return self._pull(peer, request, may_suspend=False, aside=False)

    def _pull(self, peer: Peer, request: AnyCommand, *, may_suspend: bool, aside: bool) -> Finished:
        header = request.ext
        if type(header) is not PullMessage:
            header = fields_of(request, PullMessage)
        name, queue_id = header.topic, header.queue_id
        topic = self._topic_table.get(name)
        group = self._group_table.get(header.consumer_group)
        if topic is None or group is None or not topic.perm & PERM_READ or not group.consume_enable:
            topic, group = self._check(header)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{peer.address}]",
            )
        if request.code == RequestCode.LITE_PULL_MESSAGE:
            self._check_lite()
        if not header.sys_flag & SUBSCRIPTION_FLAG:
            wanted = self._subscribed(header, group)
        elif header.expression_type in ("TAG", None):
            wanted = tag_codes_of(header.subscription or "")
        else:
            wanted = self._brought(header)
        if self._offsets.resets:
            moved = self._reset_result(header)
            if moved is not None:  # the commit in the pull is older than the reset
                return _moved_answer(request, moved, topic, group)
        if not header.sys_flag & SUSPEND_FLAG:
            self._store.catch_up()
        name = names.lite_queue(name, header.lite_topic) if header.lite_topic else name
        result = self._get(header, name, wanted, only_resident=aside)
        if result.count == 0 and self._replicas.is_slave:
            elsewhere = self._elsewhere(request, header, result, topic, group)
            if elsewhere is not None:
                return elsewhere
        if may_suspend and header.sys_flag & COMMIT_FLAG and header.commit_offset >= 0:
            self._offsets.commit(header.consumer_group, name, queue_id, header.commit_offset)
        code = _code_of(result.status, header.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND:
            waits = may_suspend and header.sys_flag & SUSPEND_FLAG
            if waits and self._hold(peer, request, header, name, wanted):
                return None
            if self._store.catch_up():
                result = self._get(header, name, wanted)
                code = _code_of(result.status, header.queue_offset)
        self._offsets.commit_pull(header.consumer_group, name, queue_id, result.next_offset)
        suggested = self._counted(result, topic, group)
        return pull_answer(
            request,
            code,
            result.status,
            result.next_offset,
            result.min_offset,
            result.max_offset,
            topic.topic_sys_flag,
            group.group_sys_flag,
            result.records,
            suggested,
        )

    def _counted(self, result: GetResult, topic: TopicConfig, group: SubscriptionGroupConfig) -> int:
        """Count the messages of a pull; return the number of the broker for the next one.

        Java: PullMessageProcessor counts tools, too, so who looks at messages raises the count of consumed ones.
        """
        if not result.count:
            self._stats.pulls_missed += 1
        elif group.group_name != names.TOOLS_GROUP:
            self._stats.got(group.group_name, topic.topic_name or "", result.count, len(result.records))
        return self._suggested(result, group) if self._settings.broker.slave_read_enable else 0

    def _suggested(self, result: GetResult, group: SubscriptionGroupConfig) -> int:
        """Return the number of the broker for a consumer's next pull: a consumer that is far behind disturbs the master
        less on a slave.
        """
        if result.count and not self._store.is_recent(last_physical_offset(result.records)):
            return group.which_broker_when_consume_slowly
        return 0 if self._replicas.has_master else group.broker_id

    def _elsewhere(
        self,
        request: AnyCommand,
        header: PullMessage,
        result: GetResult,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
    ) -> Finished:
        """Return a slave's answer if it has no messages for a consumer: ask the master.

        None if the pull must wait here, as the master is absent. Java: PullMessageProcessor makes the consumer ask
        again repeatedly then, without a wait.
        """
        moved = _code_of(result.status, header.queue_offset) == ResponseCode.PULL_OFFSET_MOVED
        if moved and not self._settings.store.offset_check_in_slave:
            suggested, next_offset = group.broker_id, header.queue_offset
        elif self._replicas.has_master:
            suggested, next_offset = 0, result.next_offset
        else:
            return None
        return pull_answer(
            request,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            result.status,
            next_offset,
            result.min_offset,
            result.max_offset,
            topic.topic_sys_flag,
            group.group_sys_flag,
            b"",
            suggested,
        )

    def _get(self, header: PullMessage, name: str, wanted: Wanted, *, only_resident: bool = False) -> GetResult:
        return self._store.get(name, header.queue_id, header.queue_offset, header.max_msg_nums, wanted, only_resident)

    def _reset_result(self, header: PullMessage) -> GetResult | None:
        """Return the pending reset of a group in a queue, if any."""
        name, queue_id = header.topic, header.queue_id
        queue_offset = self._offsets.take_reset(header.consumer_group, name, queue_id)
        if queue_offset is None:
            return None
        least = self._store.min_queue_offset(name, queue_id)
        most = self._store.max_queue_offset(name, queue_id)
        return GetResult(GetStatus.OFFSET_RESET, queue_offset, least, most)

    def _check(self, header: PullMessage) -> tuple[TopicConfig, SubscriptionGroupConfig]:
        """Check all reasons to refuse a pull, in RocketMQ's order."""
        if not self._settings.broker.broker_permission & PERM_READ:
            raise BrokerError(ResponseCode.NO_PERMISSION, "the broker pulling message is forbidden")
        group = self._groups.find(header.consumer_group)
        if group is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist",
            )
        if not group.consume_enable:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}")
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
        if not topic.perm & PERM_READ:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
        return topic, group

    def _check_lite(self) -> None:
        if not self._settings.broker.lite_pull_message_enable:
            raise BrokerError(ResponseCode.NO_PERMISSION, "the broker does not support litePull consumers")

    def _subscribed(self, header: PullMessage, group: SubscriptionGroupConfig) -> Wanted:
        """Return the group's subscription from its heartbeats."""
        name = header.consumer_group
        members = self._clients.consumer_group(name)
        if members is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist: {name}")
        if not group.consume_broadcast_enable and members.is_broadcasting:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the consumer group[{name}] can not consume by broadcast way"
            )
        if self._groups.is_read_forbidden(name, header.topic):
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the consumer group[{name}] is forbidden for topic[{header.topic}]"
            )
        subscription = self._clients.subscription(name, header.topic)
        if subscription is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist: {name} on {header.topic}"
            )
        if subscription.version < header.sub_version:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: {name} on {header.topic}",
            )
        if subscription.filter is None:
            return self._registered(header, subscription.data)
        return subscription.filter.codes

    def _registered(self, header: PullMessage, data: SubscriptionData) -> Wanted:
        """Return the group's filter by an expression from its heartbeats."""
        name = header.consumer_group
        kept = self._filters.find(header.topic, name)
        chosen = None if kept is None else kept.filter
        if kept is None or chosen is None:
            raise BrokerError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist! Your expression may be wrong: "
                f"{name} on {header.topic}",
            )
        if kept.client_version < header.sub_version:
            raise BrokerError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                f"the consumer's consumer filter data not latest: {name} on {header.topic}",
            )
        if not self._settings.broker.enable_property_filter:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {data.expression_type}",
            )
        if data.class_filter_mode:
            return None
        return self._retried(header) if self._filters_retried(header.topic) else chosen

    def _brought(self, header: PullMessage) -> Wanted:
        """Return the filter of the expression in the pull.

        Java: PullMessageProcessor relies on an `assert` where an expression can't be read, and a JVM with default
        options returns every message.
        """
        if not header.expression_type:  # Java: FilterAPI#build returns messages for "*" only
            return tag_codes_of(header.subscription or "")
        expression = header.subscription or ""
        chosen = filter_of(self._settings.broker, expression, header.expression_type)
        return self._retried(header) if self._filters_retried(header.topic) else chosen

    def _filters_retried(self, topic: str) -> bool:
        return self._settings.broker.filter_support_retry and is_retry(topic)

    def _retried(self, header: PullMessage) -> RetriedFilter:
        return RetriedFilter(self._filters, group_of(header.topic) or header.consumer_group)

    def _hold(self, peer: Peer, request: AnyCommand, header: PullMessage, name: str, wanted: Wanted) -> bool:
        config = self._settings.broker
        wait_ms = header.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills
        deadline = self._clock.monotonic() + min(wait_ms, WAIT_MS_MAX) / 1000
        lighten(request, header)
        pull = HeldPull(peer, request, self._answer_now, header.queue_offset, wanted, deadline)
        return wait_ms > 0 and self._held.hold(name, header.queue_id, pull)


def _code_of(status: GetStatus, queue_offset: int) -> ResponseCode:
    if status in _EMPTY_QUEUE and queue_offset != 0:
        return ResponseCode.PULL_OFFSET_MOVED
    return _CODES[status]


def _moved_answer(
    request: AnyCommand, moved: GetResult, topic: TopicConfig, group: SubscriptionGroupConfig
) -> Finished:
    """Return the answer to a pull of a group that must go on at another offset."""
    return pull_answer(
        request,
        ResponseCode.PULL_OFFSET_MOVED,
        moved.status,
        moved.next_offset,
        moved.min_offset,
        moved.max_offset,
        topic.topic_sys_flag,
        group.group_sys_flag,
        moved.records,
    )
