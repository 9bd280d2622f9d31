"""Requests about consumer offsets.

Source: RocketMQ's ``ConsumerManageProcessor``, ``AdminBrokerProcessor#resetOffset``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firearrow.broker.answers import answer_in_steps
from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import ClientChannel, ConsumerGroup
from firearrow.broker.pop.waiting import HeldPops
from firearrow.broker.pulling.longpoll import HeldPulls
from firearrow.errors import BrokerError
from firearrow.logs import Log
from firearrow.net.server import Answer, Steps
from firearrow.store import Boundary, MessageStore
from firearrow.wire import fastjson
from firearrow.wire.admin_bodies import QueueOffset, ResetOffsetList
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import AllOffsets, MessageQueue, ResetOffsets
from firearrow.wire.codes import LanguageCode, RequestCode, ResponseCode
from firearrow.wire.command import Response, fields_of, request
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import QueryConsumerOffset, ResetOffset, UpdateConsumerOffset

log: Final = Log(__name__)

_COMMITTED: Final = Response()
_WAS_RESET: Final = Response(remark="Offset has been previously reset")
_NO_OFFSET: Final = -1  # sent by clients without an offset


class OffsetProcessor:
    """14, 15, 43, 222."""

    def __init__(
        self, context: BrokerContext, held: HeldPulls, held_pops: HeldPops, held_notifications: HeldPops
    ) -> None:
        self._settings = context.settings
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._store = context.store
        self._held = held
        self._held_pops = held_pops
        self._held_notifications = held_notifications
        self._client_resets = ClientResets(context)

    def all(self, _: ClientChannel, __: AnyCommand) -> Answer:
        """43: the committed offsets of all groups, for slaves."""
        return answer_in_steps(AllOffsets(self._offsets.data_version, self._offsets.shared()))

    def query(self, _: ClientChannel, request: AnyCommand) -> Response:
        """14: the committed offset; 22 lets the client decide where to start.

        A new group starts with the first message of a queue if that is still in memory: the queue is young, and the
        group should get every message.
        """
        header = fields_of(request, QueryConsumerOffset)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.query(header.consumer_group, topic, queue_id)
        if offset >= 0:
            return Response(fields={"offset": offset})
        if header.set_zero_if_not_found is False:
            raise BrokerError(
                ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
            )
        store = self._store
        whole = store.min_queue_offset(topic, queue_id) <= 0 < store.max_queue_offset(topic, queue_id)
        if whole and store.head_in_memory(topic, queue_id):
            return Response(fields={"offset": 0})
        raise BrokerError(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")

    def commit(self, _: ClientChannel, request: AnyCommand) -> Response:
        """15: commit an offset of a group; ignored while a reset waits for its pull.

        Java: ConsumerManageProcessor#updateConsumerOffset accepts any queue id, and keeps it.
        """
        header = fields_of(request, UpdateConsumerOffset)
        group, topic = header.consumer_group, header.topic
        config = self._check(group, topic)
        queue_id, offset = header.queue_id, header.commit_offset
        if queue_id is None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"QueueId is null, topic is {topic}")
        if offset is None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"Offset is null, topic is {topic}")
        _check_queue(config, queue_id)
        if self._offsets.resets and self._offsets.is_reset(group, topic, queue_id):
            return _WAS_RESET
        self._offsets.commit(group, topic, queue_id, offset)
        return _COMMITTED

    def reset(self, peer: ClientChannel, request: AnyCommand) -> Steps:
        """222: reset a group to a time (-1: the end), in one queue or all.

        The new offset counts at once. A consumer of the queue learns it from its next pull, and a waiting pull ends for
        that. Without ``useServerSideResetOffset`` the consumers get a notice and reset themselves.
        """
        header = fields_of(request, ResetOffset)
        if not self._settings.broker.use_server_side_reset_offset:
            return (yield from self._client_resets.reset(header, request.language))
        group, topic = header.group, header.topic
        config = self._check(group, topic)
        if header.queue_id >= 0:
            _check_queue(config, header.queue_id)
            asked = {header.queue_id: header.offset}
        else:
            asked = dict.fromkeys(range(config.read_queue_nums))
        starts: dict[int, int] = {}
        for queue_id, queue_offset in asked.items():
            starts[queue_id] = self._start(topic, queue_id, header.timestamp, queue_offset)
            yield
        for queue_id, queue_offset in starts.items():
            self._offsets.reset(group, topic, queue_id, queue_offset)
        log.info(
            "offsets of a group are reset",
            extra={"group": group, "topic": topic, "queue_offsets": starts, "address": peer.address},
        )
        for queue_id in starts:
            self._held.release(topic, queue_id)
            self._held_pops.unblocked(topic, group, queue_id)
            self._held_notifications.unblocked(topic, group, queue_id)
            yield
        broker_name = self._settings.broker.broker_name
        table = {MessageQueue(topic, broker_name, queue_id): at for queue_id, at in starts.items()}
        return (yield from answer_in_steps(ResetOffsets(table)))

    def _start(self, topic: str, queue_id: int, time_ms: int, queue_offset: int | None) -> int:
        """Return the offset of a group in a queue after a reset."""
        if queue_offset is None or queue_offset == _NO_OFFSET:
            return offset_at(self._store, topic, queue_id, time_ms)
        least = self._store.min_queue_offset(topic, queue_id)
        most = self._store.max_queue_offset(topic, queue_id)
        if not max(0, least) <= queue_offset <= most + 1:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"Target offset {queue_offset} not in consume queue range [{least}-{most}]"
            )
        return queue_offset

    def _check(self, group: str, topic: str) -> TopicConfig:
        """Return the topic, if topic and group exist."""
        if self._groups.get(group) is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        config = self._topics.get(topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        return config


def _check_queue(config: TopicConfig, queue_id: int) -> None:
    queue_nums = max(config.read_queue_nums, config.write_queue_nums)
    if not 0 <= queue_id < queue_nums:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"QueueId {queue_id} is not from 0 to {queue_nums - 1}, topic is {config.topic_name}",
        )


# --- Resets by notices to the consumers (222) ---
#
# With ``useServerSideResetOffset`` off, which was RocketMQ's way before 5.0, the broker changes nothing. It sends the
# new offsets to each consumer that is online (220). The consumer drops its messages of these queues and commits the
# offsets. So there must be a consumer.
#
# Source: RocketMQ's ``Broker2Client#resetOffset``.


VERSION_MIN: Final = 28
"""V3_0_7_SNAPSHOT: earlier clients don't know request 220."""


