"""Requests of administrators about consumer groups. Source: upstream ``AdminBrokerProcessor``."""

from __future__ import annotations

from collections.abc import Iterable

from firearrow.broker.context import BrokerContext
from firearrow.broker.processors.admin_topics import is_version, page_of
from firearrow.broker.processors.answers import answer_in_steps
from firearrow.broker.state.clients import Channel
from firearrow.errors import BrokerError
from firearrow.message import names
from firearrow.net.server import Answer, Steps
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import (
    ITEMS_MAX,
    ConsumeStats,
    GroupConfigList,
    MessageQueue,
    OffsetWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    body_of,
)
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroup,
    GetConsumeStats,
    GetSubscriptionGroup,
)


class GroupAdminProcessor:
    """200, 201, 207, 208, 225, 352."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._clients = context.clients
        self._store = context.store
        self._stats = context.stats

    def put(self, _: Channel, request: AnyCommand) -> Response:
        """200: create a group or change it."""
        config = body_of(request, SubscriptionGroupConfig)
        _check(config)
        self._groups.put(config)
        return Response()

    def put_list(self, _: Channel, request: AnyCommand) -> Steps:
        """225: create or change groups, all or none."""
        configs = body_of(request, GroupConfigList).group_config_list
        for config in configs:
            _check(config)
            yield
        self._groups.put_all(configs)
        return Response()

    def list_all(self, _: Channel, request: AnyCommand) -> Answer:
        """201: all groups, or a page of them (see 21)."""
        header = fields_of(request, GetAllSubscriptionGroup)
        table = self._groups.table
        page = page_of(
            table.keys(),
            header.group_seq,
            header.max_group_num,
            same=is_version(header.data_version, self._groups.data_version),
        )
        body = SubscriptionGroupTable(
            self._groups.data_version,
            {group: table[group] for group in page},
            dict(self._groups.forbidden),
        )
        return answer_in_steps(body, {"totalGroupNum": len(table)})

    def delete(self, _: Channel, request: AnyCommand) -> Response:
        """207: delete a group; one that does not exist is no error."""
        header = fields_of(request, DeleteSubscriptionGroup)
        self._groups.delete(header.group_name)
        if header.clean_offset:
            self._offsets.delete_group(header.group_name)
        self._stats.delete_group(header.group_name)
        return Response()

    def get(self, _: Channel, request: AnyCommand) -> Response:
        """352: the config of a group, which is created if groups may create themselves."""
        group = fields_of(request, GetSubscriptionGroup).group
        config = self._groups.find(group)
        if config is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {group}",
            )
        return Response(body=fastjson.dumps(config))

    def progress(self, _: Channel, request: AnyCommand) -> Steps:
        """208: how far a group is, and how fast."""
        header = fields_of(request, GetConsumeStats)
        group = header.consumer_group
        table: dict[MessageQueue, OffsetWrapper] = {}
        tps = 0.0
        for topic in self._topics_asked(header):
            config = self._topics.get(topic)
            if config is None or not self._may_consume(group, topic):
                continue
            for queue_id in range(config.read_queue_nums):
                queue = MessageQueue(topic, self._settings.broker.broker_name, queue_id)
                table[queue] = self._progress_in(group, topic, queue_id)
                yield
            tps += self._stats.group_get_tps(group, topic)
            yield
        return (yield from answer_in_steps(ConsumeStats(table, tps)))

    def _topics_asked(self, header: GetConsumeStats) -> Iterable[str]:
        if header.topic_list and header.topic_list.strip():
            topics = dict.fromkeys(filter(None, header.topic_list.split(";")))
            if len(topics) > ITEMS_MAX:
                raise BrokerError(
                    ResponseCode.INVALID_PARAMETER,
                    f"{len(topics)} topics are asked for, the limit is {ITEMS_MAX}",
                )
            return topics
        if header.topic and header.topic.strip():
            return [header.topic]
        return sorted(self._offsets.topics_of(header.consumer_group))

    def _may_consume(self, group: str, topic: str) -> bool:
        """Whether the group subscribes to the topic; of a group that is offline nobody knows."""
        online = self._clients.consumer_group(group)
        return online is None or not online.subscriptions or topic in online.subscriptions

    def _progress_in(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        consumed = max(0, self._offsets.query(group, topic, queue_id))
        pulled = self._offsets.query_pull(group, topic, queue_id)
        stored = self._store.store_time_of(topic, queue_id, consumed - 1) if consumed > 0 else 0
        return OffsetWrapper(
            max(0, self._store.max_queue_offset(topic, queue_id)),
            consumed,
            max(consumed, pulled),
            max(0, stored),
        )


def _check(config: SubscriptionGroupConfig) -> None:
    fault = names.validate_group(config.group_name)
    if fault is not None:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, fault)
