"""Requests about consumer offsets.

Source: upstream ``ConsumerManageProcessor``, ``AdminBrokerProcessor#resetOffset``.
"""

from __future__ import annotations

import logging
from typing import Final

from firearrow.broker.answers import answer_in_steps
from firearrow.broker.context import BrokerContext
from firearrow.broker.groups.clients import Channel
from firearrow.broker.offsets.resets import ClientResets, offset_at
from firearrow.broker.pop.waiting import HeldPops
from firearrow.broker.pulling.longpoll import HeldPulls
from firearrow.errors import BrokerError
from firearrow.net.server import Answer, Steps
from firearrow.wire.bodies import TopicConfig
from firearrow.wire.client_bodies import AllOffsets, MessageQueue, ResetOffsets
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import QueryConsumerOffset, ResetOffset, UpdateConsumerOffset

log = logging.getLogger(__name__)

_COMMITTED: Final = Response()
_WAS_RESET: Final = Response(remark="Offset has been previously reset")
_NO_OFFSET: Final = -1  # what clients send for none


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

    def all(self, _: Channel, __: AnyCommand) -> Answer:
        """43: what all groups committed, as slaves ask for it."""
        return answer_in_steps(AllOffsets(self._offsets.data_version, self._offsets.shared()))

    def query(self, _: Channel, request: AnyCommand) -> Response:
        """14: the committed offset; 22 lets the client decide where to start.

        A group that is new to a queue whose first message is still in memory starts with that
        message: the queue is young, and the group was meant to see all of it.
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

    def commit(self, _: Channel, request: AnyCommand) -> Response:
        """15: a group has consumed up to an offset; while a reset waits for its pull, ignored.

        Java: ConsumerManageProcessor#updateConsumerOffset takes any queue id, and keeps it.
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

    def reset(self, peer: Channel, request: AnyCommand) -> Steps:
        """222: have a group go on at a time (-1: at the end), in one queue or all.

        The new offset counts at once. Whoever consumes a queue now is told by its next pull, and a
        pull that waits ends for that. Without ``useServerSideResetOffset`` the consumers are told
        to carry it out (``resets``).
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
        """Give the offset at which a group goes on in a queue after a reset."""
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
        """The topic, if both exist."""
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