def offset_at(store: MessageStore, topic: str, queue_id: int, time_ms: int) -> int:
    """Return the offset of a group in a queue that is reset to a store time; below 0: the queue's end."""
    if time_ms < 0:
        return max(0, store.max_queue_offset(topic, queue_id))
    return max(0, store.search_offset(topic, queue_id, time_ms, Boundary.LOWER))


class ClientResets:
    """Resets consumers by notices."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._topics = context.topics
        self._offsets = context.offsets
        self._clients = context.clients
        self._store = context.store

    def reset(self, header: ResetOffset, language: str | int | None) -> Steps:
        """Send the members of a group their new offsets in a topic, and return these.

        Without ``isForce`` offsets only go back. Consumers in C++ get a list; an administrator with a tool in C++
        announces them by its language. All members get the notice, or none.
        """
        topic, group = header.topic, header.group
        config = self._topics.get(topic)
        if config is None:
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}",
            )
        if not self._offsets.queues(group, topic):
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"the consumer group <{group}> not exist: it has no offset in topic {topic}"
            )
        starts: dict[int, int] = {}
        for queue_id in range(config.write_queue_nums):
            start = self._start(header, queue_id)
            if start is not None:
                starts[queue_id] = start
            yield
        members = self._members(header)
        broker_name = self._settings.broker.broker_name
        table = {MessageQueue(topic, broker_name, queue_id): at for queue_id, at in starts.items()}
        command = request(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            {"topic": topic, "group": group, "timestamp": header.timestamp, "isForce": False, "queueId": -1},
            _body_for(language, table),
            oneway=True,
        )
        for channel in list(members.members):
            channel.push(command)
        log.info(
            "consumers of a group get a notice to reset their offsets",
            extra={"group": group, "topic": topic, "queue_offsets": starts},
        )
        return (yield from answer_in_steps(ResetOffsets(table)))

    def _start(self, header: ResetOffset, queue_id: int) -> int | None:
        """Return the new offset of a group in a queue; None if the group has not begun the queue and the reset is not
        forced.

        Java: Broker2Client#resetOffset fails for the whole topic if a new group has no offset yet in one of its queues.
        """
        start = offset_at(self._store, header.topic, queue_id, header.timestamp)
        if header.is_force:
            return start
        committed = self._offsets.query(header.group, header.topic, queue_id)
        return min(start, committed) if committed >= 0 else None

    def _members(self, header: ResetOffset) -> ConsumerGroup:
        """Return the group, if it has members and each of them can get the notice.

        Java: Broker2Client#resetOffset has notified some members when it meets one that can't.
        """
        found = self._clients.consumer_group(header.group)
        if found is None:
            raise BrokerError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                "Consumer not online, so can not reset offset, "
                f"Group: {header.group} Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        for member in found.members.values():
            if member.version < VERSION_MIN:
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. client={member.client_id} version={member.version}",
                )
        return found


def _body_for(language: str | int | None, table: Mapping[MessageQueue, int]) -> bytes:
    if language not in (LanguageCode.CPP, LanguageCode.CPP.name):
        return fastjson.dumps(ResetOffsets(dict(table)))
    offsets = [QueueOffset(queue.topic, queue.broker_name, queue.queue_id, at) for queue, at in table.items()]
    return fastjson.dumps(ResetOffsetList(offsets))
