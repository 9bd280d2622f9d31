"""Requests about consumer offsets. Source: upstream ``ConsumerManageProcessor``."""

from __future__ import annotations

from firearrow.broker.state.clients import Channel
from firearrow.broker.state.groups import GroupTable
from firearrow.broker.state.offsets import ConsumerOffsets
from firearrow.broker.state.queues import QueueStore
from firearrow.broker.state.topics import TopicTable
from firearrow.errors import BrokerError
from firearrow.net.server import Handler
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import QueryConsumerOffset, UpdateConsumerOffset

_COMMITTED = Response()


class OffsetProcessor:
    """14, 15."""

    def __init__(
        self, topics: TopicTable, groups: GroupTable, offsets: ConsumerOffsets, store: QueueStore
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """Give the request codes that are served here."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.commit,
        }

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
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, do not set to zero, maybe this group boot first",
            )
        store = self._store
        whole = (
            store.min_queue_offset(topic, queue_id) <= 0 < store.max_queue_offset(topic, queue_id)
        )
        if whole and store.head_in_memory(topic, queue_id):
            return Response(fields={"offset": 0})
        raise BrokerError(
            ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
        )

    def commit(self, _: Channel, request: AnyCommand) -> Response:
        """15: a group has consumed up to an offset.

        Java: ConsumerManageProcessor#updateConsumerOffset takes any queue id, and keeps it.
        """
        header = fields_of(request, UpdateConsumerOffset)
        group, topic = header.consumer_group, header.topic
        if self._groups.get(group) is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!"
            )
        config = self._topics.get(topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        queue_id, offset = header.queue_id, header.commit_offset
        if queue_id is None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"QueueId is null, topic is {topic}")
        if offset is None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"Offset is null, topic is {topic}")
        queue_nums = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queue_nums:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"QueueId {queue_id} is not from 0 to {queue_nums - 1}, topic is {topic}",
            )
        self._offsets.commit(group, topic, queue_id, offset)
        return _COMMITTED
